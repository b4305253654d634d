"""A model in two parts, so that something can be said between them (Mirror-SD's early exit)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from calibrate.live.capture import Capture, Feed
from calibrate.live.kvcache import Buffers


@contextmanager
def watched(model: Any, layer: int, see: Callable[[Tensor], None]) -> Iterator[None]:
    """Show `see` what leaves the first `layer` layers [R, n, H] of every forward within the block."""

    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        see(output[0] if isinstance(output, tuple) else output)

    handle = model.model.layers[layer - 1].register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class SplitCapture:
    """Compiled forwards of a Llama-like model in two graphs, with a look between them (see `Capture`).

    Args:
        model: In evaluation mode.
        layer: Layers of the first part.
    """

    def __init__(self, model: PreTrainedModel, layer: int) -> None:
        size = int(model.config.get_text_config().hidden_size)
        self._first = Capture(first_part(model, layer))
        self._second = Capture(second_part(model, layer), hidden=size)
        self._see: Callable[[Tensor], None] = lambda hidden: None

    def showing(self, see: Callable[[Tensor], None]) -> SplitCapture:
        """The same, showing `see` the hidden states [R, n, H] between the parts."""
        self._see = see
        return self

    def call(self, feed: Feed, buffers: Sequence[Buffers]) -> Tensor:
        """See `Capture.call`."""
        hidden = self._first.call(feed, buffers)
        self._see(hidden)
        return self._second.call(feed._replace(ids=hidden.contiguous()), buffers)


def first_part(model: Any, layer: int) -> Any:
    """The embedding and the first `layer` layers, whose "logits" are hidden states; weights are shared."""
    return _part(model, layers=model.model.layers[:layer], norm=nn.Identity(), head=nn.Identity())


def second_part(model: Any, layer: int) -> Any:
    """The layers after the first `layer`, norm and head; takes hidden states in place of ids."""
    return _part(model, layers=model.model.layers[layer:], embedding=nn.Identity())


def _part(model: Any, *, layers: Any, norm: Any = None, head: Any = None, embedding: Any = None) -> Any:
    whole, inner = _shallow(model), _shallow(model.model)
    whole._modules["model"] = inner
    inner._modules["layers"] = layers
    for place, name, module in ((inner, "norm", norm), (whole, "lm_head", head)):
        if module is not None:
            place._modules[name] = module
    if embedding is not None:
        inner._modules["embed_tokens"] = embedding
    return whole


def _shallow(module: Any) -> Any:
    """A copy that shares all weights, with a table of submodules of its own."""
    found = copy.copy(module)
    found._modules = dict(module._modules)
    return found
