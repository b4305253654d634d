"""Chains that a draft continues only where it is sure of the next token."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.rows import rows_of
from calibrate.live.handlers.chains import sampler_of, unseen
from policies.gated import DraftGated, Gate
from policies.tokentree import TreeDrafted, chain_of

ENTROPY_WEIGHT = 0.2
"""Of AdaEDL's bound."""


@handles(DraftGated)
def draft_gated(executor: Executor, operation: DraftGated) -> list[TreeDrafted]:
    """Feed what is unseen, then draft row by row until the gate closes: one forward for those still open."""
    rows = rows_of(operation.view)
    chains = [unseen(executor, row) for row in rows]
    keys = [(row.request, row.position) for row in rows]
    sampler = sampler_of(executor, keys, operation.lookahead, operation.sampling)
    work = [[("feed", len(chain))] for chain in chains]
    texts: list[list[int]] = [[] for _ in rows]
    going = np.arange(len(rows))
    for step in range(operation.lookahead):
        with executor.step("draft" if step else "feed", chains):
            logits = executor.runner.forward([rows[i].slot for i in going], chains, last_only=True)[:, 0]
            sure = (confidence(logits, operation.gate) >= operation.least).cpu().numpy()
            going = going[sure]
            if not len(going):
                break
            tokens = sampler.choose_at(logits[sure.nonzero()[0].tolist()], going, np.full(len(going), step))
        for i, token in zip(going.tolist(), tokens.tolist(), strict=True):
            texts[i].append(token)
            work[i] += [("draft", 1)] * (step + 1 < operation.lookahead)
        chains = [(texts[i][-1],) for i in going]
    handles_ = sampler.seal()
    return [
        TreeDrafted(chain_of(text, handle), tuple(own))
        for text, handle, own in zip(texts, handles_, work, strict=True)
    ]


def confidence(logits: Tensor, gate: Gate) -> Tensor:
    """[n] how sure the draft is of the next token, in 0..1, from its logits [n, V]."""
    logs = logits.double().log_softmax(dim=-1)
    if gate == "confidence":
        return logs.max(dim=-1).values.exp()
    entropy = -(logs.exp() * logs).nansum(dim=-1)
    return 1.0 - (ENTROPY_WEIGHT * entropy).sqrt()
