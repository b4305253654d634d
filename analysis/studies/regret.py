"""What following `recommend` costs and saves: its choice against everything that was tried, live.

Per prompt category the choice is made from the calibration's prompts of that category alone; then it and a
grid of settings run live on held-out prompts.  Regret is how much slower the choice was than the fastest
setting tried (zero if it was that); the gain is over what a careful person without a simulator would take
everywhere, SD with K = 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.execute import Bench
from analysis.recommend.answer import Query, recommend
from analysis.results import EVERY, Results, Row
from analysis.show import Column, table
from analysis.sources import Sources, only
from analysis.study import POSITIVE, Entry, Plan, Study, option
from policies.registry import Settings, configure

DEFAULT_CHOICE = configure("sd", lookahead=5)
GRID: tuple[Settings, ...] = (
    configure("ar"),
    *(configure("sd", lookahead=k) for k in (2, 3, 5, 7)),
    *(configure("pearl", lookahead=k) for k in (3, 5)),
    *(
        configure("saguaro", lookahead=k, fanout=(f,), backup=backup)
        for k in (3, 5)
        for f in (1, 3)
        for backup in ("primary", "plain")
    ),
)
"""Settings tried live beside the choice."""
PREDICTED = ("predicted_low", "predicted_middle", "predicted_high")


@dataclass(frozen=True)
class RegretPlan(Plan):
    """How many prompts of each category."""

    count: int | None = option(2, "Held-out prompts per category.", type=POSITIVE)
    repeats: int = option(2, "Live repetitions.", type=POSITIVE)


def choose(sources: Sources, category: str) -> tuple[Settings, tuple[float, float, float]]:
    """The setting recommended for a category (two devices, one request), and its predicted speedup."""
    recommended = recommend(only(sources, category), Query(crossovers=False))
    margin = recommended.winner.over_ar
    return recommended.winner.settings, (margin.low, margin.middle, margin.high)


def answer(bench: Bench) -> list[Row]:
    """The grid and every choice, on all prompts and by category; a choice is marked in its own category."""
    categories = list(dict.fromkeys(r.category for r in bench.sources.trace(0.0).requests))
    choices = {}
    for done, category in enumerate(categories):
        choices[category] = choose(bench.sources, category)
        bench.progress("recommendations", done + 1, len(categories))
    bench.plan = replace(bench.plan, count=(bench.plan.count or 1) * len(categories))
    tried = dict.fromkeys((*GRID, *(settings for settings, _ in choices.values())))
    rows = bench.compare([Entry(settings) for settings in tried])
    for row in rows:
        settings, predicted = choices.get(row["category"], (None, ()))
        if settings is not None and settings.label == row["setting"]:
            row |= {"chosen": True, **dict(zip(PREDICTED, predicted, strict=True))}
    return rows


def cases(rows: Sequence[Row]) -> list[Row]:
    """One per profile and category: the choice beside the best setting tried, and SD with K = 5."""
    judged = []
    for choice in (row for row in rows if row.get("chosen")):
        where = {name: choice[name] for name in ("profile", "category")}
        here = [row for row in rows if where.items() <= row.items()]
        speeds = {r["setting"]: r["measured_speedup_vs_ar"] for r in here if r["measured_speedup_vs_ar"]}
        if not speeds:
            continue
        best = max(speeds, key=lambda label: speeds[label])
        own, default = speeds[choice["setting"]], speeds[DEFAULT_CHOICE.label]
        judged.append(
            {
                **where,
                "choice": choice["setting"],
                "predicted": [choice[name] for name in PREDICTED],
                "measured_speedup_vs_ar": own,
                "best": best,
                "best_speedup_vs_ar": speeds[best],
                "regret": 1.0 - own / speeds[best],
                "gain_over_sd5": own / default - 1.0,
                "regret_of_sd5": 1.0 - default / speeds[best],
            }
        )
    return judged


def summary(judged: Sequence[Row]) -> Row:
    """Mean and worst regret of the recommendations, and of SD with K = 5."""
    names = ("regret", "regret_of_sd5", "gain_over_sd5")
    values = {name: [case[name] for case in judged] for name in names}
    inside = [c["predicted"][0] <= c["measured_speedup_vs_ar"] <= c["predicted"][2] for c in judged]
    return {
        "cases": len(judged),
        **{f"mean_{name}": sum(each) / len(judged) for name, each in values.items()},
        **{f"worst_{name}": max(values[name]) for name in names[:2]},
        "predicted_interval_holds": sum(inside),
    }


def about(results: Results) -> Row:
    """Cases and their summary; empty where nothing was measured."""
    judged = cases([row for row in results.rows if row["category"] != EVERY])
    return {"summary": summary(judged), "cases": judged} if judged else {}


def show(results: Results) -> Iterator[Any]:
    """A row per case, and what is missed in the mean."""
    yield table(
        "",
        (
            Column("profile", "profile"),
            Column("prompts", "category"),
            Column("choice", "choice"),
            Column("measured", "measured_speedup_vs_ar", "{:.2f}"),
            Column("predicted", lambda case: f"{case['predicted'][0]:.2f} to {case['predicted'][2]:.2f}"),
            Column("best tried", "best"),
            Column("measured", "best_speedup_vs_ar", "{:.2f}"),
            Column("regret", "regret", "{:.1%}"),
            Column("SD K=5", "regret_of_sd5", "{:.1%}"),
        ),
        results.about.get("cases", ()),
    )
    if (overall := results.about.get("summary")) is not None:
        yield (
            f"regret: mean {overall['mean_regret']:.1%}, worst {overall['worst_regret']:.1%}; always SD K=5: "
            f"mean {overall['mean_regret_of_sd5']:.1%}, worst {overall['worst_regret_of_sd5']:.1%}"
        )


STUDY = Study(
    "regret",
    "What does following `recommend` cost and save, against everything tried live?",
    RegretPlan,
    by_category=True,
    answer=answer,
    about=about,
    show=show,
    examples=("--live --hw cpu2-x5,cpu2-x20",),
)
