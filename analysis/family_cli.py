"""`python -m analysis.family_cli`: every policy law / simulated / live on the same prompts."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analysis.commands import refusals
from hardware_profiles.atomic import atomic_write
from policies.commandline import HELP, split_list, wide_console
from policies.registry import POLICIES, Settings, configure

if TYPE_CHECKING:
    from analysis.family import Member, Order

EXAMPLES = """
\b
Examples:
  python -m analysis.family_cli --hw cpu2-x5 --count 4 --repeats 2
  python -m analysis.family_cli --policies sd,pearl,duo,double --temperature 0 --json
  python -m analysis.family_cli --out analysis/results/family --plot family.png
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


@click.command(epilog=EXAMPLES, context_settings=HELP)
@click.option("--hw", default="cpu2-x5", show_default=True, help="Profile that predicts; its pair runs.")
@click.option("--policies", callback=split_list, default="", help="A list.  [default: all that run live]")
@click.option("--prompts", default="heldout", show_default=True, help="Shipped set or Spec-Bench JSONL.")
@click.option("--count", default=8, show_default=True, type=click.IntRange(min=1), help="Prompts to use.")
@click.option("--max-tokens", default=64, show_default=True, type=click.IntRange(min=1))
@click.option("--temperature", default="0,1", show_default=True, help="A list.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="Live repetitions.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the table (CSV) and the JSON."
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


def _family(options: dict[str, Any]) -> None:
    from analysis.cli import profiled_job
    from analysis.family import run_family
    from analysis.sources import load_sources
    from calibrate.display import show_progress
    from calibrate.prompts import find_prompts, load_prompts, spread

    temperatures = [float(t) for t in options["temperature"].split(",")]
    sources = load_sources(options["hw"])
    prompts = spread(load_prompts(find_prompts(options["prompts"])), options["count"])
    job = profiled_job(sources, limit=options["max_tokens"], seed=options["seed"])
    with show_progress() as progress:
        groups = [
            run_family(
                job,
                sources.profile,
                settings_of(options["policies"], temperature, options["seed"]),
                prompts,
                prompt_set=options["prompts"],
                repeats=options["repeats"],
                progress=progress,
            )
            for temperature in temperatures
        ]
    text = as_json(groups, options)
    if options["out"]:
        options["out"].mkdir(parents=True, exist_ok=True)
        for name, content in (("family.json", text), ("family.csv", as_csv(groups))):
            with atomic_write(options["out"] / name) as file:
                file.write(content)
    if options["plot"]:
        plot(groups, options["plot"])
    if options["as_json_"]:
        click.echo(text)
    else:
        print_family(groups)


def rows_of(members: list[Member]) -> list[dict[str, Any]]:
    """One row per setting, plain values."""
    return [
        {
            "policy": m.settings.policy,
            "setting": m.settings.label,
            "temperature": m.settings.temperature,
            "law": m.law_speedup_vs_ar,
            "simulated": m.simulated_speedup(),
            "measured": m.measured_speedup(),
            "spread": m.spread,
            "error": m.error,
            "law_error": m.law_error,
            "greedy_identical": m.identical,
        }
        for m in members
    ]


def as_csv(groups: list[list[Member]]) -> str:
    """The table."""
    rows = [row for members in groups for row in rows_of(members)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(groups: list[list[Member]], options: dict[str, Any]) -> str:
    """One JSON object: settings, errors, and orders by category."""
    from analysis.family import error_summary, orders

    found = [
        {
            "temperature": members[0].settings.temperature,
            "errors": dict(error_summary(members)),
            "settings": rows_of(members),
            "orders": [_order_dict(order) for order in orders(members)],
        }
        for members in groups
    ]
    asked = {name: options[name] for name in ("hw", "prompts", "count", "max_tokens", "repeats", "seed")}
    every = [m for members in groups for m in members]
    return json.dumps({"asked": asked, "errors": error_summary(every), "groups": found}, indent=2) + "\n"


def _order_dict(order: Order) -> dict[str, Any]:
    return {
        "category": order.category,
        "pairs": order.pairs,
        "right": order.right,
        "predicted": order.predicted,
        "best": order.best,
        "regret": order.regret,
    }


def print_family(groups: list[list[Member]]) -> None:
    """Tables for people."""
    from rich.table import Table

    from analysis.family import error_summary, orders

    console = wide_console()
    for members in groups:
        table = Table(header_style="bold", title=f"temperature {members[0].settings.temperature:g}")
        for title in ("setting", "law", "simulated", "measured", "spread", "error", "greedy text"):
            table.add_column(title, justify="left" if title == "setting" else "right")
        for m in sorted(members, key=lambda m: -m.measured_speedup()):
            table.add_row(
                m.settings.label,
                "-" if m.law_speedup_vs_ar is None else f"{m.law_speedup_vs_ar:.2f}",
                f"{m.simulated_speedup():.2f}",
                f"{m.measured_speedup():.2f}",
                f"±{m.spread:.1%}",
                f"{m.error:+.1%}",
                {None: "-", True: "identical", False: "DIFFERS"}[m.identical],
            )
        console.print(table)
        for order in orders(members):
            console.print(
                f"{order.category}: {order.right} of {order.pairs} separated pairs in the predicted order; "
                f"predicted best {order.predicted}, measured best {order.best}, regret {order.regret:.1%}"
            )
    found = error_summary([m for members in groups for m in members])
    console.print(
        f"{found['settings']:.0f} settings: error median {found['median_error']:.1%}, largest "
        f"{found['largest_error']:.1%}; spread of the live runs median {found['median_spread']:.1%}, largest "
        f"{found['largest_spread']:.1%}"
    )


def plot(groups: list[list[Member]], path: Path) -> None:
    """Simulated against measured speedup, a point per setting, with the spread of the live runs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(groups), figsize=(6.5 * len(groups), 6.0), squeeze=False)
    for axis, members in zip(axes[0], groups, strict=True):
        most = 1.08 * max(max(m.measured_speedup(), m.simulated_speedup()) for m in members)
        axis.plot([0, most], [0, most], color="grey", linewidth=0.8)
        axis.fill_between([0, most], [0, 0.9 * most], [0, 1.1 * most], color="grey", alpha=0.12)
        names = list(dict.fromkeys(m.settings.policy for m in members))
        for i, name in enumerate(names):
            mine = [m for m in members if m.settings.policy == name]
            axis.errorbar(
                [m.measured_speedup() for m in mine],
                [m.simulated_speedup() for m in mine],
                xerr=[m.spread * m.measured_speedup() for m in mine],
                fmt="osD^v<>P*Xph"[i % 12],
                color=f"C{i % 10}",
                label=name,
                capsize=2,
            )
        axis.set(
            xlim=(0, most),
            ylim=(0, most),
            xlabel="measured speedup over plain decoding",
            ylabel="simulated",
            title=f"temperature {members[0].settings.temperature:g}; band: 10 %",
        )
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
