"""DuoDecoding live: identical when greedy, lossless when sampled, and replayed as it was decided."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from live_support import InlineWorld, inline_world, serve, texts_of
from sampling_support import BATCH, LENGTH, PROMPTS, VOCABULARY, TableRunner, fit, tables
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.decisions import collect_decisions, plain
from calibrate.live import executor as executor_module
from calibrate.live.choice import ACCEPTED, BONUS, draw, law
from calibrate.live.handlers import duo as handler
from calibrate.live.plain import plain_decode
from calibrate.live.world import LiveWorld
from hardware_profiles.decisions import Decisions
from policies.duo import NO_SEQUENCE, DraftSequences, SettleSequences, VerifyPending
from policies.operations import Request
from policies.randomness import keyed_uniforms
from policies.registry import Settings, configure, start
from policies.rows import Rows
from simulator.contents import Decided
from simulator.costs import TextbookCosts
from simulator.tokens import coin
from simulator.world import SimulatedWorld

ALPHA, HOPELESS = 1e-3, 1e-12
REQUESTS = 4_000
Prompts = list[tuple[int, ...]]


def decided(world: InlineWorld, settings: Settings) -> Decisions:
    """What `calibrate.decisions` collects of a live world."""
    replies = {
        key: plain(answer[slot])
        for device in (world.target, world.draft)
        for operation, answer in device.served
        if hasattr(operation, "moments")
        for key, slot in zip(operation.moments(), operation.view.slots.tolist(), strict=True)
    }
    return Decisions(settings.label, replies)


def replayed(decisions: Decisions, settings: Settings, prompts: Prompts, limit: int, batch: int) -> Rows:
    """The same policy in the simulated world, fed by the decisions."""
    tokens = coin(0.5, exponent=1.0, requests=1, length=4, prompt_length=5, seed=0)
    world = SimulatedWorld(tokens, TextbookCosts(1.0, 0.1), contents=Decided(decisions, len(prompts)))
    rows = Rows([Request(i, len(p), limit, p) for i, p in enumerate(prompts)], batch, keep_tokens=True)
    world.run(start(world, rows, settings))
    return rows


GREEDY = [
    configure("duo", lookahead=k, sequences=s)
    for k, s in ((1, "dynamic"), (2, "dynamic"), (4, "dynamic"), (9, "dynamic"), (4, "1"), (8, "2"), (7, "3"))
]


@pytest.mark.parametrize("settings", GREEDY, ids=lambda settings: settings.label)
def test_greedy_texts_are_those_of_plain_decoding(
    settings: Settings,
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: Prompts,
    plain_texts: list[list[int]],
) -> None:
    """Alone and in a batch, which changes no decision; and both replay to the same rounds in any batch."""
    some, limit = prompts[2:7], 20
    runs = {}
    for batch in (1, 3):
        world = inline_world(target_model, draft_model)
        rows = serve(world, settings, some, limit=limit, batch=batch)
        assert texts_of(rows) == [text[:limit] for text in plain_texts[2:7]]
        runs[batch] = (rows, decided(world, settings))
        _check_sequences(world, rows, some, draft_model)
    assert runs[1][1] == runs[3][1]
    for batch in (1, 2, 5):
        again = replayed(runs[3][1], settings, some, limit, batch)
        assert texts_of(again) == texts_of(runs[1][0])
        for request in range(len(some)):
            assert again.log.rounds(request) == runs[1][0].log.rounds(request)


def _check_sequences(world: InlineWorld, rows: Rows, prompts: Prompts, draft: PreTrainedModel) -> None:
    """Every sequence is what the draft alone writes after its first token, of which no two are alike.

    Losslessness cannot see a wrong branch: the target rejects what is wrong, and only speed suffers.
    """
    seen = 0
    for operation, answer in world.draft.served:
        if not isinstance(operation, DraftSequences) or seen > 40:
            continue
        view = operation.view
        for i, (slot, request, position) in enumerate(
            zip(view.slots.tolist(), view.requests.tolist(), view.positions.tolist(), strict=True)
        ):
            text = (*prompts[request], *rows.texts[request][:position], *operation.asks[i])
            sequences = answer[slot].tokens
            assert sequences[0] == tuple(plain_decode(draft, text, len(sequences[0])))
            for first, *rest in sequences[1:]:
                assert rest == (plain_decode(draft, (*text, first), len(rest)) if rest else [])
            assert len({sequence[0] for sequence in sequences}) == len(sequences)
            assert sum(map(len, sequences)) <= operation.lookahead
            seen += 1
    assert seen


def test_the_draft_doubts_sometimes(
    target_model: PreTrainedModel, draft_model: PreTrainedModel, prompts: Prompts
) -> None:
    """Else the runs above would say little: one and several sequences, and others than the first go on."""
    world = inline_world(target_model, draft_model)
    rows = serve(world, configure("duo", lookahead=6), prompts[2:7], limit=40, batch=2)
    drafts = [(o, a) for o, a in world.draft.served if isinstance(o, DraftSequences)]
    counts = {len(reply.tokens) for _, answer in drafts for reply in answer.rows.values()}
    assert 1 in counts and max(counts) > 1
    verdicts = [a for o, a in world.target.served if isinstance(o, VerifyPending)]
    numbers = [
        reply.first_tokens.index(verdict.rows[slot].verdict.bonus)
        for (_, answer), verdict in zip(drafts, verdicts, strict=True)
        for slot, reply in answer.rows.items()
        if verdict.rows[slot].verdict.bonus in reply.first_tokens
    ]
    assert 0 in numbers and max(numbers) > 0
    assert {0, 1} <= set(rows.log.table()["hit"].tolist())


def sampled_texts(settings: Settings, requests: int = REQUESTS) -> tuple[Rows, InlineWorld]:
    """Many requests on models that are tables (see `sampling_support`)."""
    target, draft = tables()
    runners: list[Any] = [TableRunner(target), TableRunner(draft)]
    world = InlineWorld(*runners, vocabulary=VOCABULARY, law_bytes=1 << 26)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(requests)]
    rows = Rows([Request(i, len(p), LENGTH, p) for i, p in enumerate(prompts)], BATCH, keep_tokens=True)
    world.run(start(world, rows, settings))
    return rows, world


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_processes_decide_what_one_process_decides(
    world: LiveWorld,
    temperature: float,
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: Prompts,
) -> None:
    """Laws and asks cross the process boundary unharmed; neither batch nor slot changes a decision."""
    settings = configure("duo", lookahead=6, temperature=temperature)
    inline = inline_world(target_model, draft_model)
    alone = serve(inline, settings, prompts[3:7], limit=24)
    apart = serve(world, settings, prompts[3:7], limit=24, batch=3)
    assert texts_of(apart) == texts_of(alone)
    found = _without_handles(collect_decisions(world, settings))
    assert found == _without_handles(decided(inline, settings))
    again = replayed(collect_decisions(world, settings), settings, prompts[3:7], 24, 2)
    assert texts_of(again) == texts_of(alone)


def _without_handles(decisions: Decisions) -> dict[Any, Any]:
    """Replies less the places in memory of laws, which depend on what was served before."""
    return {
        key: [reply[0], reply[3]] if key[0] == DraftSequences.kind else reply
        for key, reply in decisions.replies.items()
    }


SAMPLED = [
    {"lookahead": 1},
    {"lookahead": 3, "sequences": "1"},
    {"lookahead": 4, "sequences": "2"},
    {"lookahead": 7, "sequences": "3", "top_p": 0.8},
    {"lookahead": 7},
    {"lookahead": 7, "draft_sampling": "greedy"},
    {"lookahead": 5, "sequences": "3", "draft_sampling": "greedy", "top_p": 0.8},
]


def settings_of(case: dict[str, Any]) -> Settings:
    return configure("duo", **{"temperature": 0.9, "seed": 1, **case})


@pytest.mark.parametrize("case", SAMPLED, ids=lambda case: settings_of(case).label)
def test_sampled_texts_have_the_targets_law(case: dict[str, Any]) -> None:
    """All four tokens jointly: a G-test against the exact law (see `test_live_sampling`)."""
    settings = settings_of(case)
    rows, _ = sampled_texts(settings)
    found = fit(rows, settings.sampling)
    assert found.impossible == 0
    assert found.p_value > ALPHA, str(found)
    table = rows.log.table()
    assert min((table["hit"] == hit).sum() for hit in (0, 1)) > 100
    if case["lookahead"] > 1:
        assert (table["accepted"] > 0).sum() > 100
        assert (table["accepted"] < table["length"]).sum() > 100


def test_every_candidate_is_accepted_as_often_as_the_law_says() -> None:
    """Shares of the sequences that go on, against `policies.laws` at one position, the first of all texts."""
    settings = settings_of({"lookahead": 4, "sequences": "3"})
    rows, world = sampled_texts(settings)
    target, draft = (law(table[1, 2], settings.sampling).numpy() for table in tables())
    seen = [
        reply.sequence
        for operation, answer in world.target.served
        if isinstance(operation, SettleSequences)
        for slot, at in zip(operation.view.slots.tolist(), operation.view.positions.tolist(), strict=True)
        if at == 0
        for reply in [answer[slot]]
    ]
    # First a token s of q, accepted with min(1, p / q); then the two likeliest others, by what is left of p.
    ranked = np.argsort(-draft)
    expected = np.zeros(4)
    expected[0] = np.minimum(target, draft).sum()
    left = np.maximum(target - draft, 0.0)
    rejected = np.maximum(draft - target, 0.0)
    for s in range(VOCABULARY):
        others = [token for token in ranked if token != s][:2]
        # Given a rejection, which token was rejected says nothing of the residual.
        expected[1:3] += rejected[s] / rejected.sum() * left[others]
    expected[3] = 1.0 - expected.sum()
    counts = np.bincount(np.where(np.array(seen) == NO_SEQUENCE, 3, seen), minlength=4)
    assert len(seen) == counts.sum() == len(rows.texts)
    error = np.sqrt(len(seen) * expected * (1.0 - expected))
    assert np.abs(counts - len(seen) * expected).max() < 4.0 * error.max()
    assert counts.min() > 20


def final_residual(executor: Any, p: Tensor, rows: Any, asks: Any, seed: int) -> tuple[list[int], list[int]]:
    """Every candidate by the target's own p; one residual, of the last candidate, at the end."""
    numbers, tokens = [], []
    for i, (row, ask) in enumerate(zip(rows, asks, strict=True)):
        chosen, last = NO_SEQUENCE, p[i]
        for number, token in enumerate(ask.tokens):
            handles = np.array([ask.law if number == 0 else -1])
            keys = (np.array([row.request]), np.array([row.position]))
            sigma = handler._laws_of(executor, handles, np.array([token]), keys, p.shape[-1])[0]
            uniform = keyed_uniforms(seed, ACCEPTED, row.request, row.position, number)
            if uniform * sigma[token] < float(p[i, token]):
                chosen = number
                break
            last = (p[i] - torch.from_numpy(sigma)).clamp(min=0.0)
        uniform = keyed_uniforms(seed, BONUS, np.array([row.request]), np.array([row.position]))
        numbers.append(chosen)
        tokens.append(ask.tokens[chosen] if chosen != NO_SEQUENCE else int(draw(last[None], uniform)[0]))
    return numbers, tokens


def decided_twice(executor: Any, p: Tensor, rows: Any, asks: Any, seed: int) -> tuple[list[int], list[int]]:
    """Where no candidate passes, the position is decided again, by p."""
    numbers, tokens = handler.try_candidates(executor, p, rows, asks, seed)
    requests = np.array([row.request for row in rows])
    positions = np.array([row.position for row in rows])
    anew = draw(p, keyed_uniforms(seed, "again", requests, positions)).tolist()
    return numbers, [t if n != NO_SEQUENCE else a for n, t, a in zip(numbers, tokens, anew, strict=True)]


def no_residual(p: Tensor, sigma: Tensor) -> Tensor:
    return p


def shared_luck(seed: int, stream: str, *key: Any) -> Any:
    """All candidates of a position meet one uniform."""
    return keyed_uniforms(seed, stream, *key[:2])


@pytest.fixture
def planted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    original = handler.try_candidates
    if name in {"single final residual", "decided twice"}:
        wrong = final_residual if name == "single final residual" else decided_twice

        def settle(executor: Any, message: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(handler, "try_candidates", _inside(wrong, original, patch))
                return handler.settle_sequences(executor, message)

        monkeypatch.setattr(executor_module, "handler_of", _routed({"settlesequences": settle}))
    elif name == "no residual":
        monkeypatch.setattr(handler, "residual", no_residual)
    else:
        assert name == "one luck for all candidates"
        monkeypatch.setattr(handler, "keyed_uniforms", shared_luck)
    return name


def _inside(wrong: Any, original: Any, patch: pytest.MonkeyPatch) -> Any:
    """`wrong` with the correct function in its place while it runs, since it may call it."""

    def call(*args: Any) -> Any:
        patch.setattr(handler, "try_candidates", original)
        return wrong(*args)

    return call


def _routed(routes: dict[str, Any]) -> Any:
    from calibrate.live.handlers import handler_of

    return lambda kind: routes.get(kind) or handler_of(kind)


CASE = {"lookahead": 4, "sequences": "2", "seed": 2}


@pytest.mark.parametrize(
    "planted",
    [
        "single final residual",
        "decided twice",
        "no residual",
        "one luck for all candidates",
    ],
    indirect=True,
)
def test_a_planted_bug_is_caught(planted: str) -> None:
    settings = settings_of(CASE)
    rows, _ = sampled_texts(settings)
    found = fit(rows, settings.sampling)
    assert found.p_value < HOPELESS, f"{planted}: {found}"


def test_without_a_bug_the_same_run_passes() -> None:
    settings = settings_of(CASE)
    rows, _ = sampled_texts(settings)
    assert fit(rows, settings.sampling).p_value > ALPHA
