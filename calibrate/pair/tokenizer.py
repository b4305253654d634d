"""The tokenizer that target and draft share: a byte-level BPE of 2048 tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from calibrate.pair.corpus import Document

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
