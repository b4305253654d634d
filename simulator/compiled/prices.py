"""Seconds of all operations of many rounds at once, before it is known how long their devices idled.

By an operation's host time (`hardware_profiles.optime`) its work is

    luck * max(base + wake * min(idle, cap), least),  base = scale * expected + what is beyond, idling aside,

and `least` a share of `scale * expected`: the same as `OperationHost.work_s`.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np

from hardware_profiles.optime import LEAST_SHARE, Host, HostOperation, OperationHost
from hardware_profiles.surface import varied
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


class Noisy(NamedTuple):
    """[n] seconds of forwards that vary, keys of their order, and of how many forwards each is the sum."""

    seconds: FloatArray
    keys: IntArray
    forwards: int


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
        rows, seconds = rounds.fresh, np.zeros(len(rounds.fields))
        if isinstance(self.costs, ProfileCosts):
            seconds = self.costs.prefills(f"{role}.prefill", rows, rounds.fresh_longest)
        return self._ops("prefill", rows, seconds, calls=1, tokens=np.zeros_like(rows))

    def verify(self, rounds: Rounds) -> tuple[Ops, IntArray]:
        """[n, 5] the verification of each round, and its kind."""
        rows, context = rounds.rows, self._context(*rounds.context)
        width, tokens = 1 + rounds.longest, rounds.rows + rounds.drafted
        ops, kinds = np.empty((len(rows), 5)), np.full(len(rows), KINDS.index("verify"))
        decode = rounds.longest == 0
        kinds[decode] = KINDS.index("decode")
        seconds = np.zeros(0)
        if isinstance(self.costs, TextbookCosts):
            seconds = np.full(len(rows), self.costs.target_s)
        elif isinstance(self.costs, ProfileCosts):
            seconds = self.costs.forwards(TARGET, rows, width, context)
            noisy = np.flatnonzero(np.where(decode, self._varies("decode"), self._varies("verify")))
            varied_s = seconds[noisy]
            self._vary(TARGET, [Noisy(varied_s, noisy, 1)])
            seconds[noisy] = varied_s
        for kind, chosen in (("decode", decode), ("verify", ~decode)):
            if chosen.any():
                found = self._ops(cast("Kind", kind), rows[chosen], seconds[chosen], 1, tokens[chosen])
                found[:, 3] = self._luck("target", cast("Kind", kind), len(found))
                ops[chosen] = found
        return ops, kinds

    def settle(self, rounds: Rounds) -> Ops:
        """[n, 5] choosing the tokens that verifications left open; no forward."""
        rows = rounds.rows
        ops = self._ops("settle", rows, np.zeros(len(rows)), 0, np.zeros_like(rows))
        ops[:, 3] = self._luck("target", "settle", len(ops))
        return ops

    def drafted(self, drafts: Drafts) -> Ops:
        """[n, 5] drafts of K tokens."""
        seconds = self._chained(drafts.rows, self._context(*drafts.context), drafts.most)
        self._vary(DRAFT, [Noisy(seconds, drafts.keys, self.depth)], "draft")
        return self._drafted_ops(drafts, seconds)

    def _drafted_ops(self, drafts: Drafts, seconds: FloatArray) -> Ops:
        tokens = drafts.unseen + drafts.rows * (self.depth - 1)
        ops = self._ops("draft", drafts.rows, seconds, self.depth, tokens)
        ops[:, 3] = self._luck("draft", "draft", len(ops))
        return ops

    def continued(self, rounds: Rounds) -> Ops:
        """[n, 5] drafts of K tokens past what is verified."""
        rows, context = rounds.rows, self._context(*rounds.context)
        if isinstance(self.costs, ProfileCosts):
            context = context + rounds.longest * self.costs.effects.context
        seconds = self._chained(rows, context, np.ones_like(rows))
        self._vary(DRAFT, [Noisy(seconds, np.arange(len(rows)), self.depth)], "continue")
        ops = self._ops("continue", rows, seconds, self.depth, rows * self.depth)
        ops[:, 3] = self._luck("draft", "continue", len(ops))
        return ops

    def _chained(self, rows: IntArray, context: IntArray, first: IntArray) -> FloatArray:
        """[n] seconds of a forward over `first` tokens and K - 1 of one."""
        if isinstance(self.costs, TextbookCosts):
            return np.full(len(rows), self.costs.draft_s * self.depth)
        assert isinstance(self.costs, ProfileCosts)
        seconds = self.costs.forwards(DRAFT, rows, first, context)
        if self.depth == 1:
            return seconds
        grows, one = np.full(len(rows), int(self.costs.effects.context)), np.ones_like(rows)
        return seconds + self.costs.repeated(
            DRAFT, rows, one, context + grows, grows=grows, times=self.depth - 1
        )

    def prepared(self, rounds: Rounds, drafts: Drafts) -> tuple[Ops, Ops]:
        """[m, 5] the drafts before and after rounds, and [n devices, 5] every device's share of their
        pre-speculations, round after round.
        """
        rows, count = rounds.rows, self.depth
        glue_s, tree_s = self._glue_and_tree(rounds)
        draft_s = self._chained(drafts.rows, self._context(*drafts.context), drafts.most)
        # Devices begin at once, so that the first one's noise comes first in every round.
        glues, trees = np.repeat(glue_s, self.devices), np.repeat(tree_s, self.devices)
        keys = np.repeat(KEYS_PER_ROUND * np.arange(len(rows)) + 1, self.devices)
        glued = Noisy(glues, keys, 1) if glue_s.any() else None
        parts = {"draft": Noisy(draft_s, drafts.keys, count), "prespeculate": glued}
        self._vary(DRAFT, [part for kind, part in parts.items() if part and self._varies(kind)])
        if self._varies("prespeculate"):
            self._vary(TREE_SURFACE, [Noisy(trees, keys, count)])
        calls = count + 1 if glued else count
        rows, fed, branches = (
            np.repeat(each, self.devices) for each in (rows, rows + rounds.drafted, rounds.branches)
        )
        ops = self._ops("prespeculate", rows, glues + trees, calls, fed + count * branches)
        for i in range(self.devices):
            device = "draft" if i == 0 else f"draft-{i}"
            ops[i :: self.devices, 3] = self._luck(device, "prespeculate", len(rounds.fields))
        return self._drafted_ops(drafts, draft_s), ops

    def _glue_and_tree(self, rounds: Rounds) -> tuple[FloatArray, FloatArray]:
        """[n] seconds of the glue and of all tree steps of one device."""
        rows, widest, branches = rounds.rows, rounds.widest, rounds.branches
        nothing = np.zeros(len(rows))
        if isinstance(self.costs, TextbookCosts):
            return nothing, np.full(len(rows), self.costs.draft_s * self.depth)
        costs, context, still = self.costs, self._context(*rounds.context), np.zeros_like(rows)
        assert isinstance(costs, ProfileCosts)
        if not costs.effects.draft_width:  # a step is a forward, and the glue is none
            return nothing, costs.repeated(
                DRAFT, rows, np.ones_like(rows), context, grows=still, times=self.depth
            )
        batched = "batch" in costs.surfaces[TREE_SURFACE].axes
        width, grows = (widest, widest) if batched else (branches, -(-branches // rows))
        fed = 1 + rounds.longest
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
        return self.noise.factors(f"{device}-{kind}", partial(varied, spread), count)

    def _varies(self, kind: str) -> bool:
        """Whether operations of a kind vary by their forwards, and not as whole ones."""
        return self.hosts[kind].spread is None

    def _vary(self, surface: str, parts: list[Noisy], kind: str | None = None) -> None:
        """Multiply the seconds of forwards by their noise, which is drawn in the order of their keys.

        Nothing is done where the operations of `kind` vary as such.
        """
        if not isinstance(self.costs, ProfileCosts) or not parts or (kind and not self._varies(kind)):
            return
        keys = np.concatenate([part.keys for part in parts])
        raw = self.costs.noise_factors(surface, len(keys))
        if raw is None:
            return
        factors = np.empty(len(keys))
        factors[np.argsort(keys, kind="stable")] = raw
        for part in parts:
            own, factors = factors[: len(part.keys)], factors[len(part.keys) :]
            part.seconds[:] *= 1.0 + (own - 1.0) / np.sqrt(part.forwards)

    def _context(self, contexts: IntArray, rows: IntArray, first_prompt: IntArray) -> IntArray:
        """[n] context at which operations are priced."""
        if isinstance(self.costs, ProfileCosts) and self.costs.effects.context:
            return contexts // rows
        return first_prompt
