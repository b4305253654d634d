"""Temporary folders that say whose they are: those of a killed process are cleared by the next one.

A process that is killed removes nothing.  Its folders hold a file that it had locked: the kernel let go of
the lock with the process, whatever became of its number since.  Folders without such a file are not ours.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import cache
from multiprocessing import util
from pathlib import Path
from typing import BinaryIO

OWNER = "spectwin-owner"
"""File in a folder that its owner keeps locked."""
PREFIX = "spectwin-live-"
PATTERNS = (f"{PREFIX}*", "pymp-*")
"""Ours, and those that `multiprocessing` makes for us."""


def temporary_folder() -> tuple[Path, BinaryIO | None]:
    """A new folder, and what keeps it from being cleared as long as that is open; None: nothing clears it."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    return folder, _own(folder)


@cache
def claim_shared_folder() -> BinaryIO | None:
    """Mark the folder of `multiprocessing` as this process's; what it returns stays open until the end.

    Clears what killed processes left, too: once in a process, before its first worker.
    """
    clear_leftovers()
    folder = Path(util.get_temp_dir())
    return None if (folder / OWNER).exists() else _own(folder)  # a child has its parent's folder


def clear_leftovers(root: Path | None = None) -> list[Path]:
    """Remove the folders whose owners are dead; returns them.

    Args:
        root: Where to look; by default the system's folder for temporary files.
    """
    found = [path for pattern in PATTERNS for path in (root or Path(tempfile.gettempdir())).glob(pattern)]
    return [folder for folder in found if _cleared(folder)]


def _own(folder: Path) -> BinaryIO | None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return None
    unnamed = folder / f".{OWNER}"
    file = unnamed.open("xb")
    fcntl.flock(file, fcntl.LOCK_EX)
    unnamed.rename(folder / OWNER)  # nobody sees it unlocked while we live
    return file


def _cleared(folder: Path) -> bool:
    try:
        import fcntl

        with (folder / OWNER).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except (ImportError, OSError):  # no owner's file, one of another user, or an owner who lives
        return False
    return not os.path.lexists(folder)
