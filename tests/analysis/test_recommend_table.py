"""The table of a recommendation chooses fewer columns rather than shorter words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from analysis.recommend.report import _table


def found(label: str) -> Any:
    """A recommendation of one policy, of which only the table's cells are looked at."""
    used = {"target": 0.6, "draft": 0.4}
    summary = SimpleNamespace(tokens=1000, seconds=1.0, overlap_s=0.4, utilization=used)
    choice = SimpleNamespace(
        settings=SimpleNamespace(label=label),
        deployment=SimpleNamespace(groups=10, group_devices=4),
        tokens_per_second=523.4,
        per_busy_device=261.7,
        summary=summary,
    )
    over = SimpleNamespace(low=1.95, middle=2.14, high=2.36)
    return SimpleNamespace(best={"saguaro": SimpleNamespace(choice=choice, over_ar=over)})


@pytest.mark.parametrize(("width", "whole"), [(60, False), (80, False), (112, True)])
def test_no_value_is_cut_short(width: int, whole: bool) -> None:
    label = "saguaro K=3 F=3,2,1,2 ngram"
    console = Console(width=width, record=True)
    console.print(_table(found(label), width))
    text = console.export_text()
    assert label in text and "2.14 (1.95-2.36)" in text and "523" in text
    assert "..." not in text and "…" not in text
    assert ("nobody" in text.partition("no room for")[0]) == whole
    assert max(map(len, text.splitlines())) <= width
