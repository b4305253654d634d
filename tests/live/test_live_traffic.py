"""Traffic on live models: texts are plain decoding's while requests come, wait, are preempted and leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from live_support import InlineDevice, InlineTask, InlineWorld, Reference, worker_specs
from tiny_profiles import profile

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.errors import LiveError
from calibrate.live.transport.emulated import Emulation
from calibrate.live.transport.world import LiveWorld
from calibrate.live_traffic import LiveServing, serve_live
from hardware_profiles.optime import Host
from policies.registry import SettingError, Settings, configure
from policies.values import Request
from serving.loop import Run
from serving.scheduler import EngineOptions
from serving.traffic import ServedRequest, Traffic, TrafficError
from simulator.run import Scenario
from simulator.tokens import coin
from simulator.traffic import serve_traffic

OPTIONS = EngineOptions(max_num_seqs=3, max_num_batched_tokens=24, block_size=4, enable_prefix_caching=False)
SETTINGS = [
    configure("ar"),
    configure("sd", lookahead=3),
    configure("pld", lookahead=4),
    configure("pearl", lookahead=3),
    configure("saguaro", lookahead=3, fanout=2),
    configure("saguaro", lookahead=2, fanout=2, backup="plain", first="backup"),
]


class SlowDevice(InlineDevice):
    """An operation takes a second of the environment's, so that requests come while it works."""

    free_s = 0.0

    def submit(self, operation: Any) -> InlineTask:
        done = super().submit(operation)
        task = InlineTask(self.environment)
        self.free_s = max(self.free_s, self.environment.now) + 1.0
        later = self.environment.timeout(self.free_s - self.environment.now)
        later.callbacks.append(lambda _: task.succeed(done.value))
        return task


class SlowWorld(InlineWorld):
    """As a live world, but its clock is simpy's."""

    def __init__(self, reference: Reference) -> None:
        runners = ModelRunner(reference.target), ModelRunner(reference.draft)
        super().__init__(*runners, target_type=SlowDevice, draft_type=SlowDevice)
        self.environment: Any = self.environment
        self.environment.catch_up = lambda: None

    def until(self, at_s: float) -> Any:
        return self.environment.timeout(at_s - self.now)

    def clear_records(self) -> None:
        """Nothing to forget."""


def traffic_of(reference: Reference, gap_s: float) -> tuple[Traffic, list[Request]]:
    """Seven requests a gap apart, of 7 to 19 prompt tokens and 6 to 18 tokens of reply."""
    prompts, _ = reference.some(7, 18)
    texts = [Request(i, len(prompt), 18, tuple(prompt)) for i, prompt in enumerate(prompts)]
    sizes = np.random.default_rng(3).integers(6, 19, len(texts)).tolist()
    pairs = enumerate(zip(texts, sizes, strict=True))
    requests = [ServedRequest(gap_s * i, text.prompt_length, size) for i, (text, size) in pairs]
    return Traffic(tuple(requests), "live"), texts


def check(run: LiveServing, traffic: Traffic, reference: Reference) -> None:
    """Everyone has plain decoding's text, and whoever is here waits or runs."""
    served, (_, texts) = run.served, reference.some(7, 18)
    wanted = [tuple(text[: each.output]) for text, each in zip(texts, traffic.requests, strict=True)]
    assert list(run.texts) == wanted
    assert served.arrival_s.tolist() == [request.arrival_s for request in traffic.requests]
    assert (served.first_s > served.arrival_s).all() and served.counts.emitted == served.output.sum()
    for step in run.steps:
        came, gone = (served.arrival_s <= step.began_s).sum(), (served.last_s <= step.began_s).sum()
        assert step.running + step.waiting == came - gone and step.running <= OPTIONS.max_num_seqs


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_texts_are_plain_decodings(settings: Settings, reference: Reference) -> None:
    """In chunks of prompts, in slots that others left, and from the beginning where blocks ran out."""
    traffic, texts = traffic_of(reference, 3.5)
    world: Any = SlowWorld(reference)
    run = serve_live(world, settings, traffic, replace(OPTIONS, num_gpu_blocks=14), texts)
    check(run, traffic, reference)
    assert max(step.waiting for step in run.steps) > 0
    assert run.served.most_blocks <= 14 and run.served.counts.preemptions > 0


@pytest.mark.parametrize("settings", [SETTINGS[0], SETTINGS[4]], ids=lambda settings: settings.label)
def test_processes_in_real_time(settings: Settings, world: LiveWorld, reference: Reference) -> None:
    traffic, texts = traffic_of(reference, 0.004)
    run = serve_live(world, settings, traffic, OPTIONS, texts)
    check(run, traffic, reference)
    assert run.served.counts.read == sum(text.prompt_length - 1 for text in texts)
    assert run.served.end_s >= traffic.requests[-1].arrival_s


HOST = Host(submit_s=0.125, report_s=0.0625)
PRICED = Scenario(
    coin(1.0, exponent=1.0, scale=0.0, requests=7, length=18, prompt_length=8, seed=0),
    profile=profile(target_s=1.0, draft_s=0.25, tree_s=0.5, host=HOST),
)
"""A draft that is always right."""


@pytest.fixture(scope="module")
def timeless(pair: tuple[str, str]) -> Iterator[LiveWorld]:
    """Processes whose operations last as priced, while nobody waits; the draft is the target's model."""
    with LiveWorld(*worker_specs((pair[0], pair[0])), emulation=Emulation(PRICED.live_prices, 0.0)) as world:
        yield world


@pytest.mark.parametrize("settings", [*SETTINGS[:2], *SETTINGS[3:5]], ids=lambda settings: settings.label)
def test_emulated_devices_serve_as_simulated(
    settings: Settings, timeless: LiveWorld, reference: Reference
) -> None:
    """Scheduler, messages, models and caches are the real ones: every request ends when it was foreseen."""
    traffic, texts = traffic_of(reference, 0.7)
    run = serve_live(timeless, settings, traffic, OPTIONS, texts)
    check(run, traffic, reference)
    simulated, _ = serve_traffic(PRICED, settings, traffic, OPTIONS, rounds=True)
    assert run.served.first_s == pytest.approx(simulated.first_s, abs=1e-9)
    assert run.served.last_s == pytest.approx(simulated.last_s, abs=1e-9)
    assert run.served.counts == simulated.counts and run.served.waiting > 0.1


def test_what_may_be_stopped_needs_a_clock(timeless: LiveWorld, reference: Reference) -> None:
    traffic, texts = traffic_of(reference, 1.0)
    with pytest.raises(LiveError, match="time scale above 0"):
        serve_live(timeless, configure("saguaro", lookahead=2, tree="abort"), traffic, OPTIONS, texts)


def early(run: Run, now: float) -> None:
    """A request is admitted a second before it comes."""
    receive(run, now + 1.0)


def unqueued(run: Run, now: float) -> None:
    """Requests count from when they are noticed."""
    waiting = len(run.scheduler.waiting)
    receive(run, now)
    for row in list(run.scheduler.waiting)[waiting:]:
        run.arrival_s[row.place] = now


receive = Run.receive


@pytest.mark.parametrize("bug", [early, unqueued])
def test_planted_bugs_are_caught(bug: Any, reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "receive", bug)
    traffic, texts = traffic_of(reference, 3.5)
    world: Any = SlowWorld(reference)
    with pytest.raises(AssertionError, match="requests spent"):
        serve_live(world, SETTINGS[1], traffic, OPTIONS, texts)


@pytest.mark.parametrize(
    ("settings", "options", "says"),
    [
        (SETTINGS[0], {"enable_prefix_caching": True}, "enable_prefix_caching"),
        (SETTINGS[0], {"max_model_len": 12}, "longer than max_model_len 12"),
        (SETTINGS[0], {"num_gpu_blocks": 3}, "num_gpu_blocks is 3"),
        (SETTINGS[1], {"max_num_batched_tokens": 11}, "12 tokens of 3 rows"),
        (configure("double"), {}, "not with 'double'"),
    ],
)
def test_options_are_honoured_or_refused(
    settings: Settings, options: dict[str, Any], says: str, reference: Reference
) -> None:
    traffic, texts = traffic_of(reference, 1.0)
    world: Any = SlowWorld(reference)
    with pytest.raises((SettingError, TrafficError), match=says):
        serve_live(world, settings, traffic, replace(OPTIONS, **options), texts)
