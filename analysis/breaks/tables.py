"""The map as text: one table of all laws, one of all relaxations, and one per law."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from analysis.breaks.catalogue import LAWS
from analysis.breaks.comparison import LEVEL
from analysis.breaks.measured import measured_sizes
from analysis.breaks.relaxations import RELAXATIONS
from analysis.breaks.store import Map
from analysis.breaks.sweep import MARGIN, OWN_ASSUMPTIONS, Cell, agrees, differs
from analysis.breaks.worlds import RECORDING

if TYPE_CHECKING:
    from rich.table import Table

BEGIN, END = "<!-- breaks: {} -->", "<!-- /breaks -->"
"""Around what docs/results/breaks.md takes from the command."""

Line = Sequence[str]


def overview(found: Map) -> list[Line]:
    """Law by relaxation: the largest error in per cent, signed; the first line is the head."""
    lines: list[Line] = [["law", "own assumptions", *found.relaxations]]
    for name in found.laws:
        own = found.worst(name, OWN_ASSUMPTIONS)
        cells = (found.worst(name, relaxation) for relaxation in found.relaxations)
        verdict = "" if own is None else f"{percent(own)} {_verdict(found.of(name, OWN_ASSUMPTIONS))}"
        lines.append([name, verdict, *("" if cell is None else percent(cell) for cell in cells)])
    return lines


def by_relaxation(found: Map) -> list[Line]:
    """Relaxation by relaxation: the largest error of a law that holds where nothing is relaxed."""
    lines: list[Line] = [["relaxed", "size", "largest error, %", "of", "at", "because"]]
    for name in found.relaxations:
        sound = [cell for law in found.laws if not LAWS[law].fault for cell in found.of(law, name)]
        if not sound:
            continue
        relaxation = RELAXATIONS[name]
        # Where the printed and the corrected form err alike, the corrected one is named.
        cell = max(sound, key=lambda c: (abs(c.error), LAWS[c.law].form != "as printed"))
        where = f"{size_of(cell)}, {cell.point}"
        line = [name, relaxation.size, with_error(cell), cell.law, where, relaxation.because]
        lines.append(line)
    return lines


def of_law(found: Map, law: str) -> list[Line]:
    """Relaxation by relaxation of one law: from what size on it is off, how far, and because of what."""
    lines: list[Line] = [["relaxed", f"off by over {MARGIN:.0%} from", "largest error, %", "at", "because"]]
    for name in found.relaxations:
        cells = found.of(law, name)
        if not cells:
            continue
        worst = max(cells, key=lambda c: abs(c.error))
        line = [name, _from(cells), with_error(worst), f"{size_of(worst)}, {worst.point}"]
        because = LAWS[law].relaxations[name]
        lines.append([*line, "-" if line[1] == "never" and not because.startswith("none") else because])
    return lines


def percent(cell: Cell) -> str:
    """The error in per cent, signed."""
    text = f"{100 * cell.error:+.1f}"
    return "0.0" if text in {"+0.0", "-0.0"} else text


def with_error(cell: Cell) -> str:
    """The error in per cent and its standard error."""
    return f"{percent(cell)} ± {100 * cell.uncertainty:.1f}"


def size_of(cell: Cell) -> str:
    """The size of a relaxation, without superfluous digits."""
    return f"{cell.size:g}"


def _verdict(cells: Sequence[Cell]) -> str:
    if all(agrees(cell) for cell in cells):
        return "agrees"
    return "differs" if any(differs(cell) for cell in cells) else "undecided"


def _from(cells: Sequence[Cell]) -> str:
    """The nearest size at which a point is off for certain."""
    off = [cell for cell in cells if differs(cell)]
    if off:
        return size_of(off[0])
    return "never" if all(agrees(cell) for cell in cells) else "undecided"


def markdown(found: Map) -> str:
    """What docs/results/breaks.md takes from the map, block by block, and then every law by itself."""
    page = [f"{BEGIN.format(name)}\n{text}\n{END}" for name, text in blocks(found).items()]
    overall = _markdown_table(overview(found), numbers=range(1, 99))
    return "\n\n".join([*page, overall, *(_section(found, law) for law in found.laws)])


def blocks(found: Map) -> dict[str, str]:
    """Blocks of Markdown of the page, by name."""
    return {
        "relaxations": _markdown_table(by_relaxation(found), numbers=(2,)),
        "measured": _measured(),
    }


def _measured() -> str:
    sizes = measured_sizes()
    lines = [["relaxed", f"measured on `{RECORDING}`"], *([name, size] for name, size in sizes.items())]
    return _markdown_table(lines, numbers=())


def _section(found: Map, name: str) -> str:
    law = LAWS[name]
    own = found.of(name, OWN_ASSUMPTIONS)
    said = f"**`{name}`** ({law.form}; {law.kind}): {law.title}."
    if own:
        worst = max(own, key=lambda c: abs(c.error))
        said += f" Under its own assumptions it {_sentence(own)}: {with_error(worst)} % at {worst.point}"
        said += f"; {law.fault}." if law.fault else "."
    lines = of_law(found, name)
    return said if len(lines) == 1 else f"{said}\n\n{_markdown_table(lines, numbers=(2,))}"


def _sentence(cells: Sequence[Cell]) -> str:
    return {"agrees": "agrees", "differs": "is off", "undecided": "is not told apart"}[_verdict(cells)]


def _markdown_table(lines: Sequence[Line], *, numbers: Iterable[int]) -> str:
    head, *rest = lines
    right = set(numbers)
    ruler = ["--:" if column in right else "---" for column in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ruler, *rest))


def rich_table(lines: Sequence[Line], *, title: str, numbers: Iterable[int]) -> Table:
    """A table for the terminal."""
    from rich.table import Table

    right = set(numbers)
    table = Table(title=title, title_justify="left")
    for column, name in enumerate(lines[0]):
        table.add_column(
            name,
            justify="right" if column in right else "left",
            overflow="fold",
            no_wrap=column == 0,
        )
    for line in lines[1:]:
        table.add_row(*line)
    return table


CAPTION = (
    "Errors of the law in per cent, law / simulated - 1, the largest over sizes and points; of a bound the "
    "part by which it is violated, of a choice the speed (or hits) lost. Own assumptions: "
    f"agrees if the error +- {LEVEL:g} standard errors lies within {MARGIN:.0%}."
)
