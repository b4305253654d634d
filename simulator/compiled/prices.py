"""Seconds of all operations of many rounds at once, before it is known how long their devices idled.

By an operation's host time (`hardware_profiles.optime`) its work is

    luck * max(base + wake * min(idle, cap), least),  base = scale * expected + what is beyond, idling aside,

and `least` a share of `scale * expected`: the same as `OperationHost.work_s`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np

from hardware_profiles.optime import LEAST_SHARE, Host, HostOperation, OperationHost
from policies.registry import Settings
from policies.sampling import FloatArray
from policies.values import IntArray
from simulator.compiled.batches import Rounds
from simulator.compiled.loops import KINDS
from simulator.costs import TREE_SURFACE, Costs, KeyedNoise, ProfileCosts, TextbookCosts

Ops: TypeAlias = FloatArray
"""[n, 5] of each operation: lead, base, least, luck, report; see `simulator.compiled.loops`."""
Kind: TypeAlias = Literal["prefill", "verify", "decode", "settle", "draft", "prespeculate", "continue"]
DRAFT, TARGET = "draft.forward", "target.forward"
KEYS_PER_ROUND = 3
"""Keys by which the operations of a round's draft device are ordered: before, beside, and after it."""


class Drafts(NamedTuple):
    """Drafts of K tokens, in the order in which they begin.

    Attributes:
        rows: [n] rows of each; the next ones are of each, too.
        context: What `Prices` needs to know of their contexts: sum, rows, prompt of the first row.
        most: Tokens that the draft has not seen, of the row with most.
        unseen: Those of all rows.
        keys: Their order among a device's operations (`KEYS_PER_ROUND`).
    """

    rows: IntArray
    context: tuple[IntArray, IntArray, IntArray]
    most: IntArray
    unseen: IntArray
    keys: IntArray


class Varying(NamedTuple):
    """Operations of which a part varies with forwards of one surface.

    Attributes:
        ops: [n, 5] the operations.
        scaled: [n] seconds of that part, host time's `scale` included.
        keys: [n] their order.
        forwards: How many forwards the part is the sum of.
    """

    ops: Ops
    scaled: FloatArray
    keys: IntArray
    forwards: int


def distinct(*columns: IntArray) -> tuple[IntArray, IntArray]:
    """Rows of [n] columns that differ, and for each of the n rows which of them it is.

    All of them as they are, where telling them apart would take a table much longer than they are.
    """
    count = len(columns[0])
    key, size = np.zeros(count, dtype=np.int64), 1
    for column in columns:
        low, high = (int(column.min()), int(column.max())) if count else (0, 0)
        if low < high:
            key = key * (high - low + 1) + (column - low)
            size *= high - low + 1
            if size > 8 * count + 1024:
                return np.arange(count), np.arange(count)
    table = np.full(size, -1)
    table[key] = np.arange(count)
    there = np.flatnonzero(table >= 0)
    chosen = table[there]
    table[there] = np.arange(len(there))
    return chosen, table[key]


class Prices:
    """What operations cost in a scenario, in the order in which they begin.

    Args:
        costs: Fresh costs of the run.
        host: Its host time.
        noise: Of whole operations whose spread is known; None: they take their means.
    """

    def __init__(self, settings: Settings, costs: Costs, host: Host | None, noise: KeyedNoise | None) -> None:
        self.settings = settings
        self.costs = costs
        self.noise = noise
        known, sampled = host or Host(), settings.temperature > 0.0
        self.hosts: dict[str, OperationHost] = {
            kind: known.of(cast("HostOperation", kind), sampled=sampled) for kind in KINDS
        }
        self.hosts["prefill"] = OperationHost(submit_s=known.submit_s, report_s=known.report_s)
        self.depth = settings.lookahead or 0
        self.devices = settings.draft_devices or 1

    def waking(self) -> tuple[FloatArray, FloatArray]:
        """[kinds] work per second idle, and the longest idling that counts."""
        hosts = [self.hosts[kind] for kind in KINDS]
        return np.array([h.wake for h in hosts]), np.array([h.idle_cap_s for h in hosts])

    def prefill(self, role: str, rounds: Rounds) -> Ops:
        """[n, 5] the prefill of the rows just admitted, of the rounds that have any."""
        chosen, which = distinct(rounds.fresh, rounds.fresh_longest)
        rows, seconds = rounds.fresh[chosen], np.zeros(len(chosen))
        if isinstance(self.costs, ProfileCosts):
            seconds = self.costs.prefills(f"{role}.prefill", rows, rounds.fresh_longest[chosen])
        return self._ops("prefill", rows, seconds, calls=1, tokens=np.zeros_like(rows))[which]

    def verify(self, rounds: Rounds) -> tuple[Ops, IntArray]:
        """[n, 5] the verification of each round, and its kind."""
        context, decode = self._context(*rounds.context), rounds.longest == 0
        columns = (rounds.rows, context, rounds.longest, rounds.drafted)
        chosen, which = distinct(*columns)
        rows, context, longest, drafted = (column[chosen] for column in columns)
        plain = longest == 0
        if isinstance(self.costs, ProfileCosts) and self.costs.packed:
            longest = -(-drafted // rows)
        seconds = self._forwards(TARGET, rows, 1 + longest, context)
        small = np.empty((len(chosen), 5))
        for kind, mask in (("decode", plain), ("verify", ~plain)):
            if mask.any():
                tokens = (rows + drafted)[mask]
                small[mask] = self._ops(cast("Kind", kind), rows[mask], seconds[mask], 1, tokens)
        ops, kinds = small[which], np.where(decode, KINDS.index("decode"), KINDS.index("verify"))
        some = [np.flatnonzero(decode), np.flatnonzero(~decode)]
        for kind, numbers in zip(("decode", "verify"), some, strict=True):
            if len(numbers) and self.hosts[kind].spread is not None:
                luck = self._luck("target", cast("Kind", kind), len(numbers))
                ops[numbers if len(numbers) < len(ops) else slice(None), 3] = luck
        noisy = np.flatnonzero(np.where(decode, self._varies("decode"), self._varies("verify")))
        if len(noisy) and self._noisy:
            part = ops if len(noisy) == len(ops) else ops[noisy]
            self._vary(TARGET, [Varying(part, part[:, 2] / LEAST_SHARE, noisy, 1)])
            if part is not ops:
                ops[noisy] = part
        return ops, kinds

    def settle(self, rounds: Rounds) -> Ops:
        """[n, 5] choosing the tokens that verifications left open; no forward."""
        rows = rounds.rows
        ops = self._ops("settle", rows, np.zeros(len(rows)), 0, np.zeros_like(rows))
        ops[:, 3] = self._luck("target", "settle", len(ops))
        return ops

    def drafted(self, drafts: Drafts) -> Ops:
        """[n, 5] drafts of K tokens."""
        ops = self._drafts(drafts)
        if self._varies("draft"):
            self._vary(DRAFT, [Varying(ops, ops[:, 2] / LEAST_SHARE, drafts.keys, self.depth)])
        return ops

    def _drafts(self, drafts: Drafts) -> Ops:
        """As `drafted`, without the noise of forwards."""
        columns = (drafts.rows, self._context(*drafts.context), drafts.most, drafts.unseen)
        chosen, which = distinct(*columns)
        rows, context, most, unseen = (column[chosen] for column in columns)
        tokens = unseen + rows * (self.depth - 1)
        ops = self._ops("draft", rows, self._chained(rows, context, most), self.depth, tokens)[which]
        ops[:, 3] = self._luck("draft", "draft", len(ops))
        return ops

    def continued(self, rounds: Rounds) -> Ops:
        """[n, 5] drafts of K tokens past what is verified."""
        columns = (rounds.rows, self._context(*rounds.context), rounds.longest)
        chosen, which = distinct(*columns)
        rows, context, longest = (column[chosen] for column in columns)
        if isinstance(self.costs, ProfileCosts):
            context = context + longest * self.costs.effects.context
        seconds = self._chained(rows, context, np.ones_like(rows))
        ops = self._ops("continue", rows, seconds, self.depth, rows * self.depth)[which]
        ops[:, 3] = self._luck("draft", "continue", len(ops))
        if self._varies("continue"):
            keys = np.arange(len(ops))
            self._vary(DRAFT, [Varying(ops, ops[:, 2] / LEAST_SHARE, keys, self.depth)])
        return ops

    def _forwards(self, name: str, rows: IntArray, width: IntArray, context: IntArray) -> FloatArray:
        """[n] mean seconds of forwards."""
        if isinstance(self.costs, TextbookCosts):
            return np.full(len(rows), self.costs.target_s)
        assert isinstance(self.costs, ProfileCosts)
        return self.costs.forwards(name, rows, width, context)

    def _chained(self, rows: IntArray, context: IntArray, first: IntArray) -> FloatArray:
        """[n] mean seconds of a forward over `first` tokens and K - 1 of one."""
        if isinstance(self.costs, TextbookCosts):
            return np.full(len(rows), self.costs.draft_s * self.depth)
        assert isinstance(self.costs, ProfileCosts)
        seconds = self.costs.forwards(DRAFT, rows, first, context)
        if self.depth == 1:
            return seconds
        grows, one = np.full(len(rows), int(self.costs.effects.context)), np.ones_like(rows)
        times = self.depth - 1
        return seconds + self.costs.repeated(DRAFT, rows, one, context + grows, grows=grows, times=times)

    def prepared(self, rounds: Rounds, drafts: Drafts) -> tuple[Ops, Ops]:
        """[m, 5] the drafts before and after rounds, and [n devices, 5] every device's share of their
        pre-speculations, round after round.
        """
        context, count, devices = self._context(*rounds.context), self.depth, self.devices
        columns = (rounds.rows, context, rounds.longest, rounds.drafted, rounds.widest, rounds.branches)
        chosen, which = distinct(*columns)
        rows, context, longest, drafted, widest, branches = (column[chosen] for column in columns)
        glue_s, tree_s = self._glue_and_tree(rows, context, longest, widest, branches)
        glued = isinstance(self.costs, ProfileCosts) and self.costs.effects.draft_width
        fed = rows + drafted + count * branches
        small = self._ops("prespeculate", rows, glue_s + tree_s, count + glued, fed)
        # Devices begin at once, so that the first one's noise comes first in every round.
        which = np.repeat(which, devices) if devices > 1 else which
        ops, before = small[which], self._drafts(drafts)
        for i in range(devices):
            device = "draft" if i == 0 else f"draft-{i}"
            ops[i::devices, 3] = self._luck(device, "prespeculate", len(rounds))
        varying = []
        if self._varies("draft"):
            varying.append(Varying(before, before[:, 2] / LEAST_SHARE, drafts.keys, count))
        if self._varies("prespeculate") and self._noisy:
            keys = np.repeat(KEYS_PER_ROUND * np.arange(len(rounds)) + 1, devices)
            scale = self.hosts["prespeculate"].scale
            if glued:
                varying.append(Varying(ops, scale * glue_s[which], keys, 1))
            self._vary(TREE_SURFACE, [Varying(ops, scale * tree_s[which], keys, count)])
        self._vary(DRAFT, varying)
        return before, ops

    def _glue_and_tree(
        self, rows: IntArray, context: IntArray, longest: IntArray, widest: IntArray, branches: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """[n] mean seconds of the glue and of all tree steps of one device."""
        nothing, still, one = np.zeros(len(rows)), np.zeros_like(rows), np.ones_like(rows)
        if isinstance(self.costs, TextbookCosts):
            return nothing, np.full(len(rows), self.costs.draft_s * self.depth)
        costs = self.costs
        assert isinstance(costs, ProfileCosts)
        if not costs.effects.draft_width:  # a step is a forward, and the glue is none
            return nothing, costs.repeated(DRAFT, rows, one, context, grows=still, times=self.depth)
        batched = "batch" in costs.surfaces[TREE_SURFACE].axes
        width, grows = (widest, widest) if batched else (branches, -(-branches // rows))
        fed = 1 + longest
        glue = costs.forwards(DRAFT, rows, fed, context)
        begins, grows = (context + fed, grows) if costs.effects.context else (context, still)
        return glue, costs.repeated(TREE_SURFACE, rows, width, begins, grows=grows, times=self.depth)

    def _ops(self, kind: Kind, rows: IntArray, expected_s: FloatArray, calls: int, tokens: IntArray) -> Ops:
        """[n, 5] operations of one kind whose forwards are expected to take so long."""
        host, ops = self.hosts[kind], np.empty((len(rows), 5))
        scaled = host.scale * expected_s
        beyond = host.extra_s + host.row_s * (rows - 1) + host.step_s * calls + host.token_s * tokens
        ops[:, 0] = host.submit_s + host.submit_row_s * (rows - 1)
        ops[:, 1] = scaled + beyond
        ops[:, 2] = LEAST_SHARE * scaled
        ops[:, 3] = 1.0
        ops[:, 4] = host.report_s + host.report_token_s * tokens
        return ops

    def _luck(self, device: str, kind: Kind, count: int) -> FloatArray | float:
        """[count] how much longer than in the mean the next operations of a kind take."""
        spread = self.hosts[kind].spread
        if self.noise is None or spread is None or count == 0:
            return 1.0
        return self.noise.factors(f"{device}-{kind}", spread, count)

    def _varies(self, kind: str) -> bool:
        """Whether operations of a kind vary by their forwards, and not as whole ones."""
        return self.hosts[kind].spread is None

    @property
    def _noisy(self) -> bool:
        """Whether forwards vary."""
        return isinstance(self.costs, ProfileCosts) and self.costs.effects.jitter

    def _vary(self, surface: str, parts: list[Varying]) -> None:
        """Add the noise of forwards to operations, drawn in the order of their keys."""
        if not isinstance(self.costs, ProfileCosts) or not parts:
            return
        keys = np.concatenate([part.keys for part in parts])
        raw = self.costs.noise_factors(surface, len(keys))
        if raw is None:
            return
        factors = raw
        if len(parts) > 1:
            factors = np.empty(len(keys))
            factors[np.argsort(keys, kind="stable")] = raw
        for part in parts:
            own, factors = factors[: len(part.keys)], factors[len(part.keys) :]
            more = part.scaled * (own - 1.0) / np.sqrt(part.forwards)
            part.ops[:, 1] += more
            part.ops[:, 2] += LEAST_SHARE * more

    def _context(self, contexts: IntArray, rows: IntArray, first_prompt: IntArray) -> IntArray:
        """[n] context at which operations are priced."""
        if isinstance(self.costs, ProfileCosts) and self.costs.effects.context:
            return contexts // rows
        return first_prompt


def slowdown_tables(
    slowdowns: Mapping[tuple[str, str, str, str | None], float], kinds: Sequence[str]
) -> tuple[FloatArray, FloatArray]:
    """[kinds, kinds] slowdown of a target's operations beside a draft's, and the other way round."""
    classes = ["verify" if kind == "decode" else kind for kind in kinds]

    def table(mine: str, other: str) -> FloatArray:
        pairs = product(classes, classes)
        found = [
            slowdowns.get((mine, a, other, b), slowdowns.get((mine, a, other, None), 1.0)) for a, b in pairs
        ]
        return np.reshape(found, (len(classes), len(classes)))

    return table("target", "draft"), table("draft", "target")
