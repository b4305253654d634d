"""Operation timings, on operations that were made up: what is fitted is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.hostfit import error_of, fit_kinds, fit_timings, gains, gains_line
from calibrate.hostrecords import Expectation, at_usual_speed, drift_of, time_operations
from calibrate.live.transport.device import Timing
from calibrate.live.wire import StepTime
from hardware_profiles.optime import Host, OperationHost, StepTotal, Timed
from hardware_profiles.profile import DeviceInfo, Overlap, Profile, Role, Roles
from hardware_profiles.reply_trace import Decisions, costs_fingerprint, place_fingerprint
from hardware_profiles.surface import ConstantCost, GridCost, Point, Provenance
from policies.operation import CostClass, RowOperation, Work
from policies.values import View

BORROWED = OperationHost(submit_s=1e-3, report_s=1e-3, submit_row_s=1e-4, row_s=2e-4, extra_s=1e-3)
TRUTH = OperationHost(submit_s=5e-4, report_s=2e-4, submit_row_s=1e-4, extra_s=3e-4, row_s=5e-5)
MS = 1e-3


def profile(machine: str = "a machine", operations: Mapping[Any, Any] | None = None) -> Profile:
    """Target forwards of 10 ms, draft forwards and tree steps of 2 ms; a busy target slows the draft down."""
    costs: dict[Any, Any] = {
        "target.forward": ConstantCost(seconds=10 * MS),
        "draft.forward": ConstantCost(seconds=2 * MS),
        "draft.tree": ConstantCost(seconds=2 * MS),
    }
    role = Role(device=DeviceInfo(kind="cpu"), model="tiny")
    return Profile(
        name="made-up",
        roles=Roles(target=role, draft=role),
        operations={**costs, **(operations or {})},
        host=Host(operations={"verify": BORROWED, "draft": BORROWED}),
        overlap=(Overlap(device="draft", operation="forward", while_busy="target", slowdown=1.25),),
        provenance=Provenance(kind="measured", machine=machine),
    )


def timed(
    expected_ms: Sequence[float], *, rows: int = 1, factor: float = 2.0, extra_s: float = 1e-4
) -> Timed:
    """A feed as the profile says, then tree steps that take `extra_s` and `factor` times what it says."""
    tree = sum(extra_s + factor * e * MS for e in expected_ms)
    work = TRUTH.extra_s + TRUTH.row_s * (rows - 1) + 2 * MS + tree
    return Timed(
        kind="grow",
        role="draft",
        cost_class="draft",
        batch=rows,
        rows=rows,
        tokens=7,
        lead_s=TRUTH.submit_s + TRUTH.submit_row_s * (rows - 1),
        work_s=work,
        report_s=TRUTH.report_s,
        idle_s=1e-3,
        steps=(
            StepTotal("feed", 1, 2 * MS, 2 * MS),
            StepTotal("tree", len(expected_ms), sum(expected_ms) * MS, tree),
        ),
    )


def runs(*batches: int) -> list[tuple[str, Timed]]:
    """Two settings, of two and of three tree steps, of which the profile says 1 to 4 ms each."""
    found = []
    for batch in batches:
        for i in range(40):
            wide = 1.0 + 3.0 * i / 39
            found += [
                ("two", timed([1.0, wide], rows=batch)),
                ("three", timed([1.0, wide, wide], rows=batch)),
            ]
    return found


def decisions(seen: Sequence[tuple[str, Timed]], label: str, beside: Profile) -> Decisions:
    timings = tuple(t for name, t in seen if name == label)
    return Decisions(label, {}, policy="tree", timings=timings, timed_beside=costs_fingerprint(beside))


def test_known_factors_are_recovered_exactly() -> None:
    # feed: 2 ms of 2 ms expected, factor 1.  tree: n calls take n 0.1 ms + 2 x expected.  What is left of the
    # work is 0.3 ms, and 0.05 ms more per further row; before it 0.5 ms + 0.1 ms per further row.
    found = fit_kinds(runs(1, 4), lambda _: BORROWED)["grow"]
    assert found.steps["feed"].factor == pytest.approx(1.0)
    assert found.steps["feed"].extra_s == 0.0  # its expected seconds do not vary: a constant cannot be told
    assert found.steps["tree"].factor == pytest.approx(2.0, rel=1e-6)
    assert found.steps["tree"].extra_s == pytest.approx(1e-4, rel=1e-4)
    for name in ("submit_s", "submit_row_s", "report_s", "extra_s", "row_s"):
        assert getattr(found.host, name) == pytest.approx(getattr(TRUTH, name), rel=1e-4), name
    assert (found.host.scale, found.host.wake, found.host.token_s) == (1.0, 0.0, 0.0)


def test_how_long_a_word_takes_is_kept_where_there_is_one() -> None:
    silent = [("one", timed([2.0])) for _ in range(9)]
    assert fit_kinds(silent, lambda _: BORROWED)["grow"].mark_s is None
    said = [("one", timed([2.0])._replace(mark_s=3e-4)) for _ in range(9)]
    assert fit_kinds([*silent, *said], lambda _: BORROWED)["grow"].mark_s == pytest.approx(3e-4)


def test_a_planted_factor_is_found_in_its_step_alone() -> None:
    plain = [("one", timed([2.0, 2.0], factor=1.0, extra_s=0.0)) for _ in range(9)]
    slow = [("one", timed([2.0, 2.0], factor=2.0, extra_s=0.0)) for _ in range(9)]
    before, after = (fit_kinds(seen, lambda _: BORROWED)["grow"] for seen in (plain, slow))
    assert [before.steps[n].factor for n in ("feed", "tree")] == pytest.approx([1.0, 1.0])
    assert [after.steps[n].factor for n in ("feed", "tree")] == pytest.approx([1.0, 2.0])
    assert after.host.extra_s == pytest.approx(before.host.extra_s)


def test_what_single_rows_cannot_tell_is_borrowed() -> None:
    found = fit_kinds(runs(1), lambda _: BORROWED)["grow"].host
    assert (found.row_s, found.submit_row_s) == (BORROWED.row_s, BORROWED.submit_row_s)
    assert found.submit_s == pytest.approx(TRUTH.submit_s)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_operations_are_enough(count: int) -> None:
    seen = [("one", timed([2.0], factor=f, extra_s=0.0)) for f in (1.9, 2.1, 2.0)[:count]]
    found = fit_kinds(seen, lambda _: BORROWED)["grow"]
    # 1.9 of one; of two the mean, for neither is left out; of three the middle one.
    assert found.steps["tree"].factor == pytest.approx((1.9, 2.0, 2.0)[count - 1])


def test_an_operation_that_waited_says_nothing_of_its_start() -> None:
    waiting = [("one", timed([2.0])._replace(lead_s=-1.0)) for _ in range(9)]
    seen = [*waiting, *[("one", timed([2.0])) for _ in range(9)]]
    found = fit_kinds(seen, lambda _: BORROWED)
    assert found["grow"].host.submit_s == pytest.approx(TRUTH.submit_s)
    assert error_of([t for _, t in seen], found) == pytest.approx(0.0, abs=1e-9)


def test_steps_without_a_model_have_medians_that_grow_with_the_rows() -> None:
    def looked(rows: int, seconds: float) -> tuple[str, Timed]:
        own = timed([2.0], rows=rows)
        return "one", own._replace(steps=(*own.steps, StepTotal("look", 1, 0.0, seconds)))

    # Single rows take 1, 1 and 50 ms, the median is 1 ms; three rows 5 ms: 2 ms for each further one.
    seen = [looked(1, MS), looked(1, MS), looked(1, 50 * MS), *[looked(3, 5 * MS)] * 3]
    found = fit_kinds(seen, lambda _: BORROWED)["grow"].steps["look"]
    assert (found.extra_s, found.row_s) == pytest.approx((MS, 2 * MS))
    assert found.seconds(0.0, rows=2) == pytest.approx(3 * MS)
    single = fit_kinds(seen[:3], lambda _: BORROWED)["grow"].steps["look"]
    assert (single.extra_s, single.row_s) == (MS, 0.0)


def test_what_timing_buys() -> None:
    here, seen = profile(), runs(1, 4)
    found = gains(here, [decisions(seen, label, here) for label in ("two", "three")], sampled=False)
    assert [(g.label, g.batch) for g in found] == [("two", 1), ("two", 4), ("three", 1), ("three", 4)]
    for gain in found:
        assert gain.fitted == pytest.approx(0.0, abs=1e-5)
        assert gain.unseen == pytest.approx(0.0, abs=1e-5)
    # One row, two tree steps of 1 and, in the mean, 2.5 ms: borrowed 1 + 1 + (1 + 2 + 3.5) = 8.5 ms, measured
    # 0.5 + 0.2 + (0.3 + 2 + 0.2 + 7) = 10.2 ms.
    assert found[0].borrowed == pytest.approx(8.5 / 10.2 - 1.0)
    line = gains_line(found)
    assert "0.0% (at most 0.0%) with their own timing, 0.0% (at most 0.0%) with that of the other" in line


def test_a_single_setting_leaves_none_out() -> None:
    here = profile()
    (gain, *_) = gains(here, [decisions(runs(1), "two", here)], sampled=False)
    assert gain.unseen is None
    assert "record a second setting" in gains_line([gain])


def test_times_beside_another_calibration_are_left_out() -> None:
    here, other = profile(), profile(operations={"target.forward": ConstantCost(seconds=1.0)})
    assert place_fingerprint(here) == place_fingerprint(other) != place_fingerprint(profile("another"))
    assert fit_timings(here, [decisions(runs(1), "two", other)], sampled=False) is None
    assert gains(here, [decisions(runs(1), "two", other)], sampled=False) == []
    found = fit_timings(
        here, [decisions(runs(1, 4), label, here) for label in ("two", "three")], sampled=False
    )
    assert found is not None and found.batches == (1, 4)
    assert found.of(here, "tree")["grow"].steps["tree"].factor == pytest.approx(2.0, rel=1e-6)
    assert found.of(here, "rasd") == {} == found.of(profile("another"), "tree")


@given(
    factor=st.floats(0.5, 3.0),
    extra_s=st.floats(0.0, 1e-3),
    at=st.lists(st.floats(0.5, 8.0), min_size=2, max_size=5),
)
def test_whatever_the_truth_an_unseen_operation_is_told(
    factor: float, extra_s: float, at: list[float]
) -> None:
    seen = [
        ("one", timed([1.0, 1.0 + i / 5], rows=rows, factor=factor, extra_s=extra_s))
        for i in range(30)
        for rows in (1, 2)
    ]
    found = fit_kinds(seen, lambda _: BORROWED)
    assert error_of([timed(at, factor=factor, extra_s=extra_s)], found) == pytest.approx(0.0, abs=1e-4)


# --- From a live run to timed operations ---


class Reply(NamedTuple):
    work: Work


class Draw(RowOperation):
    kind: ClassVar[str] = "draw"
    cost_class: ClassVar[CostClass] = "draft"
    reply: ClassVar[type[Any]] = Reply


class Speak(RowOperation):
    kind: ClassVar[str] = "speak"
    cost_class: ClassVar[CostClass] = "verify"
    reply: ClassVar[type[Any]] = Reply


def view() -> View:
    return View((0,), (0,), (0,), (100,), (9,))


def timing(
    device: str, kind: str, at: tuple[float, float, float, float], *steps: StepTime, **more: Any
) -> Timing:
    """An operation by its submission, start, end and arrival, in ms."""
    submit, start, end, arrival = (t * MS for t in at)
    return Timing(device, kind, submit, start, end, arrival, more.pop("queued", False), steps, 100.0, **more)


def step(name: str, start: float, end: float, tokens: int) -> StepTime:
    return StepTime(name, start * MS, end * MS, tokens)


SPEAK_WORK = (("early:0.4", 3), ("exit", 0), ("late:0.6", 0))
DRAW_WORK = (("feed", 2), ("tree", 4))


def world() -> Any:
    """A target that speaks after 5 ms of 12, and a draft that works from then on."""
    target = [
        timing("target", "prefill", (0, 1, 5, 6)),
        timing("target", "speak", (6, 7, 8, 9)),  # followed a prefill
        timing(
            "target",
            "speak",
            (9.5, 10, 22, 23),
            step("early:0.4", 10, 14, 3),
            step("exit", 14, 15, 0),
            step("late:0.6", 15, 22, 0),
            early_s=15.5 * MS,
        ),
    ]
    draft = [
        timing("draft", "draw", (15.7, 16, 26, 27), step("feed", 16.5, 19, 2), step("tree", 19, 25, 4)),
        timing("draft", "draw", (25, 27, 29, 30), step("feed", 27, 29, 2), queued=True),
    ]
    said = (Speak(view(), 1, ((),)), (Reply(SPEAK_WORK),), None)
    return SimpleNamespace(
        timings=lambda: sorted([*target, *draft], key=lambda t: t.start_s),
        devices=[
            SimpleNamespace(timings=target, replies=[said, said]),
            SimpleNamespace(
                timings=draft,
                replies=[
                    (Draw(view(), 1, ((),)), (Reply(DRAW_WORK),), None),
                    (Draw(view(), 1, ((),)), (Reply(DRAW_WORK[:1]),), None),
                ],
            ),
        ],
    )


def test_a_run_becomes_work_at_full_rate() -> None:
    speak, draw, again = time_operations(world(), Expectation(profile()), batch=1)
    # Heard of the last report at 9; nothing slows the target.  The layers after the exit are .6 of a call.
    assert speak.kind == "speak"
    assert (speak.lead_s, speak.work_s, speak.report_s) == pytest.approx((MS, 12 * MS, MS))
    assert speak.idle_s == pytest.approx(2 * MS)
    assert [(s.name, s.calls) for s in speak.steps] == [("early", 1), ("exit", 1), ("late", 1)]
    assert [s.expected_s for s in speak.steps] == pytest.approx([4 * MS, 0.0, 6 * MS])
    assert [s.seconds for s in speak.steps] == pytest.approx([4 * MS, MS, 7 * MS])
    # Heard of the mark at 15.5.  Of its 10 ms the target worked in 6, which count 6 / 1.25 = 4.8: 8.8 ms.
    assert (draw.lead_s, draw.work_s) == pytest.approx((0.5 * MS, 8.8 * MS))
    # feed: 2.5 ms, all beside the target.  tree: 6 ms, 3 of them beside it: 3 + 2.4.
    assert [s.seconds for s in draw.steps] == pytest.approx([2 * MS, 5.4 * MS])
    assert [s.expected_s for s in draw.steps] == pytest.approx([2 * MS, 2 * MS])
    assert (draw.tokens, again.lead_s) == (6, -1.0)
    assert again.work_s == pytest.approx(2 * MS)


def test_a_slow_day_is_taken_out() -> None:
    _, draw, again = at_usual_speed(time_operations(world(), Expectation(profile()), batch=1), 1.1)
    assert draw.work_s == pytest.approx(8 * MS)
    assert draw.steps[1].seconds == pytest.approx(5.4 * MS / 1.1, abs=1e-7)
    assert draw.steps[1].expected_s == pytest.approx(2 * MS)
    assert again.lead_s == -1.0
    assert len(at_usual_speed([draw] * 1000, 1.0)) == 400


def test_the_day_is_told_by_plain_decoding() -> None:
    # Expected 10 ms of forward and nothing else: `decode` has no entry, and the host's common time is 0.
    # From the report of the one before, 3 ms before the submission, to the start: 4 ms.  4 + 15 + 1 = 20 ms.
    steps = [
        timing("target", "verify", (20 * i, 20 * i + 1, 20 * i + 16, 20 * i + 17), step("verify", 0, 1, 1))
        for i in range(1, 9)
    ]
    steps = [timing("target", "prefill", (0, 1, 17, 18)), *steps]
    assert drift_of(steps, profile(), sampled=False) == pytest.approx(2.0)
    assert drift_of([], profile(), sampled=False) == 1.0


def test_a_profile_without_tree_steps_is_refused() -> None:
    here = profile()
    known = {name: cost for name, cost in here.operations.items() if name != "draft.tree"}
    bare = here.but(operations=known)
    with pytest.raises(ValueError, match=r"no draft\.tree.*--untimed"):
        list(Expectation(bare).steps("draft", [DRAW_WORK], 10.0))


def test_a_tree_surface_without_a_batch_axis_counts_all_branches() -> None:
    points = tuple(Point(at=(b, c), mean_s=MS * b) for b in (1, 9) for c in (0, 200))
    tree = GridCost(axes=("branches", "context"), points=points)
    beside = Expectation(profile(operations={"draft.tree": tree}))
    # Two rows of four branches: 8 of 1 ms.
    assert dict(beside.steps("draft", [DRAW_WORK, DRAW_WORK], 10.0))["tree"] == pytest.approx(8 * MS)
