"""The scenario that the options of `simulate` describe, and where its numbers come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.registry import SettingError, find_policy

if TYPE_CHECKING:
    from hardware_profiles.profile import Profile
    from hardware_profiles.trace_schema import TraceMeta

DEFAULT_PROFILE = "cpu2-x5"
GREEDY_COLUMNS = ("draft_rank", "draft_top_ids")
"""Columns of a trace that a greedy replay reads; it does without the second (`simulator.tokens.replay`)."""
WARNING = "warning"
"""What a source's name begins with where it is one."""
LLAMACPP = "llamacpp"
"""The backend, as profiles and traces call it, whose drafts may be quantised."""


def build_scenario(options: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """The scenario that the command line asks for, and where its numbers come from.

    Raises:
        SettingError: Options that contradict each other or lack their partner.
    """
    from hardware_profiles.profile import load_profile, unmeasured
    from hardware_profiles.store import find_profile, origin
    from simulator.carried import carried
    from simulator.costs import Effects, TextbookCosts
    from simulator.run import Scenario

    _refuse_contradictions(options)
    profile, textbook, sources = None, None, {}
    if options["target_time"] is not None:
        textbook = TextbookCosts(options["target_time"], options["draft_time"])
        sources["latency"] = (
            f"textbook constants, target {textbook.target_s:g} s, draft {textbook.draft_s:g} s (synthetic)"
        )
    else:
        path = find_profile(DEFAULT_PROFILE if options["hw"] is None else options["hw"])
        profile = load_profile(path)
        kind = profile.provenance.kind
        sources["latency"] = f"profile {profile.name} ({kind}, {origin(path)}): {profile.description}"
        profile = carried(profile, options, sources)
        sources |= unmeasured(profile)
    tokens, sources["tokens"] = _tokens(options, profile, sources)
    requests = options["requests"] or max(48, 8 * options["batch"])
    if requests < options["batch"]:
        sources["batch"] = f"{requests} of {options['batch']} rows run: there are {requests} requests"
    scenario = Scenario(
        tokens=tokens,
        profile=profile,
        textbook=textbook,
        batch=min(options["batch"], requests),
        requests=requests,
        prompt_length=options["prompt_length"],
        effects=Effects(jitter=options["jitter"]),
        seed=options["seed"],
        decisions=_decisions(options, profile, sources),
        measured_pace=_measured_pace(options, profile),
    )
    policy = find_policy(options["policy"])
    if profile is not None and policy.needs_decisions:
        sources["pace"] = scenario.pace_note(policy.name)
    return scenario, sources


def _measured_pace(options: dict[str, Any], profile: Any) -> Any:
    """What is known by the profile's name; a decision trace that was asked for has its own."""
    from simulator.pacing import find_pace

    if profile is None or options["decisions"] is not None:
        return None
    name = _recorded_as(options, profile)
    return find_pace(profile, options["temperature"], options["top_p"], name=name)


def _recorded_as(options: dict[str, Any], profile: Profile | None) -> str:
    """Name under which the recordings that belong to the profile are looked for."""
    from hardware_profiles.store import name_beside

    return name_beside(options["hw"], profile.name if profile else DEFAULT_PROFILE)


def _refuse_contradictions(options: dict[str, Any]) -> None:
    """No option is silently ignored: one that would change nothing is an error."""
    if options["requests"] is not None and options["requests"] < 1:
        raise SettingError(f"requests must be at least 1, got {options['requests']}")
    if options["target_time"] is not None or options["draft_time"] is not None:
        _check_textbook(options)
    imported = isinstance(options["acceptance"], Path)
    if options["hit_curve"] is not None and not imported:
        raise SettingError(
            "--hit-curve goes with --acceptance FILE; coins take --hit-exponent and --hit-scale"
        )
    if imported and (options["hit_exponent"] is not None or options["hit_scale"] is not None):
        raise SettingError(
            "an acceptance file takes --hit-curve R,C in place of --hit-exponent and --hit-scale"
        )
    if options["acceptance"] is not None:
        _check_coins(options)
    elif options["hit_exponent"] is not None or options["hit_scale"] is not None:
        raise SettingError(
            "--hit-exponent and --hit-scale shape coin tosses: give --acceptance too, or leave them out to "
            "use the recorded trace"
        )


MOST_TOKENS = 100_000_000
"""Of all requests of a made-up text together: all are kept in memory, and rates are known after far fewer."""


def _check_coins(options: dict[str, Any]) -> None:
    requests = options["requests"] or max(48, 8 * options["batch"])
    length = options["max_tokens"] or 128
    if requests * length > MOST_TOKENS:
        raise SettingError(
            f"{requests} requests of {length} tokens are more than {MOST_TOKENS:,} tokens, all kept "
            "in memory: give fewer --requests or --max-tokens"
        )
    if options["trace"] is not None:
        raise SettingError("give either --trace or --acceptance, not both")
    if options["prompt_category"] is not None:
        raise SettingError("--prompt-category chooses among recorded prompts: coins (--acceptance) have none")
    if options["temperature"] != 0.0:
        raise SettingError("coins have no temperature: give --acceptance or --temperature, not both")
    if options["cache_set"] == "top":
        raise SettingError(
            "--cache-set changes nothing with --acceptance: coins hit by the curve they are given"
        )


def _check_textbook(options: dict[str, Any]) -> None:
    if options["target_time"] is None or options["draft_time"] is None:
        raise SettingError("--target-time and --draft-time go together")
    if options["hw"] is not None:
        raise SettingError("give either --hw or --target-time and --draft-time, not both")
    if any(options.get(name) for name in ("target_shape", "draft_shape", "placement")):
        raise SettingError(
            "--target-shape, --draft-shape and --placement change a profile: leave out --target-time"
        )
    if not options["jitter"]:
        raise SettingError("--no-jitter changes nothing with --target-time: constants do not vary")
    if options["target_time"] <= 0 or options["draft_time"] < 0:
        raise SettingError("--target-time must be above 0 and --draft-time at least 0")


def _tokens(options: dict[str, Any], profile: Profile | None, sources: dict[str, str]) -> tuple[Any, str]:
    from simulator.tokens import coin, replay

    if isinstance(options["acceptance"], Path):
        from simulator.imports.simulated import imported_tokens

        return imported_tokens(options)
    if options["acceptance"] is not None:
        exponent = 1.0 if options["hit_exponent"] is None else options["hit_exponent"]
        scale = 1.0 if options["hit_scale"] is None else options["hit_scale"]
        model = coin(
            options["acceptance"],
            exponent=exponent,
            scale=scale,
            requests=options["requests"] or max(48, 8 * options["batch"]),
            length=options["max_tokens"] or 128,
            prompt_length=options["prompt_length"] or 128,
            seed=options["seed"],
        )
        described = f"acceptance {options['acceptance']:g}, hit 1 - {scale:g} F^-{exponent:g}"
        return model, f"coin tosses, {described} (synthetic)"
    from hardware_profiles.store import SHIPPED, origin
    from hardware_profiles.trace import TraceError, read_trace
    from simulator.tokens import REPLAY_COLUMNS, check_sampling

    name, path = _find_trace(options, _recorded_as(options, profile))
    # None is asked for here: how the trace was recorded says which it needs, and comes first.
    trace = read_trace(
        path, columns=(), optional=GREEDY_COLUMNS if options["temperature"] == 0.0 else REPLAY_COLUMNS
    )
    try:
        if options["prompt_category"] is not None:
            trace = trace.of_category(options["prompt_category"])
        check_sampling(trace, options["temperature"], options["top_p"])
        model = replay(trace, limit=options["max_tokens"], seed=options["seed"])
    except (TraceError, SettingError) as error:
        raise type(error)(f"{path}: {error}") from error
    sampled = f" at temperature {options['temperature']:g}" if options["temperature"] else ""
    described = (
        f"trace {name.removeprefix(SHIPPED)} ({origin(path)}): {len(trace)} tokens of "
        f"{len(trace.requests)} {trace.meta.prompt_set} prompts, "
        f"recorded by plain decoding of {trace.meta.target_model}{sampled}"
    )
    described += _other_draft(trace.meta, profile)
    _note_pair("trace", trace.meta, profile, sources)
    return model, described


def _note_pair(what: str, meta: TraceMeta, profile: Profile | None, sources: dict[str, str]) -> None:
    """Warn of a recording of another pair than the profile's."""
    from hardware_profiles.pairs import other_pair

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


def _decisions(options: dict[str, Any], profile: Profile | None, sources: dict[str, str]) -> Any:
    """The decision trace; None where the policy needs none, or where coins stand in for it."""
    from hardware_profiles.decisions import read_decisions
    from hardware_profiles.store import SHIPPED, decisions_name, find_decisions, origin

    info = find_policy(options["policy"])
    if not info.needs_decisions:
        if options["decisions"] is not None:
            raise SettingError(f"--decisions changes nothing: policy {info.name!r} is replayed on a trace")
        return None
    if options["acceptance"] is not None or "live" not in info.worlds:
        return None
    if options["decisions"] is None and info.name == "tree" and _is_static_and_greedy(options):
        return None
    name = options["decisions"]
    if name is None:
        name = decisions_name(
            _recorded_as(options, profile), info.name, options["temperature"], options["top_p"]
        )
    path = find_decisions(name)
    trace = read_decisions(path).of_category(options["prompt_category"])
    sources["decisions"] = (
        f"decision trace {name.removeprefix(SHIPPED)} ({origin(path)}): {len(trace.settings)} settings on "
        f"{len(trace.requests)} {trace.meta.prompt_set} prompts"
    )
    _note_pair("decisions", trace.meta, profile, sources)
    return trace


def _is_static_and_greedy(options: dict[str, Any]) -> bool:
    """Whether a recorded path decides a tree (`policies.tree.follows_the_path`)."""
    return options["temperature"] == 0.0 and options["tree_plan"] in {None, "static"}


def _find_trace(options: dict[str, Any], profile_name: str) -> tuple[str, Path]:
    """Name and path of the trace: the one asked for, or the profile's at this temperature."""
    from hardware_profiles.store import find_trace, trace_name
    from hardware_profiles.trace_schema import TraceError

    temperature, top_p = options["temperature"], options["top_p"]
    if options["trace"] is not None:
        return options["trace"], find_trace(options["trace"])
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
