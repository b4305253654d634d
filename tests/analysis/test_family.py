"""Which policy is faster, by prediction and live: errors and orders on hand-made numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_profiles import profile, trace

from analysis.family import Group, Measured
from analysis.family_cli import setting_of, settings_of
from analysis.family_ignoring import content_ignored
from analysis.family_orders import Member, error_summary, orders
from analysis.family_report import print_family
from analysis.family_store import load_groups, save_groups
from hardware_profiles.decisions import Decisions, DecisionTrace
from policies.registry import POLICIES, SettingError, configure
from simulator.run import Scenario
from simulator.tokens import replay


def member(lookahead: int, simulated: float, measured: tuple[float, ...]) -> Member:
    """Of two categories with 10 tokens each; plain decoding takes 10 s everywhere."""

    def speeds(speedup: float) -> dict[str, tuple[float, float]]:
        return {"code": (10.0, 10.0 / speedup), "chat": (10.0, 10.0 / speedup)}

    return Member(
        settings=configure("sd", lookahead=lookahead),
        law_speedup_vs_ar=2.0,
        ignored_speedup_vs_ar=1.2 * simulated,
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


def test_one_repetition_has_no_spread(capsys: pytest.CaptureFixture[str]) -> None:
    once = [member(2, simulated=1.5, measured=(1.0,))]
    assert once[0].spread is None and error_summary(once)["median_spread"] is None
    print_family([once], "made up")
    assert "±" not in capsys.readouterr().out


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
    assert [(o.pairs, o.right, o.regret) for o in orders(members)] == [(1, 1, 0.0)] * 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_live_policy_has_settings(temperature: float) -> None:
    found = {settings.policy for settings in settings_of([], temperature, seed=0)}
    assert found == {name for name, info in POLICIES.items() if "live" in info.worlds} - {"ar"}


def test_what_was_measured_is_read_as_it_was_written(tmp_path: Path) -> None:
    speeds = {"code": (10.0, 2.0), "chat": (5.0, 1.5)}
    texts = trace([[0] * 4])
    duo, tree = configure("duo", temperature=1.0), configure("tree", tree_widths=(2, 1), temperature=1.0)
    members = []
    for settings in (duo, tree):
        replies = [{("verifytree", 0, 0, 0): [n, [7]]} for n in (1, 2)]
        decided = tuple(
            DecisionTrace(
                texts.requests,
                texts.meta,
                {settings.label: Decisions(settings.label, r, policy=settings.policy)},
                4,
            )
            for r in replies
        )
        members.append(Measured(settings, (speeds, speeds), None, decided))
    plain = Measured(configure("ar", temperature=1.0), (speeds, speeds), None)
    save_groups([Group(plain, tuple(members))], {"seed": 3}, tmp_path / "kept")
    (found,), asked = load_groups(tmp_path / "kept")
    assert asked == {"seed": 3} and found.plain == plain and found.temperature == 1.0
    assert [(m.settings, m.speeds) for m in found.members] == [(m.settings, m.speeds) for m in members]
    for read, written in zip(found.members, members, strict=True):
        label = read.settings.label
        both = ([d.settings[label].replies for d in m.decided] for m in (read, written))
        assert next(both) == next(both)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="no live runs of"):
        load_groups(tmp_path / "other.json")


def test_content_ignored_is_iid_and_retrieval_finds_nothing() -> None:
    """Half of the tokens accepted, one by one or in one block: coins cannot tell, replay can."""
    mixed, clustered = ([[0, 1] * 24], [[0] * 24 + [1] * 24])
    found = [
        content_ignored(Scenario(replay(trace(ranks)), profile=profile()), configure("sd", lookahead=3))
        for ranks in (mixed, clustered)
    ]
    assert found[0] == found[1]
    left = [
        configure(name, temperature=t).config.content_ignored.policy
        for t in (0.0, 1.0)
        for name in ("double", "rasd", "rest", "pld", "duo")
    ]
    assert left == ["pearl", "tree", "ar", "ar", "duo"] * 2
    grown = configure("tree", tree_plan="dynamic", tree_depth=3, tree_topk=2, tree_budget=4)
    assert grown.config.content_ignored == configure("tree", tree_widths=(2, 1, 1)).config


def test_settings_from_text() -> None:
    asked = "saguaro lookahead=2 fanout=3,2,2 backup=plain"
    assert setting_of(asked, 0.0, 0) == configure("saguaro", lookahead=2, fanout=(3, 2, 2), backup="plain")
    for wrong in ("pearl 3", "pearl lookahead=x", ""):
        with pytest.raises(SettingError):
            setting_of(wrong, 0.0, 0)
