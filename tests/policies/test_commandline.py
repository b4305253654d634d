"""What every command refuses, at one place for all of them."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hardware_profiles.files import check_name
from policies.commandline import SINGULAR, CheckedCommand, CheckedGroup, parse_setting
from policies.registry import SettingError

ROOT = Path(__file__).parents[2]
PACKAGES = ("analysis", "calibrate", "hardware_profiles", "policies", "simulator")


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def others() -> list[Path]:
    """All modules but the one that makes commands and consoles."""
    return [path for path in sources() if path != ROOT / "policies" / "commandline.py"]


def commands() -> Iterator[click.Command]:
    """Every command of every module, and those below a group."""
    for path in sources():
        if "checked_command" not in (text := path.read_text()) and "checked_group" not in text:
            continue
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for value in vars(module).values():
            if isinstance(value, click.Group):
                yield from value.commands.values()
            if isinstance(value, click.Command):
                yield value


def test_every_command_is_a_checked_one() -> None:
    found = list(commands())
    assert len(found) > 20
    assert [c.name for c in found if not isinstance(c, CheckedCommand | CheckedGroup)] == []
    made = [p for p in others() if "@click.command(" in (t := p.read_text()) or "@click.group(" in t]
    assert made == []


def test_there_is_one_console() -> None:
    """Of rich, which is asked for elsewhere only as a type."""
    assert [p for p in others() if re.search(r"(?<!wide_)\bConsole\(", p.read_text())] == []


SIMULATE = ("--policy", "sd", "--acceptance", "0.8", "--requests", "2", "--max-tokens", "8")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--target-time", "nan", "--draft-time", "0.1"),
        ("--target-time", "inf", "--draft-time", "0.1"),
        ("--target-time", "1", "--draft-time", "nan"),
        ("--hit-exponent", "nan"),
        ("--acceptance", "nan"),
        ("--temperature", "inf"),
        ("--hit-curve", "1,nan"),
        ("--head-cost", "inf"),
        ("--batch", "1000000000"),
        ("--requests", "1000000000"),
        ("--prompt-length", "1000000000"),
        ("--max-tokens", "1000000000"),
        ("--lookahead", "1000000000"),
        ("--fanout", "1000000000"),
        ("--requests", "100000", "--max-tokens", "1000000"),
        ("--seed", str(2**70)),
        ("--seed", str(-(2**70))),
        ("--batch", "9" * 5000),
        ("--hw", "a" * 5000),
        ("--acceptance", "a" * 5000),
        ("--trace", "a" * 5000),
        ("--timeline", "a" * 5000),
        ("--policy", "a" * 5000),
    ],
)
def test_what_simulate_refuses(arguments: tuple[str, ...]) -> None:
    from simulator.cli import main

    done = CliRunner().invoke(main, [*SIMULATE, *arguments])
    assert done.exit_code == 2, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert len([line for line in done.stderr.splitlines() if line.startswith("Error")]) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--passes", "1000000000"),
        ("--apart", "inf"),
        ("--apart", "nan"),
        ("--apart", "100000"),
        ("--until-error", "nan"),
        ("--time-budget", "inf"),
        ("--temperature", "0,nan"),
        ("--top-p", "nan"),
        ("--batches", "1,1000000000"),
        ("--name", "../../x"),
        ("--name", ".hidden"),
        ("--name", "a/b"),
        ("--name", "a" * 5000),
        ("datastore", "build", "--name", "../x"),
    ],
)
def test_what_calibrate_refuses(arguments: tuple[str, ...]) -> None:
    from calibrate.cli import main

    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 2, done.output
    assert "Error: Invalid value" in done.stderr


def test_settings_are_bounded_like_options() -> None:
    with pytest.raises(SettingError, match="tree_budget is at most 4,096"):
        parse_setting("tree tree_budget=1000000000")


def test_names_are_no_paths() -> None:
    assert check_name("h100x4+1") == "h100x4+1"
    for name in ("", ".x", "..", "../x", "a/b", "a\\b", "a b", "a\n", "a\0", "ä", "a" * 101):
        with pytest.raises(ValueError, match="is no name"):
            check_name(name)


def test_an_ascii_terminal_gets_ascii() -> None:
    from policies.laws.cli import main as laws
    from simulator.cli import main

    textbook = ("--target-time", "1", "--draft-time", "0.1")
    for command, arguments in ((main, [*SIMULATE, *textbook]), (laws, ["list"]), (laws, ["glossary"])):
        done = CliRunner(charset="ascii").invoke(command, arguments)
        assert done.exit_code == 0, done.output
        assert done.stdout.isascii()


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["--help"]])
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "policies.laws.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=ROOT,
        )
    assert done.returncode == 2
    assert done.stderr == "Error: cannot write the output: No space left on device\n"


def test_lists_are_taken_under_the_name_of_one_value_too() -> None:
    """Where a command has no other option of that name."""
    seen = 0
    for command in commands():
        names = [name for param in command.params for name in param.opts]
        assert len(set(names)) == len(names)
        for several, one in SINGULAR.items():
            assert several not in names or one in names
            seen += several in names
    assert seen > 5
