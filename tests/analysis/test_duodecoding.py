"""DuoDecoding's budgets and the threshold's predictions, on worlds and decisions written by hand."""

from __future__ import annotations

import pytest

from analysis.results import Results
from analysis.studies.duodecoding import (
    UnevenWorld,
    around,
    budget_rows,
    budget_table,
    confidence_of,
    settings_for,
    uneven_budget,
)
from hardware_profiles.reply_trace import Decisions

# With growth the two devices balance at K / 8 = 1 + .02 K, K = 9.5; with jitter it pays to stay below 8.
WORLDS = [
    (UnevenWorld("even", ratio=8.0), 8),
    (UnevenWorld("grows", ratio=8.0, growth=0.02), 9),
    (UnevenWorld("jitters", ratio=8.0, jitter=0.2), 7),
]


@pytest.mark.parametrize(("world", "best"), WORLDS, ids=[world.name for world, _ in WORLDS])
def test_simulated_budgets_are_the_laws(world: UnevenWorld, best: int) -> None:
    """The law's speedup at every budget, within three of the errors that 4000 tokens leave (about 1.5 %)."""
    found = uneven_budget(world, (5, 7, 8, 9), tokens=4_000, seed=1)
    laws = {row["lookahead"]: row["law_speedup_vs_ar"] for row in found}
    for row in found:
        assert row["simulated_speedup_vs_ar"] == pytest.approx(row["law_speedup_vs_ar"], rel=0.045)
    assert found[0]["best_by_law"] == best
    # The best by simulation is one that the law, too, thinks nearly best.
    assert laws[found[0]["best_simulated"]] > 0.97 * max(laws.values())
    assert found[0]["loss_of_printed"] >= 0.0


def test_budgets_around_the_ratio() -> None:
    assert around(10.05, 64) == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
    assert {22, 23, 24, 25, 26} <= set(around(24.0, 64))
    assert around(0.4, 64) == (1, 2, 3)
    assert max(around(80.0, 64)) <= 64


def test_the_live_settings_stay_within_the_domain() -> None:
    labels = [settings.label for settings in settings_for(2.2)]
    assert labels[:2] == ["sd K=4", "duo K=2"]
    assert "duo K=1 sequences=1" in labels and "duo K=4 sequences=1" in labels
    assert all(settings.lookahead is not None and settings.lookahead >= 1 for settings in settings_for(0.3))


def pending(accepted: int, length: int, bonus: int) -> list[object]:
    """Reply of `VerifyPending`, as a file holds it."""
    return [[accepted, [], False, bonus], [["verify", 1 + length]]]


def drafted(*sequences: list[int]) -> list[object]:
    return [list(sequences), -1, [-1] * len(sequences), []]


DECISIONS = Decisions(
    "duo K=4",
    {
        # one sequence, the target went on with it
        ("draftsequences", 0, 0, 0): drafted([5, 6, 7]),
        ("verifypending", 0, 0, 0): pending(0, 0, 5),
        # two, the second one
        ("draftsequences", 0, 0, 1): drafted([5, 6], [8]),
        ("verifypending", 0, 0, 1): pending(2, 2, 8),
        # the block was rejected: says nothing
        ("draftsequences", 0, 0, 4): drafted([5, 6], [8]),
        ("verifypending", 0, 0, 4): pending(0, 1, 5),
        # one, and it failed
        ("draftsequences", 0, 1, 0): drafted([3, 3, 3]),
        ("verifypending", 0, 1, 0): pending(0, 0, 9),
        # left open and settled, to the leading of two
        ("draftsequences", 0, 1, 1): drafted([4], [2]),
        ("verifypending", 0, 1, 1): pending(0, 0, -1),
        ("settlesequences", 0, 1, 1): [[0, [4], False, 4], 0, []],
    },
)


def test_what_the_threshold_predicts() -> None:
    found = confidence_of(DECISIONS)
    assert (found["sequences"], found["rounds_by_sequences"]) == ([1, 2], [2, 2])
    assert (found["leading_went_on"], found["any_went_on"]) == ([1, 1], [1, 2])
    assert found["actual_one_predicted_one"] == 0.25
    assert found["actual_several_predicted_several"] == 0.25
    assert found["drafted_per_round"] == pytest.approx((3 + 3 + 3 + 3 + 2) / 5)
    assert confidence_of(DECISIONS, {0})["rounds_by_sequences"] == [1, 1]
    with pytest.raises(ValueError, match="no round"):
        confidence_of(DECISIONS, {7})


def test_the_printed_budget_loses_what_the_best_one_gains() -> None:
    speedups = {4: 1.0, 6: 2.0, 8: 1.5}
    world = {"part": "uneven", "world": "even", "ratio": 8.4, "best_by_law": None}
    rows = budget_rows(world, speedups, speedups)
    assert {row["loss_of_printed"] for row in rows} == {0.25}  # 8 is the nearest to 8.4
    assert {row["best_simulated"] for row in rows} == {6}
    shown = budget_table(Results("duodecoding", tuple(rows)), "uneven", "x")
    assert shown.row_count == 1 and "2.000x" in next(iter(shown.columns[4].cells))
