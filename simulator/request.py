"""What `simulate` is asked, the scenario that this describes, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import click

from hardware_profiles.profile import Profile, ProfileError, load_profile, unmeasured
from hardware_profiles.reply_trace import DecisionTrace, OperationTimings, read_decisions
from hardware_profiles.store import (
    SHIPPED,
    decisions_name,
    find_acceptance,
    find_decisions,
    find_profile,
    find_trace,
    name_beside,
    origin,
    other_pair,
    shipped_profiles,
    trace_name,
)
from hardware_profiles.trace import Trace, TraceError, TraceMeta, read_trace
from policies.commandline import POSITIVE, Listed, about, option
from policies.registry import SettingError, find_policy
from policies.ssd import SaguaroConfig
from simulator.auto import SettingsQuery
from simulator.costs import Effects, TextbookCosts
from simulator.given import FLAT, Acceptance, PairOptions
from simulator.run import Engine, Scenario, find_timings
from simulator.tokens import REPLAY_COLUMNS, TokenModel, check_sampling, coin, histogram, mixed, replay

DEFAULT_PROFILE = "h100x4-llama-3.1-70b+llama-3.2-1b"
DEFAULT_ACCEPTANCE = "llama-3.1-70b+llama-3.2-1b"
"""Published for the default profile's pair: what is accepted where neither it nor hardware is named."""
RECORDED_PROFILE = "cpu2-x5"
"""A pair that was calibrated and validated: hardware for what only recordings answer."""
LENGTH = 128
"""Tokens of a prompt and of its continuation where neither is recorded."""
GREEDY_COLUMNS = ("draft_rank", "draft_top_ids")
"""Columns of a trace that a greedy replay reads; it does without the second (`simulator.tokens.replay`)."""
WARNING = "warning"
"""What a source's name begins with where it is one."""
DRAFT_FORWARDS = ("draft.forward", "draft.tree", "draft.prefill")
LLAMACPP = "llamacpp"
"""The backend, as profiles and traces call it, whose drafts may be quantised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest(PairOptions):
    """What `simulate` is asked; every field is the option of its name.

    `hw`, `trace` and `decisions` are names or files; None: what belongs to the profile, at the settings'
    temperature.
    """

    query: SettingsQuery
    batch: int = option(1, "Rows served at once.", cls=Listed)
    hw: str | None = option(
        None,
        f"Hardware profile: a name, shipped:NAME or a file.  [default: {DEFAULT_PROFILE}, composed, with the "
        "acceptance published for that pair]",
        cls=Listed,
    )
    target_shape: str | None = option(
        None, "Another target on the profile's device, scaled by roofline: a name or config."
    )
    draft_shape: str | None = option(None, "Another draft, given in the same way.")
    placement: Literal["split", "shared"] | None = option(
        None,
        "Devices of their own, or the same one in turns, where the profile has it otherwise.",
        cls=Listed,
    )
    trace: str | None = option(
        None,
        "Recorded trace: a name, shipped:NAME or a file.  [default: the profile's, at this temperature]",
    )
    decisions: str | None = option(
        None,
        "Decision trace (`calibrate decide`), for policies whose replay needs one: a name or a file.  "
        "[default: the profile's, of this policy, at this temperature]",
    )
    prompt_length: int | None = option(
        None,
        "Prompt tokens in place of the recorded ones: prefill and context.",
        spelled=("--prompt-length", "--context"),
        type=POSITIVE,
        cls=Listed,
    )
    prompt_category: str | None = option(None, "Only recorded prompts of this category.  [default: all]")
    requests: int | None = option(None, "Requests to serve.  [default: 8 per row, at least 48]")
    max_tokens: int | None = option(None, "Most tokens per request.", type=POSITIVE)
    target_time: float | None = option(None, "Constant seconds of a target step (no profile).")
    draft_time: float | None = option(None, "Constant seconds of a draft step (no profile).")
    acceptance: Acceptance | None = None
    hit_exponent: float | None = option(None, "r of the coins' hit curve 1 - c F^-r.  [default: 1]")
    hit_scale: float | None = option(None, "c of the coins' hit curve.  [default: 1]")
    hit_curve: tuple[float, float] | None = None
    draft_factor: float | None = option(
        None,
        "Forwards of the draft take this many times as long as in the profile: another cost ratio.",
        type=click.FloatRange(0, min_open=True),
        cls=Listed,
    )
    jitter: bool = option(
        True, "Vary latencies as measured, or use their means.", spelled=("--jitter/--no-jitter",)
    )

    engine: Engine = field(
        default="auto",
        metadata=about(
            "Who simulates: the event world; the compiled replay, which refuses what it does not cover; or "
            "the latter where it does."
        ),
    )

    @property
    def served(self) -> int:
        """Requests to serve."""
        return self.requests or max(48, 8 * self.batch)


Kept: TypeAlias = dict[Hashable, Any]
"""Files read, profiles composed, texts made up and what is laid out of them, by what they follow from."""
PROFILE, LAID_OUT = "profile", "laid out"
"""Keys of what is kept: profiles, and the fields of `Scenario` that its copies share."""
T = TypeVar("T")


def _once(kept: Kept, key: Hashable, make: Callable[[], T]) -> T:
    if key not in kept:
        kept[key] = make()
    found: T = kept[key]
    return found


def build_scenario(request: SimulationRequest, kept: Kept | None = None) -> tuple[Scenario, dict[str, str]]:
    """The scenario that the command line asks for, and where its numbers come from.

    `kept` is what requests that are built with the same one share.

    Raises:
        SettingError: Options that contradict each other or lack their partner.
    """
    kept = {} if kept is None else kept
    request, sources = with_default_pair(request)
    request = with_measured_rates(request)
    _refuse_contradictions(request)
    profile, textbook = None, None
    if request.target_time is not None and request.draft_time is not None:
        textbook = TextbookCosts(request.target_time, request.draft_time)
        sources["latency"] = (
            f"textbook constants, target {textbook.target_s:g} s, draft {textbook.draft_s:g} s (synthetic)"
        )
    else:
        profile, about_profile = _once(kept, _hardware(request), lambda: _overridden(request))
        sources |= about_profile
        if request.draft_factor is not None:
            sources["draft"] = f"its forwards take {request.draft_factor:g} times as long as in the profile"
    tokens, sources["tokens"] = _tokens(request, profile, sources, kept)
    requests = request.served
    if requests < request.batch:
        sources["batch"] = f"{requests} of {request.batch} rows run: there are {requests} requests"
    scenario = Scenario(
        tokens=tokens,
        profile=profile,
        textbook=textbook,
        batch=min(request.batch, requests),
        requests=requests,
        prompt_length=request.prompt_length,
        effects=Effects(jitter=request.jitter),
        seed=request.query.settings.seed,
        drift={} if request.draft_factor is None else dict.fromkeys(DRAFT_FORWARDS, request.draft_factor),
        decisions=_decisions(request, profile, sources),
        measured_timings=_measured_timings(request, profile),
        engine=request.engine,
        **_once(kept, LAID_OUT, lambda: {"built": {}, "served": {}, "scripts": {}}),
    )
    policy = find_policy(request.query.settings.policy)
    if profile is not None and policy.needs_decisions:
        sources["pace"] = scenario.timing_note(policy.name)
    return scenario, sources


def with_default_pair(request: SimulationRequest) -> tuple[SimulationRequest, dict[str, str]]:
    """The request with the default pair where it names no hardware, and what that is, for people.

    Raises:
        SettingError: It asks for what recordings alone answer; the default pair has none.
    """
    if request.hw is not None or request.target_time is not None or request.draft_time is not None:
        return request, {}
    if request.target is not None or request.draft is not None:
        return request, {}  # refused where the pair is composed
    settings = request.query.settings
    check_recorded(
        {
            "--trace": request.trace,
            "--decisions": request.decisions,
            "--prompt-category": request.prompt_category,
            "--temperature": settings.temperature or None,
            f"policy {settings.policy!r}": settings.config.reads_text or None,
        }
    )
    said = {
        "hardware": f"none named, so {DEFAULT_PROFILE}; --hw {RECORDED_PROFILE}: a small pair on two "
        "CPU cores, measured and validated live"
    }
    if request.says_acceptance(request.acceptance):
        return replace(request, hw=DEFAULT_PROFILE), said
    return replace(request, hw=DEFAULT_PROFILE, acceptance=find_acceptance(DEFAULT_ACCEPTANCE)), said


def check_recorded(asked: Mapping[str, Any]) -> None:
    """Refuse on the default pair what recordings alone answer, by how it was asked for.

    Raises:
        SettingError: Something is asked for; it names hardware that has recordings.
    """
    if recorded := [name for name, value in asked.items() if value is not None]:
        raise SettingError(
            f"{recorded[0]} needs recordings, and the default pair ({DEFAULT_PROFILE}) has none: name the "
            f"hardware, e.g. --hw {RECORDED_PROFILE}, a calibrated pair"
        )


def _hardware(request: SimulationRequest) -> Hashable:
    """What the profile follows from."""
    names = ("hw", "target_shape", "draft_shape", "placement", *(each.name for each in fields(PairOptions)))
    return PROFILE, *(getattr(request, name) for name in names)


def _overridden(request: SimulationRequest) -> tuple[Profile, dict[str, str]]:
    """The profile with what is asked of it, and where its numbers come from."""
    profile, found = _profile(request)
    kind = profile.provenance.kind
    sources = {"latency": f"profile {profile.name} ({kind}, {found}): {profile.description}"}
    profile = request.verified(overridden(profile, request, sources))
    return profile, sources | unmeasured(profile)


def with_measured_rates(request: SimulationRequest) -> SimulationRequest:
    """The request with its run length and hit rate as the acceptance and the hit curve that they mean.

    Raises:
        SettingError: They come beside what they stand for.
    """
    assert not isinstance(request.acceptance, tuple)
    middle = (request.prompt_length or LENGTH) + 0.5 * (request.max_tokens or LENGTH)
    changes: dict[str, Any] = {"acceptance": request.accepted(request.acceptance, middle)}
    settings = request.query.settings
    if request.miss_acceptance is not None and settings.backup not in ("primary", "primary-all"):
        raise SettingError(
            f"--miss-acceptance is of drafts made after a miss, which {settings.label} does not make: "
            "it needs --policy saguaro --backup primary"
        )
    if request.hit_rate is not None:
        if request.hit_curve or request.hit_exponent is not None or request.hit_scale is not None:
            raise SettingError("--hit-rate takes the place of --hit-curve, --hit-exponent and --hit-scale")
        if isinstance(changes["acceptance"], Path):
            changes["hit_curve"] = (FLAT, 1.0 - request.hit_rate)
        else:
            changes |= {"hit_exponent": FLAT, "hit_scale": 1.0 - request.hit_rate}
    changes |= dict.fromkeys(("run_length", "acceptance_by_context", "miss_acceptance", "hit_rate"))
    return replace(request, **changes)


def _profile(request: SimulationRequest) -> tuple[Profile, str]:
    """The profile asked for, and which file answered; composed where models are named.

    Raises:
        SettingError: Options of a composed profile without its two models.
    """
    if (pair := request.composed(request.hw)) is not None:
        return pair
    hw = DEFAULT_PROFILE if request.hw is None else request.hw
    try:
        path = find_profile(hw)
    except ProfileError as error:
        from hardware_profiles.pairs import Pair, is_gpu

        if not is_gpu(hw):
            raise
        gpu = Pair(hw=hw, target="", draft="").gpu
        there = ", ".join(name for name in shipped_profiles() if name.startswith(f"{gpu}x"))
        raise SettingError(
            f"{hw} is a GPU: say with --target and --draft what runs on it"
            + (f", or name one of its profiles: {there}" if there else "")
        ) from error
    return load_profile(path), origin(path)


def overridden(profile: Profile, request: SimulationRequest, sources: dict[str, str]) -> Profile:
    """The profile with the models and the placement asked for; what that assumes is added to `sources`.

    Raises:
        ValueError: The profile cannot be carried there.
    """
    moved = request.placement not in {None, profile.placement}
    if not (request.target_shape or request.draft_shape or moved):
        return profile
    from hardware_profiles.predicted import placement_note, replaced, rescaled

    profile = rescaled(profile, target=request.target_shape, draft=request.draft_shape)
    if request.target_shape or request.draft_shape:
        models = f"{profile.roles.target.model} and {profile.roles.draft.model}"
        sources["models"] = (
            f"{models} in place of the profile's own: their times are extrapolated, and what is accepted is "
            "still that of the tokens below"
        )
    if request.placement not in {None, profile.placement}:
        profile = replaced(profile, request.placement)
        sources["placement"] = placement_note(request.placement)
    return profile


def _measured_timings(request: SimulationRequest, profile: Profile | None) -> OperationTimings | None:
    """What is known by the profile's name for a policy that needs it; a decision trace has its own."""
    replayed = find_policy(request.query.settings.policy).needs_decisions
    if profile is None or request.decisions is not None or not replayed:
        return None
    name = _recorded_as(request, profile)
    return find_timings(profile, request.query.settings.temperature, request.query.settings.top_p, name=name)


def _recorded_as(request: SimulationRequest, profile: Profile | None) -> str:
    """Name under which the recordings that belong to the profile are looked for."""
    return name_beside(request.hw, profile.name if profile else RECORDED_PROFILE)


def _refuse_contradictions(request: SimulationRequest) -> None:
    """No option is silently ignored: one that would change nothing is an error."""
    if request.requests is not None and request.requests < 1:
        raise SettingError(f"requests must be at least 1, got {request.requests}")
    if request.target_time is not None or request.draft_time is not None:
        _check_textbook(request)
    imported = isinstance(request.acceptance, Path)
    if request.hit_curve is not None and not imported:
        raise SettingError(
            "--hit-curve goes with --acceptance FILE; coins take --hit-exponent and --hit-scale"
        )
    if imported and (request.hit_exponent is not None or request.hit_scale is not None):
        raise SettingError(
            "an acceptance file takes --hit-curve R,C in place of --hit-exponent and --hit-scale"
        )
    if request.acceptance is not None:
        _check_coins(request)
    elif request.hit_exponent is not None or request.hit_scale is not None:
        raise SettingError(
            "--hit-exponent and --hit-scale shape coin tosses: give --acceptance too, or leave them out to "
            "use the recorded trace"
        )


MOST_TOKENS = 100_000_000
"""Of all requests of a made-up text together: all are kept in memory, and rates are known after far fewer."""


def _check_coins(request: SimulationRequest) -> None:
    requests = request.served
    length = request.max_tokens or LENGTH
    if requests * length > MOST_TOKENS:
        raise SettingError(
            f"{requests} requests of {length} tokens are more than {MOST_TOKENS:,} tokens, all kept "
            "in memory: give fewer --requests or --max-tokens"
        )
    if request.trace is not None:
        raise SettingError("give either --trace or --acceptance, not both")
    if request.prompt_category is not None:
        raise SettingError("--prompt-category chooses among recorded prompts: coins (--acceptance) have none")
    if request.query.settings.temperature != 0.0:
        raise SettingError("coins have no temperature: give --acceptance or --temperature, not both")
    config = request.query.settings.config
    if isinstance(config, SaguaroConfig) and config.cache_set == "top":
        raise SettingError(
            "--cache-set changes nothing with --acceptance: coins hit by the curve they are given"
        )


def _check_textbook(request: SimulationRequest) -> None:
    if request.target_time is None or request.draft_time is None:
        raise SettingError("--target-time and --draft-time go together")
    if request.hw is not None:
        raise SettingError("give either --hw or --target-time and --draft-time, not both")
    changes = ("target_shape", "draft_shape", "placement", "draft_factor", "verification")
    if named := [name for name in changes if getattr(request, name) is not None]:
        raise SettingError(f"--{named[0].replace('_', '-')} changes a profile: leave out --target-time")
    if not request.jitter:
        raise SettingError("--no-jitter changes nothing with --target-time: constants do not vary")
    if request.target_time <= 0 or request.draft_time < 0:
        raise SettingError("--target-time must be above 0 and --draft-time at least 0")


def _tokens(
    request: SimulationRequest, profile: Profile | None, sources: dict[str, str], kept: Kept
) -> tuple[TokenModel, str]:
    if isinstance(request.acceptance, Path):
        from simulator.tokens.acceptance import acceptance_tokens
        from simulator.tokens.accepted import SUFFIX, accepted_tokens

        if request.acceptance.suffix == SUFFIX:
            return accepted_tokens(request.acceptance, request.query.settings, limit=request.max_tokens)

        return acceptance_tokens(
            request.acceptance,
            request.query.settings,
            open_lookahead=request.query.open_lookahead,
            hit_curve=request.hit_curve,
            requests=request.served,
            length=request.max_tokens or LENGTH,
            prompt_length=request.prompt_length or LENGTH,
            make=lambda *args, **more: _once(kept, repr((args, more)), lambda: histogram(*args, **more)),
        )
    if request.acceptance is not None:
        exponent = 1.0 if request.hit_exponent is None else request.hit_exponent
        scale = 1.0 if request.hit_scale is None else request.hit_scale
        shape: dict[str, Any] = {
            "exponent": exponent,
            "scale": scale,
            "requests": request.served,
            "length": request.max_tokens or LENGTH,
            "prompt_length": request.prompt_length or LENGTH,
            "seed": request.query.settings.seed,
        }
        acceptance = request.acceptance
        key, curve = (acceptance, *shape.values()), f"hit 1 - {scale:g} F^-{exponent:g}"
        if isinstance(acceptance, tuple):
            model = _once(kept, key, lambda: mixed(acceptance, **shape))
            return model, f"coin tosses, acceptance after hits and misses mixed, {curve} (synthetic)"
        model = _once(kept, key, lambda: coin(acceptance, **shape))
        return model, f"coin tosses, acceptance {acceptance:g}, {curve} (synthetic)"
    name, path = _find_trace(request, _recorded_as(request, profile))
    settings = request.query.settings
    temperature, how = settings.temperature, (settings.temperature, settings.top_p, settings.seed)
    read = (path, request.prompt_category, request.max_tokens, *how)
    trace, model = _once(kept, read, lambda: _replayed(request, path))
    sampled = f" at temperature {temperature:g}" if temperature else ""
    described = (
        f"trace {name.removeprefix(SHIPPED)} ({origin(path)}): {len(trace)} tokens of "
        f"{len(trace.requests)} {trace.meta.prompt_set} prompts, "
        f"recorded by plain decoding of {trace.meta.target_model}{sampled}"
    )
    described += _other_draft(trace.meta, profile)
    _note_pair("trace", trace.meta, profile, sources)
    return model, described


def _replayed(request: SimulationRequest, path: Path) -> tuple[Trace, TokenModel]:
    """The recording, and what a replay makes of it."""
    settings = request.query.settings
    greedy = settings.temperature == 0.0
    # None is asked for here: how the trace was recorded says which it needs, and comes first.
    columns = GREEDY_COLUMNS if greedy else REPLAY_COLUMNS
    trace = read_trace(path, columns=(), optional=columns, category=request.prompt_category)
    try:
        check_sampling(trace, settings.temperature, settings.top_p)
        return trace, replay(trace, limit=request.max_tokens, seed=settings.seed)
    except (TraceError, SettingError) as error:
        raise type(error)(f"{path}: {error}") from error


def _note_pair(what: str, meta: TraceMeta, profile: Profile | None, sources: dict[str, str]) -> None:
    """Warn of a recording of another pair than the profile's."""
    mixed = None if profile is None else other_pair(profile, meta)
    if mixed is not None:
        sources[f"{WARNING} ({what})"] = mixed


def _other_draft(meta: TraceMeta, profile: Profile | None) -> str:
    """What to know of a recording whose draft llama.cpp ran where the profile's was run otherwise, or the
    other way round: a quantised draft is accepted differently.
    """
    if profile is None:
        return ""
    timed = (profile.roles.draft.backend, profile.roles.draft.precision)
    recorded = (meta.backend, meta.precision)
    if timed == recorded or LLAMACPP not in {timed[0], recorded[0]} or not (timed[0] and recorded[0]):
        return ""
    return (
        f"; its draft was run by {recorded[0]} in {recorded[1]}, the profile's by {timed[0]} in {timed[1]}, "
        "which is accepted differently"
    )


def _decisions(
    request: SimulationRequest, profile: Profile | None, sources: dict[str, str]
) -> DecisionTrace | None:
    """The decision trace; None where the policy needs none, or where coins stand in for it."""
    settings = request.query.settings
    info = find_policy(settings.policy)
    if not info.needs_decisions:
        if request.decisions is not None:
            raise SettingError(f"--decisions changes nothing: policy {info.name!r} is replayed on a trace")
        return None
    if request.acceptance is not None or "live" not in info.worlds:
        return None
    if request.decisions is None and settings.config.follows_path(settings.sampling):
        return None
    name = request.decisions
    if name is None:
        beside = _recorded_as(request, profile)
        name = decisions_name(beside, info.name, settings.temperature, settings.top_p)
    try:
        path = find_decisions(name)
    except TraceError as error:
        if request.decisions is not None:
            raise
        sampled = f" --temperature {settings.temperature:g}" if settings.temperature else ""
        way_out = f"`calibrate decide --policy {info.name}{sampled}` records one"
        raise SettingError(f"{error}; {way_out}") from error
    trace = read_decisions(path).of_category(request.prompt_category)
    sources["decisions"] = (
        f"decision trace {name.removeprefix(SHIPPED)} ({origin(path)}): {len(trace.settings)} settings on "
        f"{len(trace.requests)} {trace.meta.prompt_set} prompts"
    )
    _note_pair("decisions", trace.meta, profile, sources)
    return trace


def _find_trace(request: SimulationRequest, profile_name: str) -> tuple[str, Path]:
    """Name and path of the trace: the one asked for, or the profile's at this temperature."""
    temperature, top_p = request.query.settings.temperature, request.query.settings.top_p
    if request.trace is not None:
        return request.trace, find_trace(request.trace)
    name = trace_name(profile_name, temperature, top_p)
    try:
        return name, find_trace(name)
    except TraceError as error:
        if temperature == 0.0:
            raise SettingError(
                f"profile {profile_name!r} has no recording of its own ({error}): give --acceptance, a "
                "number or an imported file, or another pair's recording with --trace"
            ) from error
        more = f" --top-p {top_p:g}" if top_p < 1.0 else ""
        raise SettingError(
            f"no trace of profile {profile_name!r} at temperature {temperature:g}"
            + (f" and top-p {top_p:g}" if more else "")
            + f": every temperature needs a recording of its own.  Record one with `calibrate --temperature "
            f"{temperature:g}{more}`, or name one with --trace ({error})"
        ) from error
