"""Every formal statement of the five papers (`catalogue.toml`), by id, with the functions that compute it.

Arguments go by the glossary's names: `evaluate("ssd.thm7", p_hit=0.7, e_hit=4.0, ...)`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from policies.laws import double, duo, fanout, mirror, rasd, retrieval, sampling, ssd
from policies.laws.law import law

Verdict = Literal["holds", "caveat", "wrong"]

_MODULES: tuple[ModuleType, ...] = (double, duo, fanout, mirror, rasd, retrieval, sampling, ssd)


@dataclass(frozen=True)
class Statement:
    """One formal statement: where it stands, what computes it and where it stops holding.

    `corrected` is the default a user should take; `printed` is given only where the paper's form differs.
    Both take keyword arguments of the same names, all of them in `policies.laws.glossary`; the printed form
    may do without some of them.  `laws show` prints the rest, which `catalogue.toml` explains.
    """

    id: str
    title: str
    source: str
    verdict: Verdict
    corrected: Callable[..., Any]
    printed: Callable[..., Any] | None
    domain: str
    check: str
    example: str
    assumptions: tuple[str, ...] = ()
    counterexample: str = ""
    numbers: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def paper(self) -> str:
        """The paper's short name, the first part of the id."""
        return self.id.split(".", 1)[0]

    @property
    def parameters(self) -> dict[str, bool]:
        """Parameters of both forms together by name, and whether they must be given."""
        both = {**parameters(self.corrected), **(parameters(self.printed) if self.printed else {})}
        return both | parameters(self.corrected)


@functools.cache
def parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """Parameters of a law by name, and whether they must be given."""
    known = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.default is parameter.empty for parameter in known}


def _function(path: str) -> Callable[..., Any]:
    """`ssd.ssd_speedup`; one that checks nothing itself gets the glossary's domains."""
    module, _, name = path.partition(".")
    by_name = {known.__name__.rpartition(".")[2]: known for known in _MODULES}
    function: Callable[..., Any] = getattr(by_name[module], name)
    return function if hasattr(function, "__wrapped__") else law()(function)


def _statement(name: str, entry: dict[str, Any]) -> Statement:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    forms = {form: _function(entry[form]) if form in entry else None for form in ("corrected", "printed")}
    return Statement(name, **fields | forms | {"check": f"tests/policies/{entry['check']}"})


STATEMENTS: dict[str, Statement] = {
    name: _statement(name, entry)
    for name, entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}


_BY_NAME = {name: known for known in STATEMENTS.values() for name in (known.id, *known.aliases)}


def find(name: str) -> Statement:
    """The statement of an id or alias.

    Raises:
        ValueError: Unknown; names the nearest ones.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise ValueError(f"no statement {name!r}{did_you_mean(name, _BY_NAME)}; `laws list` names all of them")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A hint at the names nearest to one, in brackets; empty without any."""
    near = difflib.get_close_matches(name, list(names), n=4, cutoff=0.6)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def apply(function: Callable[..., Any], known: Mapping[str, Any]) -> Any:
    """A law's value, of all that is known taking what it has parameters for.

    Raises:
        ValueError: Outside its domain.
        TypeError: It needs more than is known.
    """
    return function(**{name: known[name] for name in parameters(function) if name in known})


def evaluate(name: str, *, printed: bool = False, **known: Any) -> Any:
    """A statement's value, in its corrected form or as printed, by the names of the glossary.

    Args:
        name: Id or alias.
        printed: The paper's form, which is the corrected one where they are the same.
        known: Quantities; those that the statement does not take are left aside.

    Raises:
        ValueError: No such statement, or outside its domain.
        TypeError: It needs more than is known.
    """
    statement = find(name)
    return apply((statement.printed if printed else None) or statement.corrected, known)
