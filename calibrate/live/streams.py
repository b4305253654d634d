"""Lookahead streams of a draft: what may follow the next token, from the forward that verifies it.

Speculative streaming (Bhendawade et al., 2024; Mirror-SD, section 3.2): beside each token's main stream M_t,
which is the model itself, S further streams predict the S tokens after the next one.  Stream j of a token
enters the top layer with the hidden state that the main stream enters it with, plus an embedding of j, and
stands at position t + j.  It sees what its token sees, and the streams 1 ... j of the same token; no other
token's streams, and no main stream sees any.

The paper's streams share the layers of a draft that is trained with them.  Here the draft stays as it is, to
the last bit, and the streams have a top layer of their own, which begins as a copy of the draft's; keys and
values of the main stream are those of the draft's own top layer.  `calibrate pair streams` trains them; they
lie beside the draft's weights in `streams.safetensors`.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrate.live.addedweights import read_additions, write_additions
from calibrate.live.errors import ModelError
from calibrate.live.parts import second_part
from policies.values import BoolArray, IntArray

FILE = "streams.safetensors"
_SCHEMA = "spectwin/streams/1"
_EMBEDDING = "embedding"


class StreamHeads(nn.Module):
    """What the streams have of their own: an embedding each, and one top layer together.

    Args:
        model: A Llama-like model; its top layer is copied.
        streams: S.
    """

    def __init__(self, model: Any, streams: int) -> None:
        super().__init__()
        self.layer = copy.deepcopy(model.model.layers[-1]).requires_grad_(True)
        size = int(model.config.hidden_size)
        self.embedding = nn.Parameter(0.02 * torch.randn(streams, size, device=model.device))

    @property
    def streams(self) -> int:
        """S."""
        return int(self.embedding.shape[0])

    def entering(self, hidden: Tensor, streams: int) -> Tensor:
        """[..., n * s, H] states of the first s streams of tokens, from the main stream's [..., n, H]."""
        wide: Tensor = hidden[..., None, :] + self.embedding[:streams].to(hidden.dtype)
        return wide.flatten(-3, -2)


class ModelStreams:
    """The streams of a model that is loaded.

    Args:
        model: A Llama-like model with a language model head.
        heads: Its streams.

    Attributes:
        part: The streams' layer with the model's norm and head; takes hidden states in place of ids.
    """

    def __init__(self, model: Any, heads: StreamHeads) -> None:
        self.heads = heads
        self.layers = int(model.config.num_hidden_layers)
        self.part = stream_part(model, heads)

    @property
    def streams(self) -> int:
        """S."""
        return self.heads.streams

    @property
    def share(self) -> float:
        """Share of a forward's layers that a stream goes through: 1 / N."""
        return 1.0 / self.layers


def stream_part(model: Any, heads: StreamHeads) -> Any:
    """The streams' layer as a model: hidden states in, logits of the model's own head out."""
    part = second_part(model, int(model.config.num_hidden_layers) - 1)
    part.model._modules["layers"] = nn.ModuleList([heads.layer])
    return part


def stream_sight(hidden: BoolArray, starts: IntArray, streams: int) -> BoolArray:
    """[R, n * S, L] the columns hidden from streams (the mask of multi-stream attention).

    Args:
        hidden: [R, n, l] the columns hidden from each token.
        starts: [R] column of a row's first stream; those of a token follow each other, token after token.
        streams: S.
    """
    rows, count, length = hidden.shape
    widest = max(length, int(starts.max()) + count * streams)
    sight = np.ones((rows, count, streams, widest), dtype=np.bool_)
    sight[..., :length] = hidden[:, :, None]
    row, token, stream, other = (index.ravel() for index in np.indices((rows, count, streams, streams)))
    own = other <= stream
    columns = starts[row] + token * streams + other
    sight[row[own], token[own], stream[own], columns[own]] = False
    return sight.reshape(rows, count * streams, widest)


def stream_positions(positions: IntArray, streams: int) -> IntArray:
    """[R, n * S] positions of streams: stream j = 1 ... S of a token at t stands at t + j.

    Args:
        positions: [R, n] of the tokens.
        streams: S.
    """
    stood: IntArray = (positions[..., None] + 1 + np.arange(streams)).reshape(len(positions), -1)
    return stood


def save_streams(heads: StreamHeads, total: int, folder: Path) -> Path:
    """Write streams beside the weights of the model they belong to, in half precision; returns the file.

    Args:
        heads: The streams.
        total: N, layers of the model.
        folder: Of the model.
    """
    return write_additions(heads.state_dict(), folder / FILE, schema=_SCHEMA, layers=total)


def load_streams(model: Any) -> ModelStreams:
    """The streams of a loaded model, from beside its weights.

    Raises:
        ModelError: There are none, or they are of another model.
    """
    folder = Path(getattr(model.config, "_name_or_path", ""))
    path = folder / FILE
    if getattr(model.config, "embedding", None) is not None or not path.is_file():
        raise ModelError(
            f"{folder} holds no {FILE}: `--streams` needs a draft with trained streams; train them with "
            f"`calibrate pair streams --draft {folder}`, or leave `--streams` at 0"
        )
    tensors, trained = read_additions(path, schema=_SCHEMA, what="streams", needed=_EMBEDDING)
    heads = StreamHeads(model, int(tensors[_EMBEDDING].shape[0]))
    layers = str(model.config.num_hidden_layers)
    try:
        heads.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelError(f"{path} is of another model: {error}; train streams anew") from error
    if trained != layers:
        raise ModelError(f"{path} is of a model of {trained} layers, this one has {layers}; train anew")
    heads.to(device=model.device, dtype=model.dtype)
    return ModelStreams(model, heads.eval().requires_grad_(False))
