"""The loop fix: sequence-level unlikelihood on the model's own greedy continuations.

Welleck et al., "Neural text generation with unlikelihood training" (2019), section 5.2: let the
model write, and lower the probability of the tokens with which it repeated itself. Here these are
the tokens of loops and of long repeated n-grams (`calibrate.pair.loops`), not of 4-grams as in the
paper: source code repeats short n-grams for good reasons. Cross entropy on ordinary text goes on
beside it, which keeps the quality. The change is in the weights; decoding stays plain argmax.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from calibrate.pair.generate import CONTINUATION, PROMPT, continue_batch, training_prompts
from calibrate.pair.loops import repetition_mask, until_end
from calibrate.pair.train import Loss, Streams, cross_entropy, logits_of

if TYPE_CHECKING:
    import torch

_ROUND_STEPS = 4
_ROUND_PROMPTS = 48
_ROWS = 6
# Real text repeats up to a tenth of its 8-grams; what repeats little more than that is left alone.
_TOLERATED = 0.15


def unlikelihood(logits: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of ``-log(1 - p(token))`` over the masked tokens.

    Args:
        logits: ``(rows, window, vocabulary)``; position ``i`` predicts token ``i + 1``.
        tokens: ``(rows, window)``.
        mask: ``(rows, window)``, True at the tokens to make less likely.
    """
    import torch

    log_p = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    penalty = -torch.log1p(-log_p.exp().clamp(max=1.0 - 1e-5))
    chosen = mask[:, 1:]
    return (penalty * chosen).sum() / chosen.sum().clamp(min=1)


class LoopFix:
    """The loss of the loop fix: every few steps the model writes, its repetitions are penalised."""

    def __init__(self, model: Any, streams: Streams, *, weight: float, spared: Collection[str]) -> None:
        """Penalise what ``model`` repeats, beside its loss on ``streams``.

        Args:
            model: a causal language model, which is trained.
            streams: the training text, whose prompts the model continues.
            weight: of the penalty, cross entropy having 1.
            spared: categories in which exact loops are penalised, but no repeated n-grams: the
                lines of a table are alike by nature.
        """
        self._model, self._streams, self._weight, self._spared = model, streams, weight, spared
        self._round = -1
        self._written: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.repeating_share = 0.0

    def __call__(self, step: int) -> torch.Tensor:
        """Cross entropy on text plus the weighted penalty on this round's repetitions."""
        if step // _ROUND_STEPS != self._round:
            self._round = step // _ROUND_STEPS
            self._write()
        # An offset, so that the text is not that of the first steps of the first stage again.
        batch = self._streams.batch(1_000_000 + step)
        loss = cross_entropy(logits_of(self._model, batch), batch)
        if not self._written:
            return loss
        tokens, mask = self._rows(step % _ROUND_STEPS)
        return loss + self._weight * unlikelihood(logits_of(self._model, tokens), tokens, mask)

    def _write(self) -> None:
        """Let the model continue training prompts, and keep what repeats itself."""
        import torch

        prompts = training_prompts(self._streams, self._round, rows=_ROUND_PROMPTS)
        written = continue_batch(self._model, prompts, CONTINUATION)
        self._written = []
        names = list(self._streams.tokens)  # the categories that the prompts take in turn
        for row, (prompt, continuation) in enumerate(zip(prompts, written, strict=True)):
            size = None if names[row % len(names)] in self._spared else 8
            mask = repetition_mask(until_end(continuation.tolist(), 0), size=size)
            if sum(mask) > _TOLERATED * len(mask):
                padded = [False] * PROMPT + mask + [False] * (CONTINUATION - len(mask))
                self._written.append((torch.cat([prompt, continuation]), torch.tensor(padded)))
        self.repeating_share = len(self._written) / _ROUND_PROMPTS

    def _rows(self, part: int) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        count = len(self._written)
        rows = [self._written[(part * _ROWS + i) % count] for i in range(min(_ROWS, count))]
        return torch.stack([t for t, _ in rows]), torch.stack([m for _, m in rows])


def loop_fix(model: Any, streams: Streams) -> Loss:
    """The loss of the first pass, which ends the loops at some cost in quality."""
    return LoopFix(model, streams, weight=1.0, spared=())


def recovery(model: Any, streams: Streams) -> Loss:
    """The loss of the second, short pass, which wins back what the first one cost in tables."""
    return LoopFix(model, streams, weight=0.5, spared=("tables",))
