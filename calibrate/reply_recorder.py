"""Recorder of decision traces: the replies of policies' operations on a profile's pair, and their times.

What is recorded is in its file at once, one file per policy, which grows call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from calibrate.hostfit import fit_timings, gains, gains_line
from calibrate.hostrecords import Expectation, at_usual_speed, drift_of, time_operations
from calibrate.job import Job, worker_specs
from calibrate.live.errors import WorkerError
from calibrate.live.placement import backend_label, labelled_backend, own_precision
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import joined, run_live
from calibrate.machine import versions
from calibrate.options import Progress
from calibrate.record import digest, now, trace_request
from hardware_profiles.optime import StepTiming, Timed
from hardware_profiles.profile import Profile
from hardware_profiles.reply_trace import (
    Decisions,
    DecisionTrace,
    costs_fingerprint,
    joined_timings,
    read_decisions,
    write_decisions,
)
from hardware_profiles.store import decisions_name, user_decisions
from hardware_profiles.trace import TraceMeta
from policies.registry import Settings, configure
from policies.values import Request

AT_ONCE = 8
"""Requests of a run at batch 1, of several in larger batches: progress is shown after each."""
REFERENCE = 4
"""Requests that plain decoding runs on, before and after, to tell how fast the machine is today."""
PATIENCE_S = 1200.0
"""Decisions may be recorded on a busy machine, where models take long to load."""
SPARE = 64
"""Tokens of a row beyond its text: trees, and what is drafted past it."""
SUFFIX = ".parquet"
MOST_CHANGE = 0.1
"""A machine whose speed changes by more around a run was not idle, or not steady."""


def chunked(requests: Sequence[Request], size: int) -> list[Sequence[Request]]:
    """The requests of each run: enough of them to keep a batch full."""
    return [requests[i : i + size] for i in range(0, len(requests), size)]


@dataclass(frozen=True)
class Recorder:
    """Records settings in a pair's live world.

    Attributes:
        profile: Beside which operations are timed; None: nothing is.
        batches: Rows served at once; decisions are kept of the first, times of all.
    """

    world: LiveWorld
    requests: Sequence[Request]
    profile: Profile | None
    batches: tuple[int, ...] = (1,)

    def record(self, settings: Settings, moved: Callable[[int, int], None]) -> Decisions:
        """What a setting decided and, beside a profile, what its operations took.

        `moved` is called with (runs done, runs in all).
        """
        chunks = {batch: chunked(self.requests, AT_ONCE * batch) for batch in self.batches}
        total = sum(map(len, chunks.values()))
        done = 0
        recordings: list[Decisions] = []
        timings: list[Timed] = []
        drifts: list[float] = []
        for batch, parts in chunks.items():
            run = partial(run_live, self.world, batch=batch, fresh_seed=False)
            if self.profile is not None:
                run(settings, self.requests[:batch])  # first calls of a shape are slower
            drifts.append(self._drift(settings, batch))
            timed: list[Timed] = []
            for part in parts:
                moved(done, total)
                decisions = run(settings, part).decisions
                done += 1
                if batch == self.batches[0]:
                    recordings.append(decisions)
                if self.profile is not None:
                    timed += time_operations(self.world, Expectation(self.profile), batch=batch)
            drifts.append(self._drift(settings, batch))
            timings += at_usual_speed(timed, (drifts[-2] + drifts[-1]) / 2.0)
        moved(total, total)
        if self.profile is None:
            return joined(recordings)
        beside = costs_fingerprint(self.profile)
        return replace(joined(recordings), timings=tuple(timings), timed_beside=beside, drift=tuple(drifts))

    def _drift(self, settings: Settings, batch: int) -> float:
        """How much longer plain decoding takes now than the profile says."""
        if self.profile is None:
            return 1.0
        plain = configure("ar", temperature=settings.temperature, top_p=settings.top_p, seed=settings.seed)
        served = self.requests[: max(REFERENCE, batch)]
        run = run_live(self.world, plain, served, batch=batch, fresh_seed=False)
        return drift_of(run.timings, self.profile, sampled=settings.temperature > 0.0)


@dataclass(frozen=True)
class Asked:
    """What to record.

    Attributes:
        job: The pair, called as it was when the profile was measured if operations are timed; its prompts,
            whose order gives the request ids 0, 1, ..., and the most tokens per request.
        profile: What to time beside.
        settings: All at one sampling.
        batches: Rows served at once; decisions are those of the first.
        timed: Whether to time operations.
    """

    job: Job
    profile: Profile
    settings: Sequence[Settings]
    batches: tuple[int, ...] = (1,)
    timed: bool = True

    def __post_init__(self) -> None:
        if len({(s.temperature, s.top_p, s.seed) for s in self.settings}) != 1:
            raise ValueError("one decision trace holds settings of one sampling")
        if not self.batches or min(self.batches) < 1:
            raise ValueError(f"batches must be at least 1, got {', '.join(map(str, self.batches))}")
        if not self.timed and len(self.batches) > 1:
            raise ValueError("decisions are the same in every batch: with --untimed give one")

    @property
    def untimed(self) -> Asked:
        """The decisions alone, of models called eagerly."""
        return replace(self, timed=False, batches=self.batches[:1], job=replace(self.job, mode="eager"))

    @property
    def sampled(self) -> bool:
        """Whether tokens are sampled."""
        return self.settings[0].temperature > 0.0


def record_decisions(
    asked: Asked, keep: Callable[[Settings, DecisionTrace], None], progress: Progress
) -> dict[str, str]:
    """Run settings one after the other on a profile's pair; `keep` takes each one's decision trace at once.

    Returns:
        By label, what went wrong in a worker: that setting is missing, and does not keep others from being
        recorded.

    Raises:
        LiveError: A model is not there or does not run.
    """
    from calibrate.live.loading import load_tokenizer

    job = asked.job
    tokenizer = load_tokenizer(job.target, trust_remote_code=job.trust_remote_code)
    texts = [tuple(tokenizer(prompt.text)["input_ids"]) for prompt in job.prompts]
    requests = [Request(i, len(ids), job.max_tokens, ids) for i, ids in enumerate(texts)]
    trace_requests = tuple(
        trace_request(i, prompt, ids, "limit")
        for i, (prompt, ids) in enumerate(zip(job.prompts, texts, strict=True))
    )
    length = max(map(len, texts)) + job.max_tokens + SPARE
    specs = worker_specs(job, batch=max(asked.batches), length=length)
    with LiveWorld(*specs, start_timeout_s=PATIENCE_S) as world:
        recorder = Recorder(world, requests, asked.profile if asked.timed else None, asked.batches)
        meta = _meta(asked, world, type(tokenizer).__name__)
        failed = {}
        for settings in asked.settings:
            label = settings.label
            try:
                decisions = recorder.record(settings, partial(progress, label))
            except WorkerError as error:
                failed[label] = str(error)
                continue
            keep(settings, DecisionTrace(trace_requests, meta, {label: decisions}, job.max_tokens))
    return failed


def _meta(asked: Asked, world: LiveWorld, tokenizer: str) -> TraceMeta:
    job, roles = asked.job, asked.profile.roles
    sampling, ends = asked.settings[0].sampling, world.end_token_ids
    return TraceMeta(
        target_model=roles.target.model,
        draft_model=roles.draft.model,
        tokenizer=tokenizer,
        vocabulary=world.vocabulary,
        sampling={"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed},
        end_token=ends[0] if ends else None,
        prompt_set=job.prompt_set,
        prompt_set_hash=digest(job.prompts),
        backend=backend_label(job.draft_backend, job.mode),
        precision=own_precision(job.draft_backend) or job.precision,
        when=now(),
        versions=versions(),
    )


class DecisionFiles:
    """Where the settings of a recording go: a file or folder; by default (None) the user's own.

    Raises:
        ValueError: A file holds other prompts or models, or settings of several policies go into one.
    """

    def __init__(self, asked: Asked, out: Path | None) -> None:
        self.asked = asked
        self.out = out
        self._held: dict[Path, DecisionTrace] = {}
        if out is not None and self._is_file and len({s.policy for s in asked.settings}) > 1:
            raise ValueError(f"{out}: a file holds one policy; give --out a folder for several")
        for path in dict.fromkeys(map(self.path, asked.settings)):
            if path.is_file():
                self._held[path] = read_decisions(path)
                self._check(path)

    @property
    def _is_file(self) -> bool:
        return self.out is not None and not self.out.is_dir() and self.out.suffix == SUFFIX

    def path(self, settings: Settings) -> Path:
        """The file of a setting's policy."""
        name = decisions_name(self.asked.profile.name, settings.policy, settings.temperature, settings.top_p)
        if self.out is None:
            return user_decisions(name)
        return self.out if self._is_file else self.out / f"{name}{SUFFIX}"

    def holds(self, settings: Settings) -> bool:
        """Whether a setting is there as it is asked for: if it is to be timed, beside this profile."""
        held = self._held.get(self.path(settings))
        stored = held.settings.get(settings.label) if held is not None else None
        if held is None or stored is None or held.meta.sampling.get("seed") != settings.seed:
            return False
        if not self.asked.timed:
            return True
        timed = {each.batch for each in stored.timings}
        return stored.timed_beside == costs_fingerprint(self.asked.profile) and timed >= {*self.asked.batches}

    def keep(self, settings: Settings, trace: DecisionTrace) -> None:
        """Add a setting to its file, with the timing that follows from all that was timed."""
        path = self.path(settings)
        if path in self._held:
            trace = self._held[path].merged(trace)
        timings = fit_timings(self.asked.profile, trace.settings.values(), sampled=self.asked.sampled)
        self._held[path] = replace(trace, operation_timings=joined_timings(trace.operation_timings, timings))
        write_decisions(self._held[path], path)

    def report(self, path: Path) -> Iterator[str]:
        """What the timing in a file is, and what it buys; nothing of a file that is not there."""
        trace = self._held.get(path)
        if trace is None:
            return
        known = trace.operation_timings.policies if trace.operation_timings is not None else {}
        for kind, timing in (each for kinds in known.values() for each in kinds.items()):
            steps = ", ".join(_shown(name, step) for name, step in timing.steps.items())
            beyond = f"beyond its steps {timing.host.extra_s * 1e6:+.0f} us"
            yield f"timing of {kind}: {steps or 'no steps'}; {beyond}"
        gained = gains(self.asked.profile, list(trace.settings.values()), sampled=self.asked.sampled)
        if gained:
            yield gains_line(gained)
        drifts = [each.drift for each in trace.settings.values() if each.drift]
        every = [value for drift in drifts for value in drift]
        if not every:
            return
        pairs = [pair for drift in drifts for pair in zip(drift[::2], drift[1::2], strict=True)]
        change = max(abs(after / before - 1.0) for before, after in pairs)
        unsteady = f"; it changed by {change:.0%} around a single run: was something else running?"
        yield (
            f"plain decoding meanwhile took {min(every):.2f} to {max(every):.2f} times what the profile "
            f"says, divided out{unsteady if change > MOST_CHANGE else ''}"
        )

    def _check(self, path: Path) -> None:
        """Refuse, before anything runs, what could not be added to a file in the end."""
        held, asked = self._held[path], self.asked
        models = (asked.profile.roles.target.model, asked.profile.roles.draft.model)
        first, meta = asked.settings[0], held.meta
        mine = (*models, digest(asked.job.prompts), asked.job.max_tokens, first.temperature, first.top_p)
        sampling = (meta.sampling.get("temperature", 0.0), meta.sampling.get("top_p", 1.0))
        if mine != (meta.target_model, meta.draft_model, meta.prompt_set_hash, held.limit, *sampling):
            raise ValueError(
                f"{path} holds decisions of other models, prompts, limits or samplings, which cannot be "
                "joined; give another --out, or remove it"
            )
        ran = labelled_backend(meta.backend, meta.precision)
        if ran != asked.job.draft_backend:
            raise ValueError(
                f"{path} holds decisions of a draft by {ran}, which cannot be joined with those of one by "
                f"{asked.job.draft_backend}; give another --out, or remove it"
            )


def _shown(name: str, step: StepTiming) -> str:
    """A step's timing, for people; of a step that calls no model there is no factor."""
    factor = f"{step.factor:.2f} x profile " if step.factor != 1.0 else ""
    return f"{name} {factor}{step.extra_s * 1e6:+.0f} us"
