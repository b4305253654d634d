"""What compiling is worth: single forwards, eager and compiled, interleaved.

The shapes that a round is made of, timed by the calibration's own probes.  What to look for is a verification
that costs about as much as a decode step: the premise of the papers' laws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np

from analysis.execute import Bench
from analysis.results import Results, Row
from analysis.show import Column, table
from analysis.study import Plan, Study, option
from calibrate.live.placement import MODES, pair_specs, parse_placement
from calibrate.live.transport.world import LiveWorld
from calibrate.measure import time_shape
from calibrate.shipped import resolve_model

CONTEXT = 200
SHAPES: tuple[tuple[str, str, str, dict[str, int]], ...] = (
    ("draft, 1 token", "draft", "forward", {"new_tokens": 1}),
    ("draft, tree of 15", "draft", "tree", {"branches": 15}),
    ("target, decode 1", "target", "forward", {"new_tokens": 1}),
    ("target, verify 5", "target", "forward", {"new_tokens": 5}),
    ("target, batch 8, 5 tokens each", "target", "forward", {"batch": 8, "new_tokens": 5}),
)
"""(name, device, kind of probe, shape)."""


@dataclass(frozen=True)
class ForwardsPlan(Plan):
    """Which pair."""

    hw: tuple[str, ...] = ()
    target: str = option("pair:x5", "Model name or folder.")
    draft: str = option("pair:draft", "Model name or folder.")
    repeats: int = option(9, "Repetitions.", type=click.IntRange(min=2))


def answer(bench: Bench) -> list[Row]:
    """A row per shape, timed in both modes, which take turns, pinned as in a split placement."""
    plan = bench.plan_as(ForwardsPlan)
    target, draft = (str(resolve_model(name)) for name in (plan.target, plan.draft))
    specs = pair_specs(target, draft, parse_placement("split"))
    samples: dict[str, dict[str, list[list[float]]]] = {}
    with ExitStack() as stack:
        worlds = {
            mode: stack.enter_context(LiveWorld(*(replace(spec, mode=mode, slots=8) for spec in specs)))
            for mode in MODES
        }
        visits = [(mode, *shape) for _ in range(plan.repeats) for shape in SHAPES for mode in MODES]
        for done, (mode, name, device, kind, shape) in enumerate(visits):
            at = {"batch": 1, "context": CONTEXT, **shape}
            seconds = time_shape(worlds[mode], device, kind, at, 4)[1:]
            samples.setdefault(name, {}).setdefault(mode, []).append(seconds)
            bench.progress("forwards", done + 1, len(visits))
    return [summarise(name, found) for name, found in samples.items()]


def summarise(name: str, samples: Mapping[str, Sequence[Sequence[float]]]) -> Row:
    """A shape's samples as one row: median seconds by mode, and [least, median, largest] eager / compiled.

    Args:
        name: Of the shape.
        samples: By mode [repetitions][samples] of seconds; the modes took turns.
    """
    medians = {mode: [float(np.median(each)) for each in found] for mode, found in samples.items()}
    ratios = [e / c for e, c in zip(medians["eager"], medians["compiled"], strict=True)]
    seconds = {f"{mode}_s": float(np.median(found)) for mode, found in medians.items()}
    spread = [min(ratios), float(np.median(ratios)), max(ratios)]
    return {"forward": name, "context": CONTEXT, **seconds, "eager_over_compiled": spread}


def show(results: Results) -> Iterator[Any]:
    """Milliseconds in both modes and their ratio."""

    def ratio(row: Row) -> str:
        low, middle, high = row["eager_over_compiled"]
        return f"{middle:.2f} ({low:.2f}-{high:.2f})"

    asked = results.asked
    yield table(
        f"{asked['target']}, context {CONTEXT}, {asked['repeats']} repetitions",
        (
            Column("forward", "forward"),
            Column("eager, ms", "eager_s", lambda s: f"{1e3 * s:.2f}"),
            Column("compiled, ms", "compiled_s", lambda s: f"{1e3 * s:.2f}"),
            Column("eager / compiled (range)", ratio),
        ),
        results.rows,
    )


STUDY = Study(
    "forwards",
    "What is compiling worth?  Single forwards, eager and compiled, interleaved.",
    ForwardsPlan,
    answer=answer,
    show=show,
    examples=("--target pair:x5",),
)
