"""Tiny random Llama pairs with a tokenizer of words w0 ... w63, and prompts made of these words."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrate.prompts import Prompt

VOCABULARY = 64
END = 0


def save_pair(folder: Path, *, positions: int = 512) -> tuple[str, str]:
    """Write a target and a draft that agrees with it more often than not; returns their folders."""
    from tiny_models import tiny_model, with_noise

    target = tiny_model(0, positions=positions, end=END)
    draft = with_noise(target, 0.05)
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
        save_tokenizer(folder / name)
    return str(folder / "target"), str(folder / "draft")


def save_tokenizer(folder: Path, *, swapped: tuple[int, int] | None = None) -> None:
    """Write the tokenizer; with two words `swapped` it is another one of the same size."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [f"w{i}" for i in range(VOCABULARY)]
    if swapped:
        a, b = swapped
        words[a], words[b] = words[b], words[a]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w0", unk_token="w1").save_pretrained(
        folder
    )


def prompts(count: int) -> list[Prompt]:
    """Prompts of 3 to 12 words in two categories."""
    generator = np.random.default_rng(5)
    return [
        Prompt(100 + i, "ab"[i % 2], " ".join(f"w{w}" for w in generator.integers(2, VOCABULARY, 3 + i % 10)))
        for i in range(count)
    ]
