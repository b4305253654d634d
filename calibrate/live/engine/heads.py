"""Heads that draft on their target, as trained by `calibrate pair medusa`, `hydra` and `eagle`.

A head reads f_t, the target's last hidden state (after its norm) at a token x_t.  A Medusa head j is a
residual block, f + SiLU(W_j f), and says x_(t+1+j) through the target's own output matrix (Cai et al. 2024,
eq. 1); a Hydra head reads the embeddings of the tokens between, too.  An EAGLE head is one decoder layer over
pairs (x_(t+1), f_t), fused by a matrix; what leaves it is an estimate of f_(t+1), which goes through the
target's output matrix and, with the next drafted token, back into the head (Li et al. 2024).  Its own keys
and values are those of the committed text's pairs.

A model embedded in a larger shape (`calibrate.pair.embed`) uses the head of the model it holds, filled up
with zeros to its shape: real hidden states are the small ones with zeros behind, so that the head computes
the same at the larger one's cost.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrate.live.engine.additions import read_additions, write_additions
from calibrate.live.engine.compiled import second_part
from calibrate.live.engine.executor import Executor
from calibrate.live.engine.runner import Runner, Tokens
from calibrate.live.errors import ModelError
from calibrate.shipped import DATA


class MedusaHeads(nn.Module):
    """J heads of a Llama-like model: `blocks` [J], H -> H without biases, zero at first (Medusa, 2.1.1)."""

    name = "medusa"

    def __init__(self, model: Any, count: int) -> None:
        super().__init__()
        size = int(model.config.hidden_size)
        self.blocks = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(count))
        for block in self.blocks:
            nn.init.zeros_(block.weight)

    @classmethod
    def shaped(cls, model: Any, tensors: dict[str, Tensor]) -> MedusaHeads:
        """Untrained heads, as many as are named in `tensors`."""
        return cls(model, len(tensors))

    def states(self, hidden: Tensor) -> Tensor:
        """[..., J, H] what each head says in place of the last hidden states [..., H]."""
        return torch.stack([hidden + functional.silu(block(hidden)) for block in self.blocks], dim=-2)


class HydraHeads(nn.Module):
    """J heads, each of which reads the tokens before its own, too (Ankner et al. 2024).

    `blocks` [J]: head j, (1 + j) H -> H without biases, zero at first, reads f_t beside the embeddings of
    x_(t+1) to x_(t+j), and says x_(t+1+j).
    """

    name = "hydra"

    def __init__(self, model: Any, count: int) -> None:
        super().__init__()
        size = int(model.config.hidden_size)
        self.blocks = nn.ModuleList(nn.Linear((1 + j) * size, size, bias=False) for j in range(1, count + 1))
        for block in self.blocks:
            nn.init.zeros_(block.weight)

    @classmethod
    def shaped(cls, model: Any, tensors: dict[str, Tensor]) -> HydraHeads:
        """Untrained heads, as many as are named in `tensors`."""
        return cls(model, len(tensors))

    def state(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """[..., H] what head j says in place of the hidden states [..., H], from j embeddings [..., j, H]."""
        block = self.blocks[embedded.shape[-2] - 1]
        return hidden + functional.silu(block(torch.cat([hidden, embedded.flatten(-2)], dim=-1)))


class EagleHead(nn.Module):
    """The layer of its own of an EAGLE head, which begins as a copy of the target's last one."""

    name = "eagle"

    def __init__(self, model: Any) -> None:
        super().__init__()
        size = int(model.config.hidden_size)
        self.fuse = nn.Linear(2 * size, size, bias=False)
        self.layer = copy.deepcopy(model.model.layers[-1]).requires_grad_(True)
        self.layer.self_attn.layer_idx = 0
        self.norm = copy.deepcopy(model.model.norm).requires_grad_(True)

    @classmethod
    def shaped(cls, model: Any, tensors: dict[str, Tensor]) -> EagleHead:
        """An untrained head."""
        return cls(model)


DraftingHeads: TypeAlias = MedusaHeads | HydraHeads | EagleHead


class Pairs(nn.Module):
    """Stands where a model embeds ids: an id is the index of a pair (token, hidden state) of a table."""

    def __init__(self, embed: nn.Module, fuse: nn.Module, width: int) -> None:
        super().__init__()
        self.embed, self.fuse = embed, fuse
        weight = next(embed.parameters())
        self.load(weight.new_zeros(1, dtype=torch.long), weight.new_zeros(1, width))

    def load(self, tokens: Tensor, states: Tensor) -> None:
        """The table from now on: tokens [n] and states [n, H]."""
        self.tokens, self.hidden = tokens, states

    def forward(self, ids: Tensor) -> Tensor:
        """[..., H] the fused pairs."""
        fused: Tensor = self.fuse(torch.cat([self.embed(self.tokens[ids]), self.hidden[ids]], dim=-1))
        return fused


def eagle_part(model: Any, head: EagleHead) -> tuple[Any, Pairs]:
    """The head as a causal model of one layer, ids of pairs in, estimated states out; and its table."""
    part = second_part(model, int(model.config.num_hidden_layers) - 1)
    pairs = Pairs(model.model.embed_tokens, head.fuse, int(model.config.hidden_size))
    inner = {"layers": nn.ModuleList([head.layer]), "norm": head.norm, "embed_tokens": pairs}
    part.model._modules.update(inner)
    part._modules["lm_head"] = nn.Identity()
    part.config = part.model.config = copy.copy(model.config)
    part.config.num_hidden_layers = 1
    return part, pairs


class TargetStates:
    """Last hidden states of committed tokens that the heads have not read yet, by slot.

    Raises:
        ModelError: The model is not Llama-like.
    """

    def __init__(self, model: Any) -> None:
        self.layers = int(model.config.num_hidden_layers)
        norm = getattr(getattr(model, "model", None), "norm", None)
        if norm is None:
            raise ModelError(f"{type(model).__name__} is not Llama-like: no heads read its hidden states")
        self._norm: nn.Module = norm
        self._kept: dict[int, list[Tensor]] = {}

    def begin(self, slots: Sequence[int]) -> None:
        """New requests got some slots."""
        for slot in slots:
            self._kept[slot] = []

    @contextmanager
    def keeping(self, runner: Runner, slots: Sequence[int], columns: Tokens) -> Iterator[None]:
        """Keep the states of a forward within the block, at some columns of each row, known at its end."""
        seen: list[Tensor] = []
        with runner.showing(slots, self.layers, seen.append):
            yield
        hidden = self._norm(seen[0])
        for slot, row, own in zip(slots, hidden, columns, strict=True):
            self._kept[slot].append(row[list(own)])

    def take(self, slot: int) -> Tensor | None:
        """[n, H] those of a slot, in order, given out once; None if there are none."""
        kept, self._kept[slot] = self._kept[slot], []
        return torch.cat(kept) if kept else None


def target_states(executor: Executor) -> TargetStates:
    """What heads have to read yet, of the executor's model."""
    return executor.once("target states", lambda: TargetStates(executor.runner.model))


@contextmanager
def keeping_states(executor: Executor, wanted: bool, slots: Sequence[int], columns: Tokens) -> Iterator[None]:
    """Within the block a forward of some slots is run, whose states are kept if they are wanted.

    `columns` [R] are the tokens of each row that are committed, known at the block's end.
    """
    if not wanted:
        yield
        return
    with target_states(executor).keeping(executor.runner, slots, columns):
        yield


def save_heads(heads: DraftingHeads, total: int, folder: Path) -> Path:
    """Write heads beside the weights of their model of `total` layers, in half precision; the file."""
    return write_additions(heads.state_dict(), _file(folder, heads), schema=_schema(heads), layers=total)


def load_heads(model: Any, kind: type[DraftingHeads]) -> DraftingHeads:
    """The heads of a loaded model: those beside its weights, or of the shipped target that it embeds.

    Raises:
        ModelError: There are none, or they are of another model.
    """
    embedding: dict[str, Any] | None = getattr(model.config, "embedding", None)
    folder = Path(getattr(model.config, "_name_or_path", "")) if embedding is None else DATA / "target"
    path = _file(folder, kind)
    if not path.is_file():
        raise ModelError(
            f"{folder} holds no {path.name}: the policy 'heads' needs trained heads; train them with "
            f"`calibrate pair {kind.name} --target {folder}`"
        )
    tensors, _ = read_additions(path, schema=_schema(kind), what=f"{kind.name} heads")
    heads = kind.shaped(model, tensors)
    places = heads.state_dict()
    if set(places) != set(tensors):
        raise ModelError(f"{path} is of another kind of model; train heads anew")
    # An RMSNorm averages over the zeros too (`calibrate.pair.embed`).
    scale = 1.0 if embedding is None else 1.0 / math.sqrt(Fraction(embedding["width"]))
    with torch.no_grad():
        for name, place in places.items():
            joined = name.startswith(("fuse", "blocks"))
            parts = place.shape[-1] // int(model.config.hidden_size) if joined else 1
            _fill(place, tensors[name], path, scale if place.dim() == 1 else 1.0, parts)
    return heads.to(device=model.device, dtype=model.dtype).eval().requires_grad_(False)


def _fill(place: Tensor, small: Tensor, path: Path, scale: float, parts: int) -> None:
    """The trained weight in a corner of zeros; if it joins parts, each in a corner of its own."""
    if any(mine < theirs for mine, theirs in zip(place.shape, small.shape, strict=True)):
        raise ModelError(f"{path} is of a larger model: {list(small.shape)} does not fit {list(place.shape)}")
    place.zero_()
    for to, part in zip(place.chunk(parts, dim=-1), small.chunk(parts, dim=-1), strict=True):
        to[tuple(map(slice, part.shape))] = scale * part.to(place.dtype)


def _file(folder: Path, heads: DraftingHeads | type[DraftingHeads]) -> Path:
    return folder / f"{heads.name}.safetensors"


def _schema(heads: DraftingHeads | type[DraftingHeads]) -> str:
    return f"spectwin/{heads.name}/1"


def weights(module: Any) -> int:
    """How many a module has."""
    return sum(weight.numel() for weight in module.parameters())


def forward_weights(model: Any) -> int:
    """How many of a Llama-like model a forward over one token reads."""
    return weights(model.model.layers) + weights(model.lm_head)
