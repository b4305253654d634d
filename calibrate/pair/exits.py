"""Early exits of the pair's target: trained on its corpus with the target frozen (Mirror-SD, appendix E.2).

All exits learn together; the loss is the mean over them of the cross entropy of the next token (eq. 15).
What they are worth is measured on what the target writes after held-out prompts, as `mirror.eq9` defines it:
Omega_kappa, the mass that the target puts on the exit's kappa likeliest tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.pair.train import Plan, Report, Streams

if TYPE_CHECKING:
    import torch

    from calibrate.live.exits import ExitHeads

WIDTHS = (1, 2, 4, 8, 16)
"""Numbers kappa of candidates that the report is made for."""
OUTPUT = 96
STEPS = 400
RATE = 2e-3
REPORT = "exits.json"
_GROUP = 8


@dataclass(frozen=True)
class ExitReport:
    """One exit on held-out prompts, over what the target itself writes.

    Attributes:
        layer: Layers before it.
        layers: Layers of the target.
        sampled: Whether the texts were sampled at temperature 1, else decoded greedily.
        positions: Positions measured.
        agreement: Share at which the exit's first choice is the target's.
        overlap: Omega_kappa, the target's mass on the exit's kappa likeliest tokens, by kappa: with greedy
            decoding the share of positions whose token is among them.
        ceiling: The same of a perfect exit: the target's mass on its own kappa likeliest (`mirror.prop2`).
    """

    layer: int
    layers: int
    sampled: bool
    positions: int
    agreement: float
    overlap: dict[int, float]
    ceiling: dict[int, float]


def exit_states(target: Any, tokens: torch.Tensor, layers: Sequence[int]) -> list[torch.Tensor]:
    """[rows, window, H] what leaves each of the layers, from one forward of the frozen target."""
    import torch

    with torch.no_grad():
        states = target(input_ids=tokens, use_cache=False, output_hidden_states=True).hidden_states
    return [states[layer] for layer in layers]


def exit_losses(target: Any, heads: ExitHeads, batch: torch.Tensor) -> torch.Tensor:
    """Mean over the exits of the cross entropy of the next token, in nats (`mirror.eq15`)."""
    import torch

    from calibrate.pair.train import cross_entropy

    states = exit_states(target, batch, heads.layers)
    losses = [
        cross_entropy(target.lm_head(heads.adapted(layer, state)), batch)
        for layer, state in zip(heads.layers, states, strict=True)
    ]
    return torch.stack(losses).mean()


def train_exits(
    target: Any,
    streams: Streams,
    checkpoint: Path,
    report: Report,
    *,
    steps: int = STEPS,
    minutes: float | None = None,
    rows: int = 8,
    seed: int = 0,
) -> ExitHeads:
    """Adapters of all exits of `target`, whose own weights stay as they are.

    Args:
        target: The model, in single precision.
        streams: What it reads.
        checkpoint: File to resume from and to write every minute.
        report: Called after every step.
        steps: Most steps.
        minutes: Most minutes.
        rows: Windows per step.
        seed: Of the initial weights.
    """
    import torch

    from calibrate.live.exits import ExitHeads, exit_layers
    from calibrate.pair.train import fit

    torch.manual_seed(seed)
    target.requires_grad_(False)
    heads = ExitHeads(int(target.config.hidden_size), exit_layers(int(target.config.num_hidden_layers)))

    def loss(step: int) -> torch.Tensor:
        return exit_losses(target, heads, streams.batch(5_000_000 + step, rows=rows))

    plan = Plan(steps=steps, learning_rate=RATE, minutes=minutes, weight_decay=0.0)
    fit(heads, loss, plan, checkpoint, report)
    return heads


def measure_exits(
    target: Any, heads: ExitHeads, prompts: Sequence[Sequence[int]], *, sampled: bool, output: int = OUTPUT
) -> list[ExitReport]:
    """What each exit knows of the target's next token, along what the target writes.

    Args:
        target: The model.
        heads: Its exits.
        prompts: Token ids.
        sampled: Sample the texts at temperature 1 instead of decoding greedily.
        output: Tokens per prompt.
    """
    import torch

    sums = torch.zeros(len(heads.layers), 1 + 2 * len(WIDTHS), dtype=torch.float64)
    positions = 0
    for tokens, start, live in written(target, prompts, sampled=sampled, output=output):
        with torch.no_grad():
            logits = target(input_ids=tokens, use_cache=False).logits[:, start - 1 : -1]
            law = _law(logits, sampled=sampled)[live]
            positions += len(law)
            for row, (layer, state) in enumerate(
                zip(heads.layers, exit_states(target, tokens, heads.layers), strict=True)
            ):
                proxy = target.lm_head(heads.adapted(layer, state[:, start - 1 : -1]))[live]
                sums[row] += _sums(law, proxy)
    return [
        _report(layer, int(target.config.num_hidden_layers), positions, sampled, (row / positions).tolist())
        for layer, row in zip(heads.layers, sums, strict=True)
    ]


def _law(logits: torch.Tensor, *, sampled: bool) -> torch.Tensor:
    """[..., V] the target's law: softmax, or one-hot where it decodes greedily."""
    from torch.nn import functional

    if sampled:
        return logits.double().softmax(-1)
    return functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()


def _sums(law: torch.Tensor, proxy: torch.Tensor) -> torch.Tensor:
    """Sums over positions [n, V]: agreement, then Omega and its ceiling for each width."""
    import torch

    most = max(WIDTHS)
    ranked = law.gather(-1, proxy.topk(most, dim=-1).indices).cumsum(-1).sum(0)
    best = law.topk(most, dim=-1).values.cumsum(-1).sum(0)
    agreed = (proxy.argmax(-1) == law.argmax(-1)).sum().double()[None]
    at = [width - 1 for width in WIDTHS]
    return torch.cat([agreed, ranked[at], best[at]])


def _report(layer: int, layers: int, positions: int, sampled: bool, means: list[float]) -> ExitReport:
    overlap = {width: round(mean, 4) for width, mean in zip(WIDTHS, means[1:], strict=False)}
    ceiling = {width: round(mean, 4) for width, mean in zip(WIDTHS, means[1 + len(WIDTHS) :], strict=True)}
    return ExitReport(layer, layers, sampled, positions, round(means[0], 4), overlap, ceiling)


def written(
    target: Any, prompts: Sequence[Sequence[int]], *, sampled: bool, output: int
) -> list[tuple[torch.Tensor, int, torch.Tensor]]:
    """Batches of (texts [rows, length], where the target's part begins, what of it counts [rows, output])."""
    import torch

    from calibrate.pair.generate import continue_batch

    batches = []
    for length in sorted({len(prompt) for prompt in prompts}):
        alike = [list(prompt) for prompt in prompts if len(prompt) == length]
        for group in (alike[i : i + _GROUP] for i in range(0, len(alike), _GROUP)):
            rows = torch.tensor(group)
            new = continue_batch(target, rows, output, sampled_rows=len(group) if sampled else 0)
            ended = (new == 0).cumsum(1) - (new == 0).long()  # ends before a position
            live = ended == 0
            batches.append((torch.cat([rows, new], dim=1), length, live))
    return batches


def build_exits(
    folder: Path,
    work: Path,
    *,
    steps: int = STEPS,
    minutes: float | None = None,
    seed: int = 0,
    progress: Callable[[float, str], None] = lambda done, note: None,
) -> list[ExitReport]:
    """Train the exits of the target in `folder` on the corpus and write them and their report beside it.

    Args:
        folder: A target with its tokenizer, as `pair build` writes it.
        work: Folder of the checkpoint; a second call with it goes on.
        steps: Most steps.
        minutes: Most minutes of training.
        seed: Of the initial weights.
        progress: Called with the share done and a note.
    """
    from calibrate.live.exits import save_exits
    from calibrate.pair.build import SEED
    from calibrate.pair.corpus import collect, of_split
    from calibrate.pair.prompts import read_prompts
    from calibrate.pair.resolve import PROMPTS
    from calibrate.pair.shapes import load_model
    from calibrate.pair.tokenizer import encode, load_tokenizer
    from calibrate.pair.train import encode_streams

    work.mkdir(parents=True, exist_ok=True)
    tokenizer, target = load_tokenizer(folder), load_model(folder)
    streams = encode_streams(tokenizer, of_split(collect(), "train"), seed=SEED)
    heads = train_exits(
        target,
        streams,
        work / "exits.pt",
        lambda s: progress(s.progress, f"step {s.step}, loss {s.loss:.3f}"),
        steps=steps,
        minutes=minutes,
        seed=seed,
    )
    save_exits(heads, int(target.config.num_hidden_layers), folder)
    prompts = [encode(tokenizer, row["turns"][0]) for row in read_prompts(PROMPTS["heldout"])]
    reports = [r for sampled in (False, True) for r in measure_exits(target, heads, prompts, sampled=sampled)]
    (folder / REPORT).write_text(json.dumps([asdict(r) for r in reports], indent=2) + "\n", encoding="utf-8")
    return reports
