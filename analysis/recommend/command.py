"""The `recommend` command."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from policies.commandline import BAD_INPUT, HELP, INCOMPLETE, checked_command, refusals, typed

DEFAULT_PROFILE = "cpu2-x5"
EXAMPLES = """
\b
Examples:
  recommend                                          one request at a time, two devices
  recommend --batch 8 --max-devices 4
  recommend --hw cpu2-x20 --prompt-category code --json
  recommend --temperature 1 --plot answer.png
  recommend --max-devices 1                          plain decoding or collocated SD
"""


@checked_command(epilog=EXAMPLES, context_settings=HELP)
@click.option(
    "--hw",
    default=DEFAULT_PROFILE,
    show_default=True,
    help="Hardware profile: a name, shipped:NAME or a file.",
)
@click.option("--trace", help="Recorded trace: a name or a file.  [default: the profile's]")
@click.option("--batch", default=1, show_default=True, help="Requests served at any time, on all devices.")
@click.option("--temperature", default=0.0, show_default=True, help="Of the target; needs a trace at it.")
@click.option(
    "--max-devices",
    type=int,
    help="Equal devices at hand; a model spread over four of them takes four; up to "
    "four draft devices are tried beside one target.  [default: 2, or as many as "
    "the profile's target and draft take together]",
)
@click.option("--prompt-category", help="Only prompts of this category.  [default: all]")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens per request.")
@click.option(
    "--level",
    default=0.8,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Of the intervals.",
)
@click.option(
    "--crossovers/--no-crossovers",
    "--flips/--no-flips",
    default=True,
    help="Look at other batches and acceptances, or not; the second pair is the earlier name.",
)
@click.option("--seed", default=0, show_default=True, help="Same seed, same answer.")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture.")
def main(**options: Any) -> None:
    """Recommend policy, lookahead, fan-out and backup for a pair, its hardware and its traffic.

    Compares equal devices under equal load: N devices are replicas of plain decoding or of SD on the
    target's devices, or groups of a target's and a draft's.
    """
    with refusals(INCOMPLETE, BAD_INPUT):
        answer(typed(RecommendRequest, options))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendRequest:
    """What `recommend` is asked; every field is the option of its name."""

    hw: str
    trace: str | None
    batch: int
    temperature: float
    max_devices: int | None
    prompt_category: str | None
    max_tokens: int | None
    level: float
    crossovers: bool
    seed: int
    as_json_: bool
    picture: Path | None


def answer(request: RecommendRequest) -> None:
    """Search what is asked, and print or draw it."""
    from analysis.recommend.answer import Query, recommend, usual_devices
    from analysis.recommend.report import as_json, print_recommendation
    from analysis.sources import load_sources

    sources = load_sources(
        request.hw,
        trace=request.trace,
        category=request.prompt_category,
        temperatures=[request.temperature],
    )
    query = Query(
        batch=request.batch,
        temperature=request.temperature,
        devices=usual_devices(sources.profile) if request.max_devices is None else request.max_devices,
        limit=request.max_tokens,
        level=request.level,
        crossovers=request.crossovers,
        seed=request.seed,
    )
    with _progress() as progress:
        recommendation = recommend(sources, query, progress)
    if request.picture:
        from analysis.recommend.picture import plot

        plot(recommendation, request.picture)
    if request.as_json_:
        click.echo(as_json(recommendation))
    else:
        print_recommendation(recommendation)


def _progress() -> Any:
    """A progress bar on a terminal; nothing in a pipe or a log."""
    import sys

    from calibrate.display import show_progress

    return show_progress() if sys.stderr.isatty() else nullcontext(lambda stage, done, total: None)


if __name__ == "__main__":
    main()
