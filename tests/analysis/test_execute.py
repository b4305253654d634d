"""The executor's rule, on live runs made of simulated ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from simulated_live import JOB, run_without_models
from tiny_profiles import profile, trace

from analysis.__main__ import STUDIES, command_of, load_study
from analysis.execute import DRAWS, Bench, split, spread_requests, with_baselines
from analysis.outcomes import Performance
from analysis.results import EVERY, Results, Row, read, settings_of
from analysis.sources import Sources
from analysis.study import RECORDED, Entry, Plan, Study
from hardware_profiles.store import find_trace
from hardware_profiles.trace import read_trace
from policies.registry import SettingError, configure
from simulator.costs import Effects
from simulator.run import Scenario, simulate
from simulator.tokens import replay

TINY = profile()
TEXTS = trace([[0, 0, 1, 0] * 4, [1, 0] * 8, [0] * 16, [2, 0, 0, 0] * 4], categories=["a", "b", "a", "b"])
STUDY = Study("tiny", "?", Plan, settings=lambda bench: [], by_category=True)
SD = configure("sd", lookahead=2)


def bench(study: Study[Plan] = STUDY, **plan: object) -> Bench:
    asked = replace(Plan(prompts=RECORDED, count=None, max_tokens=None), **plan)  # type: ignore[arg-type]
    return Bench(study, asked, given_sources=Sources(TINY, {0.0: TEXTS}, 0.0), given_job=JOB)


@pytest.mark.parametrize("name", STUDIES)
def test_the_options_of_every_study_have_defaults_that_its_command_reads(name: str) -> None:
    """What is left out is the plan's own default: an empty list among them, which no user could type."""
    study = load_study(name)
    needed = [each for each in command_of(study).params if each.required]
    typed = [text for each in needed for text in (each.opts[0], __file__)]
    read = command_of(study).make_context(name, typed).params
    plan = study.plan(**{key: read[key] for key in study.plan.__dataclass_fields__ if key in read})
    kept = {each.name for each in needed}
    asked, own = vars(plan), vars(study.plan())
    assert {key for key in own if asked[key] != own[key]} <= kept


def test_every_place_batch_and_temperature_gets_its_plain_decoding() -> None:
    hot = configure("sd", temperature=1.0)
    found = with_baselines([Entry(SD), Entry(hot), Entry(SD, 4), Entry(SD, place="shared:0,1")])
    assert [(e.settings.policy, e.settings.temperature, e.batch, e.place) for e in found] == [
        ("ar", 0.0, 1, "split"), ("sd", 0.0, 1, "split"), ("ar", 1.0, 1, "split"), ("sd", 1.0, 1, "split"),
        ("ar", 0.0, 4, "split"), ("sd", 0.0, 4, "split"), ("ar", 0.0, 1, "shared:0,1"),
        ("sd", 0.0, 1, "shared:0,1"),
    ]  # fmt: skip
    asked = with_baselines([Entry(configure("ar"), tags=(("part", "x"),)), Entry(SD)])
    assert [dict(e.tags) for e in asked] == [{"part": "x"}, {}]


def test_a_row_by_hand() -> None:
    """Constant costs: two tokens in 1.25 s with a draft of a quarter step that is always right."""
    sources = Sources(TINY, {0.0: trace([[0] * 8] * 2)}, 0.0)
    here = Bench(STUDY, Plan(prompts=RECORDED, count=None, max_tokens=None), given_sources=sources)
    settings = configure("sd", lookahead=1)
    _, row = here.compare([Entry(settings)])[::2]
    assert row["simulated_speedup_vs_ar"] == pytest.approx(1.6)
    assert row["measured_speedup_vs_ar"] is None and row["simulated_error"] is None
    faster = here.compare([Entry(settings, drift=(("draft.forward", 0.5),))])[2]
    assert faster["law_speedup_vs_ar"] == pytest.approx(2 / 1.125)
    assert faster["simulated_speedup_vs_ar"] == pytest.approx(2 / 1.125)


def test_live_and_simulated_rows_of_the_same_runs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Request by request at batch 1, all together in a batch, which has no categories."""
    run_without_models(monkeypatch, TINY, {0.0: TEXTS})
    rows = bench(live=True, repeats=2).compare([Entry(SD), Entry(SD, 2)])
    mine = [row for row in rows if row["policy"] == "sd"]
    assert [(r["batch"], r["category"]) for r in mine] == [(1, EVERY), (1, "a"), (1, "b"), (2, EVERY)]
    for row in mine:
        assert row["measured_speedup_vs_ar"] == pytest.approx(row["simulated_speedup_vs_ar"])
        assert row["measured_by_repeat"] == pytest.approx([row["measured_speedup_vs_ar"]] * 2)
        assert row["measured_tokens_per_round"] == pytest.approx(row["simulated_tokens_per_round"])
        assert row["measured_acceptance_rate"] == pytest.approx(row["simulated_acceptance_rate"])
        assert (row["identical"], row["unexcused_differences"]) == (True, 0)
        assert row["simulated_error"] == pytest.approx(0.0)


def test_what_was_measured_is_the_ratio_of_sums_of_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    """SD is 1, 1 and 4 times as slow in three repetitions: the median counts, the range is told."""
    factors = {"sd": (1.0, 1.0, 4.0), "ar": (1.0, 1.0, 1.0)}
    run_without_models(
        monkeypatch, TINY, {0.0: TEXTS}, lambda cell, repeat: factors[cell.settings.policy][repeat]
    )
    row = bench(live=True).compare([Entry(SD)])[3]
    true = row["simulated_speedup_vs_ar"]
    assert row["measured_speedup_vs_ar"] == pytest.approx(true)
    assert (row["measured_low"], row["measured_high"]) == pytest.approx((true / 4, true))
    assert row["measured_spread"] == pytest.approx(3 / 8)
    assert row["measured_repeat_seconds"][2] == pytest.approx(4 * row["measured_seconds"])


def test_a_sampled_setting_is_predicted_by_the_mean_of_several_draws() -> None:
    settings, part = (
        configure("sd", lookahead=2, temperature=1.0),
        read_trace(find_trace("cpu2-x5-t1")).slice([0, 1]),
    )
    here = Bench(
        replace(STUDY, by_category=False),
        Plan(prompts=RECORDED, count=None, max_tokens=32, seed=5),
        given_sources=Sources(TINY, {1.0: part}, 0.0),
    )
    row = here.compare([Entry(settings)])[1]
    runs = [
        simulate(Scenario(replay(part, limit=32, seed=seed), profile=TINY, seed=seed), settings).summary
        for seed in range(5, 5 + DRAWS)
    ]
    assert len({run.seconds for run in runs}) > 1  # luck differs
    assert row["simulated_tokens_per_second"] == pytest.approx(64 * DRAWS / sum(run.seconds for run in runs))
    # Plain decoding takes a second a token, whatever the luck.
    assert row["simulated_speedup_vs_ar"] == pytest.approx(row["simulated_tokens_per_second"])


def test_contention_can_be_switched_off() -> None:
    from hardware_profiles.profile import Overlap

    # The draft's trees take 0.25 s a step; beside a busy target twice that: K = 4 then takes 2 s a round.
    slow = Overlap(device="draft", operation="tree", while_busy="target", slowdown=2.0)
    settings = configure("saguaro", lookahead=4, fanout=(1,))
    study = replace(STUDY, worlds={"simulated": Effects(), "alone": Effects(overlap=False)})
    found = []
    for costs in (TINY, profile(overlap=(slow,))):
        sources = Sources(costs, {0.0: trace([[0] * 100])}, 0.0)
        plan = Plan(prompts=RECORDED, count=None, max_tokens=None)
        found.append(Bench(study, plan, given_sources=sources).compare([Entry(settings)])[2])
    plain, slowed = found
    assert slowed["alone_speedup_vs_ar"] == pytest.approx(plain["simulated_speedup_vs_ar"])
    assert slowed["simulated_speedup_vs_ar"] < 0.9 * plain["simulated_speedup_vs_ar"]


def test_stored_live_runs_are_predicted_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Written as Parquet, CSV and JSON; read back, the measured columns are the same and nothing runs."""
    run_without_models(monkeypatch, TINY, {0.0: TEXTS}, lambda cell, repeat: 1.0 + 0.1 * repeat)
    live = bench(live=True, repeats=2)
    live.out = tmp_path
    first = live.compare([Entry(SD, tags=(("part", "a"),))])
    assert {path.suffix for path in tmp_path.iterdir()} == {".parquet", ".csv", ".json"}
    assert settings_of(read(tmp_path / "tiny.parquet").rows[3]) == SD
    told = read(tmp_path / "tiny.json").rows
    assert [
        {k: v for k, v in row.items() if k in other}
        for row, other in zip(read(tmp_path).rows, told, strict=True)
    ] == list(told)
    monkeypatch.undo()
    again = bench(measured=tmp_path).compare([Entry(SD, tags=(("part", "a"),))])
    for one, other in zip(first, again, strict=True):
        assert {k: v for k, v in one.items() if k.startswith("measured_")} == {
            k: v for k, v in other.items() if k.startswith("measured_")
        }
        assert one["simulated_error"] == pytest.approx(other["simulated_error"])


def test_live_results_are_not_overwritten_by_simulated_ones(tmp_path: Path) -> None:
    row: Row = {"setting": "x", "measured_speedup_vs_ar": 2.0}
    Results("budget", (row,)).write(tmp_path)
    with pytest.raises(ValueError, match="holds live results"):
        Results("budget", ({**row, "measured_speedup_vs_ar": None},)).write(tmp_path)


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ValueError, match="no results of"):
        read(tmp_path / "x.json")
    with pytest.raises(ValueError, match="holds 0 tables"):
        read(tmp_path)


def test_a_batch_that_prompts_do_not_fill_is_refused() -> None:
    with pytest.raises(SettingError, match="do not fill a batch of 8"):
        bench().compare([Entry(SD, 8)])


def test_subsets_have_all_categories() -> None:
    recorded = trace([[0]] * 8, categories=["a", "b"] * 4)
    assert split(recorded, 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [len(ids) for ids in split(trace([[0]] * 5), 2)] == [3, 2]
    with pytest.raises(SettingError, match="cannot be split"):
        split(recorded, 9)


def test_prompts_are_taken_from_every_category() -> None:
    recorded = trace([[0]] * 6, categories=["a", "a", "a", "a", "b", "b"])
    assert [r.category for r in spread_requests(recorded, 4).requests] == ["a", "b", "a", "b"]
    assert spread_requests(recorded, None) is recorded


def test_outcomes_are_pooled_by_sums() -> None:
    both = Performance.pooled(
        [Performance(24.0, 12.0, ((24.0, 12.0),)), Performance(24.0, 6.0, ((24.0, 6.0),))]
    )
    assert both.speed == pytest.approx(48 / 18) and both.repeats == ((48.0, 18.0),)


@dataclass(frozen=True)
class OtherPlan(Plan):
    """None."""


def test_subsets_run_apart_and_are_reported_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    run_without_models(monkeypatch, TINY, {0.0: TEXTS})
    here = replace(bench(replace(STUDY, by_category=False), live=True), subsets=2)
    rows = [row for row in here.compare([Entry(SD, 2)]) if row["policy"] == "sd"]
    assert [(row.get("subset"), row["requests"]) for row in rows] == [(None, 4), (0, 2), (1, 2)]
    whole, *parts = rows
    assert whole["measured_seconds"] == pytest.approx(sum(part["measured_seconds"] for part in parts))
    assert np.isclose(whole["measured_tokens"], 64)
