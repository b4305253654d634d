"""Policies that are replayed from recorded replies, without events: a script of what they submit and await.

A policy runs once, in a world without a clock that answers at once, and everything that it asks for is
written down.  The script is then timed on any costs, with any luck: what a recorded round decides does not
depend on the clock.  A policy that stops work midway has none; there the event world answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np

from hardware_profiles.optime import LEAST_SHARE, Host, OperationHost, OperationTiming, base_name, share_of
from policies.operation import Draft, Operation, Prefill, RowOperation, row_calls
from policies.protocols import World
from policies.registry import Settings, start
from policies.rows import RoundLog, Rows
from policies.sampling import FloatArray
from policies.summary import Summary, summarise
from policies.values import BoolArray, IntArray, Request
from simulator.compiled.loops import HEAR, MOMENT, SUBMIT, WAIT, run_script
from simulator.compiled.prices import DRAFT, TARGET, slowdown_tables
from simulator.costs import TREE_SURFACE, Costs, KeyedNoise, ProfileCosts, TextbookCosts
from simulator.replies import Replies, RowReplies
from simulator.tokens import TokenModel

KEPT_SCRIPTS = 4096
NO_MARK = -1.0
DEVICES = ("target", "draft")


class NotScriptedError(Exception):
    """What a policy does depends on the clock."""


class OpFacts(NamedTuple):
    """What prices need of an operation, beside its calls.

    Attributes:
        device: 0, the target, or 1, the draft.
        kind: As timelines call it, by which its own times and its luck go.
        host: The host operation whose times it has otherwise.
        rows: Rows that take part.
        contexts: Sum of their contexts.
        first_prompt: Prompt of the first of them.
        tokens: Tokens that go through its model.
        longest: Longest prompt of a prefill; 0 for others.
        early_after: Step after which it says something; None if it does not.
    """

    device: int
    kind: str
    host: str
    rows: int
    contexts: int
    first_prompt: int
    tokens: int
    longest: int
    early_after: str | None


class CallFacts(NamedTuple):
    """A step of an operation: its name, the rows that have a part in it, the widest one's tokens, and by how
    many tokens it makes the context of the next one longer.
    """

    op: int
    name: str
    rows: int
    width: int
    grows: int


@dataclass
class Script:
    """What a policy submitted and awaited.

    Attributes:
        codes: [m] `SUBMIT`, `WAIT`, `HEAR` or `MOMENT`.
        arguments: [m] the operation, or the number of the moment.
        ops: Operations in the order submitted.
        calls: Their steps.
        moments: Moments at which the policy acted; 0 is the beginning.
        prefills: Moments between which the batch waited for prefills.
        log: The rounds, with moments in the place of seconds.
        texts: Tokens emitted by each request, where they are known.
        contents: What answered, kept for its identity.
    """

    codes: list[int] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    ops: list[OpFacts] = field(default_factory=list)
    calls: list[CallFacts] = field(default_factory=list)
    moments: int = 1
    prefills: list[tuple[int, int]] = field(default_factory=list)
    log: RoundLog = field(default_factory=RoundLog)
    texts: dict[int, list[int]] = field(default_factory=dict)
    contents: RowReplies | None = None


class _Awaited:
    """An event of a world without a clock: the operations that it stands for."""

    def __init__(self, world: _ScriptedWorld, code: int, numbers: tuple[int, ...], value: Any) -> None:
        self.world, self.code, self.numbers, self._value = world, code, numbers, value

    triggered = False

    @property
    def value(self) -> Any:
        return self._value()

    def __and__(self, other: _Awaited) -> _Awaited:
        return _Awaited(self.world, self.code, self.numbers + other.numbers, lambda: None)

    @property
    def early(self) -> _Awaited:
        """What it says on the way."""
        operation = self.world.operations[self.numbers[0]]
        return _Awaited(self.world, HEAR, self.numbers, lambda: self.world.work.early_answer(operation))

    def stop(self) -> None:
        raise NotScriptedError("an operation is stopped midway")


class _ScriptedDevice:
    def __init__(self, world: _ScriptedWorld, number: int) -> None:
        self.world, self.number, self.name = world, number, DEVICES[number]

    def submit(self, operation: Operation) -> _Awaited:
        return self.world.submit(self.number, operation)


class _ScriptedWorld:
    """A world whose time is the number of the moment (`policies.protocols.World`)."""

    def __init__(self, work: Replies, contents: RowReplies | None, vocabulary: int) -> None:
        self.work, self.contents, self.vocabulary = work, contents, vocabulary
        self.script = Script()
        self.operations: list[Operation] = []
        self.target, self.draft = _ScriptedDevice(self, 0), _ScriptedDevice(self, 1)
        self.drafts = (self.draft,)
        self._begun: int | None = None

    @property
    def now(self) -> float:
        return float(self.script.moments - 1)

    def submit(self, device: int, operation: Operation) -> _Awaited:
        """Write an operation down."""
        number, script = len(self.operations), self.script
        self.operations.append(operation)
        script.codes.append(SUBMIT)
        script.arguments.append(number)
        replies: list[Any] = []
        if isinstance(operation, RowOperation):
            assert self.contents is not None
            replies = self.contents.replies(operation)
        self._note(number, device, operation, replies)
        if isinstance(operation, Prefill):
            self._begun = script.moments - 1

        def answer() -> Any:
            if isinstance(operation, RowOperation):
                return operation.answer(replies)
            return self.work.answer(operation, None)

        return _Awaited(self, WAIT, (number,), answer)

    def wait(self, event: _Awaited) -> Any:
        """Write down what is awaited; returns its value."""
        script = self.script
        for number in event.numbers:
            script.codes.append(event.code)
            script.arguments.append(number)
        script.codes.append(MOMENT)
        script.arguments.append(script.moments)
        if self._begun is not None:
            script.prefills.append((self._begun, script.moments))
            self._begun = None
        script.moments += 1
        return event.value

    def _note(self, number: int, device: int, operation: Operation, replies: list[Any]) -> None:
        view = operation.view
        rows, first = len(view.slots), int(view.contexts[0] - view.positions[0])
        tokens, longest, add = operation.tokens_fed, 0, self.script.calls.append
        match operation:
            case RowOperation():
                work = [reply.work for reply in replies]
                tokens = sum(fed for each in work for _, fed in each)
                for name, there, widest in row_calls(work):
                    add(CallFacts(number, name, there, widest, widest))
            case Draft():
                unseen = int(operation.unseen[view.slots].max())
                for step in range(operation.lookahead):
                    add(CallFacts(number, "draft", rows, 1 if step else unseen, 1))
            case Prefill():
                longest = int(view.contexts.max())
            case _:
                raise NotScriptedError(f"{operation.kind} in a policy of row operations")
        early = operation.early_after if operation.early else None
        contexts = int(view.contexts.sum())
        facts = (rows, contexts, first, tokens, longest, early)
        self.script.ops.append(OpFacts(device, operation.kind, operation.cost_class, *facts))


def write_script(tokens: TokenModel, settings: Settings, contents: RowReplies | None, rows: Rows) -> Script:
    """Run a policy to its end in a world without a clock.

    Raises:
        NotScriptedError: It stops work midway.
        SettingError: As `simulate`.
    """
    work = Replies(TextbookCosts(1.0, 1.0), tokens, Host(), rows=contents)
    world = _ScriptedWorld(work, contents, tokens.vocabulary)
    steps: Any = start(cast("World", world), rows, settings)
    value = None
    while True:
        try:
            event = steps.send(value)
        except StopIteration:
            break
        value = world.wait(event)
    world.script.log, world.script.texts, world.script.contents = rows.log, rows.texts, contents
    return world.script


def joined(scripts: Sequence[Script]) -> Script:
    """One after the other."""
    whole = Script()
    for script in scripts:
        ops, moments = len(whole.ops), whole.moments - 1
        whole.codes += script.codes
        shifts = {MOMENT: moments}
        whole.arguments += [
            argument + shifts.get(code, ops)
            for code, argument in zip(script.codes, script.arguments, strict=True)
        ]
        whole.ops += script.ops
        whole.calls += [call._replace(op=call.op + ops) for call in script.calls]
        whole.prefills += [(a + moments, b + moments) for a, b in script.prefills]
        whole.moments += script.moments - 1
        mine, log = script.log, whole.log
        log.batch_rounds += mine.batch_rounds
        log.runs_on = mine.runs_on
        log.ends += [end + moments for end in mine.ends]
        log.admitted_s |= {request: at + moments for request, at in mine.admitted_s.items()}
        log.first_token_s |= {request: at + moments for request, at in mine.first_token_s.items()}
        log.extend(mine)
        whole.texts |= script.texts
    return whole


@dataclass
class ScriptPrices:
    """What the operations of a script cost."""

    costs: Costs
    host: Host
    timings: Mapping[str, OperationTiming]
    noise: KeyedNoise | None
    sampled: bool
    seconds: Mapping[str, float]

    def host_of(self, facts: OpFacts) -> OperationHost:
        """Host time of an operation."""
        if facts.kind in self.timings:
            return self.timings[facts.kind].host
        if facts.longest:
            return OperationHost(submit_s=self.host.submit_s, report_s=self.host.report_s)
        return self.host.of(facts.host, sampled=self.sampled)  # type: ignore[arg-type]

    def price(self, script: Script) -> tuple[FloatArray, FloatArray, list[OperationHost], IntArray]:
        """[n, 5] operations; [n, 2] share of each after its early result, and seconds until that is heard;
        hosts, and the [n] number of each operation's.
        """
        facts = script.ops
        rows = np.array([f.rows for f in facts])
        keys = {key: i for i, key in enumerate(dict.fromkeys((f.device, f.kind, f.host) for f in facts))}
        which = np.array([keys[f.device, f.kind, f.host] for f in facts])
        hosts = [self.host_of(next(f for f in facts if (f.device, f.kind, f.host) == key)) for key in keys]
        varying = np.array([host.spread is None for host in hosts])[which]
        expected, marks, count = self._expected(script, rows, varying)
        ops, tokens = np.empty((len(facts), 5)), np.array([f.tokens for f in facts])
        for (device, kind, _), number in keys.items():
            host, mine = hosts[number], np.flatnonzero(which == number)
            scaled = host.scale * expected[mine]
            beyond = host.extra_s + host.row_s * (rows[mine] - 1) + host.step_s * count[mine]
            ops[mine, 0] = host.submit_s + host.submit_row_s * (rows[mine] - 1)
            ops[mine, 1] = scaled + beyond + host.token_s * tokens[mine]
            ops[mine, 2] = LEAST_SHARE * scaled
            ops[mine, 3] = self._luck(DEVICES[device], kind, host, len(mine))
            ops[mine, 4] = host.report_s + host.report_token_s * tokens[mine]
            timing = self.timings.get(kind)
            said = None if timing is None else timing.mark_s
            marks[mine, 1] = ops[mine, 4] if said is None else said
        return ops, marks, hosts, which

    def _luck(self, device: str, kind: str, host: OperationHost, count: int) -> FloatArray | float:
        if self.noise is None or kind == "prefill":
            return 1.0
        if host.spread is None:
            return 1.0
        return self.noise.factors(f"{device}-{kind}", host.spread, count)

    def _expected(
        self, script: Script, rows: IntArray, varying: BoolArray
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """[n] seconds that the forwards of each operation take, [n, 2] as `price` has them, and [n] steps.

        `varying` [n] says whose forwards vary one by one.
        """
        facts, calls, n = script.ops, script.calls, len(script.ops)
        expected, marks, count = np.zeros(n), np.zeros((n, 2)), np.zeros(n, dtype=np.int64)
        prefills = np.array([i for i, f in enumerate(facts) if f.longest], dtype=np.int64)
        for device, name in enumerate(DEVICES):
            mine = np.array([i for i in prefills.tolist() if facts[i].device == device], dtype=np.int64)
            if isinstance(self.costs, ProfileCosts) and len(mine):
                longest = np.array([facts[i].longest for i in mine.tolist()])
                expected[mine] = self.costs.prefills(f"{name}.prefill", rows[mine], longest)
        count[prefills] = 1
        if not calls:
            return expected, marks, count
        op = np.array([c.op for c in calls])
        seconds = self._steps(script, op, varying)
        expected += np.bincount(op, seconds, minlength=n)
        count += np.bincount(op, minlength=n)
        marks[:, 0] = NO_MARK
        for number in [i for i, f in enumerate(facts) if f.early_after is not None]:
            mine = np.flatnonzero(op == number)
            names = [calls[i].name for i in mine.tolist()]
            last = facts[number].early_after
            if last in names and expected[number] > 0.0:
                rest = seconds[mine[names.index(last) + 1 :]].sum()
                marks[number, 0] = rest / expected[number]
        return expected, marks, count

    def _steps(self, script: Script, op: IntArray, varying: BoolArray) -> FloatArray:
        """[c] seconds of every step, as expected and as it takes in real rounds."""
        facts, calls = script.ops, script.calls
        fed = np.array([c.width for c in calls]) > 0
        device = np.array([f.device for f in facts])[op]
        model = self._forwards(script, op, device, varying)
        names = {name: i for i, name in enumerate(dict.fromkeys(c.name for c in calls))}
        name = np.array([names[c.name] for c in calls])
        share = np.array([np.nan if (s := share_of(each)) is None else s for each in names])[name]
        # A piece of a call is one of the last call so far.
        index = np.where(fed, np.arange(len(calls)), -1)
        last = np.maximum.accumulate(np.where(fed, index, -1))
        begins = np.searchsorted(op, op)
        piece = np.where(last >= begins, model[np.maximum(last, 0)], 0.0)
        if isinstance(self.costs, TextbookCosts):
            piece = np.where(device == 0, self.costs.target_s, self.costs.draft_s)
        seconds = np.where(np.isnan(share), model, share * piece)
        kinds = np.array([f.kind for f in facts])[op]
        rows = np.array([f.rows for f in facts])[op]
        for kind in dict.fromkeys(kinds.tolist()):
            timing, row_operation = self.timings.get(kind), kind != "draft"
            for each, number in names.items():
                mine = np.flatnonzero((kinds == kind) & (name == number))
                if len(mine) == 0 or not row_operation:
                    continue
                if share_of(each) is None and (timing is None or base_name(each) not in timing.steps):
                    silent = mine[~fed[mine]]
                    seconds[silent] = self.seconds.get(each, 0.0)
                if timing is not None:
                    step = timing.step(each)
                    seconds[mine] = step.extra_s + step.row_s * (rows[mine] - 1) + step.factor * seconds[mine]
        return seconds

    def _forwards(self, script: Script, op: IntArray, device: IntArray, varying: BoolArray) -> FloatArray:
        """[c] seconds of the calls of a model; 0 for steps without one."""
        width, grows, rows = np.array([(c.width, c.grows, c.rows) for c in script.calls]).T
        seconds, fed = np.zeros(len(op)), width > 0
        if isinstance(self.costs, TextbookCosts):
            return np.where(fed, np.where(device == 0, self.costs.target_s, self.costs.draft_s), 0.0)
        costs, facts = self.costs, script.ops
        assert isinstance(costs, ProfileCosts)
        if costs.effects.context:
            context = np.array([f.contexts // f.rows for f in facts])[op]
            grown = np.cumsum(np.where(fed, grows, 0)) - np.where(fed, grows, 0)
            context = context + grown - grown[np.searchsorted(op, op)]
        else:
            context = np.array([f.first_prompt for f in facts])[op]
        tree = np.array([base_name(c.name) == "tree" for c in script.calls]) & (device == 1) & fed
        if tree.any():
            costs.check_tree()
        growing = tree & costs.effects.draft_width
        for surface, mask in (
            (TARGET, fed & (device == 0)),
            (DRAFT, fed & (device == 1) & ~growing),
            (TREE_SURFACE, growing),
        ):
            mine = np.flatnonzero(mask)
            if len(mine):
                wide = width[mine]
                if surface == TREE_SURFACE and "batch" not in costs.surfaces[surface].axes:
                    wide = wide * costs.counts(rows[mine])
                seconds[mine] = costs.forwards(surface, rows[mine], wide, context[mine])
        calls = np.bincount(op, minlength=len(facts))
        # A device begins its operations in the order in which they were submitted.
        for surface, mask in (
            (TARGET, fed & (device == 0)),
            (DRAFT, fed & (device == 1) & ~tree),
            (TREE_SURFACE, tree),
        ):
            mine = np.flatnonzero(mask & varying[op])
            noisy = np.unique(op[mine])
            factors = costs.noise_factors(surface, len(noisy)) if len(mine) else None
            if factors is not None:
                less = 1.0 + (factors - 1.0) / np.sqrt(calls[noisy])
                seconds[mine] *= less[np.searchsorted(noisy, op[mine])]
        return seconds


def replay_script(
    script: Script,
    requests: Sequence[Request],
    batch: int,
    prices: ScriptPrices,
    slowdowns: Mapping[tuple[str, str, str, str | None], float],
) -> tuple[Summary, Rows]:
    """What `simulate` makes of a script."""
    ops, marks, hosts, which = prices.price(script)
    classes = ["prefill" if f.longest else f.host for f in script.ops]
    known = list(dict.fromkeys(["prefill", *classes]))
    beside_draft, beside_target = slowdown_tables(slowdowns, known)
    state, busy, moments = np.zeros(2), np.zeros(2), np.zeros(script.moments)
    run_script(
        len(script.codes),
        np.array(script.codes),
        np.array(script.arguments),
        np.array([f.device for f in script.ops]),
        ops.ravel(),
        marks.ravel(),
        np.array([f.early_after is not None for f in script.ops]),
        np.array([known.index(each) for each in classes]),
        which,
        np.array([host.wake for host in hosts]),
        np.array([host.idle_cap_s for host in hosts]),
        len(known),
        beside_draft.ravel(),
        beside_target.ravel(),
        state,
        busy,
        moments,
    )
    rows = Rows(requests, batch)
    rows.waiting.clear()
    rows.texts = script.texts
    rows.log = script.log.at(moments.tolist())
    rows.log.prefill_s = float(sum(moments[b] - moments[a] for a, b in script.prefills))
    busy_s = dict(zip(DEVICES, busy.tolist(), strict=True))
    summary = summarise(rows.log, total_s=float(state[0]), busy_s=busy_s, overlap_s=float(state[1]))
    return summary, rows


def scripts_of(
    kept: dict[Hashable, Script],
    tokens: TokenModel,
    settings: Settings,
    contents: RowReplies | None,
    about: Hashable,
    *,
    requests: Sequence[Request],
    batch: int,
    keep_tokens: bool,
) -> Script:
    """The script of a run, from those that are kept; `about` is what `contents` rest on.

    One at a time requests do not touch each other, so that each has a script of its own.
    """
    groups = [[request] for request in requests] if batch == 1 else [list(requests)]
    found = []
    for group in groups:
        facts = tuple((request.id, request.prompt_length, request.limit) for request in group)
        key = (settings, about, batch, facts)
        if key not in kept:
            if len(kept) >= KEPT_SCRIPTS:
                kept.pop(next(iter(kept)))
            rows = Rows(group, min(batch, len(group)), keep_tokens=keep_tokens)
            kept[key] = write_script(tokens, settings, contents, rows)
        found.append(kept[key])
    return joined(found)
