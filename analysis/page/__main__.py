"""The `report` command."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from analysis.page.answers import HEADINGS, PageRequest, answers, count
from hardware_profiles.files import atomic_write
from policies.commandline import (
    BAD_INPUT,
    HELP,
    checked_command,
    click_options,
    progress_bar,
    refusals,
    typed,
    with_options,
)

DRAWN_BY = "this draws with plotly: pip install 'spectwin[report]'"
EXAMPLES = """
\b
Examples:
  report
  report --hw h200x1-llama-3.1-8b+eagle3-llama-3.1-8b --acceptance 0.7 --batches 1,8,32,128 --out 8b.html
"""


@checked_command("report", epilog=EXAMPLES, context_settings=HELP, headings=lambda: HEADINGS)
@with_options(click_options(PageRequest))
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default="report.html",
    show_default=True,
    help="File of the page.",
)
def main(*, out: Path, **options: Any) -> None:
    """Write one self-contained page: policies by batch, where each wins, why, and their first rounds.

    Pictures are interactive and need no network; every number's source is listed below them.
    """
    with refusals(DRAWN_BY, BAD_INPUT):
        from analysis.page.html import page

        asked = typed(PageRequest, options)
        import plotly  # noqa: F401  # refused before a minute of simulating

        with progress_bar("settings", count(asked)) as done:
            found = answers(asked, done or (lambda _: None))
        text = page(found, f"{datetime.now(UTC):%d %B %Y}")
        with atomic_write(out) as file:
            file.write(text)
        click.echo(f"wrote {out}: {len(text.encode()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
