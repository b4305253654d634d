"""Several profiles against the same live runs."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_live import JOB
from tiny_profiles import profile, trace

from analysis.execute import Bench
from analysis.results import Results, settings_of
from analysis.sources import Sources
from analysis.studies.effort import STUDY, EffortPlan, efforts, judge, measured_speedups
from analysis.study import RECORDED, Entry
from hardware_profiles.profile import Profile
from policies.registry import SettingError, configure

TEXTS = trace([[0, 0, 1, 0, 0, 0, 2, 0] * 6])


def test_rows_of_a_validation_are_settings_again() -> None:
    row = {"policy": "saguaro", "lookahead": 2, "fanout": "3,2,2", "backup": "plain", "temperature": 0.0}
    expected = configure("saguaro", lookahead=2, fanout=(3, 2, 2), backup="plain")
    assert settings_of(row) == expected


def bench(tiny: Profile) -> Bench:
    plan = EffortPlan(prompts=RECORDED, count=None, max_tokens=None)
    return Bench(STUDY, plan, "tiny", given_sources=Sources(tiny, {0.0: TEXTS}, 0.0), given_job=JOB)


def test_a_profile_that_predicted_what_was_measured_has_no_error() -> None:
    tiny = profile(linear=True, model_error=0.02)
    settings = [configure("sd", lookahead=k) for k in (2, 4)]
    rows = bench(tiny).compare([Entry(s) for s in settings])[1:]
    speeds = {(s, 1): row["simulated_speedup_vs_ar"] for s, row in zip(settings, rows, strict=True)}
    (found,) = efforts(Results("effort", tuple(judge(bench(tiny), speeds)), {}))
    assert found["covered"]["settings"] == 2
    assert (found["covered"]["largest"], found["covered"]["bias"]) == pytest.approx((0.0, 0.0))
    # Measured a tenth slower: predicted 1 / 0.9 - 1 too fast.
    slower = {setting: 0.9 * speed for setting, speed in speeds.items()}
    (off,) = efforts(Results("effort", tuple(judge(bench(tiny), slower)), {}))
    assert off["covered"]["median"] == pytest.approx(1 / 0.9 - 1)


def rows(hw: str, ratios: dict[int, float], inside: set[int]) -> list[dict[str, Any]]:
    """By lookahead of SD at batch 1."""
    return [
        {
            "hw": hw,
            "setting": f"sd K={k}",
            "batch": 1,
            "simulated_error": ratio - 1.0,
            "alone_error": 1.5 * ratio - 1.0,
            "covered": k in inside,
        }
        for k, ratio in ratios.items()
    ]


def test_a_short_calibration_is_judged_on_what_it_covers() -> None:
    quick = rows("quick", {1: 1.1, 2: 0.9, 3: 2.0}, {1, 2})
    full = rows("full", {1: 1.0, 2: 1.02, 3: 1.0}, {2, 3})
    first, second = efforts(Results("effort", (*quick, *full), {"minutes": [5.0, 60.0]}))
    assert (first["covered"]["settings"], first["covered"]["largest"]) == (2, pytest.approx(0.1))
    assert (first["beyond"]["settings"], first["beyond"]["median"]) == (1, pytest.approx(1.0))
    assert first["without_contention"]["largest"] == pytest.approx(0.65)  # 1.5 x 1.1, 1.5 x 0.9
    assert [e["common"]["settings"] for e in (first, second)] == [1, 1]
    assert [round(e["common"]["median"], 6) for e in (first, second)] == [0.1, 0.02]
    assert (first["minutes"], second["minutes"]) == (5.0, 60.0)


def test_validations_of_several_times_are_pooled() -> None:
    row = {"policy": "sd", "lookahead": 2, "fanout": None, "backup": None, "temperature": 0.0, "batch": 1}
    told = {"target": "t", "draft": "d", "prompts": "heldout", "summary": {"requests": 2}}
    first, second = (
        Results("validation", ({**row, "measured_speedup_vs_ar": s},), about=told) for s in (1.0, 1.44)
    )
    assert list(measured_speedups([first, second]).values()) == [pytest.approx(1.2)]
    other = Results("validation", second.rows, about={**told, "target": "other"})
    with pytest.raises(SettingError, match="different pairs"):
        measured_speedups([first, other])
    with pytest.raises(SettingError, match="no result of"):
        measured_speedups([Results("x", ())])


def test_a_profile_that_knows_none_of_the_settings_is_refused() -> None:
    tiny = profile(linear=True, model_error=0.02)
    alone = tiny.but(operations={"target.forward": tiny.operations["target.forward"]})
    with pytest.raises(SettingError, match="none of the settings"):
        judge(bench(alone), {(configure("sd", lookahead=2), 1): 1.0})
