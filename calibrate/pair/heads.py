"""Small heads of the pair's frozen models (exits, streams): one way to train, to measure and to keep them.

Heads learn from the pair's corpus while the weights of their model stay as they are.  What they are worth is
measured on what the model itself writes after held-out prompts, greedily and sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from calibrate.pair.train import BATCH, Plan, Report, Streams, fit
from hardware_profiles.jsonfile import to_json

if TYPE_CHECKING:
    import torch
    from _typeshed import DataclassInstance

OUTPUT = 96
"""Tokens that a model writes after a prompt, for the measures."""
_GROUP = 8

Heads = TypeVar("Heads")
"""The module that is trained."""
Found = TypeVar("Found", bound="DataclassInstance")
"""What is reported of one of the heads."""


@dataclass(frozen=True)
class HeadKind(Generic[Heads, Found]):
    """A kind of heads.

    Attributes:
        name: Plural; of the checkpoint `<name>.pt` and of the report `<name>.json`.
        learning_rate: At its highest.
        first: Step of the corpus that the first batch is; the stages of a pair's build read lower ones.
        window: Tokens of each row of a batch.
        make: New heads of a model.
        loss: Of (model, heads, tokens [rows, window]), in nats.
        save: Writes heads of a model of so many layers into its folder.
        measure: A report per head from (model, heads, prompts) and `sampled`: whether the texts are sampled
            at temperature 1, else decoded greedily.
    """

    name: str
    learning_rate: float
    first: int
    window: int
    make: Callable[[Any], Heads]
    loss: Callable[[Any, Heads, torch.Tensor], torch.Tensor]
    save: Callable[[Heads, int, Path], Path]
    measure: Callable[..., list[Found]]


@dataclass(frozen=True)
class Training:
    """How long heads learn.

    Attributes:
        steps: Most steps.
        minutes: Most minutes; None: no limit, so that the training repeats exactly.
        rows: Windows per step.
        seed: Of the initial weights.
    """

    steps: int
    minutes: float | None = None
    rows: int = BATCH
    seed: int = 0


def train_heads(
    kind: HeadKind[Heads, Found],
    model: Any,
    texts: Streams,
    checkpoint: Path,
    training: Training,
    *,
    report: Report,
) -> Heads:
    """Heads of `model`, whose own weights stay as they are.

    Args:
        kind: What to train.
        model: In single precision.
        texts: What it reads.
        checkpoint: File to resume from and to write every minute.
        training: How long.
        report: Called after every step.
    """
    import torch

    torch.manual_seed(training.seed)
    model.requires_grad_(False)
    heads = kind.make(model)

    def loss(step: int) -> torch.Tensor:
        return kind.loss(model, heads, texts.batch(kind.first + step, rows=training.rows, window=kind.window))

    plan = Plan(training.steps, kind.learning_rate, training.minutes, weight_decay=0.0)
    fit(heads, loss, plan, checkpoint, report)
    return heads


def build_heads(
    kind: HeadKind[Heads, Found],
    folder: Path,
    work: Path,
    training: Training,
    progress: Callable[[float, str], None] = lambda done, note: None,
) -> list[Found]:
    """Train heads of the model in `folder` on the corpus and write them and their report beside it.

    Args:
        kind: What to train.
        folder: A model with its tokenizer, as `pair build` writes it.
        work: Folder of the checkpoint; a second call with it goes on.
        training: How long.
        progress: Called with the share done and a note.
    """
    from calibrate.live.loading import load_model, load_tokenizer
    from calibrate.pair.build import SEED
    from calibrate.pair.corpus import collect, of_split
    from calibrate.pair.prompts import read_prompts
    from calibrate.pair.resolve import PROMPTS
    from calibrate.pair.tokenizer import encode
    from calibrate.pair.train import encode_streams

    work.mkdir(parents=True, exist_ok=True)
    tokenizer, model = load_tokenizer(folder), load_model(folder)
    texts = encode_streams(tokenizer, of_split(collect(), "train"), seed=SEED)
    heads = train_heads(
        kind,
        model,
        texts,
        work / f"{kind.name}.pt",
        training,
        report=lambda s: progress(s.progress, f"step {s.step}, loss {s.loss:.3f}"),
    )
    kind.save(heads, int(model.config.num_hidden_layers), folder)
    prompts = [encode(tokenizer, row["turns"][0]) for row in read_prompts(PROMPTS["heldout"])]
    found = [r for sampled in (False, True) for r in kind.measure(model, heads, prompts, sampled=sampled)]
    text = to_json([asdict(r) for r in found], indent=2) + "\n"
    (folder / f"{kind.name}.json").write_text(text, encoding="utf-8")
    return found


def written(
    model: Any, prompts: Sequence[Sequence[int]], *, sampled: bool, output: int
) -> list[tuple[torch.Tensor, int, torch.Tensor]]:
    """What a model writes after prompts of token ids.

    Args:
        model: Writes.
        prompts: Token ids.
        sampled: Sample at temperature 1 instead of decoding greedily.
        output: Tokens per prompt.

    Returns:
        Batches of (texts [rows, length], where the model's part begins, what of it counts [rows, output]).
    """
    import torch

    from calibrate.pair.generate import continue_batch

    batches = []
    for length in sorted({len(prompt) for prompt in prompts}):
        alike = [list(prompt) for prompt in prompts if len(prompt) == length]
        for group in (alike[i : i + _GROUP] for i in range(0, len(alike), _GROUP)):
            rows = torch.tensor(group)
            new = continue_batch(model, rows, output, sampled_rows=len(group) if sampled else 0)
            ended = (new == 0).cumsum(1) - (new == 0).long()  # ends before a position
            live = ended == 0
            batches.append((torch.cat([rows, new], dim=1), length, live))
    return batches
