"""How tokens are chosen: the target's law, the law that drafted tokens come from, and their randomness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

DraftMode: TypeAlias = Literal["sampled", "greedy"]
DRAFT_MODES: tuple[DraftMode, ...] = get_args(DraftMode)


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling setting of a run.

    Both laws are softmax(logits / temperature), cut to the smallest set of most likely tokens whose mass
    reaches `top_p` and renormalised: p of the target, q of the draft.  A drafted token comes from sigma:
    q itself, or q with its top F_k tokens multiplied by `scale` and renormalised (Saguaro sampling,
    `ssd.def13-14`), or the draft's first choice (`draft="greedy"`, what vLLM does by default).

    Attributes:
        temperature: 0 decodes greedily; the other fields but `seed` then change nothing.
        top_p: Mass kept, in (0, 1].
        draft: How the draft chooses its tokens at a temperature above 0.
        scale: Saguaro's C in [0, 1]; 1 is plain sampling.
        seed: Keys every draw.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    draft: DraftMode = "sampled"
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be at least 0, got {self.temperature:g}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p:g}")
        if not 0.0 <= self.scale <= 1.0:
            raise ValueError(f"the scale C must be between 0 and 1, got {self.scale:g}")
        if self.draft not in DRAFT_MODES:
            raise ValueError(f"unknown draft mode {self.draft!r}; modes: {', '.join(DRAFT_MODES)}")

    @property
    def greedy(self) -> bool:
        """Whether the target decodes greedily."""
        return self.temperature == 0.0

    @property
    def draft_sampled(self) -> bool:
        """Whether drafted tokens are random, so that verification needs the law they were drawn from."""
        return not self.greedy and self.draft == "sampled"


GREEDY = Sampling()
"""Greedy decoding by both models."""
