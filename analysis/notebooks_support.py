"""What the notebooks of the papers show, from the catalogue and from stored results.

Tables are Markdown, pictures are drawn on axes of the caller's.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.breaks.map import Map, load_map
from analysis.breaks.show import by_relaxation, of_law
from analysis.papers.cells import read_csv
from analysis.papers.report import SUMMARY
from analysis.results import Row
from analysis.show import COLOURS, frame, legend_above, markdown, markdown_of, name_rows, values
from hardware_profiles.files import read_json
from policies.laws.catalogue import STATEMENTS, Statement, find
from policies.laws.evaluate import answer

RESULTS = Path(__file__).resolve().parent / "results" / "papers"
PREFIXES = {"duodecoding": "duo"}
"""Papers whose statements begin with another name."""
VERDICTS = ("wrong", "caveat", "holds")
LONG = 44
"""Characters of a line in a picture's title."""


def statements(paper: str) -> list[Statement]:
    """A paper's statements: those that are wrong first, then those that need care."""
    prefix = PREFIXES.get(paper, paper)
    mine = [statement for statement in STATEMENTS.values() if statement.paper == prefix]
    return sorted(mine, key=lambda statement: VERDICTS.index(statement.verdict))


def verdicts(paper: str) -> str:
    """Statement, verdict and counterexample, as a table."""
    rows = [(f"`{s.id}`", s.title, s.verdict, s.counterexample or "-") for s in statements(paper)]
    return markdown(("id", "statement", "verdict", "counterexample"), rows)


def tally(paper: str) -> str:
    """How many statements have which verdict."""
    counts: Counter[str] = Counter(statement.verdict for statement in statements(paper))
    return ", ".join(f"{verdict} {counts[verdict]}" for verdict in VERDICTS)


def draw_law(axes: Any, name: str, *typed: str, part: str | None = None) -> None:
    """Both forms of a statement: a sweep as lines, a list as bars beside each other.

    `typed` are arguments as `laws eval` takes them; `part` of a value that has several.

    Raises:
        ValueError: No such statement, or arguments it cannot take.
    """
    said = answer(find(name), typed)
    corrected, printed = (form if part is None else form[part] for form in (said.value, said.printed))
    if said.sweep:
        axes.plot(said.sweep.values, corrected, color=COLOURS[0], label="corrected")
        axes.plot(said.sweep.values, printed, color=COLOURS[1], linestyle="--", label="as printed")
    else:
        at = np.arange(len(corrected))
        axes.bar(at - 0.2, corrected, 0.38, color=COLOURS[0], label="corrected")
        axes.bar(at + 0.2, printed, 0.38, color=COLOURS[1], label="as printed")
        axes.set_xticks(at)
    axes.set_title(textwrap.fill(f"{name}: {part or said.statement.title}", LONG), fontsize=9)
    axes.set_ylim(bottom=0)
    frame(axes, x=said.sweep.name if said.sweep else "token")


def load_predictions(paper: str) -> dict[str, Any]:
    """The stored predictions of a paper's tables, as `summary.as_dict` gives them.

    Raises:
        OSError: There are none.
    """
    predictions: dict[str, Any] = read_json(RESULTS / f"{paper}.json")
    return predictions


def account(predictions: Mapping[str, Any]) -> str:
    """What became of the printed values."""
    return ", ".join(f"{number} {role}" for role, number in predictions["counts"].items())


def errors(predictions: Mapping[str, Any]) -> str:
    """The errors of law, simulation and naive guess by method, as a table."""
    return markdown_of(SUMMARY[1:], predictions["summary"])


def draw_rows(axes: Any, rows: Sequence[Row]) -> None:
    """Predictions of single cells: printed value, prediction and interval, a line per cell.

    What all cells have in common is left out of their names; intervals are cut at the frame.
    """
    words = [re.sub(r"budget_row=(\d+) of \d+", r"row=\1", row["where"]).split() for row in rows]
    common = set(words[0]).intersection(*words[1:]) if len(words) > 1 else set()
    names = [" ".join(word for word in line if word not in common) for line in words]
    reported, predicted, low, high = (values(rows, n) for n in ("reported", "predicted", "low", "high"))
    ends = np.maximum(0.0, [predicted - low, high - predicted])
    look = {"fmt": "D", "color": "#dd8452", "markersize": 4, "elinewidth": 0.8}
    axes.errorbar(predicted, range(len(rows)), xerr=ends, label="by law", **look)
    axes.plot(reported, range(len(rows)), "o", color=COLOURS[0], markersize=5, label="printed")
    both = np.concatenate([reported, predicted])
    margin = 0.25 * np.ptp(both)
    axes.set_xlim(max(0.0, both.min() - margin), both.max() + margin)
    name_rows(axes, names, size=7)
    frame(axes, x="", legend=0)
    legend_above(axes)


def breaks(paper: str) -> Map:
    """The part of the stored map of breaking laws that is of this paper; it may be empty."""
    whole = load_map()
    prefix = f"{PREFIXES.get(paper, paper)}."
    return Map(tuple(cell for cell in whole.cells if cell.law.startswith(prefix)), whole.seed, whole.tokens)


def breaks_by_relaxation(laws_map: Map) -> str:
    """The largest error under each relaxation, of laws that hold where nothing is relaxed."""
    head, *rows = by_relaxation(laws_map)
    return markdown(head, rows)


def breaks_of_law(laws_map: Map, law: str) -> str:
    """From what size of each relaxation on a law is off, and why."""
    head, *rows = of_law(laws_map, law)
    return markdown(head, rows)


def figures(paper: str) -> str:
    """A paper's figures and ablations: what there is of them here, and what is missing."""
    columns = ("figure", "shows", "shape", "stored", "why")
    rows = [[row[name] for name in columns] for row in read_csv("figures") if row["paper"] == paper]
    return markdown((*columns[:2], "reproduced", "stored result", "why"), rows)
