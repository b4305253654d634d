"""Autoregressive decoding: the baseline of every speedup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.config import LawInputs, LawValue, PolicyConfig, PolicyInfo
from policies.operation import Verify
from policies.protocols import Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.values import Speculation


@dataclass(frozen=True, slots=True)
class ArConfig(PolicyConfig):
    """Plain decoding has no knobs."""

    policy: ClassVar[str] = "ar"
    plain: ClassVar[bool] = True

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """What all others are compared with."""
        return LawValue("-", 1.0, 1.0)

    @property
    def longest_run(self) -> int:
        """Nothing is drafted."""
        return 0


def autoregressive(world: World, rows: Rows, config: ArConfig, sampling: Sampling = GREEDY) -> Steps:
    """One target step per token; a verification of nothing."""
    nothing = Speculation.empty(rows.width)
    while rows.active:
        yield from admit(world, rows, drafts=False)
        view = rows.view()
        verdict = yield world.target.submit(Verify(view, nothing, sampling))
        rows.commit(view, nothing, verdict, now=world.now)


INFO = PolicyInfo(
    config=ArConfig,
    run=autoregressive,
    paper="baseline",
    predicts="nobody",
    drafts="-",
    on_miss="-",
    verifies="one token",
    order=1,
    needs_draft=False,
    collocated=True,
    aliases=("autoregressive",),
    colour="#777777",
)
