"""Sampled trees are lossless: what is emitted has the target's law, all tokens jointly; bugs are caught.

The tests are those of chains (`test_live_sampling`, `test_live_sampling_mutants`): a G-test of thousands of
texts of four tokens against the exact law.  The table that stands in for a model looks at the mask and the
positions that it is given, so that a wrong one of either changes what it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from live_support import inline_world, serve, texts_of
from sampling_support import fit, sampled_texts
from transformers import PreTrainedModel

from calibrate.live.engine import sampling, verification
from calibrate.live.engine.sampling import ACCEPTED, DRAFTED
from calibrate.live.engine.trees import Branching
from calibrate.live.engine.verification import Candidates, TreeJudge
from calibrate.live.errors import AuditError
from calibrate.live.shared_probs import ProbsReader
from policies.registry import Settings, configure
from policies.tokentree import ROOT

ALPHA = 1e-3
HOPELESS = 1e-12
Plant = Callable[[pytest.MonkeyPatch], None]


def tree(**knobs: Any) -> Settings:
    return configure("tree", **{"temperature": 0.9, "seed": 2, **knobs})


DRAWN = tree(tree_widths=(2, 2))
WIDE = tree(tree_widths=(4, 1))
BEST = tree(tree_widths=(2, 2), draft_sampling="greedy")
GROWN = tree(tree_plan="dynamic", tree_depth=3, tree_topk=2, tree_budget=5, draft_sampling="greedy")
TOP_P = tree(tree_widths=(3, 2), top_p=0.7)


@pytest.mark.parametrize("settings", [DRAWN, WIDE, BEST, GROWN, TOP_P], ids=lambda settings: settings.label)
def test_emitted_texts_have_the_targets_law(settings: Settings) -> None:
    rows = sampled_texts(settings)
    found = fit(rows, settings.sampling)
    assert found.impossible == 0
    assert found.p_value > ALPHA, str(found)
    table = rows.log.table()
    assert min((table["accepted"] == n).sum() for n in (0, 1, 2)) > 100


def all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate is judged by p itself, and what the last one leaves of p is what is drawn from."""
    correct = TreeJudge._level

    def level(self: TreeJudge, p: torch.Tensor, going: Any, families: Any, depth: int) -> Any:
        whole, chosen = p.clone(), np.full(len(going), ROOT)
        for sibling in range(max(map(len, families))):
            left = whole.clone()
            alone = [family[sibling : sibling + 1] for family in families]
            chosen = np.where(chosen == ROOT, correct(self, left, going, alone, depth), chosen)
            tried = torch.tensor([sibling < len(family) for family in families])
            p[tried] = left[tried]
        return chosen

    monkeypatch.setattr(TreeJudge, "_level", level)


def siblings_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain causal mask over the nodes."""
    correct = Branching._sight

    def sight(self: Branching, firsts: Sequence[int], counts: Sequence[int]) -> Any:
        positions, hidden = correct(self, firsts, counts)
        columns = np.array(self._trunks)[:, None] + np.array(firsts)[:, None] + np.arange(max(counts))
        return positions, np.arange(hidden.shape[-1]) > columns[..., None]

    monkeypatch.setattr(Branching, "_sight", sight)


def positions_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node has the position of the column that it is kept in."""
    correct = Branching._sight

    def sight(self: Branching, firsts: Sequence[int], counts: Sequence[int]) -> Any:
        _, hidden = correct(self, firsts, counts)
        columns = np.array(self._trunks)[:, None] + np.array(firsts)[:, None] + np.arange(max(counts))
        return columns, hidden

    monkeypatch.setattr(Branching, "_sight", sight)


def likes_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate is accepted if and only if it is the target's first sampling; else p is drawn from."""
    monkeypatch.setattr(verification, "residual", lambda p, sigma: p)
    monkeypatch.setattr(
        TreeJudge,
        "_accept",
        lambda self, p, at, candidates, sibling: p[at].argmax(dim=-1).numpy() == candidates.tokens,
    )


def law_forgotten(what: str) -> Plant:
    """A drawn candidate is taken for a chosen one by one of acceptance and residual alone."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        if what == "acceptance":
            monkeypatch.setattr(ProbsReader, "masses", lambda self, handles, *rest: np.ones(len(handles)))
        else:
            monkeypatch.setattr(
                Candidates,
                "probs",
                lambda self, _: sampling.one_hot(torch.from_numpy(self.tokens), self.vocabulary),
            )

    return plant


def patched(module: Any, name: str, value: Any) -> Plant:
    return lambda monkeypatch: monkeypatch.setattr(module, name, value)


def one_luck_for_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = TreeJudge._accept
    monkeypatch.setattr(
        TreeJudge, "_accept", lambda self, p, at, found, sibling: correct(self, p, at, found, 0)
    )


@dataclass(frozen=True)
class Mutant:
    """A bug, a run that meets it, and how many texts it takes to see it beyond doubt."""

    name: str
    settings: Settings
    plant: Plant
    requests: int = 3_000


MUTANTS = [
    Mutant("one residual at the end instead of one per failed candidate", WIDE, all_at_once, 8_000),
    Mutant("one residual at the end, chosen candidates", BEST, all_at_once),
    Mutant("siblings see each other", BEST, siblings_see_each_other),
    Mutant("positions by column", BEST, positions_by_column),
    Mutant("accepted if the argmax", DRAWN, likes_the_best),
    Mutant("q forgotten in the acceptance", DRAWN, law_forgotten("acceptance")),
    Mutant("q forgotten in the residual", DRAWN, law_forgotten("residual")),
    Mutant("no residual", BEST, patched(verification, "residual", lambda p, sigma: p)),
    Mutant("one luck for all siblings", BEST, one_luck_for_siblings),
    Mutant("one luck drafts and accepts", DRAWN, patched(verification, "ACCEPTED", DRAFTED)),
    Mutant("one luck accepts and corrects", DRAWN, patched(verification, "BONUS", ACCEPTED)),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_does_not(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    found = fit(sampled_texts(mutant.settings, requests=mutant.requests), mutant.settings.sampling)
    assert found.p_value < HOPELESS, str(found)


def chain_and_tree(**knobs: Any) -> tuple[Settings, Settings]:
    chain = configure("sd", lookahead=3, temperature=0.9, seed=4, **knobs)
    return chain, tree(tree_widths=(1, 1, 1), seed=4, **knobs)


@pytest.mark.parametrize("knobs", [{}, {"top_p": 0.8}, {"draft_sampling": "greedy"}], ids=str)
def test_a_tree_without_forks_is_a_chain(
    knobs: dict[str, Any], target_model: PreTrainedModel, draft_model: PreTrainedModel
) -> None:
    """Token by token and round by round: the same luck decides."""
    prompts = [(3, 1, 4), (1, 5, 9, 2, 6), (5,)]
    chain, forkless = (
        serve(inline_world(target_model, draft_model), settings, prompts, limit=24, batch=2)
        for settings in chain_and_tree(**knobs)
    )
    assert texts_of(forkless) == texts_of(chain)
    tables = [rows.log.table() for rows in (chain, forkless)]
    assert tables[0]["accepted"].tolist() == tables[1]["accepted"].tolist()


def test_a_law_of_another_token_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle knows whose law it is."""
    correct = TreeJudge.judge

    def shifted(self: TreeJudge, logits: torch.Tensor) -> Any:
        self.trees = [each._replace(handles=(each.handles[-1], *each.handles[:-1])) for each in self.trees]
        return correct(self, logits)

    monkeypatch.setattr(TreeJudge, "judge", shifted)
    with pytest.raises(AuditError, match="came with the distribution of"):
        sampled_texts(DRAWN, requests=500)


@pytest.mark.parametrize("settings", [DRAWN, GROWN], ids=lambda settings: settings.label)
def test_neither_batch_nor_slot_changes_a_requests_luck(
    settings: Settings, target_model: PreTrainedModel, draft_model: PreTrainedModel
) -> None:
    prompts = [(3, 1, 4), (1, 5, 9, 2, 6), (5,), (2, 7)]
    apart, together = (
        texts_of(serve(inline_world(target_model, draft_model), settings, prompts, limit=16, batch=batch))
        for batch in (1, 3)
    )
    assert together == apart
    assert len(set(map(tuple, apart))) == 4
