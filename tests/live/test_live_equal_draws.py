"""Two draws of one token stay two candidates: the law of what is emitted, enumerated exactly.

A G-test of thousands of texts does not tell merged draws from separate ones (the bias is two hundredths at
one position, in one case of three), so that here every pair of draws meets every coin of the live judge.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from calibrate.live.engine import verification
from calibrate.live.engine.rows import Row
from calibrate.live.engine.sampling import BONUS
from calibrate.live.engine.verification import TreeJudge
from policies.rasd import fused
from policies.sampling import Sampling
from policies.tokentree import ROOT, TokenTree
from policies.values import NO_HANDLE, Source

P = np.array([0.1, 0.5, 0.4])
Q = np.array([0.6, 0.2, 0.2])
SIXTHS, THIRDS, FIFTEENTHS = ([(i + 0.5) / n for i in range(n)] for n in (6, 3, 15))
"""Midpoints: a drawn 0 passes with 1/6, a retrieved token with thirds; what is left has fifths or thirds."""
PAIRS = list(itertools.product(range(3), repeat=2))
CASES = list(itertools.product(PAIRS, SIXTHS, THIRDS, FIFTEENTHS))
"""(draws from Q, coin of the first candidate, of all others, of the token after them)."""
NOTHING = TokenTree((), (), (), ())
Fuse = Callable[[TokenTree, TokenTree], TokenTree]


class OneLaw:
    """Stands in for a `ProbsReader`: whatever the handle, the law is Q."""

    def masses(self, handles: Any, requests: Any, positions: Any, tokens: Any, size: int) -> Any:
        return Q[tokens]

    def probs(self, handles: Any, size: int) -> Any:
        return np.tile(Q, (len(handles), 1))


def emitted_law(monkeypatch: pytest.MonkeyPatch, fuse: Fuse, retrieved: TokenTree = NOTHING) -> Any:
    """[3] the law of the first token, over all of `CASES`."""

    def coins(seed: int, stream: int | str, requests: Any, positions: Any, *sibling: int) -> Any:
        which = 3 if stream == BONUS else 2 if sibling else 1
        return np.array([CASES[request][which] for request in requests])

    monkeypatch.setattr(verification, "keyed_uniforms", coins)
    primary = (int(Source.PRIMARY),) * 2
    drafted = [fuse(TokenTree(pair, (ROOT, ROOT), primary, (0, 1)), retrieved) for pair, *_ in CASES]
    rows = [Row(slot=i, request=i, position=0, context=1, tail=(0,), room=2) for i in range(len(CASES))]
    logits = torch.from_numpy(np.log(P)).repeat(len(CASES), 1 + max(len(t.tokens) for t in drafted), 1)
    judge = TreeJudge(rows, drafted, Sampling(temperature=1.0), OneLaw())  # type: ignore[arg-type]
    law = np.zeros(3)
    for (pair, *_), tree, verdict in zip(CASES, drafted, judge.judge(logits), strict=True):
        first = tree.tokens[verdict.path[0]] if verdict.path else verdict.bonus
        law[first] += Q[list(pair)].prod() * len(PAIRS) / len(CASES)
    return law


def retrieved_of(token: int) -> TokenTree:
    return TokenTree((token,), (ROOT,), (int(Source.NGRAM),), (NO_HANDLE,))


@pytest.mark.parametrize(
    "retrieved", [NOTHING, *map(retrieved_of, range(3))], ids=lambda tree: str(tree.tokens)
)
def test_every_draw_takes_its_law_off_the_residual(
    retrieved: TokenTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed 0 leaves (0, 3/5, 2/5); a second one, which always fails, (0, 2/3, 1/3).

    1 is emitted with .2 + .6 * 5/6 * (.2 + .6 * 2/3) = .5, 0 with .6 / 6 = .1.  What retrieval found
    too, or beside them, changes nothing.
    """
    assert emitted_law(monkeypatch, fused, retrieved) == pytest.approx(P, abs=1e-12)


def equal_draws_merged(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
    """The first of two equal draws stands for both."""
    once = len(dict.fromkeys(draft.tokens))
    return fused(TokenTree(*(field[:once] for field in draft)), retrieved)


def test_merged_draws_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed pair of 0 (0, 3/5, 2/5) is left: 1 comes with .2 + .5 * (.2 + .6 * 3/5) = .48."""
    assert emitted_law(monkeypatch, equal_draws_merged) == pytest.approx([0.1, 0.48, 0.42], abs=1e-12)


def test_a_retrieved_copy_must_not_take_a_draw_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a choice, certain of itself, a drawn 1 is accepted with p(1) = 1/2 only, and comes too seldom."""

    def taken_over(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
        both = fused(draft, retrieved)
        found = [token in retrieved.tokens for token in both.tokens]
        return both._replace(
            handles=tuple(NO_HANDLE if f else law for f, law in zip(found, both.handles, strict=True))
        )

    law = emitted_law(monkeypatch, taken_over, retrieved_of(1))
    assert abs(law - P).max() > 0.05
