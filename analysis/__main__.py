"""`python -m analysis list` and `python -m analysis run NAME`: studies of speculative decoding."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from analysis.results import Results
from analysis.study import Study
from calibrate.options import quiet
from policies.commandline import (
    HELP,
    RUNS_MODELS,
    CheckedGroup,
    checked_command,
    checked_group,
    click_options,
    refusals,
    wide_console,
    with_options,
)

STUDIES = {
    "validation": "validation",
    "explain": "explain",
    "family": "family",
    "double": "double",
    "duodecoding": "duodecoding",
    "mirror": "mirror",
    "mirror-streams": "mirror",
    "mirror-figures": "mirror_figures",
    "retrieval": "retrieval",
    **dict.fromkeys(
        ("budget", "backup", "ratio", "temperature", "scale", "pareto", "drafts"), "openquestions"
    ),
    "placements": "placements",
    "regret": "regret",
    "effort": "effort",
    "identity": "identity",
    **dict.fromkeys(("engines", "forwards", "speed"), "engines"),
    "gpu-oracle": "gpu_oracle",
    "serving": "serving",
    "load": "load",
    "signs": "signs",
    "queueing": "queueing",
    "onepass": "onepass",
    "gpu-map": "gpu_map",
    "gpu-day": "gpu_day",
    "sweep": "sweep",
}
"""Modules of `analysis.studies` by name of the study."""


def load_study(name: str) -> Study[Any]:
    """A study by name: its module has it as `STUDY`, or among `STUDIES`."""
    module = import_module(f"analysis.studies.{STUDIES[name]}")
    studies = getattr(module, "STUDIES", None) or (module.STUDY,)
    return next(study for study in studies if study.name == name)


class _Studies(CheckedGroup):
    """A command per study, imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(STUDIES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return command_of(load_study(name)) if name in STUDIES else None


OUTPUT = (
    click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder for the table (Parquet, CSV, JSON), pictures, and what live runs decided.",
    ),
    click.option("--plot", is_flag=True, help="Write the pictures, to --out or here."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
)


def command_of(study: Study[Any]) -> click.Command:
    """The command of a study, whose options are those of its plan."""

    def run(out: Path | None, plot: bool, as_json: bool, **options: Any) -> None:
        with refusals(RUNS_MODELS):
            results, written = _run(study, study.plan(**options), out, plot=plot, silent=as_json)
        if as_json:
            click.echo(results.as_json())
        else:
            console = wide_console()
            for part in study.show(results):
                console.print(part, highlight=False)
            for path in written:
                click.echo(f"wrote {path}")
        if study.failed(results):
            raise SystemExit(1)

    details = {"help": study.question, "epilog": study.epilog, "context_settings": HELP}
    return checked_command(study.name, **details)(with_options((*click_options(study.plan), *OUTPUT))(run))


def _run(
    study: Study[Any], plan: Any, out: Path | None, *, plot: bool, silent: bool
) -> tuple[Results, list[Path]]:
    """The results, and the files that were written."""
    from analysis.execute import run_study
    from analysis.show import save
    from calibrate.display import show_progress

    shown = nullcontext(quiet) if silent else show_progress()
    with shown as progress:
        results = run_study(study, plan, progress, out)
    written = results.write(out) if out else []
    for ending, picture in study.pictures(results).items() if plot or out else ():
        written.append(save(picture, (out or Path()) / f"{study.name}{ending}.png"))
    return results, written + (study.files(results, out) if out else [])


@checked_group(context_settings=HELP)
def main() -> None:
    """Studies of speculative decoding: law, simulated and measured side by side."""


@main.command("list")
def list_studies() -> None:
    """Every study, and what it asks."""
    for name in STUDIES:
        click.echo(f"{name:<16} {load_study(name).question}")


@main.group("run", cls=_Studies)
def run_group() -> None:
    """Answer one of the studies' questions by law, simulation and, with --live, measurement."""


if __name__ == "__main__":
    main()
