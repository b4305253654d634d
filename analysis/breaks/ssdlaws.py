"""Laws of SSD / Saguaro."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from analysis.breaks.bench import Bench, Estimate
from analysis.breaks.comparison import Comparer, Comparison, Law, between, by_bound, by_value, says, twins
from analysis.breaks.points import Case, Point
from policies.laws.fanout import exact_fanout, power_law_table
from policies.laws.ssd import outcome_weights

DEEPEST = 15
"""Largest fan-out that the recording can decide."""

A = Point(0.8, 4, 0.1, fanout=(3,) * 5)
B = Point(0.6, 3, 0.2, fanout=(2,) * 4)
C = Point(0.9, 8, 0.1, fanout=(4,) * 9)
D = Point(0.8, 4, 0.25, fanout=(3,) * 5)
PRIMARY = (A, B, D)
PLAIN = tuple(replace(point, backup="plain") for point in (A, B, C))
BATCHED = (replace(A, batch=4), replace(A, batch=8), replace(B, batch=8), replace(C, batch=4, backup="plain"))
SPREAD = (
    Point(0.8, 4, 0.1, budget=20),
    Point(0.8, 5, 0.1, budget=32, exponent=0.5),
    Point(0.6, 6, 0.1, budget=12, exponent=0.5),
)
SWITCHED = (Point(0.8, 4, 0.1, fanout=(2, 8, 8, 8, 8)), Point(0.9, 8, 0.05, fanout=(3, *(6,) * 8)))

_HITS = {
    "position": "the outcomes are not weighted a^k (1 - a)",
    "trace": "after a plain decode nothing was rejected and the draft's first choice is a guess, too; the "
    "curve that the law is told is that after a rejection",
}
_SPEED = {
    "position": "E(a, K) and the outcome weights are those of iid acceptance",
    "trace": "where nothing was rejected (k = K, a plain decode) guesses hit more often than the fitted "
    "curve says, and rounds come in clusters",
    "jitter": "a hit waits for the slower of verification and pre-speculation",
    "verify-k": "a verification of K + 1 tokens is charged as one step",
    "branches": "T_p is that of one chain; with its glue step and branches it outgrows the verification",
    "contention": "verification and pre-speculation slow each other in every round",
    "tree": "a miss is charged 1, but waits for a tree of T_p",
    "short": "the first speculation is drafted in the open, the last round is cut",
}
_TREE_KNOWN = {**_SPEED, "tree": "none: the corrected form charges max(1, T_p) to a miss"}
_BATCH = {
    "verify-batch": "the verification of b (K + 1) tokens costs more than b steps of decoding",
    "correlated": "rows that miss together stall the batch once: p^b becomes p^(b/m)",
    "short": "whenever a row begins anew the whole batch waits for its first draft",
}


def _saguaro_speed(bench: Bench, case: Case) -> Estimate:
    return bench.speedup(bench.saguaro(case), case)


def _over_sd(bench: Bench, case: Case) -> Estimate:
    return _saguaro_speed(bench, case).over(bench.speedup(bench.sd(case), case))


def _exact(point: Point) -> Point:
    weights = outcome_weights(point.acceptance, point.lookahead)
    table = power_law_table(point.lookahead + 1, point.exponent, point.scale, DEEPEST)
    return replace(point, fanout=exact_fanout(weights, table, point.budget))


def _hits_of(spread: Callable[[Point], Point]) -> Callable[[Bench, Case], Estimate]:
    def observe(bench: Bench, case: Case) -> Estimate:
        run = bench.saguaro(replace(case, point=spread(case.point)))
        return run.ratio("primary_hits", "primary_looked_up")

    return observe


def _lost_by_closed_form(bench: Bench, case: Case) -> Comparison:
    """Hit rate of the exact fan-outs over that of the closed form's, less one."""
    closed, exact = (_hits_of(spread)(bench, case) for spread in (Point.with_closed_form, _exact))
    gain = exact.over(closed)
    return Comparison(closed.value, exact.value, gain.value - 1.0, gain.error)


def _switch(*, printed: bool) -> Comparer:
    """At b* both backups are equally fast: law 1, simulated fast / slow there, between whole batches."""

    def compare(bench: Bench, case: Case) -> Comparison | None:
        b = switch_at(case.point, printed=printed)
        if b == math.inf:  # never, which no batch can show
            return None
        if b < 1.0:  # always: at a batch of one the fast backup has to be no slower
            seen = _fast_over_slow(bench, case, 1)
            lost = max(0.0, 1.0 / seen.value - 1.0)
            return Comparison(1.0, seen.value, lost, seen.error / seen.value**2)
        step = case.world.clones if b >= case.world.clones else 1
        low = step * math.floor(b / step)
        share = (b - low) / step
        seen = _fast_over_slow(bench, case, low)
        if share > 0.0:
            seen = between(seen, _fast_over_slow(bench, case, low + step), share)
        return Comparison(1.0, seen.value, 1.0 / seen.value - 1.0, seen.error / seen.value**2)

    return Comparer("value", compare)


def _fast_over_slow(bench: Bench, case: Case, batch: int) -> Estimate:
    world = replace(case.world, clones=min(case.world.clones, batch))
    fast, slow = (
        bench.saguaro(Case(replace(case.point, batch=batch, backup=backup), world)).ratio("tokens", "seconds")
        for backup in ("plain", "primary")
    )
    return fast.over(slow)


def switch_at(point: Point, *, printed: bool) -> float:
    """b* (`ssd.thm17`), told the hit rates by what was verified: the primary's tokens, or nothing."""
    return says("ssd.thm17", printed=printed)(replace(point, backup="plain"))


_SWITCH = {**_SPEED, **_BATCH}
_LOST = {
    "position": "as under its own assumptions; the weights that it takes for a^k (1 - a) are others",
    "trace": "as under its own assumptions, told the fitted curve",
    "short": "as under its own assumptions",
}
_THM12 = {**_HITS, "short": "the rounds that a limit cuts are those with many tokens"}

SSD_LAWS = (
    Law(
        "ssd.eq1",
        "printed = corrected",
        "long-run hit rate p_b / (1 + p_b - p_p)",
        PLAIN,
        {**_HITS, "short": "every output starts from a primary draft, not from the long run"},
        by_value(says("ssd.eq1"), lambda bench, case: bench.saguaro(case).ratio("hits", "looked_up")),
    ),
    *twins(
        "ssd.thm7",
        ("speedup of SSD; a miss takes 1 + T_b", "speedup of SSD; a miss takes max(1, T_p) + T_b"),
        (*PLAIN, A, D),
        _SPEED,
        _saguaro_speed,
        corrected=_TREE_KNOWN,
    ),
    *twins(
        "ssd.cor8",
        ("SSD over SD with the same draft on a miss", "the same where a miss takes max(1, T) + T"),
        PRIMARY,
        _SPEED,
        _over_sd,
        corrected=_TREE_KNOWN,
    ),
    Law(
        "ssd.cor9.upper",
        "printed = corrected",
        "SSD over SD is at most (1 + T_SD) E_hit/E_SD",
        PLAIN,
        _SPEED,
        by_bound(says("ssd.cor9", part=1), _over_sd, upper=True),
    ),
    Law(
        "ssd.cor9.lower.printed",
        "as printed",
        "SSD over SD is at least (1 + T_SD) p E_hit/E_SD",
        PLAIN,
        _SPEED,
        by_bound(says("ssd.cor9", printed=True, part=0), _over_sd, upper=False),
    ),
    Law(
        "ssd.cor9.lower",
        "corrected",
        "SSD over SD is at least (1 + T_SD)(p E_hit + 1 - p)/E_SD; T_p <= 1",
        PLAIN,
        _SPEED,
        by_bound(says("ssd.cor9", part=0), _over_sd, upper=False),
    ),
    Law(
        "ssd.thm12.printed",
        "as printed",
        "the closed form's fan-outs, rounded, hit most often",
        SPREAD,
        _LOST,
        Comparer("choice", _lost_by_closed_form),
        fault="a small budget puts less than one guess on unlikely positions, which hits less than nothing",
    ),
    Law(
        "ssd.thm12",
        "corrected",
        "p_hit,p of the exact whole-numbered fan-outs",
        SPREAD,
        _THM12,
        by_value(lambda point: _exact(point).p_primary, _hits_of(_exact)),
    ),
    *twins(
        "ssd.cor16",
        (
            "speedup of a batch that stalls on any miss, which takes 1 + T_b",
            "speedup of a batch that stalls on any miss, which takes max(1, T_p) + T_b",
        ),
        BATCHED,
        {**_SPEED, **_BATCH},
        _saguaro_speed,
        corrected=_TREE_KNOWN | _BATCH,
    ),
    Law(
        "ssd.thm17.printed",
        "as printed",
        "batch b* at which the slow and the fast backup are equally fast",
        SWITCHED,
        _SWITCH,
        _switch(printed=True),
        fault="the backup changes the hit rate, for which the printed form has one symbol",
    ),
    Law(
        "ssd.thm17",
        "corrected",
        "the same with a hit rate for each backup",
        SWITCHED,
        {**_SWITCH, "tree": "none: the corrected form charges max(1, T_p) to a miss"},
        _switch(printed=False),
    ),
)
