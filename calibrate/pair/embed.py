"""The shipped target in a larger shape: its tokens at the cost of a large model.

`embed` puts a trained Llama into a wider and deeper one that computes
exactly the same function:

- the extra hidden dimensions stay 0: the embedding's extra columns are 0, and so are the rows of
  ``o_proj`` and ``down_proj`` that would write to them;
- extra heads and extra MLP units compute on real input with random weights, and are multiplied by
  zero in ``o_proj`` and ``down_proj``;
- RMSNorm averages over more dimensions, which is undone by ``weight / sqrt(width)`` and
  ``eps / width``;
- extra layers have a zero ``o_proj`` and ``down_proj``, so that they add nothing to the residual
  stream. They stand evenly between the real ones, so that an early exit sees a real share of them.

A dense kernel does not look at its operands, so a step costs what the shape costs; everything the
step computes on the way is of ordinary size (random weights of the usual initialisation, no
denormals). Acceptance belongs to the pair, cost to the shape: the two can be chosen apart.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.shipped import DATA, cache_folder, made_once
from hardware_profiles.files import to_json

if TYPE_CHECKING:
    from transformers import LlamaConfig


_VERSION = 1
_STD = 0.02
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Shape:
    """How much larger the embedding is than the model it holds.

    Multipliers of the hidden size and the number of heads, of layers, and of MLP units (None: as ``width``).
    """

    width: Fraction = Fraction(1)
    depth: Fraction = Fraction(1)
    intermediate: Fraction | None = None

    @property
    def intermediate_or_width(self) -> Fraction:
        """The multiplier of the MLP units."""
        return self.width if self.intermediate is None else self.intermediate

    def __str__(self) -> str:
        """The form that `parse` reads."""
        return f"{self.width}x{self.depth}x{self.intermediate_or_width}"

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read ``WIDTHxDEPTH`` or ``WIDTHxDEPTHxINTERMEDIATE``, such as ``3x2`` or ``3/2x1x5/2``.

        Raises:
            ValueError: where the text has another form.
        """
        parts = text.split("x")
        try:
            numbers = [Fraction(part) for part in parts]
        except (ValueError, ZeroDivisionError):
            numbers = []
        if len(numbers) not in (2, 3) or any(number < 1 for number in numbers):
            raise ValueError(f"{text!r} is no shape: write WIDTHxDEPTH[xINTERMEDIATE], each >= 1")
        return cls(*numbers)


# Named embeddings of the shipped target. The names say the aim: one target step costs about 5 (20)
# draft steps on the machine the shapes were chosen on; README.md has the measurement.
EMBEDDINGS: dict[str, Shape] = {
    "x5": Shape.parse("3/2x1x5/4"),
    "x20": Shape.parse("9/4x2x5/2"),
}


def shape_of(name_or_shape: str) -> Shape:
    """A named shape, or one as `Shape.parse` reads it.

    Raises:
        ValueError: neither.
    """
    return EMBEDDINGS.get(name_or_shape) or Shape.parse(name_or_shape)


def _scaled(size: int, factor: Fraction, what: str) -> int:
    scaled = size * factor
    if scaled.denominator != 1:
        raise ValueError(f"{what} {size} times {factor} is not an integer")
    return int(scaled)


def real_layers(layers: int, total: int) -> list[int]:
    """The places of ``layers`` real layers among ``total``, evenly spread."""
    return [(2 * i + 1) * total // (2 * layers) for i in range(layers)]


def embedded_config(config: Any, shape: Shape) -> LlamaConfig:
    """The configuration of the larger model.

    Raises:
        ValueError: where a size does not stay an integer.
    """
    import copy

    width, eps = shape.width, config.rms_norm_eps
    larger: LlamaConfig = copy.deepcopy(config)
    larger.hidden_size = _scaled(config.hidden_size, width, "hidden size")
    larger.num_attention_heads = _scaled(config.num_attention_heads, width, "heads")
    larger.num_key_value_heads = _scaled(config.num_key_value_heads, width, "key-value heads")
    larger.intermediate_size = _scaled(config.intermediate_size, shape.intermediate_or_width, "MLP units")
    larger.num_hidden_layers = _scaled(config.num_hidden_layers, shape.depth, "layers")
    larger.rms_norm_eps = eps / float(width)
    note = {
        "note": "function-preserving embedding of a smaller model; the weights beyond it are noise",
        "width": str(width),
        "depth": str(shape.depth),
        "intermediate": str(shape.intermediate_or_width),
        "real_layers": real_layers(config.num_hidden_layers, larger.num_hidden_layers),
    }
    setattr(larger, "embedding", note)  # noqa: B010 - not a field of the class
    return larger


def embed(model: Any, shape: Shape, *, seed: int = 0) -> Any:
    """A larger model that computes the same logits as ``model``, up to rounding.

    Raises:
        ValueError: where ``shape`` would need a fraction of a head, unit or layer.
    """
    import torch
    from transformers import LlamaForCausalLM

    config = embedded_config(model.config, shape)
    random = torch.Generator().manual_seed(seed)
    larger: Any = LlamaForCausalLM(config)
    larger.float().eval()
    norm_scale = 1.0 / math.sqrt(shape.width)
    real = real_layers(model.config.num_hidden_layers, config.num_hidden_layers)
    places = dict(larger.named_parameters())
    with torch.no_grad():
        for parameter in places.values():
            if parameter.dim() > 1:
                parameter.normal_(0.0, _STD, generator=random)
            else:
                parameter.fill_(norm_scale)
        for name, parameter in places.items():
            if name.endswith(_CLEARED):
                parameter.zero_()
        for name, trained in model.named_parameters():
            place = re.sub(r"layers\.(\d+)", lambda at: f"layers.{real[int(at[1])]}", name)
            corner = places[place][tuple(map(slice, trained.shape))]
            corner.copy_(trained * norm_scale if trained.dim() == 1 else trained)
    return larger


_CLEARED = ("embed_tokens.weight", "o_proj.weight", "down_proj.weight")
"""Outside the corner of the trained weight these are 0: nothing extra writes to the residual stream, nothing
real to its extra dimensions.  Elsewhere the noise stays: extra input is 0 in any case."""


def save_embedding(source: Path, shape: Shape, folder: Path) -> None:
    """Embed the model in ``source`` and write it to ``folder`` (fp32), with its tokenizer."""
    from calibrate.live.loading import load_model

    folder.mkdir(parents=True, exist_ok=True)
    embed(load_model(source), shape).save_pretrained(str(folder))
    for name in _TOKENIZER_FILES:
        shutil.copyfile(source / name, folder / name)


def embedding_key(source: Path, shape: Shape) -> str:
    """A digest of everything the embedding depends on: weights, shape and this module's version."""
    digest = hashlib.sha256(to_json([_VERSION, str(shape)]).encode())
    for name in ("model.safetensors", "config.json", *_TOKENIZER_FILES):
        digest.update((source / name).read_bytes())
    return digest.hexdigest()[:16]


def ensure_embedded(name: str, cache_dir: Path | None = None) -> Path:
    """The folder of the named embedding of the shipped target, built on first use, by default in the cache.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in EMBEDDINGS:
        raise ValueError(f"no embedding is called {name!r}; there are {', '.join(EMBEDDINGS)}")
    source, shape = DATA / "target", EMBEDDINGS[name]
    folder = (cache_dir or cache_folder("pairs")) / f"{name}-{embedding_key(source, shape)}"
    return made_once(folder, lambda partial: save_embedding(source, shape, partial))
