"""Statistics of predictions: errors, spreads, and the order of settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, islice
from typing import TypeVar

import numpy as np

from analysis.results import Row

MOST_HALVINGS = 10_000
"""Ways of dealing out repetitions that are looked at."""

Item = TypeVar("Item")
Key = TypeVar("Key")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by their key, in the order in which keys come up."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def errors(ratios: Iterable[float]) -> Row | None:
    """How far predicted speedups are off, from predicted over measured ones; None without any.

    Returns:
        Of how many `settings`; the `median`, 95 % quantile (`p95`) and `largest` |ratio - 1|; and the `bias`,
        the mean of log(ratio).
    """
    known = np.array(list(ratios))
    if not len(known):
        return None
    off = np.abs(known - 1.0)
    return {
        "settings": len(known),
        "median": float(np.median(off)),
        "p95": float(np.quantile(off, 0.95)),
        "largest": float(off.max()),
        "bias": float(np.mean(np.log(known))),
    }


def errors_of(rows: Iterable[Row], column: str) -> Row | None:
    """Errors in a column such as `simulated_error`, plain decoding and missing opinions left out."""
    mine = (row for row in rows if row["policy"] != "ar" and row.get(column) is not None)
    return errors(1.0 + row[column] for row in mine)


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that there are."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def spread_of(values: Sequence[float], middle: float) -> float | None:
    """Half the range of repetitions, relative to what they are repetitions of; None of a single one."""
    return None if len(values) < 2 else (max(values) - min(values)) / 2.0 / middle


def repeatability(speedups: Sequence[float]) -> float | None:
    """By what share two measurements as long as this one would differ, from its disjoint halves.

    The root mean square, over the ways of dealing its repetitions out into two halves, of log(mean of one
    over mean of the other), over sqrt(2), since a half varies by so much more than the whole.  None of a
    single one.

    Args:
        speedups: By repetition.
    """
    count, logs = len(speedups), np.log(speedups)
    if count < 2:
        return None
    ways = list(islice(combinations(range(count), count // 2), MOST_HALVINGS))
    halves = [(logs[list(one)].mean(), np.delete(logs, one).mean()) for one in ways]
    return float(np.sqrt(np.mean([(a - b) ** 2 for a, b in halves]) / 2.0))


def ranks(rows: Sequence[Row]) -> Row:
    """Predicted against measured order of the settings of one category and temperature.

    Pairs whose repetitions overlap do not count: the live runs do not tell them apart.

    Returns:
        `pairs` that are told apart, those of them ordered `right`, the setting `predicted` to be the fastest,
        the `best` one measured, and the `regret`: the share of its speed that trusting the prediction misses.
    """
    pairs = right = 0
    for one, other in combinations(rows, 2):
        first, second = one["measured_by_repeat"], other["measured_by_repeat"]
        if min(first) <= max(second) and min(second) <= max(first):
            continue
        pairs += 1
        faster = min(first) > max(second)
        right += faster == (one["simulated_speedup_vs_ar"] > other["simulated_speedup_vs_ar"])
    predicted = max(rows, key=lambda row: row["simulated_speedup_vs_ar"])
    best = max(rows, key=lambda row: row["measured_speedup_vs_ar"])
    regret = 1.0 - predicted["measured_speedup_vs_ar"] / best["measured_speedup_vs_ar"]
    names = {"predicted": predicted["setting"], "best": best["setting"]}
    return {"pairs": pairs, "right": right, **names, "regret": regret}
