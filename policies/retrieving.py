"""What DOUBLE asks of its devices: forwards over retrieved tokens, and the target's guidance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from policies.operations import NO_LAW
from policies.rowwise import Like, RowVerdict, Rowwise, Work

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
class RetrievingDraft(Rowwise):
    """`lookahead` retrieval forwards of the draft past each row's pending tokens.  `asks`: `Ask`.

    A row drafts no more than it may still emit.
    """

    kind: ClassVar[str] = "retrievingdraft"
    like: ClassVar[Like] = "continue"
    reply: ClassVar[type[Any]] = Drafted

    lookahead: int = 1
    retrieval: Retrieval = field(default=Retrieval(0, 1))


@dataclass(frozen=True, slots=True)
class RetrievingVerify(Rowwise):
    """One target forward over the pending tokens and what is retrieved after them.  `asks`: `Ask`.

    Attributes:
        leave_open: Decide nothing after pending tokens that were all accepted; a `Guide` will.
    """

    kind: ClassVar[str] = "retrievingverify"
    like: ClassVar[Like] = "verify"
    reply: ClassVar[type[Any]] = Verified

    retrieval: Retrieval = field(default=Retrieval(0, 1))
    leave_open: bool = False


@dataclass(frozen=True, slots=True)
class Guide(Rowwise):
    """Decide the positions that a `RetrievingVerify` left open.  `asks`: `Question`.

    No forward: the target has its laws along the retrieved tokens r.  Every position is decided once, in
    order (`policies.laws.guidance.guide_sampled`):

    - by X_q while it lies on r, each token accepted with min(1, p/q).  A rejected one is replaced from the
      residual, and the guidance behind it is dropped, whose condition is gone;
    - a token of X_q that is accepted beside r ends the round: the target knows no law after it;
    - where X_q ends on r, by the rest of r, each token accepted with p, and the target's own token.
    """

    kind: ClassVar[str] = "guide"
    like: ClassVar[Like] = "settle"
    reply: ClassVar[type[Any]] = Guided

    retrieval: Retrieval = field(default=Retrieval(0, 1))
