"""The assumptions of the laws, relaxed one at a time and by how much.

One of them puts the shipped pair's recorded replies in place of coins: their runs, what a law is told of
them, and RASD's trees, drafted, retrieved and fused, held against the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from analysis.breaks.worlds import (
    Case,
    LawPoint,
    RelaxedWorld,
    falling_levels,
    inputs_of_recording,
    replies_of,
)
from analysis.studies.mirror_account import overlap_counted
from hardware_profiles.reply_trace import Decisions
from policies.double import RetrievalDrafted
from policies.laws.retrieval import common_prefix
from policies.rasd import RasdConfig, candidates, pruned
from policies.registry import configure
from policies.retrieval import Retrieved
from policies.sampling import FloatArray, keyed_generator
from policies.tokentree import TreeDrafted, TreeVerdict, tree_of
from simulator.replies import revive

SAME_FOR_ANY = 1e-9
"""Exponent of a hit curve that does not depend on the number of guesses."""


def inputs_of_replies(point: LawPoint) -> LawPoint:
    """The point with what a reader would count in the decisions: acceptance, Omega, AMT, mean matches."""
    if point.trees:
        lengths = recorded_matches()
        return replace(point, trees=(float(lengths["drafted"].mean()), float(lengths["retrieved"].mean())))
    acceptance, exponent, scale = inputs_of_recording(0.0)
    inputs = replace(point, acceptance=acceptance, exponent=exponent, scale=scale)
    if point.kappa:
        omega = overlap_counted(_recorded("mirror", lookahead=point.lookahead, kappa=point.kappa))
        if omega is not None:  # the hit rate that gives the counted Omega = a + (1 - a) hit
            hit = max(0.0, omega - acceptance) / (1.0 - acceptance)
            inputs = replace(inputs, exponent=SAME_FOR_ANY, scale=1.0 - hit)
    elif point.matched:  # mean retrieved tokens that the draft confirmed per forward
        counts = [
            count
            for replies in _recorded("double", lookahead=point.lookahead)
            for key, plain in replies.replies.items()
            if key[0] == "retrievingdraft"
            for count in revive(RetrievalDrafted, plain).matched
        ]
        inputs = replace(inputs, matched=float(np.mean(counts))) if counts else inputs
    return inputs


def _recorded(policy: str, **knobs: Any) -> list[Decisions]:
    """The replies of a setting; none where it was not recorded."""
    replies = replies_of(policy).settings.get(configure(policy, **knobs).label)
    return [] if replies is None else [replies]


DEEPEST = 256
"""Levels of a tree of coins: so deep that no match reaches its end."""


def matches(case: Case, rounds: int, seed: int) -> Mapping[str, FloatArray]:
    """[R] accepted tokens of the drafted, the retrieved and the fused tree by round, and `rounds`, all 1.

    R rounds are tossed in a world of coins; of a recording there are as many as it has.
    """
    if case.world.replies:
        return recorded_matches()
    drafted, retrieved = (
        _tossed(mean, case.world.falling, keyed_generator(seed, f"half-{number}", 0).random(rounds))
        for number, mean in enumerate(case.point.trees)
    )
    return _together(drafted, retrieved, np.maximum(drafted, retrieved))


def _together(drafted: FloatArray, retrieved: FloatArray, fused: FloatArray) -> Mapping[str, FloatArray]:
    return {"drafted": drafted, "retrieved": retrieved, "fused": fused, "rounds": np.ones(len(fused))}


def _tossed(mean: float, drop: float, uniform: FloatArray) -> FloatArray:
    """Matches of this mean, each level accepted (1 - drop) times as often as the one before it."""
    levels = falling_levels(drop, DEEPEST, mean, lambda levels: float(np.cumprod(levels).sum()))
    return np.asarray(np.searchsorted(-np.cumprod(levels), -uniform), dtype=np.float64)


@lru_cache(maxsize=1)
def recorded_matches() -> Mapping[str, FloatArray]:
    """`matches` of the shipped pair: RASD's trees held against what the target wrote there."""
    settings = configure("rasd")
    config = settings.config
    assert isinstance(config, RasdConfig)
    replies = replies_of("rasd").settings[settings.label]
    texts: dict[int, list[int]] = {}
    rounds = sorted(key for key in replies.replies if key[0] == "verifytree")
    for key in rounds:
        texts.setdefault(key[2], []).extend(revive(TreeVerdict, replies.replies[key]).verdict.emitted)
    lengths = []
    for _, part, request, position in rounds:
        at = (part, request, position)
        drafted = revive(TreeDrafted, replies.replies["drafttree", *at])
        looked_up = revive(Retrieved, replies.replies["retrievetree", *at])
        retrieved = tree_of(looked_up)
        if config.prune_top:
            retrieved = pruned(retrieved, frozenset(drafted.root_top))
        trees = (tree_of(drafted), retrieved, candidates(drafted, looked_up, config))
        text = texts[request][position:]
        lengths.append([max(common_prefix(path, text) for path in (*tree.paths, ())) for tree in trees])
    return _together(*np.array(lengths, dtype=np.float64).T)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """An assumption that does not hold.

    Attributes:
        title: For pictures.
        size: What its size is.
        sizes: Sizes tried, from near to far.
        because: What it does to a system.
        case: A point and a size to what the law is told and what is simulated.
    """

    title: str
    size: str
    sizes: tuple[float, ...]
    because: str
    case: Callable[[LawPoint, float], Case]


def _trace(point: LawPoint, temperature: float) -> Case:
    acceptance, exponent, scale = inputs_of_recording(temperature)
    inputs = replace(point, acceptance=acceptance)
    if point.fanout or point.budget:
        inputs = replace(inputs, exponent=exponent, scale=scale)
    return Case(inputs, RelaxedWorld(temperature=temperature))


RELAXATIONS = {
    "position": Relaxation(
        "acceptance falls\nwith position",
        "relative drop of acceptance per position, same mean",
        (0.02, 0.05, 0.1, 0.2),
        "a round begins with better tokens than the mean: more tokens a round, but fewer full blocks",
        lambda point, size: Case(point, RelaxedWorld(falling=size)),
    ),
    "trace": Relaxation(
        "recorded\ntokens",
        "temperature of the shipped recording",
        (0.0, 1.0),
        "one hit curve, fitted after rejections, stands for rounds in which nothing was rejected, too",
        _trace,
    ),
    "decided": Relaxation(
        "recorded\ndecisions",
        "temperature of the shipped decisions",
        (0.0,),
        "candidates, retrievals and doubts are a pair's own, and go together with what is accepted",
        lambda point, size: Case(inputs_of_replies(point), RelaxedWorld(replies=True)),
    ),
    "jitter": Relaxation(
        "latency\njitter",
        "coefficient of variation of every forward",
        (0.05, 0.1, 0.2, 0.3),
        "who waits for the slower of two waits for more than the slower mean",
        lambda point, size: Case(point, RelaxedWorld(jitter=size)),
    ),
    "verify-k": Relaxation(
        "verification\ngrows with K",
        "target steps per further token verified",
        (0.005, 0.01, 0.02, 0.05),
        "verifying K + 1 tokens is not one step",
        lambda point, size: Case(point, RelaxedWorld(verify_k=size)),
    ),
    "verify-batch": Relaxation(
        "verification\ngrows with b(K+1)",
        "target steps per further token of the batch",
        (0.005, 0.01, 0.02, 0.05),
        "a batch that verifies is compute-bound before one that decodes",
        lambda point, size: Case(point, RelaxedWorld(verify_batch=size)),
    ),
    "branches": Relaxation(
        "drafting grows\nwith branches",
        "draft steps per further branch of the batch (0: the glue step alone)",
        (0.0, 0.02, 0.05, 0.1),
        "pre-speculation drafts the sum of F_k branches after a glue step, not one chain",
        lambda point, size: Case(point, RelaxedWorld(branches=size)),
    ),
    "contention": Relaxation(
        "devices slow\neach other",
        "slowdown of each while the other works",
        (0.05, 0.1, 0.2, 0.4),
        "overlap is paid for by both devices",
        lambda point, size: Case(point, RelaxedWorld(contention=size)),
    ),
    "correlated": Relaxation(
        "correlated\nmisses",
        "rows that hit and miss together",
        (2.0, 4.0, 8.0),
        "rows that miss together stall the batch less often",
        lambda point, size: Case(point, RelaxedWorld(clones=int(size))),
    ),
    "tree": Relaxation(
        "uninterruptible\ntree (T_p > 1)",
        "T_p",
        (1.1, 1.25, 1.5, 2.0),
        "a miss waits for the whole pre-speculation, too",
        lambda point, size: Case(replace(point, draft_s=size / point.lookahead)),
    ),
    "short": Relaxation(
        "short\noutputs",
        "tokens of an output",
        (128.0, 64.0, 32.0, 16.0, 8.0),
        "an output starts with a draft that nothing hides and ends amid a round",
        lambda point, size: Case(point, RelaxedWorld(output=int(size))),
    ),
}
"""By their names on the command line."""
