"""Speculation parallelism: a draft that never waits, and target servers that verify what it wrote meanwhile.

DSI (Timor et al. 2025, distributed speculative inference).  The draft goes on and on; every K tokens are
sent to a target server that is free, while another server decodes plainly from where the draft began, so
that DSI is never slower than plain decoding.  The first rejection ends it all: its correction is
committed, and the draft begins anew behind it.  One sequence.

What is drafted and verified depends on the clock, so that it runs on events alone; what is accepted is the
recorded path's and exact.

Where it differs from the authors' code: a verification that became useless is not killed with its process,
since a forward cannot be stopped: its server is busy until it ends, and the draft until its next token. In
their offline simulation (`law`) both are free at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from operator import or_
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec

from policies.config import (
    MAX_LOOKAHEAD,
    DraftSampling,
    Knob,
    LawInputs,
    LawValue,
    LookaheadConfig,
    PolicyInfo,
    SettingError,
)
from policies.operation import Draft, Verify
from policies.protocols import Device, Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.values import UNKNOWN, RowVerdict, Source, Speculation, Verdict, View, verdict_of


@dataclass(frozen=True, slots=True)
class DsiConfig(LookaheadConfig):
    """Knobs of `dsi`; K tokens are verified at once."""

    policy: ClassVar[str] = "dsi"
    target_devices: Annotated[int, Knob("Target servers.", least=1, most=64)] = 4
    draft_sampling: DraftSampling = "sampled"

    @property
    def longest_run(self) -> int:
        """Runs go on from block to block."""
        return MAX_LOOKAHEAD

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """The authors' offline simulation in expectation, where servers are enough for it."""
        statement, needed = "Timor et al. 2025, offline simulation", self.servers_needed(inputs.t_draft)
        if batch > 1:
            return LawValue(statement, reason="DSI serves one sequence")
        if self.target_devices < needed:
            return LawValue(statement, reason=f"it supposes {needed} target servers: none waits for another")
        return LawValue(statement, *dsi_speedup(inputs.acceptance, self.lookahead, inputs.t_draft))

    def servers_needed(self, t_draft: float) -> int:
        """SP of the paper, ceil(t_target / (K t_draft)), from a draft step in target steps."""
        return math.ceil(1.0 / (self.lookahead * t_draft) - 1e-9) if t_draft > 0.0 else MAX_LOOKAHEAD


def dsi_speedup(acceptance: float, lookahead: int, t_draft: float) -> tuple[float, float]:
    """Speedup over plain decoding, and tokens per rejection, with as many servers as it takes.

    As in the authors' `SimulDSI`: after r accepted tokens, r geometric, a rejection is known when the block
    that holds it is drafted and verified, or when plain decoding reaches it:

        min((floor(r / K) + 1) K c + 1, r + 1)  in target steps.
    """
    if acceptance >= 1.0:
        return 1.0 / min(1.0, t_draft), math.inf
    tokens = seconds = 0.0
    for run in count():
        weight = (1.0 - acceptance) * acceptance**run
        tokens += weight * (run + 1)
        seconds += weight * min((run // lookahead + 1) * lookahead * t_draft + 1.0, run + 1.0)
        if acceptance ** (run + 1) * (run + 2) < 1e-12:
            return tokens / seconds, tokens
    raise AssertionError


class _Job(NamedTuple):
    """What runs on a device: `length` tokens from `start` on; one, of a plain decode."""

    device: Device
    start: int
    length: int
    plain: bool = False


@dataclass
class _Race:
    """From where the draft begins to where it is rejected.

    Attributes:
        base: The row at the beginning; tokens are counted from there.
        drafted: Tokens drafted.
        sent: Those of them under verification, or verified.
        sure: Those known to be right, and committed.
        checked: Those that were decoded plainly.
        over: Whether one is wrong, or the request has ended.
        jobs: What runs for it.
        early: Verdicts about what follows tokens that are not sure yet.
    """

    base: View
    drafted: int = 0
    sent: int = 0
    sure: int = 0
    checked: int = 0
    over: bool = False
    jobs: dict[Any, _Job] = field(default_factory=dict)
    early: list[tuple[_Job, Verdict]] = field(default_factory=list)

    def at(self, tokens: int) -> View:
        """The row so many tokens further on, if these are accepted."""
        view = self.base
        (position,), (context,), (room,) = view.positions, view.contexts, view.rooms
        return msgspec.structs.replace(
            view, positions=(position + tokens,), contexts=(context + tokens,), rooms=(room - tokens,)
        )

    def verify(self, device: Device, start: int, length: int, sampling: Sampling, *, plain: bool) -> None:
        """Have a block verified; what follows it is the next block's to find out."""
        ask = Verify(self.at(start), _chain(length), sampling, leave_open=True)
        self.jobs[device.submit(ask)] = _Job(device, start, length, plain)

    def learn(self, rows: Rows, now: float) -> None:
        """Commit what verdicts say beyond what is sure."""
        for job, verdict in sorted(self.early, key=lambda each: each[0].start):
            slot, known = self.base.slots[0], self.sure - job.start
            if self.over or known < 0:
                return
            self.early.remove((job, verdict))
            accepted, emitted = verdict.accepted[slot] - known, verdict.emitted[slot] - known
            if emitted <= 0:
                continue  # all of it was known
            tokens = (UNKNOWN,) * emitted if verdict.tokens is None else verdict.tokens[slot][known:]
            row = RowVerdict(accepted, tokens, slot in verdict.ended, verdict.bonus[slot])
            rows.commit(rows.view(), _chain(job.length - known), verdict_of(1, {slot: row}), now=now)
            self.sure += accepted
            self.over = row.ended or emitted > accepted


def _chain(length: int) -> Speculation:
    """The primary draft's tokens of a batch of one."""
    return Speculation((length,), (int(Source.PRIMARY),))


def dsi(world: World, rows: Rows, config: DsiConfig, sampling: Sampling = GREEDY) -> Steps:
    """Draft on while verifications run, until a rejection; begin anew behind it.

    Raises:
        SettingError: More rows than one.
    """
    if rows.width > 1:
        raise SettingError("a pipeline serves one sequence: take batch 1, and a group of devices per row")
    stale: dict[Any, _Job] = {}  # about a text that is not so; a forward cannot be stopped
    while rows.active:
        yield from admit(world, rows)
        race = _Race(rows.view())
        while not race.over:
            _go_on(world, race, config.lookahead, sampling, stale)
            running = [*race.jobs, *stale]
            happened = yield reduce(or_, running)
            for task in [each for each in running if len(running) == 1 or each in happened]:
                job = race.jobs.pop(task, None)
                if job is None:
                    del stale[task]
                elif job.device is world.draft:
                    race.drafted += 1
                else:
                    race.early.append((job, task.value))
                    race.checked += job.plain
            race.learn(rows, world.now)
        stale |= race.jobs


def _go_on(world: World, race: _Race, block: int, sampling: Sampling, stale: Mapping[Any, _Job]) -> None:
    """Give work to whoever is free: of the servers one decodes plainly until it is overtaken."""
    busy = [job.device for job in (*race.jobs.values(), *stale.values())]
    free, room = [server for server in world.targets if server not in busy], race.base.rooms[0]
    if free and race.sure == race.checked and not any(job.plain for job in race.jobs.values()):
        race.verify(free.pop(0), race.sure, 1, sampling, plain=True)
    waiting = race.drafted - race.sent
    if free and waiting and (waiting >= block or race.drafted == room):
        race.verify(free[0], race.sent, waiting, sampling, plain=False)
        race.sent = race.drafted
    if world.draft not in busy and race.drafted < room:
        ask = Draft(race.at(race.drafted), 1, (1,), sampling)
        race.jobs[world.draft.submit(ask)] = _Job(world.draft, race.drafted, 1)


INFO = PolicyInfo(
    config=DsiConfig,
    run=dsi,
    paper="Timor et al. 2025 (DSI)",
    predicts='"all accepted"',
    drafts="autoregressive, without end",
    on_miss="the rest is dropped",
    verifies="chains, by several target servers",
    order=5.3,
    clocked=True,
    worlds=("simulated",),
    colour="#9467bd",
)
