"""A hook of mkdocs: reference pages generated from the code, and files outside `docs/` that pages link to."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
OUTSIDE = re.compile(r"\]\(((?:\.\./)+)((?:analysis|calibrate|tests)/[^)#]+|[A-Z]+\.md)\)")
"""Links to files of the repository that are not in `docs/`."""


def on_files(files: Files, *, config: Any) -> Files:
    """Add what is generated, and what is linked to."""
    for name, text in {
        "all-options": options(),
        "studies": studies(),
        "statements": statements(),
        "python": api(),
    }.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    linked = {
        found[2] for page in (ROOT / "docs").rglob("*.md") for found in OUTSIDE.finditer(page.read_text())
    }
    for name in sorted(linked):
        if copied(name):
            files.append(File.generated(config, f"repository/{name}", abs_src_path=str(ROOT / name)))
    return files


def copied(name: str) -> bool:
    """Whether a file of the repository is on the site: pictures and tables, no pages and no folders."""
    return (ROOT / name).is_file() and not name.endswith(".md")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links out of `docs/`: pictures and tables to their copies, others to nothing."""
    up = "../" * page.file.src_uri.count("/")

    def moved(found: re.Match[str]) -> str:
        name = found[2]
        return f"]({up}repository/{name})" if copied(name) else "](#)"

    return OUTSIDE.sub(moved, markdown)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by the words that start it."""
    import click

    from spectwin.__main__ import main

    def below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield words, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for word in command.list_commands(context):
                part = command.get_command(context, word)
                if part is not None:
                    yield from below(f"{words} {word}", part)

    yield from below("spectwin", main)


def options() -> str:
    """Every option of every command, as its help says."""
    import click

    parts = ["# All options\n\nGenerated from the code; `--help` prints the same.\n"]
    for words, command in commands():
        context = click.Context(command, info_name=words.rpartition(" ")[2])
        parts.append(f"\n## {words}\n\n{inspect.cleandoc(command.help or '').replace(chr(8), '')}\n")
        rows = [record for param in command.get_params(context) if (record := param.get_help_record(context))]
        parts += [f"\n- `{names}`: {escaped(what)}" for names, what in rows]
        parts.append("\n")
    return "".join(parts)


def escaped(text: str) -> str:
    """Help as Markdown shows it unchanged."""
    return re.sub(r"([<>|*_])", r"\\\1", text)


def studies() -> str:
    """The studies and their questions."""
    from analysis.__main__ import STUDIES, load_study

    rows = "".join(f"| `{name}` | {load_study(name).question} |\n" for name in STUDIES)
    head = "# Studies\n\n`spectwin studies run NAME` answers a question.\n\n| study | question |\n|---|---|\n"
    return head + rows


def statements() -> str:
    """The papers' statements."""
    from policies.laws.catalogue import STATEMENTS
    from policies.laws.report import markdown

    return f"# All statements\n\nWhat `laws list --markdown` prints.\n\n{markdown(STATEMENTS.values())}\n"


def api() -> str:
    """The public Python API, from its docstrings."""
    import spectwin

    parts = [
        f"# Python\n\n```python\nimport spectwin\n```\n\n{(spectwin.__doc__ or '').partition(chr(10))[2]}\n"
    ]
    for name in spectwin.__all__:
        found = getattr(spectwin, name)
        signature = str(inspect.signature(found)) if inspect.isfunction(found) else ""
        parts.append(f"\n## {name}\n\n`{name}{signature}`\n\n```text\n{inspect.getdoc(found)}\n```\n")
    return "".join(parts)
