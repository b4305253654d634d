"""What compiling is worth: single forwards, eager and compiled, interleaved.

`python -m analysis.forwards --target pair:x5`: the shapes that a round is made of, timed by the calibration's
own probes.  What to look for is a verification that costs about as much as a decode step: the premise of the
papers' laws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import click
import numpy as np

from hardware_profiles.files import to_json
from policies.commandline import HELP, Refusal, checked_command, wide_console

CONTEXT = 200
SHAPES: tuple[tuple[str, str, str, dict[str, int]], ...] = (
    ("draft, 1 token", "draft", "forward", {"new_tokens": 1}),
    ("draft, tree of 15", "draft", "tree", {"branches": 15}),
    ("target, decode 1", "target", "forward", {"new_tokens": 1}),
    ("target, verify 5", "target", "forward", {"new_tokens": 5}),
    ("target, batch 8, 5 tokens each", "target", "forward", {"batch": 8, "new_tokens": 5}),
)
"""(name, device, kind of probe, shape)."""
MODES = ("eager", "compiled")


@dataclass(frozen=True, slots=True)
class Forward:
    """One shape.

    Attributes:
        name: For people.
        seconds: By mode, the median of all samples.
        speedup: Eager over compiled: its (least, median, largest) over the repetitions.
    """

    name: str
    seconds: Mapping[str, float]
    speedup: tuple[float, float, float]


def summarise(name: str, samples: Mapping[str, Sequence[Sequence[float]]]) -> Forward:
    """A shape's samples as one row.

    Args:
        name: Of the shape.
        samples: By mode [repetitions][samples] of seconds; the modes took turns.
    """
    medians = {mode: [float(np.median(each)) for each in found] for mode, found in samples.items()}
    ratios = [e / c for e, c in zip(medians["eager"], medians["compiled"], strict=True)]
    seconds = {mode: float(np.median(found)) for mode, found in medians.items()}
    return Forward(name, seconds, (min(ratios), float(np.median(ratios)), max(ratios)))


def measure(target: str, draft: str, *, repeats: int, progress: Callable[[int, int], None]) -> list[Forward]:
    """Time every shape in both modes, the modes taking turns, pinned as in a split placement.

    Args:
        target: Folder of the target.
        draft: Folder of the draft.
        repeats: Repetitions of all shapes.
        progress: (visits done, visits in all).
    """
    from calibrate.live.placement import pair_specs, parse_placement
    from calibrate.live.transport.world import LiveWorld
    from calibrate.measure import time_shape

    specs = pair_specs(target, draft, parse_placement("split"))
    samples: dict[str, dict[str, list[list[float]]]] = {
        name: {mode: [] for mode in MODES} for name, *_ in SHAPES
    }
    with ExitStack() as stack:
        worlds = {
            mode: stack.enter_context(LiveWorld(*(replace(spec, mode=mode, slots=8) for spec in specs)))  # type: ignore[arg-type]
            for mode in MODES
        }
        visits = [(mode, *shape) for _ in range(repeats) for shape in SHAPES for mode in MODES]
        for done, (mode, name, device, kind, shape) in enumerate(visits):
            at = {"batch": 1, "context": CONTEXT, **shape}
            samples[name][mode].append(time_shape(worlds[mode], device, kind, at, 4)[1:])
            progress(done + 1, len(visits))
    return [summarise(name, found) for name, found in samples.items()]


@checked_command(context_settings=HELP)
@click.option("--target", default="pair:x5", show_default=True, help="Model name or folder.")
@click.option("--draft", default="pair:draft", show_default=True, help="Model name or folder.")
@click.option("--repeats", default=9, show_default=True, type=click.IntRange(min=2))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(target: str, draft: str, repeats: int, as_json: bool) -> None:
    """Single forwards, eager and compiled, interleaved."""
    from rich.table import Table

    from calibrate.display import show_progress
    from calibrate.shipped import resolve_model

    try:
        folders = [str(resolve_model(name)) for name in (target, draft)]
        with show_progress() as progress:
            found = measure(
                *folders, repeats=repeats, progress=lambda done, total: progress("forwards", done, total)
            )
    except (ValueError, OSError, RuntimeError) as error:
        raise Refusal(str(error)) from error
    if as_json:
        rows = [
            {"forward": row.name, "seconds": dict(row.seconds), "eager_over_compiled": list(row.speedup)}
            for row in found
        ]
        click.echo(
            to_json({"target": target, "draft": draft, "context": CONTEXT, "forwards": rows}, indent=2)
        )
        return
    table = Table(header_style="bold", title=f"{target}, context {CONTEXT}, {repeats} repetitions")
    for title in ("forward", "eager, ms", "compiled, ms", "eager / compiled (range)"):
        table.add_column(title, justify="left" if title == "forward" else "right")
    for row in found:
        low, middle, high = row.speedup
        table.add_row(
            row.name,
            f"{1e3 * row.seconds['eager']:.2f}",
            f"{1e3 * row.seconds['compiled']:.2f}",
            f"{middle:.2f} ({low:.2f}-{high:.2f})",
        )
    wide_console().print(table)


if __name__ == "__main__":
    main()
