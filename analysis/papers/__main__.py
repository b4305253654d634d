"""`python -m analysis.papers NAME`: a paper's tables predicted, or the index of the papers' figures."""

from __future__ import annotations

from pathlib import Path

import click

from analysis.papers.cells import PAPERS
from policies.commandline import HELP, INCOMPLETE, Refusal, checked_command, wide_console

EXAMPLES = """
\b
Examples:
  python -m analysis.papers rasd
  python -m analysis.papers all --summary
  python -m analysis.papers ssd --json ssd.json --plot pictures
  python -m analysis.papers double --markdown > double.md
  python -m analysis.papers figures
"""


@checked_command(epilog=EXAMPLES, context_settings=HELP)
@click.argument("name", type=click.Choice((*PAPERS, "all", "figures")), default="all")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write rows, summary, flags and the account of all values.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown, with the identifiability of every row.")
@click.option("--summary", is_flag=True, help="Print only the summary.")
@click.option(
    "--plot", "folder", type=click.Path(file_okay=False, path_type=Path), help="Write a picture per paper."
)
@click.option("--no-simulation", is_flag=True, help="Leave the simulated column empty.")
def main(
    name: str,
    json_file: Path | None,
    *,
    markdown: bool,
    summary: bool,
    folder: Path | None,
    no_simulation: bool,
) -> None:
    """Predict the papers' tables from their baselines' rows, beside a naive guess.

    Rows by law and by simulation, with the interval that withheld quantities leave, and a summary per
    method.  `figures` prints which of the papers' figures are reproduced by which command.
    """
    try:
        if name == "figures":
            _refuse_files(json_file, folder, summary=summary)
            _figures(markdown=markdown)
        else:
            _papers(name, json_file, folder, markdown=markdown, summary=summary, simulate=not no_simulation)
    except (ValueError, OSError) as error:
        raise Refusal(str(error)) from error
    except ImportError as error:
        raise Refusal(f"{error}; {INCOMPLETE}") from error


def _refuse_files(json_file: Path | None, folder: Path | None, *, summary: bool) -> None:
    if json_file is not None or folder is not None or summary:
        raise ValueError("figures is an index: it takes --markdown only")


def _figures(*, markdown: bool) -> None:
    from analysis.papers.report import markdown_figures, print_figures

    if markdown:
        click.echo(markdown_figures())
    else:
        print_figures(wide_console())


def _papers(
    name: str, json_file: Path | None, folder: Path | None, *, markdown: bool, summary: bool, simulate: bool
) -> None:
    from analysis.papers import report
    from analysis.papers.study import studies
    from hardware_profiles.files import atomic_write

    found = studies(name, simulate=simulate)
    if json_file is not None:
        with atomic_write(json_file) as file:
            file.write(report.as_json(found) + "\n")
    if folder is not None:
        from analysis.papers.report import plot
        from analysis.papers.study import as_dict

        for one in found:
            click.echo(f"wrote {plot(as_dict(one), folder)}", err=True)
    if markdown:
        click.echo(report.markdown_summaries(found) if summary else report.markdown(found))
        return
    console = wide_console()
    for one in () if summary else found:
        report.print_study(one, console)
    report.print_summary(found, console)


if __name__ == "__main__":
    main()
