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
ambiguities and why nothing of this changes the target's distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

import msgspec

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
from policies.operation import RowAnswers, RowOperation, VerdictReply, Work
from policies.pearl import PearlConfig
from policies.pld import LONGEST, LongestSuffix
from policies.protocols import Steps, World
from policies.retrieval import DatastoreName, RetrievalLength
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.values import (
    NO_HANDLE,
    Drafted,
    RowVerdict,
    Slots,
    Speculation,
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


NO_RETRIEVAL = Retrieval(0, 1)


class Ask(NamedTuple):
    """What both operations are told about a row.

    Attributes:
        news: Tokens committed since the last round; the prompt at position 0.
        agreed: How many of them come before the rejected ones.
        rejected: Drafted tokens that were rejected in the last round, and those after them.
        pending: Drafted tokens that continue the committed text.
        handle: Of the distribution of the first of these, those of the others follow; NO_HANDLE: none drawn.
    """

    news: Tokens
    agreed: int = 0
    rejected: Tokens = ()
    pending: Tokens = ()
    handle: int = NO_HANDLE


class GuideAsk(NamedTuple):
    """What `Guide` is told about a row: X_q and its handle; the pending tokens before it, all accepted."""

    tokens: Tokens
    handle: int
    behind: int


class RetrievalDrafted(NamedTuple):
    """Reply of `RetrievingDraft`: X_q, the handle of its distribution (as `Ask.handle`), and per forward the
    retrieved tokens and those of them that the draft confirmed.
    """

    tokens: Tokens
    handle: int
    matched: Tokens
    retrieved: Tokens
    work: Work


class Verified(NamedTuple):
    """Reply of `RetrievingVerify`.

    Attributes:
        verdict: What the row emits; `accepted` counts pending tokens alone.
        retrieved: Tokens that were retrieved and verified behind them.
        open: Whether a `Guide` has to decide the tokens after the pending ones.
    """

    verdict: RowVerdict
    retrieved: int
    open: bool
    work: Work


@dataclass(frozen=True, slots=True)
class RetrievingDraft(RowOperation, cost_class="continue", reply=RetrievalDrafted):
    """`lookahead` retrieval forwards of the draft past each row's pending tokens.  `inputs`: `Ask`.

    A row drafts no more than it may still emit.
    """

    inputs: tuple[Ask, ...]
    lookahead: int = 1
    retrieval: Retrieval = NO_RETRIEVAL


@dataclass(frozen=True, slots=True)
class RetrievingVerify(RowOperation, cost_class="verify", reply=Verified):
    """One target forward over the pending tokens and what is retrieved after them.  `inputs`: `Ask`.

    `leave_open`: decide nothing after pending tokens that were all accepted; a `Guide` will.
    """

    inputs: tuple[Ask, ...]
    retrieval: Retrieval = NO_RETRIEVAL
    leave_open: bool = False


@dataclass(frozen=True, slots=True)
class Guide(RowOperation, cost_class="settle", reply=VerdictReply):
    """Decide the positions that a `RetrievingVerify` left open.  `inputs`: `GuideAsk`.

    No forward: the target has its distributions along the retrieved tokens r.  Every position is decided
    once, in order (`policies.laws.double.guide_sampled`):

    - by X_q while it lies on r, each token accepted with min(1, p/q).  A rejected one is replaced from the
      residual, and the guidance behind it is dropped, whose condition is gone;
    - a token of X_q that is accepted beside r ends the round: the target knows no distribution after it;
    - where X_q ends on r, by the rest of r, each token accepted with p, and the target's own token.

    Its reply's `accepted` counts tokens of X_q.
    """

    inputs: tuple[GuideAsk, ...]
    retrieval: Retrieval = NO_RETRIEVAL


@dataclass(frozen=True, slots=True)
class DoubleConfig(LookaheadConfig):
    """Knobs of `double`; K are retrieval forwards of the draft per round."""

    policy: ClassVar[str] = "double"
    longest_suffix: LongestSuffix = LONGEST
    draft_sampling: DraftSampling = "sampled"
    overlap: Overlap = "on"
    retrieval_length: RetrievalLength = 10
    draft_retrieval: Annotated[OnOff, Knob("Whether the draft retrieves.")] = "on"
    target_retrieval: Annotated[OnOff, Knob("Whether the target retrieves.")] = "on"
    rejected_cache: Annotated[OnOff, Knob("Whether rejected tokens are retrieved.")] = "on"
    datastore: DatastoreName = None
    matched_length: Annotated[
        float | None, Knob("Mean tokens matched per retrieval, in worlds of coin tosses.", least=0.0)
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


class RoundOutcome(NamedTuple):
    """What a round made of a row's drafted tokens (`policies.laws.double.step`).

    Attributes:
        agreed: How many are now part of the text.
        judged: How many something was said about.
        left: Those that are pending next.
        rejected: The first one rejected and those after it.
    """

    agreed: int
    judged: int
    left: Tokens
    rejected: Tokens


def outcome_of(drafted: Tokens, emitted: Tokens, ended: bool) -> RoundOutcome:
    """Compare the drafted tokens, pending ones and X_q, with what the target emitted in their place.

    `emitted` has at least one token; `ended`: whether the row ended with them.
    """
    agreed = 0
    while agreed < min(len(drafted), len(emitted)) and drafted[agreed] == emitted[agreed]:
        agreed += 1
    rest = drafted[agreed:]
    if agreed == len(emitted):
        return RoundOutcome(agreed, agreed, () if ended else rest, ())
    return RoundOutcome(agreed, agreed + bool(rest), (), rest)


class PendingState:
    """What is asked next of each slot; nothing else is remembered from round to round."""

    def __init__(self) -> None:
        self.inputs: dict[int, Ask] = {}

    def admit(self, rows: Rows, fresh: Slots) -> None:
        """New requests begin with their prompt."""
        view = rows.view(fresh)
        prompts = rows.prompts(view) or ((),) * len(view.slots)
        self.inputs |= {slot: Ask(prompt) for slot, prompt in zip(view.slots, prompts, strict=True)}

    def of(self, view: View) -> tuple[Ask, ...]:
        """[n] the inputs of a view's rows."""
        return tuple(self.inputs[slot] for slot in view.slots)

    def close(self, slot: int, verdict: RowVerdict, draft: RetrievalDrafted) -> RoundOutcome:
        """Take note of a round's end."""
        pending = self.inputs[slot].pending
        outcome = outcome_of((*pending, *draft.tokens), verdict.emitted, verdict.ended)
        handle = NO_HANDLE
        if outcome.left:  # it was drafted in this round
            handle = Drafted(draft.tokens, draft.handle).after(outcome.agreed - len(pending)).handle
        self.inputs[slot] = Ask(verdict.emitted, outcome.agreed, outcome.rejected, outcome.left, handle)
        return outcome


def double(world: World, rows: Rows, config: DoubleConfig, sampling: Sampling = GREEDY) -> Steps:
    """Draft and verify by retrieval, at the same time or in turns."""
    if rows.keep_tokens and config.matched_length is not None:
        raise SettingError("matched_length is for coin tosses; with real tokens retrieval is what it is")
    state, overlaps = PendingState(), config.overlap == "on"
    width, leave_open = rows.width, overlaps and sampling.draft_sampled
    draft_side, target_side = config.draft_side, config.target_side
    while rows.active:
        fresh = yield from admit(world, rows)
        if fresh:
            state.admit(rows, fresh)
        view = rows.view()
        inputs = state.of(view)
        draft = RetrievingDraft(
            view, width, inputs, sampling, lookahead=config.lookahead, retrieval=draft_side
        )
        if not overlaps:
            drafted: RowAnswers = yield world.draft.submit(draft)
            inputs = tuple(
                ask._replace(pending=reply.tokens, handle=reply.handle)
                for ask, reply in zip(inputs, drafted.values(), strict=True)
            )
        verify = world.target.submit(
            RetrievingVerify(view, width, inputs, sampling, retrieval=target_side, leave_open=leave_open)
        )
        if overlaps:
            drafting = world.draft.submit(draft)
            verified = yield verify
            drafted = yield drafting
        else:
            verified = yield verify
        verdicts = {slot: verified[slot].verdict for slot in view.slots}
        if still_open := [slot for slot in verdicts if verified[slot].open]:
            part = rows.view(frozenset(still_open))
            questions = tuple(
                GuideAsk(drafted[slot].tokens, drafted[slot].handle, verdicts[slot].accepted)
                for slot in part.slots
            )
            guided = yield world.target.submit(Guide(part, width, questions, sampling, retrieval=target_side))
            for slot, room in zip(part.slots, part.rooms, strict=True):
                verdicts[slot] = joined(verdicts[slot], guided[slot].verdict, room)
        outcomes = {slot: state.close(slot, verdict, drafted[slot]) for slot, verdict in verdicts.items()}
        commit(world, rows, view, verdicts, outcomes)


def commit(
    world: World,
    rows: Rows,
    view: View,
    verdicts: Mapping[int, RowVerdict],
    outcomes: Mapping[int, RoundOutcome],
) -> None:
    """Append a round's tokens.

    The log counts as verified the drafted tokens that the round decided on, and as a hit a row that has
    pending tokens now.
    """
    accepted = [0] * rows.width
    for slot, outcome in outcomes.items():
        accepted[slot] = outcome.agreed
    verdict = msgspec.structs.replace(verdict_of(rows.width, verdicts), accepted=tuple(accepted))
    verified = Speculation.primary(rows.width, {slot: each.judged for slot, each in outcomes.items()})
    hits = frozenset(slot for slot, outcome in outcomes.items() if outcome.left)
    rows.commit(view, verified, verdict, hits=hits, now=world.now)


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
