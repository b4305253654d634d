"""Lookahead streams of the pair's draft, trained on its corpus with the draft frozen (Mirror-SD, sec. 3.2).

The objective is the future n-gram of speculative streaming: after every token of a text, stream j predicts
the token j places after the next one.  What its proposal has to meet is the draft's own choice there, so that
the loss is the cross entropy with the draft's law at that place rather than with the text's token alone.  The
next token itself is the main stream's, which is the draft and does not learn.

What they are worth is measured on what the draft writes after held-out prompts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrate.pair.exits import written
from calibrate.pair.train import Plan, Report, Streams

if TYPE_CHECKING:
    import torch

    from calibrate.live.streams import StreamHeads

STREAMS = 3
"""S: the most that the paper names (Figure 6b)."""
OUTPUT = 96
STEPS = 600
RATE = 1e-3
WINDOW = 160
REPORT = "streams.json"


@dataclass(frozen=True)
class StreamReport:
    """One stream on held-out prompts, over what the draft itself writes.

    Attributes:
        stream: j; it predicts the token j places after the next one.
        sampled: Whether the texts were sampled at temperature 1, else decoded greedily.
        positions: Positions measured.
        agreement: Share at which its first choice is the token that the draft wrote there.
        run: Share at which those of all streams up to this one are: of the steps whose streams all get a
            token, the share that emits more than j of them.
        mass: Mean mass that it puts on that token.
    """

    stream: int
    sampled: bool
    positions: int
    agreement: float
    run: float
    mass: float


def stream_logits(draft: Any, heads: StreamHeads, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What draft and streams say of texts: [rows, n, V] and [rows, n, S, V] logits.

    Args:
        draft: The model, frozen.
        heads: Its streams.
        batch: [rows, n] tokens.
    """
    import torch

    from calibrate.live.streams import stream_part, stream_positions, stream_sight

    rows, count = batch.shape
    places = np.arange(count)
    causal = (places > places[:, None])[None]
    sight = torch.from_numpy(stream_sight(causal, np.array([count]), heads.streams))
    mask = torch.zeros(sight.shape).masked_fill_(sight, torch.finfo(torch.float32).min)[:, None]
    with torch.no_grad():
        out = draft(input_ids=batch, use_cache=True, output_hidden_states=True)
    states = heads.entering(out.hidden_states[-2], heads.streams)
    logits = stream_part(draft, heads)(
        input_ids=states,
        attention_mask=mask.expand(rows, -1, -1, -1),
        position_ids=torch.from_numpy(stream_positions(places[None], heads.streams)).expand(rows, -1),
        past_key_values=out.past_key_values,
        use_cache=True,
    ).logits
    return out.logits, logits.view(rows, count, heads.streams, -1)


def stream_loss(draft: Any, heads: StreamHeads, batch: torch.Tensor) -> torch.Tensor:
    """Mean over streams of the cross entropy with the draft's law where the stream predicts, in nats."""
    import torch

    own, streamed = stream_logits(draft, heads, batch)
    losses = []
    for j in range(1, heads.streams + 1):
        law = own[:, j:].softmax(-1)
        guess = streamed[:, : own.shape[1] - j, j - 1].log_softmax(-1)
        losses.append(-(law * guess).sum(-1).mean())
    return torch.stack(losses).mean()


def train_streams(
    draft: Any,
    texts: Streams,
    checkpoint: Path,
    report: Report,
    *,
    streams: int = STREAMS,
    steps: int = STEPS,
    minutes: float | None = None,
    rows: int = 8,
    window: int = WINDOW,
    seed: int = 0,
) -> StreamHeads:
    """Streams of `draft`, whose own weights stay as they are.

    Args:
        draft: The model, in single precision.
        texts: What it reads.
        checkpoint: File to resume from and to write every minute.
        report: Called after every step.
        streams: S.
        steps: Most steps.
        minutes: Most minutes.
        rows: Windows per step.
        window: Tokens of each.
        seed: Of the initial embeddings.
    """
    import torch

    from calibrate.live.streams import StreamHeads
    from calibrate.pair.train import fit

    torch.manual_seed(seed)
    draft.requires_grad_(False)
    heads = StreamHeads(draft, streams)

    def loss(step: int) -> torch.Tensor:
        return stream_loss(draft, heads, texts.batch(7_000_000 + step, rows=rows, window=window))

    plan = Plan(steps=steps, learning_rate=RATE, minutes=minutes, weight_decay=0.0)
    fit(heads, loss, plan, checkpoint, report)
    return heads


def measure_streams(
    draft: Any, heads: StreamHeads, prompts: Sequence[Sequence[int]], *, sampled: bool, output: int = OUTPUT
) -> list[StreamReport]:
    """How often each stream says what the draft writes.

    Args:
        draft: The model.
        heads: Its streams.
        prompts: Token ids.
        sampled: Sample the texts at temperature 1 instead of decoding greedily.
        output: Tokens per prompt.
    """
    import torch

    streams, positions = heads.streams, 0
    sums = torch.zeros(3, streams, dtype=torch.float64)
    for tokens, start, live in written(draft, prompts, sampled=sampled, output=output):
        with torch.no_grad():
            _, streamed = stream_logits(draft, heads, tokens)
        places = torch.arange(start - 1, tokens.shape[1] - 1 - streams)
        ahead = places[:, None] + 2 + torch.arange(streams)  # what stream j of a place predicts
        kept = live[:, ahead[:, -1] - start]
        found, right = streamed[:, places][kept], tokens[:, ahead][kept]
        met = found.argmax(-1) == right
        mass = found.softmax(-1).gather(-1, right[..., None])[..., 0]
        sums += torch.stack([met.double().sum(0), met.double().cumprod(-1).sum(0), mass.double().sum(0)])
        positions += len(met)
    means = (sums / positions).tolist()
    return [
        StreamReport(j + 1, sampled, positions, *(round(row[j], 4) for row in means)) for j in range(streams)
    ]


def build_streams(
    folder: Path,
    work: Path,
    *,
    streams: int = STREAMS,
    steps: int = STEPS,
    minutes: float | None = None,
    seed: int = 0,
    progress: Callable[[float, str], None] = lambda done, note: None,
) -> list[StreamReport]:
    """Train the streams of the draft in `folder` on the corpus and write them and their report beside it.

    Args:
        folder: A draft with its tokenizer, as `pair build` writes it.
        work: Folder of the checkpoint; a second call with it goes on.
        streams: S.
        steps: Most steps.
        minutes: Most minutes of training.
        seed: Of the initial embeddings.
        progress: Called with the share done and a note.
    """
    from calibrate.live.streams import save_streams
    from calibrate.pair.build import SEED
    from calibrate.pair.corpus import collect, of_split
    from calibrate.pair.prompts import read_prompts
    from calibrate.pair.resolve import PROMPTS
    from calibrate.pair.shapes import load_model
    from calibrate.pair.tokenizer import encode, load_tokenizer
    from calibrate.pair.train import encode_streams

    work.mkdir(parents=True, exist_ok=True)
    tokenizer, draft = load_tokenizer(folder), load_model(folder)
    texts = encode_streams(tokenizer, of_split(collect(), "train"), seed=SEED)
    heads = train_streams(
        draft,
        texts,
        work / "streams.pt",
        lambda s: progress(s.progress, f"step {s.step}, loss {s.loss:.3f}"),
        streams=streams,
        steps=steps,
        minutes=minutes,
        seed=seed,
    )
    save_streams(heads, int(draft.config.num_hidden_layers), folder)
    prompts = [encode(tokenizer, row["turns"][0]) for row in read_prompts(PROMPTS["heldout"])]
    found = [r for sampled in (False, True) for r in measure_streams(draft, heads, prompts, sampled=sampled)]
    (folder / REPORT).write_text(json.dumps([asdict(r) for r in found], indent=2) + "\n", encoding="utf-8")
    return found
