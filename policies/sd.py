"""Vanilla speculative decoding (Leviathan et al. 2023; SSD paper, section 2.1): draft, then verify."""

from __future__ import annotations

import numpy as np

from policies.operations import Draft, Verify
from policies.protocols import Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling


def speculative(world: World, rows: Rows, *, lookahead: int, sampling: Sampling = GREEDY) -> Steps:
    """Draft `lookahead` tokens, verify them in one forward, repeat.

    Nobody predicts the outcome of a verification, so the devices take turns.
    """
    unseen = np.ones(rows.width, dtype=np.int64)
    while rows.active:
        fresh = yield from admit(world, rows)
        unseen[fresh] = 1
        view = rows.view()
        speculation = yield world.draft.submit(Draft(view, lookahead, unseen, sampling))
        verdict = yield world.target.submit(Verify(view, speculation, sampling))
        rows.commit(view, speculation, verdict, now=world.now)
        # The last drafted token was never fed to the draft; if it was accepted, two are unseen.
        unseen = np.where(verdict.accepted == speculation.lengths, 2, 1)
