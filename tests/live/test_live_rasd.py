"""Retrieval, alone and fused with a drafted tree: lossless, whatever is found; bugs are caught.

Greedy decoding on tiny models; sampled decoding on tables, by the G-test of `test_live_sampling` over texts
of four tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_support import VOCABULARY, inline_world, serve, texts_of
from sampling_support import BATCH, LENGTH, PROMPTS, fit, table_world
from sampling_support import VOCABULARY as TABLE_VOCABULARY
from transformers import PreTrainedModel

from calibrate.decisions import plain
from calibrate.live.arena import LawReader
from calibrate.live.branching import Branching
from calibrate.live.errors import AuditError, ModelError
from calibrate.live.treejudge import TreeJudge
from calibrate.live.world import LiveWorld
from hardware_profiles.datastore import Datastore
from hardware_profiles.decisions import Decisions
from policies import rasd as rasd_module
from policies.knobs import SettingError
from policies.operations import NO_LAW, Request, Source
from policies.rasd import RasdKnobs, rasd
from policies.registry import Settings, configure
from policies.rest import rest
from policies.retrieval import Search
from policies.rows import Rows
from policies.sampling import Sampling
from policies.treedraft import TreePlan
from policies.trees import ROOT, TokenTree, VerifyTree
from simulator.contents import Decided
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin
from simulator.world import SimulatedWorld

Prompts = list[tuple[int, ...]]
Run = Callable[[Any, Rows], Any]
Plant = Callable[[pytest.MonkeyPatch], None]

SETTINGS = [
    configure("rest", shortest_match=1),
    configure("rest", shortest_match=1, retrieval_length=2, retrieval_nodes=3),
    configure("rasd"),
    configure("rasd", shortest_match=1, prune_top=0),
    configure("rasd", shortest_match=1, prune_top=3, fusion="off"),
    configure("rasd", shortest_match=1, tree_depth=2, tree_topk=2, tree_budget=3, retrieval_length=3),
]


@pytest.fixture
def models(
    target_model: PreTrainedModel, draft_model: PreTrainedModel
) -> tuple[PreTrainedModel, PreTrainedModel]:
    return target_model, draft_model


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_greedy_output_is_that_of_plain_decoding(
    settings: Settings,
    batch: int,
    models: tuple[PreTrainedModel, PreTrainedModel],
    prompts: Prompts,
    plain_texts: list[list[int]],
) -> None:
    rows = serve(inline_world(*models), settings, prompts[3:6], limit=30, batch=batch)
    assert texts_of(rows) == [text[:30] for text in plain_texts[3:6]]
    accepted = rows.log.table()["accepted"]
    assert min((accepted == 0).sum(), (accepted > 0).sum()) > 0


@pytest.fixture
def known_store(tmp_path: Path, plain_texts: list[list[int]]) -> str:
    """A datastore that knows two of the three continuations."""
    Datastore.of_texts(plain_texts[3:5], VOCABULARY).write(tmp_path / "known")
    return str(tmp_path / "known")


def test_a_datastore_with_the_answers_makes_rounds_long(
    known_store: str,
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: Prompts,
    plain_texts: list[list[int]],
) -> None:
    """Retrieved tokens below and beside drafted ones are accepted, past what the draft alone reaches."""
    found = {}
    for settings in (
        configure("rest", datastore=known_store),
        configure("rasd", datastore=known_store, prune_top=0),
        configure("rasd", datastore=known_store, prune_top=0, fusion="off"),
        configure("tree", tree_plan="dynamic"),
    ):
        world = inline_world(target_model, draft_model)
        rows = serve(world, settings, prompts[3:6], limit=30, batch=2)
        assert texts_of(rows) == [text[:30] for text in plain_texts[3:6]]
        found[settings.label] = rows.log.table()["accepted"]
    rest_, fused, unfused, drafted = found.values()
    assert max(rest_) == configure("rest").option("retrieval_length")
    assert fused.mean() > drafted.mean()
    assert fused.tolist() == unfused.tolist()  # fusion saves tokens and changes no outcome


def test_processes_emit_what_plain_decoding_emits(
    known_store: str, world: LiveWorld, prompts: Prompts, plain_texts: list[list[int]]
) -> None:
    for policy in ("rest", "rasd"):
        rows = serve(world, configure(policy, datastore=known_store), prompts[3:6], limit=16, batch=2)
        assert texts_of(rows) == [text[:16] for text in plain_texts[3:6]]
    searches = [timing for timing in world.timings() if timing.operation == "retrievetree"]
    assert {step.tokens for timing in searches for step in timing.steps} == {0}
    assert {timing.device for timing in searches} == {"target", "draft"}


@pytest.mark.parametrize("policy", ["rest", "rasd"])
def test_a_run_replays_as_it_was_decided(
    policy: str,
    known_store: str,
    models: tuple[PreTrainedModel, PreTrainedModel],
    prompts: Prompts,
) -> None:
    """Neither the batch nor the world changes a decision; the file keeps them all; its search takes time."""
    settings, some = configure(policy, datastore=known_store), prompts[3:6]
    runs = {}
    for batch in (1, 2):
        world = inline_world(*models)
        rows = serve(world, settings, some, limit=20, batch=batch)
        runs[batch] = rows, _decided(world, settings)
    assert runs[1][1] == runs[2][1]
    costs, at = TextbookCosts(1.0, 0.1), {}
    for batch in (1, 2, 3):
        tokens = coin(0.5, exponent=1.0, requests=1, length=4, prompt_length=5, seed=0)
        simulated = SimulatedWorld(tokens, costs, contents=Decided(runs[2][1], len(some)))
        again = serve(simulated, settings, some, limit=20, batch=batch)
        assert texts_of(again) == texts_of(runs[1][0])
        for request in range(len(some)):
            assert again.log.rounds(request) == runs[1][0].log.rounds(request)
        at[batch] = simulated.now
    # Each round: a forward of the target, the search, and of `rasd` one of five forwards of the draft.
    round_s = 1.0 + SEARCH_S + (0.5 if policy == "rasd" else 0.0)
    assert at[1] == pytest.approx(round_s * len(runs[1][0].log.ends))


SEARCH_S = 0.25


def _decided(world: Any, settings: Settings) -> Decisions:
    """What `calibrate.decisions` collects of a live world, as a file keeps it."""
    replies = {
        key: json.loads(json.dumps(plain(answer[slot])))
        for device in (world.target, world.draft)
        for operation, answer in device.served
        if hasattr(operation, "moments")
        for key, slot in zip(operation.moments(), operation.view.slots.tolist(), strict=True)
    }
    return Decisions(settings.label, replies, seconds={"retrieve": SEARCH_S})


@pytest.mark.parametrize("policy", ["rest", "rasd"])
def test_coins_cannot_stand_in_for_a_text(policy: str) -> None:
    scenario = Scenario(
        coin(0.5, exponent=1.0, requests=1, length=4, prompt_length=5, seed=0),
        textbook=TextbookCosts(1.0, 0.1),
    )
    with pytest.raises(SettingError, match=f"policy '{policy}' looks words up"):
        simulate(scenario, configure(policy))


def test_retrieval_is_a_step_that_feeds_nothing(
    known_store: str, target_model: PreTrainedModel, draft_model: PreTrainedModel, prompts: Prompts
) -> None:
    world = inline_world(target_model, draft_model)
    serve(world, configure("rasd", datastore=known_store), prompts[3:4], limit=4)
    (step,) = world.draft.executor.steps
    assert (step.name, step.tokens, step.rows) == ("retrieve", 0, 1)


def test_a_datastore_of_another_tokenizer_is_refused(
    tmp_path: Path, target_model: PreTrainedModel, draft_model: PreTrainedModel, prompts: Prompts
) -> None:
    Datastore.of_texts([(1,)], VOCABULARY + 1).write(tmp_path / "other")
    settings = configure("rest", datastore=str(tmp_path / "other"))
    with pytest.raises(ModelError, match="own tokenizer"):
        serve(inline_world(target_model, draft_model), settings, prompts[3:4])


SAMPLING = Sampling(temperature=0.9, seed=2)
SEARCH = Search(shortest=1, span=3, nodes=4)
GROWN = RasdKnobs(
    TreePlan("dynamic", depth=2, topk=2, budget=3), search=SEARCH, prune_top=2, sampling=SAMPLING
)
DRAWN = replace(GROWN, plan=TreePlan("static", widths=(2, 1)), prune_top=0, attempts=0)
REQUESTS = 2_000


@pytest.fixture
def table_store(tmp_path: Path) -> str:
    """A datastore of random text."""
    luck = np.random.default_rng(4)
    texts = luck.integers(TABLE_VOCABULARY, size=(5, 60)).tolist()
    Datastore.of_texts(texts, TABLE_VOCABULARY).write(tmp_path / "random")
    return str(tmp_path / "random")


def sampled(run: Run, requests: int = REQUESTS) -> Rows:
    """Many requests, served by one run on tables."""
    world = table_world()
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(requests)]
    queue = [Request(i, len(prompt), LENGTH, prompt) for i, prompt in enumerate(prompts)]
    rows = Rows(queue, BATCH, keep_tokens=True)
    world.run(run(world, rows))
    rows.log.served = world.target.served  # type: ignore[attr-defined]
    return rows


CASES: dict[str, Callable[[str], Run]] = {
    "rest in the text": lambda _: lambda w, r: rest(w, r, search=SEARCH, sampling=SAMPLING),
    "rest in a datastore": lambda store: (
        lambda w, r: rest(w, r, datastore=store, search=SEARCH, sampling=replace(SAMPLING, top_p=0.8))
    ),
    "rasd, chosen nodes": lambda _: lambda w, r: rasd(w, r, GROWN),
    "rasd, drawn nodes, a datastore": lambda store: lambda w, r: rasd(w, r, replace(DRAWN, datastore=store)),
    "rasd, unfused": lambda store: lambda w, r: rasd(w, r, replace(DRAWN, datastore=store, fusion=False)),
}


@pytest.mark.parametrize("case", CASES)
def test_emitted_texts_have_the_targets_law(case: str, table_store: str) -> None:
    rows = sampled(CASES[case](table_store))
    sampling = replace(SAMPLING, top_p=0.8) if case == "rest in a datastore" else SAMPLING
    found = fit(rows, sampling)
    assert found.impossible == 0
    assert found.p_value > 1e-3, str(found)
    table = rows.log.table()
    often = 30
    assert min((table["accepted"] == n).sum() for n in (0, 1, 2)) > often
    assert _accepted(rows, Source.NGRAM) > often
    assert (_accepted(rows, Source.PRIMARY) > often) == case.startswith("rasd")


def _accepted(rows: Rows, source: Source) -> int:
    """Nodes of a source on accepted paths."""
    served = rows.log.served  # type: ignore[attr-defined]
    return sum(
        tree.sources[node] == source
        for operation, answers in served
        if isinstance(operation, VerifyTree)
        for slot, tree in zip(operation.view.slots.tolist(), operation.asks, strict=True)
        for node in answers[slot].path
    )


def positions_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """After fusion, retrieved nodes have the positions that they had as the draft's next ones in line."""
    correct = Branching._sight

    def sight(self: Branching, firsts: Any, counts: Any) -> Any:
        _, hidden = correct(self, firsts, counts)
        columns = np.array(self._trunks)[:, None] + np.array(firsts)[:, None] + np.arange(max(counts))
        return columns, hidden

    monkeypatch.setattr(Branching, "_sight", sight)


PRUNED = -2
"""Law of a node that the mutant below remembers of a pruned branch."""


def pruned_but_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates that were pruned are not tried, yet leave a residual as if they had failed."""
    correct, accept, sigma = rasd_module.pruned, TreeJudge._accept, TreeJudge._sigma

    def pruned(tree: TokenTree, first: Any) -> TokenTree:
        kept = correct(tree, first)
        gone = {t for t, parent in zip(tree.tokens, tree.parents, strict=True) if parent == ROOT} - set(first)
        count = len(gone)
        return TokenTree(
            (*kept.tokens, *gone),
            (*kept.parents, *[ROOT] * count),
            (*kept.sources, *[int(Source.RANDOM)] * count),
            (*kept.laws, *[NO_LAW] * count),
        )

    def fused(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
        both = fuse(draft, retrieved)
        dead = [source == Source.RANDOM for source in both.sources]
        laws = tuple(PRUNED if d else law for d, law in zip(dead, both.laws, strict=True))
        return both._replace(laws=laws)

    def clean(candidates: Any) -> Any:
        return replace(candidates, laws=np.where(candidates.laws == PRUNED, NO_LAW, candidates.laws))

    fuse = rasd_module.fused
    monkeypatch.setattr(rasd_module, "pruned", pruned)
    monkeypatch.setattr(rasd_module, "fused", fused)
    monkeypatch.setattr(
        TreeJudge,
        "_accept",
        lambda self, p, at, c, sibling: accept(self, p, at, clean(c), sibling) & (c.laws != PRUNED),
    )
    monkeypatch.setattr(TreeJudge, "_sigma", lambda self, c, p: sigma(self, clean(c), p))


def with_the_drafts_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retrieved node is judged by the law that the drafted node beside it was drawn from."""
    correct = rasd_module.fused

    def fused(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
        both = correct(draft, retrieved)
        laws = list(both.laws)
        for node, parent in enumerate(both.parents):
            if both.sources[node] == Source.NGRAM and both.children(parent)[0] < len(draft.tokens):
                laws[node] = laws[both.children(parent)[0]]
        return both._replace(laws=tuple(laws))

    monkeypatch.setattr(rasd_module, "fused", fused)


def with_the_drafts_law_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with_the_drafts_law(monkeypatch)
    monkeypatch.setattr(LawReader, "_check_owner", staticmethod(lambda *_: None))


@dataclass(frozen=True)
class Mutant:
    """A bug and a run that meets it."""

    name: str
    knobs: RasdKnobs
    plant: Plant


MUTANTS = [
    Mutant("positions as before fusion", GROWN, positions_as_before),
    Mutant("a pruned candidate counts as tried", replace(GROWN, prune_top=1), pruned_but_counted),
    Mutant("the draft's law for a retrieved token", DRAWN, with_the_drafts_law_unnoticed),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, table_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    found = fit(sampled(lambda w, r: rasd(w, r, replace(mutant.knobs, datastore=table_store))), SAMPLING)
    assert found.p_value < 1e-9, str(found)


def test_a_law_of_another_token_does_not_even_come_so_far(
    table_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_the_drafts_law(monkeypatch)
    with pytest.raises(AuditError, match="came with the law of"):
        sampled(lambda w, r: rasd(w, r, replace(DRAWN, datastore=table_store)), requests=500)
