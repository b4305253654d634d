"""Trained additions that stand beside a model's own weights; and early exits, which are one of them.

An exit is what a target would say after a part of its layers (Mirror-SD, eq. 6 and appendix E.2): a
two-layer adapter, H -> H/2 -> H with a ReLU between and no biases, whose output goes through the model's
own head: p(next | exit) = softmax(W_LM up(relu(down(h)))).  `calibrate pair exits` trains them; they lie
beside the model's weights in `exits.safetensors`.

A model embedded in a larger shape (`calibrate.pair.embed`) uses the adapters of the model it holds.  Its
real layers stand evenly between those that add nothing, so that the exit after e of the n real layers lies
after e N / n of all N: what is left to compute is the same share of the work.  Its hidden state is the small
one with zeros behind it, so that the adapter, padded with zeros, computes exactly the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from calibrate.live.errors import ModelError
from calibrate.shipped import DATA
from hardware_profiles.files import atomic_write
from policies.mirror import EXITS

FILE = "exits.safetensors"
_SCHEMA = "spectwin/exits/1"


class ExitHeads(nn.Module):
    """The adapters of all exits of a model of `hidden` units, trained together; `layers` before each exit."""

    def __init__(self, hidden: int, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.hidden = hidden
        self.layers = layers
        self.down = nn.ModuleList(nn.Linear(hidden, hidden // 2, bias=False) for _ in layers)
        self.up = nn.ModuleList(nn.Linear(hidden // 2, hidden, bias=False) for _ in layers)

    def adapted(self, layer: int, hidden: Tensor) -> Tensor:
        """[..., H] what takes the place of the last hidden state after `layer` layers."""
        index = self.layers.index(layer)
        adapted: Tensor = self.up[index](functional.relu(self.down[index](hidden)))
        return adapted


class ModelExits:
    """The early exits of a model that is loaded, by name ("1/4", "1/2", "3/4" of its depth).

    Args:
        model: A Llama-like model with a language model head.
        heads: Its adapters.
        places: Layers before each exit in `model`, by the layers before it in the model that was trained.
        total: Layers of the model that was trained.
    """

    def __init__(self, model: Any, heads: ExitHeads, places: Mapping[int, int], total: int) -> None:
        self.model = model
        self.heads = heads
        self.places = dict(places)
        self.total = total

    @property
    def layers(self) -> int:
        """N, layers of the model."""
        return int(self.model.config.num_hidden_layers)

    def layer(self, name: str) -> int:
        """Layers before an exit."""
        return self.places[exit_layer(name, self.total)]

    def logits(self, name: str, hidden: Tensor) -> Tensor:
        """[..., V] of the hidden states [..., H] that leave that layer."""
        logits: Tensor = self.model.lm_head(self.heads.adapted(exit_layer(name, self.total), hidden))
        return logits


def exit_layer(name: str, layers: int) -> int:
    """Layers before the exit called `name` in a model of `layers`: the nearest number, the lower of two.

    Raises:
        ModelError: The model is too shallow for an exit.
    """
    if layers < 2:
        raise ModelError(f"a model of {layers} layers has no early exit; it takes at least 2")
    wanted = Fraction(name) * layers
    return min(range(1, layers), key=lambda layer: (abs(layer - wanted), layer))


def exit_layers(layers: int) -> tuple[int, ...]:
    """Layers before each different exit of a model of `layers`."""
    return tuple(dict.fromkeys(exit_layer(name, layers) for name in EXITS))


def embedded_places(layers: tuple[int, ...], total: int, larger: int, real: list[int]) -> dict[int, int]:
    """Where the exits of a model of `total` layers lie in one of `larger` that holds it at the places `real`.

    Raises:
        ModelError: The real layers do not stand evenly, so that an exit would be given more or less of the
            model than its share of the work.
    """
    places = {layer: layer * larger // total for layer in layers}
    for layer, place in places.items():
        before = sum(at < place for at in real)
        if before != layer:
            raise ModelError(
                f"after {place} of {larger} layers {before} of {total} real ones have run instead of "
                f"{layer}: the embedding is not spread evenly; `calibrate pair embed` makes one that is"
            )
    return places


def save_exits(heads: ExitHeads, total: int, folder: Path) -> Path:
    """Write adapters beside the weights of their model of `total` layers, in half precision; the file."""
    tensors = {}
    for layer, down, up in zip(heads.layers, heads.down, heads.up, strict=True):
        tensors[f"{layer}.down"], tensors[f"{layer}.up"] = down.weight, up.weight
    return write_additions(tensors, folder / FILE, schema=_SCHEMA, layers=total)


def load_exits(model: Any) -> ModelExits:
    """The exits of a loaded model: those beside its weights, or of the shipped target that it embeds.

    Raises:
        ModelError: There are none, or they are of another model.
    """
    embedding: dict[str, Any] | None = getattr(model.config, "embedding", None)
    folder = Path(getattr(model.config, "_name_or_path", "")) if embedding is None else DATA / "target"
    path = folder / FILE
    if not path.is_file():
        raise ModelError(
            f"{folder} holds no {FILE}: the policy 'mirror' needs trained early exits; train them with "
            f"`calibrate pair exits --target {folder}`"
        )
    heads, total = _read(path, int(model.config.hidden_size))
    depth = int(model.config.num_hidden_layers)
    if embedding is not None:
        places = embedded_places(heads.layers, total, depth, list(embedding["real_layers"]))
    elif depth == total:
        places = {layer: layer for layer in heads.layers}
    else:
        raise ModelError(f"{path} is of a model of {total} layers, this one has {depth}; train exits anew")
    heads.to(device=model.device, dtype=model.dtype)
    return ModelExits(model, heads.eval(), places, total)


@torch.no_grad()
def _read(path: Path, hidden: int) -> tuple[ExitHeads, int]:
    """The adapters of a file, padded to `hidden`, and the layers of the model they were trained on."""
    tensors, total = read_additions(path, schema=_SCHEMA, what="early exits")
    layers = tuple(sorted({int(name.partition(".")[0]) for name in tensors}))
    trained = int(tensors[f"{layers[0]}.down"].shape[1])
    if trained > hidden:
        raise ModelError(f"{path} is of a model of {trained} hidden units, this one has {hidden}")
    heads = ExitHeads(hidden, layers)
    for layer, down, up in zip(layers, heads.down, heads.up, strict=True):
        for module, name in ((down, "down"), (up, "up")):
            small = tensors[f"{layer}.{name}"]
            module.weight.zero_()
            module.weight[: small.shape[0], : small.shape[1]] = small
    return heads, int(total)


def write_additions(tensors: Mapping[str, Tensor], path: Path, *, schema: str, layers: int) -> Path:
    """Write weights by name, in half precision, of a model of so many layers; returns the file."""
    half = {name: tensor.detach().half().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path, binary=True) as file:
        file.write(save(half, metadata={"schema": schema, "layers": str(layers)}))
    return path


def read_additions(path: Path, *, schema: str, what: str, needed: str = "") -> tuple[dict[str, Tensor], str]:
    """Weights by name, and the number of layers that the file names.

    Args:
        path: The file.
        schema: What they have to be.
        what: The same, for people.
        needed: Name of a tensor that has to be there; empty for none.

    Raises:
        ModelError: The file cannot be read, or holds something else.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: {error}") from error
    if metadata.get("schema") != schema or (needed and needed not in tensors):
        raise ModelError(f"{path}: holds no {what} of schema {schema!r}")
    return tensors, str(metadata.get("layers"))
