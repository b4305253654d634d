"""Tables have fewer columns where there is no room, never values cut short."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from policies.commandline import WIDE, fitted_table, wide_console

TITLES = ("setting", "tokens/s", "vs AR", "spread\n%", "error%\nlaw")
ROWS = [
    ("saguaro K=3 F=3,2,1,2 ngram", "523.4", "2.14 (1.95-2.36)", "±1.2", "+12.3"),
    ("rasd retrieval_nodes=8 tree_depth=3 tree_topk=2 tree_budget=6", "208.1", "0.83", "-", "-"),
]
DROP = ("error%\nlaw", "spread\n%", "tokens/s")


def printed(width: int, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="strict" if encoding == "utf-8" else "replace")
    Console(file=file, width=width).print(
        fitted_table(TITLES, ROWS, width, drop=DROP, notes={"vs AR": "a note"})
    )
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize(
    ("width", "missing"),
    [
        (112, None),
        (80, None),
        (70, "error% law"),
        (60, "spread %, error% law"),
        (50, "tokens/s, spread %, error% law"),
    ],
)
def test_columns_go_whole_and_in_order(width: int, missing: str | None, encoding: str) -> None:
    text = printed(width, encoding)
    assert max(map(len, text.splitlines())) <= width
    assert "2.14 (1.95-2.36)" in text and "a note" in text
    assert "…" not in text and "..." not in text
    flowing = " ".join(text.split())
    assert ("no room for: " + missing in flowing) if missing else ("no room" not in text)
    assert ("523.4" in text) == (missing is None or "tokens/s" not in missing)
    assert ("┃" in text) == (encoding == "utf-8")


@given(st.integers(46, 130))
def test_what_is_shown_is_shown_whole(width: int) -> None:
    lines = printed(width).splitlines()
    assert max(map(len, lines)) <= width
    assert any("2.14 (1.95-2.36)" in line for line in lines)
    for word in " ".join(row[0] for row in ROWS).split():
        assert any(word in line for line in lines)


def test_a_pipe_is_wide_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert wide_console().width == WIDE
    monkeypatch.setenv("COLUMNS", "80")
    assert wide_console().width == 80


def test_columns_of_the_same_title_keep_their_own_values() -> None:
    table = fitted_table(("setting", "law", "law"), [("sd", "1.5", "2.5")], 80)
    assert [list(column.cells) for column in table.columns] == [["sd"], ["1.5"], ["2.5"]]
