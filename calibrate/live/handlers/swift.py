"""SWIFT: chains drafted by the target without some of its layers, in the target's own slots."""

from __future__ import annotations

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.heads import forward_weights, weights
from calibrate.live.engine.rows import rows_of
from calibrate.live.errors import ModelError
from calibrate.live.handlers.gated import confidence
from policies.swift import DraftSkipping, layers_kept
from policies.tokentree import TreeDrafted, chain_of
from policies.values import NO_HANDLE


@handles(DraftSkipping)
def draft_skipping(executor: Executor, operation: DraftSkipping) -> list[TreeDrafted]:
    """The last committed token, then the drafted ones, through a part of the layers, while it is sure.

    What they leave in the slots is fed again by the verification, through all layers.

    Raises:
        ModelError: The target is not a Llama-like model of torch, or none of its layers can be skipped.
    """
    runner, rows = executor.runner, rows_of(operation.view)
    layers = getattr(getattr(getattr(runner, "model", None), "model", None), "layers", None)
    if not isinstance(runner, ModelRunner) or layers is None:
        raise ModelError("layers can be skipped of a Llama-like model that torch computes")
    kept = layers_kept(len(layers), operation.every)
    if len(kept) == len(layers):
        raise ModelError(f"no layer of {len(layers)} is skipped with skip_every {operation.every}")
    read = weights(runner.model.lm_head) + sum(weights(layers[at]) for at in kept)
    name = f"head:{read / forward_weights(runner.model):.4g}"
    for row in rows:
        executor.rewind(row)
    texts: list[list[int]] = [[] for _ in rows]
    steps, going, chains = [0] * len(rows), list(range(len(rows))), [row.tail[-1:] for row in rows]
    with runner.through(kept):
        for _ in range(operation.lookahead):
            with executor.step(name, chains):
                logits = runner.forward([rows[i].slot for i in going], chains, last_only=True)[:, 0]
                sure = (confidence(logits, "confidence") >= operation.least).tolist()
                tokens = logits.argmax(dim=-1).tolist()
            for i, token, ok in zip(going, tokens, sure, strict=True):
                steps[i] += 1
                texts[i] += [token] * ok
            going = [i for i, ok in zip(going, sure, strict=True) if ok]
            chains = [(texts[i][-1],) for i in going]
            if not going:
                break
    return [
        TreeDrafted(chain_of(text, NO_HANDLE), ((name, 1),) * count)
        for text, count in zip(texts, steps, strict=True)
    ]
