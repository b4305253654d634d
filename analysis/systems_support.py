"""What the notebook of the new systems shows, drawn from stored results: law, simulated, measured.

`analysis/results/family` has every policy side by side, `analysis/results/systems` an experiment per paper.
Settings, worlds and parts are taken as they come, so that results of more of them need no change here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from analysis.notebooks_support import table
from analysis.papers.rasd import fused_tau
from hardware_profiles.jsonfile import read_json

RESULTS = Path(__file__).resolve().parent / "results"
Result: TypeAlias = Mapping[str, Any]
LAW = {"marker": "x", "color": "#888888", "label": "law"}
SIMULATED = {"marker": "D", "color": "#dd8452", "label": "simulated"}
MEASURED = {"marker": "o", "color": "#4c72b0", "label": "measured"}
OPINIONS = (("law", LAW), ("simulated", SIMULATED), ("measured", MEASURED))
PIECES = (
    ("prefix_s", "target", 0, "#4c72b0", "layers up to the exit"),
    ("suffix_s", "target", 1, "#a6bbdb", "layers after it"),
    ("rollout_s", "draft", 1, "#55a868", "rollout"),
    ("redraft_s", "draft", 2, "#c44e52", "drafted anew (mean)"),
)
"""Key, device, where it begins (0: at once, 1: at the exit, 2: after both), colour and name."""


def load(name: str) -> dict[str, Any]:
    """A stored result, e.g. `systems/mirror`.

    Raises:
        OSError: There is none.
    """
    found: dict[str, Any] = read_json(RESULTS / f"{name}.json")
    return found


def short(setting: str) -> str:
    """A setting's label without its temperature, which stands above it."""
    return " ".join(word for word in setting.split() if not word.startswith("T="))


def lines_of(setting: str) -> str:
    """The same over as many short lines as it takes, for an axis; the knobs of a tree go without `tree_`."""
    words = short(setting).split()
    return textwrap.fill(" ".join([words[0], *(w.removeprefix("tree_") for w in words[1:])]), 34)


def draw_family(axes: Any, group: Result) -> None:
    """The three opinions on every setting, a line each, the fastest measured one on top."""
    rows = sorted(group["settings"], key=lambda row: row["measured"])
    for at, row in enumerate(rows):
        seen = [row[name] for name, _ in OPINIONS if row[name] is not None]
        axes.plot([min(seen), max(seen)], [at, at], color="#dddddd", linewidth=1.5, zorder=0)
    for name, look in OPINIONS:
        known = [(row[name], at) for at, row in enumerate(rows) if row[name] is not None]
        if known:
            axes.plot(*zip(*known, strict=True), linestyle="", markersize=5.5, **look)
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), [lines_of(row["setting"]) for row in rows], fontsize=7.5)
    axes.set_xlabel(f"speed over plain decoding, temperature {group['temperature']:g}")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)


def mirrors(found: Result, world: str) -> list[Result]:
    """Outcomes of Mirror-SD in a world at batch 1, by label."""
    chosen = [o for o in found["outcomes"] if o["world"] == world and o["batch"] == 1 and o["account"]]
    return sorted(chosen, key=lambda outcome: str(outcome["setting"]))


def draw_step(axes: Any, found: Result, world: str) -> None:
    """The mean step of each Mirror setting: the target's two parts above what the draft does."""
    outcomes = mirrors(found, world)
    for at, outcome in enumerate(outcomes):
        account = outcome["account"]
        alone = outcome["knobs"].get("overlap") == "off"
        after = account["prefix_s"] + account["suffix_s"]
        begins = [0.0, account["prefix_s"], after]
        for name, device, moment, colour, _ in PIECES:
            start = begins[moment]
            if name == "rollout_s" and alone:
                start = after
            if name == "redraft_s":
                start = max(after, (after if alone else account["prefix_s"]) + account["rollout_s"])
            y = at - 0.19 if device == "target" else at + 0.19
            axes.barh(y, 1e3 * account[name], 0.34, left=1e3 * start, color=colour)
        axes.plot([1e3 * account["step_s"]] * 2, [at - 0.42, at + 0.42], color="black", linewidth=1.2)
    axes.set_yticks(range(len(outcomes)), [_of_mirror(o) for o in outcomes], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms of a mean step")
    axes.set_title(world, fontsize=10, loc="left")


def draw_step_legend(figure: Any) -> None:
    """What the colours of `draw_step` are, below all panels."""
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for _, _, _, colour, name in PIECES]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)


def draw_hidden(axes: Any, found: Result) -> None:
    """Draft time that the target's later layers hide: by law, simulated and live."""
    live = {o["setting"]: o["account"] for o in mirrors(found, "live")}
    simulated = {o["setting"]: o["account"] for o in mirrors(found, "simulated")}
    settings = sorted(live or simulated)
    told = live or simulated
    columns = (
        ("law", [told[s]["law_hidden_s"] for s in settings]),
        ("simulated", [simulated[s]["hidden_s"] if s in simulated else 0.0 for s in settings]),
        ("measured", [live[s]["hidden_s"] if s in live else 0.0 for s in settings]),
    )
    for number, (name, seconds) in enumerate(columns):
        at = [y + 0.26 * (number - 1) for y in range(len(settings))]
        axes.barh(at, [1e3 * s for s in seconds], 0.24, color=dict(OPINIONS)[name]["color"], label=name)
    axes.set_yticks(range(len(settings)), [_short_mirror(s) for s in settings], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms of drafting hidden per step")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)


def _of_mirror(outcome: Result) -> str:
    return _short_mirror(str(outcome["setting"]))


def _short_mirror(setting: str) -> str:
    return short(setting).removeprefix("mirror ")


def draw_ceiling(axes: Any, found: Result) -> None:
    """Tokens of a round over its duration in plain steps: speed is the slope, C the steepest there can be."""
    outcomes = [o for o in found["outcomes"] if o["part"] != "depth"]
    ceiling = outcomes[0]["ceiling"]
    x = [o["round_over_plain_step"] for o in outcomes]
    y = [o["tokens_per_round"] for o in outcomes]
    widest, highest = 1.15 * max(x), 1.15 * max(y)
    for slope, style in ((1.0, ":"), (1.25, "-"), (1.5, "-"), (ceiling, "--")):
        axes.plot([0, widest], [0, slope * widest], style, color="#bbbbbb", linewidth=1, zorder=0)
    for outcome, at, tokens in zip(outcomes, x, y, strict=True):
        ours = outcome["setting"].startswith("double")
        axes.plot(at, tokens, "o", color="#c44e52" if ours else "#4c72b0", markersize=5)
    _name_points(axes, [(o["name"], at, tokens) for o, at, tokens in zip(outcomes, x, y, strict=True)])
    axes.set_xlim(0.9, widest)
    axes.set_ylim(0.9, highest)
    for slope in (1.0, 1.25, 1.5):
        leaves = min(widest, highest / slope)
        axes.annotate(f"{slope:g}x", (leaves, slope * leaves), fontsize=8, color="#666666", xytext=(3, 3),
                      textcoords="offset points", annotation_clip=False)  # fmt: skip
    axes.set_xlabel("duration of a round, in plain steps")
    axes.set_ylabel("tokens of a round")
    if ceiling * 0.9 > highest:
        axes.set_title(
            f"the ceiling, {ceiling:.3g}x, is too steep for this frame", fontsize=10, loc="right", pad=14
        )


def _name_points(axes: Any, points: Sequence[tuple[str, float, float]]) -> None:
    """Names beside points; those of points that lie together below each other."""
    taken: list[tuple[float, float]] = []
    for name, x, y in sorted(points, key=lambda point: (-point[2], point[1])):
        near = sum(abs(x - a) < 0.35 and abs(y - b) < 0.1 for a, b in taken)
        axes.annotate(
            name, (x, y), fontsize=7, xytext=(6, -3 - 9 * near), textcoords="offset points", va="center"
        )
        taken.append((x, y))


def double_table(found: Result) -> str:
    """Law, simulated and measured speed of DOUBLE and what it is compared with, and what it matched."""
    lines = []
    for outcome in found["outcomes"]:
        retrieval = outcome["retrieval"] or {}
        numbers = [
            outcome[f"{name}_speedup_vs_ar"] for name in ("law_printed", "law", "simulated", "measured")
        ]
        matched = [retrieval.get(f"{who}_matched") for who in ("draft", "target")]
        lines.append((outcome["name"], *map(_number, (*numbers, *matched))))
    head = ("", "eq. 7 as printed", "law", "simulated", "measured", "AMT, draft", "AMT, target")
    return table(head, lines, right=1)


def draw_budgets(axes: Any, budgets: Sequence[Result], title: str) -> None:
    """Speed by drafting budget, a line per world, its best budget ringed; the paper's budget c upright."""
    for number, budget in enumerate(budgets):
        speeds = sorted((int(tokens), value) for tokens, value in budget["speedups"].items())
        colour = f"C{number}"
        axes.plot(*zip(*speeds, strict=True), "-", color=colour, linewidth=1.3, label=budget["world"])
        best = max(speeds, key=lambda point: point[1])
        axes.plot(*best, "o", color=colour, markersize=6, markerfacecolor="white")
    axes.axvline(budgets[0]["ratio"], color="black", linewidth=0.8, linestyle="--")
    axes.set_xlabel("budget, tokens per round (dashed: c)")
    axes.set_ylabel("speed over plain decoding")
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")


def draw_sequences(axes: Any, found: Result) -> None:
    """Speed of DuoDecoding's settings live, beside law and simulation."""
    rows = [row for row in found["settings"] if row["setting"] != "ar"]
    group = {
        "temperature": 0.0,
        "settings": [
            {
                "setting": row["setting"],
                "law": row["law_speedup_vs_ar"],
                "simulated": row["simulated_speedup_vs_ar"]["all"],
                "measured": row["measured_speedup_vs_ar"]["all"],
            }
            for row in rows
        ],
    }
    draw_family(axes, group)


def draw_tau(axes: Any, found: Result) -> None:
    """Tokens that trees yield: both halves, RASD's fused tree, and independent halves' by law."""
    entries = {e["name"]: e["by_category"]["all"]["tau"] for e in found["entries"] if e["part"] == "methods"}
    drafted = entries.get("drafted tree")
    names, values, colours = [], [], []
    for name, tau in entries.items():
        names.append(name)
        values.append(tau)
        colours.append("#c44e52" if name.startswith("rasd") else "#4c72b0")
    axes.barh(range(len(names)), values, 0.6, color=colours)
    marked = False
    for at, name in enumerate(names):
        half = entries.get(name.replace("rasd", "rest"))
        if name.startswith("rasd") and half is not None and drafted is not None:
            law = fused_tau(drafted, half)
            axes.plot([law, law], [at - 0.38, at + 0.38], color="black", linewidth=1.6,
                      label=None if marked else "independent halves")  # fmt: skip
            marked = True
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("tau, tokens of a tree accepted per forward")
    axes.grid(axis="x", alpha=0.3)
    if marked:
        axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), frameon=False)


def retrieval_table(found: Result, part: str = "methods") -> str:
    """tau, candidates, and speeds of a part of the retrieval results."""
    lines = []
    for entry in found["entries"]:
        if entry["part"] == part:
            numbers = entry["by_category"]["all"]
            names = ("tau", "candidates_per_forward", "simulated_speedup_vs_ar", "measured_speedup_vs_ar")
            lines.append((entry["name"], *(_number(numbers.get(name)) for name in names)))
    return table(("", "tau", "candidates per forward", "simulated", "measured"), lines, right=1)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None, *, signed: bool = True) -> str:
    if value is None:
        return "-"
    return f"{value:+.1%}" if signed else f"{value:.1%}"
