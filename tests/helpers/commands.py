"""Every command of the project: console scripts, and modules that are run with `python -m`.

`python tests/helpers/commands.py [ROOT]` counts them and their options, here or in another checkout;
tests/data/capabilities.md has the numbers.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
ALL = "spectwin"
_RUN = re.compile(r'^if __name__ == "__main__":\n    (\w+)\(\)', re.M)


def programs(root: Path = ROOT) -> dict[str, click.Command]:
    """What can be started, by the words that start it; not a module whose command is part of another."""
    packaging = tomllib.loads((root / "pyproject.toml").read_text())
    starts = dict(packaging["project"]["scripts"])
    starts.pop(ALL, None)  # has all of them once more
    for pattern in packaging["tool"]["setuptools"]["packages"]["find"]["include"]:
        for path in sorted((root / pattern.rstrip("*")).rglob("*.py")):
            if path.parts[-2] != ALL and (run := _RUN.search(path.read_text())):
                module = ".".join(path.relative_to(root).with_suffix("").parts)
                starts[f"python -m {module.removesuffix('.__main__')}"] = f"{module}:{run.group(1)}"
    found: dict[str, click.Command] = {}
    for name, start in starts.items():
        module, _, attribute = start.partition(":")
        found[name] = getattr(import_module(module), attribute)
    parts = [id(c) for name, top in found.items() for path, c in commands(name, top) if path != name]
    own: dict[int, str] = {}
    for name, command in found.items():
        if id(command) not in parts:
            own.setdefault(id(command), name)
    return {name: found[name] for name in own.values()}


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and all commands below it, by the words that start them."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            part = command.get_command(context, word)
            assert part is not None
            yield from commands(f"{name} {word}", part)


def options_of(command: click.Command) -> list[str]:
    """Names of the options that a command has of its own, without `--help`."""
    return [parameter.opts[-1] for parameter in command.params if isinstance(parameter, click.Option)]


def counts(root: Path = ROOT) -> dict[str, int]:
    """How many programs, commands, options of all commands together, and different names of options."""
    tops = programs(root)
    every = [command for name, top in tops.items() for _, command in commands(name, top)]
    names = [option for command in every for option in options_of(command)]
    runnable = [c for c in every if not isinstance(c, click.Group) or c.invoke_without_command]
    return {
        "entry points": len(tops),
        "commands": len(runnable),
        "options": len(names),
        "names of options": len(set(names)),
    }


if __name__ == "__main__":
    where = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    sys.path.insert(0, str(where))
    for what, number in counts(where).items():
        sys.stdout.write(f"{what}: {number}\n")
