"""The `simulate` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from policies.commandline import HELP, Refusal, integer_or_auto, knob_options, wide_console
from policies.knobs import KNOBS
from policies.registry import POLICIES, SettingError, find_policy

DEFAULT_PROFILE = "cpu2-x5"
SHAPES = ("uniform", "geometric", "exact")
EXAMPLES = """
\b
Examples:
  simulate --policy saguaro --batch 16
  simulate --policy saguaro --lookahead auto --shape exact --backup auto --batch 8
  simulate --policy saguaro --lookahead 7 --fanout 3 --fanout-backup 12,0,0,0,0,0,0,0 --backup plain --json
  simulate --policy saguaro --temperature 1 --scale 0.7 --budget 12
  simulate --policy saguaro --draft-devices 2 --budget auto
  simulate --policy pearl --lookahead auto
  simulate --policy sd --lookahead 7 --hw cpu2-x20 --prompt-length 400
  simulate --policy saguaro --target-time 1 --draft-time 0.1 --acceptance 0.8 --hit-exponent 1
  simulate --policy sd --acceptance acceptance.json --lookahead 5
  simulate --hw a100x8 --acceptance 0.8 --target-shape deepseek-coder-33b --draft-shape deepseek-coder-1.3b
  simulate --policy pearl --timeline run.json --plot run.png
  simulate --list-policies
"""


def number_or_file(_: click.Context, __: click.Parameter, value: str | None) -> float | Path | None:
    """`0.8` as a number, the name of a file that is there as a path (a click callback); None stays None."""
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        if Path(value).is_file():
            return Path(value)
        raise click.BadParameter(f"{value!r} is neither a number nor a file") from None


def exponent_and_scale(
    _: click.Context, __: click.Parameter, value: str | None
) -> tuple[float, float] | None:
    """`1,0.9` as two numbers (a click callback); None stays None."""
    if value is None:
        return None
    try:
        exponent, scale = map(float, value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not an exponent and a scale, like 1,0.9") from error
    return exponent, scale


@click.command(epilog=EXAMPLES, context_settings=HELP)
@click.option("--policy", default="saguaro", show_default=True, help="Policy (see --list-policies).")
@click.option("--batch", default=1, show_default=True, help="Rows served at once.")
@click.option("--hw", help=f"Hardware profile: a shipped name or a file.  [default: {DEFAULT_PROFILE}]")
@click.option(
    "--target-shape", help="Another target on the profile's device, scaled by roofline: a name or config."
)
@click.option("--draft-shape", help="Another draft, likewise.")
@click.option(
    "--placement",
    type=click.Choice(["split", "shared"]),
    help="Devices of their own, or the same one in turns, where the profile has it otherwise.",
)
@click.option(
    "--trace",
    help="Recorded trace: a shipped name or a file.  [default: the profile's, at this temperature]",
)
@click.option(
    "--decisions",
    help="Decision trace (`calibrate decide`), for policies whose replay needs one: a name or a file.  "
    "[default: the profile's, of this policy, at this temperature]",
)
@click.option(
    "--lookahead",
    metavar="N|auto",
    callback=integer_or_auto,
    help="K, drafted tokens per round; auto: the fastest (pearl: the balanced one).  [default: 4]",
)
@click.option(
    "--shape",
    type=click.Choice(SHAPES),
    help="Compute both fan-outs instead, from a budget: spread evenly, by the paper's closed form, or "
    "optimally for the recording.  [default with --budget: exact]",
)
@click.option(
    "--budget",
    metavar="N|auto",
    callback=integer_or_auto,
    help="Cached outcomes per row; auto: as many as the target's verification leaves time for.  "
    "[default with --shape: auto]",
)
@click.option(
    "--find-switch", is_flag=True, help="With --backup auto: find the batch to switch at by simulation, too."
)
@knob_options(exclude=("lookahead",))
@click.option(
    "--temperature",
    type=float,
    default=0.0,
    show_default=True,
    help="Of both models; needs a trace recorded at it.",
)
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Mass of the laws that is kept.")
@click.option(
    "--prompt-length",
    "--context",
    "prompt_length",
    type=click.IntRange(min=1),
    help="Prompt tokens in place of the recorded ones: prefill and context.",
)
@click.option("--requests", type=int, help="Requests to serve.  [default: 8 per row, at least 48]")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens per request.")
@click.option("--target-time", type=float, help="Constant seconds of a target step (no profile).")
@click.option("--draft-time", type=float, help="Constant seconds of a draft step (no profile).")
@click.option(
    "--acceptance",
    metavar="A|FILE",
    callback=number_or_file,
    help="Toss coins with this acceptance, or with that of a file which `python -m simulator.imports` wrote "
    "(no trace).",
)
@click.option("--hit-exponent", type=float, help="r of the coins' hit curve 1 - c F^-r.  [default: 1]")
@click.option("--hit-scale", type=float, help="c of the coins' hit curve.  [default: 1]")
@click.option(
    "--hit-curve",
    metavar="R,C",
    callback=exponent_and_scale,
    help="Assume this hit curve with an acceptance file, which has none.",
)
@click.option("--jitter/--no-jitter", default=True, help="Vary latencies as measured, or use their means.")
@click.option("--seed", default=0, show_default=True, help="Same seed, same result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--timeline", type=click.Path(dir_okay=False, path_type=Path), help="Write a Chrome trace.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture.")
@click.option("--list-policies", is_flag=True, help="List the policies and leave.")
def main(**options: Any) -> None:
    """Predict the speed of a speculative-decoding policy on measured hardware.

    Prints the law's and the simulation's answer side by side, where the time goes, and why they differ.
    """
    if options["list_policies"]:
        list_policies(as_json=options["as_json"])
        return
    try:
        _answer(options)
    except (ValueError, OSError) as error:
        raise Refusal(str(error)) from error
    except ImportError as error:
        raise Refusal(f"{error}; pip install 'spectwin[plot]'") from error


def _answer(options: dict[str, Any]) -> None:
    from simulator.law import assume, opinion, waterfall
    from simulator.report import Report, plot, print_report, write_timeline
    from simulator.resolve import Wish, check_wish, resolve
    from simulator.run import baselines, simulate

    wish = Wish(
        options["policy"],
        options["lookahead"],
        options["shape"],
        options["budget"],
        {name: options[name] for name in (*KNOBS, "temperature", "top_p", "seed") if name != "lookahead"},
    )
    check_wish(wish, find_switch=options["find_switch"])
    scenario, sources = build_scenario(options)
    found = resolve(scenario, wish, find_switch=options["find_switch"])
    settings = found.settings
    law = opinion(settings, assume(scenario, settings), batch=scenario.batch)
    run = simulate(scenario, settings, timeline=options["timeline"] is not None)
    ar, sd = baselines(scenario, settings)
    why = waterfall(scenario, settings, law)
    report = Report(scenario, run, ar, sd, law, why, sources, found.choices)
    if options["timeline"]:
        write_timeline(report, options["timeline"])
    if options["plot"]:
        plot(report, options["plot"])
    if options["as_json"]:
        click.echo(json.dumps(report.as_dict(), indent=2))
        return
    print_report(report, wide_console())


def build_scenario(options: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """The scenario that the command line asks for, and where its numbers come from.

    Raises:
        SettingError: Options that contradict each other or lack their partner.
    """
    from hardware_profiles.profile import load_profile, unmeasured
    from hardware_profiles.store import find_profile
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
        profile = load_profile(find_profile(options["hw"] or DEFAULT_PROFILE))
        sources["latency"] = f"profile {profile.name} ({profile.provenance.kind}): {profile.description}"
        profile = carried(profile, options, sources)
        sources |= unmeasured(profile)
    tokens, sources["tokens"] = _tokens(options, profile.name if profile else DEFAULT_PROFILE)
    return (
        Scenario(
            tokens=tokens,
            profile=profile,
            textbook=textbook,
            batch=options["batch"],
            requests=options["requests"] or max(48, 8 * options["batch"]),
            prompt_length=options["prompt_length"],
            effects=Effects(jitter=options["jitter"]),
            seed=options["seed"],
            decisions=_decisions(options, profile.name if profile else DEFAULT_PROFILE, sources),
        ),
        sources,
    )


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


def _check_coins(options: dict[str, Any]) -> None:
    if options["trace"]:
        raise SettingError("give either --trace or --acceptance, not both")
    if options["temperature"] != 0.0:
        raise SettingError("coins have no temperature: give --acceptance or --temperature, not both")
    if options["cache_set"] == "top":
        raise SettingError(
            "--cache-set changes nothing with --acceptance: coins hit by the curve they are given"
        )


def _check_textbook(options: dict[str, Any]) -> None:
    if options["target_time"] is None or options["draft_time"] is None:
        raise SettingError("--target-time and --draft-time go together")
    if options["hw"]:
        raise SettingError("give either --hw or --target-time and --draft-time, not both")
    if any(options.get(name) for name in ("target_shape", "draft_shape", "placement")):
        raise SettingError(
            "--target-shape, --draft-shape and --placement change a profile: leave out --target-time"
        )
    if not options["jitter"]:
        raise SettingError("--no-jitter changes nothing with --target-time: constants do not vary")
    if options["target_time"] <= 0 or options["draft_time"] < 0:
        raise SettingError("--target-time must be above 0 and --draft-time at least 0")


def _tokens(options: dict[str, Any], profile_name: str) -> tuple[Any, str]:
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
    from hardware_profiles.trace import read_trace
    from simulator.tokens import REPLAY_COLUMNS

    name, path = _find_trace(options, profile_name)
    columns = GREEDY_COLUMNS if options["temperature"] == 0.0 else REPLAY_COLUMNS
    trace = read_trace(path, columns=columns)
    sampled = f" at temperature {options['temperature']:g}" if options["temperature"] else ""
    described = (
        f"trace {name}: {len(trace)} tokens of {len(trace.requests)} {trace.meta.prompt_set} prompts, "
        f"recorded by plain decoding of {trace.meta.target_model}{sampled}"
    )
    return replay(trace, limit=options["max_tokens"], seed=options["seed"]), described


def _decisions(options: dict[str, Any], profile_name: str, sources: dict[str, str]) -> Any:
    """The decision trace; None where the policy needs none, or where coins stand in for it."""
    from hardware_profiles.decisions import read_decisions
    from hardware_profiles.store import decisions_name, find_decisions

    info = find_policy(options["policy"])
    if not info.needs_decisions:
        if options["decisions"]:
            raise SettingError(f"--decisions changes nothing: policy {info.name!r} is replayed on a trace")
        return None
    if options["acceptance"] is not None or "live" not in info.worlds:
        return None
    if not options["decisions"] and info.name == "tree" and _is_static_and_greedy(options):
        return None
    name = options["decisions"] or decisions_name(
        profile_name, info.name, options["temperature"], options["top_p"]
    )
    trace = read_decisions(find_decisions(name))
    sources["decisions"] = (
        f"decision trace {name}: {len(trace.settings)} settings on {len(trace.requests)} "
        f"{trace.meta.prompt_set} prompts"
    )
    return trace


def _is_static_and_greedy(options: dict[str, Any]) -> bool:
    """Whether a recorded path decides a tree (`policies.treespec.follows_the_path`)."""
    return options["temperature"] == 0.0 and options["tree_plan"] in {None, "static"}


GREEDY_COLUMNS = ("draft_rank", "draft_top_ids")


def _find_trace(options: dict[str, Any], profile_name: str) -> tuple[str, Path]:
    """Name and path of the trace: the one asked for, or the profile's at this temperature."""
    from hardware_profiles.store import find_trace, trace_name
    from hardware_profiles.trace_schema import TraceError

    temperature, top_p = options["temperature"], options["top_p"]
    if options["trace"]:
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


def list_policies(*, as_json: bool) -> None:
    """Print the registry."""
    fields = ("name", "paper", "predicts", "drafts", "on_miss", "verifies", "replay", "knobs")
    if as_json:
        rows = [
            {**{f: getattr(info, f) for f in fields}, "worlds": list(info.worlds)}
            for info in POLICIES.values()
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    table = Table(header_style="bold")
    for title in ("policy", "paper", "predicts", "drafts", "on a miss", "verifies", "replay", "knobs"):
        table.add_column(title)
    for info in POLICIES.values():
        table.add_row(*(", ".join(v) if isinstance(v := getattr(info, f), tuple) else v for f in fields))
    wide_console().print(table)
    alone = [info.name for info in POLICIES.values() if "live" not in info.worlds]
    but = f" but {', '.join(alone)}, which are simulated only" if alone else ""
    click.echo(f"Every policy runs in both worlds, simulated and live{but}.")


if __name__ == "__main__":
    main()
