"""Laws of DOUBLE that the spine needs: the rate of a PEARL-like pipeline."""

from __future__ import annotations

from policies.laws.ssd import _check_probability


def pearl_speedup(acceptance: float, lookahead: int, speed_ratio: float) -> float:
    """Speedup over AR of a pre/post-verifying pipeline: the exact rate S_PEARL under `double.thm3`.

    (1 - a^g) / ((1 - a)(1 - a^g + a)) * C / max(g, C), and g C / max(g, C) at a = 1.  The printed
    S_PSD is another form, off by +19 % to -50 % for such a pipeline.

    Args:
        acceptance: iid acceptance a.
        lookahead: g, drafted tokens per block.
        speed_ratio: C, target step / draft step.

    Raises:
        ValueError: Outside the domain.
    """
    _check_probability(acceptance=acceptance)
    if lookahead < 1 or speed_ratio <= 0:
        raise ValueError(f"needs lookahead >= 1 and speed_ratio > 0, got {lookahead}, {speed_ratio:g}")
    pace = speed_ratio / max(float(lookahead), speed_ratio)
    if acceptance == 1.0:
        return lookahead * pace
    full = acceptance**lookahead
    return (1.0 - full) / ((1.0 - acceptance) * (1.0 - full + acceptance)) * pace
