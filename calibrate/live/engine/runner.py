"""What a backend gives the engine: a model over slots, and where it can, a look at what leaves a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from calibrate.live.engine.forwards import Tree
from calibrate.live.errors import ModelError
from policies.values import BoolArray, IntArray


class Runner(Protocol):
    """A causal language model over slots: ragged chains, rollbacks, branches, and nodes of any shape.

    `calibrate.live.engine.slots` and `forwards` do most of it for a backend whose keys and values are static
    buffers of torch; `_call` is then all it has to say.

    Attributes:
        model: The torch model, on `meta` where the backend has weights of its own.
        config: Its configuration.
        device: Where logits lie.
        fed: Tokens that went through the model so far, summed over rows, without padding.
    """

    model: Any
    config: Any
    device: torch.device
    fed: int

    def warm(self, shapes: Sequence[tuple[int, int]]) -> float:
        """Compile what forwards of (rows, new tokens) need; seconds that it took."""
        ...

    def reset(self, slot: int) -> None:
        """Forget what a slot holds."""
        ...

    def held(self, slot: int) -> list[int]:
        """Token ids whose keys and values a slot holds."""
        ...

    def rollback(self, slot: int, length: int) -> None:
        """Keep the first `length` tokens of a slot."""
        ...

    def install_synthetic(self, slots: Sequence[int], context: int) -> None:
        """Fill slots with random keys and values, for probes."""
        ...

    def forward(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], *, last_only: bool = False
    ) -> Tensor:
        """[R, n, V] logits of each row's chain after what its slot holds; see `SlotForwards.forward`."""
        ...

    def open_tree(self, slots: Sequence[int], forks: Sequence[Sequence[int]], depth: int) -> Tree:
        """Prepare branches; see `SlotForwards.open_tree`."""
        ...

    def tree_forward(self, tree: Tree, tokens: Tensor) -> Tensor:
        """[R, N, V] logits of the next token of every branch."""
        ...

    def close_tree(self, tree: Tree) -> None:
        """Forget the branches."""
        ...

    def forward_at(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        positions: IntArray,
        hidden: BoolArray,
    ) -> Tensor:
        """[R, n, V] logits of nodes; see `SlotForwards.forward_at`."""
        ...

    def adopt(
        self, slots: Sequence[int], columns: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> None:
        """Hold from now on what lies at some columns; see `SlotForwards.adopt`."""
        ...


class LayerRunner(Runner, Protocol):
    """A runner whose layers can be looked at; see `calibrate.live.backends.torch.ModelRunner`."""

    def forward_through(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        layer: int,
        see: Callable[[Tensor], None],
    ) -> Tensor:
        """As `forward`, and shows `see` what leaves the first `layer` layers."""
        ...

    def showing(
        self, slots: Sequence[int], layer: int, see: Callable[[Tensor], None]
    ) -> AbstractContextManager[None]:
        """Within the block, forwards show `see` what leaves the first `layer` layers."""
        ...

    def forward_states(
        self,
        part: Any,
        slots: Sequence[int],
        starts: Sequence[int],
        states: Tensor,
        *,
        positions: IntArray,
        hidden: BoolArray,
    ) -> Tensor:
        """As `forward_at`, through other layers, which hidden states enter."""
        ...


def with_layers(runner: Runner) -> LayerRunner:
    """The runner, where its layers can be looked at.

    Raises:
        ModelError: Its backend shows no hidden states.
    """
    if not hasattr(runner, "forward_through"):
        raise ModelError(
            f"{type(runner).__name__} shows no hidden states: early exits, and streams of a draft, need the "
            "backend 'torch'"
        )
    return cast("LayerRunner", runner)
