"""PEARL (Liu et al. 2025): draft the next block on the bet that all of this one is accepted.

In this paper family's terms PEARL is a speculation cache with a single entry, the full acceptance
followed by the draft's own next token.  A miss leaves nothing to verify, so the target decodes one
token while the draft makes a new block: that plain decode is PEARL's *pre-verify* (it checks the
block's first token), a round with pending tokens its *post-verify* (it checks the rest of the block and
the first token of the next).

With sampled drafts that check is a verification like any other: the token goes on with probability
min(1, p/q), so that a run continues past a block with probability sum min(p, q).  The target chooses the
bonus token after the draft's block is there, with a `Settle`.  A greedy draft's token goes on if and
only if the target samples it, which needs no second look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from policies.config import (
    MAX_LOOKAHEAD,
    DraftSampling,
    LawInputs,
    LawValue,
    LookaheadConfig,
    LookaheadRule,
    PolicyInfo,
)
from policies.laws.double import pearl_speedup, psd_ceiling
from policies.operation import Continue, Settle, Verify
from policies.protocols import Cache, Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.values import Speculation


@dataclass(frozen=True, slots=True)
class PearlConfig(LookaheadConfig):
    """Knobs of `pearl`.

    Attributes:
        lookahead: K, drafted tokens per block.
        draft_sampling: How the draft chooses.
    """

    policy: ClassVar[str] = "pearl"
    lookahead_rule: ClassVar[LookaheadRule] = "balanced"
    draft_sampling: DraftSampling = "sampled"

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """PEARL's speedup with pre-verification, for one row."""
        statement = "S_PEARL under double.thm3"
        a, k, t_draft = inputs.acceptance, self.lookahead, inputs.t_draft
        ratio = 1.0 / t_draft if t_draft > 0.0 else math.inf
        ceiling = psd_ceiling(ratio) if t_draft > 0.0 else None
        if batch > 1:
            return LawValue(statement, reason="the papers give no law for PEARL in batches", ceiling=ceiling)
        # Rounds last 1 or what a block takes to draft, so that the speedup at C = K is the tokens per round.
        per_round = pearl_speedup(a, k, float(k))
        # A miss is followed by a plain decode (hit with a), a hit by a block (hit with a^k).
        hits = a / (1.0 + a - a**k) if a < 1.0 else 1.0
        return LawValue(statement, per_round / max(1.0, k / ratio), per_round, hits, ceiling=ceiling)

    @property
    def longest_run(self) -> int:
        """Runs go on from block to block."""
        return MAX_LOOKAHEAD

    @property
    def draft_ahead(self) -> int:
        """The draft goes on past a pending block."""
        return 2 * self.lookahead


def pearl(world: World, rows: Rows, config: PearlConfig, sampling: Sampling = GREEDY) -> Steps:
    """Verify the pending block while drafting K tokens past its end."""
    pending = Speculation.empty(rows.width)
    rows.log.runs_on = True
    open_end = sampling.draft_sampled
    while rows.active:
        fresh = yield from admit(world, rows)
        if fresh:  # who sat there before may have been preempted
            pending = pending.merge(Speculation.empty(rows.width), fresh)
        view = rows.view()
        verify = world.target.submit(Verify(view, pending, sampling, leave_open=open_end))
        draft = world.draft.submit(Continue(view, pending, config.lookahead, sampling))
        verdict = yield verify
        cache: Cache = yield draft
        if open_end:
            settle = Settle(view, verdict, pending, cache.opening(), sampling)
            verdict = yield world.target.submit(settle)
        hits = cache.lookup(verdict)
        rows.commit(view, pending, verdict, hits=hits, now=world.now)
        pending = cache.take(verdict, hits)


INFO = PolicyInfo(
    config=PearlConfig,
    run=pearl,
    paper="Liu et al. 2025 (PEARL)",
    predicts="all accepted",
    drafts="autoregressive, past the block",
    on_miss="plain decode",
    verifies="chain",
    order=5,
    colour="#8172b3",
    variants=({"lookahead": 2}, {"lookahead": 5}),
)
