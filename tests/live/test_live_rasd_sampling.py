"""Retrieval in sampled decoding: emitted texts have the target's law, whatever is found; bugs are caught.

On tables, by the G-test of `test_live_sampling` over texts of four tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampling_support import BATCH, LENGTH, PROMPTS, VOCABULARY, fit, table_world

from calibrate.live.engine.trees import Branching
from calibrate.live.engine.verification import Candidates, TreeJudge
from calibrate.live.errors import AuditError
from calibrate.live.shared_probs import ProbsReader
from hardware_profiles.datastore import Datastore
from policies import rasd as rasd_module
from policies.rasd import RasdConfig, rasd
from policies.rest import RestConfig, rest
from policies.rows import Rows
from policies.sampling import Sampling
from policies.tokentree import ROOT, TokenTree, TreePlan, VerifyTree
from policies.values import NO_HANDLE, Request, Source

Run = Callable[[Any, Rows], Any]
Plant = Callable[[pytest.MonkeyPatch], None]

SAMPLING = Sampling(temperature=0.9, seed=2)
REST = RestConfig(shortest_match=1, retrieval_length=3, retrieval_nodes=4)
KNOBS: dict[str, Any] = {"shortest_match": 1, "retrieval_length": 3, "retrieval_nodes": 4}
GROWN = RasdConfig(**KNOBS, prune_top=2, tree_depth=2, tree_topk=2, tree_budget=3)


class DrawnConfig(RasdConfig):
    """Trees of drawn nodes, which no knob asks for."""

    plan = TreePlan("static", widths=(2, 1))


DRAWN = DrawnConfig(**KNOBS, prune_top=0, retrieval_attempts=0)
REQUESTS = 2_000


@pytest.fixture
def table_store(tmp_path: Path) -> str:
    """A datastore of random text."""
    luck = np.random.default_rng(4)
    texts = luck.integers(VOCABULARY, size=(5, 60)).tolist()
    Datastore.of_texts(texts, VOCABULARY).write(tmp_path / "random")
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
    "rest in the text": lambda _: lambda w, r: rest(w, r, REST, SAMPLING),
    "rest in a datastore": lambda store: (
        lambda w, r: rest(w, r, replace(REST, datastore=store), replace(SAMPLING, top_p=0.8))
    ),
    "rasd, chosen nodes": lambda _: lambda w, r: rasd(w, r, GROWN, SAMPLING),
    "rasd, drawn nodes, a datastore": lambda store: (
        lambda w, r: rasd(w, r, replace(DRAWN, datastore=store), SAMPLING)
    ),
    "rasd, unfused": lambda store: (
        lambda w, r: rasd(w, r, replace(DRAWN, datastore=store, fusion="off"), SAMPLING)
    ),
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
        for slot, tree in zip(operation.view.slots, operation.inputs, strict=True)
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
    correct, accept, sigma = rasd_module.pruned, TreeJudge._accept, Candidates.probs

    def pruned(tree: TokenTree, first: Any) -> TokenTree:
        kept = correct(tree, first)
        gone = {t for t, parent in zip(tree.tokens, tree.parents, strict=True) if parent == ROOT} - set(first)
        count = len(gone)
        return TokenTree(
            (*kept.tokens, *gone),
            (*kept.parents, *[ROOT] * count),
            (*kept.sources, *[int(Source.RANDOM)] * count),
            (*kept.handles, *[NO_HANDLE] * count),
        )

    def fused(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
        both = fuse(draft, retrieved)
        dead = [source == Source.RANDOM for source in both.sources]
        handles = tuple(PRUNED if d else law for d, law in zip(dead, both.handles, strict=True))
        return both._replace(handles=handles)

    def clean(candidates: Any) -> Any:
        pruned = candidates.handles == PRUNED
        handles = np.where(pruned, NO_HANDLE, candidates.handles)
        return replace(candidates, handles=handles, drawn=candidates.drawn & ~pruned)

    fuse = rasd_module.fused
    monkeypatch.setattr(rasd_module, "pruned", pruned)
    monkeypatch.setattr(rasd_module, "fused", fused)
    monkeypatch.setattr(
        TreeJudge,
        "_accept",
        lambda self, p, at, c, sibling: accept(self, p, at, clean(c), sibling) & (c.handles != PRUNED),
    )
    monkeypatch.setattr(Candidates, "probs", lambda self, device: sigma(clean(self), device))


def with_the_drafts_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retrieved node is judged by the law that the drafted node beside it was drawn from."""
    correct = rasd_module.fused

    def fused(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
        both = correct(draft, retrieved)
        handles = list(both.handles)
        for node, parent in enumerate(both.parents):
            if both.sources[node] == Source.NGRAM and both.children(parent)[0] < len(draft.tokens):
                handles[node] = handles[both.children(parent)[0]]
        return both._replace(handles=tuple(handles))

    monkeypatch.setattr(rasd_module, "fused", fused)


def with_the_drafts_law_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with_the_drafts_law(monkeypatch)
    monkeypatch.setattr(ProbsReader, "_check_owner", staticmethod(lambda *_: None))


@dataclass(frozen=True)
class Mutant:
    """A bug and a run that meets it."""

    name: str
    knobs: RasdConfig
    plant: Plant


MUTANTS = [
    Mutant("positions as before fusion", GROWN, positions_as_before),
    Mutant("a pruned candidate counts as tried", replace(GROWN, prune_top=1), pruned_but_counted),
    Mutant("the draft's law for a retrieved token", DRAWN, with_the_drafts_law_unnoticed),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, table_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    found = fit(
        sampled(lambda w, r: rasd(w, r, replace(mutant.knobs, datastore=table_store), SAMPLING)), SAMPLING
    )
    assert found.p_value < 1e-9, str(found)


def test_a_law_of_another_token_does_not_even_come_so_far(
    table_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_the_drafts_law(monkeypatch)
    with pytest.raises(AuditError, match="came with the distribution of"):
        sampled(lambda w, r: rasd(w, r, replace(DRAWN, datastore=table_store), SAMPLING), requests=500)
