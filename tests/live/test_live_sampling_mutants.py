"""Planted bugs of sampled decoding: each is caught by a test that the correct engine passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from sampling_support import fit, sampled_texts
from torch import Tensor

from calibrate.live.engine import sampling, verification
from calibrate.live.engine.sampling import ACCEPTED, DRAFTED, DraftSampler, draw
from calibrate.live.engine.verification import Candidates
from calibrate.live.errors import AuditError
from calibrate.live.handlers import chains
from calibrate.live.shared_probs import ProbsReader
from policies.registry import Settings, configure
from policies.sampling import Sampling, keyed_uniforms

Plant = Callable[[pytest.MonkeyPatch], None]

SD = configure("sd", lookahead=2, temperature=0.9, seed=2)
TOP_P = configure("sd", lookahead=2, temperature=0.9, top_p=0.7, seed=2)
PEARL = configure("pearl", lookahead=2, temperature=0.9, seed=2)
SAGUARO = configure("saguaro", lookahead=2, fanout=(1,), temperature=0.9, scale=0.3, seed=2)
RANDOM = configure("saguaro", lookahead=2, fanout=(1,), temperature=0.9, backup="random", seed=2)


def patched(module: Any, name: str, value: Any) -> Plant:
    return lambda monkeypatch: monkeypatch.setattr(module, name, value)


class Split(DraftSampler):
    """Draws from one law and keeps another."""

    drawn: Callable[[Split, Tensor], Tensor]
    kept: Callable[[Split, Tensor], Tensor]

    def choose(self, logits: Tensor) -> Tensor:
        drawn, kept = type(self).drawn(self, logits), type(self).kept(self, logits)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampling, "drafted_weights", lambda *_: kept)
            patch.setattr(sampling, "draw", lambda _, uniforms: draw(drawn, uniforms))
            return super().choose(logits)

    def plain(self, logits: Tensor) -> Tensor:
        return sampling.token_probs(logits, self.sampling)

    def uncut(self, logits: Tensor) -> Tensor:
        return sampling.token_probs(logits, replace(self.sampling, top_p=1.0))

    def first_choice(self, logits: Tensor) -> Tensor:
        return sampling.token_probs(logits, Sampling())

    def scaled(self, logits: Tensor) -> Tensor:
        assert self.shape is not None
        return sampling.rescale(self.plain(logits), logits, self.shape[self.steps], self.sampling.scale)


def split(drawn: Any, kept: Any) -> Plant:
    return patched(chains, "DraftSampler", type("Mutant", (Split,), {"drawn": drawn, "kept": kept}))


def likes_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random token is accepted if and only if it is the target's first sampling, else p is drawn from.

    What SSD's code does at a temperature above 0.
    """
    correct, correct_laws = Candidates.masses, Candidates.probs
    best: list[Any] = []

    def masses(self: Candidates) -> Any:
        # The law under `_accepted`: 0 accepts whatever the target can emit, infinity nothing.
        drawn = correct(self)
        return np.where(self.random, np.where(best[-1], 0.0, np.inf), drawn) if drawn.ndim == 2 else drawn

    def laws(self: Candidates, device: torch.device) -> Any:
        return correct_laws(self, device) * torch.from_numpy(~self.random)[:, None]

    def judge(p: Tensor, proposals: Any, leave_open: Any) -> Any:
        width = proposals.tokens.shape[1]
        best.append(p[:, :width].argmax(dim=-1).numpy() == proposals.tokens)
        return verification.judge_chains(p, proposals, leave_open)

    monkeypatch.setattr(Candidates, "masses", masses)
    monkeypatch.setattr(Candidates, "probs", laws)
    monkeypatch.setattr(chains, "judge_chains", judge)


no_residual = patched(verification, "residual", lambda p, sigma: p)


def again(p: Any, sigma: Any, uniforms: Any, lengths: Any) -> Any:
    """Verifies a rejected token again, with other randomness."""
    other = (uniforms * 7919.0 + 0.37) % 1.0
    return sampling.accepted_run(p, sigma, np.minimum(uniforms, other), lengths)


def unscaled_draw(weights: Tensor, uniforms: Any) -> Tensor:
    """Takes what is left of p after subtracting sigma for a law."""
    levels = torch.as_tensor(uniforms)[:, None]
    found = torch.searchsorted(weights.cumsum(dim=-1), levels, right=True)[:, 0]
    return found.clamp_(max=weights.shape[-1] - 1)


def fresh(p: Tensor, proposals: Any, leave_open: Any) -> Any:
    """PEARL: after the next block's first token was rejected, a fresh bonus token from p."""
    with pytest.MonkeyPatch.context() as patch:
        if p.shape[1] == 1 and leave_open.all():
            patch.setattr(verification, "residual", lambda p, sigma: p)
        return verification.judge_chains(p, proposals, leave_open)


def stale_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifies with the laws of the round before."""
    correct = chains.Proposals
    previous: dict[int, int] = {}

    def stale(rows: Any, *rest: Any) -> Any:
        late = [
            row._replace(handle=previous.get(row.slot, row.handle)) if row.handle >= 0 else row
            for row in rows
        ]
        previous.update({row.slot: row.handle for row in rows if row.handle >= 0})
        return correct(late, *rest)

    monkeypatch.setattr(chains, "Proposals", stale)


def stale_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, unnoticed."""
    stale_handles(monkeypatch)
    monkeypatch.setattr(ProbsReader, "_check_owner", staticmethod(lambda *_: None))


@dataclass(frozen=True)
class Mutant:
    """A bug, where it shows, and the statistics G measured when this was written.

    Attributes:
        name: The bug.
        settings: A run that meets it.
        plant: Plants it.
        correct: G of the correct engine.
        wrong: G of the mutant.
    """

    name: str
    settings: Settings
    plant: Plant
    correct: int
    wrong: int


# Chi-square at 117 degrees of freedom exceeds 170 once in a thousand (at 12, of the top-p runs: 33).
MUTANTS = [
    Mutant("a random token is accepted if it is the argmax", RANDOM, likes_the_best, 103, 331),
    Mutant("no residual but a new draw from p", SD, no_residual, 121, 1254),
    Mutant(
        "sigma for the residual", SD, patched(verification, "residual", lambda p, sigma: sigma), 121, 2783
    ),
    Mutant("the residual is not normalised", SD, patched(verification, "draw", unscaled_draw), 121, 1472),
    Mutant("C forgotten in verification", SAGUARO, split(Split.scaled, Split.plain), 89, 3746),
    Mutant("C forgotten in drafting", SAGUARO, split(Split.plain, Split.scaled), 89, 3222),
    Mutant("top-p forgotten in verification", TOP_P, split(Split.plain, Split.uncut), 13, 1865),
    Mutant("a greedy draft judged by q", SD, split(Split.first_choice, Split.plain), 121, 11065),
    Mutant("a rejected token is judged again", SD, patched(verification, "accepted_run", again), 121, 1491),
    Mutant("PEARL settles by a fresh draw", PEARL, patched(chains, "judge_chains", fresh), 85, 908),
    Mutant("one luck drafts and accepts", SD, patched(verification, "ACCEPTED", DRAFTED), 121, 2498),
    Mutant("one luck accepts and corrects", SD, patched(verification, "BONUS", ACCEPTED), 121, 996),
    Mutant("one luck drafts and corrects", PEARL, patched(verification, "BONUS", DRAFTED), 85, 429),
    Mutant("the laws of the round before", SD, stale_laws, 121, 3860),
    Mutant("the laws of the round before, PEARL", PEARL, stale_laws, 85, 6874),
    Mutant("the laws of the round before, after hits and misses", SAGUARO, stale_laws, 89, 2867),
]
HOPELESS = 1e-12


@pytest.mark.parametrize("settings", [SD, TOP_P, PEARL, SAGUARO, RANDOM], ids=lambda s: s.label)
def test_the_correct_engine_passes(settings: Settings) -> None:
    found = fit(sampled_texts(settings), settings.sampling)
    assert found.p_value > 1e-3, str(found)
    stated = {mutant.correct for mutant in MUTANTS if mutant.settings == settings}
    assert [found.statistic] == pytest.approx(sorted(stated), rel=0.05)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_does_not(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    found = fit(sampled_texts(mutant.settings), mutant.settings.sampling)
    assert found.p_value < HOPELESS, str(found)
    assert found.statistic == pytest.approx(mutant.wrong, rel=0.05)


@pytest.mark.parametrize("settings", [SD, PEARL, SAGUARO], ids=lambda settings: settings.label)
def test_stale_laws_do_not_even_come_so_far(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a statistic: a law knows whose it is."""
    stale_handles(monkeypatch)
    with pytest.raises(AuditError, match="came with the distribution of"):
        sampled_texts(settings, requests=500)


@pytest.mark.parametrize("strict", [True, False])
def test_acceptance_is_strict(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the unluckiest uniform a token that top-p took from the target is still not accepted."""

    def unlucky(seed: int, stream: str, *key: Any) -> Any:
        uniforms = keyed_uniforms(seed, stream, *key)
        return uniforms * 0.0 if stream == ACCEPTED else uniforms

    def lenient(p: Any, sigma: Any, uniforms: Any, lengths: Any) -> Any:
        within = np.arange(p.shape[1]) < lengths[:, None]
        return np.cumprod(within & (uniforms * sigma <= p), axis=1).sum(axis=1)

    monkeypatch.setattr(verification, "keyed_uniforms", unlucky)
    if not strict:
        monkeypatch.setattr(verification, "accepted_run", lenient)
    assert (fit(sampled_texts(TOP_P, requests=500), TOP_P.sampling).impossible == 0) == strict
