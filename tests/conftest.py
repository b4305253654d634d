"""Every test has a home of its own: what the user keeps there must not change what a test finds.

Set when pytest starts, before any of our modules or a library reads it, so that subprocesses, fixtures of a
session and processes forked from a server see it, too.  Each test then gets empty data and configuration
folders.  The cache is one for the session: what is in it is made from shipped files, named by their digest,
and takes long to make.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("spectwin", deadline=None)
settings.load_profile("spectwin")
"""No test may fail because the machine is busy."""

FOLDERS = {"XDG_DATA_HOME": "data", "XDG_CONFIG_HOME": "config", "XDG_STATE_HOME": "state"}
CACHES = {"XDG_CACHE_HOME": "cache"}
ELSEWHERE = ("HF_HOME", "HF_HUB_CACHE", "HF_MODULES_CACHE", "MPLCONFIGDIR")
"""Variables of libraries that would lead out of the home."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Tests run on every core already: libraries that start as many threads again get in each other's way."""

SLOW = (
    *("/live/", "/calibrate/", "/pair/", "/golden/"),
    *(f"/analysis/test_{name}" for name in ("breaks", "exact_replay", "intervals", "notebook")),
    *(f"/analysis/test_{name}" for name in ("openquestions", "papers", "recommend", "regret", "sources")),
    *(f"/simulator/test_{name}" for name in ("laws", "resolve", "sampled_replay")),
)
"""What starts processes or simulates for seconds a test, by its path below `tests`.  `-m "not slow"` leaves
the rest, for someone at work."""
TERMINAL = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""What tables depend on, besides what a test says."""

_home = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`: one more than there are cores, since tests of live worlds wait for worker processes."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Make the home of the session; workers of pytest-xdist share that of the process that started them."""
    for name in THREADS:
        os.environ.setdefault(name, "1")
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    config.stash[_home] = tempfile.TemporaryDirectory(prefix="spectwin-tests-", ignore_cleanup_errors=True)
    home = Path(config.stash[_home].name)
    os.environ["HOME"] = os.environ["USERPROFILE"] = str(home)
    os.environ.update({name: str(home / folder) for name, folder in (FOLDERS | CACHES).items()})
    for name in ELSEWHERE:
        os.environ.pop(name, None)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the home of the session."""
    if _home in config.stash:
        config.stash[_home].cleanup()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, llama.cpp's tests among it."""
    for item in items:
        if any(part in f"/{item.nodeid}" for part in SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Empty folders for the user's data and configuration, and a terminal that is none."""
    for name in TERMINAL:
        monkeypatch.delenv(name, raising=False)
    home = tmp_path_factory.mktemp("home")
    for name, folder in FOLDERS.items():
        monkeypatch.setenv(name, str(home / folder))
