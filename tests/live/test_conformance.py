"""One suite against both worlds: what a policy may rely on, whoever answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from calibrate.live.transport.world import LiveWorld
from policies.operation import Continue, Draft, Prefill, Prespeculate, Settle, Verify
from policies.registry import configure, start
from policies.rows import Rows
from policies.sampling import Sampling
from policies.values import NO_SLOTS, UNKNOWN, Request, Source, Speculation, Verdict, View
from simulator.costs import TextbookCosts
from simulator.tokens import coin
from simulator.world import SimulatedWorld

PROMPTS = ((3, 1, 4, 1, 5), (9, 2), (6, 5, 3, 5), (8, 9, 7, 9, 3, 2), (3, 8))
LIMIT = 24
WIDTH = 3
ONES = (1,) * WIDTH
SAMPLED = Sampling(temperature=1.0, seed=5)
Body = Callable[[Rows, View], Iterator[Any]]


@pytest.fixture(params=["simulated", "live"])
def either(request: pytest.FixtureRequest) -> Any:
    if request.param == "live":
        world: LiveWorld = request.getfixturevalue("world")
        return world
    tokens = coin(0.7, exponent=1.0, requests=len(PROMPTS), length=LIMIT, prompt_length=4, seed=3)
    return SimulatedWorld(tokens, TextbookCosts(0.02, 0.001), timeline=True)


def rows_for(world: Any, count: int = WIDTH, width: int = WIDTH) -> Rows:
    """Rows of ragged prompts; a world without token ids does without the prompts."""
    live = isinstance(world, LiveWorld)
    prompts = PROMPTS[:count]
    requests = [Request(i, len(p), LIMIT, p if live else None) for i, p in enumerate(prompts)]
    return Rows(requests, width, keep_tokens=live)


def in_world(world: Any, body: Body) -> None:
    """Run `body` as a policy over prefilled rows."""

    def policy() -> Iterator[Any]:
        rows = rows_for(world)
        rows.admit()
        view = rows.view()
        prefill = Prefill(view, rows.prompts(view))
        yield world.target.submit(prefill) & world.draft.submit(prefill)
        yield from body(rows, view)

    world.run(policy())


def each(value: int, slots: Iterable[int]) -> tuple[int, ...]:
    """[WIDTH] a value in some slots, else 0."""
    return tuple(value if slot in slots else 0 for slot in range(WIDTH))


def test_a_world_names_its_drafts(either: Any) -> None:
    assert list(either.drafts) == [either.draft]


def test_submit_returns_at_once_and_each_task_fires_once_in_order(either: Any) -> None:
    fired: list[int] = []

    def body(_: Rows, view: View) -> Iterator[Any]:
        tasks = [either.draft.submit(Draft(view, 3, ONES)) for _ in range(3)]
        assert not any(task.triggered for task in tasks)
        for number, task in enumerate(tasks):
            task.callbacks.append(lambda _, n=number: fired.append(n))
        yield tasks[2]

    in_world(either, body)
    assert fired == [0, 1, 2]


def test_and_waits_for_both_or_for_the_first(either: Any) -> None:
    def body(_: Rows, view: View) -> Iterator[Any]:
        verify = either.target.submit(Verify(view, Speculation.empty(WIDTH)))
        draft = either.draft.submit(Draft(view, 2, ONES))
        yield verify | draft
        assert verify.triggered or draft.triggered
        yield verify & draft
        assert verify.triggered and draft.triggered

    in_world(either, body)


@pytest.mark.parametrize("slots", [(0, 1, 2), (0, 2), (1,)], ids=str)
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_answers_have_their_shapes(either: Any, slots: tuple[int, ...], sampling: Sampling) -> None:
    """Of every subset of the rows; what a value says of the others is nothing."""

    def body(rows: Rows, _: View) -> Iterator[Any]:
        view = rows.view(frozenset(slots))
        drafted = yield either.draft.submit(Draft(view, 4, ONES, sampling))
        assert drafted.lengths == each(4, slots)
        assert drafted.sources == each(int(Source.PRIMARY), slots)
        verify = either.target.submit(Verify(view, drafted, sampling))
        cache = yield either.draft.submit(Prespeculate(view, drafted, 4, (2,) * 5, sampling=sampling))
        verdict: Verdict = yield verify
        for slot in range(WIDTH):
            there, accepted = slot in slots, verdict.accepted[slot]
            assert 0 <= accepted <= 4 * there
            assert verdict.emitted[slot] == accepted + there
            assert there or verdict.bonus[slot] == UNKNOWN
        assert not verdict.ended
        hits = cache.lookup(verdict)
        taken = cache.take(verdict, hits)
        assert hits <= set(slots)
        assert taken.lengths == each(4, hits)
        assert cache.take(verdict, NO_SLOTS).lengths == (0,) * WIDTH

    in_world(either, body)


def test_rows_of_different_lengths_are_verified_together(either: Any) -> None:
    def body(_: Rows, view: View) -> Iterator[Any]:
        drafted: Speculation = yield either.draft.submit(Draft(view, 4, ONES))
        mixed = drafted.merge(Speculation.empty(3), frozenset({1}))
        assert mixed.lengths == (4, 0, 4)
        cache = either.draft.submit(Prespeculate(view, mixed, 2, (3, 0, 1, 0, 2)))
        verdict = yield either.target.submit(Verify(view, mixed))
        assert verdict.accepted[1] == 0 and verdict.emitted[1] == 1
        hits = (yield cache).lookup(verdict)
        assert not any(verdict.accepted[slot] in {1, 3} for slot in hits)

    in_world(either, body)


def test_outcomes_are_announced_before_the_tree_is_done(either: Any) -> None:
    """They answer as the whole cache will; a tree stopped then ends early, and the device serves on."""
    depth = 40

    def body(_: Rows, view: View) -> Iterator[Any]:
        drafted: Speculation = yield either.draft.submit(Draft(view, 2, ONES))
        verdict = yield either.target.submit(Verify(view, drafted))
        silent = either.draft.submit(Prespeculate(view, drafted, depth, (2,) * 3))
        whole = yield silent
        assert not silent.early.triggered
        announcing = Prespeculate(view, drafted, depth, (2,) * 3, early=True)
        kept = either.draft.submit(announcing)
        outcomes = yield kept.early
        assert not kept.triggered
        assert outcomes.lookup(verdict) == whole.lookup(verdict)
        assert (yield kept).lookup(verdict) == whole.lookup(verdict)
        stopped = either.draft.submit(announcing)
        yield stopped.early
        stopped.stop()
        yield stopped
        yield either.draft.submit(Draft(view, 2, ONES))

    in_world(either, body)
    trees = [
        sum(name != "glue" for name, _ in span.details["steps"])
        for span in either.spans
        if span.name == "prespeculate"
    ]
    assert trees[:2] == [depth] * 2 and trees[2] < depth


def test_a_continuation_is_one_token_shorter_than_drafted(either: Any) -> None:
    def body(_: Rows, view: View) -> Iterator[Any]:
        nothing = Speculation.empty(WIDTH)
        cache = yield either.draft.submit(Continue(view, nothing, 3))
        verdict = yield either.target.submit(Verify(view, nothing))
        hits = cache.lookup(verdict)
        assert cache.take(verdict, hits).lengths == each(2, hits)

    in_world(either, body)


def test_an_open_end_is_settled(either: Any) -> None:
    """Rows that accepted everything wait for their bonus token, the others have theirs."""

    def body(_: Rows, view: View) -> Iterator[Any]:
        drafted = yield either.draft.submit(Draft(view, 1, ONES, SAMPLED))
        verify = either.target.submit(Verify(view, drafted, SAMPLED, leave_open=True))
        cache = yield either.draft.submit(Continue(view, drafted, 3, SAMPLED))
        verdict = yield verify
        whole = [slot for slot, accepted in enumerate(verdict.accepted) if accepted == 1]
        assert verdict.emitted == (1,) * WIDTH
        opening = cache.opening()
        assert opening.lengths == (1,) * WIDTH
        settled = yield either.target.submit(Settle(view, verdict, drafted, opening, SAMPLED))
        assert settled.accepted == verdict.accepted
        assert settled.emitted == tuple(1 + count for count in each(1, whole))
        hits = cache.lookup(settled)
        assert hits <= set(whole)
        assert cache.take(settled, hits).lengths == each(2, hits)

    in_world(either, body)


def test_stop_is_harmless_where_nothing_can_be_stopped(either: Any) -> None:
    def body(_: Rows, view: View) -> Iterator[Any]:
        verify = either.target.submit(Verify(view, Speculation.empty(WIDTH)))
        verify.stop()
        verdict = yield verify
        assert verdict.emitted == (1,) * WIDTH
        verify.stop()

    in_world(either, body)


def test_a_stopped_draft_answers_with_what_it_has(either: Any) -> None:
    def body(_: Rows, view: View) -> Iterator[Any]:
        running = either.draft.submit(Draft(view, 60, ONES))
        waiting = either.draft.submit(Draft(view, 60, ONES))
        waiting.stop()
        running.stop()
        first, second = (yield running), (yield waiting)
        assert 0 <= first.lengths[0] < 60
        assert len(set(first.lengths)) == 1
        assert second.lengths == (0,) * WIDTH

    in_world(either, body)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "knobs",
    [
        {"policy": "ar"},
        {"policy": "sd"},
        {"policy": "pearl"},
        *({"policy": "saguaro", "backup": b} for b in ("primary", "primary-all", "plain", "random")),
        {"policy": "saguaro", "stall": "rows", "first": "backup"},
    ],
    ids=lambda knobs: " ".join(knobs.values()),
)
@pytest.mark.parametrize("width", [1, WIDTH])
def test_every_policy_emits_all_tokens_and_counts_them_once(
    either: Any, knobs: dict[str, str], temperature: float, width: int
) -> None:
    """More requests than rows: finished rows are replaced, and rows end in different rounds."""
    rows = rows_for(either, len(PROMPTS), width)
    either.run(start(either, rows, configure(temperature=temperature, **knobs)))  # type: ignore[arg-type]
    for request in range(len(PROMPTS)):
        rounds = rows.log.rounds(request)
        assert sum(r.emitted for r in rounds) == LIMIT
        assert [r.position for r in rounds] == np.cumsum([0, *(r.emitted for r in rounds)])[:-1].tolist()
        assert all(r.emitted in {r.accepted, r.accepted + 1} and r.accepted <= r.length for r in rounds)
        if either.vocabulary:
            assert len(rows.texts[request]) == LIMIT
    assert rows.log.batch_rounds < len(rows.log.table()["emitted"]) or width == 1
