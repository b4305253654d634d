"""SSD against vanilla speculative decoding: ever slower (`ssd.cor8`), and within which bounds (`ssd.cor9`).

Neither counts the second device that SSD's draft sits on.  Times are in target steps.
"""

from __future__ import annotations

import math

from policies.laws.ssd import _check_probability, _check_tokens, _time, miss_time


def ssd_over_sd(p_hit: float, t_sd: float, branch_cost: float = 1.0) -> float:
    """Speed of SSD over SD, the SD drafter being primary and backup (`ssd.cor8`).

    (1 + T) / (max(1, cT) + (1 - p) cT), T = T_SD: both draft the same tokens, so only times count.  The
    paper has c = 1, by which SSD is never slower.  But SSD's draft decodes all cached branches; where
    that takes longer (c > 1) SSD may lose: p = .3, T = .5, c = 2 gives .88.  It also loses at c = 1 where
    T > 1 and p < (T - 1)/T, since a miss waits for a cache that cannot be aborted (`miss_time`).

    Args:
        p_hit: Long-run hit rate.
        t_sd: T_SD, time of SD's whole speculation, in target steps.
        branch_cost: c, time of drafting the branches over T_SD, of primary and backup alike.

    Raises:
        ValueError: Outside the domain.
    """
    _check_probability(p_hit=p_hit)
    if not 1.0 <= branch_cost < math.inf:
        raise ValueError(
            f"drafting all branches is no faster than one: branch_cost >= 1, got {branch_cost:g}"
        )
    drafting = _time(t_sd=t_sd) * branch_cost
    return (1.0 + t_sd) / (max(1.0, drafting) + (1.0 - p_hit) * drafting)


def ssd_over_sd_printed(p_hit: float, t_sd: float) -> float:
    """Speed of SSD over SD as the proof of `ssd.cor8` has it: (1+T) / (p max(1, T) + (1-p) (1+T)) >= 1.

    Args:
        p_hit: Long-run hit rate.
        t_sd: T_SD, in target steps.

    Raises:
        ValueError: Outside the domain.
    """
    _check_probability(p_hit=p_hit)
    both = 1.0 + _time(t_sd=t_sd)
    return both / (p_hit * max(1.0, t_sd) + (1.0 - p_hit) * both)


def speedup_sandwich(
    p_hit: float, e_hit: float, e_miss: float, e_sd: float, t_sd: float, *, t_backup: float = 0.0
) -> tuple[float, float]:
    """Bounds of SSD over SD for T_p <= 1 (corrected `ssd.cor9`): (lower, upper).

    (1 + T_SD) / (E_SD (1 + (1 - p) T_b)) times p E_hit + 1 - p (a miss still yields a token) and
    max(E_hit, E_miss).  The ratio is the lower one iff p = 1 or E_miss = 1, the upper one iff p = 1 and
    E_hit >= E_miss, or E_hit = E_miss, or p = 0 and E_miss >= E_hit.

    Args:
        p_hit: Long-run hit rate.
        e_hit: Mean tokens of a round after a hit.
        e_miss: Mean tokens of a round after a miss.
        e_sd: Mean tokens of a round of SD.
        t_sd: T_SD, in target steps.
        t_backup: T_b, in target steps; 0 in the paper.

    Raises:
        ValueError: Outside the domain.
    """
    _check_probability(p_hit=p_hit)
    _check_tokens(e_hit=e_hit, e_miss=e_miss, e_sd=e_sd)
    factor = (1.0 + _time(t_sd=t_sd)) / (e_sd * (1.0 + (1.0 - p_hit) * _time(t_backup=t_backup)))
    return factor * (p_hit * e_hit + 1.0 - p_hit), factor * max(e_hit, e_miss)


def speedup_sandwich_printed(p_hit: float, e_hit: float, e_sd: float, t_sd: float) -> tuple[float, float]:
    """Bounds of SSD over SD as printed (`ssd.cor9`): (1 + T_SD) E_hit / E_SD, times p and times 1.

    The upper one needs E_hit >= E_miss, which only the proof says, the lower one T_b = 0; T_p < 1 both.

    Args:
        p_hit: As in `speedup_sandwich`.
        e_hit: As in `speedup_sandwich`.
        e_sd: As in `speedup_sandwich`.
        t_sd: As in `speedup_sandwich`.

    Raises:
        ValueError: Outside the domain.
    """
    _check_probability(p_hit=p_hit)
    _check_tokens(e_hit=e_hit, e_sd=e_sd)
    upper = (1.0 + _time(t_sd=t_sd)) * e_hit / e_sd
    return upper * p_hit, upper


def hits_pay(e_hit: float, e_miss: float, t_primary: float, t_backup: float) -> bool:
    """Whether a higher hit rate is a higher speedup: tokens over time of a hit against those of a miss.

    The proof of `ssd.thm18` takes it for granted, and `ssd.thm19` needs it for a speedup.

    Args:
        e_hit: Mean tokens of a round after a hit.
        e_miss: Mean tokens of a round after a miss.
        t_primary: T_p, in target steps.
        t_backup: T_b, in target steps.

    Raises:
        ValueError: Outside the domain.
    """
    _check_tokens(e_hit=e_hit, e_miss=e_miss)
    return e_hit / miss_time(t_primary, 0.0) > e_miss / miss_time(t_primary, t_backup)
