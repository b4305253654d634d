"""Which part of a prediction is wrong?  The errors of live settings, split into parts with names.

Runs as `validate` does; a table lists the settings with the largest errors, and what they are made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.execute import Bench
from analysis.explain import PARTS, explained
from analysis.results import Results, Row
from analysis.show import Column, table
from analysis.studies import validation
from analysis.studies.validation import ValidationPlan, compared
from analysis.study import POSITIVE, option


@dataclass(frozen=True)
class ExplainPlan(ValidationPlan):
    """What is validated, and how much of it is listed."""

    worst: int = option(10, "Settings listed.", type=POSITIVE)


def answer(bench: Bench) -> list[Row]:
    """The rows of a validation, each with the `parts` of its error, and the largest as its `cause`."""
    rows = validation.answer(bench)
    for comparison in bench.comparisons:
        mine = [row for row in rows if row["temperature"] == comparison.temperature]
        split = explained(comparison, mine)
        for row in mine:
            row["parts"] = split[row["setting"], row["batch"]]
            row["cause"] = max(PARTS, key=lambda name: abs(row["parts"][name]))
    return rows


def about(results: Results) -> Row:
    """As of a validation, and how large each part is over all settings."""
    rows = compared(results.rows)
    sizes = {name: np.array([row["parts"][name] for row in rows]) for name in PARTS}
    return {
        **validation.about(results),
        "parts": {
            name: {
                "median": float(np.median(np.abs(values))),
                "largest": float(np.abs(values).max()),
                "bias": float(values.mean()),
            }
            for name, values in sizes.items()
        },
    }


def worst(results: Results) -> list[Row]:
    """The settings with the largest errors, the largest first."""
    rows = sorted(compared(results.rows), key=lambda row: -abs(row["error"]))
    return rows[: results.asked["worst"]]


def show(results: Results) -> Iterator[Any]:
    """What a validation says, the worst settings, and how large each part is."""
    yield from validation.show(results)

    def percent(name: str) -> Column:
        return Column(name, lambda row: row["parts"][name], lambda v: f"{100 * v:+.1f}")

    label = Column("setting", lambda row: f"{row['label']}")
    error = Column("error %", "error", lambda v: f"{100 * v:+.1f}")
    again = Column("repeat-\nable %", "repeatability", lambda v: f"{100 * v:.1f}")
    columns = (label, error, Column("cause", "cause"), *map(percent, PARTS), again)
    title = "Largest errors, and their parts in % (sums of logarithms)"
    yield table(title, columns, worst(results), drop=(again.title,))
    for name, size in results.about["parts"].items():
        yield (
            f"{name}: median {size['median']:.1%}, largest {size['largest']:.1%}, mean {size['bias']:+.1%}"
        )


STUDY = replace(
    validation.STUDY,
    name="explain",
    question="Which part of a prediction is wrong?  Errors of live settings, in parts with names.",
    plan=ExplainPlan,
    answer=answer,
    about=about,
    show=show,
    command="",
    examples=("--calibrate --target pair:x5 --out report/",),
)
