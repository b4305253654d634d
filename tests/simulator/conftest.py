"""An acceptance file, as an import writes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from import_samples import DFLASH, run


@pytest.fixture
def acceptance(tmp_path: Path) -> str:
    path = str(tmp_path / "acceptance.json")
    assert run("read", DFLASH, "--out", path).exit_code == 0
    return path
