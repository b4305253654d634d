"""What Mirror-SD asks of its devices: a verification that speaks in mid-forward, and rollouts of what it said.

Paper: Mirror Speculative Decoding, section 3.1.  Where it reads in two ways, both have names:

| option | | |
|---|---|---|
| `candidates` | `each`: the exit's first kappa tokens after every number of accepted tokens (Figure 1) | `first`: at the first position alone (eq. 8 and the reuse rule as written) |
| `rule` | `speculative`: a drafted token x stays with probability min(1, p(x) / q(x)) (section 3.1's "standard speculative rule") | `matching`: it stays if it equals the target's own draw (eq. 3, eq. 11), with probability sum p q |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

from policies.operations import NO_LAW, UNKNOWN, Speculation
from policies.rowwise import Like, RowVerdict, Rowwise, Work

Exit: TypeAlias = Literal["1/4", "1/2", "3/4"]
EXITS: tuple[Exit, ...] = get_args(Exit)
DEFAULT_EXIT: Exit = "1/2"
Reading: TypeAlias = Literal["each", "first"]
READINGS: tuple[Reading, ...] = get_args(Reading)
Rule: TypeAlias = Literal["speculative", "matching"]
RULES: tuple[Rule, ...] = get_args(Rule)
Overlap: TypeAlias = Literal["on", "off"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
DEFAULT_KAPPA = 8
BY_BATCH = 0
"""Value of the knob `kappa` that follows the paper's schedule."""


class Window(NamedTuple):
    """Drafted tokens awaiting verification (UNKNOWN in a world without ids), and the handle of their laws."""

    tokens: tuple[int, ...] = ()
    law: int = NO_LAW


class Candidates(NamedTuple):
    """What a row's early exit says: per position its kappa likeliest tokens, best first.

    The paper's token channel carries their log-probabilities too; nothing here reads them, so they stay.
    """

    tokens: tuple[tuple[int, ...], ...]


class EarlyVerdict(NamedTuple):
    """Reply of `EarlyVerify`."""

    verdict: RowVerdict
    work: Work


class Branch(NamedTuple):
    """A continuation prepared for one outcome.

    Attributes:
        accepted: Tokens of the window before it.
        tokens: The candidate, and what the draft drafted after it.
        law: Handle of the laws of the tokens after the candidate.
    """

    accepted: int
    tokens: tuple[int, ...]
    law: int = NO_LAW


class Rolled(NamedTuple):
    """Reply of `Rollout`: a `Branch` per candidate, as plain tuples."""

    branches: tuple[tuple[Any, ...], ...]
    work: Work


class Plan(NamedTuple):
    """What a row asks of `Rollout`: its window, and the candidates for the token after it, by position."""

    window: Window
    candidates: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class EarlyVerify(Rowwise):
    """One target forward over the last committed token and each row's window, with a word on its way.

    The mark says what an early exit takes for the next tokens.  The steps of the forward are `early:s`, its
    share s before the exit, `exit`, the adapter with the head, and `late:1-s`.  `asks`: a `Window` per row;
    an empty one is a step of plain decoding.

    Attributes:
        exit: Which exit.
        kappa: Candidates per position.
        candidates: Where they stand.
        rule: How sampled tokens are accepted; greedy ones by equality in either case.
    """

    kind: ClassVar[str] = "earlyverify"
    like: ClassVar[Like] = "verify"
    reply: ClassVar[type[Any]] = EarlyVerdict
    mark: ClassVar[type[Any] | None] = Candidates
    announced_after: ClassVar[str] = "exit"

    exit: Exit = DEFAULT_EXIT
    kappa: int = DEFAULT_KAPPA
    candidates: Reading = "each"
    rule: Rule = "speculative"


@dataclass(frozen=True, slots=True)
class Rollout(Rowwise):
    """Branch-complete rollouts (eq. 8; prefixes of a branch are shared).

    One glue forward over the last committed token and the window, then `lookahead` tree steps that continue
    every candidate.  `asks`: a `Plan` per row.

    Attributes:
        lookahead: Tokens drafted after each candidate.
        kappa: Most candidates per position.
        candidates: Where they stand.
    """

    kind: ClassVar[str] = "rollout"
    like: ClassVar[Like] = "prespeculate"
    reply: ClassVar[type[Any]] = Rolled

    lookahead: int = 4
    kappa: int = DEFAULT_KAPPA
    candidates: Reading = "each"


def forks(plan: Plan) -> tuple[tuple[int, int], ...]:
    """(tokens accepted, candidate) of every branch worth a rollout.

    With candidates at each position the drafted token itself needs none where it stands: if it is accepted,
    the outcome is a later one's; if it is rejected, it is not the correction.  With candidates at the first
    position alone it stays, since the branch below it is all that there is for later outcomes.
    """
    drafted = plan.window.tokens
    skip = len(plan.candidates) > 1
    return tuple(
        (position, token)
        for position, row in enumerate(plan.candidates)
        for token in row
        if not (skip and position < len(drafted) and token == drafted[position])
    )


def reuse(branches: Sequence[tuple[Any, ...]], verdict: RowVerdict) -> Window | None:
    """What was prepared for the text that a verification emitted; None: draft anew (`mirror.reuse`).

    The accepted tokens with the correction (or, after a window accepted in full, the target's next token)
    have to be a path of the rollouts, with at least one token below it.  Nothing accepted: the branch rooted
    at the correction; else the continuation at the correction's depth.

    Args:
        branches: `Branch` of the row.
        verdict: Its outcome, not cut.
    """
    for branch in map(Branch._make, branches):
        rest = verdict.emitted[branch.accepted :]
        depth = len(rest)
        on_path = branch.accepted <= verdict.accepted and branch.tokens[:depth] == rest
        if on_path and len(branch.tokens) > depth:
            law = NO_LAW if branch.law == NO_LAW else branch.law + depth - 1
            return Window(branch.tokens[depth:], law)
    return None


def window_of(speculation: Speculation, slot: int) -> Window:
    """A row's drafted tokens, out of the batch's."""
    length = int(speculation.lengths[slot])
    law = NO_LAW if speculation.laws is None else int(speculation.laws[slot])
    known = () if speculation.tokens is None else speculation.tokens[slot, :length].tolist()
    # A replay's drafts have no ids, so that an array made for reused windows may be too narrow for them.
    return Window((*known, *(UNKNOWN,) * (length - len(known))), law)


def speculation_of(width: int, windows: Mapping[int, Window]) -> Speculation:
    """The batch's drafted tokens, from those of some of its rows by slot."""
    return Speculation.drafted(width, windows)
