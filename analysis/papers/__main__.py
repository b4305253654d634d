"""`python -m analysis.papers NAME`: a paper's tables predicted, or the index of the papers' figures."""

from __future__ import annotations

from pathlib import Path

import click

from analysis.papers.cells import PAPERS
from policies.commandline import BAD_INPUT, HELP, INCOMPLETE, checked_command, refusals, wide_console

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
    from analysis.papers import report
    from analysis.papers.predicted import as_dict, predict_papers
    from hardware_profiles.files import atomic_write

    console = wide_console()
    with refusals(INCOMPLETE, BAD_INPUT):
        if name == "figures":
            if json_file is not None or folder is not None or summary:
                raise ValueError("figures is an index: it takes --markdown only")
            if markdown:
                click.echo(report.markdown_figures())
            else:
                report.print_figures(console)
            return
        papers = predict_papers(name, simulate=not no_simulation)
        if json_file is not None:
            with atomic_write(json_file) as file:
                file.write(report.as_json(papers) + "\n")
        if folder is not None:
            for one in papers:
                click.echo(f"wrote {report.plot(as_dict(one), folder)}", err=True)
        if markdown:
            click.echo(report.markdown_summaries(papers) if summary else report.markdown_rows(papers))
            return
        for one in () if summary else papers:
            report.print_study(one, console)
        report.print_summary(papers, console)


if __name__ == "__main__":
    main()
