"""Where commands on Mirror-SD run settings, on coins or on a pair, and the options that say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from policies.commandline import split_integers

if TYPE_CHECKING:
    from analysis.mirror_cells import Outcome, Shards
    from policies.registry import Settings

WORLD_OPTIONS = (
    click.option("--hw", default="cpu2-x5", show_default=True, help="Profile that predicts; its pair runs."),
    click.option("--coins", is_flag=True, help="Coins and constant times in place of a pair; runs no model."),
    click.option("--acceptance", default=0.8, show_default=True, help="Of the draft's tokens; coins."),
)
COINS_OPTIONS = (
    click.option("--hit-exponent", default=1.0, show_default=True, help="r: kappa candidates miss kappa^-r."),
    click.option("--target-time", default=1.0, show_default=True, help="Seconds of a target step; coins."),
    click.option("--draft-time", default=0.1, show_default=True, help="Seconds of a draft step; coins."),
)
RUN_OPTIONS = (
    click.option("--batch", default="1", show_default=True, callback=split_integers, help="List."),
    click.option("--temperature", default=0.0, show_default=True),
    click.option("--prompts", default="heldout", show_default=True, help="Shipped set or Spec-Bench JSONL."),
    click.option("--count", default=8, show_default=True, type=click.IntRange(min=1), help="Prompts to use."),
    click.option("--max-tokens", default=64, show_default=True, type=click.IntRange(min=1)),
    click.option("--live", is_flag=True, help="Measure every setting; else the pair runs once, untimed."),
    click.option(
        "--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="Live repetitions."
    ),
    click.option("--seed", default=0, show_default=True),
    click.option(
        "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON object here."
    ),
)


def outcomes_of(
    settings: Sequence[Settings],
    options: dict[str, Any],
    progress: Callable[[str, int, int], None],
    shards: Shards | None = None,
) -> list[Outcome]:
    """Settings on the coins or on the pair that a command's options ask for.

    Args:
        settings: What to run, plain decoding first.
        options: Those of this module, as a command takes them.
        progress: (stage, done, total).
        shards: Devices that share a model of the coins.

    Raises:
        SettingError: `live` with coins.
    """
    from analysis.mirror_cells import on_coins
    from policies.registry import SettingError

    if not options["coins"]:
        return _on_pair(settings, options, progress)
    if options["live"]:
        raise SettingError("coins have no models to run live: leave out --coins or --live")
    return on_coins(_coins(options, shards), settings, options["batch"])


def _coins(options: dict[str, Any], shards: Shards | None) -> Any:
    from simulator.costs import TextbookCosts
    from simulator.run import Scenario
    from simulator.tokens import coin

    costs = TextbookCosts(options["target_time"], options["draft_time"])
    tokens = coin(
        options["acceptance"],
        exponent=options["hit_exponent"],
        requests=options["count"],
        length=options["max_tokens"],
        prompt_length=64,
        seed=options["seed"],
    )
    return Scenario(tokens, textbook=shards.costs(costs) if shards else costs, seed=options["seed"])


def _on_pair(
    settings: Sequence[Settings], options: dict[str, Any], progress: Callable[[str, int, int], None]
) -> list[Outcome]:
    from analysis.execute import profiled_job
    from analysis.mirror_cells import on_pair
    from analysis.sources import load_sources
    from calibrate.prompts import find_prompts, load_prompts, spread

    sources = load_sources(options["hw"])
    return on_pair(
        profiled_job(sources, limit=options["max_tokens"], seed=options["seed"]),
        sources.profile,
        settings,
        spread(load_prompts(find_prompts(options["prompts"])), options["count"]),
        prompt_set=options["prompts"],
        batches=options["batch"],
        repeats=options["repeats"] if options["live"] else 0,
        progress=progress,
    )
