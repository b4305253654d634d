"""A tiny pair of models, written once; and how many kills the resume test makes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `small_models` and `small_calibration`

from small_models import save_pair

from calibrate.live import placement


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=2, help="kills of the resume test (2)")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a tiny target and its draft."""
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of three cores, whatever this one has."""
    monkeypatch.setattr(placement, "available_cores", lambda: (0, 1, 2))
