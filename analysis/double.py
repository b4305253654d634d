"""`python -m analysis.double`: does DOUBLE pass the ceiling C of a draft/verify pipeline, and what makes it?

Against plain decoding, prompt lookup, SD and PEARL; without the draft's retrieval, without the target's,
without the rejected cache, in turns on one device, by retrieval length and by prior; law, simulated from the
pair's decisions and, with `--live`, measured.  And how long a lookup takes by the size of the datastore.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analysis.commands import deliver
from hardware_profiles.jsonfile import to_json
from policies.commandline import HELP, checked_command, refusals, split_integers, split_list

if TYPE_CHECKING:
    from analysis.double_report import Found

EXAMPLES = """
\b
Examples:
  python -m analysis.double --count 4 --max-tokens 48
  calibrate datastore build
  python -m analysis.double --datastore stdlib --live --repeats 3 --plot double.png --out double.json
  python -m analysis.double --parts ablation --lookahead 2 --temperature 1
\b
Without --live the pair runs DOUBLE once per setting, untimed, for the decisions that the simulation replays.
"""
PARTS = ("methods", "ablation", "depth", "prior")


@checked_command(epilog=EXAMPLES, context_settings=HELP)
@click.option("--hw", default="cpu2-x5", show_default=True, help="Profile that predicts; its pair runs.")
@click.option(
    "--datastore",
    "datastores",
    default="",
    callback=split_list,
    help="Priors by name or folder, smallest first (calibrate datastore build).  [default: none]",
)
@click.option("--parts", default=",".join(PARTS), show_default=True, callback=split_list, help="Tables.")
@click.option("--lookahead", default=4, show_default=True, type=click.IntRange(min=1), help="K of all.")
@click.option(
    "--depths", default="1,5,20", show_default=True, callback=split_integers, help="Retrieval lengths."
)
@click.option("--temperature", default=0.0, show_default=True)
@click.option("--count", default=4, show_default=True, type=click.IntRange(min=1), help="Held-out prompts.")
@click.option("--max-tokens", default=48, show_default=True, type=click.IntRange(min=1))
@click.option("--live", is_flag=True, help="Measure every setting.")
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(min=1), help="Live repetitions.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON object here.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture.")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Compare DOUBLE with its ceiling, its ablations and the other policies, simulated and live."""
    from analysis.double_report import plot, print_found
    from calibrate.display import show_progress

    with refusals(), show_progress() as progress:
        found = run(options, progress)
    text = as_json(found, options)
    if options["plot"]:
        plot(found, options["plot"])
    deliver(text, options, show=lambda: print_found(found))


def run(options: dict[str, Any], progress: Callable[[str, int, int], None]) -> Found:
    """What the command's options ask for.

    Args:
        options: As the command takes them.
        progress: (stage, done, total).

    Raises:
        SettingError: A part that does not exist, or priors without a datastore.
    """
    from analysis.double_cells import on_pair
    from analysis.double_entries import entries_of
    from analysis.double_lookups import retrieval_time
    from analysis.double_report import Found
    from analysis.execute import profiled_job
    from analysis.sources import load_sources
    from calibrate.prompts import find_prompts, load_prompts, spread
    from hardware_profiles.datastore import Datastore, datastore_path
    from policies.registry import SettingError

    unknown = sorted(set(options["parts"]) - set(PARTS))
    if unknown:
        raise SettingError(f"there is no part {unknown[0]!r}; parts: {', '.join(PARTS)}")
    for name in options["datastores"]:
        Datastore.open(datastore_path(name))  # refuse before anything is run
    target = {"temperature": options["temperature"], "seed": options["seed"]}
    entries = entries_of(options["lookahead"], options["depths"], options["datastores"], **target)
    # The methods are what everything else is compared with.
    wanted = [e for e in entries if e.part in {"methods", *options["parts"]}]
    sources = load_sources(options["hw"])
    outcomes, trace = on_pair(
        profiled_job(sources, limit=options["max_tokens"], seed=options["seed"]),
        sources.profile,
        wanted,
        spread(load_prompts(find_prompts("heldout")), options["count"]),
        repeats=options["repeats"] if options["live"] else 0,
        progress=progress,
    )
    times = [retrieval_time(name, trace) for name in ("", *options["datastores"])]
    return Found(tuple(outcomes), tuple(times))


def as_json(found: Found, options: dict[str, Any]) -> str:
    """One JSON object: what was asked, every outcome, and the retrieval times."""
    names = (
        "hw", "datastores", "parts", "lookahead", "depths", "temperature", "count", "max_tokens", "live",
        "repeats", "seed",
    )  # fmt: skip
    return to_json(
        {
            "asked": {name: options[name] for name in names},
            "outcomes": [outcome.as_dict() for outcome in found.outcomes],
            "retrieval_times": [asdict(each) for each in found.times],
        },
        indent=2,
    )


if __name__ == "__main__":
    main()
