"""Mirror-SD's figures 3a, 4, 5, 6b, 7 and 8 on this project's own pair.

| figure | the paper shows | here |
|---|---|---|
| 3a | accepted tokens and drafting in the open, by gamma | with the speedup beside it |
| 4 | drafts that stream or not, with and without overlap, by task and temperature | by prompt category |
| 5 | speedup and drafting in the open, by batch | the same |
| 6b | how much sooner a streaming draft is done, by task | by prompt category, models taking turns |
| 7 | fallbacks by kappa and exit, by task | by prompt category; needs no clock |
| 8 | all on GPUs, by task | one kind of device: a core for each model, or both on both cores |

SD, PEARL and SSD stand beside it in all but 6b and 7.  What several figures need is run once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import click

from analysis.execute import Bench
from analysis.results import EVERY, Results, Row, in_world, value_of, where
from analysis.show import (
    BATCH,
    SETTING,
    Column,
    bars,
    best_world,
    factor,
    frame,
    milli,
    parity,
    table,
    values,
)
from analysis.studies.mirror import draw_fallbacks, rivals
from analysis.studies.mirror_account import columns
from analysis.study import POSITIVE, SHARED, SPLIT, Entry, Picture, Plan, Study, option
from policies.commandline import split_counts
from policies.mirror import EXITS
from policies.registry import SettingError, configure, find_policy

FIGURES = ("3a", "4", "5", "6b", "7", "8")
NAMES = {"sd": "SD", "pearl": "PEARL", "saguaro": "SSD", "mirror": "Mirror-SD"}


@dataclass(frozen=True)
class FiguresPlan(Plan):
    """Which figures, and what each varies."""

    figure: tuple[str, ...] = option(FIGURES, "List.", names=FIGURES)
    lookaheads: tuple[int, ...] = option((1, 2, 3, 5, 8), "Of 3a.")
    lookahead: int = option(3, "Of all others.", type=POSITIVE)
    kappas: tuple[int, ...] = option((1, 2, 4, 8), "Of 7.")
    kappa: int = option(2, "Of all others.", type=click.IntRange(min=0))
    exits: tuple[str, ...] = option(tuple(EXITS), "Of 7.", names=EXITS)
    batch: tuple[int, ...] = option((1, 4, 8), "Of 5.", callback=split_counts)
    streams: str = option("2", "Of a streaming draft.")
    repeats: int = option(2, "Live repetitions.", type=POSITIVE)

    def entries(self, figures: Sequence[str], temperature: float) -> list[Entry]:
        """Everything that some figures compare, each once, plain decoding left out."""
        target: Row = {"temperature": temperature, "seed": self.seed}
        mirror = partial(configure, "mirror", kappa=self.kappa, **target)
        drafts: tuple[Row, Row] = ({}, {"streams": self.streams})
        usual = {
            k: [*rivals(k, **target), *(mirror(lookahead=k, **draft) for draft in drafts)]
            for k in (self.lookahead, *self.lookaheads)
        }
        beside = usual[self.lookahead]
        sequential = [Entry(mirror(lookahead=self.lookahead, overlap="off", **draft)) for draft in drafts]
        parts = {
            "3a": [Entry(each) for k in self.lookaheads for each in usual[k]],
            "4": [*map(Entry, beside), *sequential],
            "5": [Entry(each, batch) for batch in self.batch for each in beside],
            "6b": sequential,
            "7": [
                Entry(mirror(lookahead=self.lookahead, kappa=kappa, exit=exit_))
                for exit_ in self.exits
                for kappa in self.kappas
            ],
            "8": [Entry(each, place=place) for place in (SPLIT, SHARED) for each in beside],
        }
        return list(dict.fromkeys(entry for figure in figures for entry in parts[figure]))


def settings(bench: Bench) -> list[Entry]:
    """What the figures asked for compare.

    Raises:
        SettingError: Too few prompts for a batch.
    """
    plan = bench.plan_as(FiguresPlan)
    if "5" in plan.figure and max(plan.batch) > (plan.count or 0):
        raise SettingError(f"{plan.count} prompts do not fill a batch of {max(plan.batch)}: --count")
    return [entry for t in plan.temperature for entry in plan.entries(plan.figure, t)]


COLUMNS = (
    Column("place", "place"),
    SETTING,
    BATCH,
    factor("simulated", "simulated"),
    factor("live", "measured"),
    Column("error", "simulated_error", "{:+.1%}"),
    Column("tok./round", "tokens_per_round", "{:.2f}"),
    Column("exposed", "exposed_s", milli),
    Column("draft", "draft_s", milli),
    Column("FF", "fallback", "{:.2f}"),
)


def show(results: Results) -> Iterator[Any]:
    """A row per place, setting and batch: all prompts together, simulated beside live."""
    every = in_world(results.where(), best_world(results.rows))
    rows = [row for row in every if row["policy"] != "ar"]
    yield table("speedup over plain decoding; milliseconds per round", COLUMNS, rows, left=("setting",))


def name_of(row: Row) -> str:
    """The policy, and Mirror-SD's draft and overlap."""
    name = NAMES[row["policy"]]
    if row["policy"] != "mirror":
        return name
    streaming = "streaming" if value_of(row, "streams") != "0" else "token by token"
    return f"{name}, {streaming}" + (", in turns" if value_of(row, "overlap") == "off" else "")


def style_of(name: str) -> Row:
    """Colour by policy; what takes turns is paler."""
    policy = next(key for key, value in NAMES.items() if name.startswith(value))
    return {"color": find_policy(policy).colour, "alpha": 0.55 if "in turns" in name else 1.0}


def bar_style(name: str) -> Row:
    """Of bars, of which hatching tells the streaming drafts."""
    return {**style_of(name), "hatch": "//" if "streaming" in name else None}


class Drawing:
    """The panels of one temperature, in its best world.

    Args:
        rows: Of that temperature, plain decoding left out.
        asked: What was varied.
    """

    def __init__(self, rows: Sequence[Row], asked: Mapping[str, Any]) -> None:
        self.world = best_world(rows)
        self.rows = [
            {**row, "name": name_of(row), "accepted": row["tokens_per_round"] - 1.0}
            for row in in_world(rows, self.world)
        ]
        self.asked = asked
        self.categories = list(dict.fromkeys(row["category"] for row in self.rows))
        self.at = {"batch": 1, "lookahead": asked["lookahead"]}

    def pick(self, **wanted: Any) -> list[Row]:
        """The rows with these columns or knobs; of all categories unless one is named."""
        return where(self.rows, **{"category": EVERY, **wanted})

    def usual(self, **wanted: Any) -> list[Row]:
        """The rows as `pick` has them, Mirror-SD with the kappa and the exit that all figures but 7 have."""
        knobs = (self.asked["kappa"], "1/2")
        rows = [(row, (value_of(row, "kappa"), value_of(row, "exit"))) for row in self.pick(**wanted)]
        return [row for row, own in rows if own in {knobs, (None, None)}]

    def lines(self, axes: Any, x: str, y: Callable[[Row], float], **wanted: Any) -> list[Row]:
        """A line per policy and variant, Mirror-SD with overlap, on own cores; returns what was drawn."""
        overlapped = (row for row in self.usual(place=SPLIT, **wanted) if value_of(row, "overlap") != "off")
        rows = sorted(overlapped, key=itemgetter("lookahead", "batch"))
        for name in dict.fromkeys(row["name"] for row in rows):
            mine = where(rows, name=name)
            dash = "--s" if "streaming" in name else "-o"
            axes.plot(values(mine, x), [*map(y, mine)], dash, label=name, **style_of(name))
        return rows

    def speed_by(self, axes: Any, along: str, label: str, **wanted: Any) -> None:
        """Speedup over a column."""
        self.lines(axes, along, itemgetter("speedup_vs_ar"), **wanted)
        parity(axes)
        frame(axes, x=label, y="speedup over plain decoding")

    def exposed_by_accepted(self, axes: Any) -> None:
        """Milliseconds in the open against the tokens of a round; numbers are gamma."""

        def exposed(row: Row) -> float:
            return 1e3 * float(row["exposed_s"])

        near = {"xytext": (3, 3), "textcoords": "offset points", "fontsize": 7}
        for row in self.lines(axes, "accepted", exposed, batch=1):
            axes.annotate(f"{row['lookahead']}", (row["accepted"], exposed(row)), **near)
        frame(
            axes,
            x="drafted tokens accepted per round; numbers: gamma",
            y="milliseconds per round without the target at work",
            legend=0,
        )
        axes.set_ylim(bottom=0.0)

    def overhead_by_batch(self, axes: Any) -> None:
        """Drafting in the open over that of SD at the same batch ("relative draft overhead")."""
        gamma = self.asked["lookahead"]
        sd = {row["batch"]: row["exposed_s"] for row in self.pick(policy="sd", lookahead=gamma)}
        self.lines(axes, "batch", lambda row: row["exposed_s"] / sd[row["batch"]], lookahead=gamma)
        frame(axes, x="batch", y="seconds without the target at work, over SD's")
        axes.set_ylim(bottom=0.0)

    def by_category(self, axes: Any, place: str, *, sequential: bool) -> None:
        """Bars of every policy and variant, by category."""
        speeds = {}
        for category in self.categories:
            mine = self.usual(category=category, place=place, **self.at)
            kept = [row for row in mine if sequential or "in turns" not in row["name"]]
            speeds[category] = {row["name"]: row["speedup_vs_ar"] for row in kept}
        bars(axes, {category: own for category, own in speeds.items() if own}, bar_style)
        parity(axes)
        frame(axes, x="", y="speedup over plain decoding there", legend=0)
        axes.set_title(PLACES[place], fontsize=10)

    def draft_alone(self, axes: Any) -> None:
        """How much sooner a streaming draft is done, by category."""
        ratios = {}
        for category in self.categories:
            mine = self.pick(category=category, policy="mirror", place=SPLIT, overlap="off", **self.at)
            written = {value_of(row, "streams"): row["draft_s"] for row in mine}
            ratios[category] = {"Mirror-SD, streaming": written["0"] / written[self.asked["streams"]]}
        bars(axes, ratios, bar_style)
        frame(axes, x="", y="draft's seconds per round, token by token over streaming", legend=0)

    def fallbacks(self, axes: Any, category: str) -> None:
        """Fallbacks against kappa, a line per exit."""
        usual = {"place": SPLIT, "policy": "mirror", "overlap": "on", "streams": "0", "candidates": "each"}
        draw_fallbacks(axes, self.pick(category=category, **usual, **self.at))
        frame(axes, x="kappa", y="fallbacks per round")
        axes.set_title(category)

    def draw(self, figure: Any, name: str) -> None:
        """One of the paper's figures."""
        gamma = self.asked["lookahead"]
        places = [p for p in (SPLIT, SHARED) if self.pick(place=p)]
        single = [c for c in self.categories if self.pick(category=c, batch=1, policy="mirror")]
        by_lookahead = partial(self.speed_by, along="lookahead", label="lookahead gamma", batch=1)
        by_batch = partial(self.speed_by, along="batch", label="batch", lookahead=gamma)
        panels: dict[str, list[Callable[[Any], None]]] = {
            "3a": [by_lookahead, self.exposed_by_accepted],
            "4": [partial(self.by_category, place=SPLIT, sequential=True)],
            "5": [by_batch, self.overhead_by_batch],
            "6b": [self.draft_alone],
            "7": [partial(self.fallbacks, category=category) for category in single],
            "8": [partial(self.by_category, place=place, sequential=False) for place in places],
        }
        mine = panels[name]
        for panel, axes in zip(mine, figure.subplots(1, len(mine), squeeze=False)[0], strict=True):
            panel(axes)
        temperature = self.rows[0]["temperature"]
        figure.suptitle(f"Mirror-SD, figure {name} in kind, T={temperature:g}, {self.world}")


PLACES = {SPLIT: "a core for each model", SHARED: "both models on both cores"}
SIZES = {"6b": (6.5, 4.5), "7": (16.0, 3.6), "8": (13.0, 4.5)}


def pictures(results: Results) -> dict[str, Picture]:
    """One per figure and temperature: `mirror-figures-3a.png`, above temperature 0 `-3a-t1`."""
    drawn = {}
    rows = [row for row in results.rows if row["policy"] != "ar"]
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        drawing = Drawing(where(rows, temperature=temperature), results.asked)
        for name in results.asked["figure"]:
            ending = f"-{name}" + (f"-t{temperature:g}" if temperature > 0.0 else "")
            drawn[ending] = Picture(partial(drawing.draw, name=name), SIZES.get(name, (11.0, 4.5)))
    return drawn


STUDY = Study(
    "mirror-figures",
    "Mirror-SD's figures 3a, 4, 5, 6b, 7 and 8, on your pair.",
    FiguresPlan,
    settings=settings,
    columns=columns,
    timeline=True,
    by_category=True,
    show=show,
    pictures=pictures,
    examples=(
        "--figure 7 --count 16 --plot                          # decisions only",
        "--figure 3a,4,5,6b,8 --live --out my-mirror",
        "--figure 4 --live --temperature 0,1",
    ),
)
