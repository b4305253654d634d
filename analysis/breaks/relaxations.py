"""The assumptions of the laws, relaxed one at a time and by how much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from analysis.breaks.decided import told_by_decisions
from analysis.breaks.points import Case, Point, World
from analysis.breaks.worlds import told_by_recording


@dataclass(frozen=True, slots=True)
class Relaxation:
    """An assumption that does not hold.

    Attributes:
        name: As on the command line.
        title: For pictures.
        size: What its size is.
        sizes: Sizes tried, from near to far.
        because: What it does to a system.
        case: A point and a size to what the law is told and what is simulated.
    """

    name: str
    title: str
    size: str
    sizes: tuple[float, ...]
    because: str
    case: Callable[[Point, float], Case]


def _trace(point: Point, temperature: float) -> Case:
    acceptance, exponent, scale = told_by_recording(temperature)
    told = replace(point, acceptance=acceptance)
    if point.fanout or point.budget:
        told = replace(told, exponent=exponent, scale=scale)
    return Case(told, World(temperature=temperature))


def _clones(point: Point, rows: float) -> Case:
    return Case(point, World(clones=int(rows)))


RELAXATIONS: dict[str, Relaxation] = {
    relaxation.name: relaxation
    for relaxation in (
        Relaxation(
            "position",
            "acceptance falls\nwith position",
            "relative drop of acceptance per position, same mean",
            (0.02, 0.05, 0.1, 0.2),
            "a round begins with better tokens than the mean: more tokens a round, but fewer full blocks",
            lambda point, size: Case(point, World(falling=size)),
        ),
        Relaxation(
            "trace",
            "recorded\ntokens",
            "temperature of the shipped recording",
            (0.0, 1.0),
            "one hit curve, fitted after rejections, stands for rounds in which nothing was rejected, too",
            _trace,
        ),
        Relaxation(
            "decided",
            "recorded\ndecisions",
            "temperature of the shipped decisions",
            (0.0,),
            "candidates, retrievals and doubts are a pair's own, and go together with what is accepted",
            lambda point, size: Case(told_by_decisions(point), World(decided=True)),
        ),
        Relaxation(
            "jitter",
            "latency\njitter",
            "coefficient of variation of every forward",
            (0.05, 0.1, 0.2, 0.3),
            "who waits for the slower of two waits for more than the slower mean",
            lambda point, size: Case(point, World(jitter=size)),
        ),
        Relaxation(
            "verify-k",
            "verification\ngrows with K",
            "target steps per further token verified",
            (0.005, 0.01, 0.02, 0.05),
            "verifying K + 1 tokens is not one step",
            lambda point, size: Case(point, World(verify_k=size)),
        ),
        Relaxation(
            "verify-batch",
            "verification\ngrows with b(K+1)",
            "target steps per further token of the batch",
            (0.005, 0.01, 0.02, 0.05),
            "a batch that verifies is compute-bound before one that decodes",
            lambda point, size: Case(point, World(verify_batch=size)),
        ),
        Relaxation(
            "branches",
            "drafting grows\nwith branches",
            "draft steps per further branch of the batch (0: the glue step alone)",
            (0.0, 0.02, 0.05, 0.1),
            "pre-speculation drafts the sum of F_k branches after a glue step, not one chain",
            lambda point, size: Case(point, World(branches=size)),
        ),
        Relaxation(
            "contention",
            "devices slow\neach other",
            "slowdown of each while the other works",
            (0.05, 0.1, 0.2, 0.4),
            "overlap is paid for by both devices",
            lambda point, size: Case(point, World(contention=size)),
        ),
        Relaxation(
            "correlated",
            "correlated\nmisses",
            "rows that hit and miss together",
            (2.0, 4.0, 8.0),
            "rows that miss together stall the batch less often",
            _clones,
        ),
        Relaxation(
            "tree",
            "uninterruptible\ntree (T_p > 1)",
            "T_p",
            (1.1, 1.25, 1.5, 2.0),
            "a miss waits for the whole pre-speculation, too",
            lambda point, size: Case(replace(point, draft_s=size / point.lookahead)),
        ),
        Relaxation(
            "short",
            "short\noutputs",
            "tokens of an output",
            (128.0, 64.0, 32.0, 16.0, 8.0),
            "an output starts with a draft that nothing hides and ends amid a round",
            lambda point, size: Case(point, World(output=int(size))),
        ),
    )
}
