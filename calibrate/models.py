"""Models as their files describe them: sizes, tokenizers, architectures by name; and refusals that follow.

Everything here is read from the models' folders without loading them; of a model that is only a name on the
hub nothing is known yet, and nothing is refused.  `shape:llama-3.1-8b` is an architecture without weights,
kept as the `config.json` of a random model.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.live.backends.installed import SEQUENCES
from calibrate.live.errors import ModelError
from calibrate.live.placement import Precision, config_file, has_random_weights
from calibrate.shipped import cache_folder
from hardware_profiles.files import LARGEST_BYTES, FileRefused, parse_json, read_json, write_json
from hardware_profiles.roofline import find_precision
from hardware_profiles.shapes import CONFIGS, ShapeError, find_shape, read_config, text_config

SPARE_BYTES = 512 * 2**20
"""Of a worker process besides weights and KV cache: torch and its buffers."""
TREE_TOKENS = 400
"""Tokens per row that a speculation cache may add to a draft's KV cache while it is made."""


class MisfitError(ValueError):
    """What was asked for cannot work; the message says why and the way out."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a model, from its files.  None: they do not say.

    Attributes:
        parameters: Number of weights, shared ones once.
        kv_per_token: Numbers in the KV cache per token, all layers.
        positions: Longest text.
    """

    parameters: int | None
    layers: int | None
    kv_per_token: int | None
    positions: int | None

    def weight_bytes(self, precision: str) -> int | None:
        """Weights in memory."""
        each = find_precision(precision).weight_bytes
        return None if self.parameters is None else round(self.parameters * each)

    def kv_bytes_per_token(self, precision: str) -> int | None:
        """Keys and values of one token in all layers."""
        each = find_precision(precision).activation_bytes
        return None if self.kv_per_token is None else round(self.kv_per_token * each)


UNKNOWN = ModelSize(None, None, None, None)


def model_size(folder: str) -> ModelSize:
    """Sizes of the model in a folder, or of a `config.json` alone; `UNKNOWN` for a hub name.

    Raises:
        ModelError: A file is there but cannot be read.
    """
    path = Path(folder)
    random = has_random_weights(folder)
    if not path.is_dir() and not random:
        return UNKNOWN
    file = config_file(folder)
    try:
        config = text_config(read_config(file), str(file))
    except ShapeError as error:
        raise ModelError(str(error)) from None
    for key in _NUMBERS:
        if config.get(key) is not None and type(config[key]) is not int:
            raise ModelError(f"{file}: {key}: expected a whole number, got {config[key]!r:.80}")
    if random:
        return _sized(config, _count_random(path))
    return _sized(config, sum(map(_count_weights, sorted(path.glob("*.safetensors")))) or None)


def _sized(config: Mapping[str, Any], parameters: int | None) -> ModelSize:
    """Sizes by the numbers of a configuration."""
    query_heads, heads, width, hidden, layers, positions = map(config.get, _NUMBERS)
    if width is None and hidden and query_heads:
        width = hidden // query_heads
    heads = heads or query_heads
    kv = 2 * layers * heads * width if layers and heads and width else None
    return ModelSize(parameters, layers, kv, positions)


_NUMBERS = (
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "num_hidden_layers",
    "max_position_embeddings",
)


def _count_random(config: Path) -> int | None:
    """Weights of an architecture; None for one of a kind that is not counted."""
    try:
        return find_shape(str(config)).parameters
    except ShapeError:
        return None


def hub_size(name: str, *, trust_remote_code: bool = False) -> ModelSize:
    """Sizes of a model known by its hub name only: it is built from its configuration, without memory."""
    import torch

    from calibrate.live.loading import load_config, untrained_model

    config = load_config(name, trust_remote_code=trust_remote_code)
    text = config.get_text_config()
    with torch.device("meta"):
        model = untrained_model(config, trust_remote_code=trust_remote_code)
    numbers = {name: getattr(text, name, None) for name in _NUMBERS}
    return _sized(numbers, sum(p.numel() for p in model.parameters()))


def _count_weights(file: Path) -> int:
    """Numbers in a safetensors file, from its header."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = parse_json(opened.read(min(length, LARGEST_BYTES)))
        return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, MemoryError, struct.error) as error:
        raise ModelError(f"{file} is no safetensors file: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileRefused as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} cannot be read: it holds no object")
    return content


def token_ids(folder: str) -> dict[str, int] | None:
    """Token to id of a folder's tokenizer, added tokens included; None where no file tells.

    Reads `tokenizer.json`, or `vocab.json` or `vocab.txt` of older models.

    Raises:
        ModelError: A file is there but cannot be read.
    """
    path = Path(folder)
    if (path / "tokenizer.json").is_file():
        content = _read_json(path / "tokenizer.json")
        try:
            vocabulary = content.get("model", {}).get("vocab", {})
            if isinstance(vocabulary, list):  # unigram models: (token, score) in the order of their ids
                vocabulary = {entry[0]: i for i, entry in enumerate(vocabulary)}
            added = {entry["content"]: entry["id"] for entry in content.get("added_tokens", [])}
            return {**vocabulary, **added}
        except (LookupError, TypeError, AttributeError) as error:
            raise ModelError(f"{path / 'tokenizer.json'} is no tokenizer: {error!r}") from None
    if (path / "vocab.json").is_file():
        return dict(_read_json(path / "vocab.json"))
    if (path / "vocab.txt").is_file():
        lines = (path / "vocab.txt").read_text(encoding="utf-8").splitlines()
        return {token: i for i, token in enumerate(lines)}
    return None


def check_tokenizers(target: str, draft: str) -> None:
    """Refuse a pair whose tokenizers give the same id to different tokens.

    Equal sizes are not enough: a draft of another family would propose tokens that mean something else.
    A folder without a tokenizer is believed.

    Raises:
        MisfitError: Naming the first tokens that differ.
    """
    mine, theirs = token_ids(target), token_ids(draft)
    if mine is None or theirs is None or mine == theirs:
        return
    ours, others = ({i: token for token, i in ids.items()} for ids in (mine, theirs))
    differing = sorted(i for i in {*ours, *others} if ours.get(i) != others.get(i))
    if not differing:
        return
    first = differing[0]
    mine_is, theirs_is = (repr(ids[first]) if first in ids else "no token" for ids in (ours, others))
    raise MisfitError(
        f"target and draft have different tokenizers: id {first} is {mine_is} in the target "
        f"({target}) and {theirs_is} in the draft ({draft}); {len(differing)} of "
        f"{max(len(ours), len(others))} ids differ. Speculation needs the same tokenizer on both sides: give "
        "--draft a model of the target's own family"
    )


def check_positions(sizes: Mapping[str, ModelSize], *, longest: int, max_tokens: int, ahead: int) -> None:
    """Refuse texts that outgrow the positions of a model; `sizes` are by role.

    `longest` is the longest text of a probe, `ahead` how many tokens a live setting drafts beyond a text.
    Prompts come on top of `max_tokens`, and are checked when they are known.

    Raises:
        MisfitError: With the model and what would fit.
    """
    for role, size in sizes.items():
        if size.positions is None:
            continue
        if longest > size.positions:
            raise MisfitError(
                f"the {role} has {size.positions} positions, but calibration measures texts of {longest} "
                "tokens; this model is too short-sighted to be calibrated"
            )
        if max_tokens + ahead >= size.positions:
            raise MisfitError(
                f"--max-tokens {max_tokens} does not fit: the {role} has {size.positions} positions, and "
                f"prompts and {ahead} speculated tokens take their part of them; use a lower --max-tokens"
            )


def check_sequences(needed: int) -> None:
    """Refuse trees with more rows and branches than llama.cpp can keep apart.

    Raises:
        MisfitError: With the way out.
    """
    if needed > SEQUENCES:
        raise MisfitError(
            f"llama.cpp keeps {SEQUENCES} rows and branches apart, and the largest batch makes {needed} of "
            "them; measure smaller ones, e.g. --batches 1,2,4"
        )


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What the workers of a calibration hold: both models, their caches, and the processes themselves."""

    weight_bytes: int
    kv_bytes: int
    spare_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weight_bytes + self.kv_bytes + self.spare_bytes


def memory_need(
    target: ModelSize, draft: ModelSize, *, batch: int, length: int, precision: Precision = "fp32"
) -> MemoryNeed:
    """What a pair needs at a batch and a text length; unknown sizes count as nothing."""
    kv = (target.kv_bytes_per_token(precision) or 0) * length
    kv += (draft.kv_bytes_per_token(precision) or 0) * (length + TREE_TOKENS)
    weights = (target.weight_bytes(precision) or 0) + (draft.weight_bytes(precision) or 0)
    return MemoryNeed(weights, batch * kv, 2 * SPARE_BYTES)


def check_memory(need: MemoryNeed, available_bytes: int | None, *, batch: int, length: int) -> None:
    """Refuse what does not fit into memory, before a worker is started and the machine swaps.

    Nothing is refused where what is available is not known (None).

    Raises:
        MisfitError: With the parts of the sum and what to change.
    """
    if available_bytes is None or need.total_bytes <= available_bytes:
        return
    fixed = need.weight_bytes + need.spare_bytes
    rows = (available_bytes - fixed) // max(1, need.kv_bytes // batch)
    if fixed >= available_bytes or rows < 1:
        way_out = "use smaller models or a machine with more memory"
    else:
        way_out = f"use --batches up to {rows}, or a lower --max-tokens"
    raise MisfitError(
        f"this pair needs about {_gib(need.total_bytes)} of memory, {_gib(available_bytes)} are available: "
        f"weights {_gib(need.weight_bytes)}, KV caches {_gib(need.kv_bytes)} (batch {batch}, {length} "
        f"tokens), processes {_gib(need.spare_bytes)}; {way_out}"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


SHAPE = "shape:"
POSITIONS = 8192
"""Longest text of a published architecture here: more than any probe or live run needs."""


def resolve_shape(text: str) -> Path:
    """The configuration behind `shape:NAME`, kept in the user's cache, or `shape:PATH`.

    NAME is of `hardware_profiles.shapes`, PATH a `config.json` or a folder with one.  Entries may be
    replaced: `shape:qwen2.5-0.5b,vocab_size=128256` is a draft that shares the token ids of
    `shape:llama-3.1-8b`.

    Raises:
        ShapeError: There is none, or an entry is no whole number.
    """
    name, *entries = text.removeprefix(SHAPE).split(",")
    shape = find_shape(name)
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    if path.is_file() and not entries:
        return path
    published = {"max_position_embeddings": POSITIONS, **CONFIGS.get(shape.name, ({},))[0]}
    config: dict[str, Any] = read_config(path) if path.is_file() else published
    numbers = {}
    for entry in entries:
        key, _, value = entry.partition("=")
        if not value.isdecimal():
            raise ShapeError(f"{entry!r} is no entry of a configuration: write e.g. num_hidden_layers=2")
        if key not in config:
            known = ", ".join(key for key, value in config.items() if type(value) is int)
            raise ShapeError(f"{shape.name} has no entry {key!r}; numbers that can be replaced: {known}")
        numbers[key] = int(value)
    # A name that tells what is in it.
    parts = [shape.name.replace(":", "-"), *(f"{key}-{value}" for key, value in numbers.items())]
    kept = cache_folder("shapes") / "-".join(parts) / "config.json"
    write_json(kept, {**config, **numbers})
    return kept
