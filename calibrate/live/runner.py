"""A causal language model with one KV cache per slot: chains, rollbacks and trees.

Only worker processes (and tests) import this module; it needs torch and transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from calibrate.live.errors import AuditError, ModelError


@dataclass
class Slot:
    """State of one slot.

    Attributes:
        cache: Keys and values.
        held: Token ids whose keys and values are in the cache.
        batch: Rows of the cache; above 1 only in probes, where all rows hold the same tokens.
    """

    cache: DynamicCache
    held: list[int] = field(default_factory=list)
    batch: int = 1


@dataclass
class Tree:
    """Branches that grow from a slot's trunk, one token each per step.

    Attributes:
        slot: The slot whose cache is the trunk.
        trunk: Tokens of the trunk.
        positions: [1, N] position ids of the next tokens.
        mask: [1, 1, N, trunk + depth * N] additive; 0 where a branch may look.
        steps: Steps taken so far.
    """

    slot: int
    trunk: int
    positions: Tensor
    mask: Tensor
    steps: int = 0

    @property
    def branches(self) -> int:
        """N, number of branches."""
        return self.positions.shape[1]


class ModelRunner:
    """Runs a model in inference mode and accounts for every token it feeds.

    Args:
        model: Any decoder-only model of transformers whose layers all use full attention.

    Attributes:
        fed: Tokens that went through the model so far, per row; the measure of recomputation.

    Raises:
        ModelError: The model's cache cannot be rolled back (sliding windows, recurrent layers).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()
        self.config: Any = model.config
        self.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.fed = 0
        self._slots: dict[int, Slot] = {}
        kinds = {type(layer) for layer in DynamicCache(config=self.config).layers}
        if not kinds <= {DynamicLayer}:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ModelError(f"a live run needs a cache that can be cropped; this model's layers: {names}")

    def reset(self, slot: int) -> None:
        """Forget what a slot holds."""
        self._slots[slot] = Slot(DynamicCache(config=self.config))

    def held(self, slot: int) -> list[int]:
        """Token ids whose KV a slot's cache holds; not to be changed."""
        return self._slot(slot).held

    def rollback(self, slot: int, length: int) -> None:
        """Keep the first `length` tokens of a slot.

        Raises:
            AuditError: The slot holds fewer, or its cache and its account differ.
        """
        state = self._slot(slot)
        surplus = len(state.held) - length
        if surplus < 0 or length < 0:
            raise AuditError(f"slot {slot} holds {len(state.held)} tokens, cannot roll back to {length}")
        if surplus:
            state.cache.crop(-surplus)
            del state.held[length:]
        self._audit(slot, state)

    def forward(self, slot: int, tokens: Sequence[int], *, last_only: bool = False) -> Tensor:
        """Feed a chain after what the slot holds.

        Args:
            slot: Where to.
            tokens: [n] at least one.
            last_only: Compute the last token's logits only (prefill).

        Returns:
            [n, V] logits ([1, V] if `last_only`).
        """
        state = self._slot(slot)
        ids = torch.tensor([tokens], device=self.device)
        if state.batch > 1:
            ids = ids.expand(state.batch, -1)
        logits = self._call(ids, state.cache, last_only=last_only)
        state.held.extend(tokens)
        self._audit(slot, state)
        return logits

    def open_tree(self, slot: int, forks: Sequence[int], depth: int) -> Tree:
        """Prepare branches over a slot's trunk.

        Args:
            slot: Whose cache is the trunk, shared by all branches.
            forks: [N] index of the last trunk token that each branch sees, -1 for none.
            depth: Most steps the tree will take.
        """
        trunk = len(self._slot(slot).held)
        if not forks or min(forks) < -1 or max(forks) >= trunk:
            raise AuditError(f"forks {list(forks)} do not lie in a trunk of {trunk} tokens")
        at = torch.tensor(forks, device=self.device)
        return Tree(slot, trunk, (at + 1).unsqueeze(0), self._tree_mask(at, trunk, depth))

    def tree_forward(self, tree: Tree, tokens: Tensor) -> Tensor:
        """Feed the next token of every branch in one forward.

        Args:
            tree: From `open_tree`.
            tokens: [N] ids.

        Returns:
            [N, V] logits.
        """
        state = self._slot(tree.slot)
        width = tree.trunk + (tree.steps + 1) * tree.branches
        logits = self._call(
            tokens.unsqueeze(0),
            state.cache,
            mask=tree.mask[..., :width],
            positions=tree.positions + tree.steps,
        )
        tree.steps += 1
        return logits

    def close_tree(self, tree: Tree) -> None:
        """Take the branches out of the cache again; the trunk stays."""
        state = self._slot(tree.slot)
        if tree.steps:
            state.cache.crop(-tree.steps * tree.branches)
        self._audit(tree.slot, state)

    def install_synthetic(self, slot: int, batch: int, context: int) -> None:
        """Fill a slot with random keys and values of `context` tokens in `batch` rows, for probes."""
        state = Slot(DynamicCache(config=self.config), [0] * context, batch)
        self._slots[slot] = state
        if context:
            ids = torch.zeros((batch, 1), dtype=torch.long, device=self.device)
            self._call(ids, state.cache)  # a real call tells the shapes, whatever the model
            for layer in state.cache.layers:
                assert isinstance(layer, DynamicLayer)
                layer.keys = self._random_like(layer.keys, context)
                layer.values = self._random_like(layer.values, context)
        self._audit(slot, state)

    def _random_like(self, states: Tensor | None, context: int) -> Tensor:
        assert states is not None, "the cache was just used"
        batch, heads, _, width = states.shape
        return torch.randn((batch, heads, context, width), dtype=states.dtype, device=states.device)

    def _tree_mask(self, forks: Tensor, trunk: int, depth: int) -> Tensor:
        """[1, 1, N, trunk + depth * N]: the trunk up to the fork, and a branch's own tokens.

        Additive rather than boolean: eager attention adds a mask, so that a boolean one would
        silently hide nothing.
        """
        count = forks.shape[0]
        unseen = torch.arange(trunk, device=self.device)[None, :] > forks[:, None]
        siblings = ~torch.eye(count, dtype=torch.bool, device=self.device)
        hidden = torch.cat([unseen, siblings.repeat(1, depth)], dim=1)
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(hidden, torch.finfo(self.dtype).min)[None, None]

    def _call(
        self,
        ids: Tensor,
        cache: DynamicCache,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """The one place where the model is called; [rows * tokens, V]."""
        with torch.inference_mode():
            logits: Tensor = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1 if last_only else 0,
            ).logits
            self.fed += ids.shape[1]
            return logits.flatten(0, 1)

    def _slot(self, slot: int) -> Slot:
        try:
            return self._slots[slot]
        except KeyError:
            raise AuditError(f"slot {slot} was never prefilled") from None

    def _audit(self, slot: int, state: Slot) -> None:
        length = state.cache.get_seq_length()
        if length != len(state.held):
            raise AuditError(f"slot {slot}: cache of {length} tokens, account of {len(state.held)}")


def best_tokens(logits: Tensor) -> list[int]:
    """[n] the most likely token after each position; the lowest id among equals."""
    best: list[int] = logits.argmax(dim=-1).tolist()
    return best


def top_tokens(logits: Tensor, count: int) -> list[list[int]]:
    """[n][count] the most likely tokens after each position, best first; lower ids first among equals.

    Args:
        logits: [n, V].
        count: How many, cut to V.
    """
    size = logits.shape[-1]
    count = min(count, size)
    with torch.inference_mode():
        values, ids = logits.topk(min(count + 1, size), dim=-1)
        # torch.topk breaks ties arbitrarily; only a strictly falling prefix, including the first value
        # left out, is sure to be in order.  Else fall back to a stable sort of the whole row.
        if bool((values[:, 1:] < values[:, :-1]).all()):
            top: list[list[int]] = ids[:, :count].tolist()
            return top
        order = torch.sort(logits, dim=-1, descending=True, stable=True).indices
        ranked: list[list[int]] = order[:, :count].tolist()
        return ranked
