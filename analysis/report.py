"""What `validate` shows: a table, JSON, CSV, a picture, and both timelines."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.rows import Row
from analysis.validation import Validation
from hardware_profiles.atomic import atomic_write
from hardware_profiles.jsonfile import to_json
from policies.commandline import wide_console
from policies.timeline import chrome_trace

METHOD = (
    "speedup = tokens/s over those of plain decoding at the same batch and temperature, run among the "
    "settings (decode time, prefill left out; per prompt, or per batch run, the median of the repetitions, "
    "then ratio of sums). error = predicted / measured speedup - 1; spread = half the range of repetitions"
)
SAMPLED = (
    "at a temperature above 0 a live run takes another random path than the recording: speeds are compared, "
    "rounds and texts are not"
)
OPINIONS = {
    "simulated": "error",
    "simulated_without_contention": "error_without_contention",
    "simulated_from_calibration_prompts": "calibration_error",
    "law": "law_error",
    "nearest_calibrated_setting": "nearest_error",
}
"""Name in the summary to property of `Row`."""


def errors(rows: Sequence[Row], which: str) -> np.ndarray:
    """Absolute relative errors of all settings but AR.

    Args:
        rows: Of a validation.
        which: Property of `Row`, one of the values of `OPINIONS`.
    """
    values = [getattr(row, which) for row in rows if row.settings.policy != "ar"]
    return np.array([abs(v) for v in values if v is not None], dtype=float)


def error_summary(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Median and maximum absolute error of every opinion that has any."""
    found = {name: errors(rows, which) for name, which in OPINIONS.items()}
    return {
        name: {"median": float(np.median(e)), "max": float(e.max()), "settings": len(e)}
        for name, e in found.items()
        if len(e)
    }


def live_runs(validation: Validation) -> list[dict[str, Any]]:
    """Every live run that an interval was predicted for: a setting on a subset of the prompts."""
    return [
        {
            "setting": row.settings.label,
            "batch": row.batch,
            "temperature": row.settings.temperature,
            "subset": number,
            "predicted_low": subset.predicted.low,
            "predicted_middle": subset.predicted.middle,
            "predicted_high": subset.predicted.high,
            "simulated_speedup_vs_ar": subset.prediction.simulated_speedup_vs_ar,
            "measured_speedup_vs_ar": subset.measured_speedup_vs_ar,
            "covered": subset.covered,
        }
        for row in validation.rows
        if row.settings.policy != "ar"
        for number, subset in enumerate(row.subsets)
    ]


def coverage(validation: Validation) -> dict[str, Any]:
    """Share of live runs (per setting and subset of the prompts) whose speedup lies in the interval."""
    rows = [row for row in validation.rows if row.settings.policy != "ar"]
    subsets = [subset for row in rows for subset in row.subsets]
    covered = sum(subset.covered for subset in subsets)
    widths = [s.predicted.high / s.predicted.low - 1.0 for s in subsets]
    return {
        "level": validation.level,
        "runs": len(subsets),
        "covered": covered,
        "share": covered / len(subsets) if subsets else None,
        "median_width": float(np.median(widths)) if widths else None,
        "model_error": validation.sources.model_error,
    }


def summary(validation: Validation) -> dict[str, Any]:
    """Errors of every opinion, overall and by batch and temperature, coverage, exactness of replay."""
    rows = validation.rows
    others = [row for row in rows if row.settings.policy != "ar"]
    compared = [row for row in rows if row.agreement is not None]
    groups = dict.fromkeys((row.batch, row.settings.temperature) for row in others)
    spreads = [row.spread for row in others if row.spread is not None]
    return {
        "settings": len(others),
        "requests": len(validation.trace.requests),
        "repeats": validation.repeats,
        **error_summary(rows),
        "by_batch_and_temperature": [
            {
                "batch": batch,
                "temperature": temperature,
                **error_summary(
                    [r for r in others if (r.batch, r.settings.temperature) == (batch, temperature)]
                ),
            }
            for batch, temperature in groups
        ],
        "coverage": coverage(validation),
        "median_spread": float(np.median(spreads)) if spreads else None,
        "rounds_compared": sum(row.agreement.rounds for row in compared if row.agreement),
        "round_differences": sum(len(row.agreement.differences) for row in compared if row.agreement),
        "replay_exact": all(row.agreement.exact for row in compared if row.agreement) if compared else None,
        "identical_to_plain_decoding": all(row.identical for row in compared) if compared else None,
    }


def as_json(validation: Validation) -> str:
    """The documented JSON object (docs/reference/json.md)."""
    meta = validation.trace.meta
    return to_json(
        {
            "profile": validation.sources.profile.name,
            "files": {str(kind): file for kind, file in validation.sources.origins.items()},
            "profile_machine": validation.sources.profile.provenance.machine,
            "machine": validation.machine,
            "target": meta.target_model,
            "draft": meta.draft_model,
            "prompts": meta.prompt_set,
            "summary": summary(validation),
            "rows": [row.as_dict() for row in validation.rows],
            "live_runs": live_runs(validation),
        },
        indent=2,
    )


def print_validation(validation: Validation) -> None:
    """The table for people."""
    console = wide_console()
    console.print(_table(validation))
    found = summary(validation)
    for name in OPINIONS:
        if name in found:
            text = f"median {found[name]['median']:.1%}, max {found[name]['max']:.1%}"
            console.print(f"error, {name.replace('_', ' ')}: {text}", highlight=False)
    inside = found["coverage"]
    if inside["runs"]:
        console.print(
            f"intervals: {inside['covered']} of {inside['runs']} live runs ({inside['share']:.0%}) lie in "
            f"their {inside['level']:.0%} interval, which is {inside['median_width']:.0%} wide (median)",
            highlight=False,
        )
    _print_exactness(console, validation, found)
    outside = sorted({text for row in validation.rows for text in row.extrapolated})
    if outside:
        console.print(f"[yellow]extrapolated: {'; '.join(outside)}[/yellow]", highlight=False)
    console.print(f"[dim]{METHOD}[/dim]")


def _table(validation: Validation) -> Any:
    from rich.table import Table

    table = Table(header_style="bold", padding=(0, 0, 0, 1))
    table.add_column("speedup over AR", no_wrap=True)
    level = f"{validation.level:.0%}"
    for title in ("law", "simu-\nlated", "mea-\nsured", "spread\n%"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("simul.", "alone*", "law", "nearest"):
        table.add_column(f"error%\n{title}", justify="right", no_wrap=True)
    table.add_column(f"calib. prompts†\n{level} interval", justify="right", no_wrap=True)
    for row in validation.rows:
        known = row.interval
        elsewhere = f"{known.middle:.2f}, {known.low:.2f}-{known.high:.2f}"
        table.add_row(
            row.label,
            _factor(row.law_speedup_vs_ar),
            _factor(row.simulated_speedup_vs_ar),
            _factor(row.measured_speedup_vs_ar),
            "-" if row.spread is None else f"±{row.spread * 100:.1f}",
            _percent(row.error),
            _percent(row.error_without_contention),
            _percent(row.law_error),
            _percent(row.nearest_error),
            "" if row.settings.policy == "ar" else elsewhere,
        )
    table.caption = (
        "law, simulated, measured: on the validation's own prompts. * with devices that do not slow each "
        "other. † the speedup simulated from the calibration's prompts alone: median, interval"
    )
    return table


def _print_exactness(console: Any, validation: Validation, found: dict[str, Any]) -> None:
    if found["replay_exact"] is not None:
        console.print(
            f"replay: {found['rounds_compared']} rounds agree, {found['round_differences']} requests differ"
            f"{'' if found['replay_exact'] else ' (NOT explained by rounding)'}; text identical to plain "
            f"decoding: {'yes' if found['identical_to_plain_decoding'] else 'NO'}",
            highlight=False,
        )
    if any(row.agreement is None for row in validation.rows):
        console.print(f"replay: {SAMPLED}", highlight=False)
    for row in validation.rows:
        for difference in row.agreement.differences if row.agreement else ():
            console.print(
                f"  {row.label}, request {difference.request}: logit gap {difference.gap:.2e} "
                f"({'below' if difference.excused else 'ABOVE'} the bound)\n    simulated "
                f"{difference.simulated}\n    live      {difference.live}",
                highlight=False,
            )


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:+.1f}"


def write_outputs(validation: Validation, folder: Path) -> list[Path]:
    """Write `validation.json`, `.csv`, `.png`, `live_runs.csv` and timelines; returns the files."""
    from analysis.validation_picture import plot

    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "validation.json", folder / "validation.csv"]
    with atomic_write(written[0]) as file:
        file.write(as_json(validation) + "\n")
    with atomic_write(written[1]) as file:
        file.write(_csv([row.as_dict() for row in validation.rows]))
    if runs := live_runs(validation):
        written.append(folder / "live_runs.csv")
        with atomic_write(written[-1]) as file:
            file.write(_csv(runs))
    for row in validation.rows:
        slug = row.label.replace(" ", "_").replace("=", "").replace(",", "-")
        for world, spans in (
            ("simulated", row.predictions[0].spans),
            ("live", validation.live_spans[row.settings, row.batch]),
        ):
            path = folder / f"timeline_{slug}_{world}.json"
            with atomic_write(path) as file:
                file.write(chrome_trace(spans, title=f"{world} {row.label}"))
            written.append(path)
    return [*written, plot(validation, folder / "validation.png")]


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
