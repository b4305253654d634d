"""The `simulate` command."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hardware_profiles.files import to_json
from hardware_profiles.tables import write_rows
from policies.commandline import (
    BAD_INPUT,
    HELP,
    INCOMPLETE,
    Finite,
    Listed,
    Several,
    about,
    checked_command,
    click_options,
    combinations,
    integer_or_auto,
    knob_options,
    option,
    progress_bar,
    refusals,
    typed,
    wide_console,
    with_options,
)
from policies.registry import KNOBS, POLICIES, SettingError, find_policy
from simulator.auto import settings_query
from simulator.fanout import SHAPES
from simulator.given import AcceptanceType
from simulator.report import plot, print_report, report_of, write_timeline
from simulator.request import SimulationRequest

if TYPE_CHECKING:
    from simulator.traffic_report import TrafficRequest

LINE = 79
"""Characters of a line in lists."""
FILE = click.Path(dir_okay=False, path_type=Path)
EXAMPLES = """
\b
Examples:
  simulate --policy saguaro --batch 16
  simulate --policy saguaro --lookahead auto --shape exact --backup auto --batch 8
  simulate --policy saguaro --lookahead 7 --fanout 3 --fanout-backup 12,0,0,0,0,0,0,0 --backup plain --json
  simulate --policy saguaro --temperature 1 --scale 0.7 --budget 12
  simulate --policy saguaro --draft-devices 2 --budget auto
  simulate --policy sd,pearl,saguaro --batch 1,8,32,128 --lookahead 1-8 --out rows.parquet --plot rows.png
  simulate --policy sd --lookahead 7 --hw cpu2-x20 --prompt-length 400
  simulate --policy saguaro --target-time 1 --draft-time 0.1 --acceptance 0.8 --hit-exponent 1
  simulate --policy sd --acceptance acceptance.json --lookahead 5
  simulate --hw a100x8 --acceptance 0.8 --target-shape deepseek-coder-33b --draft-shape deepseek-coder-1.3b
  simulate --policy pearl --timeline run.json --plot run.png
  simulate --policy sd --hw h100x4 --acceptance 0.8 --rate 4 --prompt 1000 --output 300 --slo ttft=1,tpot=0.04
  simulate --policy ar --hw cpu2-x5 --traffic trace.jsonl --traffic-format mooncake --max-num-seqs 64 --json
  simulate --list-policies
"""


def exponent_and_scale(
    context: click.Context, param: click.Parameter, value: str | None
) -> tuple[float, float] | None:
    """`1,0.9` as two numbers (a click callback); None stays None."""
    if value is None:
        return None
    try:
        exponent, scale = map(float, value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value[:80]!r} is not an exponent and a scale, like 1,0.9") from error
    finite = Finite()
    return finite.convert(exponent, param, context), finite.convert(scale, param, context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where an answer goes; every field is the option of its name."""

    as_json: bool = option(False, "Print one JSON object.", spelled=("--json",))
    timeline: Path | None = field(default=None, metadata=about("Write a Chrome trace.", type=FILE))
    plot: Path | None = field(default=None, metadata=about("Write a picture.", type=FILE))
    out: Path | None = field(
        default=None, metadata=about("Write a table, a row per setting: .parquet, .csv or .json.", type=FILE)
    )


def _headings() -> dict[str, tuple[str, ...]]:
    """What `simulate --help` lists, most wanted first."""
    from simulator.traffic_report import TrafficRequest

    return {
        "What runs": ("policy", "lookahead", "batch", "temperature", "list_policies", "help_policy"),
        "On what": ("hw", "target", "draft", "tp", "draft_tp", "draft_placement", "placement"),
        "What is accepted": (
            *(
                "acceptance",
                "run_length",
                "acceptance_by_context",
                "miss_acceptance",
                "hit_rate",
                "trace",
                "prompt_category",
                "hit_exponent",
                "hit_scale",
            ),
            "hit_curve",
        ),
        "How much": ("requests", "max_tokens", "prompt_length", "seed"),
        "What comes when, and how it is served": tuple(each.name for each in fields(TrafficRequest)),
        "Output": ("as_json", "plot", "out", "timeline", "help"),
        "Fan-out computed, not given (saguaro)": ("shape", "budget", "find_switch"),
    }


def _further() -> list[Any]:
    """Options of some policies, and of traffic."""
    from simulator.traffic_report import TrafficRequest

    return [*knob_options(exclude=("lookahead",), cls=Listed), *click_options(TrafficRequest)]


@checked_command("simulate", epilog=EXAMPLES, context_settings=HELP, headings=_headings, later=_further)
@click.option(
    "--policy", default="saguaro", show_default=True, help="Policy (see --list-policies).", cls=Listed
)
@click.option(
    "--lookahead",
    cls=Listed,
    metavar="N|auto",
    callback=integer_or_auto,
    help="K, drafted tokens per round; auto: the fastest (pearl: the balanced one).  [default: 4]",
)
@click.option(
    "--shape",
    cls=Listed,
    type=click.Choice(SHAPES),
    help="Compute both fan-outs instead, from a budget: spread evenly, by the paper's closed form, or "
    "optimally for the recording.  [default with --budget: exact]",
)
@click.option(
    "--budget",
    cls=Listed,
    metavar="N|auto",
    callback=integer_or_auto,
    help="Cached outcomes per row; auto: as many as the target's verification leaves time for.  "
    "[default with --shape: auto]",
)
@click.option(
    "--find-switch", is_flag=True, help="With --backup auto: find the batch to switch at by simulation, too."
)
@click.option(
    "--temperature",
    cls=Listed,
    type=float,
    default=0.0,
    show_default=True,
    help="Of both models; needs a trace recorded at it.",
)
@click.option(
    "--top-p", type=float, default=1.0, show_default=True, help="Mass of the distributions that is kept."
)
@click.option(
    "--acceptance",
    cls=Listed,
    type=AcceptanceType(),
    help="Toss coins with this acceptance, or with that of a file which `python -m simulator.imports` wrote, "
    "or of a shipped one: minimax-m3-eagle3-thinking-on, dflash-k7, ... (no trace).",
)
@click.option(
    "--hit-curve",
    metavar="R,C",
    callback=exponent_and_scale,
    help="Assume this hit curve with an acceptance file, which has none.",
)
@click.option("--seed", default=0, show_default=True, help="Same seed, same result.")
@with_options(click_options(SimulationRequest))
@with_options(click_options(Output))
@click.option("--list-policies", is_flag=True, help="List the policies and leave.")
def main(**options: Any) -> None:
    """Predict the speed of a speculative-decoding policy on measured hardware.

    Prints the law's and the simulation's answer side by side, where the time goes, and why they differ.
    A policy's own knobs: --help-policy NAME.  Lists and ranges (--batch 1,8 --lookahead 1-8 --policy
    sd,pearl) make a table, a row per setting.
    """
    if options["list_policies"]:
        list_policies(as_json=options["as_json"])
        return
    with refusals(INCOMPLETE, BAD_INPUT):
        axes = {name: value for name, value in options.items() if isinstance(value, Several)}
        output = typed(Output, options)
        traffic = _traffic(options)
        if traffic is not None and (axes or output.out):
            raise SettingError("traffic is served for one setting at a time, without --out")
        policies = options["policy"] if "policy" in axes else (options["policy"],)
        requests = [_request(_of_policy(each, policies)) for each in combinations(options)]
        if axes:
            answer_sweep(requests, axes, output)
        elif traffic is not None:
            answer_traffic(requests[0], traffic, output)
        else:
            answer(requests[0], output)


def _traffic(options: Mapping[str, Any]) -> TrafficRequest | None:
    """The traffic that is to be served; None where none is."""
    if "traffic" not in options:  # `_further` was not needed
        return None
    from simulator.traffic_report import TrafficRequest

    asked = typed(TrafficRequest, options)
    return asked if asked.asked else None


def _of_policy(options: Mapping[str, Any], policies: Iterable[str]) -> dict[str, Any]:
    """The options without knobs that its policy lacks and another one that is tried has."""
    own = find_policy(options["policy"]).knobs
    others = {knob for name in policies for knob in find_policy(name).knobs} - set(own)
    strange = others | ({"shape", "budget", "find_switch"} if "fanout" in others else set())
    strange &= set(options)  # without `_further` there are fewer
    return {**options, **{name: None for name in strange if options[name] != "auto" or name in others}}


def _request(options: Mapping[str, Any]) -> SimulationRequest:
    """What is asked, as one value."""
    further = KNOBS if "fanout" in options else ()
    knobs = {name: options[name] for name in (*further, "lookahead", "temperature", "top_p", "seed")}
    query = settings_query(
        options["policy"],
        shape=options["shape"],
        budget=options["budget"],
        find_switch=options["find_switch"],
        **knobs,
    )
    return typed(SimulationRequest, options, query=query)


def answer(request: SimulationRequest, output: Output) -> None:
    """Simulate what is asked, and print or write it."""
    report = report_of(request, timeline=output.timeline is not None)
    if output.timeline:
        write_timeline(report, output.timeline)
    if output.plot:
        plot(report, output.plot)
    if output.out:
        from simulator.sweep import Sweeper

        write_rows([Sweeper().row(request)], output.out)
    if output.as_json:
        click.echo(to_json(report.as_dict(), indent=2))
        return
    print_report(report, wide_console())


def answer_sweep(
    requests: Iterable[SimulationRequest], axes: Mapping[str, Sequence[Any]], output: Output
) -> None:
    """Simulate each of several settings, and print or write one table."""
    from simulator.sweep import Sweeper
    from simulator.sweep_report import plot_rows, print_rows

    if output.timeline:
        raise SettingError("a --timeline is of one setting: give no list")
    different = list(dict.fromkeys(requests))
    with progress_bar("settings", len(different)) as done:
        rows = Sweeper().rows(different, done)
    if all(row["refused"] for row in rows):
        raise SettingError(rows[0]["refused"])
    if output.out:
        write_rows(rows, output.out)
    if output.plot:
        plot_rows(rows, list(axes), output.plot)
    if output.as_json:
        click.echo(to_json({"axes": axes, "rows": rows}, indent=1))
    else:
        print_rows(rows, list(axes), wide_console())


def answer_traffic(request: SimulationRequest, traffic: TrafficRequest, output: Output) -> None:
    """Serve the traffic that is asked for, and print it."""
    from simulator.traffic_report import plot_frontier, print_traffic, serve_asked, write_steps

    report = serve_asked(
        request, traffic, timeline=output.timeline is not None, frontier=output.plot is not None
    )
    if output.plot:
        plot_frontier(report, output.plot)
    if output.timeline:
        write_steps(report, output.timeline)
    if output.as_json:
        click.echo(to_json(report.as_dict(), indent=2))
    else:
        print_traffic(report, wide_console())


def list_policies(*, as_json: bool) -> None:
    """Print the registry."""
    fields = ("name", "paper", "predicts", "drafts", "on_miss", "verifies", "replay", "knobs", "aliases")
    if as_json:
        rows = [
            {**{f: getattr(info, f) for f in fields}, "worlds": list(info.worlds)}
            for info in POLICIES.values()
        ]
        click.echo(to_json(rows, indent=2))
        return
    # Blocks of lines instead of a table, whose eight columns of words fit no terminal.
    for info in POLICIES.values():
        click.echo(textwrap.fill(f"{info.name}: {info.paper}", LINE, subsequent_indent=" " * 4))
        for title, value in (
            ("also", ", ".join(info.aliases)),
            ("who predicts", info.predicts),
            ("drafts", info.drafts),
            ("on a miss", info.on_miss),
            ("verifies", info.verifies),
            ("replay", info.replay),
            ("knobs", ", ".join(info.knobs)),
        ):
            if value:
                entry = f"  {title + ':':<14}{value}"
                click.echo(textwrap.fill(entry, LINE, subsequent_indent=" " * 16))
    alone = [info.name for info in POLICIES.values() if "live" not in info.worlds]
    but = f" but {', '.join(alone)}, which are simulated only" if alone else ""
    click.echo(textwrap.fill(f"Every policy runs in both worlds, simulated and live{but}.", LINE))


if __name__ == "__main__":
    main()
