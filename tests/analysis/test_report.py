"""What `validate` writes and prints, on made-up measurements."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from tiny_profiles import profile, trace

from analysis.cli import main
from analysis.intervals import Interval
from analysis.livecells import together
from analysis.predictions import predict
from analysis.report import as_json, coverage, errors, print_validation, summary, write_outputs
from analysis.rounds import compare_rounds
from analysis.rows import Row, Subset
from analysis.sources import Sources
from analysis.validation import Trial, Validation, split, with_baselines
from calibrate.live_runs import Measured
from calibrate.machine import Machine
from calibrate.prompts import Prompt
from policies.registry import SettingError, configure

SETTINGS = [
    (configure("ar"), 1),
    (configure("sd", lookahead=2), 1),
    (configure("saguaro", lookahead=2, fanout=(2,)), 2),
]
RANKS = [[0, 0, 1, 0, 2, 0] * 2] * 4


def measured(tokens: float, speed: float) -> Measured:
    seconds = tokens / speed
    return Measured(tokens, seconds, (seconds, seconds), (speed, speed), overlap_s=0.5)


@pytest.fixture
def validation() -> Validation:
    """Two subsets; every setting was 'measured' 10 % slower than simulated, AR exactly."""
    recorded = trace(RANKS)
    sources = Sources(profile(), {0.0: recorded}, model_error=0.02)
    parts = [{0.0: recorded.slice(ids)} for ids in split({0.0: recorded}, 2)]
    own = [predict(SETTINGS, sources.profile, part) for part in parts]
    rows = []
    for i, (settings, batch) in enumerate(SETTINGS):
        predictions = [p[i] for p in own]
        true = predictions[0].simulated_speedup_vs_ar / (1.0 if settings.policy == "ar" else 1.1)
        # The first subset's measurement lies in its interval, the second's does not.
        spans = [
            Interval(0.9 * true, true, 1.2 * true, 0.8),
            Interval(1.1 * true, 1.2 * true, 1.3 * true, 0.8),
        ]
        rounds = predictions[0].rounds
        rows.append(
            Row(
                settings=settings,
                batch=batch,
                law_tokens_per_second=None,
                law_speedup_vs_ar=2 * true,
                interval=Interval(0.9 * true, 1.05 * true, 1.2 * true, 0.8),
                nearest=None if settings.policy == "sd" else 2 * true,
                measured=measured(48.0, true),
                measured_speedup_vs_ar=true,
                speedup_by_repeat=(0.98 * true, 1.02 * true),
                subsets=tuple(Subset(p, s, true) for p, s in zip(predictions, spans, strict=True)),
                agreement=compare_rounds(settings, rounds, rounds, recorded),
                identical=True,
            )
        )
    spans_of = {(row.settings, row.batch): row.predictions[0].spans for row in rows}
    return Validation(sources, rows, {0.0: recorded}, 2, 0.8, spans_of)


def test_errors_leave_out_ar_and_missing_opinions(validation: Validation) -> None:
    assert errors(validation.rows, "error") == pytest.approx([0.1, 0.1])
    assert errors(validation.rows, "calibration_error") == pytest.approx([0.05, 0.05])
    assert errors(validation.rows, "nearest_error") == pytest.approx([1.0])
    found = summary(validation)
    assert found["simulated"] == {"median": pytest.approx(0.1), "max": pytest.approx(0.1), "settings": 2}
    assert found["median_spread"] == pytest.approx(0.02)
    assert found["replay_exact"] and found["identical_to_plain_decoding"]
    assert [(g["batch"], g["temperature"]) for g in found["by_batch_and_temperature"]] == [(1, 0.0), (2, 0.0)]


def test_coverage_counts_live_runs_of_every_setting_and_subset(validation: Validation) -> None:
    found = coverage(validation)
    assert (found["runs"], found["covered"], found["share"]) == (4, 2, 0.5)
    assert found["median_width"] == pytest.approx((1 / 3 + 1.3 / 1.1 - 1) / 2, abs=0.01)


def test_json_rows_have_the_documented_keys(validation: Validation) -> None:
    rows = json.loads(as_json(validation))["rows"]
    for world in ("law", "simulated", "measured"):
        assert {f"{world}_tokens_per_second", f"{world}_speedup_vs_ar"} <= set(rows[0])
    assert [(row["policy"], row["batch"]) for row in rows] == [("ar", 1), ("sd", 1), ("saguaro", 2)]
    assert {
        "measured_spread", "error", "error_without_contention", "predicted_low", "predicted_high",
        "temperature", "subsets_covered", "lookahead", "fanout", "backup", "extrapolated",
    } <= set(rows[1])  # fmt: skip


def test_sampled_rows_say_that_rounds_are_not_compared(
    validation: Validation, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [replace(row, agreement=None, identical=None) for row in validation.rows]
    sampled = replace(validation, rows=rows)
    assert summary(sampled)["replay_exact"] is None
    assert rows[1].as_dict()["rounds_compared"] is None
    print_validation(sampled)
    assert "another random path" in capsys.readouterr().out


def test_outputs_are_written(validation: Validation, tmp_path: Path) -> None:
    written = write_outputs(validation, tmp_path / "out")
    assert all(path.is_file() for path in written)
    rows = list(csv.DictReader((tmp_path / "out" / "validation.csv").read_text().splitlines()))
    assert [row["fanout"] for row in rows] == ["", "", "2,2,2"]
    assert (tmp_path / "out" / "validation.png").read_bytes().startswith(b"\x89PNG")
    timelines = sorted(path.name for path in (tmp_path / "out").glob("timeline_*.json"))
    assert len(timelines) == 6
    runs = list(csv.DictReader((tmp_path / "out" / "live_runs.csv").read_text().splitlines()))
    assert [run["covered"] for run in runs] == ["True", "False"] * 2


def test_the_table_names_every_opinion(validation: Validation, capsys: pytest.CaptureFixture[str]) -> None:
    print_validation(validation)
    printed = capsys.readouterr().out
    for expected in ("law", "simulated", "measured", "±2.0", "+10.0", "saguaro K=2 F=2 primary b=2"):
        assert expected in printed
    assert "2 of 4 live runs (50%) lie in their 80% interval" in printed


def test_an_interval_is_printed_with_the_point_of_its_own_prompts(
    validation: Validation, capsys: pytest.CaptureFixture[str]
) -> None:
    """The calibration's prompts may be easier: its interval excludes the points of others."""
    validation.rows[1] = replace(validation.rows[1], interval=Interval(7.1, 7.23, 7.4, 0.8))
    print_validation(validation)
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if "sd K=2" in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[-1] == "7.23, 7.10-7.40"
    simulated, measured = (float(cells[i]) for i in (2, 3))
    assert max(simulated, measured) < 7.1, "those of the validation's own prompts stand elsewhere"
    assert "calib. prompts" in printed and "validation's own prompts" in " ".join(printed.split())


def test_one_repetition_has_no_spread(validation: Validation, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [replace(row, speedup_by_repeat=row.speedup_by_repeat[:1]) for row in validation.rows]
    once = replace(validation, rows=rows, repeats=1)
    found = json.loads(as_json(once))
    assert [row["measured_spread"] for row in found["rows"]] == [None] * 3
    assert found["summary"]["median_spread"] is None
    print_validation(once)
    assert "±" not in capsys.readouterr().out


def test_a_profile_of_another_machine_is_warned_about(
    validation: Validation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it was measured, and what of this machine is different, before anything is run."""
    import analysis.validation

    here = Machine("Some CPU", (0, 1, 2), ())
    job = SimpleNamespace(machine=here)
    monkeypatch.setattr("calibrate.options.make_job", lambda _: job)
    monkeypatch.setattr(
        analysis.validation, "validate", lambda *_, **__: replace(validation, machine=str(here))
    )
    result = CliRunner().invoke(main, ["--hw", "cpu2-x5", "--json"])
    assert result.exit_code == 0, result.output
    assert (
        "warning: profile 'cpu2-x5' was measured on 2 CPU cores (AMD EPYC); this is 3 CPU cores (Some CPU)"
        in result.stderr
    )
    assert json.loads(result.stdout)["machine"] == "3 CPU cores (Some CPU); no accelerator"
    job.machine = Machine("AMD EPYC", (0, 1), ())
    assert "warning" not in CliRunner().invoke(main, ["--hw", "cpu2-x5", "--json"]).stderr


def test_machines_differ_in_what_they_do_not_share() -> None:
    here = Machine("AMD EPYC", (0, 1), ("cuda: A100",))
    assert here.differs_from("2 CPU cores (AMD EPYC); cuda: A100") == ""
    assert here.differs_from("2 CPU cores (AMD EPYC); no accelerator") == (
        "was measured on no accelerator; this is cuda: A100"
    )
    assert "no machine" in here.differs_from("")


def test_subsets_of_a_row_are_pooled_by_seconds(validation: Validation) -> None:
    row = validation.rows[1]
    seconds = [p.simulated.seconds for p in row.predictions]
    plain = [s * p.simulated_speedup_vs_ar for s, p in zip(seconds, row.predictions, strict=True)]
    assert row.simulated_speedup_vs_ar == pytest.approx(sum(plain) / sum(seconds))
    both = together([measured(24.0, 2.0), measured(24.0, 4.0)])
    assert both.tokens_per_second == pytest.approx(48 / 18)
    assert both.by_repeat == pytest.approx((48 / 18, 48 / 18))


def test_every_batch_and_temperature_gets_its_plain_decoding() -> None:
    sd, hot = configure("sd"), configure("sd", temperature=1.0)
    found = with_baselines([(sd, 1), (hot, 1), (sd, 4)])
    assert [(s.policy, s.temperature, b) for s, b in found] == [
        ("ar", 0.0, 1), ("sd", 0.0, 1), ("ar", 1.0, 1), ("sd", 1.0, 1), ("ar", 0.0, 4), ("sd", 0.0, 4),
    ]  # fmt: skip


def test_subsets_have_all_categories() -> None:
    recorded = trace([[0]] * 8, categories=["a", "b"] * 4)
    assert split({0.0: recorded}, 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [len(ids) for ids in split({0.0: trace([[0]] * 5)}, 2)] == [3, 2]


def test_a_batch_wider_than_a_subset_is_refused() -> None:
    prompts = tuple(Prompt(i, "a", "x") for i in range(6))
    with pytest.raises(SettingError, match="a batch of 4 needs 8 prompts in 2 subsets"):
        Trial(((configure("ar"), 4),), prompts, "made up", subsets=2)
    with pytest.raises(SettingError, match="cannot be split"):
        Trial(((configure("ar"), 1),), prompts, "made up", subsets=7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "medusa"], "unknown policy 'medusa'"),
        (["--lookahead", "0"], "lookahead must be between"),
        (["--backup", "hope"], "unknown backup"),
        (["--lookahead", "two"], "comma-separated list"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--batch", "8", "--count", "6"], "a batch of 8 needs 16 prompts"),
        (["--temperature", "warm"], "comma-separated list"),
        (["--temperature", "-1"], "temperature must be at least 0"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", ","], "',' names nothing"),
        (["--backup", ""], "'' names nothing"),
        (["--batch", "0"], "must be at least 1, got 0"),
        (["--batch", "4,-1"], "must be at least 1, got -1"),
    ],
)
def test_empty_lists_and_batches_are_refused_before_any_work(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.cli._validate", lambda _: pytest.fail("work began"))
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and message in result.stderr
