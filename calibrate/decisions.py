"""Decision traces from live runs (see `hardware_profiles.decisions`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from calibrate.live.world import LiveWorld
from calibrate.prompts import Prompt
from hardware_profiles.decisions import Decisions, DecisionTrace, Key, Plain
from hardware_profiles.parts import Role
from hardware_profiles.profile import Profile
from hardware_profiles.trace_schema import TraceMeta, TraceRequest
from policies.operations import Request
from policies.settings import Settings


def collect_decisions(world: LiveWorld, settings: Settings) -> Decisions:
    """What the devices answered since their records were cleared.

    Args:
        world: After a run.
        settings: What was run.
    """
    replies: dict[Key, Plain] = {}
    marks: dict[Key, Plain] = {}
    for device in world.devices:
        for operation, answered, marked in device.decisions:
            for i, key in enumerate(operation.moments()):
                if key in replies:
                    raise AssertionError(f"{key} was answered twice; give the operations different parts")
                replies[key] = plain(answered[i])
                if marked is not None:
                    marks[key] = plain(marked[i])
    return Decisions(settings.label, replies, marks, _seconds(world), settings.policy, plain_knobs(settings))


def plain_knobs(settings: Settings) -> dict[str, Plain]:
    """The knobs of a setting as a file keeps them."""
    return {name: plain(value) for name, value in settings.knobs.items()}


def _seconds(world: LiveWorld) -> dict[str, float]:
    """Median seconds of steps that fed no token to a model, by name."""
    found: dict[str, list[float]] = {}
    for timing in world.timings():
        for step in timing.steps:
            if step.tokens == 0:
                found.setdefault(step.name, []).append(step.end_s - step.start_s)
    return {name: median(values) for name, values in sorted(found.items())}


def plain(value: Any) -> Plain:
    """Tuples as lists, numpy's numbers as Python's."""
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return value.item() if hasattr(value, "item") else value


def joined(runs: Sequence[Decisions]) -> Decisions:
    """The decisions of one setting in several runs, of different requests each.

    Raises:
        ValueError: They are of different settings, or there are none.
    """
    if len({run.label for run in runs}) != 1:
        raise ValueError(f"decisions of {len({run.label for run in runs})} settings cannot be joined")
    replies: dict[Key, Plain] = {}
    marks: dict[Key, Plain] = {}
    for run in runs:
        replies |= run.replies
        marks |= run.marks
    names = sorted({name for run in runs for name in run.seconds})
    seconds = {n: median(run.seconds[n] for run in runs if n in run.seconds) for n in names}
    return Decisions(runs[0].label, replies, marks, seconds, runs[0].policy, runs[0].knobs)


def decide(
    world: LiveWorld,
    settings: Sequence[Settings],
    requests: Sequence[Request],
    *,
    batch: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Decisions]:
    """Run settings once each and keep what was decided, by label; nothing is timed.

    Args:
        world: Where.
        settings: Of any policies.
        requests: Prompts.
        batch: Rows served at once; it changes no decision.
        progress: Called with (settings done, settings in all).
    """
    from calibrate.runs import run_live

    found = {}
    for done, each in enumerate(settings):
        progress(done, len(settings))
        found[each.label] = run_live(world, each, requests, batch=batch, fresh_luck=False).decisions
    progress(len(settings), len(settings))
    return found


def decide_pair(
    profile: Profile,
    settings: Sequence[Settings],
    prompts: Sequence[Prompt],
    *,
    prompt_set: str,
    limit: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DecisionTrace:
    """The decision trace of settings on a profile's pair of models.

    Args:
        profile: Names the models.
        settings: What to run; all at one sampling.
        prompts: What to continue; their order gives the request ids 0, 1, ...
        prompt_set: Name for the metadata.
        limit: Most tokens per request.
        progress: See `decide`.

    Raises:
        LiveError: A model is not there or does not run.
        ValueError: Several samplings at once.
    """
    from transformers import AutoTokenizer

    from calibrate.live.placement import pair_specs, parse_placement
    from calibrate.pair.resolve import profiled_model
    from calibrate.traces import digest, now, versions

    if len({(s.temperature, s.top_p, s.seed) for s in settings}) != 1:
        raise ValueError("one decision trace holds settings of one sampling")
    models = [str(profiled_model(role.model)) for role in (profile.roles.target, _draft_of(profile))]
    tokenizer = AutoTokenizer.from_pretrained(models[0])
    texts = [tuple(tokenizer(prompt.text)["input_ids"]) for prompt in prompts]
    requests = [Request(i, len(ids), limit, ids) for i, ids in enumerate(texts)]
    specs = pair_specs(models[0], models[1], parse_placement("split"))
    with LiveWorld(*specs) as world:
        found = decide(world, settings, requests, progress=progress)
        vocabulary, ends = world.vocabulary, world.end_token_ids
    sampling = settings[0].sampling
    return DecisionTrace(
        requests=tuple(
            TraceRequest(
                id=i,
                question_id=prompt.question_id,
                category=prompt.category,
                prompt=ids,
                source=prompt.source,
                ended="limit",
            )
            for i, (prompt, ids) in enumerate(zip(prompts, texts, strict=True))
        ),
        meta=TraceMeta(
            target_model=profile.roles.target.model,
            draft_model=_draft_of(profile).model,
            tokenizer=type(tokenizer).__name__,
            vocabulary=vocabulary,
            sampling={"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed},
            end_token=ends[0] if ends else None,
            prompt_set=prompt_set,
            prompt_set_hash=digest(prompts),
            backend="torch-eager",
            precision="fp32",
            when=now(),
            versions=versions(),
        ),
        settings=found,
        limit=limit,
    )


def _draft_of(profile: Profile) -> Role:
    if profile.roles.draft is None:
        raise ValueError(f"profile {profile.name!r} names no draft model")
    return profile.roles.draft
