"""DuoDecoding (Lv et al. 2025): PEARL with several candidates for the first token past the pending block.

Draft and target start together on the same text: the target verifies the pending block, the draft writes
on past it (Algorithm 1).  What the draft writes are *sequences* that differ in their first token; once the
target has accepted the whole block, it tries these first tokens one after the other, and what is left of the
sequence that goes on is the next block.  A draft budget of K tokens is shared by the sequences (section 3.2).

A sequence is worth opening where its first token is likelier than the first two tokens of the leading
sequence together: p(r, 1) > theta = p(1, 1) p(1, 2), the test in `openings`.

Lossless in three ways of drafting:

- greedy decoding: the target's choice is the first token of at most one sequence;
- sampled, greedy draft: all first tokens were chosen, not drawn.  One after the other, each with the residual
  of those before it, token c goes on with probability p(c), which is what choosing the next token by p and
  looking it up among them does.  So the target chooses at once, and no second look is needed;
- sampled draft: the leading sequence was drawn from q, so that its first token goes on with min(1, p / q),
  which needs the draft's answer.  The verification leaves that position open, and `SettleSequences` tries the
  candidates by its distribution: the drawn one, then, by what each failure leaves of p, the chosen ones.

With one sequence this is PEARL, decision for decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from policies.config import (
    DECISIONS,
    DraftSampling,
    Knob,
    LawInputs,
    LawValue,
    LookaheadConfig,
    LookaheadRule,
    PolicyConfig,
    PolicyInfo,
    SettingError,
)
from policies.laws.ssd import power_law_hit
from policies.operation import RowAnswers, RowOperation, VerdictReply, Work
from policies.pearl import PearlConfig
from policies.protocols import Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.values import UNKNOWN, Drafted, RowVerdict, Speculation, View, joined, verdict_of

SequenceCount: TypeAlias = Literal["dynamic", "1", "2", "3", "4", "5", "6", "7", "8"]
NO_SEQUENCE = -1


class Sequences(NamedTuple):
    """Reply of `DraftSequences`.

    Attributes:
        tokens: Of each sequence, its first token included; the leading one comes first.
        opening: Handle of the distribution that the leading sequence's first token was drawn from; NO_HANDLE:
            chosen.
            All other first tokens are chosen.
        handles: Of the distributions of each sequence's other tokens.
    """

    tokens: tuple[tuple[int, ...], ...]
    opening: int
    handles: tuple[int, ...]
    work: Work

    @property
    def first_tokens(self) -> tuple[int, ...]:
        """Candidates for the token past the pending block, in the order in which they are tried."""
        return tuple(tokens[0] for tokens in self.tokens)

    def rest(self, number: int) -> Drafted:
        """What is pending once a sequence's first token was accepted."""
        return Drafted(self.tokens[number][1:], self.handles[number])


class Openings(NamedTuple):
    """What `SettleSequences` is given of a row.

    Attributes:
        accepted: Tokens of the pending block, all accepted.
        tokens: Candidates for the next one, different ones.
        handle: Of the distribution that the first of them was drawn from; NO_HANDLE: it was chosen.
    """

    accepted: int
    tokens: tuple[int, ...]
    handle: int


class Settled(NamedTuple):
    """Reply of `SettleSequences`: the one token that the row emits, and the number of the accepted candidate
    (NO_SEQUENCE: none, the token is from the residual).
    """

    verdict: RowVerdict
    sequence: int
    work: Work


@dataclass(frozen=True, slots=True)
class VerifyPending(RowOperation, cost_class="verify", reply=VerdictReply):
    """One target forward over the last committed token and each row's block.  `inputs`: the blocks.

    `leave_open`: do not choose the token past a block that was accepted as a whole.
    """

    inputs: tuple[Drafted, ...]
    leave_open: bool = False


@dataclass(frozen=True, slots=True)
class DraftSequences(RowOperation, cost_class="continue", reply=Sequences):
    """Write on past each row's block.  `inputs`: its tokens.

    One forward over what the draft has not seen gives the first token's distribution, one over the leading
    first token opens the others, and then every sequence grows by a token per step, all rows and sequences at
    once.  `lookahead` is K, tokens per row, of so many `sequences` together; 0: as many as the threshold lets
    in.
    """

    inputs: tuple[tuple[int, ...], ...]
    lookahead: int = 1
    sequences: int = 1


@dataclass(frozen=True, slots=True)
class SettleSequences(RowOperation, cost_class="settle", reply=Settled):
    """Try the sequences' first tokens where `VerifyPending` left a position open.  `inputs`: `Openings`.

    No forward: the target still has the distribution at the position.
    """

    inputs: tuple[Openings, ...]


@dataclass(frozen=True, slots=True)
class DuoConfig(LookaheadConfig):
    """Knobs of `duo`; all sequences together have K tokens."""

    policy: ClassVar[str] = "duo"
    lookahead_rule: ClassVar[LookaheadRule] = "cost ratio"
    draft_sampling: DraftSampling = "sampled"
    sequences: Annotated[
        SequenceCount, Knob("Drafted sequences that share the lookahead: by the draft's doubt, or so many.")
    ] = "dynamic"

    @property
    def count(self) -> int:
        """Sequences; 0: by the threshold."""
        return 0 if self.sequences == "dynamic" else int(self.sequences)

    @property
    def single_sequence(self) -> PolicyConfig:
        """PEARL."""
        return PearlConfig(self.lookahead, self.draft_sampling)

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """PEARL's, which it is with one sequence: the paper's knows no other."""
        count = most_sequences(self.lookahead, self.count)
        if self.count == 0:
            count = mean_sequences(inputs.acceptance, inputs.exponent, inputs.scale, count)
        if count > 1:
            reason = f"the paper gives no law for several sequences ({count} here)"
            return LawValue("duo.budget", reason=reason)
        return self.single_sequence.law(inputs, batch)._replace(statement="duo.budget", ceiling=None)

    def check(self, sampling: Sampling) -> None:
        """Refuse more sequences than the budget has room for."""
        if self.count > most_sequences(self.lookahead, self.count):
            raise SettingError(
                f"{self.count} sequences need a lookahead of at least {self.count + 1}, a token for each and "
                f"two for the leading one; got {self.lookahead}"
            )


class Drafting:
    """What the rounds of pending blocks leave to a policy; this is DuoDecoding's.

    Args:
        config: The policy's knobs.
        sampling: How tokens are chosen.
    """

    def __init__(self, config: Any, sampling: Sampling) -> None:
        self.config = config
        self.sampling = sampling

    def ask(self, view: View, width: int, blocks: tuple[tuple[int, ...], ...]) -> RowOperation:
        """What the draft does meanwhile, given the blocks under verification."""
        how: dict[str, Any] = {"lookahead": self.config.lookahead, "sequences": self.config.count}
        return DraftSequences(view, width, blocks, self.sampling, **how)

    def judged(self, request: int, accepted: int) -> None:
        """Learn how many tokens of a row's block were accepted."""

    def rest(self, request: int, drafted: Any, number: int) -> Drafted:
        """The next block, once the first token of sequence `number` of what was drafted was accepted."""
        block: Drafted = drafted.rest(number)
        return block


def duo(world: World, rows: Rows, config: DuoConfig, sampling: Sampling = GREEDY) -> Steps:
    """Verify the pending block while drafting K tokens, in one or more sequences, past its end."""
    return pending_rounds(world, rows, Drafting(config, sampling))


def pending_rounds(world: World, rows: Rows, drafting: Drafting) -> Steps:
    """Rounds that verify a pending block while the draft writes on past its end."""
    pending: dict[int, Drafted] = {}
    rows.log.runs_on = True
    width, sampling = rows.width, drafting.sampling
    leave_open = sampling.draft_sampled
    while rows.active:
        yield from admit(world, rows)
        view = rows.view()
        blocks = {slot: pending.get(slot, Drafted()) for slot in view.slots}
        current = tuple(blocks.values())
        verify = world.target.submit(VerifyPending(view, width, current, sampling, leave_open=leave_open))
        draft = world.draft.submit(drafting.ask(view, width, tuple(block.tokens for block in current)))
        judged: RowAnswers = yield verify
        drafted: RowAnswers = yield draft
        verdicts = {slot: judged[slot].verdict for slot in blocks}
        requests = dict(zip(view.slots, view.requests, strict=True))
        for slot, request in requests.items():
            drafting.judged(request, verdicts[slot].accepted)
        if leave_open:
            going_on = yield from _settle(world, rows, verdicts, drafted, sampling)
        else:
            going_on = _looked_up(blocks, verdicts, drafted)
        rows.commit(
            view,
            Speculation.drafted(width, blocks),
            verdict_of(width, verdicts),
            hits=frozenset(going_on),
            now=world.now,
        )
        pending = {s: drafting.rest(requests[s], drafted[s], number) for s, number in going_on.items()}


def _looked_up(
    blocks: Mapping[int, Drafted], verdicts: Mapping[int, RowVerdict], drafted: RowAnswers
) -> dict[int, int]:
    """Slot to the number of the sequence that begins with the target's choice."""
    going_on = {}
    for slot, block in blocks.items():
        verdict, first_tokens = verdicts[slot], drafted[slot].first_tokens
        whole = verdict.accepted == len(block.tokens) and not verdict.ended
        if whole and verdict.bonus in first_tokens:
            going_on[slot] = first_tokens.index(verdict.bonus)
    return going_on


def _settle(
    world: World, rows: Rows, verdicts: dict[int, RowVerdict], drafted: RowAnswers, sampling: Sampling
) -> Steps:
    """Complete the open rows of `verdicts`; returns slot to the number of the sequence that goes on."""
    still_open = [slot for slot, v in verdicts.items() if not v.ended and v.bonus == UNKNOWN]
    if not still_open:
        return {}
    view = rows.view(frozenset(still_open))
    slots = view.slots
    inputs = tuple(
        Openings(verdicts[slot].accepted, drafted[slot].first_tokens, drafted[slot].opening) for slot in slots
    )
    settled: RowAnswers = yield world.target.submit(SettleSequences(view, rows.width, inputs, sampling))
    going_on = {}
    for slot, room in zip(slots, view.rooms, strict=True):
        reply = settled[slot]
        verdicts[slot] = joined(verdicts[slot], reply.verdict, room)
        if reply.sequence != NO_SEQUENCE and not verdicts[slot].ended:
            going_on[slot] = reply.sequence
    return going_on


def openings(
    ranked: Sequence[int], masses: Sequence[float], leading: int, theta: float | None, most: int
) -> tuple[int, ...]:
    """First tokens of the sequences: the leading one, and those that the threshold lets in.

    The strict test alone would turn away even the leading token where the draft is sure of the next one
    (theta is then its own probability), so that nothing would be drafted: it is kept (`duo.theta`,
    corrected).

    Args:
        ranked: Tokens by their probability at the first position, best first.
        masses: Their probabilities.
        leading: First token of the leading sequence, whatever its rank (it may have been drawn).
        theta: Probability of the leading sequence's first two tokens; None: no threshold.
        most: Sequences, at least 1.
    """
    others = [
        token
        for token, mass in zip(ranked, masses, strict=True)
        if token != leading and (theta is None or mass > theta)
    ]
    return (leading, *others[: most - 1])


def mean_sequences(acceptance: float, exponent: float | None, scale: float, most: int) -> int:
    """Sequences, `most` at most, that pass the threshold where every position has the mean probabilities.

    p(1, 1) = p(1, 2) = the acceptance a, and p(r, 1) is (1 - a) times the step at r - 1 of the hit curve
    1 - `scale` F^-`exponent` after a rejection; one without a curve.
    """
    if exponent is None or most == 1:
        return 1
    curve = power_law_hit(list(range(1, most)), exponent, scale)
    steps = (1.0 - acceptance) * np.diff(curve, prepend=0.0)
    return len(openings(range(most), [acceptance, *steps.tolist()], 0, acceptance**2, most))


def most_sequences(lookahead: int, sequences: int) -> int:
    """Sequences that a budget can have: each gets at least a token, the leading one two (if there are two).

    `sequences` is as in `DraftSequences`.
    """
    room = max(1, lookahead - 1)
    return min(sequences, room) if sequences else room


def sequence_lengths(lookahead: int, count: int) -> tuple[int, ...]:
    """[count] tokens of each sequence: 1 + d of the leading one, d of the others, 1 + count * d <= K.

    The leading one is a token ahead, since the threshold needs the distribution after its first token.
    """
    if lookahead == 1:
        return (1,)
    depth = (lookahead - 1) // count
    return (1 + depth, *((depth,) * (count - 1)))


def sequences_work(fed: int, lookahead: int, count: int, *, alone: bool) -> Work:
    """Steps of a row: the unseen tokens, the leading first token, then a token of every sequence per step.

    `fed` are the unseen tokens, the pending block among them; `alone`: whether no row ever has more than one
    sequence, so that the steps are those of plain drafting.
    """
    steps = [("feed", fed)]
    if lookahead > 1:
        steps.append(("draft", 1))
        grown = sequence_lengths(lookahead, count)[0] - 2
        steps += [("draft" if alone else "tree", count)] * grown
    return tuple(steps)


INFO = PolicyInfo(
    config=DuoConfig,
    run=duo,
    paper="DuoDecoding (Lv et al. 2025)",
    predicts="all accepted, then one of the draft's first tokens",
    drafts="several sequences past the block, as many as the draft is in doubt",
    on_miss="plain decode",
    verifies="chain, then the first token of each sequence",
    order=8,
    replay=DECISIONS,
    aliases=("duodecoding",),
    colour="#da8bc3",
    variants=({"lookahead": 6}, {"sequences": "1"}, {"lookahead": 6, "sequences": "4"}),
)
