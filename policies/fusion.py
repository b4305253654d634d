"""Pruning and fusing of trees (RASD, sections 3.2.2 and 3.2.3)."""

from __future__ import annotations

from collections.abc import Collection

from policies.operations import NO_LAW
from policies.trees import ROOT, TokenTree


def pruned(tree: TokenTree, first: Collection[int]) -> TokenTree:
    """The tree without the branches whose first token is not among `first` (`rasd.prune`)."""
    kept: dict[int, int] = {}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if parent in kept or (parent == ROOT and token in first):
            kept[node] = len(kept)
    return TokenTree(
        tuple(tree.tokens[node] for node in kept),
        tuple(kept.get(tree.parents[node], ROOT) for node in kept),
        tuple(tree.sources[node] for node in kept),
        tuple(tree.laws[node] for node in kept),
    )


def fused(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
    """The trie of both trees: the draft's nodes, then what is retrieved beside and below them (`rasd.fuse`).

    A retrieved node that the draft has too is the draft's, with the law that it was drawn from: two siblings
    with one token would try it twice.  Siblings drawn alike stay as they are (each draw takes its mass off
    the residual); what is retrieved below goes on from the first of them.

    Args:
        draft: Drafted nodes, chosen or drawn.
        retrieved: Chosen nodes.
    """
    found: dict[tuple[int, int], int] = {}
    for node, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True)):
        found.setdefault((parent, token), node)
    tokens, parents, sources = list(draft.tokens), list(draft.parents), list(draft.sources)
    place = {ROOT: ROOT}
    for node, token in enumerate(retrieved.tokens):
        key = (place[retrieved.parents[node]], token)
        if key not in found:
            found[key] = len(tokens)
            tokens.append(token)
            parents.append(key[0])
            sources.append(retrieved.sources[node])
        place[node] = found[key]
    laws = (*draft.laws, *(NO_LAW for _ in range(len(tokens) - len(draft.laws))))
    return TokenTree(tuple(tokens), tuple(parents), tuple(sources), laws)


def unfused(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
    """`fused`, with what both trees have verified twice: the ablation of RASD's table 3.

    The copies come last and below the root, so that they are never accepted before what they are copies of:
    fusion saves tokens of the verification and changes no outcome, as the paper has it.
    """
    both, shared = fused(draft, retrieved), _shared(draft, retrieved)
    shift = len(both.tokens)
    number = {node: shift + i for i, node in enumerate(shared)}
    return TokenTree(
        (*both.tokens, *(retrieved.tokens[node] for node in shared)),
        (*both.parents, *(number.get(retrieved.parents[node], ROOT) for node in shared)),
        (*both.sources, *(retrieved.sources[node] for node in shared)),
        (*both.laws, *(retrieved.laws[node] for node in shared)),
    )


def _shared(draft: TokenTree, retrieved: TokenTree) -> list[int]:
    """Retrieved nodes whose path the draft has too."""
    paths = {tuple(draft.tokens[n] for n in draft.path(node)) for node in range(len(draft.tokens))}
    return [
        node
        for node in range(len(retrieved.tokens))
        if tuple(retrieved.tokens[n] for n in retrieved.path(node)) in paths
    ]
