"""What `validate` writes and prints, on made-up measurements."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from analysis.cli import main
from analysis.predictions import predict
from analysis.report import as_json, errors, print_validation, summary, write_outputs
from analysis.rounds import compare_rounds
from analysis.validation import Row, Validation
from calibrate.runs import Measured
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from hardware_profiles.trace import Trace, TraceMeta, TraceRequest
from policies.registry import configure

SETTINGS = [configure("ar"), configure("sd", lookahead=2), configure("saguaro", lookahead=2, fanout=(2,))]


@pytest.fixture
def validation() -> Validation:
    """Two requests of 12 tokens; every setting was 'measured' 10 % slower than simulated, AR exactly."""
    rank = np.tile([0, 0, 1, 0, 2, 0], 4)
    trace = Trace(
        requests=tuple(
            TraceRequest(id=i, question_id=i, category="a", prompt=(1, 2), ended="limit") for i in range(2)
        ),
        meta=TraceMeta(
            target_model="t", draft_model="d", tokenizer="x", vocabulary=9, sampling={"temperature": 0.0},
            prompt_set="made up",
        ),
        request=np.repeat([0, 1], 12),
        position=np.tile(np.arange(12), 2),
        token=np.zeros(24, dtype=np.int64),
        draft_rank=rank,
    )  # fmt: skip
    profile = load_profile(find_profile("textbook"))
    rows = []
    for prediction in predict(SETTINGS, profile, trace):
        true = prediction.simulated_speedup_vs_ar / (1.0 if prediction.settings.policy == "ar" else 1.1)
        rows.append(
            Row(
                settings=prediction.settings,
                prediction=prediction,
                from_calibration=prediction,
                nearest=None if prediction.settings.policy == "sd" else 2 * true,
                measured=Measured(24, 24 / true, (24 / true,) * 2, overlap_s=0.5),
                measured_speedup_vs_ar=true,
                speedup_by_repeat=(0.98 * true, 1.02 * true),
                agreement=compare_rounds(prediction.settings, prediction.rounds, prediction.rounds, trace),
                identical=True,
            )
        )
    return Validation(profile, rows, trace, 2, {row.settings: row.prediction.spans for row in rows})


def test_errors_leave_out_ar_and_missing_opinions(validation: Validation) -> None:
    assert errors(validation.rows, "error") == pytest.approx([0.1, 0.1])
    assert errors(validation.rows, "nearest_error") == pytest.approx([1.0])
    found = summary(validation)
    assert found["simulated"] == {"median": pytest.approx(0.1), "max": pytest.approx(0.1), "settings": 2}
    assert found["median_spread"] == pytest.approx(0.02)
    assert found["replay_exact"] and found["identical_to_plain_decoding"]


def test_json_rows_have_the_documented_keys(validation: Validation) -> None:
    rows = json.loads(as_json(validation))["rows"]
    for world in ("law", "simulated", "measured"):
        assert {f"{world}_tokens_per_second", f"{world}_speedup_vs_ar"} <= set(rows[0])
    assert [row["policy"] for row in rows] == ["ar", "sd", "saguaro"]
    assert {"measured_spread", "error", "lookahead", "fanout", "backup"} <= set(rows[1])


def test_outputs_are_written(validation: Validation, tmp_path: Path) -> None:
    written = write_outputs(validation, tmp_path / "out")
    assert all(path.is_file() for path in written)
    rows = list(csv.DictReader((tmp_path / "out" / "validation.csv").read_text().splitlines()))
    assert [row["fanout"] for row in rows] == ["", "", "2,2,2"]
    assert (tmp_path / "out" / "validation.png").read_bytes().startswith(b"\x89PNG")
    timelines = sorted(path.name for path in (tmp_path / "out").glob("timeline_*.json"))
    assert len(timelines) == 6


def test_the_table_names_every_opinion(validation: Validation, capsys: pytest.CaptureFixture[str]) -> None:
    print_validation(validation)
    printed = capsys.readouterr().out
    for expected in ("law", "simulated", "measured", "±2.0 %", "+10.0 %", "saguaro K=2 F=2 primary"):
        assert expected in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "medusa"], "unknown policy 'medusa'"),
        (["--lookahead", "0"], "lookahead must be between"),
        (["--backup", "hope"], "unknown backup"),
        (["--lookahead", "two"], "comma-separated list"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.stderr and "Traceback" not in result.stderr
