"""Traffic on live models: the schedule of arrivals that is simulated, served by real workers in real time.

Scheduler and policies are the simulation's (`serving.rounds`); a slot of the workers is a row, and what a
preempted row loses is computed again.  Slots have room for whole texts: `num_gpu_blocks` limits how many
blocks are given out, as it does on an engine that pages its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from calibrate.live.errors import DeadlineMissed
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import ATTEMPTS, check_live
from policies.registry import SettingError, Settings
from policies.rows import Round
from policies.values import Request
from serving.loop import StepRecord
from serving.metrics import Served
from serving.rounds import serve_rounds
from serving.scheduler import EngineOptions
from serving.traffic import Traffic


@dataclass(frozen=True)
class LiveServing:
    """Traffic that was served live.

    Attributes:
        served: When what came and went, in seconds from the beginning.
        texts: Token ids of each reply, in the order of the traffic.
        rounds: Of each request, in the same order.
        steps: What the scheduler decided.
    """

    served: Served
    texts: tuple[tuple[int, ...], ...]
    rounds: tuple[tuple[Round, ...], ...]
    steps: tuple[StepRecord, ...]


def texts_for(traffic: Traffic, texts: Sequence[Request]) -> list[Request]:
    """The requests of some traffic with the texts of others, in turn.

    Raises:
        SettingError: A request is of another length than its text.
    """
    found = []
    for place, each in enumerate(traffic.requests):
        text = texts[place % len(texts)]
        if each.prompt != text.prompt_length or each.output > text.limit:
            raise SettingError(
                f"request {place} has {each.prompt} prompt and {each.output} output tokens, its text "
                f"{text.prompt_length} and {text.limit}"
            )
        found.append(replace(text, id=place, limit=each.output))
    return found


def serve_live(
    world: LiveWorld,
    settings: Settings,
    traffic: Traffic,
    options: EngineOptions,
    texts: Sequence[Request],
    *,
    progress: Callable[[int], None] | None = None,
) -> LiveServing:
    """Serve traffic with a policy on live models.

    Args:
        world: The models.
        settings: The policy.
        traffic: Requests and when they come, in seconds from now.
        options: Of the engine.
        texts: What is asked, used in turn; see `texts_for`.
        progress: Told how many requests are finished.

    Raises:
        SettingError: The policy, or an option of the engine, is not served live.
        TrafficError: A request can never be served.
        AssertionError: Requests, tokens or blocks were lost (`serving.loop.Run.audit`).
        DeadlineMissed: An emulated device was late.
    """
    check_live(world, settings)
    if options.enable_prefix_caching:
        raise SettingError(
            "live slots do not share what they hold: there is no prefix cache, and enable_prefix_caching "
            "has to be off"
        )
    steps: list[StepRecord] = []
    world.clear_records()
    world.environment.catch_up()  # else the idle time before the run would count as its first wait
    served, rows = serve_rounds(
        world,
        settings,
        traffic,
        options,
        texts_for(traffic, texts),
        keep_tokens=True,
        progress=progress,
        watch=steps.append,
    )
    places = range(len(traffic.requests))
    return LiveServing(
        served,
        tuple(tuple(rows.texts[place]) for place in places),
        tuple(tuple(rows.log.rounds(place)) for place in places),
        tuple(steps),
    )


def serve_in_time(*what: Any, **more: Any) -> LiveServing:
    """`serve_live`, again where an emulated device missed a deadline; the last of several errors counts."""
    for _ in range(ATTEMPTS - 1):
        with suppress(DeadlineMissed):
            return serve_live(*what, **more)
    return serve_live(*what, **more)
