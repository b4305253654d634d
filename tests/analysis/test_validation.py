"""What `validate` finds, writes and prints, on live runs made of simulated ones."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure
from rich.console import Console
from simulated_live import run_without_models
from tiny_profiles import profile, trace

from analysis import execute
from analysis.cli import main
from analysis.results import Results
from analysis.sources import Sources
from analysis.studies import validation
from analysis.studies.validation import (
    coverage,
    error_summary,
    expand,
    intervals_of,
    nearest_measured,
    pictures,
    show,
    summary,
)
from calibrate.calibration import Calibrated
from calibrate.live.placement import WorkerSpec
from calibrate.live_runs import Cell
from calibrate.machine import Machine
from hardware_profiles.profile import MeasuredRun, Overlap
from policies.registry import SettingError, configure

TEXTS = trace([[0, 0, 1, 0, 2, 0] * 2] * 4)
TINY = profile()
HERE = Machine("Some CPU", (0, 1, 2), ())
ASKED = ["--policies", "sd,saguaro", "--lookahead", "2", "--fanout", "2", "--batch", "1,2", "--count", "4"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return tiny_machine(monkeypatch)


def tiny_machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`validate` on a tiny pair that is 10 % slower live than simulated, plain decoding aside."""
    job = SimpleNamespace(machine=HERE, limit=12)
    sources = Sources(TINY, {0.0: TEXTS}, model_error=0.02)
    monkeypatch.setattr(validation, "make_job", lambda *_, **__: job)
    monkeypatch.setattr(validation, "like_profile", lambda job, _: job)
    monkeypatch.setattr(validation, "load_sources", lambda *_, **__: sources)
    monkeypatch.setattr(execute.Bench, "trace", lambda self, t: self.sources.trace(t))

    def slower(cell: Cell, repeat: int) -> float:
        return 1.0 if cell.settings.policy == "ar" else 1.1 + 0.01 * (repeat - 1)

    run_without_models(monkeypatch, TINY, {0.0: TEXTS}, slower)
    return job


def call(*arguments: str) -> Any:
    return CliRunner().invoke(main, [*ASKED, "--hw", "tiny", *arguments])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        tiny_machine(patch)
        result = call("--out", str(folder), "--json")
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def found(out: Path) -> Results:
    told = json.loads((out / "validation.json").read_text())
    rest = {name: told[name] for name in told if name not in {"study", "asked", "rows"}}
    return Results("validation", tuple(told["rows"]), told["asked"], rest)


def printed(results: Results) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    for part in show(results):
        console.print(part, highlight=False)
    return console.export_text()


def test_errors_leave_out_ar_and_missing_opinions(found: Results) -> None:
    summed = found.about["summary"]
    assert summed["simulated"] == {"median": pytest.approx(0.1), "max": pytest.approx(0.1), "settings": 4}
    assert summed["median_spread"] == pytest.approx((1 / 1.09 - 1 / 1.11) / 2 * 1.1)
    assert summed["replay_exact"] and summed["identical_to_plain_decoding"]
    groups = summed["by_batch_and_temperature"]
    assert [(g["batch"], g["temperature"]) for g in groups] == [(1, 0.0), (2, 0.0)]
    assert "nearest_calibrated_setting" not in error_summary(found.rows)  # the profile has no live runs


def test_coverage_counts_live_runs_of_every_setting_and_subset(found: Results) -> None:
    # 4 settings on 2 subsets, 3 times.
    assert len(found.about["live_runs"]) == found.about["summary"]["coverage"]["runs"] == 24
    rows = [row for row in found.rows if row["policy"] == "sd"]
    inside = {"predicted_low": 1.0, "predicted_high": 1.5, "covered": True}
    outside = {"predicted_low": 2.0, "predicted_high": 2.2, "covered": False}
    told = coverage([{**rows[0], "live_runs": [inside, outside]}], found.asked)
    assert (told["runs"], told["covered"], told["share"]) == (2, 1, 0.5)
    assert told["median_width"] == pytest.approx((0.5 + 0.1) / 2)


def test_json_has_the_documented_keys(found: Results) -> None:
    assert {"profile", "profile_machine", "machine", "files", "target", "draft", "prompts", "summary"} <= set(
        found.about
    )
    assert found.about["prompts"] == "heldout"
    for world in ("law", "simulated", "measured"):
        assert {f"{world}_tokens_per_second", f"{world}_speedup_vs_ar"} <= set(found.rows[0])
    assert [(row["policy"], row["batch"]) for row in found.rows] == [
        ("ar", 1), ("sd", 1), ("saguaro", 1), ("ar", 2), ("sd", 2), ("saguaro", 2),
    ]  # fmt: skip
    assert {
        "measured_spread", "error", "error_without_contention", "without_contention_speedup_vs_ar",
        "error_from_calibration_prompts", "law_error", "nearest_setting_error", "predicted_low",
        "predicted_middle", "predicted_high", "temperature", "subsets_covered", "subsets", "lookahead",
        "fanout",
        "backup", "extrapolated", "tokens_per_round", "cache_hit_rate", "simulated_overlap_s",
        "measured_overlap_s", "rounds_compared", "round_differences", "unexcused_differences",
        "identical_to_plain_decoding", "repeatability", "rounds_equal",
    } <= set(found.rows[1])  # fmt: skip
    assert {row["rounds_equal"] for row in found.rows} == {True}
    assert found.about["summary"]["rounds_equal"]
    best = found.about["summary"]["best"]
    assert [(b["batch"], b["predicted"] == b["measured"], b["regret"]) for b in best] == [
        (1, True, 0.0), (2, True, 0.0),
    ]  # fmt: skip


def test_a_policy_whose_decisions_nobody_recorded_has_no_interval(found: Results) -> None:
    """It was run and is compared all the same; what the calibration's prompts foresee of it is not known."""
    boot = Sources(TINY, {0.0: TEXTS}, 0.0).bootstrap(0.0)
    assert intervals_of(boot, configure("mirror"), 2) == (None, None)
    none = dict.fromkeys(("predicted_low", "predicted_middle", "predicted_high"))
    unknown = {**none, "error_from_calibration_prompts": None}
    rows = tuple(
        {**row, **unknown, "live_runs": [{**run, **none, "covered": None} for run in row["live_runs"]]}
        for row in found.rows
    )
    told = replace(found, rows=rows)
    told = replace(told, about={**found.about, "summary": summary(told)})
    assert (told.about["summary"]["coverage"]["runs"], told.about["summary"]["simulated"]["settings"]) == (
        0,
        4,
    )
    assert "intervals:" not in printed(told) and pictures(told)[""].draw(Figure()) is None


def test_sampled_rows_say_that_rounds_are_not_compared(found: Results) -> None:
    none = dict.fromkeys(("rounds_compared", "identical", "round_differences", "unexcused_differences"))
    rows = tuple({**row, **none, "temperature": 1.0} for row in found.rows)
    sampled = replace(found, rows=rows)
    sampled = replace(sampled, about={**found.about, "summary": summary(sampled)})
    assert sampled.about["summary"]["replay_exact"] is None
    assert "another random path" in printed(sampled)


def test_outputs_are_written(found: Results, out: Path) -> None:
    rows = list(csv.DictReader((out / "validation.csv").read_text().splitlines()))
    assert [row["fanout"] for row in rows] == ["", "", "2,2,2"] * 2
    assert (out / "validation.png").read_bytes().startswith(b"\x89PNG")
    assert len(sorted(out.glob("timeline_*.json"))) == 12
    runs = list(csv.DictReader((out / "live_runs.csv").read_text().splitlines()))
    assert len(runs) == 24 and {run["covered"] for run in runs} <= {"True", "False"}
    assert pictures(found)


def test_the_table_names_every_opinion(found: Results) -> None:
    text = printed(found)
    for expected in ("law", "simu-", "mea-", "0.79", "+10.0", "saguaro K=2 F=2 primary b=2"):
        assert expected in text
    inside = found.about["summary"]["coverage"]
    assert f"{inside['covered']} of 24 live runs" in text and "lie in their 80% interval" in text
    assert "rounds agree, 0 requests differ; text identical to plain decoding: yes" in text


@pytest.mark.parametrize("width", [60, 80, 112])
def test_the_table_has_fewer_columns_rather_than_shorter_values(
    width: int, found: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    table = [line for line in printed(found).splitlines() if line[:1] in "┃│┏└"]
    assert len(table) > 3 and {len(line) for line in table} == {len(table[0])}
    assert len(table[0]) <= width
    text = "\n".join(table)
    assert "…" not in text and "simul." in text, "the error of the simulation stays"
    assert ("nearest" in text) == (width == 112)


def test_the_interval_is_of_the_calibrations_prompts(found: Results) -> None:
    """They may be easier: its interval excludes the points of others."""
    easier = {"predicted_low": 7.1, "predicted_middle": 7.23, "predicted_high": 7.4}
    rows = tuple({**row, **(easier if row["policy"] == "sd" else {})} for row in found.rows)
    text = printed(replace(found, rows=rows))
    (line,) = [line for line in text.splitlines() if "sd K=2 " in line and "b=2" not in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[-1] == "7.23, 7.10-7.40"
    assert max(float(cells[i]) for i in (2, 3)) < 7.1, "those of the validation's own prompts stand elsewhere"
    assert "calib. prompts" in text and "validation's own prompts" in " ".join(text.split())


def test_the_pictures_legends_hide_nothing(found: Results) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    (picture,) = pictures(found).values()
    figure = Figure(figsize=picture.size, layout="constrained")
    picture.draw(figure)
    FigureCanvasAgg(figure).draw()
    for axes in figure.get_axes():
        legend = axes.get_legend().get_window_extent()
        assert not legend.overlaps(axes.get_window_extent())
        assert not legend.overlaps(axes.xaxis.label.get_window_extent())
        assert legend.x0 >= 0 and legend.y0 >= 0 and legend.x1 <= figure.bbox.x1


def test_one_repetition_has_no_spread(machine: SimpleNamespace) -> None:
    result = call("--repeats", "1", "--json")
    told = json.loads(result.stdout)
    assert [row["measured_spread"] for row in told["rows"]] == [None] * 6
    assert told["summary"]["median_spread"] is None
    assert {row["repeatability"] for row in told["rows"]} == {None}
    assert "repeatability" not in call("--repeats", "1").stdout


def test_a_profile_of_another_machine_is_warned_about(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it was measured, and what of this machine is different, before anything is run."""
    elsewhere = TINY.but(provenance=TINY.provenance.but(machine="2 CPU cores (AMD EPYC); no accelerator"))
    sources = Sources(elsewhere, {0.0: TEXTS}, model_error=0.02)
    monkeypatch.setattr(validation, "load_sources", lambda *_, **__: sources)
    result = call("--json")
    assert (
        "warning: profile 'tiny' was measured on 2 CPU cores (AMD EPYC); this is 3 CPU cores (Some CPU)"
        in result.stderr
    )
    assert json.loads(result.stdout)["machine"] == "3 CPU cores (Some CPU); no accelerator"
    machine.machine = Machine("AMD EPYC", (0, 1), ())
    assert "warning" not in call("--json").stderr


def test_an_emulated_machine_is_predicted_by_what_it_emulates(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices do not slow each other there, nothing was calibrated, and it is said how well time was kept."""
    contended = TINY.but(
        overlap=(Overlap(device="target", operation="forward", while_busy="draft", slowdown=2.0),)
    )
    monkeypatch.setattr(validation, "find_profile", Path)
    monkeypatch.setattr(validation, "origin", str)
    monkeypatch.setattr(validation, "load_profile", lambda path: contended)
    monkeypatch.setattr(execute.Bench, "trace", lambda self, temperature: TEXTS)
    result = CliRunner().invoke(main, [*ASKED, "--emulate", "tiny", "--time-scale", "3", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    for row in told["rows"]:
        assert row["predicted_low"] is None and row["nearest_setting_error"] is None
        # Live runs are simulated ones on the profile without contention, 10 % slower but for plain decoding.
        assert row["error"] == pytest.approx(0.0 if row["policy"] == "ar" else 0.1, abs=0.011)
        assert row["error"] == row["error_without_contention"]
    kept = {"time_scale": 3.0, "missed_runs": 0, "reports": 0, "late_reports": 0, "latest_s": 0.0}
    assert (told["emulate"], told["emulated"]) == ("tiny", kept)


def test_a_calibration_in_turns_predicts(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Calibrated(TINY, {0.0: TEXTS})
    monkeypatch.setattr(validation, "run_calibration", lambda job, progress: found)
    result = CliRunner().invoke(main, [*ASKED, "--calibrate", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["files"] == {"profile": "calibrated in turns"}
    for row in told["rows"]:  # live runs are 10 % slower than simulated but for plain decoding
        assert row["error"] == pytest.approx(0.0 if row["policy"] == "ar" else 0.1, abs=0.011)
        assert row["rounds_equal"] and row["predicted_low"] is not None
    refused = call("--calibrate")
    assert refused.exit_code == 2 and "--calibrate predicts with what it measures" in refused.stderr


def test_machines_differ_in_what_they_do_not_share() -> None:
    here = Machine("AMD EPYC", (0, 1), ("cuda: A100",))
    assert here.differs_from("2 CPU cores (AMD EPYC); cuda: A100") == ""
    assert here.differs_from("2 CPU cores (AMD EPYC); no accelerator") == (
        "was measured on no accelerator; this is cuda: A100"
    )
    assert "no machine" in here.differs_from("")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "nonesuch"], "unknown policy 'nonesuch'"),
        (["--lookahead", "0"], "lookahead must be between"),
        (["--backup", "hope"], "unknown backup"),
        (["--lookahead", "two"], "comma-separated list"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--batch", "8", "--count", "6"], "a batch of 8 needs 16 prompts"),
        (["--temperature", "warm"], "comma-separated list"),
        (["--temperature", "-1"], "temperature must be at least 0"),
        (["--hw", ""], "--hw"),
        (["--emulate", "tiny", "--hw", "cpu2-x5"], "--emulate predicts with what it emulates"),
        (["--emulate", "nowhere"], "nowhere"),
        (["--emulate", "textbook", "--time-scale", "-1"], "--time-scale"),
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
    monkeypatch.setattr("analysis.execute.run_study", lambda *_: pytest.fail("work began"))
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and message in result.stderr


def test_expand_gives_each_policy_its_own_knobs_and_ar_first() -> None:
    several = expand(["saguaro"], [2], [(1,)], ["plain"], draft_devices=(1, 2))
    assert [s.draft_devices for s in several] == [None, 1, 2]
    one = WorkerSpec("draft", "m", (0,), role="draft")
    assert [(w.name, w.cores) for w in execute.more_drafts(one, 2, together=True)] == [
        ("draft", (0,)),
        ("draft-1", (0,)),
    ]
    found = [s.label for s in expand(["saguaro", "sd"], [2, 4], [(1,), (3,)], ["plain"])]
    assert found == [
        "ar",
        "saguaro K=2 F=1 plain",
        "saguaro K=2 F=3 plain",
        "saguaro K=4 F=1 plain",
        "saguaro K=4 F=3 plain",
        "sd K=2",
        "sd K=4",
    ]
    with pytest.raises(SettingError, match="unknown policy"):
        expand(["nonesuch"], [4], [(3,)], ["plain"])


def measured(
    policy: str,
    lookahead: int,
    fanout: int | None = None,
    backup: str | None = None,
    *,
    batch: int = 1,
    temperature: float = 0.0,
) -> MeasuredRun:
    spread = None if fanout is None else (fanout,) * (lookahead + 1)
    return MeasuredRun(
        policy=policy, lookahead=lookahead, fanout=spread, backup=backup,
        batch=batch, temperature=temperature, tokens=1, tokens_per_second=1.0, speedup_vs_ar=1.0,
    )  # fmt: skip


def test_nearest_is_same_policy_same_backup_nearest_lookahead() -> None:
    runs = [
        measured("sd", 4),
        measured("saguaro", 3, 2, "primary"),
        measured("saguaro", 6, 2, "primary"),
        measured("saguaro", 3, 2, "plain"),
    ]
    assert nearest_measured(configure("saguaro", lookahead=7, backup="primary"), runs) is runs[2]
    assert nearest_measured(configure("saguaro", lookahead=2, backup="plain"), runs) is runs[3]
    # No run with that backup: any of the policy's.
    assert nearest_measured(configure("saguaro", lookahead=7, backup="random"), runs) is runs[2]
    assert nearest_measured(configure("pearl", lookahead=4), runs) is None


def test_nearest_prefers_the_same_temperature_then_the_batch_nearest_by_ratio() -> None:
    runs = [
        measured("sd", 4),
        measured("sd", 6, batch=4),
        measured("sd", 2, batch=4),
        measured("sd", 4, temperature=1.0),
    ]
    assert nearest_measured(configure("sd", lookahead=4), runs, 1) is runs[0]
    assert nearest_measured(configure("sd", lookahead=5), runs, 8) is runs[1]
    assert nearest_measured(configure("sd", lookahead=4, temperature=1.0), runs, 4) is runs[3]
