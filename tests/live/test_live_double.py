"""DOUBLE changes nothing but the speed: greedy texts, sampled laws, and what planted bugs do to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from live_support import InlineWorld, inline_world, new_rows, serve, texts_of
from sampling_support import VOCABULARY, fit, sampled_texts
from transformers import PreTrainedModel

from calibrate.decisions import collect_decisions
from calibrate.live.errors import AuditError
from calibrate.live.executor import Executor
from calibrate.live.handlers import double, doubleguide
from calibrate.live.plain import plain_decode
from calibrate.live.world import LiveWorld
from hardware_profiles.datastore import Datastore
from hardware_profiles.decisions import Decisions
from policies.hierarchy import Hierarchy, Index
from policies.laws.retrieval import common_prefix
from policies.registry import Settings, configure, start
from policies.retrieving import Drafted, RetrievingDraft, RetrievingVerify
from policies.rows import Rows
from simulator.contents import Decided
from simulator.costs import TextbookCosts
from simulator.tokens import coin
from simulator.world import SimulatedWorld

Prompts = list[tuple[int, ...]]
Plant = Callable[[pytest.MonkeyPatch], None]

REQUESTS = 2000
SETTINGS = [
    configure("double"),
    configure("double", overlap="off"),
    configure("double", lookahead=1, retrieval_length=2, longest_suffix=1),
    configure("double", draft_retrieval="off"),
    configure("double", target_retrieval="off", rejected_cache="off"),
    configure("double", lookahead=6, retrieval_length=20),
]
CASES = [
    {"lookahead": 2, "retrieval_length": 2},
    {"lookahead": 3, "retrieval_length": 3, "longest_suffix": 1, "top_p": 0.8},
    {"lookahead": 2, "retrieval_length": 2, "overlap": "off"},
    {"lookahead": 2, "retrieval_length": 3, "draft_sampling": "greedy"},
]


def sampled(**knobs: object) -> Settings:
    return configure("double", **{"temperature": 0.9, "seed": 1, **knobs})  # type: ignore[arg-type]


def prior_in(folder: Path, texts: Sequence[Sequence[int]], vocabulary: int) -> str:
    Datastore.of_texts(texts, vocabulary).write(folder / "prior")
    return str(folder / "prior")


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


@pytest.fixture(scope="module")
def prior(tmp_path_factory: pytest.TempPathFactory) -> str:
    """In which whatever was said occurs, so that something is retrieved in every forward."""
    text = np.random.default_rng(2).integers(VOCABULARY, size=150).tolist()
    return prior_in(tmp_path_factory.mktemp("prior"), [text], VOCABULARY)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_it_emits_what_plain_decoding_emits(settings: Settings, batch: int, both: Pair) -> None:
    world = both.world()
    rows = serve(world, settings, both.prompts, limit=24, batch=batch)
    assert texts_of(rows) == both.texts
    assert check_drafts(world, rows, both.prompts, both.draft) > 50
    assert _matched(world, "target") > 0 or settings.option("target_retrieval") == "off"
    assert _matched(world, "draft") > 0 or settings.option("draft_retrieval") == "off"


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
            zip(view.slots.tolist(), view.requests.tolist(), view.positions.tolist(), strict=True)
        ):
            reply: Drafted = answer[slot]
            if not reply.tokens:  # the row has no room for more
                continue
            text = (*prompts[request], *rows.texts[request][:position], *operation.asks[i].pending)
            assert list(reply.tokens) == plain_decode(draft, text, len(reply.tokens))
            compared += len(reply.tokens)
    return compared


def _matched(world: InlineWorld, device: str) -> int:
    """Retrieved tokens that a device confirmed."""
    if device == "draft":
        served = world.draft.served  # type: ignore[attr-defined]
        answers = [a for operation, a in served if isinstance(operation, RetrievingDraft)]
        return sum(sum(reply.matched) for answer in answers for reply in answer.rows.values())
    answers = [a for operation, a in world.target.served if isinstance(operation, RetrievingVerify)]
    replies = [reply for answer in answers for reply in answer.rows.values()]
    return sum(max(0, len(r.verdict.emitted) - r.verdict.accepted - 1) for r in replies)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_prior_makes_longer_steps_and_no_difference(batch: int, tmp_path: Path, both: Pair) -> None:
    # A prior that knows all the answers: the most that retrieval can do.
    texts = [[*prompt, *text] for prompt, text in zip(both.prompts, both.texts, strict=True)]
    settings = configure("double", datastore=prior_in(tmp_path, texts, 64), longest_suffix=6)
    rows = serve(both.world(), settings, both.prompts, limit=24, batch=batch)
    assert texts_of(rows) == both.texts
    assert rows.log.table()["emitted"].mean() > 5.0


@pytest.mark.parametrize("known", [False, True], ids=["own words", "prior"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: sampled(**case).label)
def test_emitted_texts_have_the_targets_law(case: dict[str, object], known: bool, prior: str) -> None:
    """Four tokens, jointly."""
    settings = sampled(**case, datastore=prior if known else None)
    rows = sampled_texts(settings, requests=REQUESTS)
    found = fit(rows, settings.sampling)
    assert found.impossible == 0
    assert found.p_value > 1e-3, str(found)
    table = rows.log.table()
    rejected = table["accepted"] < table["length"]
    assert min(rejected.sum(), (~rejected).sum(), (table["emitted"] > 1).sum()) > 100
    assert (table["hit"] == 1).sum() > 100 or settings.option("overlap") == "off"


def guidance_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rejection the rest of the guidance is committed behind the correction (equation 6)."""
    correct = doubleguide._guidance

    def guidance(executor: Any, message: Any, ends: Any, drafts: Any, lengths: Any) -> Any:
        verdicts = correct(executor, message, ends, drafts, lengths)
        kept = {
            i: _open_after(ends[i], v.accepted + 1)
            for i, v in enumerate(verdicts)
            if v.accepted < min(len(drafts[i].tokens), len(ends[i].retrieved), len(v.emitted)) and not v.ended
        }
        return doubleguide._extended(executor, message, verdicts, kept)

    monkeypatch.setattr(doubleguide, "_guidance", guidance)


def guidance_stays_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without the audit of what the target holds."""
    guidance_stays(monkeypatch)
    monkeypatch.setattr(Executor, "rewind", lambda self, row: self.runner.rollback(row.slot, row.context - 1))


def _open_after(end: doubleguide.OpenEnd, run: int) -> doubleguide.OpenEnd:
    return doubleguide.OpenEnd(doubleguide._behind(end.row, run), end.retrieved[run:], end.laws[run:])


def judged_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the draft's token is rejected, the retrieved one has a go at the same position."""
    correct = doubleguide._guidance

    def guidance(executor: Any, message: Any, ends: Any, drafts: Any, lengths: Any) -> Any:
        verdicts = correct(executor, message, ends, drafts, lengths)
        rejected = {
            i: _open_after(ends[i], v.accepted)
            for i, v in enumerate(verdicts)
            if v.accepted < min(len(drafts[i].tokens), len(v.emitted))
        }
        cut = [
            v._replace(emitted=v.emitted[: v.accepted]) if i in rejected else v
            for i, v in enumerate(verdicts)
        ]
        return doubleguide._extended(executor, message, cut, rejected)

    monkeypatch.setattr(doubleguide, "_guidance", guidance)


def matched_by_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft confirms a retrieved token that is its first choice, and says that it drew it from q."""
    correct = double._choose

    def choose(message: Any, rows: Any, found: Any, logits: Any) -> Any:
        drawn, weights = correct(message, rows, found, logits)
        best, at = logits.argmax(dim=-1).tolist(), 0
        for ahead in found:
            matched = common_prefix(ahead, best[at:])
            drawn[at : at + matched] = ahead[:matched]
            at += len(ahead) + 1
        return drawn, weights

    monkeypatch.setattr(double, "_choose", choose)


def target_likes_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target confirms a retrieved token that is its first choice."""
    correct = doubleguide._retrieved

    def retrieved(executor: Any, message: Any, ends: Any) -> Any:
        sure = [
            end._replace(laws=torch.cat([_sharpened(end.laws[:-1], end.retrieved), end.laws[-1:]]))
            for end in ends
        ]
        return correct(executor, message, sure)

    monkeypatch.setattr(doubleguide, "_retrieved", retrieved)


def _sharpened(laws: Any, retrieved: Sequence[int]) -> Any:
    laws = laws.clone()
    for i, token in enumerate(retrieved):
        if int(laws[i].argmax()) == token:
            laws[i] = torch.nn.functional.one_hot(torch.tensor(token), laws.shape[-1]).double()
    return laws


MUTANTS: list[tuple[str, int, Plant]] = [
    ("guidance is kept after a rejection", 0, guidance_stays_unnoticed),
    ("a position is judged twice", 0, judged_twice),
    ("the draft matches by argmax", 0, matched_by_the_best),
    ("the target matches by argmax", 2, target_likes_the_best),
]


@pytest.mark.parametrize(("name", "case", "plant"), MUTANTS, ids=[name for name, *_ in MUTANTS])
def test_a_biased_mutant_is_caught(
    name: str, case: int, plant: Plant, prior: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = sampled(**CASES[case], datastore=prior)
    plant(monkeypatch)
    found = fit(sampled_texts(settings, requests=REQUESTS), settings.sampling)
    assert found.p_value < 1e-6, f"{name}: {found}"


def test_kept_guidance_does_not_even_come_so_far(prior: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a statistic: the target holds other tokens than were committed."""
    guidance_stays(monkeypatch)
    with pytest.raises(AuditError, match="tokens of a text of"):
        sampled_texts(sampled(**CASES[0], datastore=prior), requests=500)


def test_a_position_that_is_drafted_again_has_new_luck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected tokens are retrieved: they must not tell what is drafted in their place."""
    seen: dict[tuple[int, int], dict[int, float]] = {}
    correct = double.keyed_uniforms

    def spy(seed: int, stream: str, requests: Any, positions: Any, rounds: Any) -> Any:
        uniforms = correct(seed, stream, requests, positions, rounds)
        keys = zip(requests.tolist(), positions.tolist(), rounds.tolist(), uniforms.tolist(), strict=True)
        for request, position, when, uniform in keys:
            seen.setdefault((request, position), {})[when] = uniform
        return uniforms

    monkeypatch.setattr(double, "keyed_uniforms", spy)
    sampled_texts(sampled(**CASES[0]), requests=250)
    again = [draws for draws in seen.values() if len(draws) > 1]
    assert len(again) > 100
    assert all(len(set(draws.values())) == len(draws) for draws in again)


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


@pytest.mark.parametrize("settings", [SETTINGS[0], SETTINGS[1], sampled(lookahead=3)], ids=lambda s: s.label)
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
        replayed = SimulatedWorld(tokens, TextbookCosts(1.0, 0.2), contents=Decided(decisions, 5))
        rows = new_rows(prompts, 20, batch)
        replayed.run(start(replayed, rows, settings))
        assert texts_of(rows) == texts_of(live)
        assert [rows.log.rounds(i) for i in range(5)] == [live.log.rounds(i) for i in range(5)]
