"""Training: batches that depend on the step alone, one resumable loop, and cross entropy.

Every stage of the build (target, loop fix, draft) is a loss as a function of the step, handed to
`fit`. A stage stops after its steps or its minutes, whichever comes first, and the learning
rate follows whichever is further along; without a limit in minutes a run repeats exactly.

The loop fix is sequence-level unlikelihood on the model's own greedy continuations.
Welleck et al., "Neural text generation with unlikelihood training" (2019), section 5.2: let the
model write, and lower the probability of the tokens with which it repeated itself. Here these are
the tokens of loops and of long repeated n-grams (`calibrate.pair.writing`), not of 4-grams as in the
paper: source code repeats short n-grams for good reasons. Cross entropy on ordinary text goes on
beside it, which keeps the quality. The change is in the weights; decoding stays plain argmax.

The draft is trained to match the target's distribution on text and on the target's own writing: acceptance is
measured on what the target writes, so half of every batch is that, a third of it sampled, the rest greedy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrate.corpus import CATEGORIES, Document
from calibrate.pair.corpus import MAX_POSITION, VOCABULARY, encode_document
from calibrate.pair.writing import CONTINUATION, PROMPT, continue_batch, repetition_mask, until_end

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


TARGET: Mapping[str, int] = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "head_dim": 64,
}
DRAFT: Mapping[str, int] = {
    "hidden_size": 160,
    "intermediate_size": 416,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "head_dim": 32,
}


def new_model(shape: Mapping[str, int], *, seed: int) -> LlamaForCausalLM:
    """An untrained model of ``shape`` whose weights depend on ``seed`` only."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = dict(shape)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=MAX_POSITION,
        num_key_value_heads=shape["num_attention_heads"],
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,  # ends a text
        pad_token_id=None,
        **sizes,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write ``model`` rounded to fp16, with its tokenizer; ``model`` itself is left as it is."""
    import copy

    import torch

    rounded: Any = copy.deepcopy(model)
    rounded.to(torch.float16)
    rounded.config.dtype = torch.float16
    rounded.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


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
        random = np.random.default_rng([self.seed, step])
        names = list(self.tokens)
        shares = np.array([MIXTURE[name] for name in names])
        chosen = random.choice(len(names), size=rows, p=shares / shares.sum())
        return self._windows([names[index] for index in chosen], window, random)

    def prompts(self, step: int, *, rows: int) -> torch.Tensor:
        """Prompts ``(rows, PROMPT)``, with equal shares of the categories."""
        names = list(self.tokens)
        random = np.random.default_rng([self.seed, step, 1])
        return self._windows([names[row % len(names)] for row in range(rows)], PROMPT, random)

    def _windows(self, names: Sequence[str], size: int, random: np.random.Generator) -> torch.Tensor:
        import torch

        out = np.empty((len(names), size), dtype=np.int64)
        for row, name in enumerate(names):
            start = int(random.integers(0, len(self.tokens[name]) - size))
            out[row] = self.tokens[name][start : start + size]
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


def fit(model: Any, loss: Loss, plan: Plan, checkpoint: Path, report: Report) -> None:
    """Minimise ``loss`` over the parameters of a torch ``model``, in place; it is left in evaluation mode.

    For resuming, the loss must depend on the step and nothing else that changes. The checkpoint is
    resumed from where it exists, and written every minute; ``report`` is called after every step.
    """
    import torch

    matrices = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": plan.weight_decay},
        {"params": norms, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95), fused=True)

    def save() -> None:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
            "elapsed_s": elapsed_s,
        }
        partial = checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(checkpoint)

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
            save()
            saved = time.monotonic()
    save()
    model.eval()


_POOL_BATCH = 64
_TEXT_ROWS = 4
_WRITTEN_ROWS = 10


def write_pool(
    target: Any, streams: Streams, batches: int, path: Path, report: Callable[[int], None]
) -> NDArray[np.uint16]:
    """Prompts continued by ``target``: ``(rows, PROMPT + CONTINUATION)``, kept in ``path``."""
    if path.exists():
        pool: NDArray[np.uint16] = np.load(path)
        return pool
    import torch

    rows = []
    for index in range(batches):
        prompts = streams.prompts(2_000_000 + index, rows=_POOL_BATCH)
        written = continue_batch(target, prompts, CONTINUATION, sampled_rows=_POOL_BATCH // 3, seed=index)
        rows.append(torch.cat([prompts, written], dim=1).numpy().astype(np.uint16))
        report(index + 1)
    pool = np.concatenate(rows)
    np.save(path, pool)
    return pool


def divergence(target_logits: torch.Tensor, draft_logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean KL(target || draft) in nats over the masked positions; logits ``(rows, window, v)``."""
    log_p, log_q = target_logits.log_softmax(-1), draft_logits.log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    return (kl * mask).sum() / mask.sum().clamp(min=1)


def distillation(target: Any, draft: Any, streams: Streams, pool: NDArray[np.uint16]) -> Loss:
    """The draft's loss as a function of the step, to hand to `calibrate.pair.train.fit`."""
    import torch

    # Positions that predict a written token: not the prompt's, and none after an end token.
    tokens = torch.from_numpy(pool.astype(np.int64))
    open_ = (tokens[:, PROMPT:] == 0).cumsum(1) == 0
    predicts = torch.zeros_like(tokens, dtype=torch.bool)
    predicts[:, PROMPT - 1] = True
    predicts[:, PROMPT : PROMPT + CONTINUATION - 1] = open_[:, :-1]

    def match(batch: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = logits_of(target, batch)
        return divergence(wanted, logits_of(draft, batch), mask)

    def loss(step: int) -> torch.Tensor:
        text = streams.batch(3_000_000 + step, rows=_TEXT_ROWS)
        random = np.random.default_rng([streams.seed, step, 2])
        rows = torch.from_numpy(random.choice(len(tokens), size=_WRITTEN_ROWS, replace=False))
        everywhere = torch.ones_like(text, dtype=torch.bool)
        return match(text, everywhere) + match(tokens[rows], predicts[rows])

    return loss


_ROUND_STEPS = 4
_ROUND_PROMPTS = 48
_ROWS = 6
# Real text repeats up to a tenth of its 8-grams; what repeats little more than that is left alone.
_TOLERATED = 0.15


def unlikelihood(logits: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of ``-log(1 - p(token))`` over the masked ``tokens`` ``(rows, window)``, to make them less likely.

    Position ``i`` of the logits ``(rows, window, vocabulary)`` predicts token ``i + 1``.
    """
    import torch

    log_p = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    penalty = -torch.log1p(-log_p.exp().clamp(max=1.0 - 1e-5))
    chosen = mask[:, 1:]
    return (penalty * chosen).sum() / chosen.sum().clamp(min=1)


class LoopFix:
    """The loss of the loop fix: every few steps the model writes, its repetitions are penalised.

    Args:
        model: a causal language model, which is trained.
        streams: the training text, whose prompts the model continues.
        weight: of the penalty, cross entropy having 1.
        spared: categories in which exact loops are penalised, but no repeated n-grams: the
            lines of a table are alike by nature.
    """

    def __init__(self, model: Any, streams: Streams, *, weight: float, spared: Collection[str]) -> None:
        self._model, self._streams, self._weight, self._spared = model, streams, weight, spared
        self._round = -1
        self._written: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, step: int) -> torch.Tensor:
        """Cross entropy on text plus the weighted penalty on this round's repetitions."""
        import torch

        if step // _ROUND_STEPS != self._round:
            self._round = step // _ROUND_STEPS
            self._write()
        # An offset, so that the text is not that of the first steps of the first stage again.
        batch = self._streams.batch(1_000_000 + step)
        loss = cross_entropy(logits_of(self._model, batch), batch)
        if not self._written:
            return loss
        first, count = step % _ROUND_STEPS * _ROWS, len(self._written)
        rows = [self._written[(first + i) % count] for i in range(min(_ROWS, count))]
        tokens, mask = torch.stack([t for t, _ in rows]), torch.stack([m for _, m in rows])
        return loss + self._weight * unlikelihood(logits_of(self._model, tokens), tokens, mask)

    def _write(self) -> None:
        """Let the model continue training prompts, and keep what repeats itself."""
        import torch

        prompts = self._streams.prompts(self._round, rows=_ROUND_PROMPTS)
        written = continue_batch(self._model, prompts, CONTINUATION)
        self._written = []
        names = list(self._streams.tokens)  # the categories that the prompts take in turn
        for row, (prompt, continuation) in enumerate(zip(prompts, written, strict=True)):
            size = None if names[row % len(names)] in self._spared else 8
            mask = repetition_mask(until_end(continuation.tolist(), 0), size=size)
            if sum(mask) > _TOLERATED * len(mask):
                padded = [False] * PROMPT + mask + [False] * (CONTINUATION - len(mask))
                self._written.append((torch.cat([prompt, continuation]), torch.tensor(padded)))
