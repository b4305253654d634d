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
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from itertools import count as count_from
from typing import Any, NamedTuple, Protocol, cast

import msgspec
import numpy as np

from hardware_profiles.optime import base_name, share_of
from hardware_profiles.surface import LatencySurface, Line, varied
from policies.config import SettingError
from policies.operation import Continue, Draft, Operation, Prefill, Prespeculate, Work, row_calls
from policies.protocols import role_of
from policies.sampling import FloatArray, keyed_generator
from policies.values import IntArray, Ints, View

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
        self._streams: dict[str, Iterator[float]] = {}

    def stream(self, name: str, spread: Sequence[float]) -> Iterator[float]:
        """The factors of a name, whose spread (`hardware_profiles.surface.varied`) is always the same.

        All who ask for the name take from the same ones.
        """
        found = self._streams.get(name)
        if found is None:
            blocks = (
                _factors(self.seed, f"latency-{name}", block, self.strata, spread).tolist()
                for block in count_from(0)
            )
            found = self._streams[name] = chain.from_iterable(blocks)
        return found

    def factor(self, name: str, spread: Sequence[float]) -> float:
        """The next factor of a name."""
        return next(self.stream(name, spread))

    def factors(self, name: str, spread: Sequence[float], count: int) -> FloatArray:
        """[count] The next factors of a name of which no stream is taken."""
        used = self._used.get(name, 0)
        self._used[name] = used + count
        blocks = range(used // BLOCK, -(-(used + count) // BLOCK))
        found = [_factors(self.seed, f"latency-{name}", block, self.strata, spread) for block in blocks]
        return np.concatenate([np.zeros(0), *found])[used % BLOCK :][:count]


@lru_cache(maxsize=1536)
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


class Priced(msgspec.Struct, frozen=True, gc=False):
    """What an operation takes.

    Attributes:
        total_s: All its steps.
        count: How many there are.
        named: Names them, with what follows.
    """

    total_s: float
    count: int
    named: Any
    context: int = 0
    factors: Sequence[float] = ()

    @classmethod
    def of(cls, steps: list[tuple[str, float]]) -> Priced:
        """Of steps that are named already."""
        return cls(sum([seconds for _, seconds in steps]), len(steps), lambda *_: steps)

    @property
    def steps(self) -> list[tuple[str, float]]:
        """Its named steps, s."""
        steps: list[tuple[str, float]] = self.named(self.context, self.factors)
        return steps


Pricer = Callable[[View], Priced]
"""What an operation about some rows takes, of one kind and size on a role's devices."""


class Costs(Protocol):
    """Seconds of the steps of an operation on a device, at full rate."""

    @property
    def steady(self) -> Costs:
        """These costs at their means, without noise."""
        ...

    def steps(self, device: str, operation: Operation, size: Ints | None = None) -> list[tuple[str, float]]:
        """Named steps of a built-in operation, s; `size` is the operation's, if it is known already."""
        ...

    def pricer(self, device: str, operation: Operation, size: Ints | None) -> Pricer:
        """The same of operations like this one, named only where they are asked for."""
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

    def steps(self, device: str, operation: Operation, size: Ints | None = None) -> list[tuple[str, float]]:
        """See `Costs`."""
        kind = operation.cost_class
        if kind == "verify":
            return [("verify", self.target_s)]
        if kind == "settle":
            return []
        if kind == "prefill":
            return [("prefill", 0.0)]
        assert isinstance(operation, Draft | Continue | Prespeculate)
        return [("draft", self.draft_s)] * operation.lookahead

    def pricer(self, device: str, operation: Operation, size: Ints | None) -> Pricer:
        """See `Costs`."""
        priced = Priced.of(self.steps(device, operation, size))
        return lambda _: priced

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
KEPT_PLANS = 4096


class Call(NamedTuple):
    """Equal calls of a model, one after the other, or a step without one.

    Attributes:
        surface: What was measured of it; none for a step that feeds no token.
        rows: In it.
        width: New tokens of each row, or branches of a tree step.
        grows: Tokens by which each makes the context of the next one longer.
        times: How many there are.
        noise: Surface whose noise they have.
        share: See `share_of`.
    """

    name: str
    surface: str = ""
    rows: int = 1
    width: int = 1
    grows: int = 0
    times: int = 1
    noise: str = ""
    share: float | None = None


class _Lines:
    """Calls of a model, looked up but for the context."""

    __slots__ = ("cuts", "drift", "grows", "least_s", "name", "noise", "pieces", "range", "share", "times")

    def __init__(self, call: Call, line: Line, least_s: float, drift: float, contexts: list[int]) -> None:
        self.name, self.grows, self.times = call.name, call.grows, call.times
        self.noise, self.share = call.noise, call.share
        (self.cuts, self.pieces), self.least_s, self.drift = line, least_s, drift
        self.range = contexts

    def seconds(self, context: int) -> list[float]:
        """[times] mean seconds, the first one at `context`."""
        found, cuts, pieces, least_s = [], self.cuts, self.pieces, self.least_s
        self.range[0] = min(self.range[0], context)
        for _ in range(self.times):
            start, slope = pieces[bisect_right(cuts, context)] if cuts else pieces[0]
            seconds = start + slope * context
            found.append((seconds if seconds > least_s else least_s) * self.drift)
            context += self.grows
        self.range[1] = max(self.range[1], context - self.grows)
        return found


class _Plan:
    """Steps of operations of one shape.

    Args:
        steps: Calls of a model; name and share of those without one.
        noises: Surfaces whose noise they have, with their spreads, and the root of the number of forwards
            that it is the mean of.
    """

    __slots__ = ("_steady", "count", "kept_means", "noises", "steps")

    def __init__(
        self, steps: list[_Lines | tuple[str, float | None]], noises: list[tuple[str, Any, float]]
    ) -> None:
        self.steps, self.noises = steps, noises
        self.count = sum([1 if isinstance(step, tuple) else step.times for step in steps])
        self.kept_means: dict[int, list[float]] = {}
        self._steady: dict[int, Priced] = {}

    def steady(self, context: int) -> Priced:
        """What they take without noise, the first one at `context`."""
        found = self._steady.get(context)
        if found is None:
            still = [1.0] * len(self.noises)
            found = self._steady[context] = Priced(
                sum(self.means(context)), self.count, self.named, context, still
            )
        return found

    def means(self, context: int) -> list[float]:
        """Mean seconds of the calls of every noise, where all steps are whole calls."""
        found = self.kept_means.get(context)
        if found is None:
            found = self.kept_means[context] = [0.0] * len(self.noises)
            names, at = [name for name, _, _ in self.noises], context
            for step in self.steps:
                assert isinstance(step, _Lines)
                found[names.index(step.noise)] += sum(step.seconds(at))
                at += step.grows * step.times
        return found

    def named(
        self, context: int, factors: Sequence[float], seconds: Mapping[str, float] | None = None
    ) -> list[tuple[str, float]]:
        """Named seconds of steps one after the other, the first one at `context`.

        `seconds` are those of steps without a call, by name; `factors` are of every noise.
        """
        of = {name: factor for (name, _, _), factor in zip(self.noises, factors, strict=True)}
        call_s, steps = 0.0, list[tuple[str, float]]()
        for step in self.steps:
            if isinstance(step, tuple):
                name, share = step
                if share is None:
                    steps.append((name, (seconds or {}).get(name, 0.0)))
            else:
                name, share = step.name, step.share
                for mean_s in step.seconds(context):
                    call_s = mean_s * of[step.noise]
                    if share is None:
                        steps.append((name, call_s))
                context += step.grows * step.times
            if share is not None:
                steps.append((name, share * call_s))
        return steps


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
        self._contexts: dict[str, list[int]] = {}
        self._plans: dict[Hashable, _Plan] = {}
        self._prefills: dict[tuple[str, int, int], float] = {}
        self._noise = KeyedNoise(seed) if effects.jitter else None

    @cached_property
    def steady(self) -> ProfileCosts:
        """See `Costs`; what was looked up and asked for is common to both."""
        steady = copy(self)
        steady._noise = None
        return steady

    def steps(self, device: str, operation: Operation, size: Ints | None = None) -> list[tuple[str, float]]:
        """See `Costs`."""
        return self.pricer(device, operation, size)(operation.view).steps

    def pricer(self, device: str, operation: Operation, size: Ints | None) -> Pricer:
        """See `Costs`."""
        kind = operation.cost_class
        if kind in {"settle", "prefill"}:
            steps = []
            if kind == "prefill":
                steps = [("prefill", self._prefill(f"{role_of(device)}.prefill", cast("Prefill", operation)))]
            done = Priced.of(steps)
            return lambda _: done
        size = size or operation.size
        plan = self._plans.get((kind, size))
        if plan is None:
            assert size is not None
            plan = self._planned((kind, size), _CALLS[kind](self, *size))
        found, ahead = plan, 0
        if kind == "continue" and self.effects.context:
            ahead = cast("Ints", size)[1]
        if self._noise is None:
            return lambda view: found.steady(self._context(view) + ahead)
        noises = [(self._noise.stream(name, spread), root) for name, spread, root in plan.noises]
        kept, means, count, named, context_of = (
            plan.kept_means,
            plan.means,
            plan.count,
            plan.named,
            self._context,
        )
        stream, root = noises[0]
        second, second_root = noises[-1]
        alone = len(noises) == 1
        assert len(noises) <= 2

        by_context = self.effects.context

        def priced(view: View) -> Priced:
            contexts = view.contexts
            context = (sum(contexts) // len(contexts) if by_context else context_of(view)) + ahead
            mean_s = kept.get(context) or means(context)
            # The mean of independent forwards varies that much less.
            factor = 1.0 + (next(stream) - 1.0) / root
            if alone:
                return Priced(mean_s[0] * factor, count, named, context, (factor,))
            other = 1.0 + (next(second) - 1.0) / second_root
            total_s = mean_s[0] * factor + mean_s[1] * other
            return Priced(total_s, count, named, context, (factor, other))

        return priced

    def row_steps(
        self, device: str, view: View, work: Sequence[Work], seconds: Mapping[str, float]
    ) -> list[tuple[str, float]]:
        """See `Costs`."""
        key = (role_of(device), *row_calls(work))
        plan = self._plans.get(key)
        if plan is None:
            calls = [self._row_call(role_of(device), *step) for step in key[1:]]
            plan = self._planned(key, calls, forwards=len(calls))
        return plan.named(self._context(view), self._factors(plan), seconds)

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
        return Call(name, surface, rows, width if wide else 1, **{"noise": surface, **more})

    def _tree(self, name: str, rows: int, widest: int, total: int, **more: Any) -> Call:
        """A tree step over `widest` branches in each of `rows` rows, `total` in all."""
        if not self.effects.draft_width:
            return self._forward("draft.forward", name, rows, 1, noise=TREE_SURFACE, **more)
        batched = "batch" in self.surfaces[TREE_SURFACE].axes
        return Call(name, TREE_SURFACE, rows, widest if batched else total, noise=TREE_SURFACE, **more)

    def _verify_calls(self, rows: int, longest: int, drafted: int) -> list[Call]:
        width = 1 + (-(-drafted // rows) if self.packed else longest)
        return [self._forward("target.forward", "verify" if longest else "decode", rows, width)]

    def _continue_calls(self, rows: int, _: int, lookahead: int) -> list[Call]:
        return self._draft_calls(rows, 1, rows, lookahead)

    def _draft_calls(self, rows: int, most: int, _: int, lookahead: int) -> list[Call]:
        opening = self._forward("draft.forward", "draft", rows, most, grows=1)
        if lookahead == 1:
            return [opening]
        return [opening, self._forward("draft.forward", "draft", rows, 1, grows=1, times=lookahead - 1)]

    def _prespeculate_calls(
        self, rows: int, longest: int, _: int, widest: int, total: int, lookahead: int
    ) -> list[Call]:
        if not self.effects.draft_width:  # a step is a forward, and the glue is none
            return [self._tree("tree", rows, widest, total, times=lookahead)]
        grows = widest if "batch" in self.surfaces[TREE_SURFACE].axes else -(-total // rows)
        glue = self._forward("draft.forward", "glue", rows, 1 + longest, grows=1 + longest)
        return [glue, self._tree("tree", rows, widest, total, grows=grows, times=lookahead)]

    def _planned(self, key: Hashable, calls: Sequence[Call], forwards: int | None = None) -> _Plan:
        """Steps that are kept.

        The noise of a surface is the mean of `forwards` independent steps; None: of its calls.
        """
        counts: dict[str, int] = {}
        for call in calls:
            if call.noise:
                counts[call.noise] = counts.get(call.noise, 0) + call.times
        noises = [
            (noise, self.surfaces[noise].spread, math.sqrt(forwards or n)) for noise, n in counts.items()
        ]
        if len(self._plans) >= KEPT_PLANS:
            self._plans.clear()
        plan = self._plans.get(calls := tuple(calls))
        if plan is None:  # operations of several sizes may consist of the same calls
            steps = [self._lines(call) if call.surface else (call.name, call.share) for call in calls]
            plan = self._plans[calls] = _Plan(steps, noises)
        self._plans[key] = plan
        return plan

    def _lines(self, call: Call) -> _Lines:
        name, rows, surface = call.surface, self._counted(call.rows), self.surfaces[call.surface]
        self._note(name, "branches" if name == TREE_SURFACE else "new_tokens", call.width)
        self._note(name, "batch", rows)
        if not self.effects.context:
            call = call._replace(grows=0)
        contexts = self._contexts.setdefault(name, [1 << 62, -1])
        line = surface.lines.one(rows, call.width)
        return _Lines(call, line, surface.least_s, self.drift.get(name, 1.0), contexts)

    def _factors(self, plan: _Plan) -> list[float]:
        """Noise of the next operation; the mean of independent forwards varies that much less."""
        noise = self._noise
        if noise is None:
            return [1.0] * len(plan.noises)
        return [1.0 + (noise.factor(name, spread) - 1.0) / root for name, spread, root in plan.noises]

    def _prefill(self, name: str, operation: Prefill) -> float:
        """Seconds of a prefill; nothing if it was not measured.

        Tokens that the slots hold already are looked at by each new one.
        """
        new, starts = operation.view.contexts, operation.starts or ()
        if starts:
            new = tuple([context - start for context, start in zip(new, starts, strict=True)])
        rows, tokens = self._counted(len(new)), max(new)
        if (name, rows, tokens) not in self._prefills:
            surface = self.surfaces.get(name)
            seconds = 0.0 if surface is None else surface.seconds(batch=rows, new_tokens=tokens)
            self._prefills[name, rows, tokens] = seconds * self.drift.get(name, 1.0)
            self._note(name, "batch", rows)
            self._note(name, "new_tokens", tokens)
        whole = self._prefills[name, rows, tokens]
        if not any(starts) or name not in self.surfaces:
            return whole
        history = sum([count * start for count, start in zip(new, starts, strict=True)])
        return whole + curvature(self.surfaces[name]) * history * self.drift.get(name, 1.0)

    def counts(self, rows: IntArray) -> IntArray:
        """[n] rows as they are priced."""
        return rows if self.effects.batch_width else np.ones_like(rows)

    def _counted(self, rows: int) -> int:
        return rows if self.effects.batch_width else 1

    def _context(self, view: View) -> int:
        """Mean context of the rows, in tokens."""
        if not self.effects.context:
            return view.contexts[0] - view.positions[0]
        return sum(view.contexts) // len(view.contexts)

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
        for name, (low, high) in self._contexts.items():
            if low <= high:
                self._note(name, "context", low)
                self._note(name, "context", high)
        for (name, axis), (low, high) in sorted(self._ranges.items()):
            bounds = self.surfaces[name].bounds().get(axis) if name in self.surfaces else None
            origin = self.origins.get(name, "measured")
            if bounds is not None and low < bounds[0]:
                found.append(Extrapolation(name, axis, low, int(bounds[0]), origin))
            if bounds is not None and high > bounds[1]:
                found.append(Extrapolation(name, axis, high, int(bounds[1]), origin))
        return tuple(found)


_CALLS: Mapping[str, Callable[..., list[Call]]] = {
    "verify": ProfileCosts._verify_calls,
    "draft": ProfileCosts._draft_calls,
    "continue": ProfileCosts._continue_calls,
    "prespeculate": ProfileCosts._prespeculate_calls,
}
"""What operations consist of, by their cost class, from their `size`; PEARL's continuation is a draft of one
unseen token."""


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
