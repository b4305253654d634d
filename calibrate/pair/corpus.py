"""The text the pair is trained on: the running interpreter's own standard library.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from calibrate.pair.writing import find_loops
from hardware_profiles.jsonfile import parse_json, to_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None  # some files of the test-suite are broken on purpose


def _library(root: Path) -> Iterator[Document]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if _SKIPPED_FOLDERS.intersection(parts) or parts[0].startswith("config-"):
            continue
        text = _read(path)
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
        if text := _read(path):
            yield Document(name, "tests", text)


def _topics() -> Iterator[Document]:
    from pydoc_data.topics import topics  # type: ignore[import-untyped, unused-ignore]

    for name in sorted(topics):
        yield Document(TOPIC_PREFIX + name, "prose", topics[name])


def _paragraphs(text: str) -> list[str]:
    return text.split("\n\n")


def without_shared_paragraphs(documents: Iterable[Document]) -> list[Document]:
    """``documents`` whose training members lost every paragraph they share with the other splits.

    pydoc's topics quote each other ("compound" contains "if", "while", ...), so that a split by
    document alone would still train on held-out text.
    """
    documents = list(documents)
    private = {
        paragraph.strip()
        for document in documents
        if document.split != "train"
        for paragraph in _paragraphs(document.text)
        if len(paragraph.strip()) >= _MIN_SHARED_PARAGRAPH_CHARS
    }
    return [
        document
        if document.split != "train"
        else replace(
            document,
            text="\n\n".join(p for p in _paragraphs(document.text) if p.strip() not in private),
        )
        for document in documents
    ]


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


VOCABULARY = 2048
END = "<|end|>"
MAX_POSITION = 1024


def train_tokenizer(documents: Iterable[Document]) -> PreTrainedTokenizerFast:
    """Learn the merges from ``documents``, which should be training documents only."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((document.text for document in documents), trainer)
    wrapped: Any = PreTrainedTokenizerFast
    fast: PreTrainedTokenizerFast = wrapped(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        model_max_length=MAX_POSITION,
        clean_up_tokenization_spaces=False,
    )
    return fast


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """The token ids of ``text``, without an end token."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False, verbose=False)
    return ids


def encode_document(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """The token ids of a whole document: its text and the end token."""
    return [*encode(tokenizer, text), int(tokenizer.eos_token_id)]


PER_CATEGORY = {"calibration": 12, "heldout": 16}
# Five lengths rather than any: prompts of a length can share a batch without padding.
LENGTHS = (48, 64, 80, 96, 112)
_REMAINING = 48
_SPACING = 400
_FIRST_ID = {"calibration": 1000, "heldout": 2000}


class Prompt(TypedDict):
    """One row of the JSONL files."""

    question_id: int
    category: str
    turns: list[str]
    source: str


def _cuts(tokenizer: PreTrainedTokenizerFast, document: Document) -> Iterator[str]:
    """Prompts of one document, at random places, without overlap."""
    seed = hashlib.sha256(document.name.encode()).digest()
    random = np.random.default_rng(int.from_bytes(seed[:8], "big"))
    tokens = encode(tokenizer, document.text)
    # Not from the top: many files open with the same words.
    start = int(random.integers(0, max(1, len(tokens) // 2)))
    while True:
        length = int(random.choice(LENGTHS))
        if start + length + _REMAINING > len(tokens):
            return
        if text := _cut(tokenizer, tokens, start, length):
            yield text
            start += length + int(random.integers(_SPACING // 2, _SPACING))
        else:
            start += 1


def _cut(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[int], start: int, length: int) -> str | None:
    """The text of ``tokens[start : start + length]`` where that is a good prompt."""
    window = list(tokens[start : start + length])
    text = str(tokenizer.decode(window))
    following = str(tokenizer.decode([tokens[start + length]]))
    natural = text[:1].strip() and text[-1:].strip() and not following[:1].strip()
    # Cut inside a word or a character, a text would be tokenized otherwise than the document was.
    if not natural or "\ufffd" in text or encode(tokenizer, text) != window:
        return None
    return None if find_loops(window) else text


def cut_prompts(
    tokenizer: PreTrainedTokenizerFast, documents: Iterable[Document], split: str
) -> list[Prompt]:
    """The prompts of ``split``: one of every document in turn until each category is full.

    A category without any document is left out.

    Raises:
        ValueError: where a category has too little text.
    """
    documents = sorted(documents, key=lambda d: hashlib.sha256(d.name.encode()).digest())
    prompts: list[Prompt] = []
    for category in CATEGORIES:
        present = [d for d in documents if d.category == category]
        if not present:
            continue  # no test-suite, say
        chosen = [d for d in present if d.split == split]
        cuts = [[(d, text) for text in _cuts(tokenizer, d)] for d in chosen]
        in_turn = [cut for cut in chain.from_iterable(zip_longest(*cuts)) if cut is not None]
        wanted = PER_CATEGORY[split]
        if len(in_turn) < wanted:
            raise ValueError(f"only {len(in_turn)} {split} prompts of category {category!r}")
        prompts += [
            Prompt(
                question_id=_FIRST_ID[split] + len(prompts) + i,
                category=category,
                turns=[text],
                source=document.name,
            )
            for i, (document, text) in enumerate(in_turn[:wanted])
        ]
    return prompts


def write_prompts(prompts: Iterable[Prompt], path: Path) -> None:
    """Write ``prompts`` as JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [to_json(prompt, ensure_ascii=False) + "\n" for prompt in prompts]
    path.write_text("".join(lines), encoding="utf-8")


def read_prompts(path: Path) -> list[Prompt]:
    """Read what `write_prompts` wrote."""
    with path.open(encoding="utf-8") as lines:
        return [parse_json(line) for line in lines]
