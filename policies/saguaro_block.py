"""SSD's speculation cache on a one-pass block draft, or on one that reads the target's states (EAGLE).

As `saguaro`: while the target verifies a block, the draft prepares blocks for likely outcomes of it,
`outcomes` after each number of accepted tokens; a row whose outcome is not among them is redrafted.  A glue
pass over the block ranks the outcomes; one more pass drafts the blocks of all of them (`passes`, "each": K
more, as an autoregressive EAGLE head takes).

A draft that reads the target's hidden states gets those of the round under way too late: what it prepares
stands on its own states in their place (SSD, appendix E), and is accepted less often than what it redrafts
after a miss.  In worlds of coins `ahead_acceptance` says how much less.  Live, blocks are drafted from the
text alone (`policies.block`), which is never late; EAGLE heads have no cache live.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from policies.block import DraftBlock, Passes
from policies.config import DECISIONS, DraftSampling, Knob, LawInputs, LawValue, LookaheadConfig, PolicyInfo
from policies.laws.ssd import expected_tokens, hit_rate, hit_rate_primary, ssd_speedup
from policies.operation import RowOperation, Work
from policies.protocols import Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.tokentree import TokenTree, VerifyTree, chain_of, commit_trees, tree_of
from policies.values import UNKNOWN, Drafted, Outcome, RowVerdict, Slots


@dataclass(frozen=True, slots=True)
class SaguaroBlockConfig(LookaheadConfig):
    """Knobs of `saguaro-block`."""

    policy: ClassVar[str] = "saguaro-block"
    draft_sampling: DraftSampling = "sampled"
    outcomes: Annotated[
        int, Knob("Outcomes prepared for after each number of accepted tokens (SSD's F).", least=1)
    ] = 3
    passes: Annotated[
        Passes, Knob("Passes of the draft: one for a block, or one for each token (EAGLE; worlds of coins).")
    ] = "one"
    ahead_acceptance: Annotated[
        float,
        Knob(
            "Acceptance of a token that was prepared, over that of a redrafted one (worlds of coins).",
            least=0.0,
            most=1.0,
        ),
    ] = 1.0

    @property
    def cached_tokens(self) -> int:
        """K tokens of each outcome."""
        return self.outcomes * (self.lookahead + 1) * self.lookahead

    @property
    def draft_ahead(self) -> int:
        """The block under verification and all that is prepared."""
        return self.lookahead + self.cached_tokens

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """Theorem 7, or Corollary 16 in batches: what is prepared takes a pass, and is accepted as it is."""
        statement = "ssd.thm7 + ssd.eq1" if batch == 1 else "ssd.cor16 + ssd.eq1"
        if inputs.exponent is None:
            return LawValue(statement, reason="no power law could be fitted to the hit curve")
        k, fanout = self.lookahead, (self.outcomes,) * (self.lookahead + 1)
        late, fresh = inputs.acceptance * self.ahead_acceptance, inputs.acceptance
        p_late, p_fresh = (hit_rate_primary(a, fanout, inputs.exponent, inputs.scale) for a in (late, fresh))
        try:
            hits = hit_rate(p_late, p_fresh)
        except ValueError as error:
            return LawValue(statement, reason=str(error))
        e_hit, e_miss = (expected_tokens(a, k) for a in (late, fresh))
        t_block = inputs.t_draft * (k if self.passes == "each" else 1)
        speedup = ssd_speedup(hits, e_hit, e_miss, t_block, t_block, batch=batch)
        return LawValue(statement, speedup, hits * e_hit + (1.0 - hits) * e_miss, hits)


class PreparedBlocks(NamedTuple):
    """Reply of `PrepareBlocks`.

    Attributes:
        entries: (accepted tokens, bonus token, tokens of the block, handle of its distributions) by outcome.
        work: `glue`, over the last committed token and the block under verification; then `tree`, over the
            tokens of all prepared blocks, or K times over one of each.
    """

    entries: tuple[tuple[int, int, tuple[int, ...], int], ...]
    work: Work

    def find(self, verdict: RowVerdict) -> TokenTree | None:
        """What is prepared for an outcome; None where it is not among the prepared ones."""
        outcome: Outcome = (verdict.accepted, verdict.bonus)
        found = (
            Drafted(tuple(tokens), handle) for *own, tokens, handle in self.entries if tuple(own) == outcome
        )
        return next((chain_of(*drafted) for drafted in found), None)


@dataclass(frozen=True, slots=True)
class PrepareBlocks(RowOperation, cost_class="prespeculate", reply=PreparedBlocks):
    """Draft blocks for likely outcomes of verifying `inputs`, a chain per row.

    After k accepted tokens these are the draft's `outcomes` best tokens, the rejected one left out.  What the
    draft keeps is the text and the chain.
    """

    inputs: tuple[TokenTree, ...]
    lookahead: int = 4
    outcomes: int = 3
    passes: Passes = "one"
    ahead_acceptance: float = 1.0


def saguaro_blocks(
    world: World, rows: Rows, config: SaguaroBlockConfig, sampling: Sampling = GREEDY
) -> Steps:
    """Verify a block and prepare the next ones at the same time; redraft the rows that miss."""
    knobs: dict[str, Any] = {"lookahead": config.lookahead, "passes": config.passes}
    ahead = {**knobs, "outcomes": config.outcomes, "ahead_acceptance": config.ahead_acceptance}

    def redraft(chosen: Slots) -> Steps:
        view = rows.view(chosen)
        # Of the text the draft has seen all but the last token, with the prompt or under verification.
        unseen = tuple([tail[-1:] for tail in view.tails or ((UNKNOWN,),) * len(view.slots)])
        asked = DraftBlock(view, rows.width, unseen, sampling, **knobs)
        drafted = yield world.draft.submit(asked)
        return {slot: tree_of(drafted[slot]) for slot in view.slots}

    blocks: dict[int, TokenTree] = {}
    while rows.active:
        if fresh := (yield from admit(world, rows)):
            blocks |= yield from redraft(fresh)
        view = rows.view()
        asked = tuple([blocks[slot] for slot in view.slots])
        verify = world.target.submit(VerifyTree(view, rows.width, asked, sampling))
        prepare = world.draft.submit(PrepareBlocks(view, rows.width, asked, sampling, **ahead))
        replies = yield verify
        prepared = yield prepare
        going_on = [slot for slot in view.slots if not replies[slot].verdict.ended]
        found = {slot: prepared[slot].find(replies[slot].verdict) for slot in going_on}
        blocks = {slot: block for slot, block in found.items() if block is not None}
        commit_trees(world, rows, view, asked, replies, hits=frozenset(blocks))
        if misses := rows.alive - blocks.keys():
            blocks |= yield from redraft(misses)


INFO = PolicyInfo(
    config=SaguaroBlockConfig,
    run=saguaro_blocks,
    paper="SSD / Saguaro, appendix E, on DFlash- or EAGLE-like drafts",
    predicts="draft's top F after k accepted",
    drafts="a block per outcome, all in one pass",
    on_miss="redraft missing rows",
    verifies="chain",
    order=6.5,
    replay=DECISIONS,
    aliases=("ssd-block", "saguaro-dflash", "ssd-eagle"),
    implied={"ssd-eagle": {"passes": "each"}},
    colour="#da8bc3",
    variants=({"lookahead": 4, "outcomes": 2},),
)
