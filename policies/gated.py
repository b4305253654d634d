"""Vanilla speculation that drafts only as far as the draft is sure (adaptive lookahead), up to K tokens.

Before each token the draft looks at its own distribution q and stops where its confidence is below a bound
(`least_confidence`); a row that stops at once decodes plainly.  Two measures of it:

- `confidence`: the largest probability of q, as llama.cpp's `--draft-p-min` has it (Hugging Face's assisted
  generation stops after such a token in place of before it);
- `entropy`: 1 - sqrt(0.2 H(q)), the estimate from below of a token's acceptance by which AdaEDL (Agrawal et
  al. 2024) stops; its bound moves with recent acceptance there, and stays here.

Lossless: whether a position is drafted depends on the text before it alone, never on its own token.  What the
draft would be off the recorded path no trace tells, so that a replay takes a decision trace.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from policies.config import DECISIONS, DraftSampling, Knob, LookaheadConfig, PolicyConfig, PolicyInfo
from policies.operation import RowOperation
from policies.protocols import Event, Steps, World
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling
from policies.sd import SdConfig
from policies.tokentree import Path, TokenTree, TreeDrafted, tree_of, tree_rounds
from policies.values import View

Gate: TypeAlias = Literal["confidence", "entropy"]
LeastConfidence: TypeAlias = Annotated[
    float, Knob("Confidence below which no token is drafted, or kept.", least=0.0, most=1.0)
]


@dataclass(frozen=True, slots=True)
class GatedConfig(LookaheadConfig):
    """Knobs of `gated`; K is the most that is drafted."""

    policy: ClassVar[str] = "gated"
    draft_sampling: DraftSampling = "sampled"
    gate: Annotated[Gate, Knob("Measure of the draft's confidence.")] = "confidence"
    least_confidence: LeastConfidence = 0.1

    @property
    def content_ignored(self) -> PolicyConfig:
        """Vanilla speculation."""
        return SdConfig(self.lookahead)


@dataclass(frozen=True, slots=True)
class DraftGated(RowOperation, cost_class="draft", reply=TreeDrafted):
    """Draft a chain per row while the gate is open.  `inputs`: nothing, the cache tells what it lacks."""

    inputs: tuple[Path, ...]
    lookahead: int = 4
    gate: Gate = "confidence"
    least: float = 0.1


def gated_speculation(world: World, rows: Rows, config: GatedConfig, sampling: Sampling = GREEDY) -> Steps:
    """Draft while sure, verify, repeat; the devices take turns; rows that stop early wait for the others."""

    def draft(view: View, unseen: tuple[Path, ...]) -> Generator[Event, Any, list[TokenTree]]:
        knobs: dict[str, Any] = {"gate": config.gate, "least": config.least_confidence}
        nothing = ((),) * len(unseen)
        ask = DraftGated(view, rows.width, nothing, sampling, lookahead=config.lookahead, **knobs)
        drafted = yield world.draft.submit(ask)
        return [tree_of(drafted[slot]) for slot in view.slots]

    return tree_rounds(world, rows, sampling, draft, drafts=True)


INFO = PolicyInfo(
    config=GatedConfig,
    run=gated_speculation,
    paper="llama.cpp (--draft-p-min), AdaEDL (Agrawal et al. 2024)",
    predicts="nobody",
    drafts="autoregressive, while the draft is sure",
    on_miss="-",
    verifies="chain",
    order=2.5,
    replay=DECISIONS,
    collocated=True,
    colour="#2f6ab0",
    variants=({"lookahead": 6}, {"lookahead": 6, "gate": "entropy", "least_confidence": 0.2}),
)
