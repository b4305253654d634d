"""Goodness of fit of sampled decoding: models that are tables, and the exact law of what they emit.

A table's next-token law depends on the last two tokens, so that a wrong branch or a wrong prefix shows.
Thousands of requests then cost seconds, and the law of a whole text is a product of table entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from live_support import InlineWorld
from numpy.typing import NDArray
from scipy.stats import chi2
from torch import Tensor

from calibrate.live.engine.runner import Nodes
from calibrate.live.engine.sampling import token_probs
from policies.registry import Settings, start
from policies.rows import Rows
from policies.sampling import Sampling
from policies.values import Request

VOCABULARY = 5
LENGTH = 4
"""Tokens per request: several rounds, the last of which is cut by the limit."""
ENDING = (1, 2)
"""Every prompt ends like this, whatever its length, so that all texts have one law."""
PROMPTS = ((1, 2), (3, 1, 2), (1, 2, 4, 1, 2), (1, 2, 0, 3, 1, 2))
"""Ragged; some contain the ending twice, so that an n-gram is found."""
REQUESTS = 6_000
BATCH = 250
EXPECTED = 5.0
"""Cells with a smaller expectation are pooled."""


@dataclass
class Branches:
    counts: tuple[int, ...]
    before: NDArray[np.int64]
    last: NDArray[np.int64]


class TableRunner:
    """Stands in for a `ModelRunner`.

    Args:
        table: [V, V, V] logits after the last two tokens (older, newer); a missing one counts as 0.
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.device = table.device
        self.fed = 0
        self._held: dict[int, list[int]] = {}
        self._columns: dict[int, dict[int, tuple[int, int]]] = {}

    def reset(self, slot: int) -> None:
        self._held[slot] = []

    def held(self, slot: int) -> list[int]:
        return self._held[slot]

    def rollback(self, slot: int, length: int) -> None:
        assert length <= len(self._held[slot])
        del self._held[slot][length:]

    def forward(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], *, last_only: bool = False
    ) -> Tensor:
        width = max(map(len, tokens))
        pairs = np.zeros((2, len(slots), width), dtype=np.int64)
        for i, (slot, chain) in enumerate(zip(slots, tokens, strict=True)):
            held = self._held[slot]
            text = [*(held[-1:] or [0]), *chain]
            pairs[0, i, : len(chain)], pairs[1, i, : len(chain)] = text[:-1], text[1:]
            held.extend(chain)
            self.fed += len(chain)
        if last_only:
            ends = np.array([len(chain) - 1 for chain in tokens])
            pairs = pairs[:, np.arange(len(slots)), ends][:, :, None]
        return self.table[torch.from_numpy(pairs[0]), torch.from_numpy(pairs[1])]

    def forward_at(self, slots: Sequence[int], nodes: Nodes) -> Tensor:
        """As a model would: what a token does not see, or sees at another position, it does not know."""
        starts, tokens, positions, hidden = nodes
        pairs = np.zeros((2, *positions.shape), dtype=np.int64)
        for i, (slot, first, new) in enumerate(zip(slots, starts, tokens, strict=True)):
            held, columns, count = self._held[slot], self._columns.setdefault(slot, {}), len(new)
            columns |= {first + j: (token, int(positions[i, j])) for j, token in enumerate(new)}
            # Token and position of each column that the mask knows.
            there = np.full((2, hidden.shape[2]), -1, dtype=np.int64)
            for column, node in columns.items():
                if column < there.shape[1]:
                    there[:, column] = node
            there[:, : len(held)] = held[: there.shape[1]], range(min(len(held), there.shape[1]))
            before = ~hidden[i, :count] & (there[1] == positions[i, :count, None] - 1)
            pairs[0, i, :count] = np.where(before.any(axis=1), there[0, before.argmax(axis=1)], 0)
            pairs[1, i, :count] = new
            self.fed += len(new)
        return self.table[torch.from_numpy(pairs[0]), torch.from_numpy(pairs[1])]

    def adopt(
        self, slots: Sequence[int], columns: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> None:
        for slot, own, chain in zip(slots, columns, tokens, strict=True):
            first, there = len(self._held[slot]), self._columns[slot]
            self._held[slot].extend(chain)
            self._columns[slot] = {first + at: there[column] for at, column in enumerate(own)}

    def open_tree(self, slots: Sequence[int], forks: Sequence[Sequence[int]], depth: int) -> Branches:
        last = np.zeros((len(slots), max(map(len, forks))), dtype=np.int64)
        for i, (slot, row) in enumerate(zip(slots, forks, strict=True)):
            last[i, : len(row)] = [self._held[slot][fork] for fork in row]
        return Branches(tuple(map(len, forks)), last.copy(), last)

    def tree_forward(self, tree: Branches, tokens: Tensor) -> Tensor:
        tree.before, tree.last = tree.last, tokens.numpy().copy()
        self.fed += sum(tree.counts)
        return self.table[torch.from_numpy(tree.before), torch.from_numpy(tree.last)]

    def close_tree(self, tree: Branches) -> None:
        pass


def tables(seed: int = 0, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logits of a target and of a draft that resembles it."""
    generator = torch.Generator().manual_seed(seed)
    shape = (VOCABULARY,) * 3
    target = 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return target, target + noise * torch.randn(shape, generator=generator, dtype=torch.float64)


def table_world(drafts: int = 1) -> InlineWorld:
    target, draft = tables()
    runners: list[Any] = [TableRunner(target), *(TableRunner(draft) for _ in range(drafts))]
    return InlineWorld(*runners, vocabulary=VOCABULARY, ring_bytes=1 << 24)


def sampled_texts(settings: Settings, requests: int = REQUESTS) -> Rows:
    """Many requests, served by one run."""
    world = table_world(settings.draft_devices or 1)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(requests)]
    queue = [Request(i, len(prompt), LENGTH, prompt) for i, prompt in enumerate(prompts)]
    rows = Rows(queue, BATCH, keep_tokens=True)
    world.run(start(world, rows, settings))
    return rows


def joint_law(sampling: Sampling) -> NDArray[np.float64]:
    """[V ** LENGTH] probability of every text under the target alone, in lexical order."""
    laws = token_probs(tables()[0], sampling).numpy()
    found = []
    for text in itertools.product(range(VOCABULARY), repeat=LENGTH):
        path = (*ENDING, *text)
        found.append(np.prod([laws[path[i : i + 3]] for i in range(LENGTH)]))
    return np.array(found)


@dataclass(frozen=True)
class Fit:
    """A G-test: 2 * sum observed * log(observed / expected) against chi-square.

    Attributes:
        statistic: G.
        freedom: Cells minus 1, after pooling.
        p_value: Probability of a G this large or larger if the law is right.
        impossible: Texts observed that the law excludes.
    """

    statistic: float
    freedom: int
    p_value: float
    impossible: int

    def __str__(self) -> str:
        return f"G = {self.statistic:.0f} at {self.freedom} degrees of freedom, p = {self.p_value:.2g}"


def fit(rows: Rows, sampling: Sampling) -> Fit:
    """Fit of the emitted texts, all LENGTH tokens jointly, to the target's exact law."""
    texts = np.array([rows.texts[i] for i in sorted(rows.texts)])
    cells = texts @ VOCABULARY ** np.arange(LENGTH - 1, -1, -1)
    observed = np.bincount(cells, minlength=VOCABULARY**LENGTH).astype(np.float64)
    expected = joint_law(sampling) * len(texts)
    impossible = int(observed[expected == 0.0].sum())
    small = expected < EXPECTED
    pooled = [np.append(v[~small], v[small].sum()) for v in (observed, expected)]
    seen, wanted = (v[pooled[1] > 0.0] for v in pooled)
    terms = seen[seen > 0] * np.log(seen[seen > 0] / wanted[seen > 0])
    statistic, freedom = 2.0 * float(terms.sum()), len(wanted) - 1
    return Fit(statistic, freedom, float(chi2.sf(statistic, freedom)), impossible)
