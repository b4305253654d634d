"""Every policy on the same held-out prompts: law, simulated, live, lossless or not, and in which order.

Three questions are answered: how far predicted and measured speedups are apart, how far they would be if what
the tokens say were ignored, and whether trusting the predicted order would have cost anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.execute import Bench
from analysis.intervals import plain
from analysis.results import EVERY, Results, Row, settings_of
from analysis.show import OPINIONS, SETTING, TEXT, Column, factor, table
from analysis.stats import errors_of, grouped, median, ranks
from analysis.study import Entry, Picture, Plan, Study, option
from policies.commandline import parse_setting
from policies.registry import POLICIES, Settings, configure, find_policy
from simulator.law import coins_of, law_inputs
from simulator.run import Scenario, simulate

VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "sd": ({"lookahead": 2}, {"lookahead": 5}),
    "gated": ({"lookahead": 3},),
    "pld": ({"lookahead": 3},),
    "suffix": ({"speculation_factor": 2.0},),
    "lookahead": ({"window": 2},),
    "recycling": ({"recycled_nodes": 6},),
    "pearl": ({"lookahead": 2}, {"lookahead": 5}),
    "saguaro": (
        {"lookahead": 2, "fanout": (3,), "backup": "plain"},
        {"lookahead": 4, "fanout": (2,), "backup": "primary"},
    ),
    "amusd": ({"lookahead": 6},),
    "double": ({"lookahead": 2}, {"lookahead": 3, "retrieval_length": 4}),
    "duo": ({"lookahead": 4, "sequences": "2"}, {"lookahead": 6}),
    "mirror": ({"lookahead": 3, "kappa": 1}, {"lookahead": 4, "kappa": 2}),
    "tree": (
        {"tree_widths": (2, 1, 1)},
        {"tree_plan": "dynamic", "tree_depth": 4, "tree_topk": 2, "tree_budget": 8},
    ),
    "ouroboros": ({"lookahead": 3},),
    "rest": ({"retrieval_nodes": 12},),
    "rasd": ({"tree_depth": 3, "tree_topk": 2, "tree_budget": 6, "retrieval_nodes": 8},),
}
"""Settings of each policy, different from those that calibrations run; what is not named has its defaults."""
WORLDS = ("simulated", "ignored", "law")
"""Whose errors are told."""
CHOSEN: dict[str, Any] = {"draft_sampling": "greedy"}
"""What a dynamic tree needs at a temperature above 0: its nodes are chosen, not drawn."""
REQUESTS, LENGTH = 40, 200
"""Coin tosses that stand for ignored content: enough of them for two per cent."""


@dataclass(frozen=True)
class FamilyPlan(Plan):
    """Which policies, or which settings."""

    policies: tuple[str, ...] = option((), "A list.  [default: all that run live]")
    setting: tuple[str, ...] = option(
        (), 'With knobs, e.g. "mirror lookahead=3 kappa=1", in place of --policies; repeated.', multiple=True
    )
    temperature: tuple[float, ...] = option((0.0, 1.0), "List.")


def settings_for(names: Sequence[str], temperature: float, seed: int) -> list[Settings]:
    """The settings of some policies (by default all that run live) at a temperature."""
    chosen = names or [name for name, info in POLICIES.items() if "live" in info.worlds and name != "ar"]
    return [
        _configured(name, knobs, temperature, seed)
        for name in chosen
        if name != "ar"
        for knobs in VARIANTS.get(name, ({},))
    ]


def setting_from(text: str, temperature: float, seed: int) -> Settings:
    """A setting from its text, e.g. `saguaro lookahead=4 fanout=3,2,2,2,1`.

    Raises:
        SettingError: Not of that form, or the policy refuses it.
    """
    return _configured(*parse_setting(text), temperature, seed)


def _configured(name: str, knobs: Mapping[str, Any], temperature: float, seed: int) -> Settings:
    chosen = CHOSEN if temperature > 0.0 and knobs.get("tree_plan") == "dynamic" else {}
    return configure(name, temperature=temperature, seed=seed, **knobs, **chosen)


def answer(bench: Bench) -> list[Row]:
    """Every setting on all prompts and by category, with what ignoring their content would predict."""
    plan, seed = bench.plan_as(FamilyPlan), bench.plan.seed
    if bench.stored is not None:
        kept = [row for row in bench.stored.where() if row["policy"] != "ar"]
        entries = [Entry(settings_of(row), row["batch"]) for row in kept]
    else:
        asked = [[setting_from(text, t, seed) for text in plan.setting] for t in plan.temperature]
        every = [settings_for(plan.policies, t, seed) for t in plan.temperature]
        found = asked if plan.setting else every
        entries = [Entry(each, batch) for batch in plan.batch for mine in found for each in mine]
    rows = bench.compare(entries)
    for row in rows:
        if row["category"] == EVERY and row["policy"] != "ar":
            known = replace(bench.calibration(row["temperature"]), batch=row["batch"])
            ignored = row["ignored_speedup_vs_ar"] = content_ignored(known, settings_of(row))
            measured = row["measured_speedup_vs_ar"]
            row["ignored_error"] = None if measured is None else ignored / measured - 1.0
    return rows


def content_ignored(scenario: Scenario, settings: Settings) -> float:
    """Speedup by the same costs and iid coins: the naive baseline of replaying what the tokens say.

    The coins have the mean acceptance and the hit curve of the calibration's recording.  Retrieval, of which
    coins know nothing, finds nothing: `double` is PEARL, `rasd` its drafted tree, `rest` and `pld` are plain
    decoding.

    Args:
        scenario: The profile, and the calibration's recording at the setting's temperature.
        settings: What to predict.
    """
    tokens = coins_of(
        law_inputs(scenario, settings),
        requests=REQUESTS,
        length=LENGTH,
        prompt_length=round(float(np.mean([r.prompt_length for r in scenario.tokens.requests]))),
        seed=scenario.seed,
    )
    tossed = replace(scenario, tokens=tokens, decisions=None)
    rest = replace(settings, config=settings.config.content_ignored)
    speed = simulate(tossed, rest).summary.tokens_per_second
    return speed / simulate(tossed, replace(plain(settings), seed=0)).summary.tokens_per_second


def groups_of(results: Results) -> dict[tuple[str, float, int], list[Row]]:
    """The settings of each profile, temperature and batch, all categories, plain decoding left out."""
    rows = (row for row in results.rows if row["policy"] != "ar")
    return grouped(rows, lambda row: (row["profile"], row["temperature"], row["batch"]))


def title(profile: str, temperature: float, batch: int) -> str:
    """What a group is called."""
    return f"{profile}, temperature {temperature:g}" + (f", batch {batch}" if batch > 1 else "")


def about(results: Results) -> Row:
    """Errors of the predictions, and by category how well they order the settings."""
    if not results.live:
        return {}
    said: list[Row] = []
    for (profile, temperature, batch), rows in groups_of(results).items():
        categories = grouped(rows, lambda row: row["category"])
        orders = [{"category": category, **ranks(mine)} for category, mine in categories.items()]
        place = {"profile": profile, "temperature": temperature, "batch": batch}
        said.append(place | {"errors": errors(rows), "orders": orders})
    return {"errors": errors(results.rows), "groups": said}


def errors(rows: Sequence[Row]) -> Row:
    """Errors of law, simulation, and with content ignored; and the spread of the live runs."""
    every = [row for row in rows if row["category"] == EVERY and row["policy"] != "ar"]
    spreads = [s for row in every if (s := row["measured_spread"]) is not None]
    summary: Row = {world: errors_of(every, f"{world}_error") for world in WORLDS}
    return summary | {"median_spread": median(spreads), "largest_spread": max(spreads, default=None)}


ORDERS = (
    Column("prompts", "category"),
    Column("pairs in order", lambda order: f"{order['right']} of {order['pairs']}"),
    Column("predicted best", "predicted"),
    Column("measured best", "best"),
    Column("lost", "regret", "{:.1%}"),
)
COLUMNS = (
    SETTING,
    OPINIONS[0],
    factor("coins", "ignored"),
    *OPINIONS[1:],
    Column("coins'", "ignored_error", "{:+.1%}"),
    TEXT,
)


def show(results: Results) -> Iterator[Any]:
    """A table per profile and temperature, the fastest first, and what the predicted order is worth."""
    told = results.about.get("groups", ())
    orders = {(g["profile"], g["temperature"], g["batch"]): g["orders"] for g in told}
    for group, rows in groups_of(results).items():
        mine = [row for row in rows if row["category"] == EVERY]
        mine.sort(key=lambda row: -(row["measured_speedup_vs_ar"] or row["simulated_speedup_vs_ar"]))
        yield table(title(*group), COLUMNS, mine)
        for order in orders.get(group, ()):
            yield (
                f"{order['category']}: {order['right']} of {order['pairs']} separated pairs in the predicted "
                f"order; predicted best {order['predicted']}, measured best {order['best']}, regret "
                f"{order['regret']:.1%}"
            )
    if (totals := results.about.get("errors")) is not None:
        said = [f"median {e['median']:.1%}, largest {e['largest']:.1%}" for e in map(totals.get, WORLDS) if e]
        count = totals["simulated"]["settings"]
        yield f"{count} settings: error {said[0]}; with content ignored (coins) {said[1]}"
        if totals["median_spread"] is not None:
            spreads = f"median {totals['median_spread']:.1%}, largest {totals['largest_spread']:.1%}"
            yield f"spread of the live runs {spreads}"


def pictures(results: Results) -> dict[str, Picture]:
    """Simulated against measured speedup, a point per setting, with the spread of the live runs."""
    groups = groups_of(results) if results.live else {}

    def draw(figure: Any) -> None:
        for axes, (group, rows) in zip(
            figure.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True
        ):
            scatter(axes, [row for row in rows if row["category"] == EVERY])
            axes.set_title(f"{title(*group)}; band: 10 %")

    return {"": Picture(draw, (6.5 * len(groups), 6.0))} if groups else {}


def scatter(axes: Any, rows: Sequence[Row]) -> None:
    """Simulated against measured speedup of one temperature."""
    names = list(dict.fromkeys(row["policy"] for row in rows))
    most = 1.08 * max(max(row["measured_speedup_vs_ar"], row["simulated_speedup_vs_ar"]) for row in rows)
    axes.plot([0, most], [0, most], color="grey", linewidth=0.8)
    axes.fill_between([0, most], [0, 0.9 * most], [0, 1.1 * most], color="grey", alpha=0.12)
    for i, name in enumerate(names):
        mine = [row for row in rows if row["policy"] == name]
        axes.errorbar(
            [row["measured_speedup_vs_ar"] for row in mine],
            [row["simulated_speedup_vs_ar"] for row in mine],
            xerr=[(row["measured_spread"] or 0.0) * row["measured_speedup_vs_ar"] for row in mine],
            fmt="osD^v<>P*Xph"[i % 12],
            color=find_policy(name).colour,
            label=name,
            capsize=2,
        )
    labels = {"xlabel": "measured speedup over plain decoding", "ylabel": "simulated"}
    axes.set(xlim=(0, most), ylim=(0, most), **labels)
    axes.legend(fontsize=8)


STUDY = Study(
    "family",
    "Every policy on the same prompts: how far off is the prediction, and does it order them right?",
    FamilyPlan,
    by_category=True,
    answer=answer,
    about=about,
    show=show,
    pictures=pictures,
    examples=(
        "--live --count 4 --repeats 2",
        "--live --policies sd,pearl,duo,double --temperature 0 --json",
        '--live --setting "pearl lookahead=3" --setting "rasd datastore=stdlib"',
        "--live --hw cpu2-x5-wide --out my-family",
        "--measured analysis/results/family --hw cpu2-x5-wide,cpu2-x5",
    ),
)
