"""Training: batches that depend on the step alone, one resumable loop, and cross entropy.

Every stage of the build (target, loop fix, draft) is a loss as a function of the step, handed to
`fit`. A stage stops after its steps or its minutes, whichever comes first, and the learning
rate follows whichever is further along; without a limit in minutes a run repeats exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrate.pair.corpus import CATEGORIES, Document
from calibrate.pair.tokenizer import encode_document

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

WINDOW = 384
BATCH = 8
# Shares of a batch. Prose and tables are small, so they are seen more often than their size says.
MIXTURE: Mapping[str, float] = {"code": 0.48, "tests": 0.15, "prose": 0.22, "tables": 0.15}
_WARMUP = 0.02
_FINAL_RATE = 0.03
_CHECKPOINT_EVERY_S = 60.0
_CLIP = 1.0

Loss = Callable[[int], "torch.Tensor"]
Report = Callable[["Status"], None]


@dataclass(frozen=True)
class Plan:
    """How long and how fast a stage learns."""

    steps: int
    learning_rate: float
    minutes: float | None = None
    weight_decay: float = 0.1

    def progress(self, step: int, elapsed_s: float) -> float:
        """How far along the stage is, from 0 to 1 (and beyond)."""
        of_time = 0.0 if self.minutes is None else elapsed_s / (60.0 * self.minutes)
        return max(step / self.steps, of_time)

    def rate(self, progress: float) -> float:
        """The learning rate: a linear warm-up, then half a cosine."""
        if progress < _WARMUP:
            return self.learning_rate * (0.02 + progress / _WARMUP)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
        return self.learning_rate * (_FINAL_RATE + (1.0 - _FINAL_RATE) * cosine)


@dataclass(frozen=True)
class Status:
    """What `fit` tells its caller after each step."""

    step: int
    elapsed_s: float
    progress: float
    loss: float


@dataclass(frozen=True)
class Streams:
    """Token streams per category, from which batches are cut.

    Windows start anywhere, so documents are seen whole but at changing offsets.
    """

    tokens: Mapping[str, NDArray[np.uint16]]
    seed: int

    def batch(self, step: int, *, rows: int = BATCH, window: int = WINDOW) -> torch.Tensor:
        """Token ids ``(rows, window)`` that depend on the seed and ``step`` only."""
        import torch

        random = np.random.default_rng([self.seed, step])
        names = list(self.tokens)
        shares = np.array([MIXTURE[name] for name in names])
        chosen = random.choice(len(names), size=rows, p=shares / shares.sum())
        out = np.empty((rows, window), dtype=np.int64)
        for row, index in enumerate(chosen):
            stream = self.tokens[names[index]]
            start = int(random.integers(0, len(stream) - window))
            out[row] = stream[start : start + window]
        return torch.from_numpy(out)


def encode_streams(
    tokenizer: PreTrainedTokenizerFast, documents: Iterable[Document], *, seed: int
) -> Streams:
    """The documents' tokens, one stream per category in a shuffled order of documents."""
    encoded: dict[str, list[list[int]]] = {category: [] for category in CATEGORIES}
    for document in documents:
        encoded[document.category].append(encode_document(tokenizer, document.text))
    random = np.random.default_rng(seed)
    streams: dict[str, NDArray[np.uint16]] = {}
    for category, pieces in encoded.items():
        if pieces:
            order = random.permutation(len(pieces))
            streams[category] = np.concatenate([np.asarray(pieces[i], dtype=np.uint16) for i in order])
    return Streams(streams, seed)


def logits_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """Logits ``(rows, window, vocabulary)`` in fp32, computed under bf16 autocast."""
    import torch

    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits: torch.Tensor = model(input_ids=batch, use_cache=False).logits
    return logits.float()


def cross_entropy(logits: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Mean loss in nats per token of predicting ``batch`` from its own past."""
    from torch.nn import functional

    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def _optimizer(model: Any, plan: Plan) -> torch.optim.Optimizer:
    import torch

    matrices = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": plan.weight_decay},
        {"params": norms, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95), fused=True)


def _save(path: Path, state: dict[str, Any]) -> None:
    import torch

    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def fit(model: Any, loss: Loss, plan: Plan, checkpoint: Path, report: Report) -> None:
    """Minimise ``loss`` over the parameters of ``model``, in place.

    Args:
        model: a torch module; left in evaluation mode.
        loss: the loss of a step; it must depend on nothing else that changes, for resuming.
        plan: steps, minutes and learning rate.
        checkpoint: file to resume from where it exists, and to write every minute.
        report: called after every step.
    """
    import torch

    optimizer = _optimizer(model, plan)
    step, before_s = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, before_s = int(state["step"]), float(state["elapsed_s"])
    started = saved = time.monotonic()
    elapsed_s = before_s
    model.train()
    while (progress := plan.progress(step, elapsed_s)) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(progress)
        value = loss(step)
        optimizer.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call, unused-ignore]
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        optimizer.step()
        step += 1
        elapsed_s = before_s + time.monotonic() - started
        report(Status(step, elapsed_s, plan.progress(step, elapsed_s), value.item()))
        if time.monotonic() - saved > _CHECKPOINT_EVERY_S:
            _save(checkpoint, _state(model, optimizer, step, elapsed_s))
            saved = time.monotonic()
    _save(checkpoint, _state(model, optimizer, step, elapsed_s))
    model.eval()


def _state(model: Any, optimizer: torch.optim.Optimizer, step: int, elapsed_s: float) -> dict[str, Any]:
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
        "elapsed_s": elapsed_s,
    }
