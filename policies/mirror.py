"""Mirror-SD: the target's early exit says in mid-forward what may come, and the draft prepares for it.

    target   |-- layers up to the exit --|-- the layers after it --|
                                         | mark: top-kappa tokens
    draft                                |-- rollout of all candidates --|

One target forward per round.  If the tokens that the verification emits are a path of the rollouts, the next
window is what was drafted below it; a row for which they are not drafts its window anew, while all rows wait
(the paper's "fresh rollout", its fallback).  `policies.exits` has the operations and the rule of reuse.

A rollout costs one glue step more than a draft, since the draft has not seen the last of the window's tokens,
nor any of them after a window that came out of a branch.

With `streams` the draft writes the same windows in fewer passes (`policies.streaming`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    Window,
    reuse,
    speculation_of,
    window_of,
)
from policies.info import DECISIONS, PolicyInfo
from policies.knobs import SettingError
from policies.operations import BoolArray, Draft, IntArray, Speculation, View
from policies.protocols import Steps, Task, World
from policies.rows import Rows, admit
from policies.rowwise import RowAnswers, verdict_of
from policies.sampling import GREEDY, Sampling
from policies.settings import Settings
from policies.streaming import ACCEPTANCE, StreamDraft, StreamRollout, part_of, scheduled_streams
from policies.streaming import BY_BATCH as STREAMS_BY_BATCH

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
        streams: Lookahead streams of the draft, 0 for none; None: by the paper's schedule.
        stream_acceptance: Of a stream's proposal, in worlds of coin tosses.
        sampling: How tokens are chosen.
    """

    lookahead: int
    kappa: int = DEFAULT_KAPPA
    exit: Exit = DEFAULT_EXIT
    candidates: Reading = "each"
    rule: Rule = "speculative"
    overlap: Overlap = "on"
    streams: int | None = 0
    stream_acceptance: float | None = None
    sampling: Sampling = GREEDY

    def kappa_at(self, batch: int) -> int:
        """Candidates per position at a batch size."""
        return scheduled_kappa(batch) if self.kappa == BY_BATCH else self.kappa

    def streaming_at(self, batch: int) -> dict[str, Any]:
        """Options of streaming operations at a batch size; none where the draft writes token by token."""
        streams = scheduled_streams(batch) if self.streams is None else self.streams
        if streams == 0:
            return {}
        acceptance = ACCEPTANCE if self.stream_acceptance is None else self.stream_acceptance
        return {"streams": streams, "acceptance": acceptance}


def mirror(world: World, rows: Rows, knobs: MirrorKnobs) -> Steps:
    """Verify, roll out from the early exit's candidates meanwhile, reuse what fits, else draft anew."""
    if rows.keep_tokens and knobs.stream_acceptance is not None:
        raise SettingError("stream_acceptance is for coin tosses; real streams are as good as they are")
    speculation = Speculation.empty(rows.width)
    while rows.active:
        fresh = yield from admit(world, rows)
        if fresh.any():
            speculation = speculation.merge((yield from draft_anew(world, rows, fresh, knobs)), fresh)
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
            speculation = speculation.merge((yield from draft_anew(world, rows, misses, knobs)), misses)


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
    kappa, streaming = knobs.kappa_at(said.width), knobs.streaming_at(said.width)
    plans = tuple(Plan(window_of(speculation, slot), said[slot].tokens) for slot in view.slots.tolist())
    options: dict[str, Any] = {
        "lookahead": knobs.lookahead,
        "kappa": kappa,
        "candidates": knobs.candidates,
        **streaming,
    }
    kind = StreamRollout if streaming else Rollout
    part = part_of(kappa, streaming.get("streams", 0))
    return world.draft.submit(kind(view, said.width, plans, knobs.sampling, part=part, **options))


def draft_anew(world: World, rows: Rows, chosen: BoolArray, knobs: MirrorKnobs) -> Steps:
    """Draft the rows marked in `chosen` [B], and return the speculation.

    After a glue step each of them has one unseen token.
    """
    view, streaming = rows.view(chosen), knobs.streaming_at(rows.width)
    if not streaming:
        unseen: IntArray = np.ones(rows.width, dtype=np.int64)
        speculation: Speculation = yield world.draft.submit(
            Draft(view, knobs.lookahead, unseen, knobs.sampling)
        )
        return speculation
    slots: list[int] = view.slots.tolist()
    drafted: RowAnswers = yield world.draft.submit(
        StreamDraft(
            view,
            rows.width,
            ((),) * len(slots),
            knobs.sampling,
            part=part_of(0, streaming["streams"]),
            lookahead=knobs.lookahead,
            **streaming,
        )
    )
    return speculation_of(rows.width, {s: Window(drafted[s].tokens, drafted[s].law) for s in slots})


def _run(world: World, rows: Rows, settings: Settings) -> Steps:
    assert settings.lookahead is not None, "checked by `configure`"
    streams = settings.option("streams")
    knobs = MirrorKnobs(
        lookahead=settings.lookahead,
        kappa=settings.option("kappa"),
        exit=settings.option("exit"),
        candidates=settings.option("candidates"),
        rule=dict(settings.options).get("acceptance_rule", "speculative"),  # greedy runs have no such knob
        overlap=settings.option("overlap"),
        streams=None if streams == STREAMS_BY_BATCH else int(streams),
        stream_acceptance=settings.option("stream_acceptance"),
        sampling=settings.sampling,
    )
    return mirror(world, rows, knobs)


def _check(settings: Settings, given: Mapping[str, Any]) -> None:
    if given.get("stream_acceptance") is not None and settings.option("streams") == "0":
        raise SettingError("stream_acceptance is of streams, of which there are none: give --streams too")


INFO = PolicyInfo(
    name="mirror",
    paper="Mirror-SD",
    predicts="the target's early exit, top kappa per position",
    drafts="autoregressive or by streams, all branches at once",
    on_miss="redraft missing rows",
    verifies="chain",
    knobs=(
        "lookahead",
        "kappa",
        "exit",
        "candidates",
        "acceptance_rule",
        "overlap",
        "streams",
        "stream_acceptance",
        "draft_sampling",
    ),
    run=_run,
    replay=DECISIONS,
    check=_check,
    aliases=("mirror-sd",),
)
