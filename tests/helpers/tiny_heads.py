"""A small model and texts that count, on which heads of a frozen model can be trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from calibrate.pair.heads import HeadKind, HeadReport, Heads, Training, train_heads
from calibrate.pair.train import Streams


def counting_model(layers: int) -> LlamaForCausalLM:
    """A random Llama of 32 tokens, one of which ends a text."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def check_training(
    kind: HeadKind[Heads, HeadReport], model: LlamaForCausalLM, folder: Path, training: Training
) -> tuple[Heads, list[float]]:
    """Heads trained on texts in which t + 1 comes after t, and the losses; the model learns nothing."""
    texts = Streams({"code": (np.arange(4000) % 31 + 1).astype(np.uint16)}, seed=3)
    before = [p.clone() for p in model.parameters()]
    losses: list[float] = []
    checkpoint = folder / "heads.pt"
    heads = train_heads(kind, model, texts, checkpoint, training, report=lambda s: losses.append(s.loss))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return heads, losses
