"""The laws that are put to the test, and where each of them is tried, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from analysis.breaks.comparison import (
    CORRECTED,
    PRINTED,
    SAME,
    UNPRINTED,
    Comparer,
    Law,
    LawError,
    applied,
    between,
    both,
    by_bound,
    by_value,
    error_of_value,
    loss,
    ratio,
    says,
    speed,
    tried,
    twins,
)
from analysis.breaks.relaxations import RELAXATIONS
from analysis.breaks.runs import PIPELINE, RASD, TWO_SEQUENCES, NotSeen, Observation, PolicyRuns
from analysis.breaks.worlds import Case, LawPoint
from analysis.papers.rasd import fused_tau
from policies.laws import double, mirror
from policies.laws.catalogue import did_you_mean
from policies.laws.duo import duo_speedup
from policies.laws.fanout import exact_fanout, geometric_fanout, power_law_table, round_fanout
from policies.laws.ssd import hit_rate_primary, outcome_weights
from policies.registry import SettingError

DRAFTED = (LawPoint(0.8, 4, 0.1), LawPoint(0.6, 3, 0.2), LawPoint(0.9, 8, 0.1))
BALANCED = (LawPoint(0.8, 4, 1 / 4), LawPoint(0.6, 3, 1 / 3), LawPoint(0.9, 8, 1 / 8))
"""gamma = C, as PEARL, DOUBLE and DuoDecoding choose it."""

_TOKENS = {
    "position": "rounds begin with tokens better than the mean and end with worse: more tokens, fewer full "
    "blocks",
    "trace": "hard positions come in clusters: more rounds with nothing accepted, more with all",
}
_CUT = "the last round of an output is cut off"
_LEVEL = {
    "jitter": "none: the mean of a sum is the sum of the means",
    "verify-k": "a verification of K + 1 tokens is charged as one step",
}
_PIPELINE_WAITS = {
    "jitter": "a round lasts as long as the slower of two devices, on average more than the slower mean",
    "verify-k": "a verification of K + 1 tokens is charged as one step",
    "contention": "both devices run slower while they overlap, the whole round long",
}
_PIPELINE_SHORT = "every output starts with an empty pipeline and throws away what is drafted past its end"


def _lost_at_c(bench: PolicyRuns, case: Case) -> LawError:
    """Speed that PEARL loses at the lookahead C against others from half of C to a little more than C."""
    c = round(case.point.ratio)
    chosen = double.balanced_lookahead(case.point.ratio)
    speeds = {
        lookahead: bench.speedup("pearl", replace(case, point=replace(case.point, lookahead=lookahead)))
        for lookahead in sorted({max(1, c // 2), 3 * c // 4, c - 1, c, c + 1, chosen})
    }
    best = max(speeds, key=lambda lookahead: speeds[lookahead].value)
    return loss(chosen, best, speeds[best].over(speeds[chosen]))


_THM2_FAULT = "the last round of a run is one that rejects, which the printed form does not condition on"
_PSD_FAULT = f"{_THM2_FAULT}, so that it overcounts"
_PIPELINED = {**_TOKENS, **_PIPELINE_WAITS, "short": _PIPELINE_SHORT}
_RUN = {**_TOKENS, "short": "a cut round is no rejection, and a run ends with its output"}

SD_LAWS = (
    tried(
        ("ar", SAME, "plain decoding: a token per step, whatever the batch"),
        (
            (LawPoint(0.8, 1, 0.1), LawPoint(0.8, 1, 0.1, batch=8)),
            {
                "jitter": "none: the mean of a sum is the sum of the means",
                "verify-batch": "the step of a batch is slower than that of one row",
            },
        ),
        by_value(lambda point: 1.0, ratio("ar", "tokens", "seconds")),
    ),
    tried(
        ("double.thm1", SAME, "tokens of a round: E(a, K)"),
        (DRAFTED, {**_TOKENS, "short": _CUT}),
        by_value(says("double.thm1"), ratio("sd", "tokens", "rounds")),
    ),
    tried(
        ("double.eq8", SAME, "rounds up to the first rejection: k = 1/(1 - a^g)"),
        (DRAFTED, _RUN),
        by_value(says("double.eq8"), ratio("sd", "rounds", "rejected")),
    ),
    *twins(
        "double.thm2",
        (
            "tokens up to the first rejection: (k - 1)(g + 1) + E(a, g)",
            "tokens up to the first rejection: k E(a, g)",
        ),
        (DRAFTED, _RUN),
        both("double.thm2", ratio("sd", "tokens", "rejected")),
        fault=_THM2_FAULT,
    ),
    *twins(
        "double.eq11",
        ("speedup of SD: E[L_k] C / (k (g + C))", "speedup of SD: E(a, g) C / (g + C)"),
        ((*DRAFTED, BALANCED[0]), {**_TOKENS, **_LEVEL, "short": _CUT}),
        both("double.eq11", speed("sd")),
        fault=_PSD_FAULT,
    ),
    tried(
        ("double.thm3.printed", PRINTED, "S_PSD against the plain pipeline that it describes"),
        (BALANCED, _PIPELINED),
        by_value(says("double.thm3", printed=True), speed(PIPELINE)),
        fault=_PSD_FAULT,
    ),
    tried(
        ("double.thm3.printed-pearl", PRINTED, "S_PSD against PEARL, which it is said to be of"),
        (BALANCED, _PIPELINED),
        by_value(says("double.thm3", printed=True), speed("pearl")),
        fault=f"{_PSD_FAULT}, and knows no pre-verification, so that it undercounts where little is accepted",
    ),
    tried(
        ("double.thm3.plain", CORRECTED, "S_plain, the exact rate of a plain pipeline"),
        (BALANCED, _PIPELINED),
        by_value(says("double.thm3"), speed(PIPELINE)),
    ),
    tried(
        ("double.thm3.pearl", CORRECTED, "S_PEARL, the exact rate with pre-verification"),
        ((*BALANCED, LawPoint(0.8, 4, 0.1)), _PIPELINED),
        by_value(applied(double.pearl_speedup), speed("pearl")),
    ),
    tried(
        ("double.thm3.ceiling", SAME, "no pipeline exceeds C"),
        ((*BALANCED, LawPoint(0.95, 12, 1 / 4)), _PIPELINED),
        by_bound(applied(double.psd_ceiling), speed("pearl"), upper=True),
    ),
    tried(
        ("duo.budget", SAME, "the best lookahead of a pipeline is C"),
        (
            (LawPoint(0.8, 8, 1 / 8), LawPoint(0.6, 8, 1 / 8)),
            {
                "position": "none: up to C a longer block costs no time, however little its end is accepted",
                "trace": "none: up to C a longer block costs no time",
                "jitter": "at gamma = C the two devices tie, where waiting for the slower one costs most",
                "verify-k": "a longer block is dearer to verify, and drafting is not what takes longest",
                "contention": "a shorter block overlaps less",
                "short": "none: overshoot costs no time either",
            },
        ),
        Comparer("choice", _lost_at_c),
    ),
)


EXIT = 0.5
"""Depth of Mirror's early exit."""
EXITS = (LawPoint(0.8, 4, 0.1, kappa=8), LawPoint(0.6, 3, 0.2, kappa=2))
UNSURE_EXITS = (LawPoint(0.6, 4, 0.1, kappa=8, exponent=0.05),)
"""Exits whose further candidates seldom hit, so that fallbacks are many and soon counted."""
RETRIEVING = (LawPoint(0.6, 3, 1 / 3, matched=0.5),)
UNBOUND = LawPoint(0.9, 1, 1.0, matched=2.0)
"""C = 1: the target retrieves as fast as the draft does, and adds its tokens to the draft's."""
SEQUENCES = (LawPoint(0.6, 4, 1 / 4),)
OPENED = (LawPoint(0.6, 4, 1 / 4, scale=0.5),)
RASD_TREES = (LawPoint(0.75, 1, 0.1, trees=(3.0, 0.5)), LawPoint(0.75, 1, 0.1, trees=(1.5, 1.5)))

_WAITS = {
    "jitter": "a round lasts as long as the slower of two devices, on average more than the slower mean",
    "verify-k": "a verification of more tokens than one is charged as one step",
    "contention": "both devices run slower while they overlap",
}


def omega(point: LawPoint) -> float:
    """Omega of coins: the drafted token, or one of kappa others (`mirror.eq9`)."""
    return point.acceptance + (1.0 - point.acceptance) * point.hit(point.kappa)


def all_fallbacks(point: LawPoint) -> float:
    """Share of rounds after which nothing can be reused, those without a correction among them."""
    fanout = (point.kappa,) * (point.lookahead + 1)
    return 1.0 - hit_rate_primary(point.acceptance, fanout, point.exponent, point.scale)


def mirror_step(point: LawPoint, fallbacks: float) -> float:
    """`mirror.eq10`, corrected; a rollout takes a step more than a draft anew, its glue step."""
    rollout = point.t_primary + point.draft_s
    step = mirror.mirror_step_time_printed(EXIT, 1.0 - EXIT, rollout, 0.0)
    return step + fallbacks * point.t_primary


def double_tokens(point: LawPoint) -> float:
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


def double_speed(point: LawPoint) -> float:
    """`double.eq7` with the exact tokens: a round is the longer of g retrieval forwards and a step."""
    return double_tokens(point) / max(1.0, point.lookahead * point.draft_s)


def two_sequences_speed(point: LawPoint) -> float:
    """DuoDecoding with two sequences of 1 + d and d tokens, d = (K - 1)/2 rounded down, and iid acceptance.

    The first token is right in the leading one with a, in the other with b = (1 - a) h, h the hit rate of
    one guess; the d or d - 1 tokens behind it are pending then.  All of a round's pending tokens pass in a
    share w of the rounds, w = 1/(1 + a + b - a^(d+1) - b a^(d-1)).  b = 0 is PEARL at K = d + 1.
    """
    a, depth = point.acceptance, (point.lookahead - 1) // 2
    b = (1.0 - a) * point.hit(1)
    passed = 1.0 / (1.0 + a + b - a ** (depth + 1) - b * a ** (depth - 1))
    tokens = 1.0 - (a + b) * passed
    tokens += passed * (a * (1.0 - a ** (depth + 1)) + b * (1.0 - a**depth)) / (1.0 - a)
    return tokens / max(1.0, (depth + 1) * point.draft_s)


def double_speed_printed(point: LawPoint) -> float:
    """`double.eq7` as printed, its gamma in tokens, with L_d of `double.thm3` and L_b = AMT per run."""
    drafted = applied(double.draft_length)(point)
    quick = point.ratio * (1.0 + point.matched)
    k = double.rounds_per_run(point.acceptance, drafted)
    bonus = point.matched * quick / (k * drafted + quick)
    return double.psd_speedup_printed(point.acceptance, math.ceil(drafted), quick) + bonus


_STEP = ratio("mirror", "seconds", "rounds")
_FALLBACKS = ratio("mirror", "fallbacks", "rounds")
_FUSED = ratio(RASD, "fused", "rounds")
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
    *twins(
        "mirror.eq10",
        ("step of Mirror-SD: T_prefix + max(Delta, T_draft)", "step of Mirror-SD: the same + FF T_draft"),
        (EXITS, _STEP_RELAXED),
        (
            by_value(lambda point: mirror_step(point, 0.0), _STEP),
            by_value(lambda point: mirror_step(point, all_fallbacks(point)), _STEP),
        ),
        fault="where nothing can be reused the window is drafted anew, in the open",
    ),
    tried(
        ("mirror.prop1.printed", PRINTED, "at most a share 1 - Omega of the rounds falls back"),
        (UNSURE_EXITS, _FALLBACK_RELAXED),
        by_bound(lambda point: mirror.fallback_bound_printed(omega(point)), _FALLBACKS, upper=True),
        fault="a window has as many chances to fall back as tokens; the bound counts one",
    ),
    tried(
        ("mirror.prop1", CORRECTED, "share of rounds that fall back: (1 - Omega)(1 + a + ... + a^(g-1))"),
        (UNSURE_EXITS, _FALLBACK_RELAXED),
        by_value(lambda point: mirror.fallback(point.acceptance, omega(point), point.lookahead), _FALLBACKS),
    ),
    *twins(
        "double.eq7",
        (
            "speedup of DOUBLE: (L_d + L_b) C'/(k g + C'), C' = C (1 + AMT), g in tokens",
            "speedup of DOUBLE: exact tokens of a round over max(1, g/C)",
        ),
        (RETRIEVING, _DOUBLE_RELAXED),
        (by_value(double_speed_printed, speed("double")), by_value(double_speed, speed("double"))),
        fault="it overcounts the last round of a run, and charges a bubble that pre-verification fills",
    ),
    tried(
        ("double.eq7.ceiling", PRINTED, "no speedup of DOUBLE exceeds C (1 + AMT)"),
        ((UNBOUND, *RETRIEVING), _DOUBLE_RELAXED),
        by_bound(lambda point: point.ratio * (1.0 + point.matched), speed("double"), upper=True),
        fault="tokens that the target retrieves take no time of the draft's, so that C does not bound them",
    ),
    tried(
        ("duo.alg1", SAME, "speedup of DuoDecoding with one sequence: that of a pre-verifying pipeline"),
        (
            SEQUENCES,
            {
                "position": "a block begins with tokens better than the mean and ends with worse",
                "decided": "hard tokens come in clusters; several sequences raise the chance of the first "
                "token and shorten the block",
                **_WAITS,
            },
        ),
        by_value(applied(duo_speedup), speed("duo")),
    ),
    tried(
        ("duo.sequences", UNPRINTED, "speedup of DuoDecoding with two sequences: exact tokens of a round"),
        (
            OPENED,
            {
                "decided": "the draft's second choice is right where its first is in doubt, where it counts",
                **_WAITS,
                "branches": "a step of two sequences is charged as one of one",
            },
        ),
        by_value(two_sequences_speed, speed(TWO_SEQUENCES)),
    ),
    tried(
        ("rasd.fuse", UNPRINTED, "tau of a fused tree: the longer of two independent geometric matches"),
        (RASD_TREES, _FUSED_RELAXED),
        by_value(lambda point: fused_tau(*point.trees), _FUSED),
    ),
    tried(
        ("rasd.fuse.upper", UNPRINTED, "tau of a fused tree is at most the sum of its halves'"),
        (RASD_TREES, _FUSED_RELAXED),
        by_bound(lambda point: math.fsum(point.trees), _FUSED, upper=True),
    ),
    tried(
        ("rasd.fuse.lower", UNPRINTED, "tau of a fused tree is at least that of its better half"),
        (RASD_TREES, _FUSED_RELAXED),
        by_bound(lambda point: max(point.trees), _FUSED, upper=False),
    ),
)


DEEPEST = 15
"""Largest fan-out that the recording can decide."""

A = LawPoint(0.8, 4, 0.1, fanout=(3,) * 5)
B = LawPoint(0.6, 3, 0.2, fanout=(2,) * 4)
C = LawPoint(0.9, 8, 0.1, fanout=(4,) * 9)
D = LawPoint(0.8, 4, 0.25, fanout=(3,) * 5)
PRIMARY = (A, B, D)
PLAIN = tuple(replace(point, backup="plain") for point in (A, B, C))
BATCHED = (replace(A, batch=4), replace(A, batch=8), replace(B, batch=8), replace(C, batch=4, backup="plain"))
SPREAD = (
    LawPoint(0.8, 4, 0.1, budget=20),
    LawPoint(0.8, 5, 0.1, budget=32, exponent=0.5),
    LawPoint(0.6, 6, 0.1, budget=12, exponent=0.5),
)
SWITCHED = (
    LawPoint(0.8, 4, 0.1, fanout=(2, 8, 8, 8, 8)),
    LawPoint(0.9, 8, 0.05, fanout=(3, *(6,) * 8)),
)

_HITS = {
    "position": "the outcomes are not weighted a^k (1 - a)",
    "trace": "after a plain decode nothing was rejected and the draft's first choice is a guess, too; the "
    "curve that the law is told is that after a rejection",
}
_SSD_SPEED = {
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
_KNOWN = {"tree": "none: the corrected form charges max(1, T_p) to a miss"}
_BATCH = {
    "verify-batch": "the verification of b (K + 1) tokens costs more than b steps of decoding",
    "correlated": "rows that miss together stall the batch once: p^b becomes p^(b/m)",
    "short": "whenever a row begins anew the whole batch waits for its first draft",
}


def _over_sd(bench: PolicyRuns, case: Case) -> Observation:
    return bench.speedup("saguaro", case).over(bench.speedup("sd", case))


def exact_spread(point: LawPoint) -> LawPoint:
    """The point with its budget spread over whole guesses by `ssd.thm12`, corrected."""
    weights = outcome_weights(point.acceptance, point.lookahead)
    table = power_law_table(point.lookahead + 1, point.exponent, point.scale, DEEPEST)
    return replace(point, fanout=exact_fanout(weights, table, point.budget))


def closed_spread(point: LawPoint) -> LawPoint:
    """The point with its budget spread by the closed form of `ssd.thm12`, rounded."""
    real = geometric_fanout(point.acceptance, point.exponent, point.lookahead, point.budget)
    return replace(point, fanout=round_fanout(real, point.budget))


def _hits_of(spread: Callable[[LawPoint], LawPoint], bench: PolicyRuns, case: Case) -> Observation:
    run = bench.run("saguaro", replace(case, point=spread(case.point)))
    return run.ratio("primary_hits", "primary_looked_up")


def _lost_by_closed_form(bench: PolicyRuns, case: Case) -> LawError:
    """Hit rate of the exact fan-outs over that of the closed form's, less one."""
    closed, exact = (_hits_of(spread, bench, case) for spread in (closed_spread, exact_spread))
    return loss(closed.value, exact.value, exact.over(closed))


def _switch(*, printed: bool) -> Comparer:
    """At b* both backups are equally fast: law 1, simulated fast / slow there, between whole batches."""

    def compare(bench: PolicyRuns, case: Case) -> LawError:
        # Told the hit rates by what was verified: the primary's tokens, or nothing.
        b = says("ssd.thm17", printed=printed)(replace(case.point, backup="plain"))
        if b == math.inf:
            raise NotSeen("they never are, which no batch can show")
        if b < 1.0:  # always: at a batch of one the fast backup has to be no slower
            seen = error_of_value(1.0, _fast_over_slow(bench, case, 1))
            return replace(seen, error=max(0.0, seen.error))
        step = case.world.clones if b >= case.world.clones else 1
        low = step * math.floor(b / step)
        at = _fast_over_slow(bench, case, low)
        if b > low:
            at = between(at, _fast_over_slow(bench, case, low + step), (b - low) / step)
        return error_of_value(1.0, at)

    return Comparer("value", compare)


def _fast_over_slow(bench: PolicyRuns, case: Case, batch: int) -> Observation:
    world = replace(case.world, clones=min(case.world.clones, batch))
    points = [replace(case.point, batch=batch, backup=backup) for backup in ("plain", "primary")]
    fast, slow = (bench.run("saguaro", Case(point, world)).ratio("tokens", "seconds") for point in points)
    return fast.over(slow)


_LOST = {
    "position": "as under its own assumptions; the weights that it takes for a^k (1 - a) are others",
    "trace": "as under its own assumptions, told the fitted curve",
    "short": "as under its own assumptions",
}
_THM12 = {**_HITS, "short": "the rounds that a limit cuts are those with many tokens"}

SSD_LAWS = (
    tried(
        ("ssd.eq1", SAME, "long-run hit rate p_b / (1 + p_b - p_p)"),
        (PLAIN, {**_HITS, "short": "every output starts from a primary draft, not from the long run"}),
        by_value(says("ssd.eq1"), ratio("saguaro", "hits", "looked_up")),
    ),
    *twins(
        "ssd.thm7",
        ("speedup of SSD; a miss takes 1 + T_b", "speedup of SSD; a miss takes max(1, T_p) + T_b"),
        ((*PLAIN, A, D), _SSD_SPEED),
        both("ssd.thm7", speed("saguaro")),
        corrected=_KNOWN,
    ),
    *twins(
        "ssd.cor8",
        ("SSD over SD with the same draft on a miss", "the same where a miss takes max(1, T) + T"),
        (PRIMARY, _SSD_SPEED),
        both("ssd.cor8", _over_sd),
        corrected=_KNOWN,
    ),
    tried(
        ("ssd.cor9.upper", SAME, "SSD over SD is at most (1 + T_SD) E_hit/E_SD"),
        (PLAIN, _SSD_SPEED),
        by_bound(says("ssd.cor9", part=1), _over_sd, upper=True),
    ),
    *twins(
        "ssd.cor9.lower",
        (
            "SSD over SD is at least (1 + T_SD) p E_hit/E_SD",
            "SSD over SD is at least (1 + T_SD)(p E_hit + 1 - p)/E_SD; T_p <= 1",
        ),
        (PLAIN, _SSD_SPEED),
        (
            by_bound(says("ssd.cor9", printed=True, part=0), _over_sd, upper=False),
            by_bound(says("ssd.cor9", part=0), _over_sd, upper=False),
        ),
    ),
    tried(
        ("ssd.thm12.printed", PRINTED, "the closed form's fan-outs, rounded, hit most often"),
        (SPREAD, _LOST),
        Comparer("choice", _lost_by_closed_form),
        fault="a small budget puts less than one guess on unlikely positions, which hits less than nothing",
    ),
    tried(
        ("ssd.thm12", CORRECTED, "p_hit,p of the exact whole-numbered fan-outs"),
        (SPREAD, _THM12),
        by_value(lambda point: exact_spread(point).p_primary, partial(_hits_of, exact_spread)),
    ),
    *twins(
        "ssd.cor16",
        (
            "speedup of a batch that stalls on any miss, which takes 1 + T_b",
            "speedup of a batch that stalls on any miss, which takes max(1, T_p) + T_b",
        ),
        (BATCHED, {**_SSD_SPEED, **_BATCH}),
        both("ssd.cor16", speed("saguaro")),
        corrected=_KNOWN,
    ),
    *twins(
        "ssd.thm17",
        (
            "batch b* at which the slow and the fast backup are equally fast",
            "the same with a hit rate for each backup",
        ),
        (SWITCHED, {**_SSD_SPEED, **_BATCH}),
        (_switch(printed=True), _switch(printed=False)),
        fault="the backup changes the hit rate, for which the printed form has one symbol",
        corrected=_KNOWN,
    ),
)

LAWS: dict[str, Law] = {law.name: law for law in (*SD_LAWS, *SYSTEM_LAWS, *SSD_LAWS)}


def find_laws(names: Sequence[str]) -> list[Law]:
    """The laws called so, each with all its readings where only the statement is named; all for none.

    Raises:
        SettingError: No such law; the message suggests the nearest name.
    """
    chosen: dict[str, Law] = {}
    for name in names or LAWS:
        family = {n: law for n, law in LAWS.items() if n == name or n.startswith(f"{name}.")}
        if not family:
            raise _unknown("law", name, LAWS)
        chosen |= family
    return list(chosen.values())


def find_relaxations(names: Sequence[str]) -> list[str]:
    """The relaxations called so; all for none.

    Raises:
        SettingError: No such relaxation; the message suggests the nearest name.
    """
    for name in names:
        if name not in RELAXATIONS:
            raise _unknown("relaxation", name, RELAXATIONS)
    return [name for name in RELAXATIONS if not names or name in names]


def _unknown(what: str, name: str, known: Collection[str]) -> SettingError:
    return SettingError(f"unknown {what} {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
