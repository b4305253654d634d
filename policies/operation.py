"""What a policy asks of a device: the one operation language of both worlds.

An operation is about some rows of a batch.  Its class says all that a world has to know of it, so that
neither world names operations one by one.

The outcome of a verified chain follows from a path recorded by plain decoding (docs/explanation/replay.md),
so that the simulated world answers `Verify`, `Settle`, `Draft`, `Prespeculate` and `Continue` from a token
model. What a draft puts into a tree, what a datastore returns, which of several candidates survives, does
not: it is fed by tokens off that path. Such an operation is a `RowOperation`. Its replies are recorded in
live runs: a reply trace keeps every row's by (kind, part, request, position), and the simulated world
answers with it, in any batch and on any profile.

A new operation is a subclass, a handler in `calibrate/live/handlers`, and nothing else:

    @dataclass(frozen=True, slots=True)
    class DraftTree(RowOperation, cost_class="draft", reply=TreeDrafted):
        inputs: tuple[tuple[int, ...], ...]
        plan: TreePlan = TreePlan()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import msgspec

from policies.sampling import GREEDY, Sampling
from policies.values import (
    UNKNOWN,
    Drafted,
    Ints,
    OutcomeCache,
    Prepared,
    RowVerdict,
    Source,
    Speculation,
    Verdict,
    View,
    verdict_of,
)

Work: TypeAlias = tuple[tuple[str, int], ...]
"""A row's share of an operation: (step, tokens of the row that went through the model), in order.  The i-th
steps of all rows of an operation are one model call."""
CostClass: TypeAlias = Literal["prefill", "verify", "settle", "draft", "prespeculate", "continue"]
RowAnswers: TypeAlias = Mapping[int, Any]
"""The replies of an operation, by slot."""


class Operation:
    """What a device is asked to do for some rows.

    Those of every round are structs, as `View` is; others dataclasses.

    Attributes:
        kind: Its name in timelines, in recordings and on the way to a worker.
        cost_class: The operation whose host time and contention it shares.
        reply: Type of a row's reply.
        early_reply: Type of what a row says on the way, where `early` is set; None: nothing.
        early_after: Step after which it does; without such a step, at the beginning.
    """

    __slots__ = ()
    kind: ClassVar[str] = ""
    cost_class: ClassVar[CostClass] = "verify"
    reply: ClassVar[Any] = None
    early_reply: ClassVar[Any] = None
    early_after: ClassVar[str] = ""

    def __init_subclass__(
        cls,
        *,
        cost_class: CostClass | None = None,
        reply: Any = None,
        early_reply: Any = None,
        early_after: str | None = None,
    ) -> None:
        """Take what is true of all operations of a class; its name is its kind."""
        # A dataclass with slots is made twice, the second time from what the first one holds.
        cls.kind = cls.__dict__.get("kind", cls.__name__.lower())
        for name, value in (("cost_class", cost_class), ("reply", reply), ("early_reply", early_reply)):
            if value is not None:
                setattr(cls, name, value)
        cls.early_after = early_after or cls.early_after

    if TYPE_CHECKING:

        @property
        def view(self) -> View:
            """The rows."""
            ...

        @property
        def width(self) -> int:
            """B, slots of the batch that it belongs to."""
            ...

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        return GREEDY

    @property
    def early(self) -> bool:
        """Whether the task's `early` event fires."""
        return False

    @property
    def stoppable(self) -> bool:
        """Whether it can be stopped at a step boundary, and then answers with what it has."""
        return False

    @property
    def size(self) -> Ints | None:
        """What its time depends on beside kind and contexts; None where its replies decide that."""
        return None

    @property
    def tokens_fed(self) -> int:
        """Tokens that go through the model, as far as the operation itself tells; padding is not counted."""
        return 0

    def answer(self, replies: Sequence[Any]) -> Any:
        """What the policy gets, from the replies of the view's rows; by default these, by slot."""
        return self.by_slot(replies)

    def by_slot(self, replies: Sequence[Any]) -> dict[int, Any]:
        """Something of each row of the view, by slot."""
        return dict(zip(self.view.slots, replies, strict=True))


@dataclass(frozen=True, slots=True)
class RowOperation(Operation):
    """An operation whose replies are recorded and replayed row by row.  Answer: `RowAnswers`.

    A reply is a named tuple of integers, strings and tuples of them, with a field `work` of type `Work`.

    Attributes:
        view: The rows.
        width: B, slots of the batch.
        inputs: [n] what each row of the view is given: integers, strings and tuples of them.
        sampling: How tokens are chosen.
        part: Tells operations of one kind about the same position of a request apart.
        early: Whether it says something on the way.
    """

    view: View
    width: int
    inputs: tuple[Any, ...]
    sampling: Sampling = GREEDY
    part: int = 0
    early: bool = False

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.view.slots):
            raise ValueError(f"{self.kind}: {len(self.view.slots)} rows, {len(self.inputs)} inputs")

    def reply_keys(self) -> list[tuple[str, int, int, int]]:
        """[n] (kind, part, request, position) of each row's reply in a trace."""
        view = self.view
        return [
            (self.kind, self.part, request, position)
            for request, position in zip(view.requests, view.positions, strict=True)
        ]


def row_calls(work: Sequence[Work]) -> Iterator[tuple[str, int, int]]:
    """(name, rows, widest row's tokens) of each step of a row operation; a row may have no part in it."""
    for parts in zip_longest(*work):
        there = [part for part in parts if part is not None]
        name, widest = max(there, key=itemgetter(1))
        yield name, len(there), widest


class VerdictReply(NamedTuple):
    """Reply of a verification: what the row emits, and its steps."""

    verdict: RowVerdict
    work: Work


def total_tokens(replies: Sequence[Any]) -> int:
    """Tokens that went through the model, of the replies of all rows together."""
    return sum(tokens for reply in replies for _, tokens in reply.work)


class Prefill(Operation, msgspec.Struct, frozen=True, gc=False):
    """Fill the KV cache with the prompt but its last token.  Answer: None.

    The last prompt token is fed by the first verification, so that every emitted token comes out of
    a round and all rounds look alike.  `prompts` is None in a world without token ids.

    Of texts that are read in parts, `starts` [n] are the tokens that the slots hold already; contexts end one
    token behind the part, and `prompts` begin after `starts`.  None: the slots are new requests'.

    `states`: keep the prompt's hidden states, for heads that read them.
    """

    cost_class: ClassVar[CostClass] = "prefill"
    view: View
    prompts: tuple[tuple[int, ...], ...] | None = None
    starts: Ints | None = None
    states: bool = False

    def answer(self, replies: Sequence[None]) -> None:
        """Nothing."""


class _Speculated(Operation):
    """An operation about rows and what was drafted for them."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def speculation(self) -> Speculation:
            """What was drafted."""
            ...

    @property
    def width(self) -> int:
        """B, slots of the batch that it belongs to."""
        return len(self.speculation.lengths)

    @property
    def lengths(self) -> Ints:
        """[n] drafted tokens of each row of the view."""
        lengths, slots = self.speculation.lengths, self.view.slots
        return lengths if len(slots) == len(lengths) else tuple([lengths[slot] for slot in slots])

    @property
    def chain_tokens(self) -> int:
        """Tokens of a forward over each row's last committed token and its drafted ones."""
        return len(self.view.slots) + sum(self.lengths)


class Verify(_Speculated, msgspec.Struct, frozen=True, gc=False):
    """One target forward over `1 + speculation.lengths` new tokens per row.  Answer: `Verdict`.

    The prefix is never recomputed: the KV cache holds all committed tokens but the last.  With an
    empty speculation this is one step of plain decoding.

    `leave_open`: do not choose the bonus token of rows whose drafted tokens were all accepted; a `Settle`
    will.  Their verdict counts the accepted tokens alone.
    """

    reply: ClassVar[Any] = RowVerdict
    view: View
    speculation: Speculation
    sampling: Sampling = GREEDY
    leave_open: bool = False

    @property
    def size(self) -> Ints:
        """Rows, tokens of the longest chain, of all chains."""
        lengths, slots = self.speculation.lengths, self.view.slots
        if len(slots) < len(lengths):
            lengths = tuple([lengths[slot] for slot in slots])
        if len(lengths) == 1:
            return 1, lengths[0], lengths[0]
        return len(lengths), max(lengths), sum(lengths)

    @property
    def tokens_fed(self) -> int:
        """Those of the chains."""
        return self.chain_tokens

    def answer(self, replies: Sequence[RowVerdict]) -> Verdict:
        """The batch's verdict."""
        return verdict_of(self.width, self.by_slot(replies))


class Settle(_Speculated, msgspec.Struct, frozen=True, gc=False):
    """Verify one token more where a `Verify` left the bonus open.  Answer: the completed `Verdict`.

    No forward: the target still has the probabilities of the open position.  The proposed token of a row
    becomes the bonus if it is accepted, else the bonus comes from the residual (sampled PEARL's check of the
    first token past a block).  `view`, `speculation` and `verdict` are the verification's.
    """

    cost_class: ClassVar[CostClass] = "settle"
    reply: ClassVar[Any] = RowVerdict
    view: View
    verdict: Verdict
    speculation: Speculation
    proposal: Speculation
    sampling: Sampling = GREEDY

    @property
    def size(self) -> Ints:
        """Rows."""
        return (len(self.view.slots),)

    @property
    def open_rows(self) -> list[int]:
        """Indices, within the view, of the rows whose bonus token is open.

        A row that emitted no bonus token has either ended or is open.
        """
        ended, bonus = self.verdict.ended, self.verdict.bonus
        slots = enumerate(self.view.slots)
        return [i for i, slot in slots if slot not in ended and bonus[slot] == UNKNOWN]

    def answer(self, replies: Sequence[RowVerdict]) -> Verdict:
        """The verdict with the bonus tokens of its open rows, of which alone there are replies."""
        verdict = self.verdict
        emitted, bonus, ended = list(verdict.emitted), list(verdict.bonus), set(verdict.ended)
        tokens = list(verdict.tokens or [()] * len(emitted))
        for i, row in zip(self.open_rows, replies, strict=True):
            slot = self.view.slots[i]
            emitted[slot] += len(row.emitted)
            bonus[slot] = row.bonus
            tokens[slot] = (*tokens[slot], *row.emitted)
            if row.ended:
                ended.add(slot)
        return Verdict(verdict.accepted, tuple(emitted), frozenset(ended), tuple(bonus), tuple(tokens))


class Draft(Operation, msgspec.Struct, frozen=True, gc=False):
    """Draft `lookahead` tokens autoregressively from the committed text.  Answer: `Speculation`.

    May be stopped at a step boundary; the answer then holds the tokens drafted so far.

    Attributes:
        unseen: [B] committed tokens of each row that the draft has not processed yet (at least 1,
            the last token itself; 2 after all of a chain was accepted).
        shape: F_0 ... F_(K-1) for Saguaro sampling; None to draw from q itself.
    """

    cost_class: ClassVar[CostClass] = "draft"
    reply: ClassVar[Any] = Drafted
    view: View
    lookahead: int
    unseen: Ints
    sampling: Sampling = GREEDY
    shape: tuple[int, ...] | None = None

    @property
    def width(self) -> int:
        """B, slots of the batch that it belongs to."""
        return len(self.unseen)

    @property
    def stoppable(self) -> bool:
        """Always."""
        return True

    @property
    def size(self) -> Ints:
        """Rows, unseen tokens of the row with most, of all rows, K."""
        unseen, slots = self.unseen, self.view.slots
        if len(slots) < len(unseen):
            unseen = tuple([unseen[slot] for slot in slots])
        return len(unseen), max(unseen), sum(unseen), self.lookahead

    @property
    def tokens_fed(self) -> int:
        """The unseen tokens and all drafted ones but the last."""
        rows, _, unseen, _ = self.size
        return unseen + rows * (self.lookahead - 1)

    def answer(self, replies: Sequence[Drafted]) -> Speculation:
        """The batch's speculation."""
        return Speculation.drafted(self.width, self.by_slot(replies))


_PRIMARY = int(Source.PRIMARY)


@lru_cache(maxsize=1024)
def _outcomes_below(fanout: Ints, devices: int) -> Ints:
    """[K + 1] outcomes with at most k tokens accepted, the share of one of some devices, rounded up."""
    return tuple(-(-total // devices) for total in accumulate(fanout))


def _branches(lengths: Ints, sources: Ints, fanout: Ints, fanout_backup: Ints | None, devices: int) -> Ints:
    """[n] See `Prespeculate.branches`."""
    table = _outcomes_below(fanout, devices)
    guessed = table if fanout_backup is None else _outcomes_below(fanout_backup, devices)
    rows = zip(lengths, sources, strict=True)
    return tuple([(table if source == _PRIMARY else guessed)[length] for length, source in rows])


@lru_cache(maxsize=1024)
def _prepared(lengths: Ints, sources: Ints, *fanouts_and_devices: Any) -> Ints:
    """See `Prespeculate.size`."""
    most = _branches(lengths, sources, *fanouts_and_devices[:-1])
    return len(lengths), max(lengths), sum(lengths), max(most), sum(most), fanouts_and_devices[-1]


class Prespeculate(_Speculated, msgspec.Struct, frozen=True, gc=False):
    """Draft a speculation for the likely outcomes of verifying `speculation` (SSD, definitions 2-6, 10).

    One *glue* forward over the last committed token and the speculation ranks the candidates for the
    verified token after each number k of accepted tokens; `lookahead` tree steps then continue the
    `fanout[k]` best of each, the rejected token left out.  Answer: `Cache`.  Stoppable only if it says early
    which outcomes it prepares for; what was stopped answers with incomplete speculations.

    Attributes:
        fanout: `lookahead + 1` numbers F_k of cached outcomes with k tokens accepted, for rows that
            verify the primary draft's tokens.
        fanout_backup: The same for rows that verify a backup's tokens or nothing; None: as `fanout`.  A
            row that verifies nothing has the single position k = 0 and gets F_0 outcomes.
        shape: F_0 ... F_(K-1) for Saguaro sampling of the cached speculations; None to draw from q.
        keep_rejected: Whether the cached set is the draft's top F_k as it stands (proof of Theorem 15)
            instead of leaving out the rejected token (the paper's A.3.1).
        part: (i, n): prepare every n-th outcome from the i-th on, the share of one of n draft devices.
        early: Whether the task's early event fires after the glue step, with a `Cache` of the outcomes alone.
    """

    cost_class: ClassVar[CostClass] = "prespeculate"
    reply: ClassVar[Any] = Prepared
    early_reply: ClassVar[Any] = Prepared
    early_after: ClassVar[str] = "glue"
    view: View
    speculation: Speculation
    lookahead: int
    fanout: tuple[int, ...]
    fanout_backup: tuple[int, ...] | None = None
    sampling: Sampling = GREEDY
    shape: tuple[int, ...] | None = None
    keep_rejected: bool = False
    part: tuple[int, int] = (0, 1)
    early: bool = False

    @property
    def stoppable(self) -> bool:
        """Where nobody waits for the rest."""
        return self.early

    def fanout_of(self, slot: int) -> tuple[int, ...]:
        """The fan-outs that apply to the row in `slot`."""
        primary = self.speculation.sources[slot] == Source.PRIMARY
        return self.fanout if primary or self.fanout_backup is None else self.fanout_backup

    @property
    def branches(self) -> Ints:
        """[n] outcomes that one draft device prepares for in each row: its share, rounded up.

        A row that verifies l tokens has the positions 0 ... l, with the fan-outs that belong to where its
        tokens come from.
        """
        sources = tuple([self.speculation.sources[slot] for slot in self.view.slots])
        return _branches(self.lengths, sources, self.fanout, self.fanout_backup, self.part[1])

    @property
    def size(self) -> Ints:
        """Rows, tokens of the longest chain, of all chains, branches of the widest row, of all rows, K."""
        lengths, sources, slots = self.speculation.lengths, self.speculation.sources, self.view.slots
        if len(slots) < len(lengths):
            lengths, sources = tuple([lengths[i] for i in slots]), tuple([sources[i] for i in slots])
        return _prepared(lengths, sources, self.fanout, self.fanout_backup, self.part[1], self.lookahead)

    @property
    def tokens_fed(self) -> int:
        """Those of the glue step, and a token per branch and step."""
        return self.chain_tokens + self.lookahead * sum(self.branches)

    def answer(self, replies: Sequence[Prepared]) -> OutcomeCache:
        """The speculation cache, or where it is early that of the outcomes alone."""
        return OutcomeCache(self.width, self.by_slot([dict(row.entries) for row in replies]))


class Continue(_Speculated, msgspec.Struct, frozen=True, gc=False):
    """Draft on past `speculation`, on the bet that all of it will be accepted (PEARL).  Answer: `Cache`.

    The cache holds one outcome: everything accepted and the bonus token equal to the first of the
    `lookahead` newly drafted tokens (at least one); its speculation is the remaining `lookahead - 1`.
    """

    cost_class: ClassVar[CostClass] = "continue"
    reply: ClassVar[Any] = Drafted
    view: View
    speculation: Speculation
    lookahead: int
    sampling: Sampling = GREEDY

    @property
    def size(self) -> Ints:
        """Rows, tokens of the longest chain, K."""
        lengths = self.lengths
        return len(lengths), max(lengths), self.lookahead

    @property
    def tokens_fed(self) -> int:
        """The last one before the new ones, and all of these but the last."""
        return len(self.view.slots) * self.lookahead

    def answer(self, replies: Sequence[Drafted]) -> OutcomeCache:
        """One outcome per row: all accepted, and the first drafted token after them."""
        lengths = self.speculation.lengths
        rows: dict[int, Drafted] = self.by_slot(replies)
        entries = {slot: {(lengths[slot], row.tokens[0]): row.after(1)} for slot, row in rows.items()}
        openings = {slot: Drafted(row.tokens[:1], row.handle) for slot, row in rows.items()}
        return OutcomeCache(self.width, entries, openings)
