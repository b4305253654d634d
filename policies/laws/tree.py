"""Trees of candidate tokens: merging, fusing, masks, verification.

See `rasd.tree`, `rasd.fuse`, `rasd.verify`.  Nodes lie in level order, parents first.  Node 0 is the
root: y_0, the last token of the text, which is not a candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policies.laws.candidates import verify_candidates
from policies.laws.ssd import FloatArray


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


def merge(root: int, candidates: Iterable[Sequence[int]]) -> TokenTree:
    """Tree of candidates with common beginnings merged under y_0  (`rasd.tree`).

    An empty candidate adds nothing, and one that begins another is not a leaf.  Siblings stand in the order
    in which their candidates came.

    Args:
        root: y_0.
        candidates: Token lists.
    """
    level: list[tuple[int, list[Sequence[int]]]] = [(0, [path for path in candidates if len(path)])]
    tokens, parents = [root], [-1]
    while level:
        below: list[tuple[int, list[Sequence[int]]]] = []
        for node, paths in level:
            heads: dict[int, list[Sequence[int]]] = {}
            for path in paths:
                heads.setdefault(path[0], []).append(path[1:])
            for token, tails in heads.items():
                tokens.append(token)
                parents.append(node)
                below.append((len(tokens) - 1, [tail for tail in tails if len(tail)]))
        level = below
    return TokenTree(tuple(tokens), tuple(parents))


def fuse(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
    """Union of two trees under one root: every path of both, no node twice  (`rasd.fuse`).

    The draft's nodes come first among siblings.  Mask and positions are those of the new tree.

    Raises:
        ValueError: Trees with different roots.
    """
    if draft.tokens[0] != retrieved.tokens[0]:
        raise ValueError(f"the trees have different roots: {draft.tokens[0]} and {retrieved.tokens[0]}")
    # Every node and not only the leaves, by which siblings keep their order: they are tried in it.
    every = [tree.path(node) for tree in (draft, retrieved) for node in range(1, len(tree.tokens))]
    return merge(draft.tokens[0], every)


def fuse_paths(
    root: int, draft_paths: Sequence[Sequence[int]], retrieved: Sequence[Sequence[int]]
) -> TokenTree:
    """`fuse` of two lists of candidates."""
    return fuse(merge(root, draft_paths), merge(root, retrieved))


def verify_tree(
    tree: TokenTree,
    target_laws: Sequence[ArrayLike] | FloatArray,
    uniforms: Sequence[float],
    draft_laws: Sequence[ArrayLike | None] | None = None,
) -> tuple[tuple[int, ...], int]:
    """Tokens emitted and how many of them were candidates  (`rasd.verify`, SpecInfer's rule).

    From the root on, a node's children are tried one after another against what is left of the target's law
    there (`policies.laws.candidates`); an accepted child is descended into, and where none is, or there are
    none, one token is drawn from what is left.  Exact for children that were chosen (top-k, retrieved), and
    for drawn ones if every draw is a node: two siblings drawn alike must not be merged, or the second
    draw's failure never takes its mass off the residual.

    Args:
        tree: Candidates.
        target_laws: [N, V] the target's law after each node.
        uniforms: [N] coins in [0, 1): one per node but the root, whose coin draws the last token.
        draft_laws: [N] law that each node's token was drawn from; None, for all or for one, if chosen.

    Raises:
        ValueError: Shapes that do not fit.
    """
    size = len(tree.tokens)
    if len(target_laws) != size or len(uniforms) != size:
        raise ValueError(f"{size} nodes need as many laws and coins, got {len(target_laws)}, {len(uniforms)}")
    drawn = [None] * size if draft_laws is None else list(draft_laws)
    if len(drawn) != size:
        raise ValueError(f"{size} nodes need as many draft laws, got {len(drawn)}")
    node, emitted = 0, []
    while True:
        children = tree.children(node)
        token, number = verify_candidates(
            target_laws[node],
            [tree.tokens[child] for child in children],
            [*(uniforms[child] for child in children), uniforms[0]],
            [drawn[child] for child in children],
        )
        emitted.append(token)
        if number is None:
            return tuple(emitted), len(emitted) - 1
        node = children[number]
