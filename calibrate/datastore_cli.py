"""`calibrate datastore`: build and look into datastores for retrieval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from calibrate.options import trust_option
from hardware_profiles.jsonfile import to_json
from policies.commandline import HELP, NAME, Refusal, checked_group, refusals

EXAMPLES = """
\b
Examples:
  calibrate datastore build                          the shipped pair's, of the text on this machine
  calibrate datastore build --text ./our-docs --name ours
  calibrate datastore build --tokenizer ./my-70b --tokens 50000000 --out ./datastores/mine
  calibrate datastore show stdlib
\b
Then: simulate or calibrate decide with --policy rest --datastore stdlib.
"""


@checked_group(epilog=EXAMPLES, context_settings=HELP)
def datastore() -> None:
    """Texts in which `rest` and `rasd` look up what followed the same words."""


@datastore.command(context_settings=HELP)
@click.option("--tokenizer", default="pair:draft", show_default=True, help="Model name or folder.")
@click.option(
    "--text",
    "folders",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of your own text, taken first; may be given several times.",
)
@click.option(
    "--tokens", default=10_000_000, show_default=True, type=click.IntRange(min=1), help="Stop after so many."
)
@click.option("--name", default="stdlib", show_default=True, type=NAME, help="Name, in the user's folder.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write, in place of a name.")
@trust_option
def build(**options: Any) -> None:
    """Build a datastore of the text that this machine has.

    The interpreter's standard library and the packages installed beside it, without the documents that the
    shipped prompts were cut from.
    """
    with refusals("building needs a tokenizer: pip install 'spectwin[live]'"):
        path, found = _build(options)
    if len(found) < options["tokens"]:
        click.echo(
            f"this machine has {len(found)} tokens of text, fewer than {options['tokens']}; "
            "--text adds folders of your own",
            err=True,
        )
    click.echo(f"wrote {path}: {len(found)} tokens of {found.meta.documents} documents")


@datastore.command(context_settings=HELP)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(name: str, as_json: bool) -> None:
    """Say what the datastore NAME (or at that path) is."""
    from dataclasses import asdict

    from hardware_profiles.datastore import Datastore, datastore_path

    try:
        meta = Datastore.open(datastore_path(name)).meta
    except ValueError as error:
        raise Refusal(str(error)) from error
    if as_json:
        click.echo(to_json({"name": name, **asdict(meta)}))
        return
    click.echo(
        f"{meta.tokens} tokens of {meta.documents} documents; tokenizer {meta.tokenizer} with "
        f"{meta.vocabulary} ids; from {', '.join(meta.sources)}"
    )


def _build(options: dict[str, Any]) -> tuple[Path, Any]:
    from calibrate.datastore import build as build_of
    from calibrate.datastore import documents_of
    from calibrate.display import show_progress
    from calibrate.live.loading import load_tokenizer
    from calibrate.pair.embed import resolve_model
    from hardware_profiles.datastore import datastore_path

    tokenizer = load_tokenizer(
        resolve_model(options["tokenizer"]), trust_remote_code=options["trust_remote_code"]
    )
    with show_progress() as progress:
        found = build_of(
            tokenizer,
            documents_of(options["folders"]),
            enough=options["tokens"],
            name=options["tokenizer"],
            progress=lambda done, total: progress("tokens", done, total),
        )
    path: Path = options["out"] or datastore_path(options["name"])
    found.write(path)
    return path, found
