"""Datastores for retrieval, built out of text that this machine has: `calibrate datastore`.

Whatever the text, nothing of the documents that the shipped prompts were cut from goes into it: neither
these documents nor, in others, the paragraphs shared with them.  A datastore that holds the texts it is
tested on retrieves the answers.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click
import msgspec

from calibrate.corpus import (
    Document,
    collect,
    of_split,
    paragraphs_of,
    read_document,
    split_of,
    standard_library,
    without_paragraphs,
)
from calibrate.options import TRUST
from hardware_profiles.datastore import Datastore, datastore_path
from hardware_profiles.files import to_json
from policies.commandline import (
    HELP,
    NAME,
    POSITIVE,
    Refusal,
    about,
    checked_group,
    click_options,
    option,
    refusals,
    typed,
    with_options,
)

ENOUGH = 10_000_000
"""Tokens of a datastore by default."""
SUFFIXES = (".py", ".txt", ".md", ".rst")
_MAX_BYTES = 1_000_000  # larger files are data or generated


def documents_of(folders: Sequence[Path] = ()) -> Iterator[Document]:
    """Documents for a datastore, the nearest to what the shipped pair knows first.

    Files of `folders`; then the corpus that the pair was trained on; then the rest of the interpreter's
    test-suite; then the packages installed beside it.  Each of them in an order by hashes of names, so that
    a small datastore is a sample of a large one.
    """
    corpus = collect()
    private = paragraphs_of(document for document in corpus if document.split != "train")
    known = {document.name for document in corpus}
    tests = _files(standard_library() / "test", "test/")
    candidates = chain(
        *(_files(folder, "own/") for folder in folders),
        sorted(of_split(corpus, "train"), key=lambda document: _lot(document.name)),
        (d for d in tests if d.name not in known and split_of(d.name) == "train"),
        _files(Path(sysconfig.get_paths()["purelib"]), "site-packages/"),
    )
    for document in candidates:
        yield without_paragraphs(document, private)


def build(
    tokenizer: Any,
    documents: Iterable[Document],
    *,
    enough: int = ENOUGH,
    name: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Datastore:
    """A datastore of documents, until it has `enough` tokens or they run out.

    The tokenizer, called `name`, is one of transformers; `progress` is called with (tokens so far, `enough`).

    Raises:
        ValueError: No text at all.
    """
    texts: list[list[int]] = []
    sources: dict[str, None] = {}
    count = 0
    for document in documents:
        ids = tokenizer.encode(document.text, add_special_tokens=False, verbose=False)
        if ids:
            texts.append(ids)
            origin = document.name.split("/")[0]
            known = origin in {"own", "test", "site-packages"}
            sources[origin if known else f"standard library: {document.category}"] = None
            count += len(ids) + 1
            progress(min(count, enough), enough)
        if count >= enough:
            break
    if not texts:
        raise ValueError("there is no text to build a datastore of")
    return Datastore.of_texts(texts, len(tokenizer), tokenizer=name, sources=list(sources))


def _lot(name: str) -> bytes:
    return hashlib.sha256(f"datastore:{name}".encode()).digest()


def _files(folder: Path, prefix: str) -> Iterator[Document]:
    """Text files below a folder, in an order by hashes."""
    for path in sorted(folder.rglob("*"), key=lambda path: _lot(path.relative_to(folder).as_posix())):
        inside = path.relative_to(folder)
        if path.suffix not in SUFFIXES or "__pycache__" in inside.parts:
            continue
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            continue
        if text := read_document(path):
            yield Document(prefix + inside.as_posix(), "code" if path.suffix == ".py" else "prose", text)


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


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What `calibrate datastore build` is asked."""

    tokenizer: str = option("pair:draft", "Model name or folder.")
    folders: tuple[Path, ...] = option(
        (),
        "Folder of your own text, taken first; may be given several times.",
        spelled=("--text",),
        multiple=True,
        type=click.Path(exists=True, file_okay=False, path_type=Path),
    )
    tokens: int = option(ENOUGH, "Stop after so many.", type=POSITIVE)
    name: str = option("stdlib", "Name, in the user's folder.", type=NAME)
    out: Path | None = field(
        default=None, metadata=about("Folder to write, in place of a name.", type=click.Path(path_type=Path))
    )
    trust_remote_code: bool = field(default=False, metadata=TRUST)


@datastore.command("build", context_settings=HELP)
@with_options(click_options(BuildRequest))
def _build(**options: Any) -> None:
    """Build a datastore of the text that this machine has.

    The interpreter's standard library and the packages installed beside it, without the documents that the
    shipped prompts were cut from.
    """
    request = typed(BuildRequest, options)
    with refusals("building needs a tokenizer: pip install 'spectwin[live]'"):
        from calibrate.display import show_progress
        from calibrate.live.loading import load_tokenizer
        from calibrate.shipped import resolve_model

        folder = resolve_model(request.tokenizer)
        tokenizer = load_tokenizer(folder, trust_remote_code=request.trust_remote_code)
        with show_progress() as progress:
            store = build(
                tokenizer,
                documents_of(request.folders),
                enough=request.tokens,
                name=request.tokenizer,
                progress=partial(progress, "tokens"),
            )
        path = request.out or datastore_path(request.name)
        store.write(path)
    if len(store) < request.tokens:
        click.echo(
            f"this machine has {len(store)} tokens of text, fewer than {request.tokens}; "
            "--text adds folders of your own",
            err=True,
        )
    click.echo(f"wrote {path}: {len(store)} tokens of {store.meta.documents} documents")


@datastore.command("show", context_settings=HELP)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def _show(name: str, as_json: bool) -> None:
    """Say what the datastore NAME (or at that path) is."""
    try:
        meta = Datastore.open(datastore_path(name)).meta
    except ValueError as error:
        raise Refusal(str(error)) from error
    if as_json:
        click.echo(to_json({"name": name, **msgspec.structs.asdict(meta)}))
        return
    click.echo(
        f"{meta.tokens} tokens of {meta.documents} documents; tokenizer {meta.tokenizer} with "
        f"{meta.vocabulary} ids; from {', '.join(meta.sources)}"
    )
