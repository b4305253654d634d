"""Tables, JSON and a picture of `analysis.family_cli`."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from analysis.family_orders import Member, Order, error_summary, orders
from hardware_profiles.jsonfile import to_json
from policies.commandline import wide_console


def rows_of(members: list[Member]) -> list[dict[str, Any]]:
    """One row per setting, plain values."""
    return [
        {
            "policy": m.settings.policy,
            "setting": m.settings.label,
            "temperature": m.settings.temperature,
            "law": m.law_speedup_vs_ar,
            "content_ignored": m.ignored_speedup_vs_ar,
            "simulated": m.simulated_speedup(),
            "measured": m.measured_speedup(),
            "spread": m.spread,
            "error": m.error,
            "law_error": m.law_error,
            "content_ignored_error": m.ignored_error,
            "greedy_identical": m.identical,
        }
        for m in members
    ]


def as_csv(groups: list[list[Member]]) -> str:
    """The table."""
    rows = [row for members in groups for row in rows_of(members)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(groups: list[list[Member]], asked: dict[str, Any]) -> str:
    """One JSON object: settings, errors, and orders by category."""
    found = [
        {
            "temperature": members[0].settings.temperature,
            "errors": dict(error_summary(members)),
            "settings": rows_of(members),
            "orders": [_order_dict(order) for order in orders(members)],
        }
        for members in groups
    ]
    every = [m for members in groups for m in members]
    return to_json({"asked": asked, "errors": error_summary(every), "groups": found}, indent=2) + "\n"


def _order_dict(order: Order) -> dict[str, Any]:
    return {
        "category": order.category,
        "pairs": order.pairs,
        "right": order.right,
        "predicted": order.predicted,
        "best": order.best,
        "regret": order.regret,
    }


def print_family(groups: list[list[Member]], hw: str) -> None:
    """Tables for people."""
    from rich.table import Table

    console = wide_console()
    for members in groups:
        table = Table(header_style="bold", title=f"{hw}, temperature {members[0].settings.temperature:g}")
        for title in (
            "setting",
            "law",
            "coins",
            "simulated",
            "measured",
            "spread",
            "error",
            "coins'",
            "text",
        ):
            table.add_column(title, justify="left" if title == "setting" else "right")
        for m in sorted(members, key=lambda m: -m.measured_speedup()):
            table.add_row(
                m.settings.label,
                "-" if m.law_speedup_vs_ar is None else f"{m.law_speedup_vs_ar:.2f}",
                f"{m.ignored_speedup_vs_ar:.2f}",
                f"{m.simulated_speedup():.2f}",
                f"{m.measured_speedup():.2f}",
                "-" if m.spread is None else f"±{m.spread:.1%}",
                f"{m.error:+.1%}",
                f"{m.ignored_error:+.1%}",
                {None: "-", True: "identical", False: "DIFFERS"}[m.identical],
            )
        console.print(table)
        for order in orders(members):
            console.print(
                f"{order.category}: {order.right} of {order.pairs} separated pairs in the predicted order; "
                f"predicted best {order.predicted}, measured best {order.best}, regret {order.regret:.1%}"
            )
    found = error_summary([m for members in groups for m in members])
    console.print(
        f"{found['settings']:.0f} settings: error median {found['median_error']:.1%}, largest "
        f"{found['largest_error']:.1%}; with content ignored (coins) median "
        f"{found['median_error_content_ignored']:.1%}, largest "
        f"{found['largest_error_content_ignored']:.1%}"
    )
    if found["median_spread"] is not None:
        console.print(
            f"spread of the live runs median {found['median_spread']:.1%}, largest "
            f"{found['largest_spread']:.1%}"
        )


def plot(groups: list[list[Member]], path: Path) -> None:
    """Simulated against measured speedup, a point per setting, with the spread of the live runs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(groups), figsize=(6.5 * len(groups), 6.0), squeeze=False)
    for axis, members in zip(axes[0], groups, strict=True):
        most = 1.08 * max(max(m.measured_speedup(), m.simulated_speedup()) for m in members)
        axis.plot([0, most], [0, most], color="grey", linewidth=0.8)
        axis.fill_between([0, most], [0, 0.9 * most], [0, 1.1 * most], color="grey", alpha=0.12)
        names = list(dict.fromkeys(m.settings.policy for m in members))
        for i, name in enumerate(names):
            mine = [m for m in members if m.settings.policy == name]
            axis.errorbar(
                [m.measured_speedup() for m in mine],
                [m.simulated_speedup() for m in mine],
                xerr=[(m.spread or 0.0) * m.measured_speedup() for m in mine],
                fmt="osD^v<>P*Xph"[i % 12],
                color=f"C{i % 10}",
                label=name,
                capsize=2,
            )
        axis.set(
            xlim=(0, most),
            ylim=(0, most),
            xlabel="measured speedup over plain decoding",
            ylabel="simulated",
            title=f"temperature {members[0].settings.temperature:g}; band: 10 %",
        )
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
