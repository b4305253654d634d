"""Laws of RASD: candidates retrieved by suffix match, pruned by the draft, fused with its tree, and verified.

The draft is a Markov table here: row t of `draft_table` is its distribution after token t, which is enough to
say what each step does; of the text, s', only its last token counts then, y_0.  In a tree nodes lie in level
order, parents first; node 0 is the root: y_0, the last token of the text, which is not a candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policies.laws.law import FloatArray, law
from policies.laws.retrieval import Texts, Tokens, occurrences
from policies.laws.sampling import (
    accept_probability,
    draw,
    pair,
    reject,
    token_probs,
    top_tokens,
    verify_candidates,
)

Candidates = tuple[tuple[int, ...], ...]

# Drafting and judging


def draft_input(text: Tokens, root: int) -> tuple[int, ...]:
    """Input s' = (x_1, ..., x_n, y_0) that the draft continues and retrieval is asked for (`rasd.eq1-3`).

    s, prompt and emitted tokens, may be empty; y_0 is the token that the target itself emitted last.
    """
    return (*text, root)


def draft_chain(
    text: Tokens, draft_table: ArrayLike, uniforms: Sequence[float]
) -> tuple[tuple[int, ...], FloatArray]:
    """Tokens drafted one by one, given the ones before, and their distributions [m, V] (`rasd.eq4-6`).

    As many tokens as there are coins in [0, 1).
    """
    table = _table(draft_table)
    tokens = [_last_token(text, table)]
    for uniform in uniforms:
        tokens.append(draw(table[tokens[-1]], uniform))
    return tuple(tokens[1:]), table[tokens[:-1]]


@dataclass(frozen=True, slots=True)
class Judgement:
    """How drafted tokens are judged at a position.

    Attributes:
        accept: [V] probability that each token is accepted, if drafted.
        residual: [V] distribution of the token that replaces a rejected one.
    """

    accept: FloatArray
    residual: FloatArray


def judge(target_probs: ArrayLike, draft_probs: ArrayLike) -> Judgement:
    """min(1, p/q) and norm(max(0, p - q))  (`rasd.accept`); p itself for the residual where p = q."""
    return Judgement(accept_probability(target_probs, draft_probs), reject(target_probs, draft_probs))


def judge_printed(target_probs: ArrayLike, draft_probs: ArrayLike) -> Judgement:
    """min(1, p/q), and the residual as printed, max(0, p - q) between norm bars  (`rasd.accept`).

    It sums to the probability of a rejection, not to 1, and so is no distribution to draw from.
    """
    p, q = pair(target_probs, draft_probs)
    return Judgement(accept_probability(p, q), np.maximum(p - q, 0.0))


# Retrieval


def suffix_candidates(
    text: Tokens, datastore: Texts, *, longest: int, shortest: int, count: int, span: int
) -> Candidates:
    """Distinct continuations of the longest endings of s' first (`rasd.eq7`, `rasd.alg1`; corrected).

    For i from `longest` down to `shortest` the last i tokens of s', y_0 among them, are looked for, in the
    order of the datastore, until `count` continuations of `span` tokens are found.  Near the end of a stored
    text a continuation is shorter; where nothing follows there is none.
    """
    _check_search(longest, shortest, count, span)
    continuations = (
        tuple(datastore[number][after : after + span])
        for size in range(min(longest, len(text)), shortest - 1, -1)
        for number, after in occurrences(text[len(text) - size :], datastore)
    )
    return tuple(dict.fromkeys(continuations))[:count]


def suffix_candidates_printed(
    text: Tokens, datastore: Texts, *, longest: int, shortest: int, count: int, span: int
) -> Candidates:
    """Algorithm 1 as printed: the ending (x_(n-i+1), ..., x_n, y_0) is compared with i-grams.

    That ending has i + 1 tokens, so it equals no i-gram: nothing is ever found.
    """
    _check_search(longest, shortest, count, span)
    continuations = (
        tuple(stored[start + i : start + i + span])
        for i in range(longest, shortest - 1, -1)
        for stored in datastore
        for start in range(len(stored) - i)
        if len(text) > i and tuple(stored[start : start + i]) == tuple(text[-i - 1 :])
    )
    return tuple(dict.fromkeys(continuations))[:count]


@law()
def lookup_rounds(
    text: Tokens,
    datastore: Texts,
    draft_table: ArrayLike,
    *,
    top_k: int,
    attempts: int,
    longest: int,
    shortest: int,
    count: int,
    span: int,
) -> Candidates:
    """Retrieval that lets the draft go on until something is found (`rasd.pld_iter`).

    If s' has no match, each of the draft's `top_k` next tokens is appended and the search made again, and
    so on for at most `attempts` tokens.  A candidate begins with the tokens that were appended, since it
    continues s'; `count` is over all texts, `span` without the appended tokens.  The paper gives no limit;
    without one a datastore that matches nothing is never done.  REST is `attempts` 0: one search per draft.
    """
    table = _table(draft_table)
    _last_token(text, table)
    search = partial(
        suffix_candidates, datastore=datastore, longest=longest, shortest=shortest, count=count, span=span
    )
    level: list[tuple[int, ...]] = [()]
    for turn in range(attempts + 1):
        candidates = dict.fromkeys((*extra, *tail) for extra in level for tail in search((*text, *extra)))
        if candidates or turn == attempts:
            return tuple(candidates)[:count]
        level = [
            (*extra, int(token)) for extra in level for token in top_tokens(table[(*text, *extra)[-1]], top_k)
        ]
    return ()


def first_layer(text: Tokens, draft_table: ArrayLike) -> FloatArray:
    """[V] P_1 = P(. | s'; draft)  (`rasd.eq8`).  The text says the target's; the symbol is the draft's."""
    table = _table(draft_table)
    return np.array(table[_last_token(text, table)])


def prune(retrieved: Sequence[Sequence[int]], draft_probs: ArrayLike, top_k: int) -> Candidates:
    """Candidates whose first token is among the `top_k` likeliest of P_1 (`draft_probs`)  (`rasd.prune`).

    All of them for top_k >= V, none for 0; of equally likely tokens the lower id counts as likelier.  Empty
    candidates are dropped.
    """
    kept = set(top_tokens(draft_probs, top_k).tolist())
    return tuple(tuple(path) for path in retrieved if len(path) and path[0] in kept)


def _table(draft_table: ArrayLike) -> FloatArray:
    table = np.asarray(draft_table, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ValueError(
            f"draft_table must be [V, V], a distribution after each token, got shape {table.shape}"
        )
    return np.stack([token_probs("draft_table", row) for row in table])


def _last_token(text: Tokens, table: FloatArray) -> int:
    if len(text) == 0 or not 0 <= text[-1] < len(table):
        raise ValueError(f"text must end in a token of the draft's vocabulary of {len(table)}")
    return int(text[-1])


def _check_search(longest: int, shortest: int, count: int, span: int) -> None:
    if not 1 <= shortest <= longest or count < 0 or span < 1:
        raise ValueError(
            "needs 1 <= shortest <= longest, count >= 0 and span >= 1, "
            f"got {shortest}, {longest}, {count}, {span}"
        )


# Trees


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Candidates with common beginnings merged.

    Attributes:
        tokens: [N] token of each node; the first is the root's.
        parents: [N] number of its parent; -1 for the root.

    Raises:
        ValueError: No root first, or a parent that comes after its child.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents) or self.parents[:1] != (-1,):
            raise ValueError("a tree needs a parent for each token and begins with its root")
        if any(not 0 <= parent < node for node, parent in enumerate(self.parents[1:], 1)):
            raise ValueError("parents come before their children, and there is one root")

    @property
    def depths(self) -> tuple[int, ...]:
        """[N] levels below the root: what is added to the root's position."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """[N, N] whether the node of the row sees that of the column: itself and its ancestors."""
        mask = np.eye(len(self.tokens), dtype=np.bool_)
        for node, parent in enumerate(self.parents[1:], 1):
            mask[node] |= mask[parent]
        return mask

    def children(self, node: int) -> tuple[int, ...]:
        """Numbers of a node's children, in order."""
        return tuple(child for child, parent in enumerate(self.parents) if parent == node)

    def path(self, node: int) -> tuple[int, ...]:
        """Tokens from below the root to a node."""
        tokens: list[int] = []
        while node > 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tuple(reversed(tokens))

    @property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Candidates that the tree holds: the path of every leaf, in level order; none for a bare root."""
        inner = set(self.parents)
        return tuple(self.path(node) for node in range(1, len(self.tokens)) if node not in inner)


def merge(root: int, retrieved: Iterable[Sequence[int]]) -> TokenTree:
    """Tree of candidates with common beginnings merged under y_0  (`rasd.tree`).

    An empty candidate adds nothing, and one that begins another is not a leaf.  Siblings stand in the order
    in which their candidates came.
    """
    tokens, parents = [root], [-1]
    paths = [tuple(path) for path in retrieved]
    nodes: dict[tuple[int, ...], int] = {(): 0}
    for depth in range(1, max(map(len, paths), default=0) + 1):
        beginnings = dict.fromkeys(path[:depth] for path in paths if len(path) >= depth)
        for path in sorted(beginnings, key=lambda path: nodes[path[:-1]]):  # stable: siblings as they came
            nodes[path] = len(tokens)
            tokens.append(path[-1])
            parents.append(nodes[path[:-1]])
    return TokenTree(tuple(tokens), tuple(parents))


def fuse(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
    """Union of two trees under one root: every path of both, no node twice  (`rasd.fuse`).

    The draft's nodes come first among siblings.  Mask and positions are those of the new tree.  Trees with
    different roots are an error.
    """
    if draft.tokens[0] != retrieved.tokens[0]:
        raise ValueError(f"the trees have different roots: {draft.tokens[0]} and {retrieved.tokens[0]}")
    # Every node and not only the leaves, by which siblings keep their order: they are tried in it.
    every = [tree.path(node) for tree in (draft, retrieved) for node in range(1, len(tree.tokens))]
    return merge(draft.tokens[0], every)


def fuse_paths(
    root: int, draft_paths: Sequence[Sequence[int]], retrieved: Sequence[Sequence[int]]
) -> TokenTree:
    """Union of the trees of two lists of candidates  (`rasd.fuse`): `fuse`."""
    return fuse(merge(root, draft_paths), merge(root, retrieved))


def verify_tree(
    tree: TokenTree,
    target_rows: Sequence[ArrayLike] | FloatArray,
    uniforms: Sequence[float],
    draft_rows: Sequence[ArrayLike | None] | None = None,
) -> tuple[tuple[int, ...], int]:
    """Tokens emitted and how many of them were candidates  (`rasd.verify`, SpecInfer's rule).

    From the root on, a node's children are tried one after another against what is left of the target's
    distribution there (`verify_candidates`); an accepted child is descended into, and where none is, or there
    are none, one token is drawn from what is left.  Exact for children that were chosen (top-k, retrieved),
    and for drawn ones if every draw is a node: two siblings drawn alike must not be merged, or the second
    draw's failure never takes its mass off the residual.

    Args:
        tree: Candidates, N nodes.
        target_rows: [N, V] the target's distribution after each node.
        uniforms: [N] coins in [0, 1): one per node but the root, whose coin draws the last token.
        draft_rows: [N] distribution that each node's token was drawn from; None, for all or one, if chosen.

    Raises:
        ValueError: Shapes that do not fit.
    """
    size = len(tree.tokens)
    if len(target_rows) != size or len(uniforms) != size:
        raise ValueError(
            f"{size} nodes need as many distributions and coins, got {len(target_rows)}, {len(uniforms)}"
        )
    drawn = [None] * size if draft_rows is None else list(draft_rows)
    if len(drawn) != size:
        raise ValueError(f"{size} nodes need as many draft rows, got {len(drawn)}")
    node, emitted = 0, []
    while True:
        children = tree.children(node)
        token, number = verify_candidates(
            target_rows[node],
            [tree.tokens[child] for child in children],
            [*(uniforms[child] for child in children), uniforms[0]],
            [drawn[child] for child in children],
        )
        emitted.append(token)
        if number is None:
            return tuple(emitted), len(emitted) - 1
        node = children[number]


def verify_markov(
    root: int, retrieved: Sequence[Sequence[int]], target_table: ArrayLike, uniforms: Sequence[float]
) -> tuple[tuple[int, ...], int]:
    """Tokens emitted, and how many were candidates, for a Markov target (`rasd.verify`): `verify_tree`.

    Refuses a token without a row in `target_table`, or not a coin for each node, root included.
    """
    tree = merge(root, retrieved)
    table = np.asarray(target_table, dtype=np.float64)
    if table.ndim != 2 or not 0 <= min(tree.tokens) <= max(tree.tokens) < len(table):
        raise ValueError(f"target_table needs a row for each token up to {max(tree.tokens)}")
    return verify_tree(tree, [table[token] for token in tree.tokens], uniforms)


# Published pairs


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a speedup and an acceptance length say together.

    Attributes:
        tokens_per_round: tau + 1, with the target's own token.
        step_cost: Time of a round over that of a plain step, (tau + 1)/SR.
        consistent: Whether a round costs at least a plain step: SR <= tau + 1.
    """

    tokens_per_round: float
    step_cost: float
    consistent: bool


@law()
def metrics(speedup: float, accepted_per_round: float) -> Metrics:
    """Check of a published pair: a round of tau + 1 tokens is not faster than a plain step (`rasd.metrics`).

    tau is without the target's own token.  The paper's table breaks it: REST on NL2SQL has SR 3.59 at tau
    1.51, faster than its 2.51 tokens.
    """
    cost = (accepted_per_round + 1.0) / speedup
    return Metrics(accepted_per_round + 1.0, cost, cost >= 1.0)
