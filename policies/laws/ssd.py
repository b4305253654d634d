"""Laws of SSD / Saguaro, and of vanilla speculative decoding (its section 2.1).

Its fan-outs are in `policies.laws.fanout`, its sampling in `policies.laws.sampling`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.laws.law import FloatArray, law

_TIE = 1e-12

# Tokens and hits of a round


@law()
def expected_tokens(acceptance: float, lookahead: int) -> float:
    """Mean tokens of a round with its bonus token: E(a, K) = 1 + a + ... + a^K  (`double.thm1`).

    Assumes iid acceptance.  K = 0 gives 1, a = 1 gives K + 1.
    """
    return float(np.power(acceptance, np.arange(lookahead + 1)).sum())


@law()
def sd_speedup(acceptance: float, lookahead: int, t_draft: float, t_verify: float = 1.0) -> float:
    """Speedup of vanilla speculative decoding over AR: E(a, K) / (K t_draft + t_verify).

    `t_verify` is 1 in the papers.
    """
    return expected_tokens(acceptance, lookahead) / (lookahead * t_draft + t_verify)


@law()
def outcome_weights(acceptance: float, lookahead: int) -> FloatArray:
    """[K + 1] probability that exactly k drafted tokens are accepted: a^k (1 - a), and a^K at k = K."""
    powers = np.power(acceptance, np.arange(lookahead + 1))
    return np.append(powers[:-1] * (1.0 - acceptance), powers[-1])


def power_law_hit(
    fanout: NDArray[np.number] | Sequence[int], exponent: float, scale: float = 1.0
) -> FloatArray:
    """Hit probability of F guesses: 1 - c F^-r for F >= 1, and 0 without a guess (`ssd.def11`).

    The paper's law has c = 1, by which a single guess never hits; c is fitted (see the docs).  Nothing is
    checked: the exponent of a fitted curve may lie at the border.
    """
    guesses = np.asarray(fanout, dtype=float)
    return np.where(guesses >= 1.0, 1.0 - scale * np.maximum(guesses, 1.0) ** -exponent, 0.0)


@law(fanout="")
def power_law_hit_printed(fanout: Sequence[float] | FloatArray, exponent: float) -> FloatArray:
    """Hit probability of F guesses as printed: 1 - F^-r  (`ssd.def11`); a single guess never hits.

    Refuses F below 1: the law is for natural numbers, and below 1 it would be negative.
    """
    guesses = np.asarray(fanout, dtype=float)
    if not (guesses >= 1.0).all():
        raise ValueError("the printed power law needs F >= 1 everywhere: below 1 it is negative or undefined")
    return np.asarray(1.0 - guesses**-exponent, dtype=np.float64)


def hit_rate_primary(acceptance: float, fanout: Sequence[int], exponent: float, scale: float = 1.0) -> float:
    """p_hit,p of fan-outs F_0 ... F_K: sum_k w_k (1 - c F_k^-r)  (objective of `ssd.thm12`)."""
    weights = outcome_weights(acceptance, len(fanout) - 1)
    return float((weights * power_law_hit(fanout, exponent, scale)).sum())


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Fit of P(miss | F) = scale * F**-exponent.

    Attributes:
        exponent: r.
        scale: c.
        r_squared: Share of the variance of log P(miss) explained.
        worst: Largest |fitted - measured| hit probability over the fan-outs fitted.
        fanouts: How many were fitted.
    """

    exponent: float
    scale: float
    r_squared: float
    worst: float
    fanouts: int


def fit_power_law(fanout: Sequence[int], miss: Sequence[float]) -> PowerLaw:
    """Least-squares fit of the power law in log-log space, scale included.

    Args:
        fanout: Fan-outs F >= 1.
        miss: Measured miss probability of each; zeros carry no information on the slope and are left out.

    Raises:
        ValueError: Fewer than two fan-outs with a miss.
    """
    guesses, misses = np.asarray(fanout, dtype=float), np.asarray(miss, dtype=float)
    usable = (guesses >= 1) & (misses > 0)
    if usable.sum() < 2:
        raise ValueError("a power law needs at least two fan-outs that miss sometimes")
    x, y = np.log(guesses[usable]), np.log(misses[usable])
    slope, intercept = np.polyfit(x, y, 1)
    residual = y - (slope * x + intercept)
    spread = float(((y - y.mean()) ** 2).sum())
    scale = float(min(1.0, np.exp(intercept)))
    fitted = 1.0 - scale * guesses[usable] ** slope
    return PowerLaw(
        exponent=float(-slope),
        scale=scale,
        r_squared=1.0 - float((residual**2).sum()) / spread if spread > 0 else 1.0,
        worst=float(np.abs(fitted - (1.0 - misses[usable])).max()),
        fanouts=int(usable.sum()),
    )


@law()
def hit_rate(p_hit_primary: float, p_hit_backup: float) -> float:
    """Long-run p_hit = p_b / (1 + p_b - p_p)  (`ssd.eq1`).

    Refuses p_p = 1 with p_b = 0, where the chain stays in whichever state it starts.
    """
    if p_hit_primary == 1.0 and p_hit_backup == 0.0:
        raise ValueError("p_hit_primary = 1 and p_hit_backup = 0: the hit rate depends on the first round")
    return p_hit_backup / ((1.0 - p_hit_primary) + p_hit_backup)


@law()
def hit_rate_after(p_hit_primary: float, p_hit_backup: float, rounds: float = math.inf) -> float:
    """p_hit of the round `rounds` after the first, whose speculation was the primary's (`ssd.eq1`).

    p(T) = p_hit + (p_p - p_hit) r^T with r = p_p - p_b, which is the paper's sum written without its 0/0
    at r = 1.  p(0) = p_p.  Over infinitely many rounds it is the time average: for p_p = 0, p_b = 1 the
    chain swings between both states and its average is 1/2; for p_p = 1 every round hits.
    """
    if rounds != math.inf and rounds != int(rounds):
        raise ValueError(f"rounds must be 0, 1, 2, ... or inf, got {rounds:g}")
    if p_hit_primary == 1.0:  # it began with a hit, and a hit is followed by another
        return 1.0
    long_run = hit_rate(p_hit_primary, p_hit_backup)
    if rounds == math.inf:
        return long_run
    decay = (p_hit_primary - p_hit_backup) ** int(rounds)
    return min(1.0, max(0.0, long_run + (p_hit_primary - long_run) * decay))


# Time and speed of a round


@law()
def miss_time(t_primary: float, t_backup: float) -> float:
    """Time of a round that misses: max(1, T_p) + T_b  (`ssd.alg1` read literally).

    The speculator fills its whole cache before it looks at the outcome, so a miss waits for the longer of
    verification and pre-speculation, and for the backup after it.
    """
    return max(1.0, t_primary) + t_backup


@law()
def miss_time_printed(t_primary: float, t_backup: float) -> float:
    """Time of a round that misses as `ssd.thm7` counts it: 1 + T_b, the cache build being cut short."""
    return 1.0 + t_backup


@law()
def ssd_speedup(
    p_hit: float, e_hit: float, e_miss: float, t_primary: float, t_backup: float, *, batch: float = 1
) -> float:
    """Speedup of SSD over AR (`ssd.thm7`); for batch > 1 the batch stalls on any miss (`ssd.cor16`).

    [p E_hit + (1 - p) E_miss] / [p^b max(1, T_p) + (1 - p^b) (X + T_b)], where X = max(1, T_p): a tree
    pass is not interruptible, so a miss waits for it too.  The paper prints X = 1, which needs the
    cache build to be aborted on a miss; both agree for T_p <= 1.

    It is the long-run rate, tokens over time, of independent rows: not the mean over short outputs of
    their own rates, and too low where rows miss together.  For b = inf every round stalls unless p = 1.
    """
    tokens = p_hit * e_hit + (1.0 - p_hit) * e_miss
    return tokens / _round_time(p_hit**batch, t_primary, miss_time(t_primary, t_backup))


@law()
def ssd_speedup_printed(
    p_hit: float, e_hit: float, e_miss: float, t_primary: float, t_backup: float, *, batch: float = 1
) -> float:
    """Speedup of SSD over AR as printed (`ssd.thm7`, `ssd.cor16`): a miss takes 1 + T_b whatever T_p is.

    The same as `ssd_speedup` for T_p <= 1.  Beyond, only for an engine that aborts the cache build on a
    miss; without that it is too high, at p = .7 and T_b = 0 by 3 % (T_p = 1.1) to 18 % (T_p = 2).
    """
    tokens = p_hit * e_hit + (1.0 - p_hit) * e_miss
    return tokens / _round_time(p_hit**batch, t_primary, miss_time_printed(t_primary, t_backup))


def _round_time(all_hit: float, t_primary: float, after_miss: float) -> float:
    """Mean time of a round of a batch that stalls unless all rows hit."""
    return all_hit * max(1.0, t_primary) + (1.0 - all_hit) * after_miss


# Against SD


@law()
def ssd_over_sd(p_hit: float, t_sd: float, branch_cost: float = 1.0) -> float:
    """Speed of SSD over SD, the SD drafter being primary and backup (`ssd.cor8`).

    (1 + T) / (max(1, cT) + (1 - p) cT), T = T_SD: both draft the same tokens, so only times count.  The
    paper has c = 1, by which SSD is never slower.  But SSD's draft decodes all cached branches; where
    that takes longer (c > 1) SSD may lose: p = .3, T = .5, c = 2 gives .88.  It also loses at c = 1 where
    T > 1 and p < (T - 1)/T, since a miss waits for a cache that cannot be aborted (`miss_time`).
    """
    drafting = t_sd * branch_cost
    return (1.0 + t_sd) / (max(1.0, drafting) + (1.0 - p_hit) * drafting)


@law()
def ssd_over_sd_printed(p_hit: float, t_sd: float) -> float:
    """Speed of SSD over SD as the proof of `ssd.cor8` has it: (1+T) / (p max(1, T) + (1-p) (1+T)) >= 1."""
    both = 1.0 + t_sd
    return both / (p_hit * max(1.0, t_sd) + (1.0 - p_hit) * both)


@law()
def speedup_sandwich(
    p_hit: float, e_hit: float, e_miss: float, e_sd: float, t_sd: float, *, t_backup: float = 0.0
) -> tuple[float, float]:
    """Bounds of SSD over SD for T_p <= 1 (corrected `ssd.cor9`): (lower, upper).

    (1 + T_SD) / (E_SD (1 + (1 - p) T_b)) times p E_hit + 1 - p (a miss still yields a token) and
    max(E_hit, E_miss).  The ratio is the lower one iff p = 1 or E_miss = 1, the upper one iff p = 1 and
    E_hit >= E_miss, or E_hit = E_miss, or p = 0 and E_miss >= E_hit.  The paper has T_b = 0.
    """
    factor = (1.0 + t_sd) / (e_sd * (1.0 + (1.0 - p_hit) * t_backup))
    return factor * (p_hit * e_hit + 1.0 - p_hit), factor * max(e_hit, e_miss)


@law()
def speedup_sandwich_printed(p_hit: float, e_hit: float, e_sd: float, t_sd: float) -> tuple[float, float]:
    """Bounds of SSD over SD as printed (`ssd.cor9`): (1 + T_SD) E_hit / E_SD, times p and times 1.

    The upper one needs E_hit >= E_miss, which only the proof says, the lower one T_b = 0; T_p < 1 both.
    """
    upper = (1.0 + t_sd) * e_hit / e_sd
    return upper * p_hit, upper


@law()
def hits_pay(e_hit: float, e_miss: float, t_primary: float, t_backup: float) -> bool:
    """Whether a higher hit rate is a higher speedup: tokens over time of a hit against those of a miss.

    The proof of `ssd.thm18` takes it for granted, and `ssd.thm19` needs it for a speedup.
    """
    return e_hit / miss_time(t_primary, 0.0) > e_miss / miss_time(t_primary, t_backup)


# Which backup to fall back on, by batch size.  Two: *slow*, the primary speculator itself (T_p longer, as
# good as a hit), and *fast*, one that takes no time and yields fewer tokens.  In a batch any row's miss
# stalls all rows, so that slow stalls become certain as the batch grows, and from some batch size b* on the
# fast one wins.


@law(e_hit="above 0", e_miss="above 0")
def switch_batch_printed(p_hit: float, e_hit: float, e_miss: float, t_primary: float) -> float:
    """b* as printed: log(1 + 1/T_p - E_hit/(T_p D)) / log(p_hit), D = p E_hit + (1 - p) E_miss (`ssd.thm17`).

    Right only if one `p_hit` holds for both backups and T_p <= 1; otherwise off by several batch sizes
    (see `switch_batch`, which also says what the edges are).
    """
    return _switch(p_hit, p_hit, e_hit, e_miss, t_primary)


@law(e_hit="above 0", e_miss="above 0")
def switch_batch(
    p_hit_primary: float, p_hit_backup: float, e_hit: float, e_miss: float, t_primary: float
) -> float:
    """b*: the slow backup is better for b < b*, the fast one for b >= b* (corrected `ssd.thm17`).

    log(1 - X (E_hit - D) / (T_p D)) / log(p_hit,p) with D = p_f E_hit + (1 - p_f) E_miss, p_f the hit
    rate with the fast backup (`ssd.eq1`), X = max(1, T_p) (a miss waits for the cache: see
    `ssd_speedup`).  The printed b* has one common p_hit, but the backup changes it: a slow backup's tokens
    are the primary's, so every round hits with p_hit,p; with a fast one the rounds after a miss hit with
    p_hit,b.  The integer batch size to switch at is max(1, ceil(b*)).

    Edges: argument <= 0: inf, the slow backup is better in every batch.  Argument 1 (E_hit = D): 0.
    Argument > 1 (E_miss > E_hit): negative, the fast one is better in every batch.  p_hit,p = 1: there
    are no misses to tell the two apart; 0.  p_hit,p = 0: every round stalls whatever the batch; 0 or
    inf.  T_p -> 0: inf if E_hit > D, 0 if equal, -inf if less.
    """
    p_fast = hit_rate_after(p_hit_primary, p_hit_backup)
    return _switch(p_hit_primary, p_fast, e_hit, e_miss, min(1.0, t_primary))


@law(e_hit="above 0", e_miss="above 0")
def switch_batch_printed_fast(
    p_hit_primary: float, p_hit_backup: float, e_hit: float, e_miss: float, t_primary: float
) -> float:
    """b* as printed, with the fast backup's hit rate for its one p_hit: `switch_batch_printed`."""
    return switch_batch_printed(hit_rate_after(p_hit_primary, p_hit_backup), e_hit, e_miss, t_primary)


def _switch(p: float, p_fast: float, e_hit: float, e_miss: float, stall: float) -> float:
    """Batch size at which both backups are equally fast; `stall` is T_p over the time of a round."""
    if p == 1.0:
        return 0.0
    tokens = p_fast * e_hit + (1.0 - p_fast) * e_miss
    lost = (1.0 - p_fast) * (e_hit - e_miss)  # E_hit - D, exactly 0 where they are equal
    if lost == 0.0:
        return 0.0
    if stall == 0.0:
        return math.copysign(math.inf, lost)
    argument = 1.0 - lost / (stall * tokens)
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
    """Speedup over AR with the slow and with the fast backup at a batch size (`ssd.cor16`, twice)."""
    p_fast = hit_rate_after(p_hit_primary, p_hit_backup)
    slow = ssd_speedup(p_hit_primary, e_hit, e_hit, t_primary, t_primary, batch=batch)
    return slow, ssd_speedup(p_fast, e_hit, e_miss, t_primary, 0.0, batch=batch)


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
    """
    setting = (p_hit_primary, p_hit_backup, e_hit, e_miss, t_primary)
    slow, fast = fallback_speedups(*setting, batch=batch)
    return slow if batch < switch_batch(*setting) else fast


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
    """
    setting = (p_hit_primary, p_hit_backup, e_hit, e_miss, t_primary)
    slow, fast = fallback_speedups(*setting, batch=batch)
    return slow if batch < switch_batch_printed_fast(*setting) else fast


# What a cache holds and costs.  An *outcome* of a round is (k, t*): k accepted tokens and the bonus token; a
# *branch* is a cached outcome with the K tokens drafted after it.


@law()
def outcome_count(lookahead: int, vocabulary: int) -> int:
    """Possible outcomes of a round: K (V - 1) + V  (`ssd.def2-6`).

    After a rejection at k < K the bonus token is any but the rejected one, whose residual probability is
    0; after K accepted ones it is any of V.  K = 0 has the outcomes of a plain step, V.
    """
    return lookahead * (vocabulary - 1) + vocabulary


@law()
def outcome_count_printed(lookahead: int, vocabulary: int) -> int:
    """Outcomes of a round as the paper counts them, "approximately" (K + 1) V: rejected tokens included."""
    return (lookahead + 1) * vocabulary


@law()
def cache_entries(fanout: Sequence[int], lookahead: int | None = None, batch: int = 1) -> int:
    """Cached outcomes, b sum_k F_k  (`ssd.def10`); b (K + 1) F for one F at every position.

    A single fan-out stands for all positions if `lookahead` is given; else as many as K + 1 are needed.
    """
    return batch * sum(_by_position(fanout, lookahead))


def draft_tokens(fanout: Sequence[int], lookahead: int, batch: int = 1) -> int:
    """Tokens that the draft decodes per round of SSD: K for every cached outcome (`ssd.acct`); SD's, b K."""
    return lookahead * cache_entries(fanout, lookahead, batch)


def draft_work(fanout: Sequence[int], lookahead: int) -> float:
    """Draft tokens of SSD over those of SD: sum_k F_k, which is (K + 1) F if uniform (`ssd.acct`).

    At K = 0 neither drafts anything; the ratio is that of any K > 0.
    """
    return float(cache_entries(fanout, lookahead))


@law()
def draft_work_printed(fanout: Sequence[int], lookahead: int, flops_ratio: float) -> float:
    """The factor as printed, c^ (K + 1) F: it is "relative to SD" without c^, and with it in target FLOPs."""
    return flops_ratio * cache_entries(fanout, lookahead)


@law()
def cached_values(fanout: Sequence[int], lookahead: int, vocabulary: int, batch: int = 1) -> int:
    """Values the cache stores: for each drafted token its id and V logits (`ssd.acct`)."""
    return draft_tokens(fanout, lookahead, batch) * (vocabulary + 1)


@law()
def message_values(lookahead: int, vocabulary: int, batch: int = 1) -> tuple[int, int]:
    """Values per round, to the draft and to the target: 2 b, and b K (V + 1)  (`ssd.acct`: O(b), O(b K V)).

    Up go a count and a bonus token per row, down K tokens with the logits the target needs to verify.
    """
    return 2 * batch, batch * lookahead * (vocabulary + 1)


@law()
def branch_mask(fanout: Sequence[int], lookahead: int, prefix: int = 0, depth: int = 1) -> NDArray[np.bool_]:
    """[sum F, P + K + depth sum F] which tokens each branch of one row may attend to (`ssd.mask`, Fig. 8).

    Columns: the verified prefix [P], the speculation being verified [K], then the tokens of all branches,
    step by step [depth, sum F], a bonus token first (it counts as one of `depth`).  A branch after k accepted
    tokens sees the prefix, s_1 ... s_k and its own path.
    """
    accepted = np.repeat(np.arange(lookahead + 1), _by_position(fanout, lookahead))
    branches = len(accepted)
    verified = np.ones((branches, prefix), dtype=np.bool_)
    trunk = np.arange(lookahead) < accepted[:, None]
    own = np.tile(np.eye(branches, dtype=np.bool_), (1, depth))
    return np.concatenate([verified, trunk, own], axis=1)


def _by_position(fanout: Sequence[int], lookahead: int | None) -> tuple[int, ...]:
    """Fan-out of each position."""
    if lookahead is None or len(fanout) == lookahead + 1:
        return tuple(fanout)
    if len(fanout) != 1:
        raise ValueError(f"K = {lookahead} has {lookahead + 1} positions, got {len(fanout)} fan-outs")
    return tuple(fanout) * (lookahead + 1)
