"""Mirror-SD's figures 3a, 4, 5, 6b, 7 and 8 on this project's own pair.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from analysis.execute import Bench
from analysis.results import EVERY, Results, Row
from analysis.show import BATCH, SETTING, Column, bars, best_world, parity, table
from analysis.studies.mirror import EXIT_COLOURS, knob
from analysis.studies.mirrorsd import columns
from analysis.study import POSITIVE, SHARED, SPLIT, Entry, Picture, Plan, Study, option
from policies.mirror import EXITS
from policies.registry import SettingError, Settings, configure, find_policy

FIGURES = ("3a", "4", "5", "6b", "7", "8")
NAMES = {"sd": "SD", "pearl": "PEARL", "saguaro": "SSD", "mirror": "Mirror-SD"}


@dataclass(frozen=True)
class FiguresPlan(Plan):
    """Which figures, and what each varies."""

    figure: tuple[str, ...] = option(FIGURES, "List.")
    lookaheads: tuple[int, ...] = option((1, 2, 3, 5, 8), "Of 3a.")
    lookahead: int = option(3, "Of all others.", type=POSITIVE)
    kappas: tuple[int, ...] = option((1, 2, 4, 8), "Of 7.")
    kappa: int = option(2, "Of all others.", type=click.IntRange(min=0))
    exits: tuple[str, ...] = option(tuple(EXITS), "Of 7.")
    batch: tuple[int, ...] = option((1, 4, 8), "Of 5.")
    streams: str = option("2", "Of a streaming draft.")
    repeats: int = option(2, "Live repetitions.", type=POSITIVE)

    def entries(self, figures: Sequence[str], temperature: float) -> list[Entry]:
        """Everything that some figures compare, each once, plain decoding left out."""
        target = {"temperature": temperature, "seed": self.seed}
        usual = self._rivals(self.lookahead, target)
        parts: dict[str, Callable[[], list[Entry]]] = {
            "3a": lambda: [Entry(s) for k in self.lookaheads for s in self._rivals(k, target)],
            "4": lambda: [Entry(s) for s in (*usual, *self._in_turns(target))],
            "5": lambda: [Entry(s, batch) for batch in self.batch for s in usual],
            "6b": lambda: [Entry(s) for s in self._in_turns(target)],
            "7": lambda: [
                Entry(self._mirror(self.lookahead, target, kappa=kappa, exit=exit_))
                for exit_ in self.exits
                for kappa in self.kappas
            ],
            "8": lambda: [Entry(s, place=place) for place in (SPLIT, SHARED) for s in usual],
        }
        return list(dict.fromkeys(entry for figure in figures for entry in parts[figure]()))

    def _rivals(self, lookahead: int, target: Mapping[str, Any]) -> list[Settings]:
        """SD, PEARL, SSD, and Mirror-SD with either draft."""
        return [
            configure("sd", lookahead=lookahead, **target),
            configure("pearl", lookahead=lookahead, **target),
            configure("saguaro", lookahead=lookahead, fanout=(3,), backup="primary", **target),
            self._mirror(lookahead, target),
            self._mirror(lookahead, target, streams=self.streams),
        ]

    def _in_turns(self, target: Mapping[str, Any]) -> list[Settings]:
        """Mirror-SD without overlap, with either draft."""
        drafts = ("0", self.streams)
        return [self._mirror(self.lookahead, target, overlap="off", streams=each) for each in drafts]

    def _mirror(self, lookahead: int, target: Mapping[str, Any], **knobs: Any) -> Settings:
        return configure("mirror", lookahead=lookahead, **{"kappa": self.kappa, **target, **knobs})


def settings(bench: Bench) -> list[Entry]:
    """What the figures asked for compare.

    Raises:
        SettingError: No such figure, or too few prompts for a batch.
    """
    plan = bench.plan_as(FiguresPlan)
    if unknown := [name for name in plan.figure if name not in FIGURES]:
        raise SettingError(f"there is no figure {unknown[0]!r} here; figures: {', '.join(FIGURES)}")
    if "5" in plan.figure and max(plan.batch) > (plan.count or 0):
        raise SettingError(f"{plan.count} prompts do not fill a batch of {max(plan.batch)}: --count")
    return [entry for t in plan.temperature for entry in plan.entries(plan.figure, t)]


def show(results: Results) -> Iterator[Any]:
    """A row per place, setting and batch: all prompts together, simulated beside live."""
    world = best_world(results.rows)
    rows = [row for row in results.where() if row["policy"] != "ar"]
    yield table(
        "speedup over plain decoding; milliseconds per round",
        (
            Column("place", "place"),
            SETTING,
            BATCH,
            Column("simulated", "simulated_speedup_vs_ar", "{:.2f}"),
            Column("live", "measured_speedup_vs_ar", "{:.2f}"),
            Column("error", "simulated_error", "{:+.1%}"),
            Column("tok./round", f"{world}_tokens_per_round", "{:.2f}"),
            Column("exposed", f"{world}_exposed_s", lambda s: f"{1e3 * s:.1f}"),
            Column("draft", f"{world}_draft_s", lambda s: f"{1e3 * s:.1f}"),
            Column("FF", f"{world}_fallback", "{:.2f}"),
        ),
        rows,
        left=("setting",),
    )


def name_of(row: Row) -> str:
    """The policy, and Mirror-SD's draft and overlap."""
    name = NAMES[row["policy"]]
    if row["policy"] != "mirror":
        return name
    streaming = "streaming" if knob(row, "streams") != "0" else "token by token"
    return f"{name}, {streaming}" + (", in turns" if knob(row, "overlap") == "off" else "")


def style_of(name: str) -> Row:
    """Colour by policy; dashes, or hatching of bars, tell Mirror-SD's variants apart."""
    policy = next(key for key, value in NAMES.items() if name.startswith(value))
    return {"color": find_policy(policy).colour, "alpha": 0.55 if "in turns" in name else 1.0}


def bar_style(name: str) -> Row:
    """The same of bars."""
    return {**style_of(name), "hatch": "//" if "streaming" in name else None}


class Drawing:
    """The panels of one temperature; `rows` are of its best world.

    Args:
        rows: Of that temperature, plain decoding left out.
        asked: What was varied.
    """

    def __init__(self, rows: Sequence[Row], asked: Mapping[str, Any]) -> None:
        self.world = best_world(rows)
        self.rows = [row for row in rows if row.get(f"{self.world}_speedup_vs_ar") is not None]
        self.asked = asked

    def of(self, row: Row, figure: str) -> float:
        """A figure of the world that is drawn."""
        return float(row[f"{self.world}_{figure}"])

    def speed(self, row: Row) -> float:
        """Speedup over plain decoding."""
        return self.of(row, "speedup_vs_ar")

    def pick(self, **wanted: Any) -> list[Row]:
        """The rows with these columns or knobs; of all categories unless one is named."""
        wanted = {"category": EVERY, **wanted}
        return [r for r in self.rows if all((r.get(n) or knob(r, n)) == v for n, v in wanted.items())]

    def usual(self, row: Row) -> bool:
        """Whether Mirror-SD has the kappa and the exit that all figures but 7 have."""
        mirror = row["policy"] == "mirror"
        return not mirror or (knob(row, "kappa"), knob(row, "exit")) == (self.asked["kappa"], "1/2")

    def compared(self, **wanted: Any) -> list[Row]:
        """SD, PEARL, SSD, and Mirror-SD with overlap in its usual reading, on own cores."""
        chosen = self.pick(place=SPLIT, **wanted)
        overlapping = (r for r in chosen if r["policy"] != "mirror" or knob(r, "overlap") == "on")
        return [row for row in overlapping if self.usual(row)]

    @property
    def categories(self) -> list[str]:
        """Of the prompts, all of them together first."""
        return list(dict.fromkeys(row["category"] for row in self.rows))

    def lines(self, axes: Any, rows: Sequence[Row], along: str, height: Callable[[Row], float]) -> None:
        """A line per policy and variant over a column."""
        for name in dict.fromkeys(map(name_of, rows)):
            mine = sorted((row for row in rows if name_of(row) == name), key=lambda row: float(row[along]))
            dash = "--s" if "streaming" in name else "-o"
            at = [row[along] for row in mine]
            axes.plot(at, [height(row) for row in mine], dash, label=name, **style_of(name))
        axes.legend(fontsize=8)

    def speed_by(self, axes: Any, along: str, label: str, **wanted: Any) -> None:
        """Speedup over a column."""
        self.lines(axes, self.compared(**wanted), along, self.speed)
        parity(axes)
        axes.set(xlabel=label, ylabel="speedup over plain decoding")

    def exposed_by_accepted(self, axes: Any) -> None:
        """Milliseconds in the open against accepted tokens; numbers are gamma."""
        chosen = self.compared(batch=1)
        for name in dict.fromkeys(map(name_of, chosen)):
            mine = sorted((r for r in chosen if name_of(r) == name), key=lambda r: int(r["lookahead"]))
            x = [self.of(row, "tokens_per_round") - 1.0 for row in mine]
            y = [1e3 * self.of(row, "exposed_s") for row in mine]
            axes.plot(x, y, "--s" if "streaming" in name else "-o", label=name, **style_of(name))
            for row, a, b in zip(mine, x, y, strict=True):
                near = {"xytext": (3, 3), "textcoords": "offset points"}
                axes.annotate(f"{row['lookahead']}", (a, b), fontsize=7, **near)
        axes.set_xlabel("drafted tokens accepted per round; numbers: gamma")
        axes.set_ylabel("milliseconds per round without the target at work")
        axes.set_ylim(bottom=0.0)

    def overhead_by_batch(self, axes: Any) -> None:
        """Drafting in the open over that of SD at the same batch ("relative draft overhead")."""
        chosen = self.compared(lookahead=self.asked["lookahead"])
        sd = {row["batch"]: self.of(row, "exposed_s") for row in chosen if row["policy"] == "sd"}
        self.lines(axes, chosen, "batch", lambda row: self.of(row, "exposed_s") / sd[row["batch"]])
        axes.set(xlabel="batch", ylabel="seconds without the target at work, over SD's")
        axes.set_ylim(bottom=0.0)

    def by_category(self, axes: Any, place: str, *, turns: bool) -> None:
        """Bars of every policy and variant, by category."""
        at = {"place": place, "batch": 1, "lookahead": self.asked["lookahead"]}
        found = {}
        for category in self.categories:
            mine = [row for row in self.pick(category=category, **at) if self.usual(row)]
            kept = (row for row in mine if turns or "in turns" not in name_of(row))
            found[category] = {name_of(row): self.speed(row) for row in kept}
        bars(axes, {c: own for c, own in found.items() if own}, bar_style)
        parity(axes)
        axes.set_ylabel("speedup over plain decoding there")

    def draft_alone(self, axes: Any) -> None:
        """How much sooner a streaming draft is done, by category."""
        turns = {"place": SPLIT, "batch": 1, "lookahead": self.asked["lookahead"], "overlap": "off"}
        found = {}
        for category in self.categories:
            mine = self.pick(category=category, policy="mirror", **turns)
            written = {knob(row, "streams"): self.of(row, "draft_s") for row in mine}
            found[category] = {"Mirror-SD, streaming": written["0"] / written[self.asked["streams"]]}
        bars(axes, found, bar_style)
        axes.set_ylabel("draft's seconds per round, token by token over streaming")

    def fallbacks(self, axes: Any, category: str) -> None:
        """Fallbacks against kappa, a line per exit."""
        usual = {"place": SPLIT, "batch": 1, "policy": "mirror", "overlap": "on", "streams": "0"}
        of = {"lookahead": self.asked["lookahead"], "candidates": "each", "category": category}
        for exit_ in self.asked["exits"]:
            chosen = self.pick(exit=exit_, **usual, **of)
            mine = sorted((knob(row, "kappa"), self.of(row, "fallback")) for row in chosen)
            axes.plot(*zip(*mine, strict=True), "-o", color=EXIT_COLOURS[exit_], label=f"exit {exit_}")
        axes.set(xlabel="kappa", ylabel="fallbacks per round", title=category, ylim=(0.0, None))
        axes.legend(fontsize=8)

    def draw(self, figure: Any, name: str) -> None:
        """One of the paper's figures."""
        gamma = self.asked["lookahead"]
        places = [p for p in (SPLIT, SHARED) if any(row["place"] == p for row in self.rows)]
        single = [c for c in self.categories if self.pick(category=c, batch=1, policy="mirror")]
        panels: dict[str, list[Callable[[Any], None]]] = {
            "3a": [
                lambda a: self.speed_by(a, "lookahead", "lookahead gamma", batch=1),
                self.exposed_by_accepted,
            ],
            "4": [lambda a: self.by_category(a, SPLIT, turns=True)],
            "5": [lambda a: self.speed_by(a, "batch", "batch", lookahead=gamma), self.overhead_by_batch],
            "6b": [self.draft_alone],
            "7": [lambda a, c=c: self.fallbacks(a, c) for c in single],  # type: ignore[misc]  # bound early
            "8": [lambda a, p=p: self.by_category(a, p, turns=False) for p in places],  # type: ignore[misc]
        }
        for panel, axes in zip(
            panels[name], figure.subplots(1, len(panels[name]), squeeze=False)[0], strict=True
        ):
            panel(axes)
            axes.grid(alpha=0.3)
        temperature = self.rows[0]["temperature"]
        figure.suptitle(f"Mirror-SD, figure {name} in kind, T={temperature:g}, {self.world}")


SIZES = {"6b": (6.5, 4.5), "7": (16.0, 3.6), "8": (13.0, 4.5)}


def pictures(results: Results) -> dict[str, Picture]:
    """One per figure and temperature: `mirror-figures-3a.png`, above temperature 0 `-3a-t1`."""
    found = {}
    rows = [row for row in results.rows if row["policy"] != "ar"]
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        drawing = Drawing([row for row in rows if row["temperature"] == temperature], results.asked)
        for name in results.asked["figure"]:
            ending = f"-{name}" + (f"-t{temperature:g}" if temperature > 0.0 else "")
            size = SIZES.get(name, (11.0, 4.5))
            found[ending] = Picture(lambda figure, d=drawing, n=name: d.draw(figure, n), size)  # type: ignore[misc]
    return found


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
