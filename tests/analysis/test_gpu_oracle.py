"""The oracle page, on tiny tables and cells worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_tables import CONFIG, write_tables

from analysis.__main__ import main
from analysis.studies import gpu_oracle, gpu_serving
from analysis.studies.gpu_oracle import BEYOND, DRAFT_GAPS, Cell, Oracle, read_cells, signs, summary
from hardware_profiles.composed import HOST_GAP_S, Composer
from hardware_profiles.kernels import Tables, find_tables
from hardware_profiles.networks import draft_head, network_of_config

NETWORK = network_of_config(CONFIG, name="tiny")
EMPTY = dict.fromkeys(read_cells()[0].row, "")
ONE = {
    **EMPTY,
    "source": "somebody",
    "gpu": "H100 80GB",
    "engine": "vllm",
    "model": "x/Tiny",
    "tp": "1",
    "batch": "2",
    "context": "50",
    "graph": "1",
}


def cell(**more: str) -> Cell:
    return Cell({**ONE, **more})


PLAIN = cell(kind="e2e", K="0", metric="output_tok_per_s", value="1000")
TREE = {
    "kind": "e2e",
    "K": "3",
    "tokens_per_row": "8",
    "topk": "2",
    "metric": "output_tok_per_s",
    "value": "900",
}
SPEEDUP = cell(**TREE, draft="EAGLE3", accept_length="2.5")


@pytest.fixture
def systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    heads = {"tiny": NETWORK, "eagle3:tiny": draft_head(NETWORK)}
    monkeypatch.setattr(gpu_oracle, "find_network", lambda name, tables: heads[name])
    return find_tables(write_tables(tmp_path / "wheel"))


def test_a_step_and_a_speedup_by_hand(systems: Path) -> None:
    target, head = (Composer(Tables(systems, "h100"), network) for network in (NETWORK, draft_head(NETWORK)))
    found = [Oracle(systems, (PLAIN, SPEEDUP)).answer(each) for each in (PLAIN, SPEEDUP)]
    assert found[0] is not None and found[1] is not None
    step = target.forward(2, 1, 50).seconds + HOST_GAP_S
    assert found[0]["printed"] == 2 / 1000 and found[0]["composed"] == pytest.approx(step)
    # The head reads what was accepted, then two levels of two; the target verifies eight tokens of each row.
    drafted = head.forward(2, 8, 50).seconds + 2 * head.forward(2, 2, 50).seconds
    spent = target.forward(2, 8, 50).seconds + drafted + HOST_GAP_S + 3 * DRAFT_GAPS["vllm"]
    assert found[1]["printed"] == pytest.approx(0.9)
    assert found[1]["composed"] == pytest.approx(step / (spent / 2.5))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"kind": "verify", "metric": "verify_ms", "tokens_per_row": "4"}, "verify"),
        ({"kind": "e2e", "K": "3", "metric": "output_tok_per_s"}, None),  # no acceptance
        ({"kind": "forward", "metric": "tpot_ms", "K": "0"}, "plain"),
        ({"kind": "ratio", "metric": "C"}, "C"),
    ],
)
def test_what_a_cell_is(change: dict[str, str], kind: str | None) -> None:
    assert cell(**change).kind == kind


def test_a_ratio_by_how_kernels_are_launched(systems: Path) -> None:
    oracle = Oracle(systems, ())
    ratio = cell(kind="ratio", metric="C", value="1.5", draft="EAGLE3", K="0", graph="0")
    found = oracle.answer(ratio)
    # Launching two layers takes 0.89 ms, more than their kernels; the head's output matrix takes longer than
    # that.
    head = Composer(Tables(systems, "h100"), draft_head(NETWORK)).forward(2, 1, 50)
    assert found is not None and found["composed"] == pytest.approx(2 * 445e-6 / head.seconds)
    assert oracle.ratios(ratio).startswith("tiny with eagle3:tiny: C = 1.5 printed; ")


def _script(source: str, tp: str, **more: str) -> Cell:
    return cell(
        source=source,
        tp=tp,
        batch=more.pop("batch", "1"),
        kind="e2e",
        metric="tok_per_s",
        engine="sglang",
        **more,
    )


def test_host_time_is_that_of_the_other_sources(systems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_oracle, "SCRIPT", {"a": None, "b": None, "c": None})
    # A kernel of 1 ms whatever is asked: steps of 3, 5 and 9 ms take 2, 4 and 8 beyond it at TP 1, 2 and 4.
    monkeypatch.setattr(Oracle, "_kernels", lambda self, cell, rows=None: (1e-3, None))
    cells = [
        _script(source, tp, K="0", value=str(1 / seconds))
        for source, tp, seconds in (("a", "1", 3e-3), ("b", "2", 5e-3), ("c", "4", 9e-3))
    ]
    oracle = Oracle(systems, tuple(cells))
    # On a line over log2 of TP: 2 and 8 at 0 and 2 make 5 at 1; 2 and 4 at 0 and 1 make 6 at 2.
    assert [oracle._host_s(each, 0.0) for each in cells] == pytest.approx([0.0, 5e-3, 6e-3])


def test_a_run_ends_with_a_row_alone(systems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_oracle, "SCRIPT", {"a": 8})
    # A step takes 1 ms and 1 ms more a row; a fifth of the tokens is decoded alone, at 2 ms each.
    monkeypatch.setattr(
        Oracle, "_kernels", lambda self, cell, rows=None: (1e-3 * (1 + (rows or self._rows(cell))), None)
    )
    # Four rows: 5 / 4 ms a token; sixteen requests are never more than eight rows: 9 / 8 ms a token.
    per_token = {"4": 0.2 * 2e-3 + 0.8 * 1.25e-3, "16": 0.2 * 2e-3 + 0.8 * 1.125e-3}
    cells = [_script("a", "1", batch=b, K="0", value=str(1 / s)) for b, s in per_token.items()]
    oracle = Oracle(systems, tuple(cells))
    assert [oracle._alone(each) for each in cells] == pytest.approx([0.2, 0.2])
    assert [oracle._token(each)[0] for each in cells] == pytest.approx(
        [4 * per_token["4"], 16 * per_token["16"]]
    )


def test_a_round_of_ssd_by_hand(systems: Path) -> None:
    ssd = cell(kind="e2e", K="2", tokens_per_row="3", fanout="4", hit_rate="0.75", accept_length="2",
               engine="ssd", draft="EAGLE3", metric="tok_per_s", value="900")  # fmt: skip
    target, draft = (Composer(Tables(systems, "h100"), network) for network in (NETWORK, draft_head(NETWORK)))
    gap = DRAFT_GAPS["ssd"]
    ahead = draft.forward(2, 3, 50).seconds + 2 * draft.forward(2, 12, 50).seconds + 3 * gap
    hit = max(target.forward(2, 3, 50).seconds + HOST_GAP_S, ahead)
    spent = hit + 0.25 * 2 * (draft.forward(2, 1, 50).seconds + gap)
    assert Oracle(systems, (ssd,))._token(ssd)[0] == pytest.approx(spent / 2)


def test_what_a_source_compares_with(systems: Path) -> None:
    plain = cell(kind="e2e", K="0", metric="tok_per_s", value="100")
    first, second = (cell(**{**TREE, "K": k, "value": v, "against": a}, draft="EAGLE3", accept_length="2")
                     for k, v, a in (("3", "900", ""), ("5", "450", "900")))  # fmt: skip
    oracle = Oracle(systems, (plain, first, second))
    assert oracle.baseline(first) is plain and oracle.baseline(second) is first
    found = oracle.answer(second)
    assert found is not None and found["printed"] == 0.5


def test_what_says_too_little_is_left_out(systems: Path) -> None:
    oracle = Oracle(systems, (PLAIN,))
    for change in ({"gpu": "not stated"}, {"tp": ""}, {"batch": ""}, {"tp": "4"}):
        assert oracle.answer(cell(**{**PLAIN.row, **change})) is None


def test_the_summary_counts_apart() -> None:
    row = {"captured": "yes", "source": "a", "cause": None, "roofline_error": None}
    rows = [
        {**row, "kind": "speedup", "printed": 1.2, "composed": 1.1, "error": -0.1},
        {**row, "kind": "speedup", "printed": 0.8, "composed": 1.2, "error": 0.5},
        {**row, "kind": "verify", "printed": 1.0, "composed": 2.0, "error": 1.0, "cause": BEYOND},
    ]
    (found,) = summary(rows)
    assert found["cells"] == 2 and found["median"] == pytest.approx(0.3) and found["largest"] == 0.5
    assert signs(rows[:2]) == 0.5


def test_the_command(systems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_oracle, "read_cells", lambda: (PLAIN, SPEEDUP, cell(kind="ratio")))
    arguments = ["run", "gpu-oracle", "--tables", str(tmp_path / "wheel")]
    result = CliRunner().invoke(main, [*arguments, "--json"])
    found = json.loads(result.stdout)
    assert found["cells"] == 2 and found["published"] == 3
    assert "1 figures say too little" in CliRunner().invoke(main, arguments).stdout


def test_serving_runs_by_hand(systems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_serving, "find_network", lambda name, precision: NETWORK)
    columns = (
        "system,backend,backend_version,model_path,mode,pp_size,attention_dp_size,batch_size,gemm_quant_mode,"
        "precision,tp_size,isl,osl,silicon_tpot_ms,silicon_data_source"
    )
    shared = "h100_sxm,vllm,0.12,meta-llama/Llama-3.1-8B,{mode},1,1,2,,,1,10,{output},0.5,run{more}"
    runs = [
        ("agg", 4000, "; silicon_concurrency=2"),
        ("disagg", 4000, ""),
        ("agg", 10, ""),
        ("agg", 4000, "; silicon_concurrency=4"),
    ]  # apart; a prefill is a large share of ten tokens; four requests wait for two rows
    lines = [shared.format(mode=mode, output=output, more=more) for mode, output, more in runs]
    (systems / gpu_serving.FILE).write_text("\n".join([columns, *lines]))
    (row,) = gpu_serving.serving_rows(systems, lambda *at: None)
    composer = Composer(Tables(systems, "h100"), NETWORK)
    step, prefill = composer.forward(2, 1, 2010).seconds, composer.forward(1, 10, 0, answers=1).seconds
    assert row["composed"] == pytest.approx(step + prefill / 4000) and row["printed"] == 0.5e-3
