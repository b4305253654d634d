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

A row operation's forwards are its rows' steps, which its replies tell.  Both are lists of `Call`.

A verification computes the widest row's tokens in each of its rows, or, where the profile says that rows are
packed, as many as all have together, spread evenly and rounded up.
A tree step over B rows computes, in each of them, as many branches as the widest row has: rows are padded.
That is what a `draft.tree` grid with the axis `batch` says; one without it knows the total alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from hardware_profiles.optime import base_name, share_of
from hardware_profiles.surface import LatencySurface, varied
from policies.config import SettingError
from policies.operation import (
    Continue,
    Draft,
    Operation,
    Prefill,
    Prespeculate,
    Settle,
    Verify,
    Work,
    row_calls,
)
from policies.protocols import role_of
from policies.sampling import FloatArray, keyed_generator
from policies.values import IntArray, View

BLOCK = 1024
STRATA = 16
"""Of whole operations, which vary by a quarter: a run of a hundred of them then takes its mean within a per
cent, where independent factors would be off by two or three."""


class KeyedNoise:
    """Factors on durations, by name and ordinal number.

    Args:
        seed: Keys them.
        strata: So many in a row come from as many equal parts of their distribution; 1: all are independent.
    """

    def __init__(self, seed: int, *, strata: int = 1) -> None:
        self.seed = seed
        self.strata = strata
        self._used: dict[str, int] = {}

    def factor(self, name: str, spread: Sequence[float]) -> float:
        """The next factor of a name, whose spread (`hardware_profiles.surface.varied`) is always the same."""
        used = self._used.get(name, 0)
        self._used[name] = used + 1
        return float(_factors(self.seed, f"latency-{name}", used // BLOCK, self.strata, spread)[used % BLOCK])

    def factors(self, name: str, spread: Sequence[float], count: int) -> FloatArray:
        """[count] The next factors of a name."""
        used = self._used.get(name, 0)
        self._used[name] = used + count
        blocks = range(used // BLOCK, -(-(used + count) // BLOCK))
        found = [_factors(self.seed, f"latency-{name}", block, self.strata, spread) for block in blocks]
        return np.concatenate([np.zeros(0), *found])[used % BLOCK :][:count]


@lru_cache(maxsize=4096)
def _factors(seed: int, stream: str, block: int, strata: int, spread: Sequence[float]) -> FloatArray:
    """[BLOCK] factors of mean 1; not to be changed.  Runs with the same seed meet the same ones."""
    return varied(spread, _uniforms(keyed_generator(seed, stream, block), strata))


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


KNOWN = {
    "measured": "measured",
    "composed": "composed",
    "roofline": "roofline",
    "paper": "printed",
    "synthetic": "given",
}
"""What a profile's numbers are, by their provenance."""


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """A coordinate outside the measured grid of an operation, where its cost is a linear guess.

    Attributes:
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
    """Seconds of the steps of an operation on a device, at full rate."""

    @property
    def steady(self) -> Costs:
        """These costs at their means, without noise."""
        ...

    def steps(self, device: str, operation: Operation) -> list[tuple[str, float]]:
        """Named steps of a built-in operation, s."""
        ...

    def row_steps(
        self, device: str, view: View, work: Sequence[Work], seconds: Mapping[str, float]
    ) -> list[tuple[str, float]]:
        """Named steps of a row operation, s, from each row's [n] steps.

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
        for name, _, widest in row_calls(work):
            share = share_of(name)
            called = seconds.get(name, 0.0) if share is None and not widest else model
            steps.append((name, called if share is None else share * called))
        return steps


TREE_SURFACE = "draft.tree"
PAGE = 1024
"""Contexts that are looked up in a surface at once."""


class Call(NamedTuple):
    """Equal calls of a model, one after the other, or a step without one.

    Attributes:
        surface: What was measured of it; none for a step that feeds no token.
        shape: Coordinates but the context.
        grows: Tokens by which each makes the context of the next one longer.
        times: How many there are.
        noise: Surface whose noise they have.
        share: See `share_of`.
    """

    name: str
    surface: str = ""
    shape: tuple[tuple[str, int], ...] = ()
    grows: int = 0
    times: int = 1
    noise: str = ""
    share: float | None = None


class ProfileCosts:
    """Costs from measured surfaces, with keyed noise.

    Args:
        surfaces: By operation name, `target.forward`, `target.prefill`, `draft.forward`,
            `draft.prefill`, `draft.tree`.
        seed: Keys the noise, by operation and its ordinal number.
        drift: Factors on the duration of whole operations, by name; 1 for those that are not there.
        origins: Where the numbers come from, by name; measured for those that are not there.
        packed: Whether verifications are.
    """

    def __init__(
        self,
        surfaces: Mapping[str, LatencySurface],
        *,
        effects: Effects,
        seed: int,
        drift: Mapping[str, float] | None = None,
        origins: Mapping[str, str] | None = None,
        packed: bool = False,
    ) -> None:
        self.surfaces = surfaces
        self.packed = packed
        self.effects = effects
        self.drift = dict(drift or {})
        self.origins = dict(origins or {})
        self._ranges: dict[tuple[str, str], tuple[int, int]] = {}
        self._pages: dict[tuple[Any, ...], list[float]] = {}
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
        context = self._context(operation.view)
        match operation:
            case Verify():
                slots = operation.view.slots
                drafted = operation.speculation.lengths[slots]
                width = 1 + (-(-int(drafted.sum()) // len(slots)) if self.packed else int(drafted.max()))
                name = "verify" if width > 1 else "decode"
                return self._price([self._forward("target.forward", name, len(slots), width)], context)
            case Draft():
                unseen = int(operation.unseen[operation.view.slots].max())
                return self._price(self._draft(operation, unseen), context)
            case Continue():
                ahead = int(operation.speculation.lengths[operation.view.slots].max())
                return self._price(self._draft(operation, 1), context + ahead * self.effects.context)
            case Prespeculate():
                return self._price(self._prespeculate(operation), context)
            case Settle():
                return []
            case _:
                assert isinstance(operation, Prefill)
                return [("prefill", self._prefill(f"{role_of(device)}.prefill", operation))]

    def row_steps(
        self, device: str, view: View, work: Sequence[Work], seconds: Mapping[str, float]
    ) -> list[tuple[str, float]]:
        """See `Costs`."""
        role = role_of(device)
        calls = [self._row_call(role, *step) for step in row_calls(work)]
        return self._price(calls, self._context(view), seconds, forwards=len(calls))

    def _row_call(self, role: str, name: str, rows: int, widest: int) -> Call:
        """A step over at most `widest` tokens in each of `rows` rows, at the forward that it resembles."""
        share = share_of(name)
        if widest == 0:
            return Call(name, share=share)
        tree = role == "draft" and base_name(name) == "tree"
        surface = TREE_SURFACE if tree else f"{role}.forward"
        if surface not in self.surfaces:
            raise _no_surface(surface)
        if not tree:
            return self._forward(surface, name, rows, widest, grows=widest, share=share)
        total = widest * self._counted(rows)
        return self._tree(name, rows, widest, total, grows=widest, share=share)

    def _forward(self, surface: str, name: str, rows: int, width: int, **more: Any) -> Call:
        """A forward over `width` new tokens in each of `rows` rows."""
        effects = self.effects
        wide = effects.verify_width if surface == "target.forward" else effects.draft_width
        shape = (("batch", self._counted(rows)), ("new_tokens", width if wide else 1))
        return Call(name, surface, shape, **{"noise": surface, **more})

    def _tree(self, name: str, rows: int, widest: int, total: int, **more: Any) -> Call:
        """A tree step over `widest` branches in each of `rows` rows, `total` in all."""
        if not self.effects.draft_width:
            return self._forward("draft.forward", name, rows, 1, noise=TREE_SURFACE, **more)
        batched = "batch" in self.surfaces[TREE_SURFACE].axes
        shape = (("batch", self._counted(rows)), ("branches", widest)) if batched else (("branches", total),)
        return Call(name, TREE_SURFACE, shape, noise=TREE_SURFACE, **more)

    def _draft(self, operation: Draft | Continue, first: int) -> list[Call]:
        rows, further = len(operation.view.slots), operation.lookahead - 1
        opening = self._forward("draft.forward", "draft", rows, first, grows=1)
        if not further:
            return [opening]
        return [opening, self._forward("draft.forward", "draft", rows, 1, grows=1, times=further)]

    def _prespeculate(self, operation: Prespeculate) -> list[Call]:
        slots, branches, count = operation.view.slots, operation.branches, operation.lookahead
        rows, widest, total = len(slots), int(branches.max()), int(branches.sum())
        if not self.effects.draft_width:  # a step is a forward, and the glue is none
            return [self._tree("tree", rows, widest, total, times=count)]
        grows = widest if "batch" in self.surfaces[TREE_SURFACE].axes else -(-total // rows)
        fed = 1 + int(operation.speculation.lengths[slots].max())
        glue = self._forward("draft.forward", "glue", rows, fed, grows=fed)
        return [glue, self._tree("tree", rows, widest, total, grows=grows, times=count)]

    def _price(
        self,
        calls: Sequence[Call],
        context: int,
        seconds: Mapping[str, float] | None = None,
        forwards: int | None = None,
    ) -> list[tuple[str, float]]:
        """Named seconds of calls one after the other, the first one at `context`.

        `seconds` are those of steps without a call, by name.  The noise of a surface is the mean of
        `forwards` independent steps; None: of its calls.
        """
        counts: dict[str, int] = {}
        for call in calls:
            counts[call.noise] = counts.get(call.noise, 0) + call.times
        factors = {noise: self._factor(noise, forwards or n) for noise, n in counts.items() if noise}
        call_s, steps = 0.0, list[tuple[str, float]]()
        for call in calls:
            name, share = call.name, call.share
            if call.surface:
                factor = factors[call.noise]
                taken = [mean_s * factor for mean_s in self._seconds(call, context)]
                call_s = taken[-1]
                if share is None:
                    steps += [(name, call_s) for call_s in taken]
                if self.effects.context:
                    context += call.grows * call.times
            elif share is None:
                steps.append((name, (seconds or {}).get(name, 0.0)))
            if share is not None:
                steps.append((name, share * call_s))
        return steps

    def _prefill(self, name: str, operation: Prefill) -> float:
        """Seconds of a prefill; nothing if it was not measured.

        Tokens that the slots hold already are looked at by each new one.
        """
        contexts, starts = operation.view.contexts, operation.starts
        rows = self._counted(len(contexts))
        tokens = int((contexts if starts is None else contexts - starts).max())
        if (name, rows, tokens) not in self._prefills:
            surface = self.surfaces.get(name)
            seconds = 0.0 if surface is None else surface.seconds(batch=rows, new_tokens=tokens)
            self._prefills[name, rows, tokens] = seconds * self.drift.get(name, 1.0)
            self._note(name, "batch", rows)
            self._note(name, "new_tokens", tokens)
        whole = self._prefills[name, rows, tokens]
        if starts is None or not starts.any() or name not in self.surfaces:
            return whole
        history = float(((contexts - starts) * starts).sum())
        return whole + curvature(self.surfaces[name]) * history * self.drift.get(name, 1.0)

    def counts(self, rows: IntArray) -> IntArray:
        """[n] rows as they are priced."""
        return rows if self.effects.batch_width else np.ones_like(rows)

    def _counted(self, rows: int) -> int:
        return rows if self.effects.batch_width else 1

    def _context(self, view: View) -> int:
        """Mean context of the rows, in tokens."""
        if not self.effects.context:
            return int(view.contexts[0] - view.positions[0])
        return int(view.contexts.sum()) // len(view.contexts)

    def _seconds(self, call: Call, context: int) -> list[float]:
        """[times] mean seconds of calls, the first one at `context`."""
        stride = call.grows if self.effects.context else 0
        last = context + (call.times - 1) * stride
        self._note(call.surface, "context", context)
        if last > context:
            self._note(call.surface, "context", last)
        if stride > 0 and last // PAGE == context // PAGE:
            start = context % PAGE
            return self._page(call, context)[start : start + last - context + 1 : stride]
        contexts = (context + i * stride for i in range(call.times))
        return [self._page(call, at)[at % PAGE] for at in contexts]

    def _page(self, call: Call, context: int) -> list[float]:
        """[PAGE] seconds of calls of one shape, at the contexts around this one.

        A text grows by a few tokens per round, so that one call of the surface serves many rounds; contexts
        have no end that a single table could reach.
        """
        name, low = call.surface, context - context % PAGE
        page = self._pages.get((name, low, call.shape))
        if page is None:
            shape = dict(call.shape)
            along = self.surfaces[name].along("context", low + PAGE - 1, start=low, **shape)
            page = self._pages[name, low, call.shape] = (along * self.drift.get(name, 1.0)).tolist()
            for axis, value in shape.items():
                self._note(name, axis, value)
        return page

    def check_tree(self) -> None:
        """Refuse steps of a tree where none was measured.

        Raises:
            SettingError: None was.
        """
        if TREE_SURFACE not in self.surfaces:
            raise _no_surface(TREE_SURFACE)

    def forwards(self, name: str, rows: IntArray, width: IntArray, context: IntArray) -> FloatArray:
        """[n] mean seconds of forwards or tree steps, over [n] rows, new tokens or branches, contexts."""
        if len(rows) == 0:
            return np.zeros(0)
        counted = self.counts(rows)
        wide = self.effects.verify_width if name == "target.forward" else self.effects.draft_width
        narrow = name != TREE_SURFACE and not wide
        if narrow:
            width = np.ones_like(width)
        wide_axis = "branches" if name == TREE_SURFACE else "new_tokens"
        self._note_all(name, context=context, batch=counted, **{wide_axis: width})
        return self.surfaces[name].lines.seconds(counted, width, context) * self.drift.get(name, 1.0)

    def repeated(
        self, name: str, rows: IntArray, width: IntArray, context: IntArray, *, grows: IntArray, times: int
    ) -> FloatArray:
        """[n] mean seconds of `times` equal forwards one after the other, each of which makes the context of
        the next one longer by `grows`; see `forwards`.
        """
        if not grows.any():
            return times * self.forwards(name, rows, width, context)
        contexts = (context[:, None] + grows[:, None] * np.arange(times)).ravel()
        every = self.forwards(name, np.repeat(rows, times), np.repeat(width, times), contexts)
        return np.asarray(every.reshape(len(rows), times).sum(axis=1))

    def prefills(self, name: str, rows: IntArray, tokens: IntArray) -> FloatArray:
        """[n] seconds of prefills of [n] rows and prompt tokens; nothing if it was not measured."""
        if name not in self.surfaces:
            return np.zeros(len(rows))
        counted = self.counts(rows)
        self._note_all(name, batch=counted, new_tokens=tokens)
        seconds = self.surfaces[name].lines.seconds(counted, tokens, np.zeros_like(tokens))
        return seconds * self.drift.get(name, 1.0)

    def noise_factors(self, name: str, count: int) -> FloatArray | None:
        """[count] noise of the next operations; None without any."""
        return None if self._noise is None else self._noise.factors(name, self.surfaces[name].spread, count)

    def _note_all(self, name: str, **coordinates: IntArray) -> None:
        """Remember the ranges of many coordinates."""
        for axis, values in coordinates.items():
            self._note(name, axis, int(values.min()))
            self._note(name, axis, int(values.max()))

    def _note(self, name: str, axis: str, value: int) -> None:
        """Remember the range of coordinates that was asked of an operation."""
        low, high = self._ranges.get((name, axis), (value, value))
        if value <= low or value >= high:
            self._ranges[name, axis] = (min(low, value), max(high, value))

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

    def _factor(self, name: str, forwards: int) -> float:
        """Noise of the next operation; the mean of `forwards` independent steps varies that much less."""
        if self._noise is None:
            return 1.0
        factor = self._noise.factor(name, self.surfaces[name].spread)
        return 1.0 + (factor - 1.0) / math.sqrt(forwards)


def curvature(prefills: LatencySurface) -> float:
    """Seconds that each token of a prompt takes for each one before it, by the three longest ones measured.

    A prompt of N tokens takes a + b N + c N^2 / 2: over the two pieces between them the slopes differ by c
    times the distance of their middles.  0 where noise has it negative, or there are fewer than three.
    """
    lengths = prefills.ticks("new_tokens")[-3:]
    if len(lengths) < 3:
        return 0.0
    taken = [prefills.seconds(batch=1, new_tokens=tokens) for tokens in lengths]
    first, second = np.diff(taken) / np.diff(lengths)
    return max(0.0, float(second - first) / (0.5 * float(lengths[2] - lengths[0])))


def _no_surface(name: str) -> SettingError:
    return SettingError(
        f"this profile has no {name}, which the policy's steps need; record one with `calibrate`"
    )
