"""Is a second device worth it?  Live speeds of policies on one device, on two, and side by side.

Run `python -m analysis.placements`: AR and SD on one core and on both cores, PEARL and Saguaro with a core
for each model, all interleaved prompt by prompt.  Speculation with a device for the draft has to beat SD
collocated on equal devices, not only AR (design.md, section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from calibrate.calibration import record, requests_of
from calibrate.display import show_progress
from calibrate.job import make_job
from calibrate.live.placement import pair_specs, parse_placement
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import Cell, Measured, measure, run_matrix
from hardware_profiles.files import atomic_write, to_json
from policies.commandline import checked_command, split_integers
from policies.registry import configure

ONE, BOTH, SPLIT = "shared:0", "shared:0,1", "split"
PLACES = {ONE: "one core", BOTH: "both cores", SPLIT: "a core each"}


def contenders(lookaheads: Sequence[int], fanout: int) -> list[Cell]:
    """Everything that is compared."""
    found = [Cell(ONE, configure("ar")), Cell(BOTH, configure("ar"))]
    for lookahead in lookaheads:
        found += [Cell(place, configure("sd", lookahead=lookahead)) for place in (ONE, BOTH)]
        found.append(Cell(SPLIT, configure("pearl", lookahead=lookahead)))
        found += [
            Cell(SPLIT, configure("saguaro", lookahead=lookahead, fanout=(fanout,), backup=backup))
            for backup in ("primary", "plain")
        ]
    return found


def table(measured: dict[Cell, Measured]) -> list[dict[str, Any]]:
    """One row per contender: speed, its ratio to AR on one and on both cores with range, overlap."""
    one, both = measured[Cell(ONE, configure("ar"))], measured[Cell(BOTH, configure("ar"))]
    rows = []
    for cell, speed in measured.items():
        over = {name: _ratio(ar, speed) for name, ar in (("one_core", one), ("both_cores", both))}
        rows.append(
            {
                "devices": PLACES[cell.place],
                "setting": cell.settings.label,
                "tokens_per_second": speed.tokens_per_second,
                "speedup_vs_ar_one_core": over["one_core"],
                "speedup_vs_ar_both_cores": over["both_cores"],
                "overlap_ms_per_token": speed.overlap_s * 1e3 / speed.tokens,
            }
        )
    return rows


def _ratio(baseline: Measured, speed: Measured) -> list[float]:
    """[median of the repetitions' sums' ratio, smallest, largest]."""
    by_repeat = [a / b for a, b in zip(baseline.by_repeat_s, speed.by_repeat_s, strict=True)]
    return [baseline.seconds / speed.seconds, min(by_repeat), max(by_repeat)]


@checked_command()
@click.option("--target", default="pair:x20", show_default=True)
@click.option("--draft", default="pair:draft", show_default=True)
@click.option("--lookahead", default="4", show_default=True, callback=split_integers, help="List of K.")
@click.option("--fanout", default=3, show_default=True)
@click.option("--count", default=8, show_default=True, help="Held-out prompts.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def main(**options: Any) -> None:
    """Compare policies on one core, on both cores, and with a core for each model, live."""
    job = make_job(
        target=options["target"],
        draft=options["draft"],
        prompts="heldout",
        count=options["count"],
        temperature=(0.0,),
        max_tokens=128,
        quick=True,
    )
    with show_progress() as progress, ExitStack() as stack:
        requests = requests_of(record(job, job.prompts, "heldout", progress))
        worlds = {
            place: stack.enter_context(LiveWorld(*pair_specs(job.target, job.draft, parse_placement(place))))
            for place in PLACES
        }
        runs = run_matrix(
            worlds,
            contenders(options["lookahead"], options["fanout"]),
            requests,
            repeats=options["repeats"],
            seed=0,
            progress=lambda done, total: progress("live settings", done, total),
        )
    rows = table(measure(runs))
    if options["out"]:
        with atomic_write(options["out"]) as file:
            file.write(to_json(rows, indent=2) + "\n")
    if options["as_json"]:
        click.echo(to_json(rows, indent=2))
        return
    for row in rows:
        one, both = row["speedup_vs_ar_one_core"], row["speedup_vs_ar_both_cores"]
        click.echo(
            f"{row['devices']:>11}  {row['setting']:<26} {row['tokens_per_second']:7.1f} tok/s   "
            f"vs AR one core {one[0]:.2f} ({one[1]:.2f}-{one[2]:.2f})   "
            f"vs AR both cores {both[0]:.2f} ({both[1]:.2f}-{both[2]:.2f})   "
            f"overlap {row['overlap_ms_per_token']:.2f} ms/token"
        )


if __name__ == "__main__":
    main()
