"""Trees by coins: the papers' assumptions in place of models.

The first child of a node is the draft's first choice and accepted with the coin's acceptance a; w - 1
further children hold the target's token with the probability of a hit after that rejection,
1 - c (w - 1)^-r (`ssd.def11`).  So some child of w is accepted with probability
a + (1 - a) (1 - c (w - 1)^-r), independently at each depth.  With the paper's c = 1 a second child is worth
nothing and a third one much.

The luck is that of the position, as for any other policy: a tree of single children accepts what a chain
does.  A path recorded by plain decoding works in the same way and is exact for static trees in greedy
decoding, where the first choice is right or wrong and a further one holds the target's token by its rank
(`TreeConfig.follows_path`).  With a histogram in place of coins, depths are counted anew after a child that
is not the first.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from policies.block import DraftBlock, Passes
from policies.config import SettingError
from policies.heads import DraftHeads
from policies.operation import Prespeculate, Work
from policies.saguaro_block import PrepareBlocks, PreparedBlocks
from policies.sampling import keyed_uniforms
from policies.swift import DraftSkipping
from policies.swiftspec import Grown, Growth, GrowTree
from policies.tokentree import ROOT, DraftTree, TokenTree, TreeDrafted, TreePlan, TreeVerdict, VerifyTree
from policies.values import NO_HANDLE, UNKNOWN, RowVerdict, Source, Speculation, verdict_of
from simulator.synthetic import rows_of, synthesises
from simulator.tokens.model import TokenModel

REFUSED = -2
"""Id of a drafted token that is not the target's, whatever the coins of its position say."""
AHEAD = "ahead-acceptance"
"""Stream of randomness (`policies.sampling`) of tokens that were prepared."""
OFF = -3
"""A token that no recorded path has."""


@synthesises(DraftTree)
def draft_trees(operation: DraftTree, _: TokenModel) -> list[TreeDrafted]:
    """Replies of `DraftTree`: shapes alone.

    Raises:
        SettingError: A dynamic tree follows the draft's confidence, which coins do not have.
    """
    _refuse_dynamic(operation.plan)
    levels = tuple(("tree", tokens) for tokens in operation.plan.fed)
    tree = shape_of(operation.plan.widths)
    return [TreeDrafted(tree, (("feed", len(unseen)), *levels)) for unseen in operation.inputs]


def _refuse_dynamic(plan: TreePlan) -> None:
    if plan.kind == "dynamic":
        raise SettingError(
            "a dynamic tree grows where the draft is confident, which coin tosses do not tell; use tree_plan "
            "'static' or a decision trace (`calibrate decide`, then --decisions)"
        )


@synthesises(DraftHeads)
def draft_heads(operation: DraftHeads, _: TokenModel) -> list[TreeDrafted]:
    """Replies of `DraftHeads`: shapes, and what the heads cost; see `draft_trees`."""
    _refuse_dynamic(operation.plan)
    work = ((f"head:{operation.cost:g}", 1),) * operation.passes
    return [TreeDrafted(shape_of(operation.plan.widths), work) for _ in operation.inputs]


@synthesises(DraftBlock)
def draft_blocks(operation: DraftBlock, _: TokenModel) -> list[TreeDrafted]:
    """Replies of `DraftBlock`: a chain, and one pass or K."""
    return [
        TreeDrafted(
            shape_of((1,) * operation.lookahead),
            block_work(len(unseen), operation.lookahead, operation.passes),
        )
        for unseen in operation.inputs
    ]


def block_work(unseen: int, lookahead: int, passes: Passes) -> Work:
    """Steps of a block: one pass over what is unseen and the masks, or one for each token."""
    if passes == "one":
        return (("feed", unseen + lookahead - 1),)
    return (("feed", unseen), *(("draft", 1),) * (lookahead - 1))


@synthesises(PrepareBlocks)
def prepare_blocks(operation: PrepareBlocks, tokens: TokenModel) -> list[PreparedBlocks]:
    """Replies of `PrepareBlocks`: the block of the outcome that will come, if any, and the work of all.

    A prepared token that would be accepted if it were redrafted is so with `ahead_acceptance`, by a coin of
    its position: the first one that is not is `REFUSED`.
    """
    depth, seed = operation.lookahead, operation.sampling.seed
    runs = []
    for _, request, position, room, ask in rows_of(operation):
        here = int(tokens.starts[request]) + position
        runs.append(len(_path(TokenTree._make(ask), tokens, here, room)))
    prepared = Prespeculate(
        operation.view,
        Speculation.primary(operation.width, dict.fromkeys(operation.view.slots, depth)),
        depth,
        (operation.outcomes,) * (depth + 1),
        sampling=operation.sampling,
    )
    rooms = operation.by_slot(operation.view.rooms)
    accepted = operation.by_slot(runs)
    judged = {
        slot: RowVerdict(run, (UNKNOWN,) * min(run + 1, rooms[slot]), run + 1 >= rooms[slot])
        for slot, run in accepted.items()
    }
    hits = tokens.hits(operation.view, prepared, verdict_of(operation.width, judged))
    blocks = (depth + 1) * operation.outcomes
    tree = ("tree", blocks * depth) if operation.passes == "one" else ("tree", blocks)
    work = (("glue", 1 + depth), *(tree,) * (1 if operation.passes == "one" else depth))
    replies = []
    for slot, request, position, _, _ in rows_of(operation):
        ids = [UNKNOWN] * depth
        if operation.ahead_acceptance < 1.0:
            places = position + accepted[slot] + 1 + np.arange(depth)
            luck = keyed_uniforms(seed, AHEAD, request, places)
            ids = np.where(luck < operation.ahead_acceptance, UNKNOWN, REFUSED).tolist()
        entry = (accepted[slot], UNKNOWN, tuple(ids), NO_HANDLE)
        replies.append(PreparedBlocks((entry,) if slot in hits else (), work))
    return replies


@synthesises(DraftSkipping)
def draft_skipping(operation: DraftSkipping, _: TokenModel) -> list[TreeDrafted]:
    """Replies of `DraftSkipping`: whole chains, for no coin is in doubt."""
    work = ((f"head:{1.0 - 1.0 / operation.every:.4g}", 1),) * operation.lookahead
    return [TreeDrafted(shape_of((1,) * operation.lookahead), work) for _ in operation.inputs]


@synthesises(VerifyTree)
def verify_trees(operation: VerifyTree, tokens: TokenModel) -> list[TreeVerdict]:
    """Replies of `VerifyTree`, for trees whose siblings stand in the draft's order.

    Raises:
        SettingError: More children of a node than the hit curve or the recorded ranks reach to.
    """
    replies = []
    for _, request, position, room, ask in rows_of(operation):
        tree = TokenTree._make(ask)
        widest = max(map(len, _children(tree).values()), default=0)
        if widest > tokens.max_fanout + 1:
            raise SettingError(
                f"{widest} children of a node are more than the tokens given can decide: "
                f"{tokens.max_fanout + 1}"
            )
        here = int(tokens.starts[request]) + position
        known = any(token >= 0 or token == OFF for token in tree.tokens)
        path = _path_by_ids(tree, tokens, here, room) if known else _path(tree, tokens, here, room)
        emitted = _ids(tokens, here, min(len(path) + 1, room))
        bonus = emitted[-1] if len(emitted) > len(path) else UNKNOWN
        verdict = RowVerdict(len(path), emitted, len(emitted) == room, bonus)
        replies.append(TreeVerdict(verdict, path, (("verify", 1 + len(tree.tokens)),)))
    return replies


def _ids(tokens: TokenModel, here: int, count: int) -> tuple[int, ...]:
    """The path's own tokens from position `here` of the token model on; UNKNOWN in a world of coins."""
    if tokens.tokens is None:
        return (UNKNOWN,) * count
    return tuple(tokens.tokens[here : here + count].tolist())


@lru_cache(maxsize=64)
def shape_of(widths: tuple[int, ...]) -> TokenTree:
    """A static tree without ids."""
    parents: list[int] = []
    bounds, level = [0], [ROOT]
    for width in widths:
        parents += [parent for parent in level for _ in range(width)]
        bounds.append(len(parents))
        level = list(range(*bounds[-2:]))
    count = len(parents)
    return TokenTree((UNKNOWN,) * count, tuple(parents), (int(Source.PRIMARY),) * count, (NO_HANDLE,) * count)


def _path(tree: TokenTree, tokens: TokenModel, here: int, room: int) -> tuple[int, ...]:
    """Accepted nodes, at most `room`, of a tree over the text before position `here` of the token model."""
    path: list[int] = []
    children = _children(tree)
    begun, family = 0, children.get(ROOT, ())
    while family and len(path) < room and tree.tokens[family[0]] != REFUSED:
        first_choices = len(path) - begun
        at = here + len(path)
        if int(tokens.run[here + begun]) > first_choices:
            child = 0
        else:
            child = _need(tokens, first_choices, at)
            begun = len(path) + 1
        if child >= len(family):
            break
        path.append(family[child])
        family = children.get(path[-1], ())
    return tuple(path)


def _path_by_ids(tree: TokenTree, tokens: TokenModel, here: int, room: int) -> tuple[int, ...]:
    """The nodes, at most `room`, that the recorded text goes through."""
    path: list[int] = []
    children = _children(tree)
    for token in _ids(tokens, here, room):
        family = children.get(path[-1] if path else ROOT, ())
        found = next((node for node in family if tree.tokens[node] == token), None)
        if found is None:
            break
        path.append(found)
    return tuple(path)


@synthesises(GrowTree)
def grow_tree(operation: GrowTree, tokens: TokenModel) -> list[Grown]:
    """Replies of `GrowTree`: the draft's choices after nodes on the recorded path; others are OFF it.

    Raises:
        SettingError: A world without ids, or more children than choices were recorded.
    """
    ranked, children = tokens.ranked, operation.children
    if ranked is None:
        raise SettingError("coin tosses have no tokens to grow a tree of: give a trace")
    if children > ranked.shape[1]:
        raise SettingError(f"{children} children, but the trace records {ranked.shape[1]} choices")
    replies = []
    for _, request, position, _, ask in rows_of(operation):
        growth, tops = Growth._make(ask), []
        here, length = int(tokens.starts[request]) + position, int(tokens.lengths[request]) - position
        for path in [path for _, path in growth.nodes] or [()]:
            there = len(path) < length and _ids(tokens, here, len(path)) == tuple(path)
            row = ranked[(here + len(path)) % len(ranked), :children].tolist() if there else [OFF] * children
            tops.append(tuple(row))
        work = ("feed", len(growth.unseen)) if growth.unseen else ("tree", len(growth.nodes))
        replies.append(Grown(tuple(tops), (work,)))
    return replies


def _need(tokens: TokenModel, depth: int, at: int) -> int:
    """Further candidates needed to hold the target's token where the first choice was rejected."""
    if tokens.by_depth is not None:
        law = tokens.by_depth.proposal_at
        row = 0 if law is None else int(law[min(depth, len(law) - 1)])
        return int(tokens.by_depth.need[row, at])
    return int(tokens.need_rejected[at])


@lru_cache(maxsize=64)
def _children(tree: TokenTree) -> dict[int, tuple[int, ...]]:
    """Children of every inner node, in order."""
    families: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        families.setdefault(parent, []).append(node)
    return {parent: tuple(nodes) for parent, nodes in families.items()}
