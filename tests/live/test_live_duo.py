"""DuoDecoding live: identical when greedy, and replayed as it was decided."""

from __future__ import annotations

from typing import Any

import pytest
from live_support import InlineWorld, decided_replies, inline_world, serve, texts_of
from plain_decoding import plain_decode
from transformers import PreTrainedModel

from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import collect_decisions
from hardware_profiles.reply_trace import Decisions
from policies.duo import DraftSequences, VerifyPending
from policies.registry import Settings, configure, start
from policies.rows import Rows
from policies.values import Request
from simulator.costs import TextbookCosts
from simulator.replies import Recorded
from simulator.tokens import coin
from simulator.world import SimulatedWorld

Prompts = list[tuple[int, ...]]


def decided(world: InlineWorld, settings: Settings) -> Decisions:
    return Decisions(settings.label, decided_replies(world))


def replayed(decisions: Decisions, settings: Settings, prompts: Prompts, limit: int, batch: int) -> Rows:
    """The same policy in the simulated world, fed by the decisions."""
    tokens = coin(0.5, exponent=1.0, requests=1, length=4, prompt_length=5, seed=0)
    world = SimulatedWorld(tokens, TextbookCosts(1.0, 0.1), rows=Recorded(decisions, len(prompts)))
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
            zip(view.slots, view.requests, view.positions, strict=True)
        ):
            text = (*prompts[request], *rows.texts[request][:position], *operation.inputs[i])
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
    counts = {len(reply.tokens) for _, answer in drafts for reply in answer.values()}
    assert 1 in counts and max(counts) > 1
    verdicts = [a for o, a in world.target.served if isinstance(o, VerifyPending)]
    numbers = [
        reply.first_tokens.index(verdict[slot].verdict.bonus)
        for (_, answer), verdict in zip(drafts, verdicts, strict=True)
        for slot, reply in answer.items()
        if verdict[slot].verdict.bonus in reply.first_tokens
    ]
    assert 0 in numbers and max(numbers) > 0
    assert {0, 1} <= set(rows.log.table()["hit"].tolist())


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
