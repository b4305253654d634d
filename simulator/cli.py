"""The `simulate` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from policies.commandline import HELP, Refusal, split_integers, wide_console
from policies.registry import POLICIES, SettingError, Settings, configure
from policies.ssd import BACKUPS

DEFAULT_PROFILE = "cpu2-x5"
EXAMPLES = """
\b
Examples:
  simulate --policy saguaro --batch 16
  simulate --policy saguaro --lookahead 7 --fanout 3 --backup plain --json
  simulate --policy sd --lookahead 7 --hw cpu2-x20
  simulate --policy saguaro --target-time 1 --draft-time 0.1 --acceptance 0.8 --hit-exponent 1
  simulate --policy pearl --timeline run.json --plot run.png
  simulate --list-policies
"""


@click.command(epilog=EXAMPLES, context_settings=HELP)
@click.option("--policy", default="saguaro", show_default=True, help="Policy (see --list-policies).")
@click.option("--batch", default=1, show_default=True, help="Rows served at once.")
@click.option("--hw", help=f"Hardware profile: a shipped name or a file.  [default: {DEFAULT_PROFILE}]")
@click.option("--trace", help="Recorded trace: a shipped name or a file.  [default: the profile's]")
@click.option("--lookahead", type=int, help="K, drafted tokens per round.  [default: 4]")
@click.option("--fanout", callback=split_integers, help="F, or F_0,...,F_K.  [default: 3]")
@click.option("--backup", help=f"On a miss: {', '.join(BACKUPS)}.  [default: primary]")
@click.option("--context", type=click.IntRange(min=1), help="Prompt length in place of the recorded ones.")
@click.option("--requests", type=int, help="Requests to serve.  [default: 8 per row, at least 48]")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens per request.")
@click.option("--target-time", type=float, help="Constant seconds of a target step (no profile).")
@click.option("--draft-time", type=float, help="Constant seconds of a draft step (no profile).")
@click.option("--acceptance", type=float, help="Toss coins with this acceptance (no trace).")
@click.option("--hit-exponent", type=float, help="r of the coins' hit curve 1 - c F^-r.  [default: 1]")
@click.option("--hit-scale", type=float, help="c of the coins' hit curve.  [default: 1]")
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
        settings = configure(
            options["policy"],
            lookahead=options["lookahead"],
            fanout=options["fanout"],
            backup=options["backup"],
            seed=options["seed"],
        )
        _answer(settings, options)
    except (ValueError, OSError) as error:
        raise Refusal(str(error)) from error
    except ImportError as error:
        raise Refusal(f"{error}; pip install 'spectwin[plot]'") from error


def _answer(settings: Settings, options: dict[str, Any]) -> None:
    from simulator.law import assume, opinion, waterfall
    from simulator.report import Report, plot, print_report, write_timeline
    from simulator.run import baselines, simulate

    scenario, sources = build_scenario(options)
    law = opinion(settings, assume(scenario), batch=scenario.batch)
    run = simulate(scenario, settings, timeline=options["timeline"] is not None)
    ar, sd = baselines(scenario, settings)
    report = Report(scenario, run, ar, sd, law, waterfall(scenario, settings, law), sources)
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
    from hardware_profiles.profile import load_profile
    from hardware_profiles.store import find_profile
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
    tokens, sources["tokens"] = _tokens(options, profile.name if profile else DEFAULT_PROFILE)
    return (
        Scenario(
            tokens=tokens,
            profile=profile,
            textbook=textbook,
            batch=options["batch"],
            requests=options["requests"] or max(48, 8 * options["batch"]),
            prompt_length=options["context"],
            effects=Effects(jitter=options["jitter"]),
            seed=options["seed"],
        ),
        sources,
    )


def _refuse_contradictions(options: dict[str, Any]) -> None:
    """No option is silently ignored: one that would change nothing is an error."""
    if options["requests"] is not None and options["requests"] < 1:
        raise SettingError(f"requests must be at least 1, got {options['requests']}")
    if options["target_time"] is not None or options["draft_time"] is not None:
        _check_textbook(options)
    if options["acceptance"] is not None:
        if options["trace"]:
            raise SettingError("give either --trace or --acceptance, not both")
    elif options["hit_exponent"] is not None or options["hit_scale"] is not None:
        raise SettingError(
            "--hit-exponent and --hit-scale shape coin tosses: give --acceptance too, or leave them out to "
            "use the recorded trace"
        )


def _check_textbook(options: dict[str, Any]) -> None:
    if options["target_time"] is None or options["draft_time"] is None:
        raise SettingError("--target-time and --draft-time go together")
    if options["hw"]:
        raise SettingError("give either --hw or --target-time and --draft-time, not both")
    if not options["jitter"]:
        raise SettingError("--no-jitter changes nothing with --target-time: constants do not vary")
    if options["target_time"] <= 0 or options["draft_time"] < 0:
        raise SettingError("--target-time must be above 0 and --draft-time at least 0")


def _tokens(options: dict[str, Any], profile_name: str) -> tuple[Any, str]:
    from simulator.tokens import coin, replay

    if options["acceptance"] is not None:
        exponent = 1.0 if options["hit_exponent"] is None else options["hit_exponent"]
        scale = 1.0 if options["hit_scale"] is None else options["hit_scale"]
        model = coin(
            options["acceptance"],
            exponent=exponent,
            scale=scale,
            requests=options["requests"] or max(48, 8 * options["batch"]),
            length=options["max_tokens"] or 128,
            prompt_length=options["context"] or 128,
            seed=options["seed"],
        )
        described = f"acceptance {options['acceptance']:g}, hit 1 - {scale:g} F^-{exponent:g}"
        return model, f"coin tosses, {described} (synthetic)"
    from hardware_profiles.store import find_trace
    from hardware_profiles.trace import read_trace

    name = options["trace"] or profile_name
    trace = read_trace(find_trace(name), columns=("draft_rank", "draft_top_ids"))
    described = (
        f"trace {name}: {len(trace)} tokens of {len(trace.requests)} {trace.meta.prompt_set} prompts, "
        f"recorded by plain decoding of {trace.meta.target_model}"
    )
    return replay(trace, limit=options["max_tokens"]), described


def list_policies(*, as_json: bool) -> None:
    """Print the registry."""
    fields = ("name", "paper", "predicts", "drafts", "on_miss", "verifies", "replay", "knobs")
    if as_json:
        rows = [
            {**{f: getattr(info, f) for f in fields}, "worlds": ["simulated", "live"]}
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
    click.echo("Every policy runs in both worlds: simulated (any batch) and live (batch 1).")


if __name__ == "__main__":
    main()
