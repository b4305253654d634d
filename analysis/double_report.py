"""Tables and the picture of `analysis.double`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hardware_profiles.atomic import atomic_write
from policies.commandline import wide_console

if TYPE_CHECKING:
    from rich.table import Table

    from analysis.double_cells import Outcome
    from analysis.double_lookups import RetrievalTime


@dataclass(frozen=True)
class Found:
    """What the command found: every setting, and the time of lookups by datastore."""

    outcomes: tuple[Outcome, ...]
    times: tuple[RetrievalTime, ...]


COLUMNS = ("setting", "law", "eq. 7", "simulated", "live", "error", "> C", "same")
COUNTS = ("setting", "tokens", "length", "M", "AMT q", "AMT p", "lookup")
LEGEND = (
    "Law: tokens counted; eq. 7 as printed; error: simulated over live, less 1; same: live texts are plain "
    "decoding's.  Tokens per round; length: a round over a plain target step; M: accepted tokens between "
    "rejections; AMT q, p: matched tokens per forward of draft and target; lookup: median of a lookup step."
)


def print_found(found: Found) -> None:
    """Speedups over plain decoding beside the ceiling, then retrieval times."""
    console = wide_console()
    console.print(speed_table(found))
    console.print(count_table(found))
    console.print(LEGEND)
    console.print(verdict(found))
    console.print(time_table(found))


def verdict(found: Found) -> str:
    """Whether the fastest DOUBLE passes the ceiling, and what it would take."""
    best = max(
        (o for o in found.outcomes if o.account is not None),
        key=lambda o: o.simulated if o.measured is None else o.measured,
    )
    needed = best.ratio * best.stretch
    return (
        f"C = {best.ratio:.2f} (target step over draft step) is the ceiling of a pipeline without "
        f"retrieval.  The fastest DOUBLE ({best.entry.name}) "
        f"{'passes' if best.passes_ceiling else 'does not pass'} it: its round takes {best.stretch:.2f} "
        f"plain steps, so that it would need more than {needed:.2f} tokens per round, and emits "
        f"{best.tokens_per_round:.2f}."
    )


def speed_table(found: Found) -> Table:
    """Speedups, one row per setting."""
    rows = [
        (
            o.entry.name,
            _number(o.law),
            _number(o.law_printed),
            _number(o.simulated),
            _number(o.measured),
            "-" if o.error is None else f"{o.error:+.1%}",
            "yes" if o.passes_ceiling else "no",
            "-" if o.identical is None else "yes" if o.identical else "NO",
        )
        for o in found.outcomes
    ]
    return _table("speedup over plain decoding", COLUMNS, rows)


def count_table(found: Found) -> Table:
    """What was counted in the simulated runs, one row per setting."""
    rows = [
        (
            o.entry.name,
            _number(o.tokens_per_round),
            _number(o.stretch),
            _number(o.run_length),
            _number(None if o.account is None else o.account.draft_matched),
            _number(None if o.account is None else o.account.target_matched),
            "-" if o.account is None else f"{1e6 * o.account.retrieve_s:.0f} us",
        )
        for o in found.outcomes
    ]
    return _table("rounds and retrieval", COUNTS, rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table

    table = Table(header_style="bold", title=title)
    for name in columns:
        table.add_column(name, justify="left" if name == "setting" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def time_table(found: Found) -> Table:
    """One row per datastore."""
    from rich.table import Table

    table = Table(header_style="bold", title="seconds of a lookup, on this machine now")
    for title in ("prior", "tokens", "median", "longest", "retrieved something"):
        table.add_column(title, justify="left" if title == "prior" else "right")
    for each in found.times:
        micro = (f"{1e6 * seconds:.0f} us" for seconds in (each.median_s, each.most_s))
        table.add_row(each.datastore or "none", f"{each.tokens:,}", *micro, f"{each.found:.0%}")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def plot(found: Found, path: Path) -> None:
    """Speedups as bars beside the ceiling C, and a lookup's time by the size of the prior."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), width_ratios=(2, 1))
    names = [o.entry.name for o in found.outcomes]
    places = range(len(names))
    left.barh([p - 0.2 for p in places], [o.simulated for o in found.outcomes], 0.38, label="simulated")
    timed = [(p, o.measured) for p, o in enumerate(found.outcomes) if o.measured is not None]
    if timed:
        left.barh([p + 0.2 for p, _ in timed], [m for _, m in timed], 0.38, label="measured")
    left.axvline(found.outcomes[0].ratio, color="black", linestyle="--", label="ceiling C")
    left.set_yticks(list(places), names)
    left.invert_yaxis()
    left.set_xlabel("speedup over plain decoding")
    left.legend(fontsize=8)
    right.plot([max(1, t.tokens) for t in found.times], [1e6 * t.median_s for t in found.times], "o-")
    right.set_xscale("log")
    right.set_xlabel("tokens of the prior (1: none)")
    right.set_ylabel("median lookup, microseconds")
    right.set_ylim(bottom=0)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, format=path.suffix.lstrip(".") or "png", dpi=150)
    plt.close(figure)
