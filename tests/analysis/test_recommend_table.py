"""The table of a recommendation chooses fewer columns rather than shorter words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from analysis.intervals import Interval
from analysis.recommend.answer import Ranked
from analysis.recommend.report import best_table
from policies.registry import configure


def found() -> Ranked:
    """The best of one policy."""
    used = {"target": 0.6, "draft": 0.4}
    rates = dict.fromkeys(("tokens_per_round", "acceptance_rate", "cache_hit_rate"), 0.5)
    summary: Any = SimpleNamespace(tokens=1000, seconds=1.0, overlap_s=0.4, utilization=used, **rates)
    settings = configure("saguaro", lookahead=3, fanout=(3, 2, 1, 2), backup="ngram")
    over = Interval(1.95, 2.14, 2.36, 0.8)
    return Ranked(settings, 4, 10, 40, 5, 523.4, summary, (), (), over, over, over)


@pytest.mark.parametrize(("width", "whole"), [(60, False), (80, False), (112, True)])
def test_no_value_is_cut_short(width: int, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    console = Console(width=width, record=True)
    console.print(best_table([found()]))
    text = console.export_text()
    assert "saguaro K=3 F=3,2,1,2 ngram" in text and "2.14 (1.95-2.36)" in text and "523" in text
    assert "..." not in text and "…" not in text
    assert ("nobody" in text.partition("no room for")[0]) == whole
    assert max(map(len, text.splitlines())) <= width
