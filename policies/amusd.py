"""AMUSD (McDanel 2024): draft and verification run asynchronously, each on its own device.

The draft never waits; the target verifies whatever has been drafted by the time it is free.  A rejection
rolls the draft back.  One sequence.  See `policies.dsi.pipeline`: this is DSI with one server and blocks
as long as the clock makes them.

Where it differs from the authors' code: the draft is at most K tokens ahead of what is known (none is
given there); a draft step that a rejection made useless runs to its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.config import MAX_LOOKAHEAD, DraftSampling, LawInputs, LawValue, LookaheadConfig, PolicyInfo
from policies.dsi import pipeline
from policies.protocols import Steps, World
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling


@dataclass(frozen=True, slots=True)
class AmusdConfig(LookaheadConfig):
    """Knobs of `amusd`; the draft is up to K tokens ahead."""

    policy: ClassVar[str] = "amusd"
    draft_sampling: DraftSampling = "sampled"

    @property
    def longest_run(self) -> int:
        """Runs go on from block to block."""
        return MAX_LOOKAHEAD

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """None is given."""
        return LawValue("none", reason="the paper gives no law for AMUSD")


def amusd(world: World, rows: Rows, config: AmusdConfig, sampling: Sampling = GREEDY) -> Steps:
    """Verify what there is whenever the target is free."""
    servers, most = (world.target,), config.lookahead
    return pipeline(world, rows, sampling, servers=servers, block=1, most=most, plain=False)


INFO = PolicyInfo(
    config=AmusdConfig,
    run=amusd,
    paper="McDanel 2024 (AMUSD)",
    predicts='"all accepted"',
    drafts="autoregressive, as far as the clock lets it",
    on_miss="the rest is dropped",
    verifies="chain",
    order=5.4,
    worlds=("simulated",),
    colour="#c5a3e0",
)
