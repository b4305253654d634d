"""Laws of plain decoding, of vanilla speculation and of draft/verify pipelines (DOUBLE, DuoDecoding)."""

from __future__ import annotations

from dataclasses import replace

from analysis.breaks.bench import Bench, Estimate
from analysis.breaks.comparison import Law, Observe, applied, by_bound, by_choice, by_value, says, twins
from analysis.breaks.points import Case, Point
from policies.laws import double

DRAFTED = (Point(0.8, 4, 0.1), Point(0.6, 3, 0.2), Point(0.9, 8, 0.1))
BALANCED = (Point(0.8, 4, 1 / 4), Point(0.6, 3, 1 / 3), Point(0.9, 8, 1 / 8))
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
_WAITS = {
    "jitter": "a round lasts as long as the slower of two devices, on average more than the slower mean",
    "verify-k": "a verification of K + 1 tokens is charged as one step",
    "contention": "both devices run slower while they overlap, the whole round long",
}
_PIPELINE_SHORT = "every output starts with an empty pipeline and throws away what is drafted past its end"


def _sd(above: str, below: str) -> Observe:
    return lambda bench, case: bench.sd(case).ratio(above, below)


def _sd_speed(bench: Bench, case: Case) -> Estimate:
    return bench.speedup(bench.sd(case), case)


def _pearl_speed(bench: Bench, case: Case) -> Estimate:
    return bench.speedup(bench.pearl(case), case)


def _pipeline_speed(bench: Bench, case: Case) -> Estimate:
    return bench.speedup(bench.pipeline(case), case)


def _pearl_at(bench: Bench, case: Case, lookahead: int) -> Estimate:
    return _pearl_speed(bench, replace(case, point=replace(case.point, lookahead=lookahead)))


def _around(point: Point) -> tuple[int, ...]:
    """Lookaheads from half of C to a little more than C."""
    ratio = round(point.ratio)
    return tuple(sorted({max(1, ratio // 2), 3 * ratio // 4, ratio - 1, ratio, ratio + 1}))


_THM2_FAULT = "the last round of a run is one that rejects, which the printed form does not condition on"
_PSD_FAULT = f"{_THM2_FAULT}, so that it overcounts"
_PIPELINED = {**_TOKENS, **_WAITS, "short": _PIPELINE_SHORT}
_RUN = {**_TOKENS, "short": "a cut round is no rejection, and a run ends with its output"}

SD_LAWS = (
    Law(
        "ar",
        "printed = corrected",
        "plain decoding: a token per step, whatever the batch",
        (Point(0.8, 1, 0.1), Point(0.8, 1, 0.1, batch=8)),
        {
            "jitter": "none: the mean of a sum is the sum of the means",
            "verify-batch": "the step of a batch is slower than that of one row",
        },
        by_value(lambda point: 1.0, lambda bench, case: bench.ar(case).ratio("tokens", "seconds")),
    ),
    Law(
        "double.thm1",
        "printed = corrected",
        "tokens of a round: E(a, K)",
        DRAFTED,
        {**_TOKENS, "short": _CUT},
        by_value(says("double.thm1"), _sd("tokens", "rounds")),
    ),
    Law(
        "double.eq8",
        "printed = corrected",
        "rounds up to the first rejection: k = 1/(1 - a^g)",
        DRAFTED,
        _RUN,
        by_value(says("double.eq8"), _sd("rounds", "rejected")),
    ),
    *twins(
        "double.thm2",
        (
            "tokens up to the first rejection: (k - 1)(g + 1) + E(a, g)",
            "tokens up to the first rejection: k E(a, g)",
        ),
        DRAFTED,
        _RUN,
        _sd("tokens", "rejected"),
        fault=_THM2_FAULT,
    ),
    *twins(
        "double.eq11",
        ("speedup of SD: E[L_k] C / (k (g + C))", "speedup of SD: E(a, g) C / (g + C)"),
        (*DRAFTED, BALANCED[0]),
        {**_TOKENS, **_LEVEL, "short": _CUT},
        _sd_speed,
        fault=_PSD_FAULT,
    ),
    Law(
        "double.thm3.printed",
        "as printed",
        "S_PSD against the plain pipeline that it describes",
        BALANCED,
        _PIPELINED,
        by_value(says("double.thm3", printed=True), _pipeline_speed),
        fault=_PSD_FAULT,
    ),
    Law(
        "double.thm3.printed-pearl",
        "as printed",
        "S_PSD against PEARL, which it is said to be of",
        BALANCED,
        _PIPELINED,
        by_value(says("double.thm3", printed=True), _pearl_speed),
        fault=f"{_PSD_FAULT}, and knows no pre-verification, so that it undercounts where little is accepted",
    ),
    Law(
        "double.thm3.plain",
        "corrected",
        "S_plain, the exact rate of a plain pipeline",
        BALANCED,
        _PIPELINED,
        by_value(says("double.thm3"), _pipeline_speed),
    ),
    Law(
        "double.thm3.pearl",
        "corrected",
        "S_PEARL, the exact rate with pre-verification",
        (*BALANCED, Point(0.8, 4, 0.1)),
        _PIPELINED,
        by_value(applied(double.pearl_speedup), _pearl_speed),
    ),
    Law(
        "double.thm3.ceiling",
        "printed = corrected",
        "no pipeline exceeds C",
        (*BALANCED, Point(0.95, 12, 1 / 4)),
        _PIPELINED,
        by_bound(applied(double.psd_ceiling), _pearl_speed, upper=True),
    ),
    Law(
        "duo.budget",
        "printed = corrected",
        "the best lookahead of a pipeline is C",
        (Point(0.8, 8, 1 / 8), Point(0.6, 8, 1 / 8)),
        {
            "position": "none: up to C a longer block costs no time, however little its end is accepted",
            "trace": "none: up to C a longer block costs no time",
            "jitter": "at gamma = C the two devices tie, where waiting for the slower one costs most",
            "verify-k": "a longer block is dearer to verify, and drafting is not what takes longest",
            "contention": "a shorter block overlaps less",
            "short": "none: overshoot costs no time either",
        },
        by_choice(lambda point: double.balanced_lookahead(point.ratio), _around, _pearl_at),
    ),
)
