"""`python -m analysis.experiments NAME`: run one experiment, write its data and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from analysis.experiments.runner import EXPERIMENTS, Plan, module_of, run_experiment
from analysis.experiments.store import RESULTS, save
from policies.commandline import HELP, checked_command, refusals, split_list

DEFAULT = {"ratio": ("cpu2-x5", "cpu2-x20"), "backup": ("cpu2-x20",)}
EXAMPLES = """
\b
Examples:
  python -m analysis.experiments budget
  python -m analysis.experiments backup --live
  python -m analysis.experiments ratio --live --hw cpu2-x5,cpu2-x20
  python -m analysis.experiments scale --hw my-pair --out results --json
"""


@checked_command(epilog=EXAMPLES, context_settings=HELP)
@click.argument("name", type=click.Choice(EXPERIMENTS))
@click.option("--live", is_flag=True, help="Measure, too: on the pair that the profile was made of.")
@click.option(
    "--hw",
    default="",
    callback=split_list,
    help="Profiles, a list.  [default: cpu2-x5; backup: cpu2-x20; ratio: both]",
)
@click.option("--count", type=click.IntRange(min=1), help="Prompts.  [default: live 6 or the widest batch]")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens per request.  [default: live 64]")
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(min=1), help="Live repetitions.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--out",
    default=RESULTS,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for JSON, CSV and picture.  [default: analysis/results/experiments]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Answer one of the papers' open questions by law, simulation and, with --live, measurement."""
    with refusals("--live runs models: pip install 'spectwin[live]'"):
        _run(options)


def _run(options: dict[str, Any]) -> None:
    from calibrate.display import show_progress

    plan = Plan(
        name=options["name"],
        profiles=tuple(options["hw"]) or DEFAULT.get(options["name"], ("cpu2-x5",)),
        live=options["live"],
        count=options["count"],
        limit=options["max_tokens"],
        repeats=options["repeats"],
        seed=options["seed"],
    )
    with show_progress() as progress:
        outcome = run_experiment(plan, progress)
    written = save(outcome, module_of(plan.name), options["out"])
    if options["as_json"]:
        click.echo(outcome.as_json())
        return
    click.echo(outcome.title)
    for path in written:
        click.echo(f"wrote {path}")


if __name__ == "__main__":
    main()
