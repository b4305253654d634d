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

from policies.config import (
    DECISIONS,
    DraftSampling,
    Knob,
    LookaheadConfig,
    Overlap,
    PolicyInfo,
    SettingError,
)
from policies.operation import Draft, RowOperation, VerdictReply, Work
from policies.protocols import Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.values import NO_HANDLE, Drafted, RowVerdict, Slots, Speculation, View, verdict_of

Exit: TypeAlias = Literal["1/4", "1/2", "3/4"]
EXITS: tuple[Exit, ...] = get_args(Exit)
DEFAULT_EXIT: Exit = "1/2"
Reading: TypeAlias = Literal["each", "first"]
Rule: TypeAlias = Literal["speculative", "matching"]
DEFAULT_KAPPA = 8
BY_BATCH = 0
"""Value of the knob `kappa` that follows the paper's schedule."""
StreamCount: TypeAlias = Literal["0", "1", "2", "3", "batch"]
"""Lookahead streams of the draft: as many as Figure 6b has; 0: it writes token by token."""
STREAMS: tuple[StreamCount, ...] = get_args(StreamCount)
STREAMS_BY_BATCH: StreamCount = "batch"
ACCEPTANCE = 0.5
"""Of a stream's proposal, in worlds of coin tosses."""
UNSTREAMED = "unstreamed"
"""Step of a row whose windows need no further proposal, while those of other rows may."""


class Candidates(NamedTuple):
    """What a row's early exit says: per position its kappa likeliest tokens, best first.

    The paper's token channel carries their log-probabilities too; nothing here reads them, so they stay.
    """

    tokens: tuple[tuple[int, ...], ...]


class Branch(NamedTuple):
    """A continuation prepared for one outcome: the accepted tokens of the window before it; the candidate and
    what the draft drafted after it; the handle of the distributions of the tokens after the candidate.
    """

    accepted: int
    tokens: tuple[int, ...]
    handle: int = NO_HANDLE


class RolloutPlan(NamedTuple):
    """What a rollout is given of a row: its window, and candidates for the token after it, by position."""

    window: Drafted
    candidates: tuple[tuple[int, ...], ...]


class Rolled(NamedTuple):
    """Reply of `Rollout`: a `Branch` per candidate (plain tuples where it was read from a file)."""

    branches: tuple[Branch, ...]
    work: Work


class StreamRolled(NamedTuple):
    """Reply of `StreamRollout`: as `Rolled`, with the tokens that each pass wrote of each branch."""

    branches: tuple[Branch, ...]
    emitted: tuple[tuple[int, ...], ...]
    work: Work


class StreamWindow(NamedTuple):
    """Reply of `StreamDraft`: a window, and the tokens that each pass wrote (eta_j of `mirror.ss`)."""

    tokens: tuple[int, ...]
    handle: int
    emitted: tuple[int, ...]
    work: Work


@dataclass(frozen=True, slots=True)
class EarlyVerify(
    RowOperation, cost_class="verify", reply=VerdictReply, early_reply=Candidates, early_after="exit"
):
    """One target forward over the last committed token and each row's window, with an early result.

    That is what an early exit takes for the next tokens, `kappa` candidates per position.  The steps of the
    forward are `early:s`, its share s before the exit, `exit`, the adapter with the head, and `late:1-s`.
    `inputs`: drafted tokens per row; none is a step of plain decoding.
    """

    inputs: tuple[Drafted, ...]
    exit: Exit = DEFAULT_EXIT
    kappa: int = DEFAULT_KAPPA
    candidates: Reading = "each"
    rule: Rule = "speculative"


@dataclass(frozen=True, slots=True)
class Rollout(RowOperation, cost_class="prespeculate", reply=Rolled):
    """Branch-complete rollouts (eq. 8; prefixes of a branch are shared).

    One glue forward over the last committed token and the window, then `lookahead` tree steps that continue
    every candidate, at most `kappa` per position.  `inputs`: a `RolloutPlan` per row.
    """

    inputs: tuple[RolloutPlan, ...]
    lookahead: int = 4
    kappa: int = DEFAULT_KAPPA
    candidates: Reading = "each"


@dataclass(frozen=True, slots=True)
class StreamRollout(Rollout, reply=StreamRolled):
    """A `Rollout` whose branches are written by S streams, all at once; passes are `tree` and `tree:s`.

    `acceptance`: of a proposal, in worlds of coin tosses.
    """

    streams: int = 1
    acceptance: float = ACCEPTANCE


@dataclass(frozen=True, slots=True)
class StreamDraft(RowOperation, cost_class="draft", reply=StreamWindow):
    """A window after the committed text, of which the draft has not seen the last token.

    A pass is two steps: `draft`, the model over the newest token and what was proposed after it, and
    `draft:s`, the streams of these tokens through their share s of the layers (`unstreamed` where no further
    proposal is needed).  `inputs`: nothing.  `streams` and `acceptance` are as in `StreamRollout`.
    """

    inputs: tuple[tuple[()], ...]
    lookahead: int = 4
    streams: int = 1
    acceptance: float = ACCEPTANCE


def passes(name: str, share: float, counts: Sequence[tuple[int, int]]) -> Work:
    """Work of passes of the model's step `name` over (tokens, streams) of a row each.

    The streams go through a `share` of the layers; 0: they cost nothing.
    """
    steps: list[tuple[str, int]] = []
    for tokens, streams in counts:
        steps.append((name, tokens))
        if share:
            steps.append((f"{name}:{share:.4g}", streams) if streams else (UNSTREAMED, 0))
    return tuple(steps)


def forks(plan: RolloutPlan) -> tuple[tuple[int, int], ...]:
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


def reuse(branches: Sequence[Branch], verdict: RowVerdict) -> Drafted | None:
    """What was prepared for the text that a verification emitted; None: draft anew (`mirror.reuse`).

    The accepted tokens with the correction (or, after a window accepted in full, the target's next token)
    have to be a path of the rollouts, with at least one token below it.  Nothing accepted: the branch rooted
    at the correction; else the continuation at the correction's depth.  The verdict is not cut.
    """
    for branch in map(Branch._make, branches):
        rest = verdict.emitted[branch.accepted :]
        depth = len(rest)
        on_path = branch.accepted <= verdict.accepted and branch.tokens[:depth] == rest
        if on_path and len(branch.tokens) > depth:
            return Drafted(branch.tokens[1:], branch.handle).after(depth - 1)
    return None


def _scheduled(batch: int, schedule: Sequence[tuple[int, int]]) -> int:
    """What the paper takes at a batch size, 1 beyond its schedule (`mirror.sched`).

    A size between two that the paper defines takes the smaller number, that of the larger batch.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    return next((number for most, number in schedule if batch <= most), 1)


def scheduled_kappa(batch: int) -> int:
    """Candidates per position at a batch size: 8 up to batch 8, 4 at 16, 2 at 32, 1 from 64."""
    return _scheduled(batch, ((8, 8), (16, 4), (32, 2)))


def scheduled_streams(batch: int) -> int:
    """Streams at a batch size: 2 up to batch 8, else 1."""
    return _scheduled(batch, ((8, 2),))


@dataclass(frozen=True, slots=True)
class MirrorConfig(LookaheadConfig):
    """Knobs of `mirror`; a window has K tokens."""

    policy: ClassVar[str] = "mirror"
    draft_sampling: DraftSampling = "sampled"
    kappa: Annotated[
        int,
        Knob(
            "Candidates per position that an early exit names; 0: by the batch, as the paper does.", least=0
        ),
    ] = DEFAULT_KAPPA
    exit: Annotated[Exit, Knob("Depth of the target's early exit.")] = DEFAULT_EXIT
    candidates: Annotated[Reading, Knob("Positions for which an early exit names candidates.")] = "each"
    acceptance_rule: Annotated[
        Rule,
        Knob(
            "Accept a sampled token with min(1, p/q), or where it equals the target's own draw.",
            sampled=True,
        ),
    ] = "speculative"
    overlap: Overlap = "on"
    streams: Annotated[
        StreamCount,
        Knob("Lookahead streams of the draft, 0 for none; batch: by the batch, as the paper does."),
    ] = "0"
    stream_acceptance: Annotated[
        float | None,
        Knob("How often a stream's proposal is right, in worlds of coin tosses.", least=0.0, most=1.0),
    ] = None

    def check(self, sampling: Sampling) -> None:
        """Refuse the acceptance of streams that are not there."""
        if self.stream_acceptance is not None and self.streams == "0":
            raise SettingError("stream_acceptance is of streams, of which there are none: give --streams too")

    def kappa_at(self, batch: int) -> int:
        """Candidates per position at a batch size."""
        return scheduled_kappa(batch) if self.kappa == BY_BATCH else self.kappa

    def streams_at(self, batch: int) -> int:
        """Streams at a batch size; 0 where the draft writes token by token."""
        return scheduled_streams(batch) if self.streams == STREAMS_BY_BATCH else int(self.streams)


def mirror(world: World, rows: Rows, config: MirrorConfig, sampling: Sampling = GREEDY) -> Steps:
    """Verify, roll out from the early exit's candidates meanwhile, reuse what fits, else draft anew.

    Without overlap, which shows what it is worth, the rollout waits for the verification.
    """
    if rows.keep_tokens and config.stream_acceptance is not None:
        raise SettingError("stream_acceptance is for coin tosses; real streams are as good as they are")
    width, kappa = rows.width, config.kappa_at(rows.width)
    drafting = _Drafting(config, width, kappa, sampling)
    windows: dict[int, Drafted] = {}
    while rows.active:
        fresh = yield from admit(world, rows)
        windows |= yield from drafting.anew(world, rows, fresh)
        view = rows.view()
        slots = view.slots
        current = tuple(windows[slot] for slot in slots)
        verify = world.target.submit(
            EarlyVerify(
                view,
                width,
                current,
                sampling,
                part=kappa,  # by schedule it depends on the batch: what was decided at another is no answer
                early=True,
                exit=config.exit,
                kappa=kappa,
                candidates=config.candidates,
                rule=config.acceptance_rule,
            )
        )
        if config.overlap == "off":
            yield verify
        said = yield verify.early
        plans = tuple(
            RolloutPlan(window, said[slot].tokens) for slot, window in zip(slots, current, strict=True)
        )
        rollout = world.draft.submit(drafting.rollout(view, plans))
        verified = yield verify
        rolled = yield rollout
        windows = {}
        for slot in slots:
            outcome = verified[slot].verdict
            window = reuse(rolled[slot].branches, outcome)
            if window is not None and not outcome.ended:
                windows[slot] = window
        hits = frozenset(windows)
        verdict = verdict_of(width, {slot: verified[slot].verdict for slot in slots})
        speculation = Speculation.drafted(width, dict(zip(slots, current, strict=True)))
        rows.commit(view, speculation, verdict, hits=hits, now=world.now)
        windows |= yield from drafting.anew(world, rows, rows.alive - hits)


class _Drafting:
    """How the draft writes windows and rollouts: token by token, or by streams."""

    def __init__(self, config: MirrorConfig, batch: int, kappa: int, sampling: Sampling) -> None:
        self.lookahead, self.sampling, self.batch = config.lookahead, sampling, batch
        self.branches: dict[str, Any] = {"kappa": kappa, "candidates": config.candidates}
        self.streams: dict[str, Any] = {}
        count = config.streams_at(batch)
        if count:
            stated = config.stream_acceptance
            self.streams = {"streams": count, "acceptance": ACCEPTANCE if stated is None else stated}
        # Tells operations of different widths apart: what was decided at one is no answer to another.
        self.part = count << 32

    def rollout(self, view: View, plans: tuple[RolloutPlan, ...]) -> Rollout:
        """The rollouts of what the exit said."""
        kind = StreamRollout if self.streams else Rollout
        part, options = self.part + self.branches["kappa"], {**self.branches, **self.streams}
        return kind(view, self.batch, plans, self.sampling, part, lookahead=self.lookahead, **options)

    def anew(self, world: World, rows: Rows, chosen: Slots) -> Steps:
        """Draft the rows in `chosen`; returns their windows by slot.

        After a glue step each of them has one unseen token.
        """
        if not chosen:
            return {}
        view = rows.view(chosen)
        slots = view.slots
        if not self.streams:
            unseen = (1,) * self.batch
            speculation = yield world.draft.submit(Draft(view, self.lookahead, unseen, self.sampling))
            return {slot: speculation.row(slot) for slot in slots}
        nothing = ((),) * len(slots)
        drafted: Mapping[int, StreamWindow] = yield world.draft.submit(
            StreamDraft(
                view,
                self.batch,
                nothing,
                self.sampling,
                self.part,
                lookahead=self.lookahead,
                **self.streams,
            )
        )
        return {slot: Drafted(drafted[slot].tokens, drafted[slot].handle) for slot in slots}


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
