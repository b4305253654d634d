"""Which policy is faster, by prediction and live: errors and orders on hand-made numbers."""

from __future__ import annotations

import pytest

from analysis.family import Member, error_summary, orders
from analysis.family_cli import settings_of
from policies.registry import POLICIES, configure


def member(lookahead: int, simulated: float, measured: tuple[float, ...]) -> Member:
    """Of two categories with 10 tokens each; plain decoding takes 10 s everywhere."""

    def speeds(speedup: float) -> dict[str, tuple[float, float]]:
        return {"code": (10.0, 10.0 / speedup), "chat": (10.0, 10.0 / speedup)}

    return Member(
        settings=configure("sd", lookahead=lookahead),
        law_speedup_vs_ar=2.0,
        simulated=speeds(simulated),
        simulated_ar=speeds(1.0),
        measured=tuple(speeds(m) for m in measured),
        measured_ar=tuple(speeds(1.0) for _ in measured),
        identical=True,
    )


def test_errors_are_of_the_pooled_repetitions() -> None:
    one = member(2, simulated=1.5, measured=(1.0, 2.0))
    # 20 tokens in 10 + 5 s against 10 + 10 s: 4/3; simulated 1.5.
    assert one.measured_speedup() == pytest.approx(4 / 3)
    assert one.error == pytest.approx(0.125)
    assert one.spread == pytest.approx(0.5 / (4 / 3))
    assert one.law_error == pytest.approx(0.5)
    assert error_summary([one])["largest_error"] == pytest.approx(0.125)


def test_pairs_that_the_live_runs_cannot_tell_apart_do_not_count() -> None:
    members = [member(2, 1.2, (1.0, 1.1)), member(3, 1.1, (1.05, 1.2)), member(5, 1.0, (1.5, 1.6))]
    found = {order.category: order for order in orders(members)}
    # 2 and 3 overlap; 5 is faster than both live, and slower than both by simulation.
    assert (found["code"].pairs, found["code"].right) == (2, 0)
    assert found["code"].predicted == "sd K=2" and found["code"].best == "sd K=5"
    # 10 tokens in 10 + 10/1.1 s against 10/1.5 + 10/1.6 s
    assert found["chat"].regret == pytest.approx(1 - (1 / 1.5 + 1 / 1.6) / (1 + 1 / 1.1))


def test_a_right_order_has_no_regret() -> None:
    members = [member(2, 1.3, (1.4, 1.5)), member(3, 1.1, (1.0, 1.1))]
    assert [(o.pairs, o.right, o.regret) for o in orders(members)] == [(1, 1, 0.0)] * 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_live_policy_has_settings(temperature: float) -> None:
    found = {settings.policy for settings in settings_of([], temperature, seed=0)}
    assert found == {name for name, info in POLICIES.items() if "live" in info.worlds} - {"ar"}
