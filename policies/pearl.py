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

from policies.operations import Continue, Settle, Speculation, Verify
from policies.protocols import Cache, Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling


def pearl(world: World, rows: Rows, *, lookahead: int, sampling: Sampling = GREEDY) -> Steps:
    """Verify the pending block while drafting `lookahead` tokens past its end."""
    pending = Speculation.empty(rows.width)
    rows.log.runs_on = True
    open_end = sampling.draft_sampled
    while rows.active:
        yield from admit(world, rows)
        view = rows.view()
        verify = world.target.submit(Verify(view, pending, sampling, leave_open=open_end))
        draft = world.draft.submit(Continue(view, pending, lookahead, sampling))
        verdict = yield verify
        cache: Cache = yield draft
        if open_end:
            settle = Settle(view, verdict, pending, cache.opening(), sampling)
            verdict = yield world.target.submit(settle)
        hits = cache.lookup(verdict)
        rows.commit(view, pending, verdict, hits=hits, now=world.now)
        pending = cache.take(verdict, hits)
