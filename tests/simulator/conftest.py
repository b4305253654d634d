"""An acceptance file, as an import writes it; and waterfalls that begin with a short run."""

from __future__ import annotations

from pathlib import Path

import pytest
from import_samples import DFLASH, run


@pytest.fixture(autouse=True)
def _a_short_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waterfall's first simulation shows a long-run rate, which `test_waterfall.py` tests."""
    monkeypatch.setattr("simulator.law.LONG", 1500)


@pytest.fixture
def acceptance(tmp_path: Path) -> str:
    path = str(tmp_path / "acceptance.json")
    assert run("read", DFLASH, "--out", path).exit_code == 0
    return path
