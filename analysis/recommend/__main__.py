"""The `recommend` command."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from analysis.recommend.answer import Query, recommend
from analysis.recommend.picture import picture
from analysis.recommend.report import as_json, print_recommendation
from analysis.recommend.table import every_setting
from analysis.recommend.traffic import TrafficPlan, plan_traffic
from analysis.recommend.traffic_report import as_dict, export, goodput_map, print_answer, read_results
from analysis.show import save
from calibrate.display import show_progress
from calibrate.options import quiet
from hardware_profiles.files import to_json
from hardware_profiles.tables import write_rows
from policies.commandline import (
    BAD_INPUT,
    HELP,
    INCOMPLETE,
    checked_command,
    click_options,
    refusals,
    typed,
    with_options,
)

EXAMPLES = """
\b
Examples:
  recommend                                          Llama-3.1-70B with a 1B draft on H100, a row at a time
  recommend --batch 8 --max-devices 8
  recommend --hw cpu2-x20 --prompt-category code --json
  recommend --hw cpu2-x5 --temperature 1 --plot answer.png
  recommend --hw cpu2-x5 --max-devices 1             plain decoding or collocated SD
  recommend --hw h100 --tp 4 --target llama-3.1-70b --draft llama-3.2-1b --acceptance 0.8 --batch 16
  recommend --hw h100x4-llama-3.1-70b+llama-3.2-1b --acceptance 0.7 --rate 4 --prompt 1000 --output 300 \\
            --slo ttft=1,tpot=0.04 --export sweep
"""

HEADINGS = {
    "How much is asked of it": ("batch", "max_devices", "prompt_length", "max_tokens", "temperature"),
    "On what": ("hw", "target", "draft", "tp", "draft_tp", "draft_placement"),
    "What is accepted": ("acceptance", "run_length", "hit_rate", "trace", "prompt_category"),
    "How it is searched": ("grid", "settings", "level", "crossovers", "seed"),
    "Output": ("machine", "plot", "out", "config", "help"),
    "Requests that arrive": tuple(each.name for each in fields(TrafficPlan)),
}
"""What `recommend --help` lists, most wanted first."""


@checked_command("recommend", epilog=EXAMPLES, context_settings=HELP, headings=lambda: HEADINGS)
@with_options(click_options(Query))
@with_options(click_options(TrafficPlan))
@click.option("--json", "machine", is_flag=True, help="Print one JSON object.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every setting tried, with its interval: .parquet, .csv or .json.",
)
def main(*, machine: bool, plot: Path | None, out: Path | None, **options: Any) -> None:
    """Recommend policy, lookahead, fan-out and backup for a pair, its hardware and its traffic.

    Compares equal devices under equal load: N devices are replicas of plain decoding or of SD on the
    target's devices, or groups of a target's and a draft's.
    """
    with refusals(INCOMPLETE, BAD_INPUT):
        query, plan = typed(Query, options), typed(TrafficPlan, options)
        if plan.asked:
            answer_traffic(query, plan, machine=machine, plot=plot)
            return
        started = time.perf_counter()
        # A progress bar on a terminal; nothing in a pipe or a log.
        with show_progress() if sys.stderr.isatty() else nullcontext(quiet) as progress:
            answer = recommend(query.sources(), query, progress)
        if out:
            write_rows(every_setting(answer), out)
        seconds = time.perf_counter() - started
        answer = replace(answer, seconds=seconds, cpu_seconds=time.process_time())
        if plot:
            save(picture(answer), plot)
        if machine:
            click.echo(as_json(answer))
        else:
            print_recommendation(answer)


def answer_traffic(query: Query, plan: TrafficPlan, *, machine: bool, plot: Path | None) -> None:
    """The fastest setting that holds an SLO under a load."""
    if plan.measured is not None:
        read_results(plan.measured)  # what is wrong with them is said before anything takes long
    with show_progress() if sys.stderr.isatty() else nullcontext(quiet) as progress:
        answer = plan_traffic(query, plan, progress)
    if plan.export is not None:
        export(answer)
    if plot:
        save(goodput_map(answer), plot)
    if machine:
        click.echo(to_json(as_dict(answer), indent=2))
    else:
        print_answer(answer)


if __name__ == "__main__":
    main()
