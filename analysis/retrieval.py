"""RASD's tables on the shipped pair: retrieval alone, a drafted tree alone, both fused.

`python -m analysis.retrieval --datastore stdlib --live`: tau (accepted tokens per target forward) and SR
(speed over plain decoding) by prompt category, the ablation of pruning and fusion, candidate lengths and
datastore sizes.  Every setting runs on the real pair; the simulation replays what was decided there with the
profile's costs.  Without `--live` one pass is run for its decisions and its times are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from analysis.commands import deliver
from policies.commandline import HELP, checked_command, refusals, split_integers, split_list

EXAMPLES = """
\b
Examples:
  calibrate datastore build
  python -m analysis.retrieval --live --count 4 --repeats 2
  python -m analysis.retrieval --parts ablation --datastore ./my-store --json
  python -m analysis.retrieval --parts size --datastore small,medium,stdlib
"""


@checked_command(epilog=EXAMPLES, context_settings=HELP)
@click.option("--hw", default="cpu2-x5", show_default=True, help="Profile that predicts; its pair runs.")
@click.option(
    "--datastore",
    "datastores",
    default="stdlib",
    show_default=True,
    callback=split_list,
    help="Name or folder; several, smallest first, for --parts size.",
)
@click.option(
    "--parts",
    default="methods,ablation,length",
    show_default=True,
    callback=split_list,
    help="Tables: methods, ablation, length, size.",
)
@click.option(
    "--lengths", default="2,4,8,16", show_default=True, callback=split_integers, help="Values of l."
)
@click.option("--prompts", default="heldout", show_default=True, help="Shipped set or Spec-Bench JSONL.")
@click.option("--count", default=8, show_default=True, type=click.IntRange(min=1), help="Prompts to use.")
@click.option("--max-tokens", default=64, show_default=True, type=click.IntRange(min=1))
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(min=0.0))
@click.option("--live", is_flag=True, help="Time the runs, and say how fast they were.")
@click.option(
    "--repeats", default=2, show_default=True, type=click.IntRange(min=1), help="Timed repetitions."
)
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON object here.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture.")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Compare RASD with its parts: tables 1 to 4 and figure 3 of the paper, in kind."""
    with refusals():
        _main(options)


def _main(options: dict[str, Any]) -> None:
    from analysis.retrieval_report import as_json, plot, print_comparison

    found = _compare(options)
    asked = {
        name: options[name]
        for name in ("hw", "datastores", "prompts", "count", "max_tokens", "temperature", "seed", "live")
    }
    text = as_json(found, asked)
    if options["plot"]:
        plot(found, options["plot"])
    deliver(text, options, show=lambda: print_comparison(found))


def _compare(options: dict[str, Any]) -> Any:
    from analysis.execute import profiled_job
    from analysis.retrieval_runs import PARTS, compare, entries_of
    from analysis.sources import load_sources
    from calibrate.display import show_progress
    from calibrate.prompts import find_prompts, load_prompts, spread
    from hardware_profiles.datastore import Datastore, datastore_path

    if unknown := [part for part in options["parts"] if part not in PARTS]:
        raise ValueError(f"unknown part {unknown[0]!r}; parts: {', '.join(PARTS)}")
    for name in options["datastores"]:
        Datastore.open(datastore_path(name))  # refuse before anything is run
    # A worker looks for a folder from where it was started.
    stores = [
        str(Path(name).resolve()) if Path(name).name != name else name for name in options["datastores"]
    ]
    sources = load_sources(options["hw"])
    prompts = spread(load_prompts(find_prompts(options["prompts"])), options["count"])
    entries = entries_of(
        options["parts"],
        stores,
        temperature=options["temperature"],
        seed=options["seed"],
        lengths=options["lengths"],
    )
    job = profiled_job(sources, limit=options["max_tokens"], seed=options["seed"])
    with show_progress() as progress:
        return compare(
            job,
            sources.profile,
            entries,
            prompts,
            prompt_set=options["prompts"],
            repeats=options["repeats"] if options["live"] else 1,
            live=options["live"],
            progress=progress,
        )


if __name__ == "__main__":
    main()
