"""Lookahead streams of the pair's draft, trained on its corpus with the draft frozen (Mirror-SD, sec. 3.2).

The objective is the future n-gram of speculative streaming: after every token of a text, stream j predicts
the token j places after the next one.  What its proposal has to meet is the draft's own choice there, so that
the loss is the cross entropy with the draft's law at that place rather than with the text's token alone.  The
next token itself is the main stream's, which is the draft and does not learn.

What they are worth is measured on what the draft writes after held-out prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrate.pair.heads import OUTPUT, HeadKind, written

if TYPE_CHECKING:
    import torch

    from calibrate.live.streams import StreamHeads


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


def stream_kind(streams: int) -> HeadKind[StreamHeads, StreamReport]:
    """How streams are trained, measured and kept.

    A window is shorter than a target's: each of its tokens is fed once more per stream.

    Args:
        streams: S; 3 is the most that the paper names (Figure 6b).
    """
    from calibrate.live.streams import StreamHeads, save_streams

    def make(draft: Any) -> StreamHeads:
        return StreamHeads(draft, streams)

    return HeadKind("streams", 1e-3, 7_000_000, 160, make, stream_loss, save_streams, measure_streams)


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
