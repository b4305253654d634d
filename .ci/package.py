"""Check a built wheel and sdist: `python .ci/package.py DIST` prints their sizes or what is missing."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

NEEDED = (
    "hardware_profiles/data/NOTICE",
    "hardware_profiles/data/profiles/cpu2-x5.json",
    "hardware_profiles/data/traces/cpu2-x5.parquet",
    "hardware_profiles/data/acceptances/llama-3.1-70b+llama-3.2-1b.json",
    "calibrate/pair/data/target/model.safetensors",
    "policies/laws/catalogue.toml",
    "analysis/papers/data/ssd.csv",
    "spectwin/py.typed",
)
"""Files that are no modules, of every package that has any."""
FORBIDDEN = ("tests/", "analysis/results/", "docs/")


def main(folder: Path) -> None:
    """Check the newest of each in a folder."""
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    missing = [name for name in NEEDED if name not in names]
    stray = [name for name in names if name.startswith(FORBIDDEN)]
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    missing += [f"{name} (sdist)" for name in (*NEEDED, "README.md", "LICENSE") if name not in inside]
    if missing or stray:
        sys.exit(f"missing: {missing}; stray: {stray[:5]}")
    for path in (wheel, source):
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
