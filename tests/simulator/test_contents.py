"""Operations stated row by row: recorded replies, their cost, their marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest

from hardware_profiles.optime import OperationHost, OperationTiming
from hardware_profiles.reply_trace import Decisions, DecisionTrace, read_decisions, write_decisions
from hardware_profiles.trace import TraceError, TraceMeta, TraceRequest
from policies.config import SettingError
from policies.operation import CostClass, RowOperation, Work
from policies.protocols import Steps, World
from policies.rows import Rows
from policies.values import Request, RowVerdict, Speculation, cut_to, joined, verdict_of
from simulator.costs import TextbookCosts
from simulator.replies import Recorded, revive
from simulator.tokens import coin
from simulator.world import SimulatedWorld


class Reply(NamedTuple):
    verdict: RowVerdict
    work: Work


class Said(NamedTuple):
    candidates: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Judge(RowOperation):
    kind: ClassVar[str] = "judge"
    cost_class: ClassVar[CostClass] = "verify"
    reply: ClassVar[type[Any]] = Reply
    early_reply: ClassVar[type[Any] | None] = Said
    early_after: ClassVar[str] = "early"

    depth: int = 0


WORK = [["early", 3], ["late", 3], ["look", 0]]
REPLIES = {
    ("judge", 0, 0, 0): [[1, [7, 8], False, 8], WORK],
    ("judge", 0, 0, 2): [[0, [9], True, 9], WORK[:1]],
}


def run(world: SimulatedWorld, rows: Rows, marks: list[tuple[float, Any]] | None = None) -> None:
    def policy(world: World) -> Steps:
        while rows.active:
            rows.admit(world.now)
            view = rows.view()
            task = world.target.submit(
                Judge(view, rows.width, ((),) * len(view.slots), early=marks is not None)
            )
            if marks is not None:
                said = yield task.early
                marks.append((world.now, said[0].candidates))
            found = yield task
            verdict = verdict_of(rows.width, {slot: found[slot].verdict for slot in view.slots})
            rows.commit(view, Speculation.empty(rows.width), verdict, now=world.now)

    world.run(policy(world))


def world_of(replies: Mapping[Any, Any], marks: Mapping[Any, Any] | None = None) -> SimulatedWorld:
    decisions = Decisions("judge", replies, marks or {}, {"look": 0.25})
    tokens = coin(0.5, exponent=1.0, requests=1, length=4, prompt_length=5, seed=0)
    return SimulatedWorld(tokens, TextbookCosts(1.0, 0.1), rows=Recorded(decisions, 1))


def test_recorded_replies_cost_their_steps() -> None:
    world, rows = world_of(REPLIES), Rows([Request(0, 5, 4, (1,) * 5)], 1, keep_tokens=True)
    run(world, rows)
    # Two target steps of 1 s and a look of 0.25 s; then one step.
    assert rows.log.ends == [2.25, 3.25]
    assert rows.texts[0] == [7, 8, 9]


def test_the_same_text_under_a_new_id_gets_the_same_replies() -> None:
    requests = [Request(i, 5, 4, (1,) * 5) for i in (0, 1)]
    world, rows = world_of(REPLIES), Rows(requests, 2, keep_tokens=True)
    run(world, rows)
    assert rows.texts == {0: [7, 8, 9], 1: [7, 8, 9]}
    assert rows.log.ends == [2.25, 3.25]  # both rows in one model call


def test_marks_fire_after_their_step() -> None:
    marks = {key: [[4, 2]] for key in REPLIES}
    heard: list[tuple[float, Any]] = []
    run(world_of(REPLIES, marks), Rows([Request(0, 5, 4, (1,) * 5)], 1, keep_tokens=True), heard)
    assert heard == [(1.0, (4, 2)), (3.25, (4, 2))]


def test_a_mark_is_heard_when_its_timing_says_so_and_not_when_the_report_would_be() -> None:
    marks = {key: [[4, 2]] for key in REPLIES}
    decisions = Decisions("judge", REPLIES, marks, {"look": 0.25})
    tokens = coin(0.5, exponent=1.0, requests=1, length=4, prompt_length=5, seed=0)
    heard: dict[float | None, list[tuple[float, Any]]] = {}
    for mark_s in (None, 0.125):
        timing = OperationTiming(host=OperationHost(report_s=0.5), mark_s=mark_s)
        world = SimulatedWorld(
            tokens, TextbookCosts(1.0, 0.1), rows=Recorded(decisions, 1), timings={"judge": timing}
        )
        run(world, Rows([Request(0, 5, 4, (1,) * 5)], 1, keep_tokens=True), heard.setdefault(mark_s, []))
    # The early step takes 1 s; the word takes as long as a report, or its own time.  The report of the first
    # operation comes after 2.25 + .5 s, the next one's early step ends 1 s later.
    assert [at for at, _ in heard[None]] == [1.5, 4.25]
    assert [at for at, _ in heard[0.125]] == [1.125, 3.875]


def test_a_moment_that_was_not_recorded_is_refused() -> None:
    first = {key: reply for key, reply in REPLIES.items() if key[3] == 0}
    with pytest.raises(SettingError, match="no judge of request 0 at position 2"):
        run(world_of(first), Rows([Request(0, 5, 4, (1,) * 5)], 1, keep_tokens=True))


def test_nested_replies_come_back_as_they_were() -> None:
    reply = revive(Reply, REPLIES["judge", 0, 0, 0])
    assert reply == Reply(RowVerdict(1, (7, 8), False, 8), (("early", 3), ("late", 3), ("look", 0)))


def test_what_settles_a_row_can_end_it() -> None:
    first, then = RowVerdict(2, (7, 8), False), RowVerdict(0, (9,), False, 9)
    assert joined(first, then, 4) == RowVerdict(2, (7, 8, 9), False, 9)
    assert joined(first, then, 3) == RowVerdict(2, (7, 8, 9), True, 9)


def test_a_recording_of_longer_texts_is_cut() -> None:
    long = RowVerdict(2, (7, 8, 9), False, 9)
    assert cut_to(long, 4) == long
    # No room for more: the text ends, with or without the bonus token.
    assert cut_to(long, 3) == RowVerdict(2, (7, 8, 9), True, 9)
    assert cut_to(long, 2) == RowVerdict(2, (7, 8), True, -1)
    assert cut_to(long, 1) == RowVerdict(1, (7,), True, -1)
    rows = Rows([Request(0, 5, 1, (1,) * 5)], 1, keep_tokens=True)
    run(world_of(REPLIES), rows)
    assert rows.texts[0] == [7]


META = TraceMeta(target_model="t", draft_model="d", tokenizer="x", vocabulary=10, sampling={})


def trace_of(label: str, prompt: tuple[int, ...] = (1, 2)) -> DecisionTrace:
    request = TraceRequest(id=0, question_id=1, category="qa", prompt=prompt, ended="limit")
    decisions = Decisions(label, REPLIES, {("judge", 0, 0, 0): [[4]]}, {"look": 0.5}, "x", {"lookahead": 3})
    return DecisionTrace((request,), META, {label: decisions}, 4)


def test_files_keep_everything(tmp_path: Any) -> None:
    path = tmp_path / "decisions.parquet"
    write_decisions(trace_of("a").merged(trace_of("b")), path)
    found = read_decisions(path)
    assert found == trace_of("a").merged(trace_of("b"))


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Any) -> None:
    path = tmp_path / "decisions.parquet"
    write_decisions(trace_of("a"), path)
    assert read_decisions(path) is read_decisions(str(path))
    write_decisions(trace_of("another"), path)
    assert list(read_decisions(path).settings) == ["another"]


def test_a_slice_keeps_what_belongs_to_its_requests() -> None:
    assert trace_of("a").slice([0]) == trace_of("a")
    nothing = trace_of("a").slice([])
    assert nothing.requests == () and nothing.settings["a"].replies == {}


def test_other_prompts_are_not_joined() -> None:
    with pytest.raises(TraceError, match="cannot be joined"):
        trace_of("a").merged(trace_of("b", (3,)))


def test_a_trace_is_no_decision_trace(tmp_path: Any) -> None:
    path = tmp_path / "other.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(TraceError):
        read_decisions(path)
