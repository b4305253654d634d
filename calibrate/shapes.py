"""Architectures without weights, by name: `shape:llama-3.1-8b` as the `config.json` of a random model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrate.pair.embed import cache_folder
from hardware_profiles.jsonfile import write_json
from hardware_profiles.shapes import CONFIGS, ShapeError, find_shape, read_config

PREFIX = "shape:"
POSITIONS = 8192
"""Longest text of a published architecture here: more than any probe or live run needs."""


def resolve_shape(text: str) -> Path:
    """The configuration behind `shape:NAME`, kept in the user's cache, or `shape:PATH`.

    Entries of the configuration may be replaced: `shape:qwen2.5-0.5b,vocab_size=128256` is a draft that
    shares the token ids of `shape:llama-3.1-8b`.

    Args:
        text: With the prefix; a name of `hardware_profiles.shapes`, a `config.json` or a folder with one.

    Raises:
        ShapeError: There is none, or an entry is no whole number.
    """
    name, *entries = text.removeprefix(PREFIX).split(",")
    shape = find_shape(name)
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    if path.is_file() and not entries:
        return path
    return _keep(
        read_config(path) if path.is_file() else _published(shape.name), _numbers(entries), shape.name
    )


def _published(name: str) -> dict[str, Any]:
    return {"max_position_embeddings": POSITIONS, **CONFIGS[name][0]}


def _numbers(entries: list[str]) -> dict[str, int]:
    found = {}
    for entry in entries:
        key, _, value = entry.partition("=")
        if not value.isdecimal():
            raise ShapeError(f"{entry!r} is no entry of a configuration: write e.g. num_hidden_layers=2")
        found[key] = int(value)
    return found


def _keep(config: Mapping[str, Any], numbers: Mapping[str, int], name: str) -> Path:
    """Write a configuration under a name that tells what is in it."""
    if strange := [key for key in numbers if key not in config]:
        raise ShapeError(
            f"{name} has no entry {strange[0]!r}; numbers that can be replaced: "
            + ", ".join(key for key, value in config.items() if type(value) is int)
        )
    parts = [name.replace(":", "-"), *(f"{key}-{value}" for key, value in numbers.items())]
    path = cache_folder().parent / "shapes" / "-".join(parts) / "config.json"
    write_json(path, {**config, **numbers})
    return path
