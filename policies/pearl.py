"""PEARL (Liu et al. 2025): draft the next block on the bet that all of this one is accepted.

In this paper family's terms PEARL is a speculation cache with a single entry, the full acceptance
followed by the draft's own next token.  A miss leaves nothing to verify, so the target decodes one
token while the draft makes a new block: that plain decode is PEARL's *pre-verify* (it checks the
block's first token), a round with pending tokens its *post-verify* (it checks the rest of the block and
the first token of the next).
"""

from __future__ import annotations

from policies.operations import Continue, Speculation, Verify
from policies.protocols import Cache, Steps, World
from policies.rows import Rows, admit


def pearl(world: World, rows: Rows, *, lookahead: int) -> Steps:
    """Verify the pending block while drafting `lookahead` tokens past its end."""
    pending = Speculation.empty(rows.width)
    while rows.active:
        yield from admit(world, rows)
        view = rows.view()
        verify = world.target.submit(Verify(view, pending))
        draft = world.draft.submit(Continue(view, pending, lookahead))
        verdict = yield verify
        cache: Cache = yield draft
        hits = cache.lookup(verdict)
        rows.commit(view, pending, verdict, hits=hits, now=world.now)
        pending = cache.take(verdict, hits)
