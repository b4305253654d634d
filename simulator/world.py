"""The simulated world: two devices on simpy's clock, answering from a token model."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

import numpy as np
import simpy
from simpy.events import Event as SimpyEvent

from hardware_profiles.profile import Host, HostOperation, OperationHost
from policies.operations import (
    BoolArray,
    Continue,
    Draft,
    IntArray,
    Operation,
    Prefill,
    Prespeculate,
    Source,
    Speculation,
    Verdict,
    Verify,
    View,
    operation_name,
)
from policies.protocols import Steps
from policies.records import Span
from policies.registry import SettingError
from simulator.costs import Costs, fanout_array
from simulator.devices import Machine, SimulatedDevice
from simulator.tokens import TokenModel

_PRIMARY, _NONE = int(Source.PRIMARY), int(Source.NONE)


class SimulatedCache:
    """Speculation cache of one simulated round (see `policies.protocols.Cache`)."""

    def __init__(
        self,
        tokens: TokenModel,
        view: View,
        speculation: Speculation,
        length: int,
        fanout: IntArray | None,
    ) -> None:
        self.tokens = tokens
        self.view = view
        self.speculation = speculation
        self.length = length
        self.fanout = fanout

    def lookup(self, verdict: Verdict) -> BoolArray:
        """[B] whether each row's outcome was prepared for."""
        if self.fanout is None:
            return self.tokens.continues(self.view, self.speculation, verdict)
        return self.tokens.hits(self.view, self.speculation, verdict, self.fanout)

    def take(self, verdict: Verdict, hits: BoolArray) -> Speculation:
        """The prepared speculation of the rows marked in `hits`."""
        return _drafted(hits, self.length)


class Answers:
    """Costs and contents of operations (`simulator.devices.Work`)."""

    def __init__(self, costs: Costs, tokens: TokenModel, host: Host) -> None:
        self.costs = costs
        self.host = host
        self.tokens = tokens
        self._fanouts: dict[tuple[int, ...], IntArray] = {}

    def steps(self, device: str, operation: Operation, idle_s: float) -> list[tuple[str, float]]:
        """See `Work`."""
        steps = self.costs.steps(device, operation)
        host = self._host_of(operation)
        factor, extra = host.scale, host.extra_s + host.wake * min(idle_s, host.idle_cap_s)
        if extra < 0.0:  # taken off all steps alike, but never more than four fifths
            total = host.scale * sum(seconds for _, seconds in steps)
            factor *= max(0.2, 1.0 + extra / total)
        if factor != 1.0:
            steps = [(name, seconds * factor) for name, seconds in steps]
        return [("host", extra), *steps] if extra > 0.0 else steps

    def latency(self, operation: Operation) -> tuple[float, float]:
        """See `Work`."""
        host = self._host_of(operation)
        return host.submit_s, host.report_s

    def _host_of(self, operation: Operation) -> OperationHost:
        name = operation_name(operation)
        if isinstance(operation, Verify) and not operation.speculation.lengths[operation.view.slots].any():
            name = "decode"
        found = self.host.operations.get(cast("HostOperation", name))
        return found or OperationHost(submit_s=self.host.submit_s, report_s=self.host.report_s)

    def answer(self, operation: Operation, completed: int | None) -> Any:
        """See `Work`."""
        match operation:
            case Verify():
                return self.tokens.verify(operation.view, operation.speculation)
            case Prespeculate():
                return SimulatedCache(
                    self.tokens,
                    operation.view,
                    operation.speculation,
                    operation.lookahead,
                    self._fanout(operation.fanout),
                )
            case Continue():
                return SimulatedCache(
                    self.tokens, operation.view, operation.speculation, operation.lookahead - 1, None
                )
            case Draft():
                marked = np.zeros(len(operation.unseen), dtype=np.bool_)
                marked[operation.view.slots] = True
                return _drafted(marked, operation.lookahead if completed is None else completed)
            case Prefill():
                return None

    def _fanout(self, fanout: tuple[int, ...]) -> IntArray:
        if fanout not in self._fanouts:
            if max(fanout) > self.tokens.max_fanout:
                raise SettingError(
                    f"fan-out {max(fanout)} is more than this trace can decide: it records the draft's first "
                    f"{self.tokens.max_fanout + 1} choices, enough for a fan-out of {self.tokens.max_fanout}"
                )
            self._fanouts[fanout] = fanout_array(fanout)
        return self._fanouts[fanout]


def _drafted(rows: BoolArray, length: int) -> Speculation:
    """A speculation of the primary draft for the marked rows; its ids stay unknown."""
    return Speculation(rows * length, rows * (_PRIMARY if length else _NONE))


class SimulatedWorld:
    """Target and draft in simulated time (`policies.protocols.World`).

    Args:
        tokens: What is accepted.
        costs: What operations cost.
        host: Host time; None for none.
        slowdowns: See `simulator.devices.Machine`.
        timeline: Whether to keep the timeline in `spans`.
    """

    def __init__(
        self,
        tokens: TokenModel,
        costs: Costs,
        *,
        host: Host | None = None,
        slowdowns: dict[tuple[str, str, str], float] | None = None,
        timeline: bool = False,
    ) -> None:
        self.env = simpy.Environment()
        self.machine = Machine(slowdowns)
        self.spans: list[Span] = []
        answers = Answers(costs, tokens, host or Host())
        spans = self.spans if timeline else None
        self._target = SimulatedDevice(self.env, "target", answers, self.machine, spans=spans)
        self._draft = SimulatedDevice(self.env, "draft", answers, self.machine, spans=spans)
        self._vocabulary = tokens.vocabulary

    @property
    def target(self) -> SimulatedDevice:
        """The target's device."""
        return self._target

    @property
    def draft(self) -> SimulatedDevice:
        """The draft's device."""
        return self._draft

    @property
    def now(self) -> float:
        """Simulated seconds."""
        return float(self.env.now)

    @property
    def vocabulary(self) -> int:
        """Number of token ids; 0 in a world without."""
        return self._vocabulary

    def run(self, steps: Steps) -> None:
        """Run a policy to its end.

        Raises:
            RuntimeError: The policy waits for something that nobody will do.
        """
        # A policy yields this world's own events, which are simpy's.
        process = self.env.process(cast("Generator[SimpyEvent, Any, Any]", steps))
        try:
            self.env.run(until=process)
        except RuntimeError as error:
            if process.triggered:
                raise
            raise RuntimeError("the policy waits for an event that nothing will trigger") from error
