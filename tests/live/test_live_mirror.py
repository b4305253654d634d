"""Mirror-SD on the live engine: rollouts, reuse, fallbacks, and the replay of what was decided."""

from __future__ import annotations

import numpy as np
import pytest
from live_support import InlineWorld, new_rows, serve, texts_of, worker_specs
from mirror_support import (
    Models,
    Prompts,
    believes_the_exit,
    check_replay,
    check_windows,
    lens_world,
    saved,
    tiny_models,
    uses_any_rollout,
    watch,
)
from plain_decoding import plain_decode_many
from tiny_models import VOCABULARY

from calibrate.live.transport.world import LiveWorld
from calibrate.reply_recorder import Recorder
from policies.mirror import EarlyVerify, Rollout
from policies.operation import Draft
from policies.registry import Settings, configure, start
from policies.values import Request

LIMIT = 20


@pytest.fixture(scope="module")
def models() -> Models:
    return tiny_models()


@pytest.fixture(scope="module")
def right(models: Models, prompts: Prompts) -> list[list[int]]:
    return plain_decode_many(models[0], prompts, LIMIT)


SETTINGS = [
    configure("mirror", lookahead=3, kappa=2),
    configure("mirror", lookahead=4, kappa=3, candidates="first", exit="3/4"),
    configure("mirror", lookahead=1, kappa=1, exit="1/4"),
    configure("mirror", lookahead=2, kappa=64, exit="3/4", overlap="off"),
    configure("mirror", lookahead=3, kappa=0),
]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_greedy_text_is_that_of_plain_decoding(
    settings: Settings,
    batch: int,
    models: Models,
    prompts: Prompts,
    right: list[list[int]],
) -> None:
    world = lens_world(models)
    rows = serve(world, settings, prompts[:4], limit=LIMIT, batch=batch)
    assert texts_of(rows) == right[:4]
    assert check_windows(world, rows, prompts, models[1]) > 5
    assert check_rollouts(world) > 5
    # One target forward per round, over the last token and the window of each row, and nothing else.
    forwards = [op for op, _ in world.target.served if isinstance(op, EarlyVerify)]
    assert len(forwards) == rows.log.batch_rounds
    assert not any(type(op).__name__ == "Verify" for op, _ in world.target.served)


def check_rollouts(world: InlineWorld) -> int:
    """Branches are those of the candidates: kappa per position, without the drafted token where it stands."""
    seen = 0
    for operation, answer in world.draft.served:
        if not isinstance(operation, Rollout):
            continue
        for slot, plan in zip(operation.view.slots, operation.inputs, strict=True):
            drafted, reply = plan.window.tokens, answer[slot]
            positions = 1 if operation.candidates == "first" else 1 + len(drafted)
            assert [len(row) for row in plan.candidates] == [min(operation.kappa, VOCABULARY)] * positions
            expected = [
                (k, token)
                for k, row in enumerate(plan.candidates)
                for token in row
                if positions == 1 or k == len(drafted) or token != drafted[k]
            ]
            assert [(branch[0], branch[1][0]) for branch in reply.branches] == expected
            assert {len(branch[1]) for branch in reply.branches} == {1 + operation.lookahead}
            trees = [("tree", len(expected))] * operation.lookahead
            assert reply.work == (("glue", 1 + len(drafted)), *trees)
            seen += 1
    return seen


def test_misses_are_drafted_anew_and_hits_are_not(models: Models, prompts: Prompts) -> None:
    world = lens_world(models)
    rows = serve(world, configure("mirror", lookahead=3, kappa=2, exit="3/4"), prompts[4:5], limit=40)
    hits = rows.log.table()["hit"].tolist()
    assert {0, 1} <= set(hits)
    anew = sum(isinstance(operation, Draft) for operation, _ in world.draft.served)
    assert anew == 1 + hits.count(0)  # the first window, and one per fallback


def test_a_perfect_exit_misses_nothing(models: Models, prompts: Prompts) -> None:
    """kappa = V: per position FF is 0; at the first one alone it is not (`mirror.prop1`)."""
    shares = {}
    for reading in ("each", "first"):
        settings = configure("mirror", lookahead=3, kappa=VOCABULARY, candidates=reading)
        log = serve(lens_world(models), settings, prompts[3:5], limit=24).log.table()
        hits = log["hit"][log["hit"] >= 0]
        shares[reading] = float(np.mean(hits == 0))
        if reading == "first":
            accepted, length = (log[name][log["hit"] >= 0] for name in ("accepted", "length"))
            # A greedy draft repeats its window below an accepted root: reused is a correction of the first
            # token, and nothing else, since after a whole window no token is left below.
            assert ((accepted == 0) == (hits == 1)).all()
            assert (length == 3).all()
    assert shares["each"] == 0.0
    assert shares["first"] > 0.2


def test_believing_the_exit_shows_in_greedy_texts(
    models: Models,
    prompts: Prompts,
    right: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    believes_the_exit(monkeypatch)
    rows = serve(lens_world(models), SETTINGS[0], prompts[:4], limit=LIMIT)
    assert texts_of(rows) != right[:4]


def test_a_stale_rollout_shows_in_windows(
    models: Models, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losslessness cannot see it."""
    uses_any_rollout(monkeypatch)
    world = lens_world(models)
    rows = serve(world, SETTINGS[0], prompts[:4], limit=LIMIT)
    with pytest.raises(AssertionError):
        check_windows(world, rows, prompts, models[1])


@pytest.fixture(scope="module")
def folders(models: Models, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return saved(models, tmp_path_factory.mktemp("mirror"))


def test_processes_mark_first_and_their_decisions_replay(
    folders: tuple[str, str], prompts: Prompts, right: list[list[int]]
) -> None:
    settings = [
        configure("mirror", lookahead=3, kappa=8),
        configure("mirror", lookahead=2, kappa=4, candidates="first", exit="3/4"),
    ]
    requests = [Request(i, len(prompt), LIMIT, prompt) for i, prompt in enumerate(prompts[:5])]
    with LiveWorld(*worker_specs(folders)) as world:
        order = watch(world)
        live = {}
        for each in settings:
            rows = new_rows(prompts[:5], LIMIT, 3)
            world.run(start(world, rows, each))
            live[each] = rows
            assert texts_of(rows) == right[:5]
        assert order == ["mark", "report"] * (len(order) // 2)
        assert len(order) == 2 * sum(rows.log.batch_rounds for rows in live.values())
        steps = [[s.name for s in t.steps] for t in world.timings() if t.operation == "earlyverify"]
        assert steps[0] == ["early:0.5", "exit", "late:0.5"]
        recorder = Recorder(world, requests, None)
        decided = {s.label: recorder.record(s, lambda *_: None) for s in settings}
    check_replay(decided, live, prompts[:5], LIMIT)
