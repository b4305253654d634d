"""Forwards that mix prompts with decoding rows, where layers were timed one by one (LLMServingSim's tables).

Per layer, the matrices at all tokens of the step and attention at its mix: `attention.csv` has one chunk of
a prompt with its history beside decoding rows of one context.  Further chunks of the same step add what each
takes alone, less what the smallest one does; rows of unequal context take

    t(mean) + alpha (t(longest) - t(mean))

with the weight that the profiler's own skewed batches gave (`alpha_default` in `meta.yaml`; 0 where it was
not fitted).  Verifying rows read the cache once whatever their width.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from hardware_profiles.files import read_text
from hardware_profiles.kernels import FloatArray
from hardware_profiles.layers import ONCE, TWICE, US, Layers, read_csv

AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")


class MixedLayers(Layers):
    """Layers whose attention is looked up at the mix of a step; arguments are those of `Layers`."""

    def step_s(
        self,
        rows: int,
        tokens: int,
        chunks: Sequence[tuple[int, int]],
        *,
        context: float,
        longest: float,
        answers: int,
    ) -> float:
        """Seconds of a forward.

        Args:
            rows: Verifying rows.
            tokens: Of all of them.
            chunks: (tokens, tokens before them) of prompts.
            context: Cached tokens that a verifying row has in the mean.
            longest: The most that one has.
            answers: Tokens whose logits are asked for.
        """
        whole = tokens + sum(n for n, _ in chunks)
        layers = self.network.shape.layers
        seconds = self._matrices(whole) + layers * self._attended(rows, context, longest, chunks)
        if self.tensor_parallel > 1:
            moved = 2.0 * whole * self.network.shape.hidden
            seconds += 2 * layers * self.link.allreduce_s(self.tensor_parallel, moved)
        return seconds + self._outputs(answers)

    def _attended(
        self, rows: int, context: float, longest: float, chunks: Sequence[tuple[int, int]]
    ) -> float:
        first, *others = chunks or ((0, 0),)
        seconds = self._mix(*first, rows, context)
        if self.skew and rows > 1:
            seconds += self.skew * (self._mix(*first, rows, longest) - seconds)
        least = self._smallest if others else 0.0
        return seconds + sum(self._mix(n, history, 0, 0) - least for n, history in others)

    @cached_property
    def skew(self) -> float:
        """alpha: weight of the longest row in a batch of unequal ones."""
        for folder in (self.folder, self.folder.parent):
            if (folder / "meta.yaml").is_file():
                fitted = read_text(folder / "meta.yaml").partition("skew_fit:")[2]
                own = fitted.partition(f" {self.tensor_parallel}:")[2]
                match = re.search(r"alpha_default:\s*([\d.]+)", own)
                return float(match.group(1)) if match else 0.0
        return 0.0

    @cached_property
    def _matrix_line(self) -> tuple[FloatArray, FloatArray]:
        """Tokens, and seconds of all that is computed token by token."""
        layers = self.network.shape.layers
        ticks = np.unique(np.concatenate([line[0] for line in self.dense.values()]))
        total = np.zeros(len(ticks))
        for name, (at, seconds) in self.dense.items():
            times = 1 if name in ONCE else 2 * layers if name in TWICE else layers
            total += times * np.interp(ticks, at, seconds)
        return ticks, total

    def _matrices(self, tokens: int) -> float:
        return _along(*self._matrix_line, tokens)

    def _outputs(self, answers: int) -> float:
        return sum(_along(*line, answers) for line in self.per_sequence.values()) if answers else 0.0

    @cached_property
    def _smallest(self) -> float:
        """Attention of the smallest chunk alone: what a launch takes."""
        return float(self._cells[1, 0, 0, 0])

    @cached_property
    def _ticks(self) -> list[list[float]]:
        return [axis.tolist() for axis in self._grid[0]]

    @property
    def _cells(self) -> FloatArray:
        return self._grid[1]

    @cached_property
    def _grid(self) -> tuple[list[FloatArray], FloatArray]:
        """Ticks, and seconds of one layer's attention, filled where nothing was or could be timed."""
        path = self.folder / "attention.csv"
        table = np.array(
            [[row[name] for name in (*AXES, "time_us")] for row in read_csv(path, (*AXES, "time_us"))]
        )
        # Some folders hold two grids of different steps; that of the powers of two is full.
        regular = np.all((table[:, :4] == 0) | (np.log2(np.maximum(table[:, :4], 1)) % 1 == 0), axis=1)
        table = table[regular]
        ticks = [np.unique(table[:, axis]) for axis in range(4)]
        cells = np.full([len(tick) for tick in ticks], np.nan)
        cells[tuple(np.searchsorted(tick, table[:, i]) for i, tick in enumerate(ticks))] = table[:, 4] * US
        cells[0, 0, 0, :] = 0.0
        cells[:, :, 0, :] = cells[:, :, 0, :1]  # nobody decodes, over whatever context
        cells[0, 1:] = cells[0, :1]  # nobody reads a prompt, after whatever history
        cells[:, :, 1:, 0] = cells[:, :, 1:, 1]  # the shortest context
        for many in range(2, len(ticks[2])):  # batches that did not fit beside a chunk: on along the rows
            share = (ticks[2][many] - ticks[2][many - 1]) / (ticks[2][many - 1] - ticks[2][many - 2])
            onward = cells[:, :, many - 1] + share * (cells[:, :, many - 1] - cells[:, :, many - 2])
            cells[:, :, many] = np.where(np.isnan(cells[:, :, many]), onward, cells[:, :, many])
        return ticks, cells

    def _mix(self, chunk: float, history: float, rows: float, context: float) -> float:
        """Seconds of one layer's attention, linear between the cells and beyond them."""
        lower, shares = [], []
        for tick, value in zip(self._ticks, (chunk, history, rows, context), strict=True):
            cell = min(max(bisect_right(tick, value) - 1, 0), len(tick) - 2)
            lower.append(cell)
            shares.append((value - tick[cell]) / (tick[cell + 1] - tick[cell]))
        a, b, c, d = lower
        near = self._cells[a : a + 2, b : b + 2, c : c + 2, d : d + 2]
        for share in shares:
            near = near[0] + share * (near[1] - near[0])
        return max(float(near), 0.0)


def _along(ticks: FloatArray, seconds: FloatArray, value: float) -> float:
    """Linear between the points of a line; beyond the last in proportion."""
    if value > ticks[-1]:
        return float(seconds[-1]) * value / float(ticks[-1])
    return float(np.interp(value, ticks, seconds))
