"""Which backup to fall back on after a cache miss, by batch size (`ssd.thm17`).

Two backups: *slow*, the primary speculator itself (T_p longer, as good as a hit), and *fast*, one that
takes no time and yields fewer tokens.  In a batch any row's miss stalls all rows (`ssd.cor16`), so
slow stalls become certain as the batch grows, and from some batch size b* on the fast one wins.

The printed b* has one common p_hit, but the backup changes it: a slow backup's tokens are the
primary's, so every round hits with p_hit,p; with a fast one the rounds after a miss hit with p_hit,b.
`switch_batch` keeps them apart.
"""

from __future__ import annotations

import math

from policies.laws.ssd import _check_probability, hit_rate, ssd_speedup

_TIE = 1e-12


def switch_batch_printed(p_hit: float, e_hit: float, e_miss: float, t_primary: float) -> float:
    """b* as printed: log(1 + 1/T_p - E_hit/(T_p D)) / log(p_hit), D = p E_hit + (1 - p) E_miss.

    Right only if one `p_hit` holds for both backups and T_p <= 1; otherwise off by several batch sizes
    (see `switch_batch`, which also says what the edges are).

    Args:
        p_hit: Hit rate per row.
        e_hit: Mean tokens of a round after a hit.
        e_miss: Mean tokens of a round after a miss with the fast backup.
        t_primary: T_p, time of the primary speculator, in target steps.

    Raises:
        ValueError: Outside the domain.
    """
    _check_domain(e_hit, e_miss, t_primary)
    _check_probability(p_hit=p_hit)
    return _solve(p_hit, p_hit, e_hit, e_miss, t_primary)


def switch_batch(
    p_hit_primary: float, p_hit_backup: float, e_hit: float, e_miss: float, t_primary: float
) -> float:
    """b*: the slow backup is better for b < b*, the fast one for b >= b* (corrected `ssd.thm17`).

    log(1 - X (E_hit - D) / (T_p D)) / log(p_hit,p) with D = p_f E_hit + (1 - p_f) E_miss, p_f the hit
    rate with the fast backup (`ssd.eq1`), X = max(1, T_p) (a miss waits for the cache: see
    `ssd_speedup`).  The integer batch size to switch at is max(1, ceil(b*)).

    Edges: argument <= 0: inf, the slow backup is better in every batch.  Argument 1 (E_hit = D): 0.
    Argument > 1 (E_miss > E_hit): negative, the fast one is better in every batch.  p_hit,p = 1: there
    are no misses to tell the two apart; 0.  p_hit,p = 0: every round stalls whatever the batch; 0 or
    inf.  T_p -> 0: inf if E_hit > D, 0 if equal, -inf if less.

    Args:
        p_hit_primary: Hit rate of rounds that verify the primary's tokens.
        p_hit_backup: Hit rate of rounds that verify the fast backup's tokens.
        e_hit: Mean tokens of a round after a hit, or after the slow backup.
        e_miss: Mean tokens of a round after the fast backup.
        t_primary: T_p, time of the primary speculator, in target steps; the same in every batch.

    Raises:
        ValueError: Outside the domain.
    """
    _check_domain(e_hit, e_miss, t_primary)
    p_fast = _fast_hit_rate(p_hit_primary, p_hit_backup)
    return _solve(p_hit_primary, p_fast, e_hit, e_miss, min(1.0, t_primary))


def _solve(p: float, p_fast: float, e_hit: float, e_miss: float, pace: float) -> float:
    """Batch size at which both backups are equally fast; `pace` is T_p over the time of a round."""
    if p == 1.0:
        return 0.0
    tokens = p_fast * e_hit + (1.0 - p_fast) * e_miss
    lost = (1.0 - p_fast) * (e_hit - e_miss)  # E_hit - D, exactly 0 where they are equal
    if lost == 0.0:
        return 0.0
    if pace == 0.0:
        return math.copysign(math.inf, lost)
    argument = 1.0 - lost / (pace * tokens)
    if argument <= _TIE:  # 0 but for rounding: the fast backup catches up, and only in the limit
        return math.inf
    return 0.0 if p == 0.0 else math.log(argument) / math.log(p)


def fallback_speedups(
    p_hit_primary: float,
    p_hit_backup: float,
    e_hit: float,
    e_miss: float,
    t_primary: float,
    *,
    batch: int = 1,
) -> tuple[float, float]:
    """Speedup over AR with the slow and with the fast backup at a batch size (`ssd.cor16`, twice).

    Args:
        p_hit_primary: As in `switch_batch`.
        p_hit_backup: As in `switch_batch`.
        e_hit: As in `switch_batch`.
        e_miss: As in `switch_batch`.
        t_primary: As in `switch_batch`.
        batch: b.

    Raises:
        ValueError: Outside the domain.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    _check_domain(e_hit, e_miss, t_primary)
    p_fast = _fast_hit_rate(p_hit_primary, p_hit_backup)
    slow = ssd_speedup(p_hit_primary, e_hit, e_hit, t_primary, t_primary, batch=batch)
    fast = ssd_speedup(p_fast, e_hit, e_miss, t_primary, 0.0, batch=batch)
    return slow, fast


def fallback_speedup(
    p_hit_primary: float,
    p_hit_backup: float,
    e_hit: float,
    e_miss: float,
    t_primary: float,
    *,
    batch: int = 1,
) -> float:
    """Speedup over AR of the policy of 4.3.1: slow backup below b*, fast from b* on (`ssd.pol.fallback`).

    With `switch_batch` for b*, so it is the better of the two at every batch size.

    Raises:
        ValueError: Outside the domain.
    """
    b_star = switch_batch(p_hit_primary, p_hit_backup, e_hit, e_miss, t_primary)
    slow, fast = fallback_speedups(p_hit_primary, p_hit_backup, e_hit, e_miss, t_primary, batch=batch)
    return slow if batch < b_star else fast


def fallback_speedup_printed(
    p_hit_primary: float,
    p_hit_backup: float,
    e_hit: float,
    e_miss: float,
    t_primary: float,
    *,
    batch: int = 1,
) -> float:
    """Speedup over AR of the same policy switching at the printed b*, with p_hit the fast backup's p_f.

    Never more than `fallback_speedup`; less between the two b*.

    Raises:
        ValueError: Outside the domain.
    """
    p_fast = _fast_hit_rate(p_hit_primary, p_hit_backup)
    b_star = switch_batch_printed(p_fast, e_hit, e_miss, t_primary)
    slow, fast = fallback_speedups(p_hit_primary, p_hit_backup, e_hit, e_miss, t_primary, batch=batch)
    return slow if batch < b_star else fast


def switch_batch_brute(
    p_hit_primary: float,
    p_hit_backup: float,
    e_hit: float,
    e_miss: float,
    t_primary: float,
    *,
    largest: int = 1024,
) -> int | None:
    """Smallest batch size whose fast backup is at least as fast as the slow one; None up to `largest`.

    Tries every batch size: the check of `switch_batch`.  From there on the fast one stays ahead, since
    its speedup does not depend on the batch while the slow one's falls.

    Raises:
        ValueError: Outside the domain.
    """
    for batch in range(1, largest + 1):
        slow, fast = fallback_speedups(p_hit_primary, p_hit_backup, e_hit, e_miss, t_primary, batch=batch)
        if fast >= slow * (1.0 - _TIE):
            return batch
    return None


def _fast_hit_rate(p_hit_primary: float, p_hit_backup: float) -> float:
    """p_f; 1 where a row that begins with a hit never misses, whatever would follow."""
    _check_probability(p_hit_primary=p_hit_primary, p_hit_backup=p_hit_backup)
    return 1.0 if p_hit_primary == 1.0 else hit_rate(p_hit_primary, p_hit_backup)


def _check_domain(e_hit: float, e_miss: float, t_primary: float) -> None:
    if not (0.0 < e_hit < math.inf and 0.0 < e_miss < math.inf):
        raise ValueError(
            f"a round yields tokens: e_hit and e_miss must be above 0, got {e_hit:g}, {e_miss:g}"
        )
    if not 0.0 <= t_primary < math.inf:
        raise ValueError(f"t_primary must be at least 0, got {t_primary:g}")
