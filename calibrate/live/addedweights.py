"""Files of trained additions that stand beside a model's own weights: early exits, streams."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from calibrate.live.errors import ModelError


def write_additions(tensors: Mapping[str, Tensor], path: Path, *, schema: str, layers: int) -> Path:
    """Write weights in half precision; the file appears complete or not at all.

    Args:
        tensors: By name.
        path: The file.
        schema: What they are.
        layers: Of the model they belong to.
    """
    partial = path.with_suffix(".partial")
    half = {name: tensor.detach().half().contiguous() for name, tensor in tensors.items()}
    save_file(half, str(partial), metadata={"schema": schema, "layers": str(layers)})
    partial.replace(path)
    path.chmod(0o644)  # as everything beside it; safetensors writes for the owner alone
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
