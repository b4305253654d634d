"""Four pictures of Mirror-SD, after the paper's Figures 3a, 5, 7 and 8 in kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.pictures import POLICY_COLOURS

if TYPE_CHECKING:
    from analysis.mirror_cells import Outcome

COLOURS = {**POLICY_COLOURS, "mirror": "#dd8452", "ar": "#999999"}
EXIT_COLOURS = {"1/4": "#8172b3", "1/2": "#dd8452", "3/4": "#55a868"}


def plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write all four; of the live world where there is one.

    Args:
        outcomes: As the command makes them.
        path: Picture to write; its suffix says the format.
    """
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    world = "live" if any(o.world == "live" for o in outcomes) else "simulated"
    chosen = [o for o in outcomes if o.world == world]
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), constrained_layout=True)
    draw_exposed(axes[0, 0], chosen)
    draw_fallbacks(axes[0, 1], chosen)
    draw_batches(axes[1, 0], chosen)
    draw_speeds(axes[1, 1], chosen)
    figure.suptitle(f"Mirror-SD, {world}")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_exposed(axes: Any, outcomes: Sequence[Outcome]) -> None:
    """Drafting on the critical path per round against accepted tokens, by window and exit (Figure 3a)."""
    for exit_, colour in EXIT_COLOURS.items():
        mine = [o for o in _plain_mirror(outcomes, _batches(outcomes)[0]) if _knob(o, "exit") == exit_]
        points = [
            (o.tokens_per_round - 1.0, o.account.step_s - o.account.prefix_s - o.account.suffix_s)
            for o in mine
            if o.account is not None
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), color=colour, label=f"exit {exit_}")
    axes.set_xlabel("drafted tokens accepted per round")
    axes.set_ylabel("seconds per round beyond the target's own")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def draw_fallbacks(axes: Any, outcomes: Sequence[Outcome]) -> None:
    """Fallback frequency against kappa by exit, with the printed bound dashed (Figure 7)."""
    longest = max(o.settings.lookahead or 0 for o in outcomes)
    for exit_, colour in EXIT_COLOURS.items():
        mine = sorted(
            (_knob(o, "kappa"), o.account)
            for o in _plain_mirror(outcomes, _batches(outcomes)[0])
            if _knob(o, "exit") == exit_ and o.settings.lookahead == longest and o.account is not None
        )
        if mine:
            kappas = [kappa for kappa, _ in mine]
            axes.plot(kappas, [a.fallback for _, a in mine], "-o", color=colour, label=f"exit {exit_}")
            if all(a.bound_printed is not None for _, a in mine):
                axes.plot(kappas, [a.bound_printed for _, a in mine], "--", color=colour, linewidth=1)
    axes.set_xlabel("candidates per position (kappa)")
    axes.set_ylabel(f"fallbacks per round at K={longest}; dashed: 1 - Omega")
    axes.set_ylim(bottom=0.0)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def draw_batches(axes: Any, outcomes: Sequence[Outcome]) -> None:
    """The best setting of each policy against the batch (Figure 5)."""
    for policy in ("sd", "pearl", "saguaro", "mirror"):
        best = [
            max(o.speedup_vs_ar for o in outcomes if o.batch == b and o.settings.policy == policy)
            for b in _batches(outcomes)
        ]
        axes.plot(_batches(outcomes), best, "-o", color=COLOURS[policy], label=policy)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel("batch")
    axes.set_ylabel("best speedup over plain decoding")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def draw_speeds(axes: Any, outcomes: Sequence[Outcome]) -> None:
    """Every setting at the smallest batch (Figure 8: all on one kind of device)."""
    mine = [o for o in outcomes if o.batch == _batches(outcomes)[0] and o.settings.policy != "ar"]
    mine = sorted(mine, key=lambda o: o.speedup_vs_ar)[-16:]
    colours = [COLOURS[o.settings.policy] for o in mine]
    axes.barh([o.settings.label for o in mine], [o.speedup_vs_ar for o in mine], color=colours)
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel("speedup over plain decoding")
    axes.tick_params(axis="y", labelsize=7)


def _batches(outcomes: Sequence[Outcome]) -> list[int]:
    return sorted({o.batch for o in outcomes})


def _knob(outcome: Outcome, name: str) -> Any:
    return outcome.settings.knobs[name]


def _plain_mirror(outcomes: Sequence[Outcome], batch: int) -> list[Outcome]:
    """Mirror-SD in its usual reading, with overlap, at one batch."""
    return [
        o
        for o in outcomes
        if o.settings.policy == "mirror"
        and o.batch == batch
        and _knob(o, "overlap") == "on"
        and _knob(o, "candidates") == "each"
    ]
