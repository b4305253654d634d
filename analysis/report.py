"""What `validate` shows: a table, JSON, CSV, a picture, and both timelines."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.validation import Row, Validation
from hardware_profiles.atomic import atomic_write
from policies.commandline import wide_console
from policies.timeline import chrome_trace

METHOD = (
    "speedup = tokens/s over those of plain decoding run among the settings, prompt by prompt (decode time, "
    "prefill left out; per prompt the median of the repetitions, then ratio of sums). "
    "error = predicted / measured speedup - 1; spread = half the range of the repetitions"
)


def errors(rows: Sequence[Row], which: str) -> np.ndarray:
    """Absolute relative errors of all settings but AR.

    Args:
        rows: Of a validation.
        which: Property of `Row`: `error`, `calibration_error`, `law_error` or `nearest_error`.
    """
    values = [getattr(row, which) for row in rows if row.settings.policy != "ar"]
    return np.array([abs(v) for v in values if v is not None], dtype=float)


def summary(validation: Validation) -> dict[str, Any]:
    """Median and maximum error of every opinion, and the exactness of replay."""
    rows = validation.rows
    return {
        "settings": sum(row.settings.policy != "ar" for row in rows),
        "requests": len(validation.trace.requests),
        "repeats": validation.repeats,
        **{
            name: {"median": float(np.median(e)), "max": float(e.max()), "settings": len(e)}
            for name, e in (
                ("simulated", errors(rows, "error")),
                ("simulated_from_calibration_prompts", errors(rows, "calibration_error")),
                ("law", errors(rows, "law_error")),
                ("nearest_calibrated_setting", errors(rows, "nearest_error")),
            )
            if len(e)
        },
        "median_spread": float(np.median([row.spread for row in rows if row.settings.policy != "ar"] or [0])),
        "rounds_compared": sum(row.agreement.rounds for row in rows),
        "round_differences": sum(len(row.agreement.differences) for row in rows),
        "replay_exact": all(row.agreement.exact for row in rows),
        "identical_to_plain_decoding": all(row.identical for row in rows),
    }


def as_json(validation: Validation) -> str:
    """The documented JSON object (docs/json.md)."""
    return json.dumps(
        {
            "profile": validation.profile.name,
            "target": validation.trace.meta.target_model,
            "draft": validation.trace.meta.draft_model,
            "prompts": validation.trace.meta.prompt_set,
            "summary": summary(validation),
            "rows": [row.as_dict() for row in validation.rows],
        },
        indent=2,
    )


def print_validation(validation: Validation) -> None:
    """The table for people."""
    from rich.table import Table

    table = Table(header_style="bold")
    table.add_column("speedup over AR", no_wrap=True)
    for title in ("law", "simulated", "measured", "spread"):
        table.add_column(title, justify="right")
    for title in ("simulated", "law", "nearest"):
        table.add_column(f"error:\n{title}", justify="right")
    table.add_column("overlap\nms/token", justify="right")
    for row in validation.rows:
        table.add_row(
            row.settings.label,
            _factor(row.prediction.law_speedup_vs_ar),
            _factor(row.prediction.simulated_speedup_vs_ar),
            _factor(row.measured_speedup_vs_ar),
            f"±{row.spread * 100:.1f} %",
            _percent(row.error),
            _percent(row.law_error),
            _percent(row.nearest_error),
            f"{row.measured.overlap_s * 1e3 / row.measured.tokens:.2f}",
        )
    console = wide_console()
    console.print(table)
    found = summary(validation)
    for name in ("simulated", "simulated_from_calibration_prompts", "law", "nearest_calibrated_setting"):
        if name in found:
            text = f"median {found[name]['median']:.1%}, max {found[name]['max']:.1%}"
            console.print(f"error, {name.replace('_', ' ')}: {text}", highlight=False)
    console.print(
        f"replay: {found['rounds_compared']} rounds agree, {found['round_differences']} requests differ"
        f"{'' if found['replay_exact'] else ' (NOT explained by rounding)'}; text identical to plain "
        f"decoding: {'yes' if found['identical_to_plain_decoding'] else 'NO'}",
        highlight=False,
    )
    for row in validation.rows:
        for difference in row.agreement.differences:
            console.print(
                f"  {row.settings.label}, request {difference.request}: logit gap {difference.gap:.2e} "
                f"({'below' if difference.excused else 'ABOVE'} the bound)\n    simulated "
                f"{difference.simulated}\n    live      {difference.live}",
                highlight=False,
            )
    console.print(f"[dim]{METHOD}[/dim]")


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:+.1f} %"


def write_outputs(validation: Validation, folder: Path) -> list[Path]:
    """Write `validation.json`, `.csv`, `.png` and the timelines of each setting; returns the files.

    Without matplotlib there is no picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "validation.json", folder / "validation.csv"]
    with atomic_write(written[0]) as file:
        file.write(as_json(validation) + "\n")
    with atomic_write(written[1]) as file:
        file.write(_csv(validation))
    for row in validation.rows:
        slug = row.settings.label.replace(" ", "_").replace("=", "").replace(",", "-")
        for world, spans in (
            ("simulated", row.prediction.spans),
            ("live", validation.live_spans[row.settings]),
        ):
            path = folder / f"timeline_{slug}_{world}.json"
            with atomic_write(path) as file:
                file.write(chrome_trace(spans, title=f"{world} {row.settings.label}"))
            written.append(path)
    with contextlib.suppress(ImportError):
        written.append(plot(validation, folder / "validation.png"))
    return written


def _csv(validation: Validation) -> str:
    rows = [row.as_dict() for row in validation.rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def plot(validation: Validation, path: Path) -> Path:
    """Law, simulated and measured speedup per setting, and the simulation's error beside the spread.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, 2, figsize=(12, 0.34 * len(validation.rows) + 2.2), layout="constrained"
    )
    draw_speedups(axes[0], validation.rows)
    draw_errors(axes[1], validation.rows)
    meta = validation.trace.meta
    figure.suptitle(
        f"{meta.target_model} + {meta.draft_model}, {len(validation.trace.requests)} prompts", fontsize=11
    )
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, dpi=130, format="png")
    pyplot.close(figure)
    return path


def draw_speedups(axes: Any, rows: Sequence[Row]) -> None:
    """Three markers per setting: law, simulated, measured with its range over the repetitions."""
    y = np.arange(len(rows))
    measured = np.array([row.measured_speedup_vs_ar for row in rows])
    low = np.array([min(row.speedup_by_repeat) for row in rows])
    high = np.array([max(row.speedup_by_repeat) for row in rows])
    bars = np.maximum(0.0, [measured - low, high - measured])
    axes.errorbar(measured, y, xerr=bars, fmt="o", color="#55a868", label="measured", markersize=7, capsize=3)
    simulated = [row.prediction.simulated_speedup_vs_ar for row in rows]
    axes.plot(simulated, y, "D", color="#dd8452", label="simulated", markersize=5)
    laws = [(row.prediction.law_speedup_vs_ar, i) for i, row in enumerate(rows)]
    told = [(value, i) for value, i in laws if value is not None]
    axes.plot([v for v, _ in told], [i for _, i in told], "|", color="#4c72b0", label="law", markersize=12)
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks(y, [row.settings.label for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)  # first setting on top, both panels alike
    axes.set_xlabel("speedup over plain decoding")
    axes.legend(fontsize=8, loc="best")
    axes.grid(axis="x", alpha=0.3)


def draw_errors(axes: Any, rows: Sequence[Row]) -> None:
    """Error of the simulation per setting, with the spread of the live runs behind it."""
    y = np.arange(len(rows))
    axes.barh(y, [2 * row.spread * 100 for row in rows], left=[-row.spread * 100 for row in rows],
              color="#dddddd", label="spread of live runs")  # fmt: skip
    axes.plot([row.error * 100 for row in rows], y, "D", color="#dd8452", label="simulated", markersize=5)
    nearest = [(row.nearest_error * 100, i) for i, row in enumerate(rows) if row.nearest_error is not None]
    axes.plot([v for v, _ in nearest], [i for _, i in nearest], "x", color="#8172b3",
              label="nearest calibrated setting", markersize=5)  # fmt: skip
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_yticks(y, [])
    axes.set_ylim(len(rows) - 0.5, -0.5)  # first setting on top, both panels alike
    axes.set_xlabel("error of the predicted speedup, %")
    axes.legend(fontsize=8, loc="best")
    axes.grid(axis="x", alpha=0.3)
