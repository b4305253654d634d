"""The map as text and as pictures.

Text: one table of all laws, one of all relaxations, and one per law.  Pictures: a heat map of all laws, and a
panel of lines per law.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.breaks.comparison import LEVEL
from analysis.breaks.laws import LAWS
from analysis.breaks.map import MARGIN, OWN_ASSUMPTIONS, Map, MapEntry, agrees, differs
from analysis.breaks.relaxations import RELAXATIONS
from analysis.breaks.worlds import RECORDING
from analysis.show import markdown as markdown_table
from analysis.show import save
from analysis.study import Picture
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from hardware_profiles.surface import LatencySurface
from policies.commandline import wrapped_table

if TYPE_CHECKING:
    from rich.table import Table

BEGIN, END = "<!-- breaks: {} -->", "<!-- /breaks -->"
"""Around what docs/results/breaks.md takes from the command."""

CAPTION = (
    "Errors of the law in per cent, law / simulated - 1, the largest over sizes and points; of a bound the "
    "part by which it is violated, of a choice the speed (or hits) lost. Own assumptions: "
    f"agrees if the error +- {LEVEL:g} standard errors lies within {MARGIN:.0%}."
)
COLOURS = (
    "#4c72b0", "#c44e52", "#55a868", "#8172b3", "#dd8452",
    "#64b5cd", "#937860", "#da8bc3", "#8c8c8c", "#222222", "#b5a642",
)  # fmt: skip
MARKERS = "osD^vP*Xdhp"
PANELS = 5
"""Panels of the line figure beside each other."""
TICKS = (-50, -20, -10, 0, 10, 20, 50, 100, 500)
WIDE = 10.0
"""Least width of the line figure in inches, which its legend takes."""
FULL = 100.0
"""Error in per cent from which on the heat map's colour is the darkest."""

SENTENCES = {"agrees": "agrees", "differs": "is off", "undecided": "is not told apart"}

Line = Sequence[str]


def overview(errors: Map) -> list[Line]:
    """Law by relaxation: the largest error in per cent, signed; the first line is the head."""
    lines: list[Line] = [["law", "own assumptions", *errors.relaxations]]
    for name in errors.laws:
        own = errors.worst(name, OWN_ASSUMPTIONS)
        cells = (errors.worst(name, relaxation) for relaxation in errors.relaxations)
        verdict = "" if own is None else f"{percent(own)} {_verdict(errors.of(name, OWN_ASSUMPTIONS))}"
        lines.append([name, verdict, *("" if cell is None else percent(cell) for cell in cells)])
    return lines


def by_relaxation(errors: Map) -> list[Line]:
    """Relaxation by relaxation: the largest error of a law that holds where nothing is relaxed."""
    lines: list[Line] = [["relaxed", "size", "largest error, %", "of", "at", "because"]]
    for name in errors.relaxations:
        sound = [cell for law in errors.laws if not LAWS[law].fault for cell in errors.of(law, name)]
        if not sound:
            continue
        relaxation = RELAXATIONS[name]
        # Where the printed and the corrected form err alike, the corrected one is named.
        cell = max(sound, key=lambda c: (abs(c.error), LAWS[c.law].form != "as printed"))
        where = f"{cell.size:g}, {cell.point}"
        lines.append([name, relaxation.size, with_error(cell), cell.law, where, relaxation.because])
    return lines


def of_law(errors: Map, law: str) -> list[Line]:
    """Relaxation by relaxation of one law: from what size on it is off, how far, and because of what."""
    lines: list[Line] = [["relaxed", f"off by over {MARGIN:.0%} from", "largest error, %", "at", "because"]]
    for name in errors.relaxations:
        worst = errors.worst(law, name)
        if worst is None:
            continue
        off, because = _from(errors.of(law, name)), LAWS[law].relaxations[name]
        if off == "never" and not because.startswith("none"):
            because = "-"
        lines.append([name, off, with_error(worst), f"{worst.size:g}, {worst.point}", because])
    return lines


def percent(cell: MapEntry) -> str:
    """The error in per cent, signed."""
    text = f"{100 * cell.error:+.1f}"
    return "0.0" if text in {"+0.0", "-0.0"} else text


def with_error(cell: MapEntry) -> str:
    """The error in per cent and its standard error."""
    return f"{percent(cell)} ± {100 * cell.uncertainty:.1f}"


def _verdict(cells: Sequence[MapEntry]) -> str:
    if all(agrees(cell) for cell in cells):
        return "agrees"
    return "differs" if any(differs(cell) for cell in cells) else "undecided"


def _from(cells: Sequence[MapEntry]) -> str:
    """The nearest size at which a point is off for certain."""
    off = [cell for cell in cells if differs(cell)]
    if off:
        return f"{off[0].size:g}"
    return "never" if all(agrees(cell) for cell in cells) else "undecided"


def markdown(errors: Map) -> str:
    """What docs/results/breaks.md takes from the map, block by block, and then every law by itself."""
    page = [f"{BEGIN.format(name)}\n{text}\n{END}" for name, text in blocks(errors).items()]
    overall = _table(overview(errors), right=1)
    return "\n\n".join([*page, overall, *(_section(errors, law) for law in errors.laws)])


def blocks(errors: Map) -> dict[str, str]:
    """Blocks of Markdown of the page, by name."""
    measured = [["relaxed", f"measured on `{RECORDING}`"], *measured_sizes().items()]
    return {"relaxations": _table(by_relaxation(errors), right=(2,)), "measured": _table(measured)}


def _section(errors: Map, name: str) -> str:
    law = LAWS[name]
    own = errors.of(name, OWN_ASSUMPTIONS)
    said = f"**`{name}`** ({law.form}; {law.kind}): {law.title}."
    if worst := errors.worst(name, OWN_ASSUMPTIONS):
        said += f" Under its own assumptions it {SENTENCES[_verdict(own)]}: {with_error(worst)} % at "
        said += f"{worst.point}; {law.fault}." if law.fault else f"{worst.point}."
    lines = of_law(errors, name)
    return said if len(lines) == 1 else f"{said}\n\n{_table(lines, right=(2,))}"


def _table(lines: Sequence[Line], *, right: int | Collection[int] | None = None) -> str:
    head, *rows = lines
    return markdown_table(head, rows, right=right)


def table(lines: Sequence[Line], *, title: str, numbers: Collection[int] = ()) -> Table:
    """A table for the terminal."""
    return wrapped_table(lines[0], lines[1:], title=title, right=numbers, whole=(0,))


def measured_sizes() -> dict[str, str]:
    """Sizes of the relaxations of costs that a profile was measured to have, by name.

    Raises:
        ProfileError: No such profile, or one without a draft or its tree.
    """
    profile = load_profile(find_profile(RECORDING))
    target, draft, tree = (
        LatencySurface(profile.operation(operation))
        for operation in ("target.forward", "draft.forward", "draft.tree")
    )
    slowdowns = [entry.slowdown - 1.0 for entry in profile.overlap]
    return {
        "jitter": f"{_variation(target):.2f} (target), {_variation(draft):.2f} (draft)",
        "verify-k": f"{_growth(target, new_tokens=9):.3f} (9 tokens)",
        "verify-batch": f"{_growth(target, batch=8, new_tokens=5):.3f} (8 rows of 5 tokens)",
        "branches": f"{_growth(tree, branches=15):.2f} (15 branches of one row)",
        "contention": f"{min(slowdowns):.2f} to {max(slowdowns):.2f}" if slowdowns else "not measured",
    }


def _growth(surface: LatencySurface, **wide: int) -> float:
    """Relative growth of a cost per further unit of work."""
    one = {"batch": 1, "new_tokens": 1, "branches": 1, "context": 128}
    units = int(np.prod(list(wide.values())))
    return (surface.seconds(**(one | wide)) / surface.seconds(**one) - 1.0) / (units - 1)


def _variation(surface: LatencySurface) -> float:
    """Coefficient of variation of a forward's noise."""
    return float(surface.noise((np.arange(10_000) + 0.5) / 10_000).std())


def plot(errors: Map, folder: Path) -> list[Path]:
    """Draw both pictures; returns the files.

    Raises:
        OSError: The file system refuses.
    """
    pictures = {"breaks_map.png": heat_map, "breaks_sizes.png": lines}
    return [save(Picture(partial(draw, errors=errors)), folder / name) for name, draw in pictures.items()]


def heat_map(figure: Any, errors: Map) -> None:
    """Law by relaxation: colour and number are the largest error in per cent."""
    from matplotlib.colors import PowerNorm

    columns = [OWN_ASSUMPTIONS, *errors.relaxations]
    cells = [[errors.worst(law, name) for name in columns] for law in errors.laws]
    sizes = [[np.nan if c is None else min(FULL, 100 * abs(c.error)) for c in row] for row in cells]
    figure.set_size_inches(3.4 + 0.95 * len(columns), 1.9 + 0.36 * len(errors.laws))
    axes = figure.subplots()
    norm = PowerNorm(0.5, vmin=0.0, vmax=FULL)
    image = axes.imshow(np.ma.masked_invalid(sizes), cmap="YlOrRd", norm=norm, aspect="auto")
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            if cell is not None:
                dark = 100 * abs(cell.error) > 0.45 * FULL
                axes.text(
                    x, y, percent(cell), ha="center", va="center", fontsize=8, color="w" if dark else "k"
                )
    titles = [RELAXATIONS[name].title for name in errors.relaxations]
    axes.set_xticks(range(len(columns)), ["own\nassumptions", *titles], fontsize=8)
    axes.set_yticks(range(len(errors.laws)), errors.laws, fontsize=8)
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(len(columns) - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(len(errors.laws) - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    if len(columns) > 1:
        axes.axvline(0.5, color="black", linewidth=1)
    figure.colorbar(image, ax=axes, label="|error|, %", fraction=0.025, pad=0.01)
    figure.suptitle("Largest error of each law, in %, by what is relaxed", fontsize=11)


def lines(figure: Any, errors: Map) -> None:
    """A panel per law: error over the size of each relaxation, at the point of its largest error."""
    from matplotlib.lines import Line2D

    rows = -(-len(errors.laws) // PANELS)
    across = min(PANELS, len(errors.laws))
    figure.set_size_inches(max(WIDE, 3.0 * across + 0.4), 2.15 * rows + 1.9)
    panels = figure.subplots(rows, across, squeeze=False, sharey=True).ravel()
    for panel, law in zip(panels, errors.laws, strict=False):
        _panel(panel, errors, law)
    for panel in panels[len(errors.laws) :]:
        panel.set_axis_off()
    handles = []
    for name in errors.relaxations:
        first, *further = RELAXATIONS[name].sizes
        span = f"{first:g} to {further[-1]:g}" if further else f"{first:g}"
        handles.append(Line2D([], [], label=f"{name}: {RELAXATIONS[name].size}, {span}", **_style(name)))
    columns = 3 if across > 3 else 2
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    figure.supylabel("error of the law, %", fontsize=9)
    figure.suptitle("Error over the size of each relaxation, from near to far", fontsize=11)


def _panel(axes: Any, errors: Map, law: str) -> None:
    for name in errors.relaxations:
        followed = _followed(errors, law, name)
        if followed:
            sizes = RELAXATIONS[name].sizes  # from the nearest, 0, to the farthest, 1
            steps = [sizes.index(cell.size) / max(1, len(sizes) - 1) for cell in followed]
            axes.plot(steps, [100 * cell.error for cell in followed], **_style(name))
    axes.axhspan(-100 * MARGIN, 100 * MARGIN, color="#dddddd", zorder=0)
    axes.axhline(0.0, color="black", linewidth=0.6)
    axes.set_yscale("symlog", linthresh=10.0)
    axes.set_yticks(TICKS, [f"{tick:+d}" if tick else "0" for tick in TICKS], fontsize=7)
    axes.set_yticks([], minor=True)
    axes.set(ylim=(-80, 1200), xlim=(-0.08, 1.08))
    axes.set_xticks([0.0, 1.0], ["near", "far"], fontsize=7)
    axes.grid(alpha=0.25)
    axes.set_title(law, fontsize=8.5)


def _followed(errors: Map, law: str, name: str) -> list[MapEntry]:
    """A relaxation's cells at the point of its largest error, by size; at a recording, of that lookahead."""
    cells, worst = errors.of(law, name), errors.worst(law, name)
    if worst is None:
        return []
    if name == "trace":  # the label tells what the recording says, which differs by temperature
        by_size = [[c for c in cells if c.size == size] for size in dict.fromkeys(c.size for c in cells)]
        at = next(same.index(worst) for same in by_size if worst in same)
        return [same[at] for same in by_size if at < len(same)]
    return [c for c in cells if c.point == worst.point]


def _style(name: str) -> dict[str, Any]:
    index = list(RELAXATIONS).index(name)
    return {"color": COLOURS[index], "marker": MARKERS[index], "markersize": 3.5, "linewidth": 1.2}
