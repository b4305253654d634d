"""Autoregressive decoding: the baseline of every speedup."""

from __future__ import annotations

from policies.operations import Speculation, Verify
from policies.protocols import Steps, World
from policies.rows import Rows, admit_target
from policies.sampling import GREEDY, Sampling


def autoregressive(world: World, rows: Rows, *, sampling: Sampling = GREEDY) -> Steps:
    """One target step per token; a verification of nothing."""
    nothing = Speculation.empty(rows.width)
    while rows.active:
        yield from admit_target(world, rows)
        view = rows.view()
        verdict = yield world.target.submit(Verify(view, nothing, sampling))
        rows.commit(view, nothing, verdict, now=world.now)
