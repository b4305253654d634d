"""The plain draft/verify pipeline of `double.thm3`: nobody looks at a block's first token beforehand.

No engine here offers it, since PEARL is the same with a better use of the bubble; it is what the printed
S_PSD comes closest to.  A full block emits its g tokens without a bonus; after a rejection a new block is
drafted while the target waits.
"""

from __future__ import annotations

import numpy as np

from policies.operation import Continue, Draft, Verify
from policies.protocols import Steps, World
from policies.rows import Rows, admit
from policies.sampling import Sampling
from policies.values import Source, Speculation


def plain_pipeline(world: World, rows: Rows, *, lookahead: int, sampling: Sampling) -> Steps:
    """Verify a block of `lookahead` tokens while drafting the next one.

    One row only: rows that reject would have to wait for each other's bubbles.
    """
    unseen = np.ones(rows.width, dtype=np.int64)
    block = Speculation(
        np.full(rows.width, lookahead, dtype=np.int64),
        np.full(rows.width, int(Source.PRIMARY), dtype=np.int64),
    )
    drafted = False
    while rows.active:
        yield from admit(world, rows)
        view = rows.view()
        if not drafted:
            yield world.draft.submit(Draft(view, lookahead, unseen, sampling))
        verify = world.target.submit(Verify(view, block, sampling, leave_open=True))
        prepare = world.draft.submit(Continue(view, block, lookahead, sampling))
        verdict = yield verify
        yield prepare
        rows.commit(view, block, verdict, now=world.now)
        drafted = bool((verdict.accepted == block.lengths).all() and not verdict.ended.any())
