"""DOUBLE (Shen et al.): both models draft by retrieval, and the target's own tokens guide the draft.

A round with `overlap on`, in the terms of PEARL, from which it descends.  The *pending* tokens were drafted
in the round before and nothing has judged them.

- The target verifies them in one forward that also covers the tokens retrieved after them.  Those that it
  confirms and the token of its own behind them are its *guidance* (the paper's Y_p, equation 2).
- Meanwhile the draft continues the pending tokens by `lookahead` retrieval forwards (X_q, equation 5), each
  of which yields the retrieved tokens that the draft confirms and one of its own.
- A rejected pending token is corrected, and the rest goes.  Else the guidance is committed too; what X_q has
  beyond it is pending next where X_q begins with the guidance (*post-verify* comes next), and goes otherwise
  (correction, extension; *pre-verify* comes next: nothing is pending).

With sampled drafts the first tokens of X_q are judged before the guidance is: see `Guide`.  With
`overlap off` the models take turns: X_q is drafted from the committed text and verified in the same round,
and nothing is ever pending (the paper's single-GPU mode).  docs/double.md has the ambiguities of the paper
and why nothing of this changes the target's law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from policies.info import DECISIONS, PolicyInfo
from policies.knobs import SettingError
from policies.operations import NO_LAW, BoolArray, IntArray, Source, Speculation, Verdict, View
from policies.protocols import Steps, World
from policies.retrieving import (
    Ask,
    Drafted,
    Guide,
    Question,
    Retrieval,
    RetrievingDraft,
    RetrievingVerify,
    Tokens,
)
from policies.rows import Rows, admit
from policies.rowwise import RowAnswers, RowVerdict, joined, verdict_of
from policies.sampling import GREEDY, Sampling
from policies.settings import Settings


@dataclass(frozen=True, slots=True)
class DoubleKnobs:
    """How DOUBLE runs.

    Attributes:
        lookahead: gamma, retrieval forwards of the draft per round.
        draft: How the draft retrieves.
        target: How the target does.
        overlap: Whether the models work at the same time.
        sampling: How tokens are chosen.
    """

    lookahead: int
    draft: Retrieval
    target: Retrieval
    overlap: bool = True
    sampling: Sampling = GREEDY


class Outcome(NamedTuple):
    """What a round made of a row's drafted tokens (`policies.laws.guidance.step`).

    Attributes:
        agreed: Drafted tokens that are now part of the text.
        judged: Drafted tokens that something was said about.
        left: Drafted tokens that are pending next.
        rejected: The first one rejected and those after it.
    """

    agreed: int
    judged: int
    left: Tokens
    rejected: Tokens


def outcome_of(drafted: Tokens, emitted: Tokens, ended: bool) -> Outcome:
    """Compare the drafted tokens with what the target emitted in their place.

    Args:
        drafted: The pending tokens and X_q.
        emitted: The tokens committed, at least one.
        ended: Whether the row ended with them.
    """
    agreed = 0
    while agreed < min(len(drafted), len(emitted)) and drafted[agreed] == emitted[agreed]:
        agreed += 1
    rest = drafted[agreed:]
    if agreed == len(emitted):
        return Outcome(agreed, agreed, () if ended else rest, ())
    return Outcome(agreed, agreed + bool(rest), (), rest)


@dataclass
class Book:
    """What is asked next of each slot; nothing else is remembered from round to round."""

    asks: dict[int, Ask] = field(default_factory=dict)

    def admit(self, rows: Rows, fresh: BoolArray) -> None:
        """New requests begin with their prompt."""
        if fresh.any():
            view = rows.view(fresh)
            prompts = rows.prompts(view) or ((),) * len(view.slots)
            for slot, prompt in zip(view.slots.tolist(), prompts, strict=True):
                self.asks[slot] = Ask(tuple(prompt))

    def of(self, view: View) -> tuple[Ask, ...]:
        """[n] the asks of a view's rows."""
        return tuple(self.asks[slot] for slot in view.slots.tolist())

    def close(self, slot: int, verdict: RowVerdict, draft: Drafted) -> Outcome:
        """Take note of a round's end."""
        pending = self.asks[slot].pending
        outcome = outcome_of((*pending, *draft.tokens), verdict.emitted, verdict.ended)
        law = NO_LAW
        if outcome.left and draft.law != NO_LAW:  # what is left was drafted in this round
            law = draft.law + outcome.agreed - len(pending)
        self.asks[slot] = Ask(verdict.emitted, outcome.agreed, outcome.rejected, outcome.left, law)
        return outcome


def double(world: World, rows: Rows, knobs: DoubleKnobs) -> Steps:
    """Draft and verify by retrieval, at the same time or in turns."""
    if rows.keep_tokens and knobs.draft.matched is not None:
        raise SettingError("matched_length is for coin tosses; with real tokens retrieval is what it is")
    book = Book()
    play = _together if knobs.overlap else _in_turns
    while rows.active:
        fresh = yield from admit(world, rows)
        book.admit(rows, fresh)
        view = rows.view()
        drafted, verdicts = yield from play(world, rows, view, book, knobs)
        outcomes = {slot: book.close(slot, verdicts[slot], drafted[slot]) for slot in view.slots.tolist()}
        commit(world, rows, view, verdicts, outcomes)


def _together(world: World, rows: Rows, view: View, book: Book, knobs: DoubleKnobs) -> Steps:
    """The target verifies what is pending while the draft goes on past it."""
    asks, leave_open = book.of(view), knobs.sampling.draft_sampled
    verify = world.target.submit(
        RetrievingVerify(
            view, rows.width, asks, knobs.sampling, retrieval=knobs.target, leave_open=leave_open
        )
    )
    draft = world.draft.submit(
        RetrievingDraft(
            view, rows.width, asks, knobs.sampling, lookahead=knobs.lookahead, retrieval=knobs.draft
        )
    )
    verified = yield verify
    drafted = yield draft
    verdicts = {slot: verified[slot].verdict for slot in view.slots.tolist()}
    still_open = np.zeros(rows.width, dtype=np.bool_)
    still_open[[slot for slot in verdicts if verified[slot].open]] = True
    if still_open.any():
        part = rows.view(still_open)
        questions = tuple(
            Question(drafted[slot].tokens, drafted[slot].law, verdicts[slot].accepted)
            for slot in part.slots.tolist()
        )
        guide = Guide(part, rows.width, questions, knobs.sampling, retrieval=knobs.target)
        guided = yield world.target.submit(guide)
        for slot, room in zip(part.slots.tolist(), part.rooms.tolist(), strict=True):
            verdicts[slot] = joined(verdicts[slot], guided[slot].verdict, room)
    return drafted, verdicts


def _in_turns(world: World, rows: Rows, view: View, book: Book, knobs: DoubleKnobs) -> Steps:
    """The draft first, and then the target verifies what it drafted."""
    drafted: RowAnswers = yield world.draft.submit(
        RetrievingDraft(
            view, rows.width, book.of(view), knobs.sampling, lookahead=knobs.lookahead, retrieval=knobs.draft
        )
    )
    asks = tuple(
        ask._replace(pending=drafted[slot].tokens, law=drafted[slot].law)
        for slot, ask in zip(view.slots.tolist(), book.of(view), strict=True)
    )
    verified = yield world.target.submit(
        RetrievingVerify(view, rows.width, asks, knobs.sampling, retrieval=knobs.target)
    )
    return drafted, {slot: verified[slot].verdict for slot in view.slots.tolist()}


def commit(
    world: World,
    rows: Rows,
    view: View,
    verdicts: Mapping[int, RowVerdict],
    outcomes: Mapping[int, Outcome],
) -> None:
    """Append a round's tokens.

    The log counts as verified the drafted tokens that the round decided on, and as a hit a row that has
    pending tokens now.
    """
    lengths, sources = np.zeros((2, rows.width), dtype=np.int64)
    accepted: IntArray = np.zeros(rows.width, dtype=np.int64)
    hits = np.zeros(rows.width, dtype=np.bool_)
    for slot, outcome in outcomes.items():
        lengths[slot], accepted[slot] = outcome.judged, outcome.agreed
        sources[slot] = int(Source.PRIMARY if outcome.judged else Source.NONE)
        hits[slot] = bool(outcome.left)
    found = verdict_of(rows.width, verdicts)
    verdict = Verdict(accepted, found.emitted, found.ended, found.bonus, found.tokens)
    rows.commit(view, Speculation(lengths, sources), verdict, hits=hits, now=world.now)


def knobs_of(settings: Settings) -> DoubleKnobs:
    """The knobs of a configured DOUBLE."""
    assert settings.lookahead is not None and settings.longest_suffix is not None, "checked by `configure`"
    span = settings.option("retrieval_length")
    common = {
        "longest": settings.longest_suffix,
        "rejected": settings.option("rejected_cache") == "on",
        "datastore": settings.option("datastore") or "",
        "matched": settings.option("matched_length"),
    }
    return DoubleKnobs(
        lookahead=settings.lookahead,
        draft=Retrieval(span if settings.option("draft_retrieval") == "on" else 0, **common),
        target=Retrieval(span if settings.option("target_retrieval") == "on" else 0, **common),
        overlap=settings.option("overlap") == "on",
        sampling=settings.sampling,
    )


def _run(world: World, rows: Rows, settings: Settings) -> Steps:
    return double(world, rows, knobs_of(settings))


INFO = PolicyInfo(
    name="double",
    paper="DOUBLE (Shen et al.)",
    predicts="all accepted, corrected by the target's own retrieved tokens",
    drafts="retrieval forwards, past the block",
    on_miss="retrieval forward of the target alone",
    verifies="chain, and what is retrieved after it",
    knobs=(
        "lookahead",
        "retrieval_length",
        "longest_suffix",
        "overlap",
        "draft_retrieval",
        "target_retrieval",
        "rejected_cache",
        "datastore",
        "matched_length",
        "draft_sampling",
    ),
    run=_run,
    replay=DECISIONS,
)
