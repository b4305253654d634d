"""The assumptions of the laws, relaxed one at a time and by how much.

One of them puts the shipped pair's recorded replies in place of coins: their runs, what a law is told of
them, and RASD's trees, drafted, retrieved and fused, held against the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from analysis.breaks.worlds import (
    RECORDING,
    Case,
    Point,
    World,
    falling_levels,
    inputs_of_recording,
    scenario,
)
from analysis.studies.mirror import overlap_counted
from hardware_profiles.reply_trace import Decisions, DecisionTrace, read_decisions
from hardware_profiles.store import decisions_name, find_decisions
from policies.double import Drafted
from policies.rasd import RasdConfig, candidates, pruned
from policies.registry import Settings, configure, start
from policies.retrieval import Retrieved
from policies.rows import Rows
from policies.sampling import FloatArray, keyed_generator
from policies.tokentree import ROOT, TokenTree, TreeDrafted, TreeVerdict, tree_of
from policies.values import Request
from simulator.replies import Recorded, revive
from simulator.world import SimulatedWorld

SAME_FOR_ANY = 1e-9
"""Exponent of a hit curve that does not depend on the number of guesses."""


@lru_cache(maxsize=8)
def replies_of(policy: str) -> DecisionTrace:
    """The shipped decisions of a policy.

    Raises:
        TraceError: There are none.
    """
    return read_decisions(find_decisions(decisions_name(RECORDING, policy)))


def recorded_rows(case: Case, settings: Settings, seed: int) -> Rows | None:
    """A run of recorded decisions at the point's costs, one request at a time; None: not recorded."""
    trace = replies_of(settings.policy)
    replies = trace.settings.get(settings.label)
    if replies is None:
        return None
    costs = scenario(Case(case.point, replace(case.world, replies=False)), 2, seed)
    requests = [Request(entry.id, len(entry.prompt), trace.limit, entry.prompt) for entry in trace.requests]
    world = SimulatedWorld(
        costs.tokens,
        costs.costs,
        slowdowns=costs.slowdowns,
        rows=Recorded(replies, 1 + max(request.id for request in requests)),
    )
    rows = Rows(requests, 1, keep_tokens=True)
    world.run(start(world, rows, settings))
    return rows


def inputs_of_replies(point: Point) -> Point:
    """The point with what a reader would count in the decisions: acceptance, Omega, AMT, mean matches."""
    if point.trees:
        lengths = recorded_matches()
        return replace(point, trees=(float(lengths["drafted"].mean()), float(lengths["retrieved"].mean())))
    acceptance, exponent, scale = inputs_of_recording(0.0)
    inputs = replace(point, acceptance=acceptance, exponent=exponent, scale=scale)
    if point.kappa:
        settings = configure("mirror", lookahead=point.lookahead, kappa=point.kappa)
        return _with_overlap(inputs, _recorded("mirror", settings.label))
    if point.matched:
        recorded = _recorded("double", configure("double", lookahead=point.lookahead).label)
        inputs = inputs if recorded is None else replace(inputs, matched=_matched(recorded))
    return inputs


def _recorded(policy: str, label: str) -> Decisions | None:
    return replies_of(policy).settings.get(label)


def _with_overlap(point: Point, replies: Decisions | None) -> Point:
    """The point with the hit rate that gives the counted Omega = a + (1 - a) hit."""
    omega = None if replies is None else overlap_counted([replies])
    if omega is None:
        return point
    hit = max(0.0, omega - point.acceptance) / (1.0 - point.acceptance)
    return replace(point, exponent=SAME_FOR_ANY, scale=1.0 - hit)


def _matched(replies: Decisions) -> float:
    """Mean retrieved tokens that the draft confirmed per forward."""
    drafts = [revive(Drafted, plain) for key, plain in replies.replies.items() if key[0] == "retrievingdraft"]
    return float(np.mean([count for draft in drafts for count in draft.matched]))


DEEPEST = 256
"""Levels of a tree of coins: so deep that no match reaches its end."""


def matches(case: Case, rounds: int, seed: int) -> Mapping[str, FloatArray]:
    """[R] accepted tokens of the drafted, the retrieved and the fused tree by round, and `rounds`, all 1.

    Args:
        case: Point with `trees`, and world.
        rounds: R, of a world of coins; of a recording all there are.
        seed: Keys the coins.
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
    reached = _reached(mean, drop)
    return np.asarray(np.searchsorted(-reached, -uniform), dtype=np.float64)


def _reached(mean: float, drop: float) -> FloatArray:
    """[DEEPEST] probability of a match of at least 1, 2, ... tokens."""
    levels = falling_levels(drop, DEEPEST, mean, lambda levels: float(np.cumprod(levels).sum()))
    return np.asarray(np.cumprod(levels))


@lru_cache(maxsize=1)
def recorded_matches() -> Mapping[str, FloatArray]:
    """The same of the shipped pair: both of RASD's trees held against what the target wrote there."""
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
        lengths.append([_match(tree, texts[request][position:]) for tree in trees])
    columns = np.array(lengths, dtype=np.float64).T
    return _together(columns[0], columns[1], columns[2])


def _match(tree: TokenTree, text: Sequence[int]) -> int:
    """Tokens of the text that a path of the tree has from its root on."""
    children = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
    }
    node, length = ROOT, 0
    for token in text:
        if (node, token) not in children:
            break
        node, length = children[node, token], length + 1
    return length


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
    acceptance, exponent, scale = inputs_of_recording(temperature)
    inputs = replace(point, acceptance=acceptance)
    if point.fanout or point.budget:
        inputs = replace(inputs, exponent=exponent, scale=scale)
    return Case(inputs, World(temperature=temperature))


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
            lambda point, size: Case(inputs_of_replies(point), World(replies=True)),
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
