"""The catalogue of statements: complete, checked by tests that exist, and all of it computes."""

from __future__ import annotations

import ast
import inspect
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.laws.catalogue import STATEMENTS, Statement, evaluate, parameters
from policies.laws.evaluate import answer
from policies.laws.glossary import GLOSSARY
from policies.laws.law import broadcast
from policies.laws.ssd import cache_entries, outcome_weights, ssd_speedup

ROOT = Path(__file__).parents[2]
IDS = re.findall(
    r"[a-z]\S+",
    """
    ssd.sd ssd.thm1 ssd.def2-6 ssd.alg1 ssd.thm7 ssd.eq1 ssd.cor8 ssd.cor9 ssd.def10 ssd.def11 ssd.thm12
    ssd.thm18 ssd.def13-14 ssd.thm15 ssd.thm19 ssd.pol.fallback ssd.cor16 ssd.thm17 ssd.acct ssd.mask

    double.thm1 double.eq8 double.eq2 double.thm2 double.eq11 double.eq12 double.thm3 double.eq5 double.eq6
    double.eq19 double.eq7 double.gamma double.alg1 double.alg2 double.alg3

    duo.alg1 duo.budget duo.theta duo.verify duo.ttft

    rasd.eq1-3 rasd.eq4-6 rasd.accept rasd.eq7 rasd.alg1 rasd.pld_iter rasd.tree rasd.eq8 rasd.prune
    rasd.fuse rasd.verify rasd.metrics

    mirror.eq1-2 mirror.eq3 mirror.eq11 mirror.eq4 mirror.eq5 mirror.eq6-8 mirror.reuse mirror.eq9 mirror.ss
    mirror.J mirror.eq10 mirror.eq14 mirror.comm mirror.shard mirror.sched mirror.reloverhead
    mirror.eq12-13 mirror.eq15 mirror.prop1 mirror.prop2
    """,
)
"""Every formal statement of the five papers that has a name here."""

OUTSIDE = {"t_draft"}
"""Words of laws that no statement has to itself, such as the speedup of speculative decoding."""

every = pytest.mark.parametrize("statement", STATEMENTS.values(), ids=list(STATEMENTS))


@pytest.mark.parametrize("name", IDS)
def test_every_statement_is_there(name: str) -> None:
    aliases = {alias for statement in STATEMENTS.values() for alias in statement.aliases}
    assert name in {*STATEMENTS, *aliases}, name


def test_no_name_is_used_twice() -> None:
    names = [name for statement in STATEMENTS.values() for name in (statement.id, *statement.aliases)]
    assert sorted(names) == sorted(set(names))


@cache
def names_in(path: Path) -> set[str]:
    """`test_a` and `TestB::test_c` of a file."""
    tree = ast.parse(path.read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} | {
        f"{group.name}::{node.name}"
        for group in classes
        for node in group.body
        if isinstance(node, ast.FunctionDef)
    }


@every
def test_each_check_is_a_test(statement: Statement) -> None:
    path, _, name = statement.check.partition("::")
    assert path.startswith("tests/") and (ROOT / path).is_file(), statement.check
    assert "test_" in name and name in names_in(ROOT / path), statement.check


@every
def test_each_statement_says_what_it_is(statement: Statement) -> None:
    assert statement.title and statement.source and statement.domain and statement.example
    assert statement.verdict in ("holds", "caveat", "wrong")
    for law in (statement.corrected, statement.printed):
        assert law is None or inspect.getdoc(law)
    # A verdict that is not "holds" shows where the printed form fails.
    assert statement.verdict == "holds" or statement.counterexample


@every
def test_each_wrong_statement_has_both_forms(statement: Statement) -> None:
    assert statement.verdict != "wrong" or statement.printed is not None


@every
def test_every_parameter_is_in_the_glossary(statement: Statement) -> None:
    assert set(statement.parameters) <= set(GLOSSARY)
    if statement.printed:
        assert set(parameters(statement.printed)) <= set(statement.parameters)


def test_the_glossary_has_no_word_too_many() -> None:
    used = {name for statement in STATEMENTS.values() for name in statement.parameters}
    assert set(GLOSSARY) - used <= OUTSIDE
    assert all(term.meaning and term.domain for term in GLOSSARY.values())


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


@every
def test_each_example_evaluates(statement: Statement) -> None:
    said = answer(statement, statement.example.split())
    assert said.refusal is None
    for form in (said.value, said.printed):
        for leaf in leaves(form):
            if isinstance(leaf, float):
                assert math.isfinite(leaf)
            else:
                assert leaf is None or isinstance(leaf, int | str)


STRANGE = {
    "number": ("-1", "0", "0.5", "1", "2", "3.5", "inf", "-inf", "1e308", "1e-308"),
    "integer": ("-1", "0", "1", "2", "7"),
    "vector": ("", "0", "1", "0,0", "1,0", "0.5,0.5", "-1,2", "inf", "1.5", "1,2,3"),
    "matrix": ("", "0", "0,0;0,0", "1,0;0,1", "0.5,0.5", "-1;2,3", "inf", "1.5;2.5"),
}
"""Values at and beyond the edges."""


def attempt(statement: Statement, typed: list[str]) -> tuple[list[Any], str]:
    """Numbers of both forms, or why there are none."""
    try:
        said = answer(statement, typed)
    except ValueError as error:
        return [], str(error)
    return [*leaves(said.value), *leaves(said.printed)], "none"


@every
def test_edges_have_a_value_or_a_reason(statement: Statement) -> None:
    """The example with each parameter in turn at an edge: never nan, never another error than one line."""
    given = dict(item.split("=", 1) for item in statement.example.split())
    for name in statement.parameters:
        for strange in STRANGE[GLOSSARY[name].kind]:
            typed = [f"{key}={value}" for key, value in {**given, name: strange}.items()]
            found, refusal = attempt(statement, typed)
            assert not any(isinstance(leaf, float) and math.isnan(leaf) for leaf in found), typed
            assert refusal and "\n" not in refusal, typed


@pytest.mark.parametrize("name", [n for n, s in STATEMENTS.items() if s.verdict == "wrong"])
def test_a_wrong_statement_s_example_shows_the_difference(name: str) -> None:
    said = answer(STATEMENTS[name], STATEMENTS[name].example.split())
    assert said.value != said.printed


def test_a_statement_takes_what_it_needs_of_what_is_known() -> None:
    known = {"p_hit": 0.5, "e_hit": 3.0, "e_miss": 1.0, "t_primary": 2.0, "t_backup": 0.0, "acceptance": 0.8}
    assert evaluate("ssd.thm7", **known) == 1.0
    assert evaluate("ssd.thm7", printed=True, **known) == 2.0 / 1.5
    assert evaluate("double.eq1", **known, lookahead=1) == 1.8
    # Printed as corrected; of unchecked functions the glossary's domains are checked too.
    assert evaluate("double.thm1", printed=True, **known, lookahead=1) == 1.8
    with pytest.raises(ValueError, match="exponent must be above 0"):
        evaluate("ssd.def11", fanout=(1, 2), exponent=0.0)
    with pytest.raises(TypeError, match="lookahead"):
        evaluate("double.thm1", **known)
    with pytest.raises(ValueError, match="did you mean ssd"):
        evaluate("ssd.th7", **known)


def test_any_law_broadcasts() -> None:
    p, t = np.linspace(0.0, 1.0, 5)[:, None], np.array([0.5, 1.5, 2.0])
    found = broadcast(ssd_speedup, p_hit=p, e_hit=4.0, e_miss=1.0, t_primary=t, t_backup=0.2)
    assert found.shape == (5, 3)
    assert found[3, 1] == ssd_speedup(0.75, 4.0, 1.0, 1.5, 0.2)
    # A law of several numbers adds an axis; whole numbers stay whole; a tuple is one argument.
    assert broadcast(outcome_weights, acceptance=np.array([0.5, 0.8]), lookahead=3).shape == (2, 4)
    assert broadcast(cache_entries, fanout=(3,), lookahead=np.array([1, 4])).tolist() == [6.0, 15.0]
    assert broadcast(cache_entries, fanout=(1, 2)) == 3.0
    with pytest.raises(ValueError, match="p_hit"):
        broadcast(ssd_speedup, p_hit=np.array([0.5, 1.5]), e_hit=4, e_miss=1, t_primary=0, t_backup=0)
