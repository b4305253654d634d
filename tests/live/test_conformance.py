"""One suite against both worlds: what a policy may rely on, whoever answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from calibrate.live.world import LiveWorld
from policies.operations import (
    Continue,
    Draft,
    Prefill,
    Prespeculate,
    Request,
    Source,
    Speculation,
    Verdict,
    Verify,
    View,
)
from policies.registry import configure, start
from policies.rows import Rows
from simulator.costs import TextbookCosts
from simulator.tokens import coin
from simulator.world import SimulatedWorld

PROMPT = (3, 1, 4, 1, 5)
LIMIT = 24
ONES = np.ones(1, dtype=np.int64)


@pytest.fixture(params=["simulated", "live"])
def either(request: pytest.FixtureRequest) -> Any:
    if request.param == "live":
        world: LiveWorld = request.getfixturevalue("world")
        return world
    tokens = coin(0.7, exponent=1.0, requests=1, length=LIMIT, prompt_length=len(PROMPT), seed=3)
    return SimulatedWorld(tokens, TextbookCosts(0.02, 0.001), timeline=True)


def rows_for(world: Any) -> Rows:
    live = isinstance(world, LiveWorld)
    request = Request(0, len(PROMPT), LIMIT, PROMPT if live else None)
    return Rows([request], 1, keep_tokens=live)


def in_world(world: Any, body: Callable[[Rows, View], Iterator[Any]]) -> None:
    """Run `body` as a policy over one prefilled row."""

    def policy() -> Iterator[Any]:
        rows = rows_for(world)
        rows.admit()
        view = rows.view()
        prefill = Prefill(view, rows.prompts(view))
        yield world.target.submit(prefill) & world.draft.submit(prefill)
        yield from body(rows, view)

    world.run(policy())


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
        verify = either.target.submit(Verify(view, Speculation.empty(1)))
        draft = either.draft.submit(Draft(view, 2, ONES))
        yield verify | draft
        assert verify.triggered or draft.triggered
        yield verify & draft
        assert verify.triggered and draft.triggered

    in_world(either, body)


def test_answers_have_their_shapes(either: Any) -> None:
    def body(_: Rows, view: View) -> Iterator[Any]:
        drafted = yield either.draft.submit(Draft(view, 4, ONES))
        assert (drafted.lengths.tolist(), drafted.sources.tolist()) == ([4], [Source.PRIMARY])
        verify = either.target.submit(Verify(view, drafted))
        cache = yield either.draft.submit(Prespeculate(view, drafted, 4, (2,) * 5))
        verdict: Verdict = yield verify
        assert 0 <= verdict.accepted[0] <= 4
        assert verdict.emitted[0] == verdict.accepted[0] + 1
        assert not verdict.ended[0]
        hits = cache.lookup(verdict)
        taken = cache.take(verdict, hits)
        assert hits.shape == (1,) and hits.dtype == np.bool_
        assert taken.lengths.tolist() == [4 if hits[0] else 0]
        assert cache.take(verdict, ~hits & False).lengths.tolist() == [0]

    in_world(either, body)


def test_a_continuation_is_one_token_shorter_than_drafted(either: Any) -> None:
    def body(_: Rows, view: View) -> Iterator[Any]:
        nothing = Speculation.empty(1)
        cache = yield either.draft.submit(Continue(view, nothing, 3))
        verdict = yield either.target.submit(Verify(view, nothing))
        hits = cache.lookup(verdict)
        assert cache.take(verdict, hits).lengths.tolist() == [2 if hits[0] else 0]

    in_world(either, body)


def test_stop_is_harmless_where_nothing_can_be_stopped(either: Any) -> None:
    def body(_: Rows, view: View) -> Iterator[Any]:
        verify = either.target.submit(Verify(view, Speculation.empty(1)))
        verify.stop()
        verdict = yield verify
        assert verdict.emitted.tolist() == [1]
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
        assert second.lengths.tolist() == [0]

    in_world(either, body)


@pytest.mark.parametrize("policy", ["ar", "sd", "pearl", "saguaro"])
def test_every_policy_emits_all_tokens_and_counts_them_once(either: Any, policy: str) -> None:
    rows = rows_for(either)
    either.run(start(either, rows, configure(policy)))
    rounds = rows.log.rounds(0)
    assert sum(r.emitted for r in rounds) == LIMIT
    assert [r.position for r in rounds] == np.cumsum([0, *(r.emitted for r in rounds)])[:-1].tolist()
    assert all(r.emitted in {r.accepted, r.accepted + 1} and r.accepted <= r.length for r in rounds)
    if either.vocabulary:
        assert len(rows.texts[0]) == LIMIT
