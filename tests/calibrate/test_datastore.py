"""What goes into a datastore: text of this machine, and nothing of the shipped prompts' documents."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from calibrate.cli import main
from calibrate.corpus import Document, collect
from calibrate.datastore import build, documents_of
from calibrate.live.loading import load_tokenizer
from calibrate.prompts import load_prompts
from calibrate.shipped import PROMPTS, resolve_model
from hardware_profiles.datastore import Datastore

LONG = 40


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return load_tokenizer(Path(resolve_model("pair:draft")))


@pytest.fixture(scope="module")
def corpus() -> list[Document]:
    return collect()


@pytest.fixture(autouse=True)
def read_once(corpus: list[Document], monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all of the library takes seconds."""
    monkeypatch.setattr("calibrate.datastore.collect", lambda: corpus)


def test_no_document_of_a_prompt_is_in_it(corpus: list[Document]) -> None:
    sources = {prompt.source for path in PROMPTS.values() for prompt in load_prompts(path)}
    private = [document for document in corpus if document.split != "train"]
    assert sources <= {document.name for document in private}
    shared = {p.strip() for d in private for p in d.text.split("\n\n") if len(p.strip()) >= LONG}
    names = set()
    for document in islice(documents_of(), 1200):  # past the corpus, into the test-suite
        names.add(document.name)
        assert shared.isdisjoint(piece.strip() for piece in document.text.split("\n\n"))
    assert sources.isdisjoint(names)
    assert any(name.startswith("test/") for name in names)


def test_own_text_comes_first_and_enough_is_enough(tmp_path: Path, tokenizer: object) -> None:
    (tmp_path / "notes.md").write_text("the moon is made of cheese\n")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    seen: list[tuple[int, int]] = []
    found = build(
        tokenizer,
        documents_of([tmp_path]),
        enough=10,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert found.meta.sources == ("own",)
    assert (found.meta.documents, seen) == (1, [(10, 10)])
    assert found.meta.vocabulary == 2048
    words = tokenizer.encode(" made of")  # type: ignore[attr-defined]
    ((tokens, frequency),) = found.lookup(words, longest=2, span=3, count=1)
    assert frequency == 1
    assert tokenizer.decode(tokens).startswith(" che")  # type: ignore[attr-defined]


def test_the_command_builds_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    run = CliRunner().invoke(main, ["datastore", "build", "--tokens", "500", "--name", "small"])
    assert run.exit_code == 0, run.output
    assert len(Datastore.open(tmp_path / "spectwin" / "datastores" / "small")) >= 500
    shown = CliRunner().invoke(main, ["datastore", "show", "small", "--json"])
    assert json.loads(shown.output)["tokenizer"] == "pair:draft"
    missing = CliRunner().invoke(main, ["datastore", "show", "none"])
    assert missing.exit_code == 2
    assert "calibrate datastore build" in missing.output
