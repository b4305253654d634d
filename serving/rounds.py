"""Policies under traffic: one policy's rounds, in either world, on rows that the scheduler fills.

A policy asks for rows at the beginning of a round (`policies.rows.admit`).  Here the scheduler answers: who
has come, who has a slot and blocks, who was preempted, and how much of which prompt is read ahead of the
round, in forwards of its own.  The policy's generator is the one that serves a full batch; what is simulated
and what runs live differ in their world alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from policies.config import LookaheadConfig
from policies.operation import Prefill
from policies.protocols import Event, Steps, World
from policies.registry import SettingError, Settings, find_policy, start
from policies.rows import Rows
from policies.values import NO_SLOTS, Request, Slots, Speculation, Verdict, View
from serving.loop import Run
from serving.metrics import Served
from serving.scheduler import EngineOptions, Row, Step
from serving.traffic import Traffic, TrafficError

POLICIES = ("ar", "sd", "pld", "pearl", "saguaro")
"""That are served: a row's round is a chain of at most K drafted tokens, and a row may leave after any."""


class Stage(World, Protocol):
    """A world with a clock to wait on."""

    def until(self, at_s: float) -> Event:
        """A moment, or now where it has passed."""
        ...

    def run(self, policy_steps: Steps) -> None:
        """Run a policy to its end."""
        ...


class ServedRows(Rows):
    """Rows that a scheduler fills and empties.

    Args:
        requests: The texts of the traffic, in its order.
        run: Schedules them.
        stage: The world.
        keep_tokens: As `Rows` takes it.
    """

    def __init__(
        self, requests: Sequence[Request], run: Run, stage: Stage, *, keep_tokens: bool = False
    ) -> None:
        width = min(run.options.max_num_seqs, len(requests))
        super().__init__(requests, width, keep_tokens=keep_tokens)
        self.requests = tuple(requests)
        self.waiting.clear()
        self.served_by = run
        self.stage = stage
        self.began_s = stage.now
        self._step = Step()
        self._slots: dict[int, int] = {}  # of the places of the requests that run

    @property
    def active(self) -> bool:
        """Whether any request is under way or still to come."""
        return self.served_by.unfinished

    @property
    def _now(self) -> float:
        return self.stage.now - self.began_s

    def refill(self, world: World, *, drafts: bool, states: bool = False) -> Steps:
        """Let the scheduler fill the rows, waiting for requests if there are none; reads their prompts."""
        fresh, run, waited_s = NO_SLOTS, self.served_by, 0.0
        while run.unfinished:
            # A clock that began elsewhere may round the moment waited for to one before it.
            step = run.begin(max(waited_s, self._now))
            self._leave()
            if step is None:
                waited_s = run.next_s
                yield self.stage.until(self.began_s + waited_s)
                continue
            if step.chunks:
                yield from self._read(world, self._prefill(step, states=states), drafts=drafts)
            fresh |= self._join(step)
            if step.decodes:
                self._step = step
                break
            if step.chunks:
                run.end(step, [], 0, self._now)
        return fresh

    def commit(
        self,
        view: View,
        verified: Speculation,
        verdict: Verdict,
        *,
        hits: Slots | None = None,
        now: float,
    ) -> None:
        """See `Rows.commit`; also tells the scheduler."""
        super().commit(view, verified, verdict, hits=hits, now=now)
        step, there = self._step, set(view.slots)
        step.decodes = [row for row in step.decodes if self._slots[row.place] in there]
        slots = [self._slots[row.place] for row in step.decodes]
        step.widths = [1 + verified.lengths[slot] for slot in slots]
        step.decode_tokens = sum(step.widths)
        for row, slot in zip(step.decodes, slots, strict=True):
            if slot in verdict.ended:  # at an end token, where that came first
                row.end = row.known + verdict.emitted[slot]
                del self._slots[row.place]
        run = self.served_by
        run.end(
            step, [verdict.accepted[slot] for slot in slots], run.scheduler.ahead or 0, now - self.began_s
        )

    def _leave(self) -> None:
        """Empty the slots of rows that were preempted."""
        running = {row.place for row in self.served_by.scheduler.running}
        gone = [place for place in self._slots if place not in running]
        if gone:
            self._set_alive(self.alive.difference([self._slots.pop(place) for place in gone]))

    def _prefill(self, step: Step, *, states: bool) -> Prefill:
        """What is read of prompts ahead of the round; of preempted rows what they said, too."""
        rows = [row for row, _, _ in step.chunks]
        slots = [self._slot(row) for row in rows]
        requests = [self.requests[row.place].id for row in rows]
        starts = tuple([held for _, _, held in step.chunks])
        ends = tuple([held + tokens + 1 for _, tokens, held in step.chunks])
        parts: tuple[tuple[int, ...], ...] | None = None
        if self.keep_tokens:
            spans = zip(requests, starts, ends, strict=True)
            parts = tuple(self.text(request)[start:end] for request, start, end in spans)
        view = View(
            slots=tuple(slots),
            requests=tuple(requests),
            positions=tuple([row.emitted for row in rows]),
            contexts=ends,
            rooms=tuple([row.end - row.known for row in rows]),
            tails=None if parts is None else tuple(part[-2:] for part in parts),
        )
        return Prefill(view, parts, starts, states)

    def _slot(self, row: Row) -> int:
        """A row's slot, the first free one where it has none."""
        if row.place not in self._slots:
            taken = set(self._slots.values())
            slot = next(slot for slot in range(self.width) if slot not in taken)
            self._slots[row.place] = slot
            request = self.requests[row.place]
            self.log.admitted_s.setdefault(request.id, self.stage.now)
            if self.keep_tokens and request.prompt is not None and request.id not in self.texts:
                self._prompts[request.id] = request.prompt
                self.texts[request.id] = []
        return self._slots[row.place]

    def _join(self, step: Step) -> Slots:
        """Rows that take part in rounds from now on."""
        new = {self._slots[row.place]: row for row in step.decodes}
        fresh = frozenset(new) - self.alive
        for slot in fresh:
            row = new[slot]
            request = self.requests[row.place]
            self._fill(slot, request.id, row.emitted, row.known - row.emitted, request.limit)
        if fresh:
            self._set_alive(self.alive | fresh)
        return fresh


def serve_rounds(
    stage: Stage,
    settings: Settings,
    traffic: Traffic,
    options: EngineOptions,
    requests: Sequence[Request],
    *,
    keep_tokens: bool = False,
    **more: Any,
) -> tuple[Served, ServedRows]:
    """Serve traffic with a policy's own rounds in a world.

    Args:
        stage: The world.
        settings: The policy.
        traffic: Requests and when they come.
        options: Of the engine.
        requests: Their texts, in the same order; each ends at its limit, which is the traffic's, or before.
        keep_tokens: Whether the world knows token ids.
        more: `max_concurrency`, `progress` and `watch`, as `serving.loop.serve` takes them.

    Raises:
        SettingError: The policy is not served.
        TrafficError: A request can never be served, or a step has too few tokens for all rows.
    """
    lookahead = check_rounds(settings, options)
    options.check(traffic, lookahead)
    run = Run(traffic, options, ahead=lookahead, **more)
    rows = ServedRows(requests, run, stage, keep_tokens=keep_tokens)
    stage.run(start(stage, rows, settings))
    return run.served(stage.now - rows.began_s), rows


def check_rounds(settings: Settings, options: EngineOptions) -> int:
    """Most tokens that a row drafts in a round.

    Raises:
        SettingError: The policy is not served, or not with these options.
        TrafficError: A step has too few tokens for all rows.
    """
    name, config = find_policy(settings.policy).name, settings.config
    if name not in POLICIES:
        raise SettingError(f"traffic is served with {', '.join(POLICIES)}, not with {name!r}")
    if options.num_gpu_blocks is not None and settings.knobs.get("stall") == "rows":
        raise SettingError(
            "stall 'rows' keeps rows out of rounds, which num_gpu_blocks may preempt: leave out either"
        )
    lookahead = config.lookahead if isinstance(config, LookaheadConfig) else 0
    needed = options.max_num_seqs * (1 + lookahead)
    if options.max_num_batched_tokens < needed:
        raise TrafficError(
            f"max_num_batched_tokens {options.max_num_batched_tokens} is less than the {needed} tokens of "
            f"{options.max_num_seqs} rows in one round of {settings.label}: lower max_num_seqs"
        )
    return lookahead
