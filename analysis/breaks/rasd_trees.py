"""RASD's fused tree and its halves: how far each of them follows the text, drawn by coins or as recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from analysis.breaks.decided import decisions_of
from analysis.breaks.points import Case
from policies.rasd import RasdConfig, candidates, pruned
from policies.registry import configure
from policies.retrieval import Retrieved
from policies.sampling import FloatArray, keyed_generator
from policies.tokentree import ROOT, TokenTree, TreeDrafted, TreeVerdict, drafted_tree
from simulator.replies import revive

DEEPEST = 256
"""Levels of a tree of coins: so deep that no match reaches its end."""


def matches(case: Case, rounds: int, seed: int) -> Mapping[str, FloatArray]:
    """[R] accepted tokens of the drafted, the retrieved and the fused tree by round, and `rounds`, all 1.

    Args:
        case: Point with `halves`, and world.
        rounds: R, of a world of coins; of a recording all there are.
        seed: Keys the coins.
    """
    if case.world.decided:
        return recorded_matches()
    drafted, retrieved = (
        _tossed(mean, case.world.falling, keyed_generator(seed, f"half-{number}", 0).random(rounds))
        for number, mean in enumerate(case.point.halves)
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
    shape = (1.0 - drop) ** np.arange(DEEPEST)
    low, high = 0.0, 1.0 / shape[-1]
    for _ in range(200):
        middle = 0.5 * (low + high)
        found = np.cumprod(np.minimum(1.0, middle * shape))
        low, high = (middle, high) if found.sum() < mean else (low, middle)
    return np.asarray(np.cumprod(np.minimum(1.0, low * shape)))


@lru_cache(maxsize=1)
def recorded_matches() -> Mapping[str, FloatArray]:
    """The same of the shipped pair: both of RASD's trees held against what the target wrote there."""
    settings = configure("rasd")
    config = settings.config
    assert isinstance(config, RasdConfig)
    knobs, found = config.rounds(settings.sampling), decisions_of("rasd").settings[settings.label]
    texts: dict[int, list[int]] = {}
    rounds = sorted(key for key in found.replies if key[0] == "verifytree")
    for key in rounds:
        texts.setdefault(key[2], []).extend(revive(TreeVerdict, found.replies[key]).verdict.emitted)
    lengths = []
    for _, part, request, position in rounds:
        at = (part, request, position)
        drafted = revive(TreeDrafted, found.replies["drafttree", *at])
        looked_up = revive(Retrieved, found.replies["retrievetree", *at])
        retrieved = TokenTree._make(looked_up.tree)
        if knobs.prune_top:
            retrieved = pruned(retrieved, frozenset(drafted.root_top))
        trees = (drafted_tree(drafted), retrieved, candidates(drafted, looked_up, knobs))
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
