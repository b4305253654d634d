"""SSD / Saguaro (`ssd` in the docs): while the target verifies, draft for the likely outcomes.

Rounds, caches and misses follow Algorithm 1 and section 4 of the paper.  Two readings differ between
the paper and its code; here, by name (design.md, section 7): only the missing rows are redrafted
(Corollary 16; the code redrafts all), and the first speculation of a request is a primary draft made
before its first round (Algorithm 1; in the code the first round is a miss).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from policies.operations import BoolArray, Draft, IntArray, Prespeculate, Source, Speculation, Verify
from policies.protocols import Cache, Steps, World
from policies.randomness import random_tokens
from policies.rows import Rows, admit

Backup: TypeAlias = Literal["primary", "plain", "random"]
BACKUPS: tuple[Backup, ...] = get_args(Backup)


def saguaro(
    world: World,
    rows: Rows,
    *,
    lookahead: int,
    fanout: tuple[int, ...],
    backup: Backup = "primary",
    seed: int = 0,
) -> Steps:
    """Verify and pre-speculate at the same time; on a miss fall back.

    Args:
        world: Devices.
        rows: The batch.
        lookahead: K, drafted tokens per speculation.
        fanout: F_0 ... F_K, cached outcomes per number of accepted tokens (definition 10).
        backup: What a missing row verifies next: `primary`, K tokens drafted by the draft model while
            the target waits; `plain`, nothing, so that its next round is a plain decode; `random`, K
            uniform tokens at no cost.
        seed: Keys the random tokens.
    """
    speculation = Speculation.empty(rows.width)
    while rows.active:
        fresh = yield from admit(world, rows)
        if fresh.any():
            speculation = yield from redraft(world, rows, speculation, fresh, lookahead)
        view = rows.view()
        verify = world.target.submit(Verify(view, speculation))
        prepare = world.draft.submit(Prespeculate(view, speculation, lookahead, fanout))
        verdict = yield verify
        cache: Cache = yield prepare  # a tree pass is not interruptible: hit or miss, the target waits
        hits = cache.lookup(verdict)
        rows.commit(view, speculation, verdict, hits=hits, now=world.now)
        speculation = cache.take(verdict, hits)
        misses = rows.alive & ~hits
        if misses.any():
            if backup == "primary":
                speculation = yield from redraft(world, rows, speculation, misses, lookahead)
            elif backup == "random":
                drawn = draw_random(rows, misses, lookahead, seed, world.vocabulary)
                speculation = speculation.merge(drawn, misses)


def redraft(world: World, rows: Rows, speculation: Speculation, chosen: BoolArray, lookahead: int) -> Steps:
    """Draft anew for the rows marked in `chosen` [B]; returns `speculation` with them filled in."""
    unseen: IntArray = np.ones(rows.width, dtype=np.int64)
    drafted = yield world.draft.submit(Draft(rows.view(chosen), lookahead, unseen))
    return speculation.merge(drafted, chosen)


def draw_random(rows: Rows, chosen: BoolArray, lookahead: int, seed: int, vocabulary: int) -> Speculation:
    """Uniform random tokens for the rows marked in `chosen` [B], the same in both worlds.

    Without token ids (`vocabulary` 0) the tokens stay unknown and are never accepted.
    """
    tokens = None
    if vocabulary:
        tokens = np.full((rows.width, lookahead), -1, dtype=np.int64)
        view = rows.view(chosen)
        for slot, request, position in zip(view.slots, view.requests, view.positions, strict=True):
            tokens[slot] = random_tokens(seed, int(request), int(position), lookahead, vocabulary)
    return Speculation(
        np.where(chosen, lookahead, 0),
        np.where(chosen, int(Source.RANDOM), int(Source.NONE)),
        tokens,
        has_random=True,
    )
