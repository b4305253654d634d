"""The live world: a target and its drafts, each in a process of its own, behind the policies' `World`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, cast

from calibrate.live.errors import DeadlineMissed, LiveError, ModelError, WorkerDied, WorkerError
from calibrate.live.placement import WorkerSpec, local_vocabulary
from calibrate.live.shared_probs import DEFAULT_BYTES, Segment
from calibrate.live.transport.device import LiveDevice, Timing
from calibrate.live.transport.emulated import Emulation
from calibrate.live.transport.environment import LiveEnvironment
from calibrate.live.transport.worker import WorkerLink, WorkerPlan
from calibrate.live.wire import Ready
from calibrate.processes import temporary_folder
from policies.protocols import Steps, World
from policies.timeline import Span

if TYPE_CHECKING:
    from simpy.events import Event, ProcessGenerator

HANDSHAKES = 5
PATIENCE_S = 2.0


class LiveWorld:
    """Worker processes and the environment that waits for them; use it in a `with` statement.

    One world runs any number of policies, one after another: a request's prefill resets its slot.

    Args:
        target: The target's worker.
        draft: The draft's, or those of several drafts that share the work of pre-speculation; None where
            only plain decoding will run.
        end_token_ids: Tokens that end a request; None: as the target's model says; () for none.
        start_timeout_s: How long loading a model may take.
        ring_bytes: Address space, per draft, for the distributions of sampled tokens; memory is taken as
            needed, a few times batch * outcomes * lookahead * vocabulary * 4 bytes.
        emulation: The machine whose times all operations take (`transport.emulated`); then all times here
            are its seconds.  None: this machine's.

    Raises:
        ModelError: A model is not there, or the vocabularies differ.
        WorkerError: A worker could not load its model; carries the worker's traceback.
        WorkerDied: A worker ended while loading.
    """

    def __init__(
        self,
        target: WorkerSpec,
        draft: WorkerSpec | Sequence[WorkerSpec] | None = None,
        *,
        end_token_ids: Sequence[int] | None = None,
        start_timeout_s: float = 300.0,
        ring_bytes: int = DEFAULT_BYTES,
        emulation: Emulation | None = None,
    ) -> None:
        drafts = [] if draft is None else [draft] if isinstance(draft, WorkerSpec) else list(draft)
        specs = [target, *drafts]
        names = [spec.name for spec in specs]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(
                f"several workers are called {', '.join(map(repr, twice))}; a device needs a name of its own"
            )
        # What the folders tell is checked before any process starts; the hub's models afterwards.
        _check_vocabularies(specs, {s.name: local_vocabulary(s.model) for s in specs})
        ends = None if end_token_ids is None else tuple(int(token) for token in end_token_ids)
        self._folder, self._owner = temporary_folder()
        self._links: list[WorkerLink] = []
        self._rings: list[Segment] = []
        self._closed = False
        try:
            for _ in drafts:
                self._rings.append(Segment(ring_bytes))
            for i, spec in enumerate(specs):  # one by one, so that `close` knows each
                number = i - 1 if i else None
                stderr = str(self._folder / f"{spec.name}.stderr")
                plan = WorkerPlan(spec, stderr, ends, tuple(self._rings), number, emulation)
                self._links.append(WorkerLink(plan))
            self.workers: dict[str, Ready] = {
                link.spec.name: link.wait_ready(start_timeout_s) for link in self._links
            }
            _check_vocabularies(specs, {name: ready.vocabulary for name, ready in self.workers.items()})
            offsets = [clock_offset(link) for link in self._links]
        except BaseException:
            self.close(gently=False)
            raise
        self.missed = 0
        """Runs in which a deadline was missed so far."""
        self._scale = 1.0 if emulation is None else emulation.scale
        self._emulated = emulation is not None
        self.environment = (
            LiveEnvironment(clock=emulation.clock, scale=self._scale) if emulation else LiveEnvironment()
        )
        self.devices = [
            LiveDevice(
                self.environment, link, offset / self._scale if self._scale else 0.0, emulated=self._emulated
            )
            for link, offset in zip(self._links, offsets, strict=True)
        ]
        for device in self.devices:
            self.environment.attach(device)

    @property
    def target(self) -> LiveDevice:
        """The target device."""
        return self.devices[0]

    @property
    def draft(self) -> LiveDevice:
        """The draft device, the first if there are several; a `LiveError` where the world was started
        without.
        """
        if len(self.devices) < 2:
            raise LiveError("this world was started without a draft; it can run plain decoding only")
        return self.devices[1]

    @property
    def targets(self) -> list[LiveDevice]:
        """The target device."""
        return self.devices[:1]

    @property
    def drafts(self) -> list[LiveDevice]:
        """All draft devices."""
        return self.devices[1:]

    @property
    def now(self) -> float:
        """Seconds since the world began, of the moment the current event happened.

        Of emulated devices this is read off the clock: what they were to take is what is to be tested.
        """
        return self.environment.elapsed() if self._emulated else float(self.environment.now)

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self.workers[self.target.name].vocabulary

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a request."""
        return self.workers[self.target.name].end_token_ids

    def until(self, at_s: float) -> Event:
        """A moment, or now where it has passed."""
        return self.environment.timeout(max(0.0, at_s - self.environment.now))

    def run(self, policy_steps: Steps) -> None:
        """Run a policy to its end.

        Whatever it raises, or a worker reports, comes out of here; work left behind is then waited for, so
        that the next policy finds idle workers.  After a `WorkerDied` the world is of no further use.

        Raises:
            DeadlineMissed: Real work took longer than an emulated operation lasts; said at the end.
        """
        if self._closed:
            raise LiveError("the world is closed")
        process = self.environment.process(cast("ProcessGenerator", policy_steps))
        with _on_cores(self._links[min(1, len(self._links) - 1)].spec.cores):
            try:
                self.environment.run(until=process)
            except WorkerDied:
                policy_steps.close()
                raise
            except Exception:
                policy_steps.close()  # else it would go on when one of its tasks is answered
                process.defused = True
                if process.callbacks:
                    process.callbacks.clear()
                self._settle()
                raise
            self._settle()
        self._check_deadlines()

    def _check_deadlines(self) -> None:
        """Refuse a run in which real work of an emulated device was not done in time.

        Once something is late, what follows begins late, too: only the first operation counts with that.
        """
        missed = [
            (scale, device.name, miss)
            for device in self.devices
            for number, miss in enumerate(device.misses)
            for scale in [(miss.since_s if number == 0 else miss.work_s) / miss.had_s * self._scale]
        ]
        if missed:
            self.missed += 1
            scale, name, miss = max(missed)
            real_s, had_s = scale * miss.had_s, self._scale * miss.had_s
            raise DeadlineMissed(name, miss.operation, real_s, had_s, scale)

    @property
    def spans(self) -> list[Span]:
        """What the devices did so far, in order of time."""
        return sorted((s for d in self.devices for s in d.spans), key=lambda span: span.start_s)

    def timings(self) -> list[Timing]:
        """Every finished operation so far, in order of time."""
        return sorted((t for d in self.devices for t in d.timings), key=lambda timing: timing.start_s)

    def clear_records(self) -> None:
        """Forget spans and timings, e.g. after a warm-up."""
        for device in self.devices:
            device.clear_records()

    def close(self, *, gently: bool = True) -> None:
        """End the workers: asked first if `gently`, else at once.  Does nothing the second time."""
        self._closed = True
        for link in self._links if gently else ():
            link.dismiss()
        for link in self._links:
            link.close(patience_s=PATIENCE_S if gently else 0.0)
        for segment in self._rings:
            segment.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._owner is not None:
            self._owner.close()

    def __enter__(self) -> LiveWorld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error (or Ctrl-C) a worker may be in the middle of something long.
        self.close(gently=kind is None)

    def _settle(self) -> None:
        """Wait for tasks that a policy left behind, whose answers and failures nobody awaits."""
        for device in self.devices:
            for task in device.tasks:
                task.defused = True
                task.stop()
        environment = self.environment
        while any(device.outstanding for device in self.devices) or environment.peek() <= environment.now:
            with suppress(WorkerError):
                environment.step()


@contextmanager
def _on_cores(cores: tuple[int, ...]) -> Iterator[None]:
    """Keep this process on the (first) draft's cores for a while.

    Left to the scheduler, a policy that has just woken the target may find the target's worker on its own
    core and wait for a millisecond before it can wake the draft.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def clock_offset(link: WorkerLink) -> float:
    """What to add to the worker's clock to get this process's: 0 where they share one.

    The best of a few echoes bounds it: the worker's stamp lies between sending and receiving if the
    clock is shared (as on Linux, where `perf_counter` is CLOCK_MONOTONIC); else its middle is taken.
    """
    best: tuple[float, float] | None = None
    for number in range(HANDSHAKES):
        sent = time.perf_counter()
        report = link.ask(-2 - number, (number,))
        received = time.perf_counter()
        shared = sent <= report.start and report.end <= received
        offset = 0.0 if shared else (sent + received - report.start - report.end) / 2
        if best is None or received - sent < best[0]:
            best = (received - sent, offset)
    assert best is not None
    return best[1]


def _check_vocabularies(specs: Sequence[WorkerSpec], sizes: Mapping[str, int | None]) -> None:
    """Refuse a pair whose sizes (None: not known yet) differ."""
    if len({size for size in sizes.values() if size is not None}) > 1:
        stated = ", ".join(f"{spec.name} ({spec.model}) has {sizes[spec.name]}" for spec in specs)
        raise ModelError(
            f"vocabularies differ: {stated} token ids; speculation needs the same tokenizer on both sides"
        )


if TYPE_CHECKING:

    def _is_a_world(world: LiveWorld) -> World:
        return world  # mypy compares the live world with the policies' protocols here
