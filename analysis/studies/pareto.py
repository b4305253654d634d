"""Latency against throughput per device, over the batch: plain decoding, SD, Saguaro."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.execute import Bench
from analysis.results import Row, settings_of
from analysis.show import COLOURS, WORLDS, finish
from analysis.studies.openquestions import question
from analysis.study import Entry
from policies.registry import Settings, configure
from simulator.placement import count_devices
from simulator.run import simulate

BATCHES = (1, 2, 4, 8)
LOOKAHEADS = (1, 2, 3, 4, 6)
POLICIES = ("ar", "sd", "saguaro")


def candidates(policy: str) -> list[Settings]:
    """What the best of a policy is chosen from, by simulation, at every batch."""
    if policy == "ar":
        return [configure("ar")]
    if policy == "sd":
        return [configure("sd", lookahead=k) for k in LOOKAHEADS]
    return [
        configure("saguaro", lookahead=k, fanout=(f,), backup=backup)
        for k in LOOKAHEADS
        for f in (1, 3)
        for backup in ("primary", "plain")
    ]


def rows(bench: Bench) -> list[Row]:
    """One row per policy and batch: the best setting, on its own devices."""
    wanted: list[Entry] = []
    for done, batch in enumerate(BATCHES):
        scenario = bench.scenario(0.0, batch)
        for policy in POLICIES:
            best = max(candidates(policy), key=lambda s: simulate(scenario, s).summary.tokens_per_second)
            wanted.append(Entry(best, batch))
        bench.progress("best settings", done + 1, len(BATCHES))
    found = bench.compare(wanted)
    for row in found:
        devices = row["devices"] = count_devices(settings_of(row), bench.sources.profile).total
        law, step = (
            row["law_speedup_vs_ar"],
            row["simulated_tokens_per_second"] / row["simulated_speedup_vs_ar"],
        )
        speeds = {"law": None if law is None else law * step}
        speeds |= {world: row[f"{world}_tokens_per_second"] for world in ("simulated", "measured")}
        for world, speed in speeds.items():
            row[f"{world}_per_request"] = None if speed is None else speed / row["batch"]
            row[f"{world}_per_device"] = None if speed is None else speed / devices
    return found


def title(found: Sequence[Row]) -> str:
    """What is seen."""
    fast = max(found, key=lambda row: row["simulated_per_request"])
    dense = max(found, key=lambda row: row["simulated_per_device"])
    return (
        f"Fastest for one request: {fast['setting']} at batch {fast['batch']}; most tokens per device: "
        f"{dense['setting']} at batch {dense['batch']} (simulated)"
    )


def draw(figure: Any, found: Sequence[Row]) -> None:
    """Tokens per second per device against tokens per second per request, a line per policy."""
    axes = figure.subplots()
    for colour, policy in zip(COLOURS, POLICIES, strict=False):
        mine = [row for row in found if row["policy"] == policy]
        for world, style in WORLDS.items():
            x = [row[f"{world}_per_request"] for row in mine]
            y = [row[f"{world}_per_device"] for row in mine]
            if any(value is None for value in x):
                continue
            label = {"ar": "plain decoding", "sd": "SD", "saguaro": "Saguaro"}[policy]
            axes.plot(x, y, color=colour, label=label if world == "simulated" else None, **style)
        for row in mine:
            at = (row["simulated_per_request"], row["simulated_per_device"])
            axes.annotate(
                f"b={row['batch']}", at, fontsize=7, xytext=(4, 4), textcoords="offset points", color=colour
            )
    finish(axes, x="tokens/s that a request sees (right is faster)", y="tokens/s per device (up is cheaper)")


STUDY = question(
    "pareto",
    "Latency against throughput per device: which policy, over the batch?",
    rows,
    title,
    draw,
    widest=max(BATCHES),
)
