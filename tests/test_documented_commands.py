"""Every command of the README and the docs is one that its parser takes: options, choices, numbers, names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
from commands import ROOT, programs

from spectwin.__main__ import PARTS, main

PROGRAMS = programs() | {f"spectwin {n}": c for n in PARTS if (c := main.get_command(click.Context(main), n))}
LONGEST_FIRST = sorted(PROGRAMS, key=len, reverse=True)


def lines() -> Iterator[tuple[str, str]]:
    """(file, command) of every indented or fenced line that starts with one of our programs."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        fenced = False
        for line in path.read_text(encoding="utf-8").splitlines():
            fenced ^= line.startswith("```")
            for part in re.split(r" && | & |; ", line.strip().partition("  #")[0].partition(" > ")[0]):
                if (fenced or line.startswith("    ")) and part.startswith(tuple(f"{p} " for p in PROGRAMS)):
                    yield str(path.relative_to(ROOT)), part.strip().removesuffix(" &")


def parse(program: click.Command, arguments: list[str], above: click.Context | None = None) -> None:
    """Read arguments as the command would, without running anything.

    `above`: of the group that the command is in, whose settings hold for it, too; a command keeps them.
    """
    context = program.make_context("x", list(arguments), above, resilient_parsing=False)
    if isinstance(program, click.Group) and (rest := [*context._protected_args, *context.args]):
        name, command, rest = program.resolve_command(context, rest)
        assert command is not None, name
        parse(command, rest, context)


COMMANDS = sorted(set(lines()))


def test_they_are_found() -> None:
    assert len(COMMANDS) > 60 and len({path for path, _ in COMMANDS}) > 8


@pytest.mark.parametrize(("path", "line"), COMMANDS, ids=[f"{path}: {line}" for path, line in COMMANDS])
def test_a_documented_command_is_read(path: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`A|B` stands for either, `[...]` for what may be left out; files need not be there."""
    line = re.sub(r"\[([^\]|]*)\|[^\]]*\]", r"\1", line)
    line = re.sub(r"\[[^\]]*\]", "", line)
    line = re.sub(r"(?<=[\w.])\|[\w.|-]+", "", line)
    start = next(name for name in LONGEST_FIRST if line.startswith(name + " "))
    program, arguments = PROGRAMS[start], shlex.split(line.removeprefix(start))
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: Path(value))
    monkeypatch.setattr(Path, "is_file", lambda self: not re.fullmatch(r"[\d,-]+", str(self)))
    monkeypatch.setattr("policies.commandline.read_text", lambda path: "")
    with suppress(click.exceptions.Exit):  # as `--help` ends
        parse(program, arguments)
