"""What operations cost: constants, or measured surfaces of a hardware profile with keyed noise.

By a profile (design.md, section 4) an operation is a list of forwards, each looked up in a measured surface:

| operation | forwards |
|---|---|
| prefill | target or draft prefill over the prompt |
| verify | target forward over 1 + K new tokens per row |
| draft | draft forward over the unseen tokens, then K - 1 single steps |
| prespeculate | glue: draft forward over 1 + K tokens; then K tree steps over all branches |
| continue | K draft steps of one token |
| settle | none: host time only |

A row operation's forwards are its rows' steps, which its replies tell.

A tree step over B rows computes, in each of them, as many branches as the widest row has: rows are padded.
That is what a `draft.tree` grid with the axis `batch` says; one without it knows the total alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from operator import itemgetter
from typing import Protocol, TypeAlias

import numpy as np

from hardware_profiles.surface import LatencySurface
from policies.config import SettingError
from policies.operation import Continue, Draft, Operation, Prespeculate, Settle, Verify, Work
from policies.protocols import role_of
from policies.sampling import FloatArray, keyed_generator
from policies.values import View

BLOCK = 1024
STRATA = 16
"""Of whole operations, which vary by a quarter: a run of a hundred of them then takes its mean within a per
cent, where independent factors would be off by two or three."""
Transform: TypeAlias = Callable[[FloatArray], FloatArray]
"""Factors of mean 1 from uniforms in [0, 1)."""


class KeyedNoise:
    """Factors on durations, by name and ordinal number.

    Args:
        seed: Keys them.
        strata: So many in a row come from as many equal parts of their distribution; 1: all are independent.
    """

    def __init__(self, seed: int, *, strata: int = 1) -> None:
        self.seed = seed
        self.strata = strata
        self._blocks: dict[str, tuple[FloatArray, int]] = {}

    def factor(self, name: str, transform: Transform) -> float:
        """The next factor of a name; the transform of a name is always the same."""
        block, used = self._blocks.get(name, (np.zeros(0), 0))
        if used % BLOCK == 0:
            block = transform(
                _uniforms(keyed_generator(self.seed, f"latency-{name}", used // BLOCK), self.strata)
            )
        self._blocks[name] = (block, used + 1)
        return float(block[used % BLOCK])


def _uniforms(random: np.random.Generator, strata: int) -> FloatArray:
    """[BLOCK] uniforms in [0, 1), every `strata` of them one in each of as many parts."""
    if strata == 1:
        return random.random(BLOCK)
    parts = random.permuted(np.tile(np.arange(strata), (BLOCK // strata, 1)), axis=1).ravel()
    found: FloatArray = (parts + random.random(BLOCK)) / strata
    return found


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


KNOWN = {"measured": "measured", "roofline": "roofline", "paper": "printed", "synthetic": "given"}
"""What a profile's numbers are, by their provenance."""


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """A coordinate outside the measured grid of an operation, where its cost is a linear guess.

    Attributes:
        operation: Name in the profile.
        axis: What lay outside.
        value: The farthest coordinate asked for.
        measured_to: The nearest one that the profile has.
        origin: Where the profile's numbers come from (`hardware_profiles.surface.Provenance.kind`).
    """

    operation: str
    axis: str
    value: int
    measured_to: int
    origin: str = "measured"

    def __str__(self) -> str:
        side = "up to" if self.value > self.measured_to else "from"
        axis = self.axis.replace("_", " ")
        return f"{self.operation} at {axis} {self.value} ({KNOWN[self.origin]} {side} {self.measured_to})"


class Costs(Protocol):
    """Seconds of the steps of an operation on a device."""

    @property
    def steady(self) -> Costs:
        """These costs at their means, without noise."""
        ...

    def steps(self, device: str, operation: Operation) -> list[tuple[str, float]]:
        """Named steps of the operation, in seconds at full rate."""
        ...

    def row_steps(
        self, device: str, view: View, work: Sequence[Work], seconds: Mapping[str, float]
    ) -> list[tuple[str, float]]:
        """Named steps of a row operation, from each row's [n] steps.

        `seconds` are those of steps that feed no token to a model, by name.
        """
        ...


@dataclass(frozen=True, slots=True)
class TextbookCosts:
    """Constant latencies, the setting of the papers' laws.

    Attributes:
        target_s: One target forward, whatever its width.
        draft_s: One draft step, whatever its width; a pre-speculation takes `lookahead` of them.
    """

    target_s: float
    draft_s: float

    @property
    def steady(self) -> TextbookCosts:
        """See `Costs`: they never vary."""
        return self

    def steps(self, device: str, operation: Operation) -> list[tuple[str, float]]:
        """See `Costs`."""
        match operation:
            case Verify():
                return [("verify", self.target_s)]
            case Settle():
                return []
            case Draft() | Continue() | Prespeculate():
                return [("draft", self.draft_s)] * operation.lookahead
            case _:
                return [("prefill", 0.0)]

    def row_steps(
        self, device: str, view: View, work: Sequence[Work], seconds: Mapping[str, float]
    ) -> list[tuple[str, float]]:
        """See `Costs`: a call of a model costs the same whatever its width."""
        model = self.target_s if role_of(device) == "target" else self.draft_s
        steps = []
        for parts in zip_longest(*work):
            there = [part for part in parts if part is not None]
            name, fed = max(there, key=itemgetter(1))
            share = share_of(name)
            if share is not None:
                steps.append((name, share * model))
            else:
                steps.append((name, model if fed else seconds.get(name, 0.0)))
        return steps


def share_of(step: str) -> float | None:
    """Share of a model call that a step called e.g. `early:0.4` is; None for a whole call or none at all.

    The pieces of a call follow each other; the first one feeds its tokens, the others feed none.
    """
    _, _, share = step.partition(":")
    return float(share) if share else None


TREE_SURFACE = "draft.tree"
PAGE = 1024
"""Contexts that are looked up in a surface at once."""


class ProfileCosts:
    """Costs from measured surfaces, with keyed noise.

    Args:
        surfaces: By operation name, `target.forward`, `target.prefill`, `draft.forward`,
            `draft.prefill`, `draft.tree`.
        effects: What to simulate.
        seed: Keys the noise, by operation and its ordinal number.
        drift: Factors on the duration of whole operations, by name; 1 for those that are not there.
        origins: Where the numbers come from, by name; measured for those that are not there.
    """

    def __init__(
        self,
        surfaces: Mapping[str, LatencySurface],
        *,
        effects: Effects,
        seed: int,
        drift: Mapping[str, float] | None = None,
        origins: Mapping[str, str] | None = None,
    ) -> None:
        self.surfaces = surfaces
        self.effects = effects
        self.seed = seed
        self.drift = dict(drift or {})
        self.origins = dict(origins or {})
        self._ranges: dict[tuple[str, str], tuple[int, int]] = {}
        self._pages: dict[tuple[str | int, ...], list[float]] = {}
        self._prefills: dict[tuple[str, int, int], float] = {}
        self._noise = KeyedNoise(seed) if effects.jitter else None

    @cached_property
    def steady(self) -> ProfileCosts:
        """See `Costs`; what was looked up and asked for is common to both."""
        steady = copy(self)
        steady._noise = None
        return steady

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
            case Settle():
                return []
            case _:
                return [("prefill", self._prefill(f"{role_of(device)}.prefill", operation.view))]

    def row_steps(
        self, device: str, view: View, work: Sequence[Work], seconds: Mapping[str, float]
    ) -> list[tuple[str, float]]:
        """See `Costs`."""
        role, context, fed = role_of(device), self._context(view), 0
        forwards = sum(1 for _ in zip_longest(*work))
        factors: dict[str, float] = {}
        call_s, steps = 0.0, []
        for parts in zip_longest(*work):
            there = [part for part in parts if part is not None]
            name, widest = max(there, key=itemgetter(1))  # a row may have nothing to do in a step of others
            share = share_of(name)
            if widest == 0:
                steps.append((name, seconds.get(name, 0.0) if share is None else share * call_s))
                continue
            surface = _surface_of(role, name)
            call_s = self._row_call(surface, len(there), widest, context + fed)
            if surface not in factors:
                factors[surface] = self._factor(surface, forwards)
            call_s *= factors[surface]
            steps.append((name, call_s if share is None else share * call_s))
            self._note(surface, "context", context + fed)
            fed += widest if self.effects.context else 0
        return steps

    def _row_call(self, surface: str, rows: int, widest: int, context: int) -> float:
        """Seconds of a model call over at most `widest` tokens in each of `rows` rows."""
        rows = rows if self.effects.batch_width else 1
        if surface not in self.surfaces:
            raise SettingError(
                f"this profile has no {surface}, which the policy's steps need; record one with `calibrate`"
            )
        if surface != TREE_SURFACE:
            wide = self.effects.verify_width if surface.startswith("target") else self.effects.draft_width
            return self._forward(surface, rows, widest if wide else 1, context)
        if not self.effects.draft_width:
            return self._forward("draft.forward", rows, 1, context)
        if "batch" in self.surfaces[surface].axes:
            return self._seconds(surface, context, batch=rows, branches=widest)[0]
        return self._seconds(surface, context, branches=widest * rows)[0]

    def _prefill(self, name: str, view: View) -> float:
        """Seconds of a prefill; nothing if it was not measured."""
        rows, tokens = self._rows(view), int(view.contexts.max())
        if (name, rows, tokens) not in self._prefills:
            surface = self.surfaces.get(name)
            seconds = 0.0 if surface is None else surface.seconds(batch=rows, new_tokens=tokens)
            self._prefills[name, rows, tokens] = seconds * self.drift.get(name, 1.0)
            self._note(name, "batch", rows)
            self._note(name, "new_tokens", tokens)
        return self._prefills[name, rows, tokens]

    def _verify(self, operation: Verify) -> list[tuple[str, float]]:
        view = operation.view
        width = 1 + int(operation.speculation.lengths[view.slots].max())
        name = "verify" if width > 1 else "decode"
        if not self.effects.verify_width:
            width = 1
        context = self._context(view)
        seconds = self._forward("target.forward", self._rows(view), width, context)
        self._note("target.forward", "context", context)
        return [(name, seconds * self._factor("target.forward"))]

    def _draft(
        self, view: View, first: int, lookahead: int, name: str, ahead: int = 0
    ) -> list[tuple[str, float]]:
        rows, context = self._rows(view), self._context(view) + (ahead if self.effects.context else 0)
        if not self.effects.draft_width:
            first = 1
        opening = self._forward("draft.forward", rows, first, context)
        stride = 1 if self.effects.context else 0
        steps = self._seconds("draft.forward", context, stride, lookahead, batch=rows, new_tokens=1)
        factor = self._factor("draft.forward", lookahead)
        self._note("draft.forward", "context", context, context + lookahead - 1)
        return [(name, s * factor) for s in (opening, *steps[1:])]

    def _prespeculate(self, operation: Prespeculate) -> list[tuple[str, float]]:
        view, slots = operation.view, operation.view.slots
        rows, context = self._rows(view), self._context(view)
        if not self.effects.draft_width:
            step = self._forward("draft.forward", rows, 1, context)
            return [("tree", step * self._factor("draft.tree", operation.lookahead))] * operation.lookahead
        deepest = int(operation.speculation.lengths[slots].max())
        glue = self._forward("draft.forward", rows, 1 + deepest, context)
        branches = operation.branches
        widest, total = int(branches.max()), int(branches.sum())
        if "batch" in self.surfaces["draft.tree"].axes:
            shape, stride = {"batch": rows, "branches": widest}, widest
        else:
            shape, stride = {"branches": total}, -(-total // len(slots))
        first = context + 1 + deepest if self.effects.context else context
        stride = stride if self.effects.context else 0
        steps = self._seconds("draft.tree", first, stride, operation.lookahead, **shape)
        self._note("draft.tree", "context", first, first + (operation.lookahead - 1) * stride)
        factor = self._factor("draft.tree", operation.lookahead)
        trees = [("tree", s * factor) for s in steps]
        return [("glue", glue * self._factor("draft.forward")), *trees]

    def _rows(self, view: View) -> int:
        return len(view.slots) if self.effects.batch_width else 1

    def _context(self, view: View) -> int:
        """Mean context of the rows, in tokens."""
        if not self.effects.context:
            return int(view.contexts[0] - view.positions[0])
        return int(view.contexts.sum()) // len(view.contexts)

    def _forward(self, name: str, rows: int, width: int, context: int) -> float:
        """Seconds of a forward over `width` new tokens in each of `rows` rows."""
        return self._seconds(name, context, batch=rows, new_tokens=width)[0]

    def _seconds(self, name: str, first: int, stride: int = 0, count: int = 1, **shape: int) -> list[float]:
        """[count] seconds of calls of one shape at the contexts `first`, `first + stride`, ..."""
        page, start = divmod(first, PAGE)
        stop = start + (count - 1) * stride + 1
        if stride > 0 and stop <= PAGE:
            return self._page(name, page, shape)[start:stop:stride]
        contexts = (first + i * stride for i in range(count))
        return [self._page(name, at // PAGE, shape)[at % PAGE] for at in contexts]

    def _page(self, name: str, page: int, shape: dict[str, int]) -> list[float]:
        """[PAGE] seconds of calls of one shape at the contexts from `page * PAGE` on.

        A text grows by a few tokens per round, so that one call of the surface serves many rounds; contexts
        have no end that a single table could reach.
        """
        key: tuple[str | int, ...] = (name, page, *shape.values())
        if key not in self._pages:
            low = page * PAGE
            seconds = self.surfaces[name].along("context", low + PAGE - 1, start=low, **shape)
            self._pages[key] = (seconds * self.drift.get(name, 1.0)).tolist()
            for axis, value in shape.items():
                self._note(name, axis, value)
        return self._pages[key]

    def _note(self, name: str, axis: str, low: int, high: int | None = None) -> None:
        """Remember the range of coordinates that was asked of an operation."""
        top = low if high is None else high
        known = self._ranges.get((name, axis))
        if known is None:
            self._ranges[name, axis] = (low, top)
        elif low < known[0] or top > known[1]:
            self._ranges[name, axis] = (min(low, known[0]), max(top, known[1]))

    def extrapolated(self) -> tuple[Extrapolation, ...]:
        """Where the costs asked for so far lay outside what was measured."""
        found = []
        for (name, axis), (low, high) in sorted(self._ranges.items()):
            bounds = self.surfaces[name].bounds().get(axis) if name in self.surfaces else None
            origin = self.origins.get(name, "measured")
            if bounds is not None and low < bounds[0]:
                found.append(Extrapolation(name, axis, low, int(bounds[0]), origin))
            if bounds is not None and high > bounds[1]:
                found.append(Extrapolation(name, axis, high, int(bounds[1]), origin))
        return tuple(found)

    def _factor(self, name: str, forwards: int = 1) -> float:
        """Noise of the next operation; the mean of `forwards` independent steps varies that much less."""
        if self._noise is None:
            return 1.0
        factor = self._noise.factor(name, self.surfaces[name].noise)
        return 1.0 + (factor - 1.0) / float(np.sqrt(forwards))


def _surface_of(role: str, step: str) -> str:
    """The measured operation that a step of a row operation costs as much as."""
    tree = role == "draft" and step.partition(":")[0] == "tree"
    return TREE_SURFACE if tree else f"{role}.forward"
