"""SSD / Saguaro (`ssd` in the docs): while the target verifies, draft for the likely outcomes.

Rounds, caches and misses follow Algorithm 1 and section 4 of the paper.  Where the paper, its proofs and
its code read differently, each reading has a name (design.md, section 7):

| option | here by default | the other reading |
|---|---|---|
| `backup` | `primary`: the missing rows are redrafted (Corollary 16) | `primary-all`: the code redrafts every row, though it counts the hits |
| `first` | `primary`: a request's first speculation is drafted before its first round (Algorithm 1) | `backup`: it counts as a miss (the code) |
| `cache_set` | `others`: the rejected token is left out (A.3.1) | `top`: the draft's top F_k as it stands (proof of Theorem 15) |
| `stall` | `batch`: every row waits while missing rows are redrafted (Corollary 16) | `rows`: the missing rows alone sit out |
| `tree` | `whole`: hit or miss, the target waits for the tree pass (the code) | `abort`: a pass that no row hits is stopped at its next step (Theorem 7 as printed) |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from policies.guesses import at_random, from_text, guess, unknown_guess
from policies.operations import (
    BoolArray,
    Draft,
    IntArray,
    Prespeculate,
    Speculation,
    Verdict,
    Verify,
    View,
)
from policies.protocols import Cache, Event, Steps, Task, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling

Backup: TypeAlias = Literal["primary", "primary-all", "plain", "random", "ngram"]
BACKUPS: tuple[Backup, ...] = get_args(Backup)
Stall: TypeAlias = Literal["batch", "rows"]
STALLS: tuple[Stall, ...] = get_args(Stall)
First: TypeAlias = Literal["primary", "backup"]
FIRSTS: tuple[First, ...] = get_args(First)
CacheSet: TypeAlias = Literal["others", "top"]
CACHE_SETS: tuple[CacheSet, ...] = get_args(CacheSet)
Tree: TypeAlias = Literal["whole", "abort"]
TREES: tuple[Tree, ...] = get_args(Tree)


@dataclass(frozen=True, slots=True)
class SaguaroKnobs:
    """Knobs of `saguaro`.

    Attributes:
        lookahead: K, drafted tokens per speculation.
        fanout: F_0 ... F_K, cached outcomes per number of accepted tokens (definition 10), in rounds that
            verify the primary draft.
        fanout_backup: The same in rounds that verify a backup's tokens or none; None: as `fanout`.
        backup: What a missing row verifies next: `primary`, K tokens drafted by the draft model;
            `primary-all`, the same for all rows as soon as one missed; `plain`, nothing, so that its next
            round is a plain decode; `random`, K uniform tokens; `ngram`, what followed the same words
            earlier in the text (nothing if there is no such place).
        stall: Whether the batch or only the missing rows wait for a redraft.
        first: Whether a request's first speculation is a primary draft or the backup's.
        cache_set: Whether the rejected token is left out of the cached outcomes.
        tree: Whether a pre-speculation that no row hits is carried through or stopped.
        draft_devices: Devices that share the pre-speculation.
        sampling: How tokens are chosen.
    """

    lookahead: int
    fanout: tuple[int, ...]
    fanout_backup: tuple[int, ...] | None = None
    backup: Backup = "primary"
    stall: Stall = "batch"
    first: First = "primary"
    cache_set: CacheSet = "others"
    tree: Tree = "whole"
    draft_devices: int = 1
    sampling: Sampling = GREEDY

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Fan-outs that rescale drafted laws; None where nothing is rescaled."""
        rescaled = self.sampling.draft_sampled and self.sampling.scale < 1.0
        return self.fanout[: self.lookahead] if rescaled else None


def saguaro(world: World, rows: Rows, knobs: SaguaroKnobs) -> Steps:
    """Verify and pre-speculate at the same time; on a miss fall back."""
    speculation = Speculation.empty(rows.width)
    redrafting: Task | None = None  # of the rows that sit this round out
    absent: BoolArray = np.zeros(rows.width, dtype=np.bool_)
    while rows.active:
        fresh = yield from admit(world, rows)
        if fresh.any():
            backup = "primary" if knobs.first == "primary" else knobs.backup
            speculation = yield from fall_back(world, rows, speculation, fresh, knobs, backup=backup)
        view = rows.view(rows.alive & ~absent)
        verify = world.target.submit(Verify(view, speculation, knobs.sampling))
        prepares = prespeculate(world, view, speculation, knobs)
        verdict = yield verify
        if knobs.tree == "abort":
            announced = yield from join([prepare.mark for prepare in prepares])
            if not announced.lookup(verdict).any():
                for prepare in prepares:
                    prepare.stop()
        cache = yield from join(prepares)
        hits = cache.lookup(verdict)
        rows.commit(view, speculation, verdict, hits=hits, now=world.now)
        speculation = cache.take(verdict, hits)
        misses = rows.alive & ~hits & ~absent
        if redrafting is not None:  # served before the pre-speculation, so it has fired
            speculation = speculation.merge((yield redrafting), absent)
            redrafting, absent = None, np.zeros_like(absent)
        if misses.any():
            if knobs.backup == "primary" and knobs.stall == "rows" and (rows.alive & ~misses).any():
                redrafting, absent = redraft(world, rows, misses, knobs), misses
            else:
                speculation = yield from fall_back(
                    world, rows, speculation, misses, knobs, backup=knobs.backup
                )


def join(parts: Sequence[Event]) -> Generator[Event, Any, Cache]:
    """Waits for the caches of all parts; returns them as one."""
    caches: list[Cache] = []
    for part in parts:
        caches.append((yield part))  # noqa: PERF401 - a comprehension cannot yield
    return caches[0] if len(caches) == 1 else JoinedCache(caches)


def prespeculate(world: World, view: View, speculation: Speculation, knobs: SaguaroKnobs) -> list[Task]:
    """Submit each draft device's share of the pre-speculation."""
    count = knobs.draft_devices
    return [
        device.submit(
            Prespeculate(
                view,
                speculation,
                knobs.lookahead,
                knobs.fanout,
                knobs.fanout_backup,
                sampling=knobs.sampling,
                shape=knobs.shape,
                keep_rejected=knobs.cache_set == "top",
                announce=knobs.tree == "abort",
                part=(i, count),
            )
        )
        for i, device in enumerate(world.drafts[:count])
    ]


def fall_back(
    world: World,
    rows: Rows,
    speculation: Speculation,
    chosen: BoolArray,
    knobs: SaguaroKnobs,
    *,
    backup: Backup,
) -> Steps:
    """Returns `speculation` with the rows marked in `chosen` [B] filled in by `backup`."""
    if backup == "plain":
        return speculation
    if backup in {"primary", "primary-all"}:
        redrafted = rows.alive if backup == "primary-all" else chosen
        drafted = yield redraft(world, rows, redrafted, knobs)
        return speculation.merge(drafted, redrafted)
    if backup == "ngram":
        guessed = guess(rows, chosen, knobs.lookahead, from_text())
    elif world.vocabulary > 0:
        guessed = guess(rows, chosen, knobs.lookahead, at_random(knobs.sampling.seed, world.vocabulary))
    else:
        guessed = unknown_guess(chosen, knobs.lookahead)
    return speculation.merge(guessed, chosen)


def redraft(world: World, rows: Rows, chosen: BoolArray, knobs: SaguaroKnobs) -> Task:
    """Submit a primary draft of the rows marked in `chosen` [B]."""
    unseen: IntArray = np.ones(rows.width, dtype=np.int64)
    return world.draft.submit(Draft(rows.view(chosen), knobs.lookahead, unseen, knobs.sampling, knobs.shape))


class JoinedCache:
    """The union of caches that share no outcome (see `policies.protocols.Cache`).

    Args:
        parts: One cache per draft device, at least one.
    """

    def __init__(self, parts: Sequence[Cache]) -> None:
        self.parts = tuple(parts)

    def lookup(self, verdict: Verdict) -> BoolArray:
        """[B] whether any part holds each row's outcome."""
        found: BoolArray = np.any([part.lookup(verdict) for part in self.parts], axis=0)
        return found

    def take(self, verdict: Verdict, hits: BoolArray) -> Speculation:
        """The prepared speculation of the rows marked in `hits`, each from the part that holds it."""
        taken = Speculation.empty(len(hits))
        for part in self.parts:
            held = hits & part.lookup(verdict)
            taken = taken.merge(part.take(verdict, held), held)
        return taken

    def opening(self) -> Speculation:
        """The opening of the first part."""
        return self.parts[0].opening()
