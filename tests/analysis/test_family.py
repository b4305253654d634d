"""Which policy is faster, by prediction and live: errors and orders on hand-made numbers."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_profiles import profile, trace

from analysis.results import EVERY, Results
from analysis.stats import errors, ranks, spread_of
from analysis.studies.family import about, content_ignored, setting_from, settings_for
from policies.registry import POLICIES, SettingError, configure
from simulator.run import Scenario
from simulator.tokens import replay


def row(
    lookahead: int, simulated: float, measured: tuple[float, ...], category: str = EVERY
) -> dict[str, Any]:
    """A setting whose pooled speedup is the mean of its repetitions."""
    pooled = sum(measured) / len(measured)
    return {
        "policy": "sd",
        "setting": f"sd K={lookahead}",
        "profile": "p",
        "temperature": 0.0,
        "batch": 1,
        "category": category,
        "simulated_speedup_vs_ar": simulated,
        "measured_speedup_vs_ar": pooled,
        "measured_by_repeat": measured,
        "measured_spread": spread_of(measured, pooled),
        "simulated_error": simulated / pooled - 1.0,
        "law_error": None,
        "ignored_error": 0.2,
    }


def test_errors_and_spread_by_hand() -> None:
    found = errors([1.1, 0.8])
    assert found is not None
    assert (found["settings"], found["median"], found["largest"]) == (
        2,
        pytest.approx(0.15),
        pytest.approx(0.2),
    )
    assert errors([]) is None
    assert spread_of((1.0, 2.0), 4 / 3) == pytest.approx(0.375)
    assert spread_of((1.0,), 1.0) is None  # a single repetition


def test_pairs_that_the_live_runs_cannot_tell_apart_do_not_count() -> None:
    rows = [row(2, 1.2, (1.0, 1.1)), row(3, 1.1, (1.05, 1.2)), row(5, 1.0, (1.5, 1.6))]
    found = ranks(rows)
    # 2 and 3 overlap; 5 is faster than both live, and slower than both by simulation.
    assert (found["pairs"], found["right"]) == (2, 0)
    assert (found["predicted"], found["best"]) == ("sd K=2", "sd K=5")
    assert found["regret"] == pytest.approx(1 - 1.05 / 1.55)


def test_a_right_order_has_no_regret() -> None:
    found = ranks([row(2, 1.3, (1.4, 1.5)), row(3, 1.1, (1.0, 1.1))])
    assert (found["pairs"], found["right"], found["regret"]) == (1, 1, 0.0)


def test_orders_are_told_by_category() -> None:
    rows = [row(k, 1.0 / k, (1.0 / k, 1.0 / k), c) for k in (2, 3) for c in (EVERY, "code")]
    told = about(Results("family", tuple(rows)))
    assert told["errors"]["simulated"]["settings"] == 2 and told["errors"]["law"] is None
    assert [order["category"] for order in told["groups"][0]["orders"]] == [EVERY, "code"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_live_policy_has_settings(temperature: float) -> None:
    found = {settings.policy for settings in settings_for([], temperature, seed=0)}
    assert found == {name for name, info in POLICIES.items() if "live" in info.worlds} - {"ar"}


def test_content_ignored_is_iid_and_retrieval_finds_nothing() -> None:
    """Half of the tokens accepted, one by one or in one block: coins cannot tell, replay can."""
    mixed, clustered = ([[0, 1] * 24], [[0] * 24 + [1] * 24])
    found = [
        content_ignored(Scenario(replay(trace(ranks)), profile=profile()), configure("sd", lookahead=3))
        for ranks in (mixed, clustered)
    ]
    assert found[0] == found[1]
    # A retrieval of which coins know nothing finds nothing: what is left is plain decoding.
    rest = content_ignored(Scenario(replay(trace(mixed)), profile=profile()), configure("rest"))
    assert rest == pytest.approx(1.0)


def test_settings_from_text() -> None:
    asked = "saguaro lookahead=2 fanout=3,2,2 backup=plain"
    assert setting_from(asked, 0.0, 0) == configure("saguaro", lookahead=2, fanout=(3, 2, 2), backup="plain")
    for wrong in ("pearl 3", "pearl lookahead=x", ""):
        with pytest.raises(SettingError):
            setting_from(wrong, 0.0, 0)
