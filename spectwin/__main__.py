"""The `spectwin` command: everything there is to do, a subcommand each, imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import click
from click.shell_completion import CompletionItem

from policies.commandline import HELP, CheckedGroup

PARTS = {
    "simulate": ("simulator.cli", "one setting: law and simulated speed, where time goes, why they differ"),
    "recommend": ("analysis.recommend.__main__", "the fastest setting, how sure, and where it changes"),
    "diagnose": ("analysis.diagnose.__main__", "why speculation is slow on a server, and what would help"),
    "report": ("analysis.page.__main__", "one page to look at: policies by batch, where each wins, why"),
    "explore": ("analysis.page.explore", "the same with sliders, served on this machine"),
    "calibrate": ("calibrate.cli", "measure a pair on this machine: a profile and its traces"),
    "validate": ("analysis.cli", "settings live beside law and simulation"),
    "imports": ("simulator.imports.__main__", "what an engine measured; settings in engines' terms"),
    "silicon": ("calibrate.silicon", "forwards and profiles from kernel times that others measured"),
    "roofline": ("calibrate.roofline", "a roofline of a profile; profiles of unmeasured hardware"),
    "laws": ("policies.laws.cli", "the papers' formal statements"),
    "studies": ("analysis.__main__", "questions answered by law, simulation and measurement"),
    "breaks": ("analysis.breaks.__main__", "where a law stops holding, and because of what"),
    "papers": ("analysis.papers.__main__", "the papers' tables, predicted"),
    "benchmark": ("analysis.benchmark", "tokens simulated per second"),
}
"""Modules by subcommand, and what each answers."""


class _Parts(CheckedGroup):
    """The subcommands; only the one that runs is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PARTS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return cast("click.Command", import_module(PARTS[name][0]).main) if name in PARTS else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The subcommands, without importing them, and options."""
        named = [CompletionItem(n, help=what) for n, (_, what) in PARTS.items() if n.startswith(incomplete)]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without importing what it names."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in PARTS.items()])


@click.group("spectwin", cls=_Parts, context_settings=HELP)
@click.version_option(package_name="spectwin")
def main() -> None:
    """A digital twin of speculative decoding.

    Options that are typed twice go into a TOML file: --config FILE, of any command.
    """


if __name__ == "__main__":
    main()
