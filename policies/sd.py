"""Vanilla speculative decoding (Leviathan et al. 2023; SSD paper, section 2.1): draft, then verify."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.config import DraftSampling, LawInputs, LawValue, LookaheadConfig, PolicyInfo
from policies.laws.ssd import expected_tokens, sd_speedup
from policies.operation import Draft, Verify
from policies.protocols import Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling


@dataclass(frozen=True, slots=True)
class SdConfig(LookaheadConfig):
    """Knobs of `sd`.

    Attributes:
        lookahead: K, drafted tokens per round.
        draft_sampling: How the draft chooses.
    """

    policy: ClassVar[str] = "sd"
    draft_sampling: DraftSampling = "sampled"

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """Rounds of K draft steps and a verification, one after the other."""
        a, k = inputs.acceptance, self.lookahead
        return LawValue("double.thm1 + mirror.eq5", sd_speedup(a, k, inputs.t_draft), expected_tokens(a, k))


def speculative(world: World, rows: Rows, config: SdConfig, sampling: Sampling = GREEDY) -> Steps:
    """Draft K tokens, verify them in one forward, repeat.

    Nobody predicts the outcome of a verification, so the devices take turns.
    """
    unseen = (1,) * rows.width
    while rows.active:
        fresh = yield from admit(world, rows)
        if fresh:
            unseen = tuple([1 if slot in fresh else count for slot, count in enumerate(unseen)])
        view = rows.view()
        speculation = yield world.draft.submit(Draft(view, config.lookahead, unseen, sampling))
        verdict = yield world.target.submit(Verify(view, speculation, sampling))
        rows.commit(view, speculation, verdict, now=world.now)
        # The last drafted token was never fed to the draft; if it was accepted, two are unseen.
        outcomes = zip(verdict.accepted, speculation.lengths, strict=True)
        unseen = tuple([2 if accepted == length else 1 for accepted, length in outcomes])


INFO = PolicyInfo(
    config=SdConfig,
    run=speculative,
    paper="Leviathan et al. 2023; SSD sec. 2.1",
    predicts="nobody",
    drafts="autoregressive",
    on_miss="-",
    verifies="chain",
    order=2,
    collocated=True,
    aliases=("vanilla", "speculative", "draft_model", "draft-model", "standalone"),
    colour="#4c72b0",
    variants=({"lookahead": 1}, {"lookahead": 5}),
)
