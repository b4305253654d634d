"""The corpus: a document belongs to one split, and the other splits' text is not trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.corpus import (
    CATEGORIES,
    SPLITS,
    Document,
    collect,
    of_split,
    split_of,
    without_shared_paragraphs,
)

NAMES = [f"package/module_{i}.py" for i in range(300)]


def a_name(split: str) -> str:
    """Some document name of ``split``."""
    return next(name for name in NAMES if split_of(name) == split)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A little standard library, with what has to be passed over."""
    files = {
        "alpha.py": '"""Short."""\nx = 1\n',
        "beta.py": f'"""{"A long story. " * 40}"""\n',
        "encodings/cp1.py": "# Decoding Table\n" + "'\\x00'  #  0x00 -> NULL\n" * 400,
        "encodings/tiny.py": "y = 2\n",
        "site-packages/other.py": "z = 3\n",
        "test/test_gamma.py": "assert True\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "broken.py").write_bytes(b"\xff\xfe not utf-8")
    return tmp_path


def test_files_become_documents_of_their_category(library: Path) -> None:
    documents = [d for d in collect(library) if not d.name.startswith("pydoc_data/")]
    found = {d.name: d.category for d in documents if d.category != "tests"}
    assert found == {
        "alpha.py": "code",
        "beta.py": "code",
        "beta.py#docstring": "prose",
        "encodings/cp1.py": "tables",
        "encodings/tiny.py": "code",
    }


def test_order_is_the_same_every_time(library: Path) -> None:
    assert collect(library) == collect(library)


def test_a_docstring_goes_where_its_module_goes() -> None:
    assert all(split_of(name) == split_of(name + "#docstring") for name in NAMES)


def test_splits_are_disjoint_and_every_category_is_in_each() -> None:
    documents = collect()
    names = [{d.name for d in of_split(documents, split)} for split in SPLITS]
    assert sum(map(len, names)) == len(set.union(*names)) == len(documents)
    for split in SPLITS:
        present = {d.category for d in of_split(documents, split)}
        assert present >= set(CATEGORIES) - {"tests"}  # the test-suite is not installed everywhere


def test_training_text_loses_paragraphs_it_shares_with_heldout_text() -> None:
    shared = "This paragraph is quoted in two topics, word for word."
    heldout = Document(a_name("heldout"), "prose", f"Own words.\n\n{shared}")
    train = Document(a_name("train"), "prose", f"Before.\n\n{shared}\n\nAfter.")
    kept_heldout, kept_train = without_shared_paragraphs([heldout, train])
    assert kept_heldout == heldout
    assert kept_train.text == "Before.\n\nAfter."
