"""Replay without events: rounds laid out beforehand, then timed by one loop over arrays.

What a round accepts, emits and finds in its cache does not depend on the clock where rounds wait for all
their rows and nothing is stopped midway.  `not_covered` says where that does not hold: there the event world
answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hardware_profiles.optime import Host
from policies.registry import Settings, find_policy
from policies.rows import RoundLog, Rows
from policies.sampling import FloatArray
from policies.ssd import SaguaroConfig
from policies.summary import Summary, timed
from policies.values import IntArray, Request
from simulator.compiled.batches import Lineup, Rounds, line_up_of
from simulator.compiled.loops import CLOCK_TURN, KINDS, run_clock
from simulator.compiled.prices import KEYS_PER_ROUND, Drafts, Ops, Prices, slowdown_tables
from simulator.costs import Costs, KeyedNoise
from simulator.tokens import TokenModel

COVERED = ("ar", "sd", "pld", "pearl", "saguaro")
PHASES = 6
PREFILL, FRESH_DRAFT, DRAFT, MAIN, SETTLE, REDRAFT = range(PHASES)
"""Phases of a round, in order: each ends when all that was submitted in it is reported."""


def not_covered(
    settings: Settings, *, timeline: bool = False, scripted: bool = False, timed: bool = False
) -> str | None:
    """Why the event world has to answer; None where the compiled replay does.

    Args:
        settings: The setting.
        timeline: Whether a timeline is asked for.
        scripted: Whether its row operations have replies (`simulator.compiled.scripts`).
        timed: Whether its operations have measured times of their own.
    """
    config = settings.config
    if timeline:
        return "it keeps no timeline"
    if scripted and not find_policy(settings.policy).clocked:
        return None
    if settings.policy not in COVERED:
        return f"it replays {', '.join(COVERED)}, and others from replies; {settings.policy!r} has none"
    if timed:
        return "the policy's operations have measured times of their own"
    if isinstance(config, SaguaroConfig):
        if config.backup == "primary-all":
            return "with backup 'primary-all' what a row verifies depends on the other rows"
        if config.backup == "auto":
            return "backup 'auto' has to be resolved first"
        if config.tree == "abort":
            return "with tree 'abort' a pass is stopped midway"
        if config.stall == "rows" and config.draft_devices > 1:
            return "with stall 'rows' the clock decides which of several draft devices begins first"
    return None


@dataclass(frozen=True, slots=True)
class World:
    """What a run costs: see `simulator.world.SimulatedWorld`."""

    costs: Costs
    host: Host | None
    slowdowns: Mapping[tuple[str, str, str, str | None], float]
    noise: KeyedNoise | None


class ReplayedLog(RoundLog):
    """A log whose columns are made when they are asked for.

    Args:
        lineup: The rounds.
        ends: [n] seconds at which each round of the batch was committed.
        began: [q] seconds at which each request got its slot.
        prefill_s: See `RoundLog`.
    """

    def __init__(self, lineup: Lineup, ends: FloatArray, began: FloatArray, prefill_s: float) -> None:
        # Not by the base class, whose lists and dictionaries are made here when they are asked for.
        self.lineup = lineup
        self.batch_rounds = len(ends)
        self.prefill_s = prefill_s
        self.runs_on = lineup.settings.policy == "pearl"
        self._ends = ends
        self._began = began

    @cached_property
    def ends(self) -> list[float]:  # type: ignore[override]
        """See `RoundLog`."""
        return list(self._ends.tolist())

    @cached_property
    def admitted_s(self) -> dict[int, float]:  # type: ignore[override]
        """See `RoundLog`."""
        return dict(zip(self.lineup.ids.tolist(), self._began.tolist(), strict=True))

    @cached_property
    def first_token_s(self) -> dict[int, float]:  # type: ignore[override]
        """See `RoundLog`."""
        first = self._ends[self.lineup.admitted]
        return dict(zip(self.lineup.ids.tolist(), first.tolist(), strict=True))

    def times_to_first_token(self) -> list[float]:
        """See `RoundLog`."""
        return list((self._ends[self.lineup.admitted] - self._began).tolist())

    def table(self) -> dict[str, IntArray]:
        """See `RoundLog`."""
        return self.lineup.table()


def replay_run(
    tokens: TokenModel, settings: Settings, requests: Sequence[Request], batch: int, world: World
) -> tuple[Summary, Rows]:
    """What `simulate` makes of a setting, without events.

    Raises:
        SettingError: The run's sampling is not that of the recording.
    """
    lineup = line_up_of(tokens, settings, requests, batch)
    clock = _Clock(settings, world)
    ends, made = np.empty(lineup.rounds), 0  # no batch has more rounds than its rows together
    for rounds in lineup.chunks():
        ends[made : made + len(rounds)] = clock.run(rounds)
        made += len(rounds)
    admissions, began = np.concatenate(clock.admissions), np.concatenate(clock.began)
    began = began[np.searchsorted(admissions, lineup.admitted)]
    log = ReplayedLog(lineup, ends[:made], began, clock.prefill_s)
    names = ["target", "draft", *(f"draft-{i}" for i in range(1, clock.devices))]
    summary = timed(
        lineup.counts,
        log,
        total_s=float(clock.state[0]),
        busy_s=dict(zip(names, clock.busy.tolist(), strict=True)),
        overlap_s=float(clock.state[1]),
    )
    rows = Rows(requests, batch)
    rows.waiting.clear()
    rows.log = log
    return summary, rows


class _Program:
    """The phases of some rounds, and the operations submitted in each.

    Args:
        count: n, the rounds.
    """

    def __init__(self, count: int) -> None:
        self.target, self.chained, self.draft = (np.full((count, PHASES), -1) for _ in range(3))
        self.drafts = np.zeros((count, PHASES), dtype=np.int64)
        self.present = np.zeros((count, PHASES), dtype=np.bool_)
        self._ops: list[Ops] = []
        self._kinds: list[IntArray] = []
        self._used = 0

    def add(self, ops: Ops, kind: str | IntArray) -> IntArray:
        """[n] numbers of operations, which are kept."""
        kinds = np.full(len(ops), KINDS.index(kind)) if isinstance(kind, str) else kind
        self._ops.append(ops)
        self._kinds.append(kinds)
        self._used += len(ops)
        return np.arange(self._used - len(ops), self._used)

    @property
    def ops(self) -> Ops:
        """[n, 5] all operations."""
        return np.concatenate(self._ops)

    @property
    def kinds(self) -> IntArray:
        """[n] their kinds."""
        return np.concatenate(self._kinds)


class _Clock:
    """The devices, from one chunk of rounds to the next."""

    def __init__(self, settings: Settings, world: World) -> None:
        config = settings.config
        self.settings = settings
        self.prices = Prices(settings, world.costs, world.host, world.noise)
        self.devices = settings.draft_devices or 1
        self.slowdowns = slowdown_tables(world.slowdowns, KINDS)
        self.state = np.zeros(3)
        self.ended = np.zeros(self.devices + 1)
        self.busy = np.zeros(self.devices + 1)
        self.prefill_s = 0.0
        self.admissions: list[IntArray] = []
        """Rounds at whose beginning requests got their slots."""
        self.began: list[FloatArray] = []
        """When these began."""
        self.opens = settings.policy == "pearl" and settings.sampling.draft_sampled
        self.redrafts = isinstance(config, SaguaroConfig) and config.backup == "primary"
        self.drafts_first = isinstance(config, SaguaroConfig) and (
            config.first == "primary" or config.backup == "primary"
        )
        self._carried: Ops | None = None

    def run(self, rounds: Rounds) -> FloatArray:
        """[n] when some rounds are committed, s."""
        program = self._program(rounds)
        phases = np.flatnonzero(program.present)
        which, of = phases % PHASES, phases // PHASES
        last = SETTLE if self.opens else MAIN
        began, done = np.empty((2, len(phases)))
        beside_draft, beside_target = self.slowdowns
        parts = (program.target, program.chained, program.draft, program.drafts)
        run_clock(
            CLOCK_TURN * len(phases),
            *(part.ravel()[phases] for part in parts),
            which == last,
            program.ops.ravel(),
            program.kinds,
            *self.prices.waking(),
            beside_draft.ravel(),
            beside_target.ravel(),
            bool((beside_draft != 1.0).any() or (beside_target != 1.0).any()),
            self.state,
            self.ended,
            self.busy,
            began,
            done,
        )
        prefills = which == PREFILL
        self.admissions.append(rounds.first + of[prefills])
        self.began.append(began[prefills])
        self.prefill_s += float((done - began)[prefills].sum())
        ends: FloatArray = done[which == last]
        return ends

    def _program(self, rounds: Rounds) -> _Program:
        program, policy = _Program(len(rounds)), self.settings.policy
        self._prefill(program, rounds, drafts=policy not in {"ar", "pld"})
        program.present[:, MAIN] = True
        if policy == "saguaro":
            self._prespeculate(program, rounds)
        elif policy == "pearl":
            program.draft[:, MAIN] = program.add(self.prices.continued(rounds), "continue")
            program.drafts[:, MAIN] = 1
        elif policy == "sd":
            everything = np.arange(len(rounds))
            drafts = Drafts(rounds.rows, rounds.context, rounds.most_unseen, rounds.unseen, everything)
            program.draft[:, DRAFT] = program.add(self.prices.drafted(drafts), "draft")
            program.drafts[:, DRAFT] = 1
            program.present[:, DRAFT] = True
        program.target[:, MAIN] = program.add(*self.prices.verify(rounds))
        if self.opens:
            program.present[:, SETTLE] = True
            program.target[:, SETTLE] = program.add(self.prices.settle(rounds), "settle")
        return program

    def _prefill(self, program: _Program, rounds: Rounds, *, drafts: bool) -> None:
        fresh = np.flatnonzero(rounds.fresh)
        if len(fresh) == 0:
            return
        some = Rounds(rounds.fields[:, fresh], rounds.first)
        program.present[fresh, PREFILL] = True
        program.target[fresh, PREFILL] = program.add(self.prices.prefill("target", some), "prefill")
        if drafts:
            program.draft[fresh, PREFILL] = program.add(self.prices.prefill("draft", some), "prefill")
            program.drafts[fresh, PREFILL] = -self.devices  # the same on all of them

    def _prespeculate(self, program: _Program, rounds: Rounds) -> None:
        """Pre-speculations, drafts of rows just admitted, and redrafts before the next round or beside it."""
        fresh = np.flatnonzero(rounds.fresh if self.drafts_first else np.zeros(len(rounds)))
        missed = np.flatnonzero(rounds.missed)
        rows = np.concatenate([rounds.fresh[fresh], rounds.missed[missed]])
        contexts = np.concatenate([rounds.fresh_contexts[fresh], rounds.missed_contexts[missed]])
        prompts = np.concatenate([rounds.fresh_first[fresh], rounds.missed_first[missed]])
        keys = np.concatenate([fresh * KEYS_PER_ROUND, missed * KEYS_PER_ROUND + KEYS_PER_ROUND - 1])
        order = np.argsort(keys)
        rows = rows[order]
        context = (contexts[order], rows, prompts[order])
        priced = self.prices.prepared(rounds, Drafts(rows, context, np.ones_like(rows), rows, keys[order]))
        numbers = np.empty(len(order), dtype=np.int64)
        numbers[order] = program.add(priced[0], "draft")
        shares = program.add(priced[1], "prespeculate")
        program.draft[:, MAIN], program.drafts[:, MAIN] = shares[:: self.devices], self.devices
        program.draft[fresh, FRESH_DRAFT], after = numbers[: len(fresh)], numbers[len(fresh) :]
        program.present[fresh, FRESH_DRAFT] = True
        beside = rounds.redraft_beside[missed] == 1
        program.draft[missed[~beside], REDRAFT] = after[~beside]
        program.present[missed[~beside], REDRAFT] = True
        program.drafts[:, [FRESH_DRAFT, REDRAFT]] = 1
        self._chain(program, rounds, missed[beside] + 1, after[beside])

    def _chain(self, program: _Program, rounds: Rounds, into: IntArray, redrafts: IntArray) -> None:
        """Let the draft device begin rounds `into` with redrafts; the last may belong to the next chunk."""
        if self._carried is not None:
            number = program.add(self._carried, "draft")
            into, redrafts = np.concatenate([[0], into]), np.concatenate([number, redrafts])
        self._carried = None
        count = len(rounds)
        if len(into) and into[-1] == count:
            self._carried = program.ops[redrafts[-1:]]
            into, redrafts = into[:-1], redrafts[:-1]
        program.chained[into, np.where(rounds.fresh[into] > 0, PREFILL, MAIN)] = redrafts
