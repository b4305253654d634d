"""tests/data/capabilities.md: what it says is there today is there; what came later it need not say."""

from __future__ import annotations

import re
from pathlib import Path

import click
import commands
import pytest

from policies.registry import POLICIES
from simulator.imports.formats import FORMATS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tests" / "data" / "capabilities.md"


def section(title: str) -> str:
    """The text below a heading."""
    return PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of a table, without its heads."""
    found = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in found][2:]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(scope="module")
def every() -> dict[str, click.Command]:
    return {n: c for name, top in commands.programs().items() for n, c in commands.commands(name, top)}


def test_counts() -> None:
    table = rows(PAGE.read_text(encoding="utf-8").partition("\n## ")[0])
    today = commands.counts().values()
    assert all(now >= int(row[2]) for now, row in zip(today, table, strict=True))


def test_commands(every: dict[str, click.Command]) -> None:
    same, _, moved = section("Commands and studies").partition("\n\n|")
    said = quoted(same) + [name for row in rows("|" + moved) for name in quoted(row[1]) if name[0] != "-"]
    runs = [n for n, c in every.items() if not isinstance(c, click.Group) or c.invoke_without_command]
    assert len(set(said)) == len(said)
    assert set(said) <= set(runs)


def test_policies_and_knobs(every: dict[str, click.Command]) -> None:
    names = [quoted(part) for part in section("Policies and knobs").split("\n- ")[1:]]
    for name, *options in names:
        assert set(options) <= {"--" + knob.replace("_", "-") for knob in POLICIES[name].knobs}
        assert set(options) <= set(commands.options_of(every["simulate"]))


def test_pictures(every: dict[str, click.Command]) -> None:
    table = rows(section("Pictures"))
    kept = {str(p.relative_to(ROOT / "analysis/results")) for p in (ROOT / "analysis/results").rglob("*.png")}
    assert {name for row in table for name in expanded(quoted(row[0])[0])} <= kept
    for drawn in quoted(section("Pictures")):
        if command := max((n for n in every if drawn.startswith(n + " ")), key=len, default=None):
            assert set(re.findall(r"--\w+", drawn)) <= set(commands.options_of(every[command])), drawn


def expanded(name: str) -> list[str]:
    """`a{b,c}` as `ab` and `ac`."""
    start, _, rest = name.partition("{")
    middle, _, end = rest.partition("}")
    return [start + each + end for each in middle.split(",")]


def test_formats() -> None:
    text = section("File formats")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 8
    for page, _, anchor in (link.partition("#") for link in links):
        there = (PAGE.parent / page).read_text(encoding="utf-8")
        assert not anchor or f"\n## {anchor.replace('-', ' ').capitalize()}\n" in there, anchor
    assert [int(count) for count in re.findall(r"\[(\d+) formats", text)] <= [len(FORMATS)]
