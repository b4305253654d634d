"""The simulated world: a target and its drafts on simpy's clock, answering from a token model."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, cast

import simpy
from simpy.events import Event as SimpyEvent

from hardware_profiles.optime import Host, KindPace
from policies.protocols import Steps
from policies.timeline import Span
from simulator.answers import Answers
from simulator.contents import Contents
from simulator.costs import Costs
from simulator.devices import SimulatedDevice
from simulator.machine import Machine, Slowdowns
from simulator.noise import KeyedNoise
from simulator.tokens import TokenModel


class SimulatedWorld:
    """Target and drafts in simulated time (`policies.protocols.World`).

    Args:
        tokens: What is accepted.
        costs: What operations cost.
        host: Host time; None for none.
        slowdowns: See `simulator.machine.Machine`.
        timeline: Whether to keep the timeline in `spans`.
        draft_devices: How many draft devices there are: `draft`, `draft-1`, ...  All cost the same.
        contents: Answers of operations stated row by row; None where no policy asks for any.
        pace: See `Answers`.
        noise: See `Answers`.
    """

    def __init__(
        self,
        tokens: TokenModel,
        costs: Costs,
        *,
        host: Host | None = None,
        slowdowns: Slowdowns | None = None,
        timeline: bool = False,
        draft_devices: int = 1,
        contents: Contents | None = None,
        pace: Mapping[str, KindPace] | None = None,
        noise: KeyedNoise | None = None,
    ) -> None:
        self.env = simpy.Environment()
        self.machine = Machine(slowdowns)
        self.spans: list[Span] = []
        answers = Answers(costs, tokens, host or Host(), contents=contents, pace=pace, noise=noise)
        spans = self.spans if timeline else None
        self._target = SimulatedDevice(self.env, "target", answers, self.machine, spans=spans)
        names = ["draft", *(f"draft-{i}" for i in range(1, draft_devices))]
        self._drafts = tuple(
            SimulatedDevice(self.env, name, answers, self.machine, spans=spans) for name in names
        )
        self._vocabulary = tokens.vocabulary

    @property
    def target(self) -> SimulatedDevice:
        """The target's device."""
        return self._target

    @property
    def draft(self) -> SimulatedDevice:
        """The first draft device."""
        return self._drafts[0]

    @property
    def drafts(self) -> tuple[SimulatedDevice, ...]:
        """All draft devices."""
        return self._drafts

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
