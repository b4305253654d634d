"""`python -m analysis.mirror_figures`: Mirror-SD's figures 3a, 4, 5, 6b, 7 and 8 on this project's own pair.

| figure | the paper shows | here |
|---|---|---|
| 3a | accepted tokens and drafting in the open, by gamma | with the speedup beside it |
| 4 | drafts that stream or not, with and without overlap, by task and temperature | by prompt category |
| 5 | speedup and drafting in the open, by batch | likewise |
| 6b | how much sooner a streaming draft is done, by task | by prompt category, models taking turns |
| 7 | fallbacks by kappa and exit, by task | by prompt category; needs no clock |
| 8 | all on GPUs, by task | one kind of device: a core for each model, or both on both cores |

SD, PEARL and SSD stand beside it in all but 6b and 7.  What several figures need is run once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analysis.commands import deliver
from hardware_profiles.jsonfile import to_json
from policies.commandline import HELP, checked_command, refusals, split_integers, split_list, wide_console
from policies.mirror import EXITS

if TYPE_CHECKING:
    from analysis.mirror_points import Point
    from analysis.mirror_runs import Sweep

EXAMPLES = """
\b
Examples:
  python -m analysis.mirror_figures --figure 7 --count 16 --plot mirror-7.png      decisions only
  python -m analysis.mirror_figures --figure 3a,4,5,6b,8 --live --plot mirror.png --out mirror.json
  python -m analysis.mirror_figures --figure 4 --live --temperature 0,1
"""


@checked_command(epilog=EXAMPLES, context_settings=HELP)
@click.option(
    "--figure", "figures", default="3a,4,5,6b,7,8", show_default=True, callback=split_list, help="List."
)
@click.option("--hw", default="cpu2-x5", show_default=True, help="Profile that predicts; its pair runs.")
@click.option("--lookaheads", default="1,2,3,5,8", show_default=True, callback=split_integers, help="Of 3a.")
@click.option("--lookahead", default=3, show_default=True, type=click.IntRange(min=1), help="Of all others.")
@click.option("--kappas", default="1,2,4,8", show_default=True, callback=split_integers, help="Of 7.")
@click.option("--kappa", default=2, show_default=True, type=click.IntRange(min=0), help="Of all others.")
@click.option("--exits", default=",".join(EXITS), show_default=True, callback=split_list, help="Of 7.")
@click.option("--batch", default="1,4,8", show_default=True, callback=split_integers, help="Of 5.")
@click.option("--streams", default="2", show_default=True, help="Of a streaming draft.")
@click.option(
    "--temperature", "temperatures", default="0", show_default=True, callback=split_list, help="List."
)
@click.option("--prompts", default="heldout", show_default=True, help="Shipped set or Spec-Bench JSONL.")
@click.option("--count", default=8, show_default=True, type=click.IntRange(min=1), help="Prompts to use.")
@click.option("--max-tokens", default=64, show_default=True, type=click.IntRange(min=1))
@click.option("--live", is_flag=True, help="Measure every setting; else the pair runs once, untimed.")
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(min=1), help="Live repetitions.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON object here.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write pictures: this name with -FIGURE."
)
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Draw Mirror-SD's figures from live runs, or from simulations on what the pair decides."""
    from calibrate.display import show_progress

    with refusals(), show_progress() as progress:
        points = run(options, progress)
    if options["plot"]:
        from analysis.mirror_drawings import draw

        for figure in options["figures"]:
            draw(figure, points, sweep_of(options), options["plot"])
    deliver(as_json(points, options), options, show=lambda: print_points(points))


def sweep_of(options: dict[str, Any]) -> Sweep:
    """What the command's options vary."""
    from analysis.mirror_runs import Sweep

    return Sweep(
        lookaheads=options["lookaheads"],
        lookahead=options["lookahead"],
        kappas=options["kappas"],
        kappa=options["kappa"],
        exits=tuple(options["exits"]),
        batches=options["batch"],
        streams=options["streams"],
    )


def run(options: dict[str, Any], progress: Callable[[str, int, int], None]) -> list[Point]:
    """What the command's options ask for.

    Args:
        options: As the command takes them.
        progress: (stage, done, total).

    Raises:
        SettingError: A setting out of its domain, no such figure, or too few prompts for a batch.
    """
    from analysis.execute import profiled_job
    from analysis.mirror_runs import FIGURES, points_of
    from analysis.sources import load_sources
    from calibrate.prompts import find_prompts, load_prompts, spread
    from policies.registry import SettingError

    if unknown := [name for name in options["figures"] if name not in FIGURES]:
        raise SettingError(f"there is no figure {unknown[0]!r} here; figures: {', '.join(FIGURES)}")
    if "5" in options["figures"] and max(options["batch"]) > options["count"]:
        raise SettingError(
            f"{options['count']} prompts do not fill a batch of {max(options['batch'])}: --count"
        )
    temperatures = [float(text) for text in options["temperatures"]]
    sources = load_sources(options["hw"], temperatures=temperatures)
    job = profiled_job(sources, limit=options["max_tokens"], seed=options["seed"])
    prompts = spread(load_prompts(find_prompts(options["prompts"])), options["count"])
    found: list[Point] = []
    for temperature in temperatures:
        found += points_of(
            job,
            sources,
            sweep_of(options).cells(options["figures"], temperature=temperature, seed=options["seed"]),
            prompts,
            prompt_set=options["prompts"],
            repeats=options["repeats"] if options["live"] else 0,
            progress=progress,
        )
    return found


def as_json(points: list[Point], options: dict[str, Any]) -> str:
    """One JSON object: what was asked, and every point."""
    asked = {name: value for name, value in options.items() if name not in {"out", "plot", "as_json_"}}
    return to_json({"asked": asked, "points": [point.as_dict() for point in points]}, indent=1)


def print_points(points: list[Point]) -> None:
    """A row per place, setting and batch: all prompts together, simulated beside live."""
    from rich.table import Table

    from analysis.mirror_points import select

    table = Table(header_style="bold", title="speedup over plain decoding; milliseconds per round")
    for title in (
        "place",
        "setting",
        "batch",
        "simulated",
        "live",
        "error",
        "tok./round",
        "exposed",
        "draft",
        "FF",
    ):
        table.add_column(title, justify="left" if title in {"place", "setting"} else "right")
    for key in dict.fromkeys((p.place, p.settings, p.batch) for p in points):
        place, settings, batch = key
        both = {p.world: p for p in select(points, place=place, settings=settings, batch=batch)}
        shown, live, simulated = (
            both.get("live") or both["simulated"],
            both.get("live"),
            both.get("simulated"),
        )
        error = simulated.speedup_vs_ar / live.speedup_vs_ar - 1.0 if live and simulated else None
        table.add_row(
            place,
            settings.label,
            str(batch),
            "-" if simulated is None else f"{simulated.speedup_vs_ar:.2f}",
            "-" if live is None else f"{live.speedup_vs_ar:.2f}",
            "-" if error is None else f"{error:+.1%}",
            f"{shown.tokens_per_round:.2f}",
            f"{1e3 * shown.exposed_s:.1f}",
            f"{1e3 * shown.draft_s:.1f}",
            "-" if shown.fallback is None else f"{shown.fallback:.2f}",
        )
    wide_console().print(table)


if __name__ == "__main__":
    main()
