"""The shipped pair by name: where its models and prompts lie, and where what is made of them is kept.

Resolving a name needs no torch.  `calibrate.pair`, which trains the pair and embeds its target in larger
shapes, is optional: it is asked by name, and only where an embedded target is wanted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "pair" / "data"
PROMPTS: dict[str, Path] = {
    "calibration": DATA / "prompts" / "calibration.jsonl",
    "heldout": DATA / "prompts" / "heldout.jsonl",
}
PREFIX = "pair:"
_SHIPPED = ("target", "draft", "block")


def cache_folder(kind: str) -> Path:
    """Where what takes long to make is kept, by kind: below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "speculative-twin" / kind


def made_once(folder: Path, make: Callable[[Path], object], *, proof: str = "") -> Path:
    """A folder that holds the file `proof` (none: that is there), made by `make` if it does not; returns it.

    It is there whole or not at all: `make` is given another one, and the first of several makers wins.
    """
    if (folder / proof).exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(partial)
        partial.rename(folder)
    except OSError:
        if not (folder / proof).exists():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def resolve_model(name_or_path: str) -> Path | str:
    """The folder behind a name of the pair; any other name or path is returned unchanged.

    ``pair:x5`` and ``pair:x20`` are the target in a larger shape, built in the user's cache on first use.

    Raises:
        ValueError: for ``pair:`` followed by an unknown name.
    """
    if not name_or_path.startswith(PREFIX):
        return name_or_path
    name = name_or_path.removeprefix(PREFIX)
    if name in _SHIPPED:
        return DATA / name

    embedded = _embedded()
    if name not in embedded.EMBEDDINGS:
        known = ", ".join(PREFIX + known for known in (*_SHIPPED, *embedded.EMBEDDINGS))
        raise ValueError(f"{name_or_path!r} is not part of the shipped pair: there are {known}")
    folder: Path = embedded.ensure_embedded(name)
    return folder


def profiled_model(name: str) -> Path | str:
    """The folder behind a model's name in a profile; for the pair that is the name of its folder.

    Raises:
        ValueError: The profile is of another version of the shipped pair.
    """
    if (DATA / name / "config.json").is_file():
        return DATA / name

    shape = name.rpartition("-")[0]
    if not shape or shape not in _embedded().EMBEDDINGS:
        return resolve_model(name)
    folder: Path = _embedded().ensure_embedded(shape)
    if folder.name != name:
        raise ValueError(f"the profile is of {name!r}, the shipped pair has {folder.name!r}: calibrate anew")
    return folder


def _embedded() -> Any:
    """The module that knows the embedded targets and builds them."""
    return import_module("calibrate.pair.embed")
