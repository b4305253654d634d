"""Tables, JSON and a picture of `analysis.retrieval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardware_profiles.jsonfile import to_json
from policies.commandline import wide_console

if TYPE_CHECKING:
    from analysis.retrieval_runs import Comparison, Entry

TITLES = {
    "methods": "Retrieval, drafted tree, both (RASD tables 1 and 2 in kind)",
    "ablation": "Pruning and fusion (table 3 in kind)",
    "length": "Candidate length l (figure 3 in kind)",
    "size": "Datastore size (table 4 in kind)",
}


def as_json(found: Comparison, asked: dict[str, Any]) -> str:
    """One JSON object: what was asked for, and a row per entry with all categories."""
    return to_json({"asked": asked, "entries": [_row(found, e) for e in found.entries]}, indent=2)


def _row(found: Comparison, entry: Entry) -> dict[str, Any]:
    settings, outcome = entry.settings, found.outcomes[entry.settings]
    places: list[str | None] = [None, *found.categories]
    return {
        "part": entry.part,
        "name": entry.name,
        "setting": settings.label,
        "length": entry.length,
        "greedy_identical": outcome.identical,
        "searches_that_found": outcome.found,
        "search_s": outcome.retrieve_s,
        "datastore_tokens": outcome.stored,
        "by_category": {
            place or "all": {
                "tau": outcome.tau(place),
                "candidates_per_forward": outcome.candidates(place),
                "simulated_speedup_vs_ar": found.simulated_speedup(settings, place),
                "measured_speedup_vs_ar": found.measured_speedup(settings, place),
            }
            for place in places
        },
    }


def print_comparison(found: Comparison) -> None:
    """A table per part: tau and SR of all prompts and of each category."""
    from rich.table import Table

    console = wide_console()
    for part in dict.fromkeys(entry.part for entry in found.entries):
        table = Table(header_style="bold", title=TITLES[part])
        sized = ["tokens"] if part == "size" else ["l"] if part == "length" else []
        for title in ("setting", *sized, "tau", "nodes", "found", "search"):
            table.add_column(title, justify="left" if title == "setting" else "right")
        for title in ("SR sim.", *(["live", "error"] if found.live else []), *found.categories):
            table.add_column(title, justify="right")
        for entry in found.entries:
            if entry.part == part:
                table.add_row(*_cells(found, entry))
        console.print(table)
    console.print(
        "tau: accepted tokens per target forward without the target's own; nodes: verified per forward; "
        "SR: tokens/s over plain decoding, ratio of sums; by category: tau / SR "
        + ("measured" if found.live else "simulated")
    )
    if any(outcome.identical is False for outcome in found.outcomes.values()):
        console.print("[bold red]a greedy text differs from plain decoding[/]")


def _cells(found: Comparison, entry: Entry) -> list[str]:
    outcome, settings = found.outcomes[entry.settings], entry.settings
    measured = found.measured_speedup(settings)
    simulated = found.simulated_speedup(settings)
    row = [entry.name, *_varied(found, entry), f"{outcome.tau():.2f}", f"{outcome.candidates():.1f}"]
    row.append("-" if outcome.found is None else f"{outcome.found:.0%}")
    row.append("-" if outcome.retrieve_s is None else f"{1e6 * outcome.retrieve_s:.0f} us")
    row.append(f"{simulated:.2f}")
    row += [] if measured is None else [f"{measured:.2f}", f"{simulated / measured - 1.0:+.1%}"]
    for category in found.categories:
        live = found.measured_speedup(settings, category)
        speed = found.simulated_speedup(settings, category) if live is None else live
        row.append(f"{outcome.tau(category):.2f} / {speed:.2f}")
    return row


def _varied(found: Comparison, entry: Entry) -> list[str]:
    """What a table of lengths or sizes varies."""
    if entry.part == "length":
        return [str(entry.length)]
    if entry.part == "size":
        stored = found.outcomes[entry.settings].stored
        return ["-" if stored is None else f"{stored / 1e6:.1f} M"]
    return []


def plot(found: Comparison, path: Path) -> None:
    """Tau and SR of the methods by category, or against the candidate length where that was swept."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes = figure.subplots(1, 2)
    swept = any(entry.part == "length" for entry in found.entries)
    for each, title in zip(axes, ("tau", "speedup over plain decoding"), strict=True):
        draw = _draw_lengths if swept else _draw_methods
        draw(each, found, speed=title != "tau")
        each.set_ylabel(title)
        each.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _value(found: Comparison, entry: Entry, speed: bool, category: str | None = None) -> float:
    if not speed:
        return found.outcomes[entry.settings].tau(category)
    live = found.measured_speedup(entry.settings, category)
    return found.simulated_speedup(entry.settings, category) if live is None else live


def _draw_lengths(axes: Any, found: Comparison, *, speed: bool) -> None:
    swept = [entry for entry in found.entries if entry.part == "length"]
    for name in dict.fromkeys(entry.name for entry in swept):
        mine = [entry for entry in swept if entry.name == name]
        style = "-o" if name.startswith("rasd") else "--s"
        axes.plot([e.length for e in mine], [_value(found, e, speed) for e in mine], style, label=name)
    tree = next((entry for entry in found.entries if entry.settings.policy == "tree"), None)
    if tree is not None:
        axes.axhline(_value(found, tree, speed), color="black", linewidth=0.8, label="drafted tree")
    axes.set_xlabel("candidate length l")


def _draw_methods(axes: Any, found: Comparison, *, speed: bool) -> None:
    first = found.entries[0].part
    entries = [entry for entry in found.entries if entry.part == first]
    width = 0.8 / len(entries)
    for i, entry in enumerate(entries):
        places = [j + i * width for j in range(len(found.categories))]
        axes.bar(places, [_value(found, entry, speed, c) for c in found.categories], width, label=entry.name)
    middle = 0.4 - width / 2
    axes.set_xticks([j + middle for j in range(len(found.categories))], found.categories)
