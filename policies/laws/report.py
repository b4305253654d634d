"""How the `laws` command shows statements and values: tables, JSON, Markdown, pictures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hardware_profiles.files import atomic_write
from policies.commandline import wide_console, wrapped_table
from policies.laws.catalogue import Statement
from policies.laws.evaluate import Answer, command
from policies.laws.glossary import GLOSSARY

_COLOURS = {"holds": "green", "caveat": "yellow", "wrong": "red"}


def summary(statement: Statement) -> dict[str, Any]:
    """One row of `laws list --json`."""
    return {
        "id": statement.id,
        "title": statement.title,
        "paper": statement.paper,
        "source": statement.source,
        "verdict": statement.verdict,
        "printed_differs": statement.printed is not None,
    }


def details(statement: Statement) -> dict[str, Any]:
    """What `laws show --json` prints."""
    return {
        **summary(statement),
        "aliases": list(statement.aliases),
        "corrected": _form(statement.corrected),
        "printed": statement.printed and _form(statement.printed),
        "parameters": list(statement.parameters),
        "assumptions": list(statement.assumptions),
        "domain": statement.domain,
        "counterexample": statement.counterexample,
        **({"numbers": statement.numbers} if statement.numbers else {}),
        "check": statement.check,
        "example": command(statement),
    }


def values(answer: Answer) -> dict[str, Any]:
    """What `laws eval --json` prints."""
    said: dict[str, Any] = {
        "id": answer.statement.id,
        "arguments": answer.arguments,
        "value": answer.value,
        "printed": answer.printed,
    }
    if answer.sweep:
        said["sweep"] = answer.sweep.name
    if answer.refusal:
        said["printed_refuses"] = answer.refusal
    return said


def markdown(statements: Iterable[Statement]) -> str:
    """The table of the docs: statement, its function, the test that checks it, verdict."""
    rows = [
        "| id | statement | corrected | printed | verdict | check |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for statement in statements:
        cells = (
            _names(statement),
            statement.title,
            f"`{_function(statement.corrected)}`",
            f"`{_function(statement.printed)}`" if statement.printed else "",
            statement.verdict,
            f"`{statement.check.removeprefix('tests/')}`",
        )
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def print_statements(statements: Iterable[Statement]) -> None:
    """A table of statements."""
    rows = [(_names(s), _literal(s.title), _literal(s.source), _verdict(s)) for s in statements]
    wide_console().print(wrapped_table(("id", "statement", "source", "verdict"), rows))


def print_terms() -> None:
    """The glossary as a table."""
    rows = [(t.name, _literal(t.meaning), t.unit, t.domain, t.kind) for t in GLOSSARY.values()]
    wide_console().print(wrapped_table(("name", "meaning", "unit", "domain", "typed as"), rows))


def print_statement(statement: Statement) -> None:
    """All that is known of a statement."""
    console = wide_console()
    console.print(f"[bold]{_names(statement)}[/]  {_literal(statement.title)}")
    console.print(f"{_literal(statement.source)}; verdict: {_verdict(statement)}")
    known = details(statement)
    for label in ("corrected", "printed"):
        if form := known[label]:
            console.print(f"\n[bold]{label}[/]  {form['function']}", highlight=False)
            console.print(_literal(form["says"]), highlight=False)
    console.print()
    lists = {"parameters": ", ".join(known["parameters"]), "assumptions": "; ".join(known["assumptions"])}
    for label in ("parameters", "assumptions", "domain", "counterexample", "numbers", "check", "example"):
        if text := (known | lists).get(label):
            console.print(f"[bold]{label}[/]  {_literal(text)}", highlight=False)


def print_answer(answer: Answer) -> None:
    """What a statement evaluates to, and the printed form's value where it is another one."""
    console = wide_console()
    if answer.sweep:
        console.print(_sweep_table(answer))
    else:
        console.print(f"[bold]{answer.statement.id}[/]  {_literal(_text(answer.value))}", highlight=False)
        if answer.statement.printed and answer.printed is not None and answer.printed != answer.value:
            console.print(f"as printed  {_literal(_text(answer.printed))}", highlight=False)
    if answer.refusal:
        console.print(f"as printed: no value: {_literal(answer.refusal)}", highlight=False)


def _sweep_table(answer: Answer) -> Any:
    assert answer.sweep is not None
    columns = {
        answer.sweep.name: [f"{at:g}" for at in answer.sweep.values],
        answer.statement.id: [_literal(_text(value)) for value in answer.value],
    }
    if answer.printed:
        columns["as printed"] = [_literal(_text(value)) for value in answer.printed]
    return wrapped_table(list(columns), zip(*columns.values(), strict=True))


def picture(answer: Answer, path: Path) -> None:
    """Draw a sweep, or a vector over its index: corrected solid, printed dashed.

    Raises:
        ValueError: Neither a sweep nor a vector, values that are no numbers, or an unknown format.
    """
    corrected = _columns(answer, answer.value)
    printed = _columns(answer, answer.printed) if answer.printed is not None else []
    from matplotlib.figure import Figure

    where = answer.sweep.values if answer.sweep else range(len(corrected[0]))
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    for name, style, columns in (("corrected", "-", corrected), ("as printed", "--", printed)):
        for index, column in enumerate(columns):
            label = name if len(columns) == 1 else f"{name} [{index}]"
            axes.plot(where, column, color=f"C{index % 10}", linestyle=style, label=label)
    axes.set_xlabel(answer.sweep.name if answer.sweep else "position")
    axes.set_title(f"{answer.statement.id}: {answer.statement.title}", fontsize="medium", wrap=True)
    axes.legend()
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, format=path.suffix.lstrip(".") or "png")


def _columns(answer: Answer, value: Any) -> list[list[float]]:
    """Lines to draw: a scalar law has one, a law of vectors one per component."""
    points = value if answer.sweep else [[item] for item in value] if isinstance(value, list) else None
    if points is None:
        raise ValueError("a picture needs a sweep, such as lookahead=1:12, or a law whose value is a list")
    rows = [point if isinstance(point, list) else [point] for point in points]
    width = max((len(row) for row in rows if row != [None]), default=1)
    try:
        return [[_height(row, column) for row in rows] for column in range(width)]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{answer.statement.id} has no numbers to draw") from error


def _height(row: list[Any], column: int) -> float:
    """A gap where a row is shorter or the printed form has no value."""
    return float(row[column]) if column < len(row) and row[column] is not None else float("nan")


def _text(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case list():
            return ("\n" if value and isinstance(value[0], list) else " ").join(_text(item) for item in value)
        case dict():
            return "\n".join(f"{key}: {_text(item)}" for key, item in value.items())
        case _:
            return str(value)


def _function(law: Callable[..., Any]) -> str:
    """`ssd.ssd_speedup` for a law in `policies.laws.ssd`."""
    return f"{law.__module__.removeprefix('policies.laws.')}.{law.__name__}"


def _form(law: Callable[..., Any]) -> dict[str, str]:
    """A form's function, and its docstring without the parameters."""
    says = re.split(r"\n(?:Args|Raises|Returns):", inspect.getdoc(law) or "")[0].strip()
    return {"function": _function(law), "says": says}


def _names(statement: Statement) -> str:
    """The id, and aliases that it does not name already as a range such as `def2-6`."""
    ranged = re.search(r"\d-\d+$", statement.id)
    return statement.id if ranged else ", ".join((statement.id, *statement.aliases))


def _verdict(statement: Statement) -> str:
    return f"[{_COLOURS[statement.verdict]}]{statement.verdict}[/]"


def _literal(text: str) -> str:
    """Text in which brackets are no markup."""
    from rich.markup import escape

    return escape(text)
