"""The `laws` command: every formal statement of the five papers, and its value at given numbers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from hardware_profiles.files import to_json
from policies.commandline import BAD_INPUT, HELP, INCOMPLETE, checked_group, refusals
from policies.laws import report
from policies.laws.catalogue import STATEMENTS, Statement, find
from policies.laws.evaluate import answer, finite
from policies.laws.glossary import FORMERLY, GLOSSARY

PAPERS = ("ssd", "double", "duo", "rasd", "mirror")
VERDICTS = ("holds", "caveat", "wrong")
EXAMPLES = """
\b
Examples:
  laws list --paper ssd --verdict wrong
  laws show ssd.thm17
  laws eval ssd.thm17 p_hit_primary=0.9 p_hit_backup=0.2 e_hit=4 e_miss=1 t_primary=0.6
  laws eval ssd.thm7 p_hit=0.1:0.9:0.1 e_hit=4 e_miss=1 t_primary=1.5 t_backup=0 --json
  laws eval ssd.cor16 batch=1:32 p_hit=0.9 e_hit=4 e_miss=1 t_primary=1.5 t_backup=0.3 --plot batch.png
  laws glossary
"""


@checked_group(epilog=EXAMPLES, context_settings=HELP)
def main() -> None:
    """Look up and evaluate the formal statements of five papers on speculative decoding.

    Each has a corrected form, which is the one to use, the form as printed where that differs, a verdict,
    and the test that checked it.
    """


@main.command("list")
@click.option("--paper", type=click.Choice(PAPERS), help="Only this paper's.")
@click.option("--verdict", type=click.Choice(VERDICTS), help="Only those that came out like this.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@click.option("--markdown", is_flag=True, help="Print the table of the docs.")
def list_statements(paper: str | None, verdict: str | None, *, as_json: bool, markdown: bool) -> None:
    """List the statements and what became of them.

    \b
    Examples:
      laws list
      laws list --paper mirror --verdict wrong
      laws list --json
    """
    chosen = [
        statement
        for statement in STATEMENTS.values()
        if paper in (None, statement.paper) and verdict in (None, statement.verdict)
    ]
    if as_json:
        click.echo(to_json([report.summary(statement) for statement in chosen], indent=2))
    elif markdown:
        click.echo(report.markdown(chosen))
    else:
        report.print_statements(chosen)


@main.command()
@click.argument("name", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(name: str, *, as_json: bool) -> None:
    """Show a statement: source, verdict, assumptions, domain, counterexample, check and both forms.

    \b
    Examples:
      laws show ssd.thm17
      laws show mirror.eq10 --json
    """
    with refusals(INCOMPLETE, BAD_INPUT):
        statement = find(name)
    if as_json:
        click.echo(to_json(report.details(statement), indent=2))
    else:
        report.print_statement(statement)


@main.command("eval")
@click.argument("name", metavar="ID")
@click.argument("arguments", metavar="[NAME=VALUE]...", nargs=-1)
@click.option(
    "--example", is_flag=True, help="Take the statement's own example; arguments replace parts of it."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with id, value and printed.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture of the sweep.")
def evaluate_statement(
    name: str, arguments: tuple[str, ...], *, example: bool, as_json: bool, plot: Path | None
) -> None:
    """Evaluate a statement at NAME=VALUE..., in its corrected form and as printed.

    A value is a number (0.5, 1/2, inf), a range (1:12, or 0.1:0.9:0.1 with a step) to sweep over, a list
    (4,4,3), or a table (0.5,0;0,0.5), as `laws glossary` says.

    \b
    Examples:
      laws eval ssd.thm17 p_hit_primary=0.9 p_hit_backup=0.2 e_hit=4 e_miss=1 t_primary=0.6
      laws eval ssd.thm12 --example
      laws eval ssd.def11 fanout=1,2,4 exponent=1 scale=0.6
      laws eval ssd.thm17 --example t_primary=0.1:0.9:0.1 --plot switch.png
    """
    with refusals(INCOMPLETE, BAD_INPUT):
        statement = find(name)
        said = answer(statement, _with_example(statement, arguments) if example else arguments)
        if plot:
            report.picture(said, plot)
    if as_json:
        click.echo(to_json(finite(report.values(said)), indent=2))
    else:
        report.print_answer(said)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def glossary(*, as_json: bool) -> None:
    """Explain the parameters of the laws: meaning, unit and domain of each name."""
    if as_json:
        click.echo(to_json([asdict(term) for term in GLOSSARY.values()], indent=2))
    else:
        report.print_terms()


def _with_example(statement: Statement, arguments: tuple[str, ...]) -> list[str]:
    given = {FORMERLY.get(name, name) for name in (item.partition("=")[0] for item in arguments)}
    return [*(item for item in statement.example.split() if item.partition("=")[0] not in given), *arguments]


if __name__ == "__main__":
    main()
