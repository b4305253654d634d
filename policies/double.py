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

With sampled drafts the first tokens of X_q are judged before the guidance is: see `Guide`. With `overlap
off` the models take turns: X_q is drafted from the committed text and verified in the same round, and
nothing is ever pending (the paper's single-GPU mode). docs/explanation/systems.md has the paper's
ambiguities and why nothing of this changes the target's law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from policies.config import (
    DECISIONS,
    DraftSampling,
    Knob,
    LookaheadConfig,
    OnOff,
    Overlap,
    PolicyConfig,
    PolicyInfo,
    SettingError,
)
from policies.operation import CostClass, RowAnswers, RowOperation, Work
from policies.pearl import PearlConfig
from policies.pld import LONGEST, LongestSuffix
from policies.protocols import Steps, World
from policies.retrieval import DatastoreName, RetrievalLength
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.values import (
    NO_LAW,
    BoolArray,
    IntArray,
    RowVerdict,
    Source,
    Speculation,
    Verdict,
    View,
    joined,
    verdict_of,
)

Tokens: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Retrieval:
    """How one of the models retrieves.

    Attributes:
        span: d, most tokens retrieved per forward; 0: it does not retrieve.
        longest: N, longest ending looked up.
        rejected: Whether rejected tokens are retrieved.
        datastore: Prior texts, as the knob names them; empty for none.
        matched: Mean tokens matched per retrieval, for worlds of coins, which retrieve nothing.
    """

    span: int
    longest: int
    rejected: bool = True
    datastore: str = ""
    matched: float | None = None


class Ask(NamedTuple):
    """What both operations are told about a row.

    Attributes:
        news: Tokens committed since the last round; the prompt at position 0.
        agreed: How many of them come before the rejected ones.
        rejected: Drafted tokens that were rejected in the last round, and those after them.
        pending: Drafted tokens that continue the committed text.
        law: Handle of the law of the first of these, those of the others follow; NO_LAW if none was drawn.
    """

    news: Tokens
    agreed: int = 0
    rejected: Tokens = ()
    pending: Tokens = ()
    law: int = NO_LAW


class Question(NamedTuple):
    """What `Guide` is told about a row.

    Attributes:
        tokens: X_q.
        law: As `Ask.law`.
        behind: Pending tokens before them, which were all accepted.
    """

    tokens: Tokens
    law: int
    behind: int


class Drafted(NamedTuple):
    """Reply of `RetrievingDraft`.

    Attributes:
        tokens: X_q.
        law: As `Ask.law`.
        matched: Retrieved tokens that the draft confirmed, per forward.
        found: Retrieved tokens, per forward.
        work: Steps.
    """

    tokens: Tokens
    law: int
    matched: Tokens
    found: Tokens
    work: Work


class Verified(NamedTuple):
    """Reply of `RetrievingVerify`.

    Attributes:
        verdict: What the row emits; `accepted` counts pending tokens alone.
        found: Retrieved tokens that were verified behind them.
        open: Whether a `Guide` has to decide the tokens after the pending ones.
        work: Steps.
    """

    verdict: RowVerdict
    found: int
    open: bool
    work: Work


class Guided(NamedTuple):
    """Reply of `Guide`.

    Attributes:
        verdict: What the row emits after its pending tokens; `accepted` counts tokens of X_q.
        work: Steps.
    """

    verdict: RowVerdict
    work: Work


@dataclass(frozen=True, slots=True)
class RetrievingDraft(RowOperation):
    """`lookahead` retrieval forwards of the draft past each row's pending tokens.  `inputs`: `Ask`.

    A row drafts no more than it may still emit.
    """

    kind: ClassVar[str] = "retrievingdraft"
    cost_class: ClassVar[CostClass] = "continue"
    reply: ClassVar[type[Any]] = Drafted

    inputs: tuple[Ask, ...]
    lookahead: int = 1
    retrieval: Retrieval = field(default=Retrieval(0, 1))


@dataclass(frozen=True, slots=True)
class RetrievingVerify(RowOperation):
    """One target forward over the pending tokens and what is retrieved after them.  `inputs`: `Ask`.

    Attributes:
        leave_open: Decide nothing after pending tokens that were all accepted; a `Guide` will.
    """

    kind: ClassVar[str] = "retrievingverify"
    cost_class: ClassVar[CostClass] = "verify"
    reply: ClassVar[type[Any]] = Verified

    inputs: tuple[Ask, ...]
    retrieval: Retrieval = field(default=Retrieval(0, 1))
    leave_open: bool = False


@dataclass(frozen=True, slots=True)
class Guide(RowOperation):
    """Decide the positions that a `RetrievingVerify` left open.  `inputs`: `Question`.

    No forward: the target has its laws along the retrieved tokens r.  Every position is decided once, in
    order (`policies.laws.double.guide_sampled`):

    - by X_q while it lies on r, each token accepted with min(1, p/q).  A rejected one is replaced from the
      residual, and the guidance behind it is dropped, whose condition is gone;
    - a token of X_q that is accepted beside r ends the round: the target knows no law after it;
    - where X_q ends on r, by the rest of r, each token accepted with p, and the target's own token.
    """

    kind: ClassVar[str] = "guide"
    cost_class: ClassVar[CostClass] = "settle"
    reply: ClassVar[type[Any]] = Guided

    inputs: tuple[Question, ...]
    retrieval: Retrieval = field(default=Retrieval(0, 1))


@dataclass(frozen=True, slots=True)
class DoubleConfig(LookaheadConfig):
    """Knobs of `double`.

    Attributes:
        lookahead: gamma, retrieval forwards of the draft per round.
        longest_suffix: N, longest ending looked up.
        draft_sampling: How the draft chooses.
        overlap: Whether the models work at the same time.
        retrieval_length: d, most tokens retrieved per forward.
        draft_retrieval: Whether the draft retrieves.
        target_retrieval: Whether the target does.
        rejected_cache: Whether rejected tokens are retrieved.
        datastore: Prior texts; None for none.
        matched_length: Mean tokens matched per retrieval, for worlds of coins, which retrieve nothing.
    """

    policy: ClassVar[str] = "double"
    longest_suffix: LongestSuffix = LONGEST
    draft_sampling: DraftSampling = "sampled"
    overlap: Overlap = "on"
    retrieval_length: RetrievalLength = 10
    draft_retrieval: Annotated[OnOff, Knob(help="Whether the draft retrieves.")] = "on"
    target_retrieval: Annotated[OnOff, Knob(help="Whether the target retrieves.")] = "on"
    rejected_cache: Annotated[OnOff, Knob(help="Whether rejected tokens are retrieved.")] = "on"
    datastore: DatastoreName = None
    matched_length: Annotated[
        float | None, Knob(help="Mean tokens matched per retrieval, in worlds of coin tosses.", least=0.0)
    ] = None

    @property
    def draft_side(self) -> Retrieval:
        """How the draft retrieves."""
        return self._retrieval(self.draft_retrieval)

    @property
    def target_side(self) -> Retrieval:
        """How the target does."""
        return self._retrieval(self.target_retrieval)

    def _retrieval(self, on: OnOff) -> Retrieval:
        return Retrieval(
            self.retrieval_length if on == "on" else 0,
            self.longest_suffix,
            self.rejected_cache == "on",
            self.datastore or "",
            self.matched_length,
        )

    @property
    def content_ignored(self) -> PolicyConfig:
        """PEARL."""
        return PearlConfig(self.lookahead, self.draft_sampling)


class Outcome(NamedTuple):
    """What a round made of a row's drafted tokens (`policies.laws.double.step`).

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
class PendingState:
    """What is asked next of each slot; nothing else is remembered from round to round."""

    inputs: dict[int, Ask] = field(default_factory=dict)

    def admit(self, rows: Rows, fresh: BoolArray) -> None:
        """New requests begin with their prompt."""
        if fresh.any():
            view = rows.view(fresh)
            prompts = rows.prompts(view) or ((),) * len(view.slots)
            for slot, prompt in zip(view.slots.tolist(), prompts, strict=True):
                self.inputs[slot] = Ask(tuple(prompt))

    def of(self, view: View) -> tuple[Ask, ...]:
        """[n] the inputs of a view's rows."""
        return tuple(self.inputs[slot] for slot in view.slots.tolist())

    def close(self, slot: int, verdict: RowVerdict, draft: Drafted) -> Outcome:
        """Take note of a round's end."""
        pending = self.inputs[slot].pending
        outcome = outcome_of((*pending, *draft.tokens), verdict.emitted, verdict.ended)
        law = NO_LAW
        if outcome.left and draft.law != NO_LAW:  # what is left was drafted in this round
            law = draft.law + outcome.agreed - len(pending)
        self.inputs[slot] = Ask(verdict.emitted, outcome.agreed, outcome.rejected, outcome.left, law)
        return outcome


def double(world: World, rows: Rows, config: DoubleConfig, sampling: Sampling = GREEDY) -> Steps:
    """Draft and verify by retrieval, at the same time or in turns."""
    if rows.keep_tokens and config.matched_length is not None:
        raise SettingError("matched_length is for coin tosses; with real tokens retrieval is what it is")
    state = PendingState()
    play = _together if config.overlap == "on" else _in_turns
    while rows.active:
        fresh = yield from admit(world, rows)
        state.admit(rows, fresh)
        view = rows.view()
        drafted, verdicts = yield from play(world, rows, view, state, config, sampling=sampling)
        outcomes = {slot: state.close(slot, verdicts[slot], drafted[slot]) for slot in view.slots.tolist()}
        commit(world, rows, view, verdicts, outcomes)


def _together(
    world: World, rows: Rows, view: View, state: PendingState, config: DoubleConfig, *, sampling: Sampling
) -> Steps:
    """The target verifies what is pending while the draft goes on past it."""
    inputs, leave_open = state.of(view), sampling.draft_sampled
    verify = world.target.submit(
        RetrievingVerify(
            view, rows.width, inputs, sampling, retrieval=config.target_side, leave_open=leave_open
        )
    )
    draft = world.draft.submit(
        RetrievingDraft(
            view, rows.width, inputs, sampling, lookahead=config.lookahead, retrieval=config.draft_side
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
        guide = Guide(part, rows.width, questions, sampling, retrieval=config.target_side)
        guided = yield world.target.submit(guide)
        for slot, room in zip(part.slots.tolist(), part.rooms.tolist(), strict=True):
            verdicts[slot] = joined(verdicts[slot], guided[slot].verdict, room)
    return drafted, verdicts


def _in_turns(
    world: World, rows: Rows, view: View, state: PendingState, config: DoubleConfig, *, sampling: Sampling
) -> Steps:
    """The draft first, and then the target verifies what it drafted."""
    drafted: RowAnswers = yield world.draft.submit(
        RetrievingDraft(
            view,
            rows.width,
            state.of(view),
            sampling,
            lookahead=config.lookahead,
            retrieval=config.draft_side,
        )
    )
    inputs = tuple(
        ask._replace(pending=drafted[slot].tokens, law=drafted[slot].law)
        for slot, ask in zip(view.slots.tolist(), state.of(view), strict=True)
    )
    verified = yield world.target.submit(
        RetrievingVerify(view, rows.width, inputs, sampling, retrieval=config.target_side)
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


INFO = PolicyInfo(
    config=DoubleConfig,
    run=double,
    paper="DOUBLE (Shen et al.)",
    predicts="all accepted, corrected by the target's own retrieved tokens",
    drafts="retrieval forwards, past the block",
    on_miss="retrieval forward of the target alone",
    verifies="chain, and what is retrieved after it",
    order=7,
    replay=DECISIONS,
    colour="#dd8452",
    variants=(
        {},
        {"overlap": "off"},
        {"lookahead": 2, "retrieval_length": 4},
        {"draft_retrieval": "off"},
        {"target_retrieval": "off"},
        {"rejected_cache": "off"},
    ),
)
