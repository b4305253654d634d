"""Pictures that notebooks and documents share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from policies.curves import HitCurves
from policies.laws.ssd import power_law_hit
from policies.registry import configure
from simulator.law import law_inputs, law_prediction
from simulator.run import Scenario, simulate

POLICY_COLOURS = {"sd": "#4c72b0", "pearl": "#8172b3", "saguaro": "#c44e52"}


def draw_hit_curve(axes: Any, curves: HitCurves) -> None:
    """Recorded hit probability by fan-out, with the power law fitted to it."""
    fanouts = np.array(curves.fanouts)
    axes.plot(fanouts, curves.after_rejection, "o", color="#c44e52", label="after a rejection, recorded")
    axes.plot(fanouts, curves.unconditional, "s", color="#999999", label="nothing rejected, recorded")
    if (law := curves.power_law) is not None:
        fitted = power_law_hit(curves.fanouts, law.exponent, law.scale)
        label = f"1 - {law.scale:.2f} F^-{law.exponent:.2f} (R2 {law.r_squared:.3f})"
        axes.plot(fanouts, fitted, "-", color="#4c72b0", label=label)
    axes.set_xlabel("fan-out F")
    axes.set_ylabel("probability that the token is cached")
    axes.set_ylim(0, 1)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def draw_sweep(axes: Any, scenario: Scenario, lookaheads: Sequence[int], *, fanout: int = 3) -> None:
    """Speedup over AR against lookahead for SD, PEARL and Saguaro: law dashed, simulated solid."""
    told = law_inputs(scenario)
    ar = simulate(scenario, configure("ar")).summary.tokens_per_second
    for policy, knobs in (("sd", {}), ("pearl", {}), ("saguaro", {"fanout": (fanout,), "backup": "primary"})):
        settings = [configure(policy, lookahead=k, **knobs) for k in lookaheads]  # type: ignore[arg-type]
        simulated = [simulate(scenario, s).summary.tokens_per_second / ar for s in settings]
        laws = [law_prediction(s, told, batch=scenario.batch).speedup_vs_ar for s in settings]
        colour = POLICY_COLOURS[policy]
        axes.plot(lookaheads, simulated, "-o", color=colour, markersize=4, label=f"{policy}, simulated")
        if all(value is not None for value in laws):
            axes.plot(lookaheads, laws, "--", color=colour, linewidth=1, label=f"{policy}, law")
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel("lookahead K")
    axes.set_ylabel("speedup over plain decoding")
    axes.legend(fontsize=8, ncols=2)
    axes.grid(alpha=0.3)
