"""The `recommend` command."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from analysis.recommend.answer import Query, recommend
from analysis.recommend.picture import picture
from analysis.recommend.report import as_json, print_recommendation
from analysis.show import save
from calibrate.display import show_progress
from calibrate.options import quiet
from policies.commandline import (
    BAD_INPUT,
    HELP,
    INCOMPLETE,
    checked_command,
    click_options,
    refusals,
    with_options,
)

EXAMPLES = """
\b
Examples:
  recommend                                          one request at a time, two devices
  recommend --batch 8 --max-devices 4
  recommend --hw cpu2-x20 --prompt-category code --json
  recommend --temperature 1 --plot answer.png
  recommend --max-devices 1                          plain decoding or collocated SD
  recommend --hw h100 --tp 4 --target llama-3.1-70b --draft llama-3.2-1b --acceptance 0.8 --batch 16
"""


@checked_command("recommend", epilog=EXAMPLES, context_settings=HELP)
@with_options(click_options(Query))
@click.option("--json", "machine", is_flag=True, help="Print one JSON object.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture.")
def main(*, machine: bool, plot: Path | None, **options: Any) -> None:
    """Recommend policy, lookahead, fan-out and backup for a pair, its hardware and its traffic.

    Compares equal devices under equal load: N devices are replicas of plain decoding or of SD on the
    target's devices, or groups of a target's and a draft's.
    """
    with refusals(INCOMPLETE, BAD_INPUT):
        query, started = Query(**options), time.perf_counter()
        # A progress bar on a terminal; nothing in a pipe or a log.
        with show_progress() if sys.stderr.isatty() else nullcontext(quiet) as progress:
            answer = recommend(query.sources(), query, progress)
        answer = replace(answer, seconds=time.perf_counter() - started)
        if plot:
            save(picture(answer), plot)
        if machine:
            click.echo(as_json(answer))
        else:
            print_recommendation(answer)


if __name__ == "__main__":
    main()
