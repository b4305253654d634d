"""What a pair is like: held-out losses, acceptance and loops, per category.

Definitions, over the outputs of the target on held-out prompts (``OUTPUT`` tokens each, or up to
and including an end token):

- ``greedy_acceptance``: share of positions of the target's greedy output at which the draft's
  argmax, given the same past, is the target's token. Every position counts, also those that a
  speculative run would not verify, so this is not the engines' acceptance length.
- ``sampled_acceptance``: mean of ``sum(min(p, q))`` over the target's output at temperature 1: the
  probability that a sampled draft token survives the rejection test there.
- ``looping_outputs``: share of greedy outputs whose tail is a loop (`calibrate.pair.loops`);
  ``looping_tokens``: share of greedy tokens inside a loop, at the tail or not.
- ``repeated_4grams``: share of the 4-grams of greedy outputs that stood in the same output before;
  ``text_repeated_4grams``: the same for pieces of held-out text of that length.
- ``*_loss``: mean cross entropy in nats per token on held-out documents.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrate.pair.corpus import CATEGORIES, Document, collect, of_split
from calibrate.pair.loops import loop_tokens, repeated_ngrams, tail_loop, until_end
from calibrate.pair.prompts import Prompt, read_prompts
from calibrate.pair.tokenizer import encode, encode_document
from calibrate.pair.train import WINDOW
from hardware_profiles.jsonfile import to_json

if TYPE_CHECKING:
    import torch
    from rich.table import Table
    from transformers import PreTrainedTokenizerFast

OUTPUT = 128
_MAX_WINDOWS = 48
_BATCH = 16


@dataclass(frozen=True)
class CategoryReport:
    """The measures of one category, or of all of them (``category == "all"``)."""

    category: str
    target_loss: float
    draft_loss: float
    greedy_acceptance: float
    sampled_acceptance: float
    looping_outputs: float
    looping_tokens: float
    repeated_4grams: float
    text_repeated_4grams: float
    positions: int


@dataclass(frozen=True)
class PairReport:
    """The measures of a pair."""

    categories: list[CategoryReport]
    parameters: dict[str, int]
    weight_bytes: dict[str, int]
    python: str

    def to_json(self) -> str:
        """The report as indented JSON."""
        return to_json(asdict(self), indent=2) + "\n"


@dataclass(frozen=True)
class _Counts:
    """Sums of one category; adding them up gives all."""

    loss: tuple[float, float]
    predicted: int
    greedy: tuple[int, int]
    sampled: tuple[float, int]
    outputs: tuple[int, int]
    loops: tuple[int, int]
    ngrams: tuple[int, int]
    text_ngrams: tuple[int, int]

    def report(self, category: str) -> CategoryReport:
        return CategoryReport(
            category=category,
            target_loss=round(self.loss[0] / self.predicted, 4),
            draft_loss=round(self.loss[1] / self.predicted, 4),
            greedy_acceptance=round(self.greedy[0] / self.greedy[1], 4),
            sampled_acceptance=round(self.sampled[0] / self.sampled[1], 4),
            looping_outputs=round(self.outputs[0] / self.outputs[1], 4),
            looping_tokens=round(self.loops[0] / self.loops[1], 4),
            repeated_4grams=round(self.ngrams[0] / self.ngrams[1], 4),
            text_repeated_4grams=round(self.text_ngrams[0] / self.text_ngrams[1], 4),
            positions=self.greedy[1],
        )


def _total(counts: Sequence[_Counts]) -> _Counts:
    def pair(name: str) -> Any:
        return tuple(np.sum([getattr(count, name) for count in counts], axis=0).tolist())

    return _Counts(
        loss=pair("loss"),
        predicted=sum(count.predicted for count in counts),
        greedy=pair("greedy"),
        sampled=pair("sampled"),
        outputs=pair("outputs"),
        loops=pair("loops"),
        ngrams=pair("ngrams"),
        text_ngrams=pair("text_ngrams"),
    )


def heldout_windows(tokenizer: PreTrainedTokenizerFast, documents: Iterable[Document]) -> NDArray[np.int64]:
    """Windows of held-out text ``(rows, WINDOW)``, spread over ``documents``."""
    stream = [t for document in documents for t in encode_document(tokenizer, document.text)]
    whole = len(stream) // WINDOW * WINDOW
    rows = np.asarray(stream[:whole], dtype=np.int64).reshape(-1, WINDOW)
    if len(rows) > _MAX_WINDOWS:
        rows = rows[np.linspace(0, len(rows) - 1, _MAX_WINDOWS).astype(int)]
    return rows


def _logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    import torch

    with torch.inference_mode():
        parts: Any = torch.split(tokens, _BATCH)
        return torch.cat([model(input_ids=part, use_cache=False).logits for part in parts])


def _summed_loss(model: Any, windows: NDArray[np.int64]) -> float:
    import torch
    from torch.nn import functional

    tokens = torch.from_numpy(windows)
    logits = _logits(model, tokens)[:, :-1].flatten(0, 1)
    return float(functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="sum"))


@dataclass(frozen=True)
class _Outputs:
    """Outputs of prompts of one length: ``tokens (rows, length + new)``; ``live (rows, new)``."""

    tokens: torch.Tensor
    live: torch.Tensor
    prompt: int


def _write(model: Any, prompts: Sequence[Sequence[int]], *, sampled: bool) -> list[_Outputs]:
    """The target's outputs, in batches of prompts of equal length."""
    import torch

    from calibrate.pair.generate import continue_batch

    batches = []
    for length in sorted({len(prompt) for prompt in prompts}):
        rows = torch.tensor([prompt for prompt in prompts if len(prompt) == length])
        new = continue_batch(model, rows, OUTPUT, sampled_rows=len(rows) if sampled else 0)
        ended = (new == 0).cumsum(1)
        live = (ended == 0) | ((ended == 1) & (new == 0))
        batches.append(_Outputs(torch.cat([rows, new], dim=1), live, length))
    return batches


def _greedy_agreement(draft: Any, outputs: Iterable[_Outputs]) -> tuple[int, int]:
    agreed = positions = 0
    for batch in outputs:
        chosen = _logits(draft, batch.tokens)[:, batch.prompt - 1 : -1].argmax(-1)
        hits = (chosen == batch.tokens[:, batch.prompt :]) & batch.live
        agreed, positions = agreed + int(hits.sum()), positions + int(batch.live.sum())
    return agreed, positions


def _overlap(target: Any, draft: Any, outputs: Iterable[_Outputs]) -> tuple[float, int]:
    import torch

    shared, positions = 0.0, 0
    for batch in outputs:
        p, q = (
            _logits(model, batch.tokens)[:, batch.prompt - 1 : -1].softmax(-1) for model in (target, draft)
        )
        overlap = torch.minimum(p, q).sum(-1)
        shared += float((overlap * batch.live).sum())
        positions += int(batch.live.sum())
    return shared, positions


def _texts(outputs: Iterable[_Outputs]) -> list[list[int]]:
    """What was written, without prompts, end tokens and what follows them."""
    return [until_end(row[batch.prompt :].tolist(), 0) for batch in outputs for row in batch.tokens]


def _loop_counts(texts: Sequence[Sequence[int]]) -> tuple[tuple[int, int], tuple[int, int]]:
    looping = sum(tail_loop(text) is not None for text in texts)
    inside = sum(loop_tokens(text) for text in texts)
    return (looping, len(texts)), (inside, max(1, sum(map(len, texts))))


def _ngram_counts(texts: Iterable[Sequence[int]]) -> tuple[int, int]:
    counts = [repeated_ngrams(text) for text in texts]
    return sum(repeated for repeated, _ in counts), max(1, sum(total for _, total in counts))


def _measure(
    models: tuple[Any, Any], windows: NDArray[np.int64], prompts: Sequence[Sequence[int]]
) -> _Counts:
    target, draft = models
    greedy = _write(target, prompts, sampled=False)
    texts = _texts(greedy)
    outputs, loops = _loop_counts(texts)
    return _Counts(
        loss=(_summed_loss(target, windows), _summed_loss(draft, windows)),
        predicted=windows.shape[0] * (windows.shape[1] - 1),
        greedy=_greedy_agreement(draft, greedy),
        sampled=_overlap(target, draft, _write(target, prompts, sampled=True)),
        outputs=outputs,
        loops=loops,
        ngrams=_ngram_counts(texts),
        text_ngrams=_ngram_counts(windows[:, :OUTPUT].tolist()),
    )


def measure_pair(data: Path, *, documents: Iterable[Document] | None = None) -> PairReport:
    """Measure the pair in ``data`` (``target/``, ``draft/``, ``prompts/``).

    Args:
        data: a folder as `calibrate.pair.build.build` writes it.
        documents: the corpus; default: the running interpreter's standard library.
    """
    from calibrate.live.loading import load_model, load_tokenizer

    tokenizer = load_tokenizer(data / "target")
    models = load_model(data / "target"), load_model(data / "draft")
    heldout = of_split(collect() if documents is None else documents, "heldout")
    prompts = read_prompts(data / "prompts" / "heldout.jsonl")
    counts: dict[str, _Counts] = {}
    for category in CATEGORIES:
        windows = heldout_windows(tokenizer, [d for d in heldout if d.category == category])
        encoded = _encoded(tokenizer, prompts, category)
        if len(windows) and encoded:  # not every machine has the test-suite
            counts[category] = _measure(models, windows, encoded)
    counts["all"] = _total(list(counts.values()))
    return PairReport(
        categories=[count.report(category) for category, count in counts.items()],
        parameters={
            name: sum(p.numel() for p in model.parameters())
            for name, model in zip(("target", "draft"), models, strict=True)
        },
        weight_bytes={
            name: (data / name / "model.safetensors").stat().st_size for name in ("target", "draft")
        },
        python=platform.python_version(),
    )


def _encoded(tokenizer: PreTrainedTokenizerFast, prompts: Iterable[Prompt], category: str) -> list[list[int]]:
    return [encode(tokenizer, p["turns"][0]) for p in prompts if p["category"] == category]


_COLUMNS: Mapping[str, str] = {
    "target_loss": "target\nloss",
    "draft_loss": "draft\nloss",
    "greedy_acceptance": "greedy\naccept.",
    "sampled_acceptance": "sampled\naccept.",
    "looping_outputs": "looping\noutputs",
    "looping_tokens": "looping\ntokens",
    "repeated_4grams": "4-grams\nrepeated",
    "text_repeated_4grams": "in real\ntext",
}


def report_table(report: PairReport) -> Table:
    """The report as a table for people."""
    from rich.table import Table

    sizes = ", ".join(
        f"{name} {report.parameters[name] / 1e6:.2f}M parameters, {bytes_ / 1e6:.1f} MB"
        for name, bytes_ in report.weight_bytes.items()
    )
    table = Table(title="The pair on held-out text", caption=sizes)
    table.add_column("category")
    for heading in _COLUMNS.values():
        table.add_column(heading, justify="right")
    for row in report.categories:
        values = [getattr(row, name) for name in _COLUMNS]
        table.add_row(row.category, *(f"{value:.3f}" for value in values))
    return table
