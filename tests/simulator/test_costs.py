"""What operations cost: forwards by hand on grids whose cells say how they were reached."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from hardware_profiles.records import record
from hardware_profiles.surface import ConstantCost, GridCost, LatencySurface, Point
from policies.operation import Draft, Prefill, Prespeculate, Settle, Verify
from policies.sampling import GREEDY
from policies.values import NO_SLOTS, Source, Speculation, Verdict, View
from simulator.costs import Effects, ProfileCosts


def surface(function: Any, **ticks: tuple[int, ...]) -> LatencySurface:
    """A surface with a function's values."""
    points = tuple(Point(at=at, mean_s=function(*at)) for at in product(*ticks.values()))
    return LatencySurface(record(GridCost, {"axes": tuple(ticks), "points": points}))


def constant(seconds: float) -> LatencySurface:
    return LatencySurface(ConstantCost(seconds=seconds))


def view(rows: int, context: int = 10) -> View:
    slots = tuple(range(rows))
    return View(slots, slots, (0,) * rows, (context,) * rows, (99,) * rows)


def speculation(lengths: list[int], sources: list[Source]) -> Speculation:
    return Speculation(tuple(lengths), tuple(map(int, sources)))


def costs(tree: LatencySurface, **changes: Any) -> ProfileCosts:
    surfaces = {
        "target.forward": constant(1.0),
        "draft.forward": constant(0.5),
        "draft.tree": tree,
        "draft.prefill": constant(3.0),
    }
    return ProfileCosts(surfaces, effects=Effects(jitter=False), seed=0, **changes)


P, N, R = Source.PRIMARY, Source.NONE, Source.RANDOM
MIXED = speculation([2, 0, 2], [P, N, R])


def prespeculate(**knobs: Any) -> Prespeculate:
    return Prespeculate(view(3), MIXED, 2, (1, 2, 3), (5, 1, 0), **knobs)


def test_branches_by_what_a_row_verifies() -> None:
    # Primary: 1 + 2 + 3.  Nothing: F_0 of the backup's.  Random: 5 + 1 + 0.
    assert prespeculate().branches == (6, 5, 6)
    assert Prespeculate(view(3), MIXED, 2, (1, 2, 3)).branches == (6, 1, 6)


def test_a_device_prepares_its_share_rounded_up() -> None:
    assert prespeculate(part=(1, 4)).branches == (2, 2, 2)
    assert prespeculate(part=(0, 2)).branches == (3, 3, 3)


def test_a_batched_tree_step_costs_rows_times_the_widest_row() -> None:
    # 1 ms per computed token; rows of 6, 1 and 6 branches are padded to 3 x 6 = 18.
    tree = surface(
        lambda b, w, _: 1e-3 * b * w, batch=(1, 4), branches=(1, 8), context=(0, 100)
    )  # fmt: skip
    steps = costs(tree).steps("draft", Prespeculate(view(3), MIXED, 2, (1, 2, 3)))
    assert [name for name, _ in steps] == ["glue", "tree", "tree"]
    assert [s for _, s in steps[1:]] == pytest.approx([0.018, 0.018])


def test_rows_of_a_verification_are_padded_or_packed() -> None:
    # 1 ms per row and token; 3, 1 and 3 tokens: 3 x 3 padded, 7 packed, which are 3 a row, rounded up.
    # With drafts of 5, none and none, 3 x 6 are padded and 8 packed: 3 a row.
    forward = surface(lambda b, w, _: 1e-3 * b * w, batch=(1, 4), new_tokens=(1, 8), context=(0, 100))
    for lengths, padded, packed in (([2, 0, 2], 9e-3, 9e-3), ([5, 0, 0], 18e-3, 9e-3)):
        verify = Verify(view(3), speculation(lengths, [P, P, P]))
        for pack, seconds in ((False, padded), (True, packed)):
            measured = ProfileCosts(
                {"target.forward": forward}, effects=Effects(jitter=False), seed=0, packed=pack
            )
            assert measured.steps("target", verify) == [("verify", pytest.approx(seconds))]


def test_a_batched_tree_grows_by_its_padded_width() -> None:
    # Cost = context in ms: the trunk of 10 and the 1 + 2 tokens of the glue, then 6 columns further.
    tree = surface(lambda b, w, c: 1e-3 * (c + 1), batch=(1, 4), branches=(1, 8), context=(0, 100))
    steps = costs(tree).steps("draft", prespeculate())
    assert [s for _, s in steps[1:]] == pytest.approx([0.014, 0.020])


def test_without_a_batch_axis_branches_are_counted_over_all_rows() -> None:
    # 6 + 5 + 6 = 17 branches of 1 ms.
    tree = surface(lambda w, _: 1e-3 * w, branches=(1, 32), context=(0, 100))
    steps = costs(tree).steps("draft", prespeculate())
    assert [s for _, s in steps[1:]] == pytest.approx([0.017, 0.017])


def test_what_lies_outside_the_grid_is_told_by_how_much() -> None:
    tree = surface(lambda b, w, _: 1e-3 * b * w, batch=(1, 2), branches=(1, 4), context=(0, 12))
    measured = costs(tree)
    measured.steps("draft", prespeculate())
    assert [str(e) for e in measured.extrapolated()] == [
        "draft.tree at batch 3 (measured up to 2)",
        "draft.tree at branches 6 (measured up to 4)",
        "draft.tree at context 19 (measured up to 12)",
    ]
    inside = costs(surface(lambda b, w, _: 1.0, batch=(1, 4), branches=(1, 8), context=(0, 64)))
    inside.steps("draft", prespeculate())
    assert inside.extrapolated() == ()


def test_drift_scales_whole_operations() -> None:
    plain, slow = costs(constant(0.1)), costs(constant(0.1), drift={"draft.tree": 2.0, "draft.prefill": 3.0})
    one, two = plain.steps("draft", prespeculate()), slow.steps("draft", prespeculate())
    assert [s for _, s in two] == pytest.approx([one[0][1], 2 * one[1][1], 2 * one[2][1]])
    prefill = Prefill(view(1))
    assert slow.steps("draft", prefill)[0][1] == 3 * plain.steps("draft", prefill)[0][1]


def test_every_draft_device_costs_what_the_draft_costs() -> None:
    assert costs(constant(0.1)).steps("draft-1", Prefill(view(1))) == [("prefill", 3.0)]


def test_settling_needs_no_forward() -> None:
    verdict = Verdict((0,), (0,), NO_SLOTS, (0,))
    empty = Speculation.empty(1)
    assert costs(constant(0.1)).steps("target", Settle(view(1), verdict, empty, empty, GREEDY)) == []


def test_verification_alone_is_as_before() -> None:
    assert costs(constant(0.1)).steps("target", Verify(view(3), MIXED)) == [("verify", 1.0)]


def test_tokens_fed_leave_padding_out() -> None:
    # Rows that verify 2 tokens and none: 3 + 1 go through the glue step; F = 2 at each position makes 6 and
    # 2 branches, over K = 2 steps.
    rows, mixed = view(2), speculation([2, 0], [Source.PRIMARY, Source.NONE])
    assert Verify(rows, mixed).tokens_fed == 3 + 1
    assert Prespeculate(rows, mixed, 2, (2, 2, 2)).tokens_fed == 4 + 2 * (6 + 2)
    assert Draft(rows, 3, (2, 1)).tokens_fed == (2 + 2) + (1 + 2)
