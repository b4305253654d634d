"""`python -m analysis.mirror`: what Mirror-SD's overlap hides, what its fallbacks cost, beside its laws.

Against plain decoding, SD, PEARL and Saguaro; with and without overlap; exits and kappa swept; law, simulated
and, with `--live`, measured.  The paper's Figures 3a, 5, 7 and 8 in kind, on this project's own pair: --plot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analysis.commands import deliver
from analysis.mirror_worlds import COINS_OPTIONS, RUN_OPTIONS, WORLD_OPTIONS, outcomes_of
from hardware_profiles.jsonfile import to_json
from policies.commandline import (
    HELP,
    RUNS_MODELS,
    checked_command,
    refusals,
    split_integers,
    split_list,
    wide_console,
    with_options,
)
from policies.mirror import EXITS

if TYPE_CHECKING:
    from analysis.mirror_account import Account
    from analysis.mirror_cells import Outcome

EXAMPLES = """
\b
Examples:
  python -m analysis.mirror --coins --acceptance 0.8 --draft-time 0.05
  python -m analysis.mirror --coins --devices 8 --layers 64 --hop-time 1e-4
  python -m analysis.mirror --hw cpu2-x5 --count 8
  python -m analysis.mirror --hw cpu2-x5 --live --repeats 3 --plot mirror.png --out mirror.json
"""


@checked_command(epilog=EXAMPLES, context_settings=HELP)
@with_options((*WORLD_OPTIONS, *COINS_OPTIONS))
@click.option(
    "--devices", default=1, show_default=True, type=click.IntRange(min=1), help="G that share a model; coins."
)
@click.option("--layers", default=64, show_default=True, help="N of the target, for its collectives; coins.")
@click.option("--message", default=0.0, show_default=True, help="M, words per all-reduce and rank; coins.")
@click.option("--hop-time", default=0.0, show_default=True, help="alpha of an all-reduce, seconds; coins.")
@click.option("--word-time", default=0.0, show_default=True, help="beta of an all-reduce, seconds; coins.")
@click.option("--lookahead", default="3,5", show_default=True, callback=split_integers, help="List of gamma.")
@click.option("--kappa", default="1,4,8", show_default=True, callback=split_integers, help="List.")
@click.option("--exits", default=",".join(EXITS), show_default=True, callback=split_list, help="List.")
@with_options(RUN_OPTIONS)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture.")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Compare Mirror-SD with its laws and with the other policies, simulated and live."""
    from calibrate.display import show_progress

    with refusals(f"{RUNS_MODELS}, or use --coins"), show_progress() as progress:
        outcomes = run(options, progress)
    text = as_json(outcomes, options)
    if options["plot"]:
        from analysis.mirror_picture import plot

        plot(outcomes, options["plot"])
    deliver(text, options, show=lambda: print_outcomes(outcomes))


def run(options: dict[str, Any], progress: Callable[[str, int, int], None]) -> list[Outcome]:
    """What the command's options ask for.

    Args:
        options: As the command takes them.
        progress: (stage, done, total).

    Raises:
        SettingError: A setting out of its domain, or `live` with coins.
    """
    from analysis.mirror_cells import Shards, settings_grid
    from policies.registry import SettingError

    target = {"temperature": options["temperature"], "seed": options["seed"]}
    settings = settings_grid(options["lookahead"], options["kappa"], options["exits"], **target)
    if options["devices"] == 1:
        return outcomes_of(settings, options, progress)
    if not options["coins"]:
        raise SettingError("no pair here is sharded: --devices is for --coins")
    shards = Shards(
        devices=options["devices"],
        layers=options["layers"],
        message=options["message"],
        hop_s=options["hop_time"],
        word_s=options["word_time"],
    )
    return outcomes_of(settings, options, progress, shards)


def as_json(outcomes: list[Outcome], options: dict[str, Any]) -> str:
    """One JSON object: what was asked, and every outcome."""
    names = ("hw", "coins", "acceptance", "draft_time", "devices", "prompts", "count", "max_tokens", "seed")
    asked = {name: options[name] for name in names}
    return to_json({"asked": asked, "outcomes": [o.as_dict() for o in outcomes]}, indent=2) + "\n"


COLUMNS: tuple[tuple[str, Callable[[Account], str]], ...] = (
    ("step", lambda a: f"{a.step_s:.3g}"),
    ("law", lambda a: f"{a.law_step_s:.3g}"),
    ("as printed", lambda a: f"{a.law_step_printed_s:.3g}"),
    ("hidden", lambda a: f"{a.hidden_s:.3g}"),
    ("law", lambda a: f"{a.law_hidden_s:.3g}"),
    ("FF", lambda a: f"{a.fallback:.3f}"),
    ("law", lambda a: _number(a.law_fallback)),
    ("1-Omega", lambda a: _number(a.bound_printed)),
    ("counted", lambda a: _number(a.bound_counted)),
)
"""Columns of Mirror-SD's table, after the setting: seconds per round, then shares of rounds."""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def print_outcomes(outcomes: list[Outcome]) -> None:
    """Speeds of all, then where Mirror-SD's steps go and how often it falls back."""
    from rich.table import Table

    console = wide_console()
    worlds = sorted({o.world for o in outcomes})
    speeds = Table(header_style="bold", title="speedup over plain decoding")
    for title in ("setting", "batch", *worlds, "tokens/round"):
        speeds.add_column(title, justify="left" if title == "setting" else "right")
    cells = {(o.settings.label, o.batch): o for o in outcomes}
    by_world = {(o.settings.label, o.batch, o.world): o for o in outcomes}
    for (label, batch), outcome in cells.items():
        found = [f"{by_world[label, batch, world].speedup_vs_ar:.2f}" for world in worlds]
        speeds.add_row(label, str(batch), *found, f"{outcome.tokens_per_round:.2f}")
    console.print(speeds)
    steps = Table(header_style="bold", title="Mirror-SD: seconds per round, fallbacks (FF) and their bounds")
    for title in ("setting", "batch", "world", *(name for name, _ in COLUMNS)):
        steps.add_column(title, justify="left" if title in {"setting", "world"} else "right")
    for o in outcomes:
        if o.account is not None:
            own = [column(o.account) for _, column in COLUMNS]
            steps.add_row(o.settings.label, str(o.batch), o.world, *own)
    console.print(steps)


if __name__ == "__main__":
    main()
