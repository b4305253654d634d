"""From which batch on a fast backup beats redrafting: b* as printed, corrected, simulated and live."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.execute import Bench
from analysis.results import Row
from analysis.show import COLOURS, draw_worlds, finish, parity
from analysis.studies.openquestions import Recorded, question
from analysis.study import Entry, option
from policies.laws.fanout import expected_hit
from policies.laws.ssd import switch_batch, switch_batch_printed
from policies.registry import Settings, configure
from simulator.fanout import step_times
from simulator.probe import DraftRule, round_statistics
from simulator.run import simulate

LOOKAHEAD, FANOUT = 4, (1,)
BATCHES = (1, 2, 4, 8)
BACKUPS = ("primary", "plain", "random")
LARGEST = 16
"""Batch up to which the switch is looked for by simulation."""


def rows(bench: Bench) -> list[Row]:
    """One row per backup and batch; the switching batches stand in every row."""
    found = bench.compare([Entry(of(backup), batch) for backup in BACKUPS for batch in BATCHES])
    where = {**laws(bench), "b_simulated": simulated_switch(bench), "b_measured": switch(found, "measured")}
    return [row | where for row in found]


def of(backup: str) -> Settings:
    """Saguaro with that backup."""
    return configure("saguaro", lookahead=LOOKAHEAD, fanout=FANOUT, backup=backup)


def laws(bench: Bench) -> dict[str, float | None]:
    """b* as printed and corrected, told what the recording and the profile say of one row."""
    scenario = bench.scenario(0.0)
    known = round_statistics(scenario.tokens, LOOKAHEAD, DraftRule())
    p_primary = expected_hit(known.weights, known.after_primary, FANOUT * (LOOKAHEAD + 1))
    p_backup = float(known.after_nothing[FANOUT[0]])
    times = step_times(scenario, of("primary"))
    t_primary = times.draft_s / times.verify_s
    e_hit = known.tokens_per_round
    return {
        "b_printed": _finite(switch_batch_printed(p_primary, e_hit, 1.0, t_primary)),
        "b_corrected": _finite(switch_batch(p_primary, p_backup, e_hit, 1.0, t_primary)),
    }


def simulated_switch(bench: Bench) -> int | None:
    """The smallest batch at which a plain decode after a miss is at least as fast as redrafting."""
    for batch in range(1, LARGEST + 1):
        scenario = replace(bench.scenario(0.0, batch), requests=max(16, 2 * batch))
        slow, fast = (simulate(scenario, of(name)).summary.tokens_per_second for name in ("primary", "plain"))
        if fast >= slow:
            return batch
    return None


def switch(found: Sequence[Row], world: str) -> int | None:
    """The smallest batch run at which a fast backup was at least as fast as redrafting; None if none was."""
    name = f"{world}_speedup_vs_ar"
    for batch in sorted({row["batch"] for row in found}):
        here = {row["backup"]: row[name] for row in found if row["batch"] == batch}
        fast = [here[b] for b in BACKUPS[1:] if here.get(b) is not None]
        if here.get("primary") is not None and fast and max(fast) >= here["primary"]:
            return int(batch)
    return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def title(found: Sequence[Row]) -> str:
    """What is seen."""
    row = found[0]
    measured = f", live {row['b_measured'] or 'beyond 8'}" if _has_live(found) else ""
    return (
        f"A fast backup wins from batch {_say(row['b_simulated'])} on (simulated{measured}); "
        f"b* as printed {_say(row['b_printed'])}, corrected {_say(row['b_corrected'])}"
    )


def _has_live(found: Sequence[Row]) -> bool:
    return any(row["measured_speedup_vs_ar"] is not None for row in found)


def _say(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}".removesuffix(".0")


def draw(figure: Any, found: Sequence[Row]) -> None:
    """Speed against the batch, a line per backup, and where each b* lies."""
    axes = figure.subplots()
    for colour, backup in zip(COLOURS, BACKUPS, strict=False):
        mine = [row for row in found if row["backup"] == backup]
        draw_worlds(axes, mine, "batch", "speedup_vs_ar", colour=colour, label=backup)
    for name, style in (("b_printed", ":"), ("b_corrected", "--"), ("b_simulated", "-")):
        if (at := found[0][name]) is not None and at >= 1:
            axes.axvline(at, color="#999999", linestyle=style, linewidth=1)
            axes.annotate(name, (at, 0.02), xycoords=("data", "axes fraction"), fontsize=7, rotation=90)
    finish(axes, x="batch", y="speedup over plain decoding at the same batch", powers=BATCHES)
    parity(axes)


@dataclass(frozen=True)
class BackupPlan(Recorded):
    """On the pair whose target is the slower."""

    hw: tuple[str, ...] = option(("cpu2-x20",), "Profiles that predict; their pairs run live.")


STUDY = question(
    "backup",
    "From which batch on does a fast backup beat redrafting?",
    rows,
    title,
    draw,
    widest=max(BATCHES),
    plan=BackupPlan,
)
