"""What a pair is like: held-out losses, acceptance and loops, per category.

Definitions, over the outputs of the target on held-out prompts (``OUTPUT`` tokens each, or up to
and including an end token):

- ``greedy_acceptance``: share of positions of the target's greedy output at which the draft's
  argmax, given the same past, is the target's token. Every position counts, also those that a
  speculative run would not verify, so this is not the engines' acceptance length.
- ``sampled_acceptance``: mean of ``sum(min(p, q))`` over the target's output at temperature 1: the
  probability that a sampled draft token survives the rejection test there.
- ``looping_outputs``: share of greedy outputs whose tail is a loop (`calibrate.pair.writing`);
  ``looping_tokens``: share of greedy tokens inside a loop, at the tail or not.
- ``repeated_4grams``: share of the 4-grams of greedy outputs that stood in the same output before;
  ``text_repeated_4grams``: the same for pieces of held-out text of that length.
- ``*_loss``: mean cross entropy in nats per token on held-out documents.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrate.corpus import CATEGORIES, Document, collect, of_split
from calibrate.pair.corpus import encode, encode_document
from calibrate.pair.train import WINDOW
from calibrate.pair.writing import loop_tokens, repeated_ngrams, tail_loop, until_end, written
from calibrate.prompts import load_prompts
from hardware_profiles.files import to_json
from policies.commandline import fitted_table

if TYPE_CHECKING:
    import torch
    from rich.table import Table
    from transformers import PreTrainedTokenizerFast


OUTPUT = 128
_MAX_WINDOWS = 48
_BATCH = 16
MEASURES: Mapping[str, str] = {
    "target_loss": "target\nloss",
    "draft_loss": "draft\nloss",
    "greedy_acceptance": "greedy\naccept.",
    "sampled_acceptance": "sampled\naccept.",
    "looping_outputs": "looping\noutputs",
    "looping_tokens": "looping\ntokens",
    "repeated_4grams": "4-grams\nrepeated",
    "text_repeated_4grams": "in real\ntext",
}
"""With their titles in tables; each is a ratio of two sums, which are added up over categories."""
Ratios: TypeAlias = Mapping[str, tuple[float, int]]


@dataclass(frozen=True)
class PairReport:
    """The measures of a pair; of each category, and of `all` together, over so many positions."""

    categories: list[dict[str, Any]]
    parameters: dict[str, int]
    weight_bytes: dict[str, int]
    python: str

    def to_json(self) -> str:
        """The report as indented JSON."""
        return to_json(asdict(self), indent=2) + "\n"


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


def _ngram_counts(texts: Iterable[Sequence[int]]) -> tuple[int, int]:
    counts = [repeated_ngrams(text) for text in texts]
    return sum(repeated for repeated, _ in counts), max(1, sum(total for _, total in counts))


def _measure(models: tuple[Any, Any], windows: NDArray[np.int64], prompts: Sequence[Sequence[int]]) -> Ratios:
    """Both sums of each of the `MEASURES` on held-out windows and prompts of a category."""
    import torch

    target, draft = models
    predicted = windows.shape[0] * (windows.shape[1] - 1)
    texts: list[list[int]] = []  # without prompts, end tokens and what follows them
    agreed = positions = sampled_positions = 0
    shared = 0.0
    for tokens, start, live in written(target, prompts, OUTPUT, sampled=False):
        texts += [until_end(row[start:].tolist(), 0) for row in tokens]
        chosen = _logits(draft, tokens)[:, start - 1 : -1].argmax(-1)
        agreed += int(((chosen == tokens[:, start:]) & live).sum())
        positions += int(live.sum())
    for tokens, start, live in written(target, prompts, OUTPUT, sampled=True):
        p, q = (_logits(model, tokens)[:, start - 1 : -1].softmax(-1) for model in models)
        shared += float((torch.minimum(p, q).sum(-1) * live).sum())
        sampled_positions += int(live.sum())
    return {
        "target_loss": (_summed_loss(target, windows), predicted),
        "draft_loss": (_summed_loss(draft, windows), predicted),
        "greedy_acceptance": (agreed, positions),
        "sampled_acceptance": (shared, sampled_positions),
        "looping_outputs": (sum(tail_loop(text) is not None for text in texts), len(texts)),
        "looping_tokens": (sum(loop_tokens(text) for text in texts), max(1, sum(map(len, texts)))),
        "repeated_4grams": _ngram_counts(texts),
        "text_repeated_4grams": _ngram_counts(windows[:, :OUTPUT].tolist()),
    }


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
    prompts = load_prompts(data / "prompts" / "heldout.jsonl")
    counts: dict[str, Ratios] = {}
    for category in CATEGORIES:
        windows = heldout_windows(tokenizer, [d for d in heldout if d.category == category])
        encoded = [encode(tokenizer, p.text) for p in prompts if p.category == category]
        if len(windows) and encoded:  # not every machine has the test-suite
            counts[category] = _measure(models, windows, encoded)
    each = list(counts.values())
    counts["all"] = {n: (sum(c[n][0] for c in each), sum(c[n][1] for c in each)) for n in MEASURES}
    names = ("target", "draft")
    return PairReport(
        categories=[
            {
                "category": category,
                **{name: round(ratios[name][0] / ratios[name][1], 4) for name in MEASURES},
                "positions": ratios["greedy_acceptance"][1],
            }
            for category, ratios in counts.items()
        ],
        parameters={n: _parameters(model) for n, model in zip(names, models, strict=True)},
        weight_bytes={n: (data / n / "model.safetensors").stat().st_size for n in names},
        python=platform.python_version(),
    )


def _parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


def report_table(report: PairReport) -> Table:
    """The report as a table for people."""
    sizes = ", ".join(
        f"{name} {report.parameters[name] / 1e6:.2f}M parameters, {bytes_ / 1e6:.1f} MB"
        for name, bytes_ in report.weight_bytes.items()
    )
    titles = ("category", *MEASURES.values())
    rows = [(row["category"], *(f"{row[name]:.3f}" for name in MEASURES)) for row in report.categories]
    title = "The pair on held-out text"
    return fitted_table(titles, rows, drop=titles[:4:-1], title=title, notes={"category": sizes})


TOKENS = (1, 5, 8)
_CONTEXT = 150
_WARM_UP = 3


@dataclass(frozen=True)
class StepTimes:
    """Median seconds of a forward over ``tokens`` new tokens, single-threaded, batch 1, fp32."""

    name: str
    parameters: int
    seconds: dict[int, float]


def measure_steps(
    models: Mapping[str, Any], *, repeats: int = 30, tokens: Sequence[int] = TOKENS
) -> list[StepTimes]:
    """Time forwards of ``models`` with a context of 150 tokens, as calibrations do, on one thread."""
    import torch

    from calibrate.live.backends.torch import ModelRunner
    from calibrate.live.engine.executor import Executor
    from calibrate.live.wire import Probe

    torch.set_num_threads(1)
    samples: dict[tuple[str, int], list[float]] = {(m, n): [] for m in models for n in tokens}
    executors = {name: Executor(ModelRunner(model)) for name, model in models.items()}
    for repeat in range(repeats + _WARM_UP):
        for (name, count), times in samples.items():
            # Two in a row and the second counts: the first pays for the caches of the turn.
            probe = Probe("forward", new_tokens=count, context=_CONTEXT, repeats=1, warmup=1)
            (probed,) = executors[name].execute(probe)
            if repeat >= _WARM_UP:
                times.extend(probed.durations_s)
    return [
        StepTimes(name, _parameters(model), {n: statistics.median(samples[name, n]) for n in tokens})
        for name, model in models.items()
    ]


def steps_table(measured: Sequence[StepTimes]) -> Table:
    """Milliseconds per step, and the ratio of one-token steps to the first model's."""
    seconds = measured[0].seconds
    rows = [
        (
            row.name,
            f"{row.parameters / 1e6:.1f}M",
            *(f"{1e3 * row.seconds[count]:.2f}" for count in seconds),
            f"{row.seconds[1] / seconds[1]:.1f}",
        )
        for row in measured
    ]
    titles = ("model", "parameters", *(f"{count} new" for count in seconds), f"ratio to {measured[0].name}")
    return fitted_table(
        titles, rows, drop=("parameters",), title=f"Milliseconds per step, {_CONTEXT} tokens of context"
    )
