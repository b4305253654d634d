"""Whether a model is still the one that it was: its files, sampled, since they may be very large."""

from __future__ import annotations

import hashlib
from pathlib import Path

SAMPLE_BYTES = 1 << 20
"""Read at both ends of a file, and in its middle."""


def fingerprint(model: str) -> list[list[str | int]]:
    """[name, bytes, hash of samples] of every file of a model's folder, or of its configuration alone where
    that is given; the bare name of a hub model.
    """
    folder = Path(model)
    if folder.is_file():
        return [_of_file(folder)]
    if not folder.is_dir():
        return [[model, 0, ""]]
    return [_of_file(path) for path in sorted(folder.iterdir()) if path.is_file()]


def _of_file(path: Path) -> list[str | int]:
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for start in sorted({0, max(0, size // 2 - SAMPLE_BYTES // 2), max(0, size - SAMPLE_BYTES)}):
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return [path.name, size, digest.hexdigest()[:16]]
