"""What operations cost, from a hardware profile: design.md, section 4.

An operation is a list of forwards, each looked up in a measured surface:

| operation | forwards |
|---|---|
| prefill | target or draft prefill over the prompt |
| verify | target forward over 1 + K new tokens per row |
| draft | draft forward over the unseen tokens, then K - 1 single steps |
| prespeculate | glue: draft forward over 1 + K tokens; then K tree steps over all branches |
| continue | K draft steps of one token |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hardware_profiles.latency import LatencySurface
from policies.operations import Continue, Draft, IntArray, Operation, Prefill, Prespeculate, Verify, View
from policies.randomness import FloatArray, keyed_generator

NOISE_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Effects:
    """Which effects of real hardware are simulated; all off is the world of the papers' laws.

    Attributes:
        verify_width: Verification of K + 1 tokens costs more than one decode step.
        draft_width: Drafting costs more with more tokens at once (glue, branches).
        batch_width: A batch costs more than one row.
        context: Costs depend on the context length; else on the first row's prompt length alone.
        host: Time between a submission and its start, an end and its report.
        overlap: Devices slow each other down while both work.
        jitter: Latencies vary around their mean.
    """

    verify_width: bool = True
    draft_width: bool = True
    batch_width: bool = True
    context: bool = True
    host: bool = True
    overlap: bool = True
    jitter: bool = True


class Costs(Protocol):
    """Seconds of the steps of an operation on a device."""

    def steps(self, device: str, operation: Operation) -> list[tuple[str, float]]:
        """Named steps of the operation, in seconds at full rate."""
        ...


class ProfileCosts:
    """Costs from measured surfaces, with keyed noise.

    Args:
        surfaces: By operation name, `target.forward`, `target.prefill`, `draft.forward`,
            `draft.prefill`, `draft.tree`.
        effects: What to simulate.
        seed: Keys the noise, by operation and its ordinal number.
    """

    def __init__(self, surfaces: dict[str, LatencySurface], *, effects: Effects, seed: int) -> None:
        self.surfaces = surfaces
        self.effects = effects
        self.seed = seed
        self.extrapolated: set[str] = set()
        self._tables: dict[tuple[str, int, int], FloatArray] = {}
        self._prefills: dict[tuple[str, int, int], float] = {}
        self._noise: dict[str, tuple[FloatArray, int]] = {}

    def steps(self, device: str, operation: Operation) -> list[tuple[str, float]]:
        """See `Costs`."""
        match operation:
            case Verify():
                return self._verify(operation)
            case Draft():
                widest = int(operation.unseen[operation.view.slots].max())
                return self._draft(operation.view, widest, operation.lookahead, "draft")
            case Continue():
                ahead = operation.speculation.lengths[operation.view.slots]
                return self._draft(operation.view, 1, operation.lookahead, "draft", int(ahead.max()))
            case Prespeculate():
                return self._prespeculate(operation)
            case Prefill():
                return [("prefill", self._prefill(f"{device}.prefill", operation.view))]

    def _prefill(self, name: str, view: View) -> float:
        rows, tokens = self._rows(view), int(view.contexts.max())
        if (name, rows, tokens) not in self._prefills:
            surface = self.surfaces[name]
            self._prefills[name, rows, tokens] = surface.seconds(batch=rows, new_tokens=tokens)
            self._flag(name, surface.covers(batch=rows, new_tokens=tokens))
        return self._prefills[name, rows, tokens]

    def _verify(self, operation: Verify) -> list[tuple[str, float]]:
        view = operation.view
        width = 1 + int(operation.speculation.lengths[view.slots].max())
        name = "verify" if width > 1 else "decode"
        if not self.effects.verify_width:
            width = 1
        seconds = self._forward("target.forward", self._rows(view), width)[self._context(view)]
        return [(name, float(seconds) * self._factor("target.forward"))]

    def _draft(
        self, view: View, first: int, lookahead: int, name: str, ahead: int = 0
    ) -> list[tuple[str, float]]:
        rows, context = self._rows(view), self._context(view) + (ahead if self.effects.context else 0)
        if not self.effects.draft_width:
            first = 1
        opening = float(self._forward("draft.forward", rows, first)[context])
        steps = self._forward("draft.forward", rows, 1, least=context + lookahead)
        factor = self._factor("draft.forward", lookahead)
        if self.effects.context:
            rest = steps[context + 1 : context + lookahead] * factor
        else:
            rest = np.full(lookahead - 1, steps[context] * factor)
        return [(name, opening * factor), *((name, float(s)) for s in rest)]

    def _prespeculate(self, operation: Prespeculate) -> list[tuple[str, float]]:
        view, slots = operation.view, operation.view.slots
        rows, context = self._rows(view), self._context(view)
        if not self.effects.draft_width:
            step = float(self._forward("draft.forward", rows, 1)[context])
            return [("tree", step * self._factor("draft.tree", operation.lookahead))] * operation.lookahead
        lengths = operation.speculation.lengths[slots]
        deepest = int(lengths.max())
        glue = float(self._forward("draft.forward", rows, 1 + deepest)[context])
        branches = int(np.cumsum(operation.fanout)[lengths].sum())
        per_row = -(-branches // len(slots))
        reach = context + 1 + deepest + (operation.lookahead - 1) * per_row
        table = self._tree(branches, reach)
        first = context + 1 + deepest if self.effects.context else context
        stride = per_row if self.effects.context else 0
        factor = self._factor("draft.tree", operation.lookahead)
        trees = [("tree", float(table[first + j * stride]) * factor) for j in range(operation.lookahead)]
        return [("glue", glue * self._factor("draft.forward")), *trees]

    def _rows(self, view: View) -> int:
        return len(view.slots) if self.effects.batch_width else 1

    def _context(self, view: View) -> int:
        """Mean context of the rows, in tokens."""
        if not self.effects.context:
            return int(view.contexts[0] - view.positions[0])
        return int(view.contexts.sum()) // len(view.contexts)

    def _forward(self, name: str, rows: int, width: int, least: int = 0) -> FloatArray:
        """Seconds by context of a forward over `width` new tokens in each of `rows` rows."""
        return self._table(name, rows, width, least, batch=rows, new_tokens=width)

    def _tree(self, branches: int, least: int) -> FloatArray:
        return self._table("draft.tree", branches, 0, least, branches=branches)

    def _table(self, name: str, a: int, b: int, least: int, **fixed: int) -> FloatArray:
        key = (name, a, b)
        table = self._tables.get(key)
        if table is None or len(table) <= least:
            upto = max(1024, 2 * least)
            surface = self.surfaces[name]
            table = self._tables[key] = surface.along("context", upto, **fixed)
            self._flag(name, surface.covers(context=1, **fixed) or surface.covers(context=256, **fixed))
        return table

    def _flag(self, name: str, covered: bool) -> None:
        if not covered:
            self.extrapolated.add(name)

    def _factor(self, name: str, forwards: int = 1) -> float:
        """Noise of the next operation; the mean of `forwards` independent steps varies that much less."""
        if not self.effects.jitter:
            return 1.0
        block, used = self._noise.get(name, (np.zeros(0), 0))
        if used % NOISE_BLOCK == 0:
            uniform = keyed_generator(self.seed, f"latency-{name}", used // NOISE_BLOCK).random(NOISE_BLOCK)
            block = self.surfaces[name].noise(uniform)
        self._noise[name] = (block, used + 1)
        factor = float(block[used % NOISE_BLOCK])
        return 1.0 + (factor - 1.0) / float(np.sqrt(forwards))


@dataclass(frozen=True, slots=True)
class TextbookCosts:
    """Constant latencies, the setting of the papers' laws.

    Attributes:
        target_s: One target forward, whatever its width.
        draft_s: One draft step, whatever its width; a pre-speculation takes `lookahead` of them.
    """

    target_s: float
    draft_s: float

    def steps(self, device: str, operation: Operation) -> list[tuple[str, float]]:
        """See `Costs`."""
        match operation:
            case Verify():
                return [("verify", self.target_s)]
            case Prefill():
                return [("prefill", 0.0)]
            case Draft() | Continue() | Prespeculate():
                return [("draft", self.draft_s)] * operation.lookahead


def fanout_array(fanout: tuple[int, ...]) -> IntArray:
    """Fan-outs as an array [K + 1] for fancy indexing."""
    return np.asarray(fanout, dtype=np.int64)
