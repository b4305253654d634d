"""Several profiles against the same live runs."""

from __future__ import annotations

import pytest
from tiny_profiles import profile, trace

from analysis.effort import judge, measured_speedups, setting_of
from analysis.effort_errors import Effort, covered_by_all
from analysis.predictions import predict
from policies.registry import SettingError, configure


def test_rows_of_a_validation_are_settings_again() -> None:
    row = {
        "policy": "saguaro",
        "lookahead": 2,
        "fanout": "3,2,2",
        "backup": "plain",
        "temperature": 0.0,
        "batch": 4,
    }
    expected = configure("saguaro", lookahead=2, fanout=(3, 2, 2), backup="plain")
    assert setting_of(row) == (expected, 4)


def test_a_profile_that_predicted_what_was_measured_has_no_error() -> None:
    tiny, part = profile(linear=True, model_error=0.02), {0.0: trace([[0, 0, 1, 0, 0, 0, 2, 0] * 6])}
    settings = [(configure("sd", lookahead=k), 1) for k in (2, 4)]
    speedups = [p.simulated_speedup_vs_ar for p in predict(settings, tiny, part)]
    found = judge("tiny", tiny, dict(zip(settings, speedups, strict=True)), [part])
    errors = found.errors()
    assert errors is not None
    assert (errors.settings, errors.largest, errors.bias) == (2, pytest.approx(0.0), pytest.approx(0.0))
    # Measured a tenth slower: predicted 1 / 0.9 - 1 too fast.
    slower = {setting: 0.9 * s for setting, s in zip(settings, speedups, strict=True)}
    off = judge("tiny", tiny, slower, [part]).errors()
    assert off is not None and off.median == pytest.approx(1 / 0.9 - 1)


def effort(name: str, ratios: dict[int, float], inside: set[int]) -> Effort:
    """By lookahead of SD at batch 1."""
    of = {k: (configure("sd", lookahead=k), 1) for k in ratios}
    covered = frozenset(of[k] for k in inside)
    mine = {of[k]: r for k, r in ratios.items()}
    return Effort(name, "", None, mine, covered, {}, {setting: 1.5 * r for setting, r in mine.items()})


def test_a_short_calibration_is_judged_on_what_it_covers() -> None:
    quick = effort("quick", {1: 1.1, 2: 0.9, 3: 2.0}, {1, 2})
    full = effort("full", {1: 1.0, 2: 1.02, 3: 1.0}, {2, 3})
    errors, beyond = quick.errors(), quick.errors_beyond
    assert errors is not None and (errors.settings, errors.largest) == (2, pytest.approx(0.1))
    assert beyond is not None and (beyond.settings, beyond.median) == (1, pytest.approx(1.0))
    assert quick.errors_alone is not None
    assert quick.errors_alone.largest == pytest.approx(0.65)  # 1.5 x 1.1, 1.5 x 0.9
    common = covered_by_all([quick, full])
    assert [len(common)] == [1]
    same = [each.errors(common) for each in (quick, full)]
    assert [e and round(e.median, 6) for e in same] == [0.1, 0.02]


def test_validations_of_several_times_are_pooled() -> None:
    row = {"policy": "sd", "lookahead": 2, "fanout": None, "backup": None, "temperature": 0.0, "batch": 1}
    told = {"target": "t", "draft": "d", "prompts": "heldout", "summary": {"requests": 2}}
    first, second = ({**told, "rows": [{**row, "measured_speedup_vs_ar": s}]} for s in (1.0, 1.44))
    assert list(measured_speedups([first, second]).values()) == [pytest.approx(1.2)]
    with pytest.raises(ValueError, match="different pairs"):
        measured_speedups([first, {**second, "target": "other"}])


def test_a_profile_that_knows_none_of_the_settings_is_refused() -> None:
    tiny = profile(linear=True, model_error=0.02)
    alone = tiny.model_copy(update={"operations": {"target.forward": tiny.operations["target.forward"]}})
    with pytest.raises(SettingError, match="none of the settings"):
        judge(
            "alone",
            alone,
            {(configure("sd", lookahead=2), 1): 1.0},
            [{0.0: trace([[0, 0, 1, 0, 0, 0, 2, 0] * 6])}],
        )
