"""How far the speedup of SD, PEARL and Saguaro grows with the target/draft ratio, and what bounds it.

Ratios between and beyond the profiles at hand are made by scaling the draft's costs; host time, the
target and the text stay.  Live points come from pairs of the same text embedded in larger shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.execute import Bench
from analysis.results import Row, settings_of
from analysis.show import COLOURS, draw_worlds, finish, parity
from analysis.studies.openquestions import Recorded, compared, question
from analysis.study import Entry, option
from policies.laws.double import pearl_speedup, psd_ceiling
from policies.laws.ssd import expected_tokens, sd_speedup
from policies.registry import Settings, configure
from simulator.law import law_inputs

RATIOS = (2.0, 4.0, 8.0, 16.0, 32.0)
LOOKAHEADS = (1, 2, 4, 6, 8, 12)
PROMPTS = 16
"""Simulated, unless more are asked for: there are many settings to choose the best from."""
POLICIES = ("sd", "pearl", "saguaro")


def candidates(policy: str) -> list[Settings]:
    """What the best of a policy is chosen from at every ratio."""
    if policy != "saguaro":
        return [configure(policy, lookahead=k) for k in LOOKAHEADS]
    return [configure(policy, lookahead=k, fanout=(f,), backup="plain") for k in LOOKAHEADS for f in (1, 3)]


def own_ratio(bench: Bench) -> float:
    """Target step over draft step of the profile, as the law is told."""
    told = law_inputs(bench.scenario(0.0))
    return told.target_s / told.draft_s


def rows(bench: Bench) -> list[Row]:
    """One row per policy and ratio: the best setting, simulated; the profile's own ratio also live."""
    own = own_ratio(bench)
    live, bench.plan = bench.plan.live, replace(bench.plan, live=False)
    found: list[Row] = []
    ratios = sorted({*RATIOS, own})
    for done, ratio in enumerate(ratios):
        factor = own / ratio
        drift = (("draft.forward", factor), ("draft.tree", factor))
        for policy in POLICIES:
            tried = compared(bench.compare([Entry(s, drift=drift) for s in candidates(policy)]))
            best = max(tried, key=lambda row: row["simulated_speedup_vs_ar"])
            limits = ceilings(best["law_acceptance"], ratio)
            found.append({"ratio": ratio, "own": ratio == own, **best, "ceiling": limits[policy]})
        bench.progress("ratios", done + 1, len(ratios))
    if live:
        bench.plan = replace(bench.plan, live=True)
        mine = [row for row in found if row["own"]]
        measured = compared(bench.compare([Entry(settings_of(row)) for row in mine]))
        for row, again in zip(mine, measured, strict=True):
            row |= {name: value for name, value in again.items() if name.startswith("measured")}
    return found


def ceilings(acceptance: float, ratio: float) -> Mapping[str, float]:
    """What no lookahead gets past, by policy, under the papers' assumptions.

    SD: the best lookahead; PEARL: the best lookahead, and C; Saguaro: the best lookahead, with a cache that
    always hits.
    """
    depths = range(1, 65)
    return {
        "sd": max(sd_speedup(acceptance, k, 1.0 / ratio) for k in depths),
        "pearl": min(psd_ceiling(ratio), max(pearl_speedup(acceptance, k, ratio) for k in depths)),
        "saguaro": max(expected_tokens(acceptance, k) / max(1.0, k / ratio) for k in depths),
    }


def title(found: Sequence[Row]) -> str:
    """What is seen."""
    mine = [row for row in found if row["profile"] == found[0]["profile"]]  # whose lines are drawn
    last = max(row["ratio"] for row in mine)
    at = {row["policy"]: row for row in mine if row["ratio"] == last}
    shares = ", ".join(
        f"{name} {at[name]['simulated_speedup_vs_ar']:.2f}x of {at[name]['ceiling']:.2f}x"
        for name in POLICIES
    )
    return f"A draft {last:g} times as fast as the target, best lookahead, of the papers' ceiling: {shares}"


def draw(figure: Any, found: Sequence[Row]) -> None:
    """Speedup against the ratio, a line per policy, its ceiling dashed."""
    axes = figure.subplots()
    for colour, policy in zip(COLOURS, POLICIES, strict=False):
        mine = sorted((row for row in found if row["policy"] == policy), key=lambda row: row["ratio"])
        base = [row for row in mine if row["profile"] == mine[0]["profile"]]
        draw_worlds(
            axes, base, "ratio", "speedup_vs_ar", colour=colour, label=policy, worlds=("law", "simulated")
        )
        live = [row for row in mine if row["measured_speedup_vs_ar"] is not None]
        if live:
            draw_worlds(
                axes, live, "ratio", "speedup_vs_ar", colour=colour, label=policy, worlds=("measured",)
            )
        x, y = [row["ratio"] for row in base], [row["ceiling"] for row in base]
        axes.plot(x, y, "--", color=colour, linewidth=0.8, label=f"{policy}, ceiling")
    finish(axes, x="target step / draft step", y="speedup over plain decoding, best lookahead", powers=RATIOS)
    axes.set_yscale("log", base=2)
    axes.set_yticks(ticks := [0.5, 1, 2, 4, 8, 16], [f"{t:g}" for t in ticks])
    top = float(np.nanmax([row["ceiling"] for row in found]))
    axes.set_ylim(0.8 * min(row["simulated_speedup_vs_ar"] for row in found), 1.2 * top)
    parity(axes)


@dataclass(frozen=True)
class RatioPlan(Recorded):
    """On pairs of two ratios."""

    hw: tuple[str, ...] = option(("cpu2-x5", "cpu2-x20"), "Profiles that predict; their pairs run live.")


STUDY = question(
    "ratio",
    "How far does the speedup grow with the target/draft ratio, and what bounds it?",
    rows,
    title,
    draw,
    count=PROMPTS,
    plan=RatioPlan,
)
