"""`python -m analysis.family_cli`: every policy law / simulated / live on the same prompts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calibrate.turns import taking_turns, turns_option
from hardware_profiles.atomic import atomic_write
from policies.commandline import HELP, checked_command, parse_setting, refusals, split_list
from policies.registry import POLICIES, SettingError, Settings, configure

if TYPE_CHECKING:
    from analysis.family import Group, Progress
    from analysis.family_orders import Member
    from calibrate.job import Job
    from hardware_profiles.trace import Trace

EXAMPLES = """
\b
Examples:
  python -m analysis.family_cli --hw cpu2-x5 --count 4 --repeats 2
  python -m analysis.family_cli --policies sd,pearl,duo,double --temperature 0 --json
  python -m analysis.family_cli --setting "pearl lookahead=3" --setting "rasd datastore=stdlib"
  python -m analysis.family_cli --out analysis/results/family --plot family.png
  python -m analysis.family_cli --measured analysis/results/family --hw cpu2-x5-wide,cpu2-x5
"""

VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "sd": ({"lookahead": 2}, {"lookahead": 5}),
    "pld": ({"lookahead": 3},),
    "pearl": ({"lookahead": 2}, {"lookahead": 5}),
    "saguaro": (
        {"lookahead": 2, "fanout": (3,), "backup": "plain"},
        {"lookahead": 4, "fanout": (2,), "backup": "primary"},
    ),
    "double": ({"lookahead": 2}, {"lookahead": 3, "retrieval_length": 4}),
    "duo": ({"lookahead": 4, "sequences": "2"}, {"lookahead": 6}),
    "mirror": ({"lookahead": 3, "kappa": 1}, {"lookahead": 4, "kappa": 2}),
    "tree": (
        {"tree_widths": (2, 1, 1)},
        {"tree_plan": "dynamic", "tree_depth": 4, "tree_topk": 2, "tree_budget": 8},
    ),
    "rest": ({"retrieval_nodes": 12},),
    "rasd": ({"tree_depth": 3, "tree_topk": 2, "tree_budget": 6, "retrieval_nodes": 8},),
}
"""Settings of each policy, different from those that calibrations run; what is not named has its defaults."""
CHOSEN: dict[str, Any] = {"draft_sampling": "greedy"}
"""What a dynamic tree needs at a temperature above 0: its nodes are chosen, not drawn."""


@checked_command(epilog=EXAMPLES, context_settings=HELP)
@click.option(
    "--hw",
    default="cpu2-x5",
    show_default=True,
    callback=split_list,
    help="Profile that predicts; its pair runs.  With --measured a list: each predicts.",
)
@click.option("--policies", callback=split_list, default="", help="A list.  [default: all that run live]")
@click.option(
    "--setting",
    "texts",
    multiple=True,
    help='A policy with knobs, e.g. "mirror lookahead=3 kappa=1", in place of --policies; may be repeated.',
)
@click.option(
    "--measured",
    type=click.Path(exists=True, path_type=Path),
    help="Predict the live runs that --out kept, and run nothing.",
)
@click.option("--prompts", default="heldout", show_default=True, help="Shipped set or Spec-Bench JSONL.")
@click.option("--count", default=8, show_default=True, type=click.IntRange(min=1), help="Prompts to use.")
@click.option("--max-tokens", default=64, show_default=True, type=click.IntRange(min=1))
@click.option("--temperature", default="0,1", show_default=True, help="A list.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="Live repetitions.")
@turns_option
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for live runs, CSV and JSON."
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture.")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Run every policy live and simulated on the same held-out prompts: errors, losslessness, order."""
    with refusals():
        _family(options)


def settings_of(names: list[str], temperature: float, seed: int) -> list[Settings]:
    """The settings of some policies (by default all that run live) at a temperature."""
    chosen = names or [name for name, info in POLICIES.items() if "live" in info.worlds]
    return [
        configure(name, temperature=temperature, seed=seed, **knobs, **_sampled(knobs, temperature))
        for name in chosen
        if name != "ar"
        for knobs in VARIANTS.get(name, ({},))
    ]


def _sampled(knobs: dict[str, Any], temperature: float) -> dict[str, Any]:
    return CHOSEN if temperature > 0.0 and knobs.get("tree_plan") == "dynamic" else {}


def setting_of(text: str, temperature: float, seed: int) -> Settings:
    """A setting from its text, e.g. `saguaro lookahead=4 fanout=3,2,2,2,1`.

    Raises:
        SettingError: Not of that form, or the policy refuses it.
    """
    name, knobs = parse_setting(text)
    return configure(name, temperature=temperature, seed=seed, **knobs, **_sampled(knobs, temperature))


def _family(options: dict[str, Any]) -> None:
    from analysis.family import predict_family
    from analysis.family_store import load_groups, save_groups
    from analysis.sources import load_sources
    from calibrate.display import show_progress

    temperatures = [float(t) for t in options["temperature"].split(",")]
    with show_progress() as bars, taking_turns(options["turns"], bars) as progress:
        if options["measured"]:
            groups, told = load_groups(options["measured"])
            traces = _record(told, [group.temperature for group in groups], progress)
        else:
            told = _told(options)
            chosen = {t: _chosen(options, t) for t in temperatures}
            traces = _record(told, temperatures, progress)
            groups = [_measure(told, chosen[t], traces[t], progress) for t in temperatures]
            if options["out"]:  # before anything is made of them
                save_groups(groups, told, options["out"])
        found = []
        for name in options["hw"]:
            sources = load_sources(name, temperatures=list(traces))
            each = [
                predict_family(
                    group, traces[group.temperature], sources, seed=told["seed"], progress=progress
                )
                for group in groups
            ]
            found.append((name, each))
    for name, members in found:
        _deliver(members, {**told, "hw": name}, options, several=len(found) > 1)


def _told(options: dict[str, Any]) -> dict[str, Any]:
    """How live runs are made, as it is kept with them."""
    if len(options["hw"]) > 1:
        raise SettingError("live runs belong to one profile's pair; give several --hw with --measured")
    names = ("prompts", "count", "max_tokens", "repeats", "seed")
    return {"live": options["hw"][0], **{name: options[name] for name in names}}


def _chosen(options: dict[str, Any], temperature: float) -> list[Settings]:
    seed = options["seed"]
    asked = [setting_of(text, temperature, seed) for text in options["texts"]]
    return asked or settings_of(options["policies"], temperature, seed)


def _job(told: dict[str, Any]) -> Job:
    """Of the pair that ran, whichever profile predicts."""
    from analysis.cli import profiled_job
    from analysis.sources import load_sources

    job: Job = profiled_job(load_sources(told["live"]), limit=told["max_tokens"], seed=told["seed"])
    return job


def _record(told: dict[str, Any], temperatures: list[float], progress: Progress) -> dict[float, Trace]:
    """The prompts recorded by plain decoding."""
    from calibrate.calibration import record
    from calibrate.prompts import find_prompts, load_prompts, spread

    prompts = spread(load_prompts(find_prompts(told["prompts"])), told["count"])
    job = _job(told)
    return {t: record(replace(job, temperature=t), prompts, told["prompts"], progress) for t in temperatures}


def _measure(told: dict[str, Any], settings: list[Settings], trace: Trace, progress: Progress) -> Group:
    from analysis.family import measure_family

    return measure_family(_job(told), settings, trace, repeats=told["repeats"], progress=progress)


def _deliver(
    groups: list[list[Member]], asked: dict[str, Any], options: dict[str, Any], *, several: bool
) -> None:
    from analysis.family_report import as_csv, as_json, plot, print_family

    text = as_json(groups, asked)
    stem = f"family-{Path(asked['hw']).stem}" if several else "family"
    if options["out"]:
        options["out"].mkdir(parents=True, exist_ok=True)
        for name, content in ((f"{stem}.json", text), (f"{stem}.csv", as_csv(groups))):
            with atomic_write(options["out"] / name) as file:
                file.write(content)
    if options["plot"]:
        path: Path = options["plot"]
        plot(groups, path.with_stem(f"{path.stem}-{Path(asked['hw']).stem}") if several else path)
    if options["as_json_"]:
        click.echo(text)
    else:
        print_family(groups, asked["hw"])


if __name__ == "__main__":
    main()
