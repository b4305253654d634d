"""How the `laws` command shows statements and values: tables, JSON, Markdown, pictures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.commandline import wide_console
from policies.laws.catalogue import Statement
from policies.laws.evaluate import Answer, command
from policies.laws.glossary import GLOSSARY

if TYPE_CHECKING:
    from rich.console import Console

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
        "corrected": {"function": _function(statement.corrected), "says": _says(statement.corrected)},
        "printed": statement.printed
        and {"function": _function(statement.printed), "says": _says(statement.printed)},
        "parameters": list(statement.parameters),
        "assumptions": list(statement.assumptions),
        "domain": statement.domain,
        "counterexample": statement.counterexample,
        "check": statement.check,
        "example": command(statement),
    }


def values(answer: Answer) -> dict[str, Any]:
    """What `laws eval --json` prints."""
    found: dict[str, Any] = {
        "id": answer.statement.id,
        "arguments": answer.arguments,
        "value": answer.value,
        "printed": answer.printed,
    }
    if answer.sweep:
        found["sweep"] = answer.sweep.name
    if answer.refusal:
        found["printed_refuses"] = answer.refusal
    return found


def terms() -> list[dict[str, Any]]:
    """What `laws glossary --json` prints."""
    return [asdict(term) for term in GLOSSARY.values()]


def markdown(statements: Iterable[Statement]) -> str:
    """The table of the docs: statement, its function, the test that checks it, verdict."""
    rows = [
        "| id | statement | corrected | printed | verdict | check |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for statement in statements:
        printed = f"`{_function(statement.printed)}`" if statement.printed else ""
        cells = (
            _names(statement),
            statement.title,
            f"`{_function(statement.corrected)}`",
            printed,
            statement.verdict,
            f"`{statement.check.removeprefix('tests/')}`",
        )
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def table_of(statements: Iterable[Statement]) -> None:
    """Print the statements as a table."""
    from rich.table import Table

    table = Table("id", "statement", "source", "verdict")
    for statement in statements:
        colour = _COLOURS[statement.verdict]
        table.add_row(
            _names(statement),
            _literal(statement.title),
            _literal(statement.source),
            f"[{colour}]{statement.verdict}[/]",
        )
    wide_console().print(table)


def table_of_terms() -> None:
    """Print the glossary as a table."""
    from rich.table import Table

    table = Table("name", "meaning", "unit", "domain", "typed as")
    for term in GLOSSARY.values():
        table.add_row(term.name, _literal(term.meaning), term.unit, term.domain, term.kind)
    wide_console().print(table)


def page(statement: Statement) -> None:
    """Print all that is known of a statement."""
    console = wide_console()
    colour = _COLOURS[statement.verdict]
    console.print(f"[bold]{_names(statement)}[/]  {_literal(statement.title)}")
    console.print(f"{_literal(statement.source)}; verdict: [{colour}]{statement.verdict}[/]")
    for label, law in (("corrected", statement.corrected), ("printed", statement.printed)):
        if law:
            console.print(f"\n[bold]{label}[/]  {_function(law)}", highlight=False)
            console.print(_literal(_says(law)), highlight=False)
    console.print()
    lines = (
        ("parameters", ", ".join(statement.parameters)),
        ("assumptions", "; ".join(statement.assumptions)),
        ("domain", statement.domain),
        ("counterexample", statement.counterexample),
        ("check", statement.check),
        ("example", command(statement)),
    )
    for label, text in lines:
        if text:
            console.print(f"[bold]{label}[/]  {_literal(text)}", highlight=False)


def numbers(answer: Answer) -> None:
    """Print what a statement evaluates to, and the printed form's value where it is another one."""
    console = wide_console()
    if answer.sweep:
        _sweep_table(answer, console)
    else:
        console.print(f"[bold]{answer.statement.id}[/]  {_literal(_text(answer.value))}", highlight=False)
        if answer.statement.printed and answer.printed is not None and answer.printed != answer.value:
            console.print(f"as printed  {_literal(_text(answer.printed))}", highlight=False)
    if answer.refusal:
        console.print(f"as printed: no value: {_literal(answer.refusal)}", highlight=False)


def picture(answer: Answer, path: Path) -> None:
    """Draw a sweep, or a vector over its index: corrected solid, printed dashed.

    Raises:
        ValueError: Neither a sweep nor a vector, values that are no numbers, or an unknown format.
    """
    corrected = _columns(answer, answer.value)
    printed = _columns(answer, answer.printed) if answer.printed is not None else []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    where = answer.sweep.values if answer.sweep else range(len(corrected[0]))
    figure, axes = pyplot.subplots(layout="constrained")
    for index, column in enumerate(corrected):
        label = "corrected" if len(corrected) == 1 else f"corrected [{index}]"
        axes.plot(where, column, color=f"C{index % 10}", label=label)
    for index, column in enumerate(printed):
        label = "as printed" if len(printed) == 1 else f"as printed [{index}]"
        axes.plot(where, column, color=f"C{index % 10}", linestyle="--", label=label)
    axes.set_xlabel(answer.sweep.name if answer.sweep else "position")
    axes.set_title(f"{answer.statement.id}: {answer.statement.title}", fontsize="medium", wrap=True)
    axes.legend()
    # A killed run leaves the old picture or none.
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        figure.savefig(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
        pyplot.close(figure)


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


def _sweep_table(answer: Answer, console: Console) -> None:
    from rich.table import Table

    sweep = answer.sweep
    assert sweep is not None
    heads = [sweep.name, answer.statement.id]
    table = Table(*heads, *(["as printed"] if answer.printed else []))
    for index, at in enumerate(sweep.values):
        cells = [f"{at:g}", _literal(_text(answer.value[index]))]
        if answer.printed:
            cells.append(_literal(_text(answer.printed[index])))
        table.add_row(*cells)
    console.print(table)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ("\n" if value and isinstance(value[0], list) else " ").join(_text(item) for item in value)
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_text(item)}" for key, item in value.items())
    return str(value)


def _function(law: Callable[..., Any]) -> str:
    """`ssd.ssd_speedup` for a law in `policies.laws.ssd`."""
    return f"{law.__module__.removeprefix('policies.laws.')}.{law.__name__}"


def _names(statement: Statement) -> str:
    """The id, and aliases that it does not name already as a range such as `def2-6`."""
    return (
        statement.id if re.search(r"\d-\d+$", statement.id) else ", ".join((statement.id, *statement.aliases))
    )


def _says(law: Callable[..., Any]) -> str:
    """The docstring without its parameters."""
    text = inspect.getdoc(law) or ""
    return text.split("\nArgs:")[0].split("\nRaises:")[0].split("\nReturns:")[0].strip()


def _literal(text: str) -> str:
    """Text in which brackets are no markup."""
    from rich.markup import escape

    return escape(text)
