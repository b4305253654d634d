"""Mirror-SD: the target's early exit says in mid-forward what may come, and the draft prepares for it.

    target   |-- layers up to the exit --|-- the layers after it --|
                                         | mark: top-kappa tokens
    draft                                |-- rollout of all candidates --|

One target forward per round.  If the tokens that the verification emits are a path of the rollouts, the next
window is what was drafted below it; a row for which they are not drafts its window anew, while all rows wait
(the paper's "fresh rollout", its fallback).  `policies.exits` has the operations and the rule of reuse.

A rollout costs one glue step more than a draft, since the draft has not seen the last of the window's tokens,
nor any of them after a window that came out of a branch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.exits import (
    BY_BATCH,
    DEFAULT_EXIT,
    DEFAULT_KAPPA,
    EarlyVerify,
    Exit,
    Overlap,
    Plan,
    Reading,
    Rollout,
    Rule,
    reuse,
    speculation_of,
    window_of,
)
from policies.info import DECISIONS, PolicyInfo
from policies.operations import BoolArray, Draft, IntArray, Speculation, View
from policies.protocols import Steps, Task, World
from policies.rows import Rows, admit
from policies.rowwise import RowAnswers, verdict_of
from policies.sampling import GREEDY, Sampling
from policies.settings import Settings

_SCHEDULE = ((8, 8), (16, 4), (32, 2))
_WIDE = 1


def scheduled_kappa(batch: int) -> int:
    """Candidates per position at a batch size: 8 up to batch 8, 4 at 16, 2 at 32, 1 from 64 (`mirror.sched`).

    The paper defines 1, 8, 16, 32 and from 64 on; a size between two of them takes the smaller number, that
    of the larger batch.

    Raises:
        ValueError: `batch` below 1.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    return next((kappa for most, kappa in _SCHEDULE if batch <= most), _WIDE)


@dataclass(frozen=True, slots=True)
class MirrorKnobs:
    """Knobs of `mirror`.

    Attributes:
        lookahead: gamma, drafted tokens per window.
        kappa: Candidates per position; `BY_BATCH`: by the paper's schedule.
        exit: Which early exit speaks.
        candidates: At which positions candidates stand.
        rule: How sampled tokens are accepted.
        overlap: Whether the rollout starts at the mark or, to see what the overlap is worth, after the
            verification.
        sampling: How tokens are chosen.
    """

    lookahead: int
    kappa: int = DEFAULT_KAPPA
    exit: Exit = DEFAULT_EXIT
    candidates: Reading = "each"
    rule: Rule = "speculative"
    overlap: Overlap = "on"
    sampling: Sampling = GREEDY

    def kappa_at(self, batch: int) -> int:
        """Candidates per position at a batch size."""
        return scheduled_kappa(batch) if self.kappa == BY_BATCH else self.kappa


def mirror(world: World, rows: Rows, knobs: MirrorKnobs) -> Steps:
    """Verify, roll out from the early exit's candidates meanwhile, reuse what fits, else draft anew."""
    speculation = Speculation.empty(rows.width)
    while rows.active:
        fresh = yield from admit(world, rows)
        if fresh.any():
            speculation = speculation.merge((yield draft_anew(world, rows, fresh, knobs)), fresh)
        view = rows.view()
        verify = verify_early(world, rows, view, speculation, knobs)
        if knobs.overlap == "off":
            yield verify
        candidates = yield verify.mark
        rollout = roll_out(world, view, speculation, candidates, knobs)
        verified = yield verify
        rolled = yield rollout
        slots: list[int] = view.slots.tolist()
        verdict = verdict_of(rows.width, {slot: verified[slot].verdict for slot in slots})
        found = {slot: reuse(rolled[slot].branches, verified[slot].verdict) for slot in slots}
        windows = {s: window for s, window in found.items() if window is not None and not verdict.ended[s]}
        hits: BoolArray = np.zeros(rows.width, dtype=np.bool_)
        hits[list(windows)] = True
        rows.commit(view, speculation, verdict, hits=hits, now=world.now)
        speculation = speculation_of(rows.width, windows)
        misses = rows.alive & ~hits
        if misses.any():
            speculation = speculation.merge((yield draft_anew(world, rows, misses, knobs)), misses)


def verify_early(world: World, rows: Rows, view: View, speculation: Speculation, knobs: MirrorKnobs) -> Task:
    """Submit the verification that speaks on its way."""
    kappa = knobs.kappa_at(rows.width)
    return world.target.submit(
        EarlyVerify(
            view,
            rows.width,
            tuple(window_of(speculation, slot) for slot in view.slots.tolist()),
            knobs.sampling,
            part=kappa,  # by schedule it depends on the batch: what was decided at another one is no answer
            announce=True,
            exit=knobs.exit,
            kappa=kappa,
            candidates=knobs.candidates,
            rule=knobs.rule,
        )
    )


def roll_out(
    world: World, view: View, speculation: Speculation, said: RowAnswers, knobs: MirrorKnobs
) -> Task:
    """Submit the rollouts of what the exit said."""
    kappa = knobs.kappa_at(said.width)
    plans = tuple(Plan(window_of(speculation, slot), said[slot].tokens) for slot in view.slots.tolist())
    return world.draft.submit(
        Rollout(
            view,
            said.width,
            plans,
            knobs.sampling,
            part=kappa,
            lookahead=knobs.lookahead,
            kappa=kappa,
            candidates=knobs.candidates,
        )
    )


def draft_anew(world: World, rows: Rows, chosen: BoolArray, knobs: MirrorKnobs) -> Task:
    """Submit a draft of the rows marked in `chosen` [B]; after a glue step each has one unseen token."""
    unseen: IntArray = np.ones(rows.width, dtype=np.int64)
    return world.draft.submit(Draft(rows.view(chosen), knobs.lookahead, unseen, knobs.sampling))


def _run(world: World, rows: Rows, settings: Settings) -> Steps:
    assert settings.lookahead is not None, "checked by `configure`"
    knobs = MirrorKnobs(
        lookahead=settings.lookahead,
        kappa=settings.option("kappa"),
        exit=settings.option("exit"),
        candidates=settings.option("candidates"),
        rule=dict(settings.options).get("acceptance_rule", "speculative"),  # greedy runs have no such knob
        overlap=settings.option("overlap"),
        sampling=settings.sampling,
    )
    return mirror(world, rows, knobs)


INFO = PolicyInfo(
    name="mirror",
    paper="Mirror-SD",
    predicts="the target's early exit, top kappa per position",
    drafts="autoregressive, all branches at once",
    on_miss="redraft missing rows",
    verifies="chain",
    knobs=("lookahead", "kappa", "exit", "candidates", "acceptance_rule", "overlap", "draft_sampling"),
    run=_run,
    replay=DECISIONS,
    aliases=("mirror-sd",),
)
