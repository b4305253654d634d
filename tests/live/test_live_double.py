"""DOUBLE changes nothing but the speed: greedy texts, and decisions that replay as they were made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from live_support import InlineWorld, inline_world, new_rows, serve, texts_of
from plain_decoding import plain_decode
from tiny_models import VOCABULARY
from transformers import PreTrainedModel

from calibrate.live.handlers import double
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import collect_decisions
from hardware_profiles.datastore import Datastore
from hardware_profiles.reply_trace import Decisions
from policies.double import RetrievalDrafted, RetrievingDraft, RetrievingVerify
from policies.registry import Settings, configure, start
from policies.retrieval import Hierarchy, Index
from policies.rows import Rows
from simulator.costs import TextbookCosts
from simulator.replies import Recorded
from simulator.tokens import coin
from simulator.world import SimulatedWorld

Prompts = list[tuple[int, ...]]

SETTINGS = [
    configure("double"),
    configure("double", overlap="off"),
    configure("double", lookahead=1, retrieval_length=2, longest_suffix=1),
    configure("double", draft_retrieval="off"),
    configure("double", target_retrieval="off", rejected_cache="off"),
    configure("double", lookahead=6, retrieval_length=20),
]
HOT = configure("double", lookahead=3, temperature=0.9, seed=1)


@dataclass(frozen=True)
class Pair:
    """Both models, prompts, and what plain decoding makes of them."""

    target: PreTrainedModel
    draft: PreTrainedModel
    prompts: Prompts
    texts: list[list[int]]

    def world(self) -> InlineWorld:
        return inline_world(self.target, self.draft)


@pytest.fixture(scope="module")
def both(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: Prompts,
    plain_texts: list[list[int]],
) -> Pair:
    return Pair(target_model, draft_model, prompts, [text[:24] for text in plain_texts])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_it_emits_what_plain_decoding_emits(settings: Settings, batch: int, both: Pair) -> None:
    world = both.world()
    rows = serve(world, settings, both.prompts, limit=24, batch=batch)
    assert texts_of(rows) == both.texts
    assert check_drafts(world, rows, both.prompts, both.draft) > 50
    assert _matched(world, "target") > 0 or settings.knobs["target_retrieval"] == "off"
    assert _matched(world, "draft") > 0 or settings.knobs["draft_retrieval"] == "off"


def check_drafts(world: InlineWorld, rows: Rows, prompts: Prompts, draft: PreTrainedModel) -> int:
    """What is drafted by retrieval is what the draft alone decodes; tokens compared.

    Losslessness cannot see it, since the target rejects what is wrong.
    """
    compared = 0
    for operation, answer in world.draft.served:  # type: ignore[attr-defined]
        if not isinstance(operation, RetrievingDraft):
            continue
        view = operation.view
        for i, (slot, request, position) in enumerate(
            zip(view.slots, view.requests, view.positions, strict=True)
        ):
            reply: RetrievalDrafted = answer[slot]
            if not reply.tokens:  # the row has no room for more
                continue
            text = (*prompts[request], *rows.texts[request][:position], *operation.inputs[i].pending)
            assert list(reply.tokens) == plain_decode(draft, text, len(reply.tokens))
            compared += len(reply.tokens)
    return compared


def _matched(world: InlineWorld, device: str) -> int:
    """Retrieved tokens that a device confirmed."""
    if device == "draft":
        served = world.draft.served  # type: ignore[attr-defined]
        answers = [a for operation, a in served if isinstance(operation, RetrievingDraft)]
        return sum(sum(reply.matched) for answer in answers for reply in answer.values())
    answers = [a for operation, a in world.target.served if isinstance(operation, RetrievingVerify)]
    replies = [reply for answer in answers for reply in answer.values()]
    return sum(max(0, len(r.verdict.emitted) - r.verdict.accepted - 1) for r in replies)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_prior_makes_longer_steps_and_no_difference(batch: int, tmp_path: Path, both: Pair) -> None:
    # A prior that knows all the answers: the most that retrieval can do.
    texts = [[*prompt, *text] for prompt, text in zip(both.prompts, both.texts, strict=True)]
    Datastore.of_texts(texts, VOCABULARY).write(tmp_path / "prior")
    settings = configure("double", datastore=str(tmp_path / "prior"), longest_suffix=6)
    rows = serve(both.world(), settings, both.prompts, limit=24, batch=batch)
    assert texts_of(rows) == both.texts
    assert rows.log.table()["emitted"].mean() > 5.0


class Leaky(Hierarchy):
    """A datastore that is not flushed between requests."""

    def __init__(self, longest: int, **options: Any) -> None:
        super().__init__(longest, **options)
        self._dynamic = self._rejected = SHARED


SHARED = Index(3)


@pytest.mark.parametrize("leaky", [False, True], ids=["flushed", "not flushed"])
def test_a_request_does_not_feel_the_one_before(
    leaky: bool, monkeypatch: pytest.MonkeyPatch, both: Pair
) -> None:
    """The same prompt twice, in the same slot: the second time nothing is known of the first."""
    if leaky:
        monkeypatch.setattr(double, "Hierarchy", Leaky)
    rows = serve(both.world(), SETTINGS[0], [both.prompts[4]] * 2, limit=20)
    first, second = ([(r.position, r.emitted, r.hit) for r in rows.log.rounds(i)] for i in (0, 1))
    assert (first == second) != leaky


def decisions_of(
    world: LiveWorld, settings: Settings, prompts: Prompts, batch: int
) -> tuple[Rows, Decisions]:
    world.clear_records()
    rows = new_rows(prompts, 20, batch)
    world.run(start(world, rows, settings))
    return rows, collect_decisions(world, settings)


@pytest.mark.parametrize("settings", [SETTINGS[0], SETTINGS[1], HOT], ids=lambda s: s.label)
def test_decisions_replay_to_the_same_rounds(
    settings: Settings, world: LiveWorld, prompts: Prompts, plain_texts: list[list[int]]
) -> None:
    """From worker processes, in another batch than the replay."""
    prompts = prompts[2:7]
    live, decisions = decisions_of(world, settings, prompts, batch=3)
    if settings.temperature == 0.0:
        assert texts_of(live) == [text[:20] for text in plain_texts[2:7]]
    alone, _ = decisions_of(world, settings, prompts, batch=1)
    assert [alone.log.rounds(i) for i in range(5)] == [live.log.rounds(i) for i in range(5)]
    assert set(decisions.seconds) >= {"retrieve"}
    for batch in (1, 3):
        tokens = coin(1.0, exponent=1.0, requests=1, length=20, prompt_length=1, seed=0)
        replayed = SimulatedWorld(tokens, TextbookCosts(1.0, 0.2), rows=Recorded(decisions, 5))
        rows = new_rows(prompts, 20, batch)
        replayed.run(start(replayed, rows, settings))
        assert texts_of(rows) == texts_of(live)
        assert [rows.log.rounds(i) for i in range(5)] == [live.log.rounds(i) for i in range(5)]
