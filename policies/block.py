"""One-pass block drafts (DFlash, P-EAGLE, PARD): one forward of the draft proposes K tokens, a chain.

The forward reads what the draft has not seen of the text, then K - 1 masks, each of which sees what stands
before it; the last token of the text and the masks say one token each.  Tokens of a block do not see each
other: the distribution of each depends on the text before the block alone, so that it is kept, and
verification is lossless at any temperature.

Live, any draft model runs so; one that was trained for it (`calibrate pair block`, `pair:block`) says more
than the first token.  Where this differs from its authors' code: DFlash is a head of five layers that sees
the target's hidden states, and the masks see each other; P-EAGLE's one layer reads hidden states, too; PARD,
of the three the nearest, drafts from the text alone, and drops out masks in training.

What a draft says within a block no path recorded by plain decoding tells, so that a replay takes a decision
trace.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from policies.config import DECISIONS, DraftSampling, LawInputs, LawValue, LookaheadConfig, PolicyInfo
from policies.laws.ssd import expected_tokens, sd_speedup
from policies.operation import RowOperation
from policies.protocols import Event, Steps, World
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling
from policies.tokentree import Path, TokenTree, TreeDrafted, tree_of, tree_rounds
from policies.values import View

Passes: TypeAlias = Literal["one", "each"]
"""Passes of the draft: one for a block, or one for each token."""


@dataclass(frozen=True, slots=True)
class BlockConfig(LookaheadConfig):
    """Knobs of `block`."""

    policy: ClassVar[str] = "block"
    draft_sampling: DraftSampling = "sampled"

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """Rounds of one draft step and a verification: SD's law with K t in place of t."""
        a, k = inputs.acceptance, self.lookahead
        return LawValue(
            "double.thm1 + mirror.eq5", sd_speedup(a, k, inputs.t_draft / k), expected_tokens(a, k)
        )


@dataclass(frozen=True, slots=True)
class DraftBlock(RowOperation, cost_class="draft", reply=TreeDrafted):
    """Draft a chain of K tokens per row, in one pass.

    `inputs`: tokens of the committed text that the draft has not seen, at least one.  Masks leave nothing in
    its cache.  The reply's steps: `feed`, over these tokens and K - 1 masks; with a pass for each token
    (`passes` is "each", in worlds of coins alone) `feed`, then K - 1 times `draft`.
    """

    inputs: tuple[Path, ...]
    lookahead: int = 4
    passes: Passes = "one"


def block_speculation(world: World, rows: Rows, config: BlockConfig, sampling: Sampling = GREEDY) -> Steps:
    """Draft a block in one pass, verify it in one forward, repeat; the devices take turns."""

    def draft(view: View, unseen: tuple[Path, ...]) -> Generator[Event, Any, list[TokenTree]]:
        asked = DraftBlock(view, rows.width, unseen, sampling, lookahead=config.lookahead)
        drafted = yield world.draft.submit(asked)
        return [tree_of(drafted[slot]) for slot in view.slots]

    return tree_rounds(world, rows, sampling, draft, drafts=True)


INFO = PolicyInfo(
    config=BlockConfig,
    run=block_speculation,
    paper="DFlash (Chen et al. 2026), P-EAGLE, PARD (An et al. 2025)",
    predicts="nobody",
    drafts="a block in one pass",
    on_miss="-",
    verifies="chain",
    order=2.7,
    replay=DECISIONS,
    collocated=True,
    aliases=("dflash", "p-eagle", "peagle", "pard"),
    colour="#8172b3",
    variants=({"lookahead": 1}, {"lookahead": 4}),
)
