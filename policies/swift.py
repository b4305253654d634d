"""SWIFT (Xia et al. 2025): the target drafts for itself, without some of its layers.

A layer adds little to what the ones before it found, most of the time: the others alone, with the target's
embedding, norm and head, say a likely next token.  No second model, no training; the keys and values of the
text are the target's own, and the verification, over all layers, writes those of the drafted tokens anew.

Tokens are the short model's first choices at every temperature: none is drawn, so that a verification accepts
a token with its probability under the target, which is lossless (`TokenTree`).  A chain ends where the short
model is less sure than `least_confidence`, as there (its bound is 0.8).

Where it differs from the authors' code: which layers are skipped is the same for all text, every n-th one of
those between the first and the last; there a search over attention and feed-forward parts, which goes on
while the text is written, keeps what agreed best with the text so far.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from policies.config import DECISIONS, Knob, LookaheadConfig, PolicyInfo
from policies.gated import LeastConfidence
from policies.operation import RowOperation
from policies.protocols import Event, Steps, World
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling
from policies.tokentree import Path, TokenTree, TreeDrafted, tree_of, tree_rounds
from policies.values import View


@dataclass(frozen=True, slots=True)
class SwiftConfig(LookaheadConfig):
    """Knobs of `swift`; K is the most that is drafted."""

    policy: ClassVar[str] = "swift"
    skip_every: Annotated[int, Knob("Leave out every so manieth layer while drafting.", least=1, most=64)] = 2
    least_confidence: LeastConfidence = 0.1


@dataclass(frozen=True, slots=True)
class DraftSkipping(RowOperation, cost_class="draft", reply=TreeDrafted):
    """Draft a chain per row with a part of the target's layers.  `inputs`: nothing.

    The reply's steps are `head:s`, s being the share of the target's weights that a step reads; in a world of
    coins 1 - 1/n, as of a deep model without every n-th layer.
    """

    inputs: tuple[Path, ...]
    lookahead: int = 4
    every: int = 2
    least: float = 0.1


def layers_kept(count: int, every: int) -> tuple[int, ...]:
    """The layers that draft: all but every so manieth of those between the first and the last."""
    return tuple(at for at in range(count) if at in (0, count - 1) or at % every)


def swift(world: World, rows: Rows, config: SwiftConfig, sampling: Sampling = GREEDY) -> Steps:
    """Draft without some layers while sure, verify with all, repeat; all on the target's device."""

    def draft(view: View, unseen: tuple[Path, ...]) -> Generator[Event, Any, list[TokenTree]]:
        knobs: dict[str, Any] = {"every": config.skip_every, "least": config.least_confidence}
        nothing = ((),) * len(unseen)
        ask = DraftSkipping(view, rows.width, nothing, sampling, lookahead=config.lookahead, **knobs)
        drafted = yield world.target.submit(ask)
        return [tree_of(drafted[slot]) for slot in view.slots]

    return tree_rounds(world, rows, sampling, draft)


INFO = PolicyInfo(
    config=SwiftConfig,
    run=swift,
    paper="Xia et al. 2025 (SWIFT)",
    predicts="nobody",
    drafts="autoregressive, by a part of the target's layers, while it is sure",
    on_miss="-",
    verifies="chain",
    order=2.7,
    replay=DECISIONS,
    needs_draft=False,
    collocated=True,
    colour="#4aa3c7",
    variants=({"lookahead": 2}, {"skip_every": 3, "least_confidence": 0.3}),
)
