"""Where the shipped pair lies: names for its models, and its prompts. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(__file__).parent / "data"
PROMPTS: dict[str, Path] = {
    "calibration": DATA / "prompts" / "calibration.jsonl",
    "heldout": DATA / "prompts" / "heldout.jsonl",
}
PREFIX = "pair:"
_SHIPPED = ("target", "draft")


def cache_folder() -> Path:
    """Where built embeddings are kept: ``$XDG_CACHE_HOME`` or ``~/.cache``, below it our own."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "speculative-twin" / "pairs"


def resolve_model(name_or_path: str) -> Path | str:
    """The folder behind a name of the pair; any other name or path is returned unchanged.

    ``pair:target`` and ``pair:draft`` are the shipped models; ``pair:x5`` and ``pair:x20`` are the
    target embedded in a larger shape, built in the user's cache on first use.

    Raises:
        ValueError: for ``pair:`` followed by an unknown name.
    """
    if not name_or_path.startswith(PREFIX):
        return name_or_path
    name = name_or_path.removeprefix(PREFIX)
    if name in _SHIPPED:
        return DATA / name
    from calibrate.pair.embed import EMBEDDINGS, ensure_embedded

    if name not in EMBEDDINGS:
        known = ", ".join(PREFIX + known for known in (*_SHIPPED, *EMBEDDINGS))
        raise ValueError(f"{name_or_path!r} is not part of the shipped pair: there are {known}")
    return ensure_embedded(name)


def profiled_model(name: str) -> Path | str:
    """The folder behind a model's name in a profile; for the pair that is the name of its folder.

    Raises:
        ValueError: The profile is of another version of the shipped pair.
    """
    if (DATA / name / "config.json").is_file():
        return DATA / name
    from calibrate.pair.embed import EMBEDDINGS, ensure_embedded

    shape = name.rpartition("-")[0]
    if shape not in EMBEDDINGS:
        return resolve_model(name)
    folder = ensure_embedded(shape)
    if folder.name != name:
        raise ValueError(f"the profile is of {name!r}, the shipped pair has {folder.name!r}: calibrate anew")
    return folder
