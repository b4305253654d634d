"""Laws of Mirror-SD, DOUBLE, DuoDecoding and RASD, against their policies."""

from __future__ import annotations

import math
from collections.abc import Callable

from analysis.breaks.bench import Bench, Estimate, Stretches
from analysis.breaks.comparison import Law, Observe, applied, by_bound, by_value
from analysis.breaks.points import Case, Point
from analysis.papers.rasd import fused_tau
from policies.laws import double, mirror
from policies.laws.duo import duo_speedup
from policies.laws.ssd import hit_rate_primary, power_law_hit

EXIT = 0.5
"""Depth of Mirror's early exit."""
EXITS = (Point(0.8, 4, 0.1, kappa=8), Point(0.6, 3, 0.2, kappa=2))
UNSURE_EXITS = (Point(0.6, 4, 0.1, kappa=8, exponent=0.05),)
"""Exits whose further candidates seldom hit, so that fallbacks are many and soon counted."""
RETRIEVING = (Point(0.6, 3, 1 / 3, matched=0.5),)
UNBOUND = Point(0.9, 1, 1.0, matched=2.0)
"""C = 1: the target retrieves as fast as the draft does, and adds its tokens to the draft's."""
SEQUENCES = (Point(0.6, 4, 1 / 4),)
TWO_SEQUENCES = (Point(0.6, 4, 1 / 4, scale=0.5),)
HALVES = (Point(0.75, 1, 0.1, halves=(3.0, 0.5)), Point(0.75, 1, 0.1, halves=(1.5, 1.5)))

_WAITS = {
    "jitter": "a round lasts as long as the slower of two devices, on average more than the slower mean",
    "verify-k": "a verification of more tokens than one is charged as one step",
    "contention": "both devices run slower while they overlap",
}


def omega(point: Point) -> float:
    """Omega of coins: the drafted token, or one of kappa others (`mirror.eq9`)."""
    return point.acceptance + (1.0 - point.acceptance) * _named(point)


def _named(point: Point) -> float:
    return float(power_law_hit([point.kappa], point.exponent, point.scale)[0])


def all_fallbacks(point: Point) -> float:
    """Share of rounds after which nothing can be reused, those without a correction among them."""
    fanout = (point.kappa,) * (point.lookahead + 1)
    return 1.0 - hit_rate_primary(point.acceptance, fanout, point.exponent, point.scale)


def mirror_step(point: Point, fallbacks: float) -> float:
    """`mirror.eq10`, corrected; a rollout takes a step more than a draft anew, its glue step."""
    rollout = point.t_primary + point.draft_s
    step = mirror.mirror_step_time_printed(EXIT, 1.0 - EXIT, rollout, 0.0)
    return step + fallbacks * point.t_primary


def double_tokens(point: Point) -> float:
    """Tokens per round of DOUBLE with iid acceptance a and geometric matches of mean AMT, of both models.

    A round in which all m pending tokens pass emits m and T more, T - 1 of them retrieved by the target; it
    leaves L - T pending if the draft's L tokens begin with these T.  With x = a (1 - s)/(1 - a s),
    s = AMT/(1 + AMT), a drafted token and its matches pass with x, and L is a sum of g such stretches:

        G = P(pending next | all passed) = E[a^T; T < L] = x (1 - phi(a s)/(a s)),
        W = G P(all pass | pending) = E[a^L; T < L] = phi(a) - phi(a s)/s,

    phi(z) = E z^L = (z (1 - s)/(1 - z s))^g.  A share pi = G/(1 + G - W) of the rounds has pending tokens.
    At AMT = 0 that is PEARL.
    """
    a, g, amt = point.acceptance, point.lookahead, max(point.matched, 1e-9)
    s = amt / (1.0 + amt)

    def phi(z: float) -> float:
        return float((z * (1.0 - s) / (1.0 - z * s)) ** g)

    begun = a * (1.0 - s) / (1.0 - a * s) * (1.0 - phi(a * s) / (a * s))
    passed = phi(a) - phi(a * s) / s
    pending = begun / (1.0 + begun - passed)
    whole = passed / begun
    extended = 1.0 + amt
    after = (1.0 - whole) / (1.0 - a) + whole * extended
    return (1.0 - pending) * extended + pending * after


def double_speed(point: Point) -> float:
    """`double.eq7` with the exact tokens: a round is the longer of g retrieval forwards and a step."""
    return double_tokens(point) / max(1.0, point.lookahead * point.draft_s)


def two_sequences_speed(point: Point) -> float:
    """DuoDecoding with two sequences of 1 + d and d tokens, d = (K - 1)/2 rounded down, and iid acceptance.

    The first token is right in the leading one with a, in the other with b = (1 - a) h, h the hit rate of
    one guess; the d or d - 1 tokens behind it are pending then.  All of a round's pending tokens pass in a
    share w of the rounds, w = 1/(1 + a + b - a^(d+1) - b a^(d-1)).  b = 0 is PEARL at K = d + 1.
    """
    a, depth = point.acceptance, (point.lookahead - 1) // 2
    b = (1.0 - a) * float(power_law_hit([1], point.exponent, point.scale)[0])
    passed = 1.0 / (1.0 + a + b - a ** (depth + 1) - b * a ** (depth - 1))
    tokens = 1.0 - (a + b) * passed
    tokens += passed * (a * (1.0 - a ** (depth + 1)) + b * (1.0 - a**depth)) / (1.0 - a)
    return tokens / max(1.0, (depth + 1) * point.draft_s)


def double_speed_printed(point: Point) -> float:
    """`double.eq7` as printed, its gamma in tokens, with L_d of `double.thm3` and L_b = AMT per run."""
    drafted = applied(double.draft_length)(point)
    quick = point.ratio * (1.0 + point.matched)
    k = double.rounds_per_run(point.acceptance, drafted)
    bonus = point.matched * quick / (k * drafted + quick)
    return double.psd_speedup_printed(point.acceptance, math.ceil(drafted), quick) + bonus


def _seen(run: Callable[[Bench, Case], Stretches | None], above: str, below: str) -> Observe:
    def observe(bench: Bench, case: Case) -> Estimate | None:
        found = run(bench, case)
        return None if found is None else found.ratio(above, below)

    return observe


def _speed(run: Callable[[Bench, Case], Stretches | None]) -> Observe:
    def observe(bench: Bench, case: Case) -> Estimate | None:
        found = run(bench, case)
        return None if found is None else bench.speedup(found, case)

    return observe


def _two_sequences(bench: Bench, case: Case) -> Stretches | None:
    return bench.duo(case, sequences="2")


_STEP = _seen(Bench.mirror, "seconds", "rounds")
_FALLBACKS = _seen(Bench.mirror, "fallbacks", "rounds")
_FUSED = _seen(Bench.halves, "fused", "rounds")
_STEP_RELAXED = {
    "position": "later tokens are rejected more often, and every rejection is a chance to fall back",
    "decided": "the law has the exit name all that was drafted right; it does not, and need not",
    **_WAITS,
    "branches": "T_draft is that of one chain; kappa branches at each position outgrow the later layers",
}
_FALLBACK_RELAXED = {
    "position": "none in the bound: Omega is a mean, whatever the position; rejections come earlier",
    "decided": "the law has the exit name all that was drafted right; it does not, and need not",
}
_DOUBLE_RELAXED = {
    "decided": "retrieval matches in stretches, or not at all, and what it matches is easy to draft",
    **_WAITS,
}
_FUSED_RELAXED = {
    "position": "matches of the same mean are shorter and more alike: their longer one gains less",
    "decided": "retrieval finds what is easy to draft, too: both halves match at the same places",
}

SYSTEM_LAWS = (
    Law(
        "mirror.eq10.printed",
        "as printed",
        "step of Mirror-SD: T_prefix + max(Delta, T_draft)",
        EXITS,
        _STEP_RELAXED,
        by_value(lambda point: mirror_step(point, 0.0), _STEP),
        fault="where nothing can be reused the window is drafted anew, in the open",
    ),
    Law(
        "mirror.eq10",
        "corrected",
        "step of Mirror-SD: the same + FF T_draft",
        EXITS,
        _STEP_RELAXED,
        by_value(lambda point: mirror_step(point, all_fallbacks(point)), _STEP),
    ),
    Law(
        "mirror.prop1.printed",
        "as printed",
        "at most a share 1 - Omega of the rounds falls back",
        UNSURE_EXITS,
        _FALLBACK_RELAXED,
        by_bound(lambda point: mirror.fallback_bound_printed(omega(point)), _FALLBACKS, upper=True),
        fault="a window has as many chances to fall back as tokens; the bound counts one",
    ),
    Law(
        "mirror.prop1",
        "corrected",
        "share of rounds that fall back: (1 - Omega)(1 + a + ... + a^(g-1))",
        UNSURE_EXITS,
        _FALLBACK_RELAXED,
        by_value(lambda point: mirror.fallback(point.acceptance, omega(point), point.lookahead), _FALLBACKS),
    ),
    Law(
        "double.eq7.printed",
        "as printed",
        "speedup of DOUBLE: (L_d + L_b) C'/(k g + C'), C' = C (1 + AMT), g in tokens",
        RETRIEVING,
        _DOUBLE_RELAXED,
        by_value(double_speed_printed, _speed(Bench.double)),
        fault="it overcounts the last round of a run, and charges a bubble that pre-verification fills",
    ),
    Law(
        "double.eq7",
        "corrected",
        "speedup of DOUBLE: exact tokens of a round over max(1, g/C)",
        RETRIEVING,
        _DOUBLE_RELAXED,
        by_value(double_speed, _speed(Bench.double)),
    ),
    Law(
        "double.eq7.ceiling",
        "as printed",
        "no speedup of DOUBLE exceeds C (1 + AMT)",
        (UNBOUND, *RETRIEVING),
        _DOUBLE_RELAXED,
        by_bound(lambda point: point.ratio * (1.0 + point.matched), _speed(Bench.double), upper=True),
        fault="tokens that the target retrieves take no time of the draft's, so that C does not bound them",
    ),
    Law(
        "duo.alg1",
        "printed = corrected",
        "speedup of DuoDecoding with one sequence: that of a pre-verifying pipeline",
        SEQUENCES,
        {
            "position": "a block begins with tokens better than the mean and ends with worse",
            "decided": "hard tokens come in clusters; several sequences raise the chance of the first token "
            "and shorten the block",
            **_WAITS,
        },
        by_value(applied(duo_speedup), _speed(Bench.duo)),
    ),
    Law(
        "duo.sequences",
        "not printed",
        "speedup of DuoDecoding with two sequences: exact tokens of a round",
        TWO_SEQUENCES,
        {
            "decided": "the draft's second choice is right where its first is in doubt, where it counts",
            **_WAITS,
            "branches": "a step of two sequences is charged as one of one",
        },
        by_value(two_sequences_speed, _speed(_two_sequences)),
    ),
    Law(
        "rasd.fuse",
        "not printed",
        "tau of a fused tree: the longer of two independent geometric matches",
        HALVES,
        _FUSED_RELAXED,
        by_value(lambda point: fused_tau(*point.halves), _FUSED),
    ),
    Law(
        "rasd.fuse.upper",
        "not printed",
        "tau of a fused tree is at most the sum of its halves'",
        HALVES,
        _FUSED_RELAXED,
        by_bound(lambda point: math.fsum(point.halves), _FUSED, upper=True),
    ),
    Law(
        "rasd.fuse.lower",
        "not printed",
        "tau of a fused tree is at least that of its better half",
        HALVES,
        _FUSED_RELAXED,
        by_bound(lambda point: max(point.halves), _FUSED, upper=False),
    ),
)
