"""Policies that are replayed from recorded replies, without events: a script of what they submit and await.

A policy runs once, in a world without a clock that answers at once, and everything that it asks for is
written down.  The script is then timed on any costs, with any luck: what a recorded round decides does not
depend on the clock.  A policy that stops work midway has none; there the event world answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from hardware_profiles.optime import (
    LEAST_SHARE,
    Host,
    HostOperation,
    OperationHost,
    OperationTiming,
    base_name,
    share_of,
)
from policies.operation import Draft, Operation, Prefill, RowOperation, row_calls
from policies.protocols import World
from policies.registry import Settings, start
from policies.rows import RoundLog, Rows
from policies.sampling import FloatArray
from policies.summary import Summary, summarise
from policies.values import BoolArray, IntArray, Request
from simulator.compiled.loops import CLOCK_TURN, HEAR, MOMENT, SUBMIT, WAIT, run_script
from simulator.compiled.prices import DRAFT, TARGET, slowdown_tables
from simulator.costs import TREE_SURFACE, Costs, KeyedNoise, ProfileCosts, TextbookCosts
from simulator.replies import Replies, RowReplies
from simulator.tokens import TokenModel

KEPT_SCRIPTS = 4096
NO_MARK = -1.0
DEVICES = ("target", "draft")


class NotScriptedError(Exception):
    """What a policy does depends on the clock."""


class Names:
    """Numbers of names, the same in all scripts."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of a name."""
        if name not in self._numbers:
            self._numbers[name] = len(self.known)
            self.known.append(name)
        return self._numbers[name]


NAMES = Names()
DEVICE, KIND, HOST, ROWS, CONTEXTS, FIRST_PROMPT, TOKENS, LONGEST, EARLY_AFTER = range(9)
"""What prices need of an operation: 0, the target, or 1, the draft; its name in timelines, by which its own
times and its luck go; the host operation whose times it has otherwise; rows that take part; the sum of their
contexts; the prompt of the first of them; tokens that go through its model; longest prompt of a prefill, else
0; the step after which it says something, else -1."""
OP, NAME, THERE, WIDTH, GROWS = range(5)
"""What they need of a step: its operation; its name; rows that have a part in it; tokens of the widest one;
by how many it makes the context of the next one longer."""


@dataclass
class Script:
    """What a policy submitted and awaited.

    Attributes:
        codes: [m] `SUBMIT`, `WAIT`, `HEAR` or `MOMENT`.
        arguments: [m] the operation, or the number of the moment.
        ops: [n, 9] operations in the order submitted.
        calls: [c, 5] their steps.
        moments: Moments at which the policy acted; 0 is the beginning.
        prefills: [p, 2] moments between which the batch waited for prefills.
        table: The rounds (`RoundLog.table`).
        ends: [r] the moment at which each was committed.
        admitted: By request, the moment at which it got its slot.
        first_token: By request, that of its first token.
        runs_on: See `RoundLog`.
        texts: Tokens emitted by each request, where they are known.
        contents: What answered, kept for its identity.
    """

    codes: IntArray
    arguments: IntArray
    ops: IntArray
    calls: IntArray
    moments: int
    prefills: IntArray
    table: dict[str, IntArray]
    ends: IntArray
    admitted: dict[int, int]
    first_token: dict[int, int]
    runs_on: bool
    texts: dict[int, list[int]]
    contents: RowReplies | None


class _ScriptedLog(RoundLog):
    """A log whose rounds are in a table already."""

    def __init__(self, script: Script, moments: FloatArray) -> None:
        super().__init__()
        self._table = script.table
        self.batch_rounds, self.runs_on = len(script.ends), script.runs_on
        self.ends = moments[script.ends].tolist()
        self.prefill_s = float((moments[script.prefills[:, 1]] - moments[script.prefills[:, 0]]).sum())
        self.admitted_s, self.first_token_s = (
            {request: float(moments[at]) for request, at in times.items()}
            for times in (script.admitted, script.first_token)
        )

    def table(self) -> dict[str, IntArray]:
        """See `RoundLog`."""
        return self._table


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
        self.codes: list[int] = []
        self.arguments: list[int] = []
        self.ops: list[tuple[int, ...]] = []
        self.calls: list[tuple[int, ...]] = []
        self.prefills: list[tuple[int, int]] = []
        self.moments = 1
        self.operations: list[Operation] = []
        self.target, self.draft = _ScriptedDevice(self, 0), _ScriptedDevice(self, 1)
        self.targets, self.drafts = (self.target,), (self.draft,)
        self._begun: int | None = None

    @property
    def now(self) -> float:
        return float(self.moments - 1)

    def submit(self, device: int, operation: Operation) -> _Awaited:
        """Write an operation down."""
        number = len(self.operations)
        self.operations.append(operation)
        self.codes.append(SUBMIT)
        self.arguments.append(number)
        replies: list[Any] = []
        if isinstance(operation, RowOperation):
            assert self.contents is not None
            replies = self.contents.replies(operation)
        self._note(number, device, operation, replies)
        if isinstance(operation, Prefill):
            self._begun = self.moments - 1

        def answer() -> Any:
            if isinstance(operation, RowOperation):
                return operation.answer(replies)
            return self.work.answer(operation, None)

        return _Awaited(self, WAIT, (number,), answer)

    def wait(self, event: _Awaited) -> Any:
        """Write down what is awaited; returns its value."""
        self.codes += [*[event.code] * len(event.numbers), MOMENT]
        self.arguments += [*event.numbers, self.moments]
        if self._begun is not None:
            self.prefills.append((self._begun, self.moments))
            self._begun = None
        self.moments += 1
        return event.value

    def _note(self, number: int, device: int, operation: Operation, replies: list[Any]) -> None:
        view = operation.view
        contexts = view.contexts
        rows, first = len(contexts), contexts[0] - view.positions[0]
        tokens, longest, add = operation.tokens_fed, 0, self.calls.append
        match operation:
            case RowOperation():
                work = [reply.work for reply in replies]
                tokens = sum([fed for each in work for _, fed in each])
                calls = row_calls(work) if rows > 1 else ((name, 1, fed) for name, fed in work[0])
                self.calls += [(number, NAMES.number(n), there, fed, fed) for n, there, fed in calls]
            case Draft():
                unseen = max(operation.unseen[slot] for slot in view.slots)
                for step in range(operation.lookahead):
                    add((number, NAMES.number("draft"), rows, 1 if step else unseen, 1))
            case Prefill():
                longest = max(contexts)
            case _:
                raise NotScriptedError(f"{operation.kind} in a policy of row operations")
        early = NAMES.number(operation.early_after) if operation.early else -1
        names = NAMES.number(operation.kind), NAMES.number(operation.cost_class)
        facts = (rows, sum(contexts), first, tokens, longest, early)
        self.ops.append((device, *names, *facts))


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
    log = rows.log
    return Script(
        codes=np.array(world.codes, dtype=np.int64),
        arguments=np.array(world.arguments, dtype=np.int64),
        ops=np.array(world.ops, dtype=np.int64).reshape(-1, EARLY_AFTER + 1),
        calls=np.array(world.calls, dtype=np.int64).reshape(-1, GROWS + 1),
        moments=world.moments,
        prefills=np.array(world.prefills, dtype=np.int64).reshape(-1, 2),
        table=log.table(),
        ends=np.array(log.ends, dtype=np.int64),
        admitted={request: int(at) for request, at in log.admitted_s.items()},
        first_token={request: int(at) for request, at in log.first_token_s.items()},
        runs_on=log.runs_on,
        texts=rows.texts,
        contents=contents,
    )


def joined(scripts: Sequence[Script]) -> Script:
    """One after the other."""
    if len(scripts) == 1:
        return scripts[0]
    arguments, ops, calls, prefills, ends = [], [], [], [], []
    admitted: dict[int, int] = {}
    first_token: dict[int, int] = {}
    texts: dict[int, list[int]] = {}
    count, moments = 0, 0
    for script in scripts:
        arguments.append(script.arguments + np.where(script.codes == MOMENT, moments, count))
        calls.append(script.calls + np.array([count, 0, 0, 0, 0]))
        ops.append(script.ops)
        prefills.append(script.prefills + moments)
        ends.append(script.ends + moments)
        admitted |= {request: at + moments for request, at in script.admitted.items()}
        first_token |= {request: at + moments for request, at in script.first_token.items()}
        texts |= script.texts
        count, moments = count + len(script.ops), moments + script.moments - 1
    tables = [script.table for script in scripts]
    return Script(
        codes=np.concatenate([script.codes for script in scripts]),
        arguments=np.concatenate(arguments),
        ops=np.concatenate(ops),
        calls=np.concatenate(calls),
        moments=moments + 1,
        prefills=np.concatenate(prefills),
        table={name: np.concatenate([table[name] for table in tables]) for name in tables[0]},
        ends=np.concatenate(ends),
        admitted=admitted,
        first_token=first_token,
        runs_on=scripts[0].runs_on,
        texts=texts,
        contents=scripts[0].contents,
    )


@dataclass
class ScriptPrices:
    """What the operations of a script cost."""

    costs: Costs
    host: Host
    timings: Mapping[str, OperationTiming]
    noise: KeyedNoise | None
    sampled: bool
    seconds: Mapping[str, float]

    def host_of(self, kind: str, host: str) -> OperationHost:
        """Host time of the operations of a kind."""
        if kind in self.timings:
            return self.timings[kind].host
        if host == "prefill":
            return OperationHost(submit_s=self.host.submit_s, report_s=self.host.report_s)
        return self.host.of(cast("HostOperation", host), sampled=self.sampled)

    def price(self, script: Script) -> tuple[FloatArray, FloatArray, list[OperationHost], IntArray]:
        """[n, 5] operations; [n, 2] share of each after its early result, and seconds until that is heard;
        hosts, and the [n] number of each operation's.
        """
        facts = script.ops
        groups, which = np.unique(facts[:, [DEVICE, KIND, HOST]], axis=0, return_inverse=True)
        named = [(DEVICES[d], NAMES.known[kind], NAMES.known[host]) for d, kind, host in groups.tolist()]
        hosts = [self.host_of(kind, host) for _, kind, host in named]
        varying = np.array([host.spread is None for host in hosts])[which]
        expected, marks, count = self._expected(script, varying)
        ops, rows, tokens = np.empty((len(facts), 5)), facts[:, ROWS], facts[:, TOKENS]
        for number, (device, kind, _) in enumerate(named):
            host, mine = hosts[number], np.flatnonzero(which == number)
            scaled = host.scale * expected[mine]
            beyond = host.extra_s + host.row_s * (rows[mine] - 1) + host.step_s * count[mine]
            ops[mine, 0] = host.submit_s + host.submit_row_s * (rows[mine] - 1)
            ops[mine, 1] = scaled + beyond + host.token_s * tokens[mine]
            ops[mine, 2] = LEAST_SHARE * scaled
            ops[mine, 3] = self._luck(device, kind, host, len(mine))
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

    def _expected(self, script: Script, varying: BoolArray) -> tuple[FloatArray, FloatArray, IntArray]:
        """[n] seconds that the forwards of each operation take, [n, 2] as `price` has them, and [n] steps.

        `varying` [n] says whose forwards vary one by one.
        """
        facts, op, n = script.ops, script.calls[:, OP], len(script.ops)
        seconds = self._steps(script, varying)
        expected, count = np.bincount(op, seconds, minlength=n), np.bincount(op, minlength=n)
        prefills = facts[:, LONGEST] > 0
        count[prefills] = 1
        for device, name in enumerate(DEVICES):
            mine = np.flatnonzero(prefills & (facts[:, DEVICE] == device))
            if isinstance(self.costs, ProfileCosts) and len(mine):
                expected[mine] = self.costs.prefills(
                    f"{name}.prefill", facts[mine, ROWS], facts[mine, LONGEST]
                )
        marks = np.full((n, 2), NO_MARK)
        # Of the steps that it may follow the first one counts.
        marking = np.flatnonzero(script.calls[:, NAME] == facts[op, EARLY_AFTER])
        owners, firsts = np.unique(op[marking], return_index=True)
        before = np.full(n, len(op))
        before[owners] = marking[firsts]
        after = np.bincount(op, np.where(np.arange(len(op)) > before[op], seconds, 0.0), minlength=n)
        known = owners[expected[owners] > 0.0]
        marks[known, 0] = after[known] / expected[known]
        return np.asarray(expected, dtype=np.float64), marks, np.asarray(count, dtype=np.int64)

    def _steps(self, script: Script, varying: BoolArray) -> FloatArray:
        """[c] seconds of every step, as expected and as it takes in real rounds."""
        facts, (op, name, _, width, _) = script.ops, script.calls.T
        fed, device = width > 0, facts[op, DEVICE]
        model = self._forwards(script, varying)
        there = np.unique(name)
        shares = np.full(len(NAMES.known), np.nan)
        for number in there.tolist():
            share = share_of(NAMES.known[number])
            shares[number] = np.nan if share is None else share
        # A piece of a call is one of the last call so far.
        last = np.maximum.accumulate(np.where(fed, np.arange(len(op)), -1))
        piece = np.where(last >= np.searchsorted(op, op), model[np.maximum(last, 0)], 0.0)
        if isinstance(self.costs, TextbookCosts):
            piece = np.where(device == 0, self.costs.target_s, self.costs.draft_s)
        seconds = np.where(np.isnan(shares[name]), model, shares[name] * piece)
        kinds = facts[op, KIND]
        for kind, number in np.unique(np.stack([kinds, name], axis=1), axis=0).tolist():
            if NAMES.known[kind] == "draft":  # no row operation
                continue
            mine = np.flatnonzero((kinds == kind) & (name == number))
            timing, step = self.timings.get(NAMES.known[kind]), NAMES.known[number]
            if share_of(step) is None and (timing is None or base_name(step) not in timing.steps):
                seconds[mine[~fed[mine]]] = self.seconds.get(step, 0.0)
            if timing is not None:
                own, rows = timing.step(step), facts[op[mine], ROWS]
                seconds[mine] = own.extra_s + own.row_s * (rows - 1) + own.factor * seconds[mine]
        return seconds

    def _forwards(self, script: Script, varying: BoolArray) -> FloatArray:
        """[c] seconds of the calls of a model; 0 for steps without one."""
        facts, (op, name, rows, width, grows) = script.ops, script.calls.T
        device, seconds, fed = facts[op, DEVICE], np.zeros(len(op)), width > 0
        if isinstance(self.costs, TextbookCosts):
            return np.where(fed, np.where(device == 0, self.costs.target_s, self.costs.draft_s), 0.0)
        costs = self.costs
        assert isinstance(costs, ProfileCosts)
        if costs.effects.context:
            grown = np.cumsum(np.where(fed, grows, 0)) - np.where(fed, grows, 0)
            context = (facts[:, CONTEXTS] // facts[:, ROWS])[op] + grown - grown[np.searchsorted(op, op)]
        else:
            context = facts[op, FIRST_PROMPT]
        trees = np.array([base_name(each) == "tree" for each in NAMES.known])
        tree = trees[name] & (device == 1) & fed
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
    facts, there = script.ops, np.unique(script.ops[:, HOST])
    known = ["prefill", *(name for each in there.tolist() if (name := NAMES.known[each]) != "prefill")]
    classes = np.zeros(len(NAMES.known), dtype=np.int64)
    classes[there] = [known.index(NAMES.known[each]) for each in there.tolist()]
    beside_draft, beside_target = slowdown_tables(slowdowns, known)
    state, busy, moments = np.zeros(2), np.zeros(2), np.zeros(script.moments)
    run_script(
        CLOCK_TURN * len(script.codes),
        script.codes,
        script.arguments,
        facts[:, DEVICE],
        ops.ravel(),
        marks.ravel(),
        facts[:, EARLY_AFTER] >= 0,
        classes[facts[:, HOST]],
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
    rows.log = _ScriptedLog(script, moments)
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
