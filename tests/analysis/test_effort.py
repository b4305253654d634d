"""Several profiles against the same live runs."""

from __future__ import annotations

import pytest
from tiny_profiles import profile, trace

from analysis.effort import judge, setting_of
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
    assert (found.settings, found.largest, found.bias) == (2, pytest.approx(0.0), pytest.approx(0.0))
    # Measured a tenth slower: predicted 1 / 0.9 - 1 too fast.
    slower = {setting: 0.9 * s for setting, s in zip(settings, speedups, strict=True)}
    assert judge("tiny", tiny, slower, [part]).median == pytest.approx(1 / 0.9 - 1)


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
