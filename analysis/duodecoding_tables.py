"""How the DuoDecoding experiment is shown: tables and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.duo import DuoConfig

if TYPE_CHECKING:
    from analysis.duodecoding import Report
    from analysis.duodecoding_budget import Budget


def tables(report: Report) -> list[Any]:
    """`rich` tables of everything found."""
    found = [
        _budgets("budget at the paper's cost ratio", report.uneven),
        _budgets(f"budget on {report.profile}, recorded texts, one sequence", report.budgets),
    ]
    if report.lines:
        found += [_settings(report), _doubts(report), _rounds(report)]
    return found


def _table(title: str, columns: Sequence[str]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    return table


def _budgets(title: str, budgets: Sequence[Budget]) -> Any:
    names = ("world", "c", "best by law", "best simulated", "speedup there", "printed budget loses")
    table = _table(title, names)
    for budget in budgets:
        table.add_row(
            budget.world,
            f"{budget.ratio:.2f}",
            "-" if budget.law is None else str(budget.law),
            str(budget.simulated),
            f"{budget.speedups[budget.simulated]:.3f}x",
            f"{100 * budget.loss:.1f} %",
        )
    return table


def _settings(report: Report) -> Any:
    categories = list(report.lines[0].measured)
    table = _table(
        "speedup over plain decoding: law, then simulated / measured by category",
        ("setting", "law", *categories, "lossless"),
    )
    for line in report.lines:
        cells = [f"{line.simulated[c]:.2f} / {line.measured[c]:.2f}" for c in categories]
        table.add_row(
            line.settings.label,
            "-" if line.law is None else f"{line.law:.2f}",
            *cells,
            "yes" if line.lossless else "NO",
        )
    return table


def _doubts(report: Report) -> Any:
    table = _table(
        "what the threshold predicts (rounds that reached the position past the block)",
        (
            "prompts",
            "rounds",
            "by number of sequences",
            "one, one needed",
            "several, one needed",
            "one, several needed",
            "several, several needed",
            "went on",
        ),
    )
    for line in report.lines:
        if not isinstance(line.settings.config, DuoConfig) or line.settings.config.count:
            continue
        for category, doubt in line.doubt.items():
            cells = [
                f"{100 * doubt.share(several=s, needed=n):.1f} %"
                for n in (False, True)
                for s in (False, True)
            ]
            counts = ", ".join(f"{count}: {rounds}" for count, rounds in doubt.counts.items())
            went_on = sum(doubt.going_on.values()) / doubt.rounds
            table.add_row(category, str(doubt.rounds), counts, *cells, f"{100 * went_on:.1f} %")
    return table


def _rounds(report: Report) -> Any:
    names = ("setting", "ms per round", "target busy", "draft busy", "drafted", "first token", "over ar")
    table = _table("a mean round and the first token: simulated / measured, milliseconds", names)
    relative = {world: report.first_token(world) for world in ("simulated", "measured")}
    for line in report.lines:
        simulated, measured = line.simulated_round, line.measured_round
        label = line.settings.label
        drafted = next(iter(line.doubt.values())).drafted if line.doubt else line.settings.lookahead
        table.add_row(
            label,
            _pair(simulated.seconds, measured.seconds),
            _pair(simulated.target_s, measured.target_s),
            _pair(simulated.draft_s, measured.draft_s),
            "-" if drafted is None else f"{drafted:.1f}",
            _pair(simulated.first_token_s, measured.first_token_s),
            f"{relative['simulated'][label]:.2f} / {relative['measured'][label]:.2f}",
        )
    return table


def _pair(simulated: float, measured: float) -> str:
    return f"{1e3 * simulated:.2f} / {1e3 * measured:.2f}"


def plot(report: Report, path: Path) -> None:
    """Speedup over the budget, in the uneven worlds and on the profile; and by number of sequences."""
    from matplotlib.figure import Figure

    width = 3 if report.lines else 2
    figure = Figure(figsize=(4.6 * width, 3.6), layout="constrained")
    axes = figure.subplots(1, width)
    for ax, budgets, title in (
        (axes[0], report.uneven, "cost ratio of the paper"),
        (axes[1], report.budgets, report.profile),
    ):
        for i, budget in enumerate(budgets):
            ks = sorted(budget.speedups)
            ax.plot(ks, [budget.speedups[k] for k in ks], f"C{i}-", label=budget.world)
            if budget.law is not None:
                ax.plot(ks, [budget.law_speedups[k] for k in ks], f"C{i}:", linewidth=1)
            ax.plot(budget.simulated, budget.speedups[budget.simulated], f"C{i}D", markersize=5)
        ax.axvline(budgets[0].ratio, color="#999999", linewidth=0.8, linestyle="--")
        ax.set_title(f"{title}; dotted: law, dashed: c", fontsize=9)
        ax.set_xlabel("drafting budget K")
        ax.set_ylabel("speedup over AR")
        ax.legend(fontsize=7)
        ax.grid(alpha=0.3)
    if report.lines:
        _plot_sequences(axes[2], report)
    figure.savefig(path, dpi=150)


def _plot_sequences(axes: Any, report: Report) -> None:
    dynamic = next(s for s in report.lines if s.settings.knobs.get("sequences") == "dynamic")
    budget = dynamic.settings.lookahead
    mine = [s for s in report.lines if "sequences" in s.settings.knobs and s.settings.lookahead == budget]
    names = [str(line.settings.knobs["sequences"]) for line in mine]
    axes.plot(names, [line.simulated["all"] for line in mine], "C0D", label="simulated")
    axes.plot(names, [line.measured["all"] for line in mine], "C1o", fillstyle="none", label="measured")
    axes.set_title(f"sequences, budget {budget}", fontsize=9)
    axes.set_xlabel("sequences")
    axes.set_ylabel("speedup over AR")
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
