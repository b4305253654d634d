"""`python -m analysis.breaks`: where the papers' laws stop holding."""

from __future__ import annotations

from pathlib import Path

import click

from analysis.breaks import show
from analysis.breaks.laws import LAWS, find_laws, find_relaxations
from analysis.breaks.map import OWN_ASSUMPTIONS, TOKENS, Map, as_json, load_map, sweep
from analysis.breaks.relaxations import RELAXATIONS
from hardware_profiles.files import atomic_write
from policies.commandline import BAD_INPUT, HELP, INCOMPLETE, checked_command, refusals, wide_console

EPILOG = """
\b
Examples:
  python -m analysis.breaks
  python -m analysis.breaks ssd.thm7 ssd.cor8 --relax jitter --relax branches
  python -m analysis.breaks double.thm3 --json map.json --plot pictures
  python -m analysis.breaks --from analysis/results/breaks/map.json --markdown
  python -m analysis.breaks --list
"""


@checked_command(epilog=EPILOG, context_settings=HELP)
@click.argument("laws", nargs=-1, metavar="[LAW]...")
@click.option("--relax", multiple=True, metavar="NAME", help="Only this assumption; may be given repeatedly.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the map as JSON; - prints it."
)
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown.")
@click.option("--plot", type=click.Path(file_okay=False, path_type=Path), help="Draw the pictures there.")
@click.option(
    "--from",
    "stored",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Show a stored map; nothing is simulated.",
)
@click.option("--tokens", default=TOKENS, show_default=True, type=click.IntRange(min=2000), help="Of a run.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--list", "only_list", is_flag=True, help="List laws and relaxations.")
def main(
    laws: tuple[str, ...],
    relax: tuple[str, ...],
    json_file: Path | None,
    *,
    markdown: bool,
    plot: Path | None,
    stored: Path | None,
    tokens: int,
    seed: int,
    only_list: bool,
) -> None:
    """Put laws to the test: first under their own assumptions, then with one assumption relaxed at a time.

    LAW is a statement's id (docs/results/breaks.md); one with several readings stands for all of them.  All
    laws by default, which takes some minutes.
    """
    if only_list:
        _list()
        return
    with refusals(INCOMPLETE, BAD_INPUT):
        errors = _stored(stored, laws, relax) if stored is not None else _simulated(laws, relax, tokens, seed)
        if json_file == Path("-"):
            click.echo(as_json(errors), nl=False)
        elif json_file is not None:
            with atomic_write(json_file) as file:
                file.write(as_json(errors))
            click.echo(f"wrote {json_file}", err=True)
        if plot is not None:
            for path in show.plot(errors, plot):
                click.echo(f"wrote {path}", err=True)
        if markdown:
            click.echo(show.markdown(errors))
        elif json_file != Path("-"):
            _show(errors, single=len(laws) > 0)


def _simulated(names: tuple[str, ...], relax: tuple[str, ...], tokens: int, seed: int) -> Map:
    from calibrate.display import show_progress

    laws, relaxations = find_laws(names), find_relaxations(relax)
    touching = dict.fromkeys(name for law in laws for name in law.relaxations)
    if not any(name in touching for name in relaxations):
        raise ValueError(f"--relax touches none of these laws; what does: {', '.join(touching)}")
    with show_progress() as progress:
        cells = sweep(laws, relaxations, seed=seed, tokens=tokens, progress=progress)
    return Map(tuple(cells), seed, tokens)


def _stored(path: Path, names: tuple[str, ...], relax: tuple[str, ...]) -> Map:
    """The stored map's part that is asked for."""
    whole = load_map(path)
    laws = {law.name for law in find_laws(names)}
    relaxations = {*find_relaxations(relax), OWN_ASSUMPTIONS}
    cells = tuple(c for c in whole.cells if c.law in laws and c.relaxation in relaxations)
    if not cells:
        raise ValueError(f"{path} holds nothing of these laws; it has {', '.join(whole.laws)}")
    return Map(cells, whole.seed, whole.tokens)


def _show(errors: Map, *, single: bool) -> None:
    console = wide_console()
    lines = show.overview(errors)
    if not console.is_terminal:  # a column must not be cut short in a log
        console.width = max(console.width, 14 * len(lines[0]) + 30)
    console.print(show.table(lines, title="Largest errors, %", numbers=range(1, len(lines[0]))))
    if single:
        for law in errors.laws:
            title = f"{law}: {LAWS[law].title}"
            console.print(show.table(show.of_law(errors, law), title=title, numbers=(2,)))
    else:
        console.print(show.table(show.by_relaxation(errors), title="By relaxation", numbers=(2,)))
    console.print(show.CAPTION, highlight=False)


def _list() -> None:
    console = wide_console()
    head = ["law", "form", "compared as", "says"]
    rows = [[law.name, law.form, law.kind, law.title] for law in LAWS.values()]
    console.print(show.table([head, *rows], title="Laws"))
    relaxed = [[name, r.size, ", ".join(f"{s:g}" for s in r.sizes)] for name, r in RELAXATIONS.items()]
    console.print(show.table([["relaxation", "size", "sizes"], *relaxed], title="Relaxations"))


if __name__ == "__main__":
    main()
