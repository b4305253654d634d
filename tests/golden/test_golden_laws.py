"""What the `laws` command says: all statements, both forms, at their example and with each argument moved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from policies.laws.cli import main

MOVED = {
    "number": ("0", "0.05", "0.3", "0.9", "1", "2.5", "24", "-1"),
    "integer": ("0", "1", "2", "5", "8", "-1"),
    "vector": ("0", "1,2", "2,1,1", "0.5,0.5", "0.6,0.3,0.1"),
    "matrix": ("1;2", "1,2;3", "0.5,0.5;0.1,0.9"),
}
"""Values that take the place of one argument of an example; what a law refuses is pinned too."""


def parsed(*arguments: str) -> Any:
    result = CliRunner().invoke(main, [*arguments, "--json"])
    if result.exit_code == 2:
        return None
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def said(name: str, *arguments: str) -> Any:
    """[corrected, printed] of one evaluation; None where the arguments are refused."""
    answer = parsed("eval", name, "--example", *arguments)
    return answer and [answer["value"], answer["printed"]]


def points(parameters: list[str]) -> Iterator[str]:
    kinds = {term["name"]: term["kind"] for term in parsed("glossary")}
    for name in parameters:
        yield from (f"{name}={value}" for value in MOVED[kinds[name]])


@pytest.mark.parametrize("paper", ["ssd", "double", "duo", "rasd", "mirror"])
def test_values_of_all_statements(paper: str, golden: Callable[[str, Any], None]) -> None:
    found: dict[str, Any] = {}
    for row in parsed("list", "--paper", paper):
        name = row["id"]
        found[name] = {"example": said(name)}
        for point in points(parsed("show", name)["parameters"]):
            found[name][point] = said(name, point)
    golden(f"laws_{paper}", found)


def test_what_is_listed_and_shown(golden: Callable[[str, Any], None]) -> None:
    """All but the prose, the functions' names and where the tests lie."""
    listed = parsed("list")
    golden("laws_list", listed)
    shown = [parsed("show", row["id"]) for row in listed]
    for page in shown:
        del page["corrected"], page["check"]
        page["parameters"].sort()
        page["printed"] = page["printed"] is not None
    golden("laws_show", {page.pop("id"): page for page in shown})
