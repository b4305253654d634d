"""The shipped pair's tokenizer, and the prompts cut from documents that it was not trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrate.corpus import CATEGORIES, Document
from calibrate.pair.writing import find_loops
from calibrate.prompts import Prompt
from hardware_profiles.files import atomic_write, to_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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
        window = tokens[start : start + length]
        text = str(tokenizer.decode(window))
        following = str(tokenizer.decode([tokens[start + length]]))
        natural = text[:1].strip() and text[-1:].strip() and not following[:1].strip()
        # Cut inside a word or a character, a text would be tokenized otherwise than the document was.
        whole = natural and "\ufffd" not in text and encode(tokenizer, text) == window
        if whole and not find_loops(window):
            yield text
            start += length + int(random.integers(_SPACING // 2, _SPACING))
        else:
            start += 1


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
                text=text,
                source=document.name,
            )
            for i, (document, text) in enumerate(in_turn[:wanted])
        ]
    return prompts


def write_prompts(prompts: Iterable[Prompt], path: Path) -> None:
    """Write ``prompts`` as JSONL, which `calibrate.prompts` reads."""
    with atomic_write(path) as file:
        for prompt in prompts:
            row = {"question_id": prompt.question_id, "category": prompt.category}
            row |= {"turns": [prompt.text], "source": prompt.source}
            file.write(to_json(row, ensure_ascii=False) + "\n")
