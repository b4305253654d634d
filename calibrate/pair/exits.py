"""Early exits of the pair's target: trained on its corpus with the target frozen (Mirror-SD, appendix E.2).

All exits learn together; the loss is the mean over them of the cross entropy of the next token (eq. 15).
What they are worth is measured on what the target writes after held-out prompts, as `mirror.eq9` defines it:
Omega_kappa, the mass that the target puts on the exit's kappa likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibrate.pair.heads import OUTPUT, HeadKind, written
from calibrate.pair.train import WINDOW

if TYPE_CHECKING:
    import torch

    from calibrate.live.exits import ExitHeads

WIDTHS = (1, 2, 4, 8, 16)
"""Numbers kappa of candidates that the report is made for."""


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


def exit_kind() -> HeadKind[ExitHeads, ExitReport]:
    """How exits are trained, measured and kept: adapters of all exits of a target."""
    from calibrate.live.exits import ExitHeads, exit_layers, save_exits

    def make(target: Any) -> ExitHeads:
        return ExitHeads(int(target.config.hidden_size), exit_layers(int(target.config.num_hidden_layers)))

    return HeadKind("exits", 2e-3, 5_000_000, WINDOW, make, exit_losses, save_exits, measure_exits)


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
