"""Mirror-SD: the target's early exit says in mid-forward what may come, and the draft prepares for it.

    target   |-- layers up to the exit --|-- the layers after it --|
                                         | early result: top-kappa tokens
    draft                                |-- rollout of all candidates --|

One target forward per round.  If the tokens that the verification emits are a path of the rollouts, the next
window is what was drafted below it (`reuse`); a row for which they are not drafts its window anew, while all
rows wait (the paper's "fresh rollout", its fallback).

A rollout costs one glue step more than a draft, since the draft has not seen the last of the window's tokens,
nor any of them after a window that came out of a branch.

With `streams` (section 3.2 and D.2) the draft writes the same windows in fewer passes than tokens: in one pass
it verifies what its streams proposed in the pass before, by its own choice of every token, and its streams
propose what may follow.  Only the number of passes differs, J <= gamma, and with it the time.

Where the paper (section 3.1) reads in two ways, both have names:

| option | | |
|---|---|---|
| `candidates` | `each`: the exit's first kappa tokens after every number of accepted tokens (Figure 1) | `first`: at the first position alone (eq. 8 and the reuse rule as written) |
| `acceptance_rule` | `speculative`: a drafted token x stays with probability min(1, p(x) / q(x)) (section 3.1's "standard speculative rule") | `matching`: it stays if it equals the target's own draw (eq. 3, eq. 11), with probability sum p q |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from policies.config import (
    DECISIONS,
    DraftSampling,
    Knob,
    LookaheadConfig,
    Overlap,
    PolicyInfo,
    SettingError,
)
from policies.operation import CostClass, Draft, RowAnswers, RowOperation, Work
from policies.protocols import Steps, Task, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.values import NO_LAW, UNKNOWN, BoolArray, IntArray, RowVerdict, Speculation, View, verdict_of

Exit: TypeAlias = Literal["1/4", "1/2", "3/4"]
EXITS: tuple[Exit, ...] = get_args(Exit)
DEFAULT_EXIT: Exit = "1/2"
Reading: TypeAlias = Literal["each", "first"]
Rule: TypeAlias = Literal["speculative", "matching"]
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
    """Reply of `Rollout`: a `Branch` per candidate (plain tuples where it was read from a file)."""

    branches: tuple[Branch, ...]
    work: Work


class Plan(NamedTuple):
    """What `Rollout` is given of a row: its window, and candidates for the token after it, by position."""

    window: Window
    candidates: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class EarlyVerify(RowOperation):
    """One target forward over the last committed token and each row's window, with an early result.

    That is what an early exit takes for the next tokens.  The steps of the forward are `early:s`, its share s
    before the exit, `exit`, the adapter with the head, and `late:1-s`.  `inputs`: a `Window` per row;
    an empty one is a step of plain decoding.

    Attributes:
        exit: Which exit.
        kappa: Candidates per position.
        candidates: Where they stand.
        rule: How sampled tokens are accepted; greedy ones by equality in either case.
    """

    kind: ClassVar[str] = "earlyverify"
    cost_class: ClassVar[CostClass] = "verify"
    reply: ClassVar[type[Any]] = EarlyVerdict
    early_reply: ClassVar[type[Any] | None] = Candidates
    early_after: ClassVar[str] = "exit"

    inputs: tuple[Window, ...]
    exit: Exit = DEFAULT_EXIT
    kappa: int = DEFAULT_KAPPA
    candidates: Reading = "each"
    rule: Rule = "speculative"


@dataclass(frozen=True, slots=True)
class Rollout(RowOperation):
    """Branch-complete rollouts (eq. 8; prefixes of a branch are shared).

    One glue forward over the last committed token and the window, then `lookahead` tree steps that continue
    every candidate.  `inputs`: a `Plan` per row.

    Attributes:
        lookahead: Tokens drafted after each candidate.
        kappa: Most candidates per position.
        candidates: Where they stand.
    """

    kind: ClassVar[str] = "rollout"
    cost_class: ClassVar[CostClass] = "prespeculate"
    reply: ClassVar[type[Any]] = Rolled

    inputs: tuple[Plan, ...]
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


def reuse(branches: Sequence[Branch], verdict: RowVerdict) -> Window | None:
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


StreamCount: TypeAlias = Literal["0", "1", "2", "3", "batch"]
"""As many as Figure 6b has; the batch schedule has at most two."""
STREAMS: tuple[StreamCount, ...] = get_args(StreamCount)
STREAMS_BY_BATCH: StreamCount = "batch"
"""Values of the knob `streams`; 0: the draft writes token by token."""
ACCEPTANCE = 0.5
"""Of a stream's proposal, in worlds of coin tosses."""

UNSTREAMED = "unstreamed"
"""Step of a row whose windows need no further proposal, while those of other rows may."""

_NARROW, _FEW, _WIDE = 8, 2, 1
_PART = 32


def scheduled_streams(batch: int) -> int:
    """Streams at a batch size: 2 up to batch 8, else 1 (`mirror.sched`).

    The paper defines 1, 8 and from 16 on; a size between 8 and 16 takes the smaller number, that of the
    larger batch, as `scheduled_kappa` does.

    Raises:
        ValueError: `batch` below 1.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    return _FEW if batch <= _NARROW else _WIDE


def part_of(kappa: int, streams: int) -> int:
    """Tells operations of different widths apart: what was decided at one is no answer to another."""
    return kappa + (streams << _PART)


class StreamWindow(NamedTuple):
    """Reply of `StreamDraft`.

    Attributes:
        tokens: The window.
        law: Handle of the tokens' laws.
        emitted: Tokens that each pass wrote (eta_j of `mirror.ss`).
        work: The passes.
    """

    tokens: tuple[int, ...]
    law: int
    emitted: tuple[int, ...]
    work: Work


class StreamRolled(NamedTuple):
    """Reply of `StreamRollout`.

    Attributes:
        branches: A `Branch` per candidate, as plain tuples.
        emitted: Per branch, tokens that each pass wrote.
        work: The passes.
    """

    branches: tuple[Branch, ...]
    emitted: tuple[tuple[int, ...], ...]
    work: Work


@dataclass(frozen=True, slots=True)
class StreamDraft(RowOperation):
    """A window after the committed text, of which the draft has not seen the last token.

    A pass is two steps: `draft`, the model over the newest token and what was proposed after it, and
    `draft:s`, the streams of these tokens through their share s of the layers (`unstreamed` where no further
    proposal is needed).  `inputs`: nothing.

    Attributes:
        lookahead: gamma.
        streams: S, at least 1.
        acceptance: Of a proposal, in worlds of coin tosses.
    """

    kind: ClassVar[str] = "streamdraft"
    cost_class: ClassVar[CostClass] = "draft"
    reply: ClassVar[type[Any]] = StreamWindow

    inputs: tuple[tuple[()], ...]
    lookahead: int = 4
    streams: int = 1
    acceptance: float = ACCEPTANCE


@dataclass(frozen=True, slots=True)
class StreamRollout(Rollout):
    """A `Rollout` whose branches are written by streams, all at once; passes are `tree` and `tree:s`.

    Attributes:
        streams: S, at least 1.
        acceptance: Of a proposal, in worlds of coin tosses.
    """

    kind: ClassVar[str] = "streamrollout"
    reply: ClassVar[type[Any]] = StreamRolled

    streams: int = 1
    acceptance: float = ACCEPTANCE


def passes(name: str, share: float, counts: list[tuple[int, int]]) -> Work:
    """Work of passes over (tokens, streams) of a row each.

    Args:
        name: Of the model's step.
        share: Of the layers that streams go through; 0: they cost nothing.
        counts: By pass.
    """
    steps: list[tuple[str, int]] = []
    for tokens, streams in counts:
        steps.append((name, tokens))
        if share:
            steps.append((f"{name}:{share:.4g}", streams) if streams else (UNSTREAMED, 0))
    return tuple(steps)


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
class MirrorConfig(LookaheadConfig):
    """Knobs of `mirror`.

    Attributes:
        lookahead: gamma, drafted tokens per window.
        draft_sampling: How the draft chooses.
        kappa: Candidates per position; `BY_BATCH`: by the paper's schedule.
        exit: Which early exit speaks.
        candidates: At which positions candidates stand.
        acceptance_rule: How sampled tokens are accepted.
        overlap: Whether the rollout starts at the early result or, to see what the overlap is worth, after
            the verification.
        streams: Lookahead streams of the draft, 0 for none; `batch`: by the paper's schedule.
        stream_acceptance: Of a stream's proposal, in worlds of coin tosses; None: `ACCEPTANCE`.
    """

    policy: ClassVar[str] = "mirror"
    draft_sampling: DraftSampling = "sampled"
    kappa: Annotated[
        int,
        Knob(
            help="Candidates per position that an early exit names; 0: by the batch, as the paper does.",
            least=0,
        ),
    ] = DEFAULT_KAPPA
    exit: Annotated[Exit, Knob(help="Depth of the target's early exit.")] = DEFAULT_EXIT
    candidates: Annotated[Reading, Knob(help="Positions for which an early exit names candidates.")] = "each"
    acceptance_rule: Annotated[
        Rule,
        Knob(
            help="Accept a sampled token with min(1, p/q), or where it equals the target's own draw.",
            sampled=True,
        ),
    ] = "speculative"
    overlap: Overlap = "on"
    streams: Annotated[
        StreamCount,
        Knob(help="Lookahead streams of the draft, 0 for none; batch: by the batch, as the paper does."),
    ] = "0"
    stream_acceptance: Annotated[
        float | None,
        Knob(
            help="How often a stream's proposal is right, in worlds of coin tosses.",
            least=0.0,
            most=1.0,
        ),
    ] = None

    def check(self, sampling: Sampling) -> None:
        """Refuse the acceptance of streams that are not there."""
        if self.stream_acceptance is not None and self.streams == "0":
            raise SettingError("stream_acceptance is of streams, of which there are none: give --streams too")

    def kappa_at(self, batch: int) -> int:
        """Candidates per position at a batch size."""
        return scheduled_kappa(batch) if self.kappa == BY_BATCH else self.kappa

    def streaming_at(self, batch: int) -> dict[str, Any]:
        """Fields of streaming operations at a batch size; none where the draft writes token by token."""
        streams = scheduled_streams(batch) if self.streams == STREAMS_BY_BATCH else int(self.streams)
        if streams == 0:
            return {}
        acceptance = ACCEPTANCE if self.stream_acceptance is None else self.stream_acceptance
        return {"streams": streams, "acceptance": acceptance}


def mirror(world: World, rows: Rows, config: MirrorConfig, sampling: Sampling = GREEDY) -> Steps:
    """Verify, roll out from the early exit's candidates meanwhile, reuse what fits, else draft anew."""
    if rows.keep_tokens and config.stream_acceptance is not None:
        raise SettingError("stream_acceptance is for coin tosses; real streams are as good as they are")
    speculation = Speculation.empty(rows.width)
    while rows.active:
        fresh = yield from admit(world, rows)
        if fresh.any():
            speculation = speculation.merge(
                (yield from draft_anew(world, rows, fresh, config, sampling)), fresh
            )
        view = rows.view()
        verify = verify_early(world, rows, view, speculation, config, sampling=sampling)
        if config.overlap == "off":
            yield verify
        candidates = yield verify.early
        rollout = roll_out(world, view, speculation, candidates, config, sampling=sampling)
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
            speculation = speculation.merge(
                (yield from draft_anew(world, rows, misses, config, sampling)), misses
            )


def verify_early(
    world: World,
    rows: Rows,
    view: View,
    speculation: Speculation,
    config: MirrorConfig,
    *,
    sampling: Sampling,
) -> Task:
    """Submit the verification that speaks on its way."""
    kappa = config.kappa_at(rows.width)
    return world.target.submit(
        EarlyVerify(
            view,
            rows.width,
            tuple(window_of(speculation, slot) for slot in view.slots.tolist()),
            sampling,
            part=kappa,  # by schedule it depends on the batch: what was decided at another one is no answer
            early=True,
            exit=config.exit,
            kappa=kappa,
            candidates=config.candidates,
            rule=config.acceptance_rule,
        )
    )


def roll_out(
    world: World,
    view: View,
    speculation: Speculation,
    said: RowAnswers,
    config: MirrorConfig,
    *,
    sampling: Sampling,
) -> Task:
    """Submit the rollouts of what the exit said."""
    kappa, streaming = config.kappa_at(said.width), config.streaming_at(said.width)
    plans = tuple(Plan(window_of(speculation, slot), said[slot].tokens) for slot in view.slots.tolist())
    options: dict[str, Any] = {
        "lookahead": config.lookahead,
        "kappa": kappa,
        "candidates": config.candidates,
        **streaming,
    }
    kind = StreamRollout if streaming else Rollout
    part = part_of(kappa, streaming.get("streams", 0))
    return world.draft.submit(kind(view, said.width, plans, sampling, part=part, **options))


def draft_anew(
    world: World, rows: Rows, chosen: BoolArray, config: MirrorConfig, sampling: Sampling
) -> Steps:
    """Draft the rows marked in `chosen` [B], and return the speculation.

    After a glue step each of them has one unseen token.
    """
    view, streaming = rows.view(chosen), config.streaming_at(rows.width)
    if not streaming:
        unseen: IntArray = np.ones(rows.width, dtype=np.int64)
        speculation: Speculation = yield world.draft.submit(Draft(view, config.lookahead, unseen, sampling))
        return speculation
    slots: list[int] = view.slots.tolist()
    drafted: RowAnswers = yield world.draft.submit(
        StreamDraft(
            view,
            rows.width,
            ((),) * len(slots),
            sampling,
            part=part_of(0, streaming["streams"]),
            lookahead=config.lookahead,
            **streaming,
        )
    )
    return speculation_of(rows.width, {s: Window(drafted[s].tokens, drafted[s].law) for s in slots})


INFO = PolicyInfo(
    config=MirrorConfig,
    run=mirror,
    paper="Mirror-SD",
    predicts="the target's early exit, top kappa per position",
    drafts="autoregressive or by streams, all branches at once",
    on_miss="redraft missing rows",
    verifies="chain",
    order=11,
    replay=DECISIONS,
    aliases=("mirror-sd",),
    colour="#55a868",
    variants=(
        *({"exit": e, "kappa": 4} for e in EXITS),
        {"lookahead": 3, "kappa": 1},
        {"lookahead": 3, "kappa": 8},
        {"kappa": 2, "candidates": "first"},
        {"kappa": 4, "overlap": "off"},
        {"kappa": 2, "candidates": "first", "overlap": "off"},
        *({"kappa": 2, "streams": streams} for streams in ("1", "2", "3")),
        {"kappa": 4, "streams": "2", "overlap": "off"},
    ),
)
