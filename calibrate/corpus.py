"""Text that every machine with Python has: the running interpreter's own standard library.

Four categories of different predictability, because acceptance that is the same everywhere would
hide what a policy does when it is not:

- ``code``: library modules,
- ``tests``: a share of the interpreter's test-suite, where it is installed,
- ``prose``: the language reference of ``pydoc`` and long module docstrings,
- ``tables``: the character tables of ``encodings``.

The unit of splitting is the *document* (a file, a pydoc topic, a docstring): its split is a hash of
its name, so it depends on neither the order of the files nor the version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

Category = Literal["code", "tests", "prose", "tables"]
Split = Literal["train", "calibration", "heldout"]
CATEGORIES: tuple[Category, ...] = ("code", "tests", "prose", "tables")
SPLITS: tuple[Split, ...] = ("train", "calibration", "heldout")
DOCSTRING_SUFFIX = "#docstring"
TOPIC_PREFIX = "pydoc_data/topics.py#"
_CALIBRATION_PERCENT = 7
_HELDOUT_PERCENT = 7
_TESTS_PERCENT = 40
_MAX_TEST_BYTES = 80_000
_MIN_TABLE_BYTES = 8_000
_MIN_DOCSTRING_CHARS = 400
_MIN_SHARED_PARAGRAPH_CHARS = 40
# Third parties, and folders that hold data or the tests of a package rather than the library.
_SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "pydoc_data", "test", "tests", "idle_test", "__pycache__"}
)


@dataclass(frozen=True)
class Document:
    """A document; ``name`` is its path inside the library, with ``#part`` for a part of a file."""

    name: str
    category: Category
    text: str

    @property
    def split(self) -> Split:
        """The split this document belongs to, from its name alone."""
        return split_of(self.name)


def _percentile(salt: str, name: str) -> int:
    digest = hashlib.sha256(f"{salt}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % 100


def split_of(name: str) -> Split:
    """The split of the document called ``name``.

    A module and its docstring share a split: the docstring is text of the module.
    """
    percentile = _percentile("split", name.removesuffix(DOCSTRING_SUFFIX))
    if percentile < _CALIBRATION_PERCENT:
        return "calibration"
    if percentile < _CALIBRATION_PERCENT + _HELDOUT_PERCENT:
        return "heldout"
    return "train"


def standard_library() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_document(path: Path) -> str | None:
    """The text of a file; None of one that is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None  # some files of the test-suite are broken on purpose


def _library(root: Path) -> Iterator[Document]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if _SKIPPED_FOLDERS.intersection(parts) or parts[0].startswith("config-"):
            continue
        text = read_document(path)
        if not text:
            continue
        name = "/".join(parts)
        table = parts[0] == "encodings" and "Decoding" in text and len(text) > _MIN_TABLE_BYTES
        yield Document(name, "tables" if table else "code", text)
        if docstring := _docstring(text):
            yield Document(name + DOCSTRING_SUFFIX, "prose", docstring)


def _docstring(source: str) -> str | None:
    try:
        docstring = ast.get_docstring(ast.parse(source))
    except (SyntaxError, ValueError):
        return None
    return docstring if docstring and len(docstring) >= _MIN_DOCSTRING_CHARS else None


def _tests(root: Path) -> Iterator[Document]:
    for path in sorted((root / "test").glob("test_*.py")):
        name = f"test/{path.name}"
        if _percentile("tests", name) >= _TESTS_PERCENT or path.stat().st_size > _MAX_TEST_BYTES:
            continue
        if text := read_document(path):
            yield Document(name, "tests", text)


def _topics() -> Iterator[Document]:
    from pydoc_data.topics import topics  # type: ignore[import-untyped, unused-ignore]

    for name in sorted(topics):
        yield Document(TOPIC_PREFIX + name, "prose", topics[name])


def paragraphs_of(documents: Iterable[Document]) -> frozenset[str]:
    """The paragraphs of documents, but for short ones that stand anywhere."""
    paragraphs = (p.strip() for document in documents for p in document.text.split("\n\n"))
    return frozenset(p for p in paragraphs if len(p) >= _MIN_SHARED_PARAGRAPH_CHARS)


def without_paragraphs(document: Document, paragraphs: Collection[str]) -> Document:
    """A document without these paragraphs."""
    kept = [p for p in document.text.split("\n\n") if p.strip() not in paragraphs]
    return replace(document, text="\n\n".join(kept))


def without_shared_paragraphs(documents: Iterable[Document]) -> list[Document]:
    """``documents`` whose training members lost every paragraph they share with the other splits.

    pydoc's topics quote each other ("compound" contains "if", "while", ...), so that a split by
    document alone would still train on held-out text.
    """
    documents = list(documents)
    private = paragraphs_of(d for d in documents if d.split != "train")
    return [without_paragraphs(d, private) if d.split == "train" else d for d in documents]


def collect(root: Path | None = None) -> list[Document]:
    """Every document of the library at ``root`` (default: the running one), in a fixed order."""
    root = standard_library() if root is None else root
    library = list(_library(root))
    prose = [d for d in library if d.category == "prose"] + list(_topics())
    rest = [d for d in library if d.category != "prose"]
    return [*rest, *_tests(root), *without_shared_paragraphs(prose)]


def of_split(documents: Iterable[Document], split: Split) -> list[Document]:
    """The documents of one split, in the given order."""
    return [document for document in documents if document.split == split]
