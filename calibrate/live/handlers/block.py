"""Blocks drafted in one pass: masks behind the text (`policies.block`), or behind its likely continuations.

A draft that was trained for it names its mask in `block_mask` of its config; any other is shown the last
token of its vocabulary, and says little beyond a block's first token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.rows import proposing, rows_of
from calibrate.live.engine.sampling import DraftSampler, top_tokens
from calibrate.live.engine.trees import Branching
from calibrate.live.engine.verification import prepared_outcomes
from calibrate.live.errors import ModelError
from calibrate.live.handlers.chains import drafted, rewound, sampler_of
from calibrate.live.handlers.trees import rewind_unseen
from policies.block import DraftBlock
from policies.saguaro_block import PrepareBlocks, PreparedBlocks
from policies.tokentree import ROOT, TreeDrafted, chain_of
from policies.values import Drafted


@handles(DraftBlock)
def draft_blocks(executor: Executor, operation: DraftBlock) -> list[TreeDrafted]:
    """One forward over what is unseen and the masks, of which the cache keeps nothing.

    Raises:
        AuditError: The cache misses more of a row's text than the policy said.
        ModelError: A pass for each token is asked for.
    """
    if operation.passes != "one":
        raise ModelError("a draft with a pass for each token has no cache of blocks live: use `saguaro`")
    rows, runner = rows_of(operation.view), executor.runner
    depth, slots = operation.lookahead, [row.slot for row in rows]
    for row, own in zip(rows, operation.inputs, strict=True):
        rewind_unseen(executor, row, own)
    fed = [(*own, *masks(executor, depth)) for own in operation.inputs]
    sampler = sampler_of(executor, [(row.request, row.position) for row in rows], depth, operation.sampling)
    with executor.step("feed", fed):
        logits = runner.forward(slots, fed)
        said = torch.stack([logits[i, len(own) - depth : len(own)] for i, own in enumerate(fed)])
        texts = _chosen(sampler, said)
    for slot in slots:
        runner.rollback(slot, len(runner.held(slot)) - (depth - 1))
    return [
        TreeDrafted(chain_of(*text), (("feed", len(chain)),)) for text, chain in zip(texts, fed, strict=True)
    ]


@handles(PrepareBlocks)
def prepare_blocks(executor: Executor, operation: PrepareBlocks) -> list[PreparedBlocks]:
    """A forward over the chain under verification ranks the outcomes, another one drafts their blocks.

    Raises:
        ModelError: As `draft_blocks`.
    """
    if operation.passes != "one":
        raise ModelError("a draft with a pass for each token has no cache of blocks live: use `saguaro`")
    depth, most = operation.lookahead, operation.outcomes
    rows = [
        proposing(row, tree.tokens)
        for row, tree in zip(rows_of(operation.view), operation.inputs, strict=True)
    ]
    chains = rewound(executor, rows)
    # The last committed token is node 0; the k-th drafted one is node k.
    trunk = Branching(executor.runner, [row.slot for row in rows])
    with executor.step("glue", chains):
        logits = trunk.feed(chains, [range(ROOT, len(chain) - 1) for chain in chains])
        ranked = [top_tokens(logits[i, : len(chain)], 1 + most) for i, chain in enumerate(chains)]
    outcomes = [
        prepared_outcomes(own, row.tokens, (most,) * len(own)) for own, row in zip(ranked, rows, strict=True)
    ]
    hidden = masks(executor, depth)
    blocks = [[token for _, bonus in own for token in (bonus, *hidden)] for own in outcomes]
    parents = [
        [
            k if at == 0 else len(chain) + number * depth + at - 1
            for number, (k, _) in enumerate(own)
            for at in range(depth)
        ]
        for own, chain in zip(outcomes, chains, strict=True)
    ]
    keys = [
        (row.request, row.position + k + 1) for row, own in zip(rows, outcomes, strict=True) for k, _ in own
    ]
    sampler = sampler_of(executor, keys, depth, operation.sampling)
    with executor.step("tree", blocks):
        logits = trunk.feed(blocks, parents)
        said = torch.cat([logits[i, : len(own)].unflatten(0, (-1, depth)) for i, own in enumerate(blocks)])
        texts = iter(_chosen(sampler, said))
    trunk.keep([range(len(chain)) for chain in chains])
    return [
        PreparedBlocks(
            tuple([(*outcome, *next(texts)) for outcome in own]),
            (("glue", len(chain)), ("tree", len(block))),
        )
        for own, chain, block in zip(outcomes, chains, blocks, strict=True)
    ]


def masks(executor: Executor, depth: int) -> tuple[int, ...]:
    """The masks of a block of `depth` tokens, the first of which needs none."""
    config = executor.runner.config
    return (int(getattr(config, "block_mask", config.vocab_size - 1)),) * (depth - 1)


def _chosen(sampler: DraftSampler, logits: Tensor) -> list[Drafted]:
    """The tokens of each text, from its logits [N, K, V]: none of them depends on those before it."""
    columns: Sequence[list[int]] = [sampler.choose(each).tolist() for each in logits.unbind(1)]
    return drafted(columns, sampler)
