"""What no engine can have measured is refused with the line that says it."""

import json
from pathlib import Path

import pytest

from simulator.imports.formats import find_format, read_file, read_text
from simulator.imports.measured import Imported, ImportRefused

VLLM_TABLE = """\
============ Serving Benchmark Result ============
Successful requests:                     10
Maximum request concurrency:             1
Total generated tokens:                  1000
Mean TPOT (ms):                          5.00
Drafts:                                  100
Draft tokens:                            400
Accepted tokens:                         {accepted}
"""
CLOSING = "n_draft = 8\nn_predict = 100\nn_drafted = 50\nn_accept = {accepted}\n"
IK_TABLE = """\
| task | run | stage | tok/s | rounds | accepted | a.len | pos accept |
|------|-----|-------|-------|--------|----------|-------|------------|
| code | 1 | mtp | 68.58 | 220 | {accepted}/660 | {length} | 90.5% 80.5% 73.6% |
"""


def ik_table(accepted: int, length: float) -> str:
    return IK_TABLE.format(accepted=accepted, length=length)


def timings(accepted: int) -> str:
    row = {"predicted_n": 100, "predicted_ms": 900.0, "draft_n": 50, "draft_n_accepted": 40}
    runs = [{"records": [row, row | {"draft_n_accepted": accepted}]}]
    return json.dumps({"runs": runs}, indent=1)


def specforge(length: float) -> str:
    rows = [
        {"Name": "Without", "output_throughput": 180.0, "accept_length": 1.0},
        {"Name": "EAGLE3", "output_throughput": 300.0, "accept_length": length},
    ]
    setting = {"batch_size": 1, "steps": 3, "topk": 1, "metrics": rows}
    return json.dumps({"m": {"b": {"benchmark_name": "b", "results": [setting]}}}, indent=1)


@pytest.mark.parametrize(
    ("name", "sound", "impossible", "line"),
    [
        ("bench-console", VLLM_TABLE.format(accepted=400), VLLM_TABLE.format(accepted=401), 8),
        ("llamacpp-closing", CLOSING.format(accepted=50), CLOSING.format(accepted=51), 4),
        ("llamacpp-timings", timings(50), timings(51), 12),
        ("specforge", specforge(4.0), specforge(4.5), 19),
        ("ik-llama-table", ik_table(538, 3.45), ik_table(661, 3.45), 3),
        ("ik-llama-table", ik_table(538, 4.0), ik_table(538, 4.2), 3),
    ],
)
def test_accepted_above_drafted_is_refused(
    name: str, sound: str, impossible: str, line: int, tmp_path: Path
) -> None:
    assert read_text(sound, find_format(name))
    path = tmp_path / "file"
    path.write_text(impossible)
    with pytest.raises(ImportRefused, match=rf"file:{line}: .*(accept|n_accept)") as caught:
        read_file(path, name=name)
    assert "\n" not in str(caught.value)


def test_no_measurement_can_contradict_itself() -> None:
    """At the type that every reader makes, so that none can forget it."""
    with pytest.raises(ImportRefused, match="5 accepted tokens of 4 drafted"):
        Imported("e", "s", accepted=5, drafted=4)
    with pytest.raises(ImportRefused, match="4 at most"):
        Imported("e", "s", tokens_per_round=4.1, lookahead=3)
    assert Imported("e", "s", tokens_per_round=4.0, lookahead=3)


def test_a_bad_line_of_json_lines_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"accept_length": 2.5, "mean_tpot_ms": 5}\n{"accept_length": NaN}\n')
    with pytest.raises(ImportRefused, match=r"runs\.jsonl:2: .*accept_length: must be a finite number"):
        read_file(path, name="sglang-bench")
