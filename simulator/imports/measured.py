"""One measurement of an engine, in this project's names (docs/reference/metrics.md), whatever its own are.

Two lists per position must never be mixed up.  *Joint*: the share of rounds whose first i drafted tokens were
all accepted; it never rises.  *Conditional*: the share of those that got as far as token i; it may do
anything.  Nearly every engine prints the joint one and calls it "per-position acceptance rate".
The `from_...` functions go from what is counted to all that follows from it; `acceptance_of` makes an
acceptance file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from hardware_profiles.files import FileRefused, parse_json, to_json, write_json
from hardware_profiles.records import plain
from policies.laws.inverse import acceptance_from_tokens
from policies.registry import SettingError
from simulator.tokens.acceptance import AcceptanceFile, Provenance, joint_of
from simulator.tokens.coins import conditional_acceptance

DEEPEST = 1024
"""Most drafted tokens of a round that are believed."""
_ROUNDING = 1e-6
_VARIES = "the draft length varies: a position's rate is over the rounds that drafted so far"
_SAID = {
    "version": "the engine's version",
    "lookahead": "the lookahead",
    "rounds": "the number of rounds",
    "drafted": "drafted tokens",
    "accepted": "accepted tokens",
    "tokens_per_round": "tokens per round",
    "acceptance_at_position": "acceptance at each position",
    "histogram": "the histogram of accepted tokens per round",
    "batch": "the batch",
}
_Shares = tuple[float, ...]


class ImportRefused(FileRefused):
    """Input that is malformed, contradicts itself, or does not hold what was asked of it."""


@contextmanager
def at_line(line: int | None) -> Iterator[None]:
    """Refusals of what is read within name this line, unless they name their own."""
    try:
        yield
    except FileRefused as error:
        error.line = error.line or line
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Times and throughputs that a source states, or that follow from it without an assumption."""

    tokens_per_second: float | None = None  # output tokens of all requests together
    round_s: float | None = None  # one draft-then-verify round
    target_step_s: float | None = None  # one plain decoding step of the target
    draft_s_per_round: float | None = None
    verify_s: float | None = None  # one verification
    time_to_first_token_s: float | None = None  # mean (median where the source has no mean)
    time_per_token_s: float | None = None  # per output token of a request, its first token left out
    prefill_s: float | None = None  # of `prefill_tokens` prompt tokens
    prefill_tokens: int | None = None
    forward_s: tuple[tuple[int, float], ...] = ()  # (new tokens, seconds) of one forward at batch 1
    step_s_by_batch: tuple[tuple[int, float], ...] = ()  # (batch, seconds) of one plain decoding step
    round_s_by_batch: tuple[tuple[int, int, float], ...] = ()  # (batch, K, seconds); K = 0: plain decoding

    @property
    def speeds(self) -> dict[str, Any]:
        """Only the times that are known, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(Speeds)}
        return {name: value for name, value in values.items() if value not in (None, ())}


@dataclass(frozen=True, slots=True)
class Imported(Speeds):
    """One measurement of one engine, with its times.  What the source does not say is None (`missing`)."""

    engine: str = ""  # whose numbers: `vllm`, `sglang`, `llama.cpp`, ...; empty: that of the format
    source: str = ""  # name of the format that was read; empty: that which the registry has
    label: str = ""  # which measurement of the file, where it holds several
    version: str | None = None  # of the engine
    model: str | None = None  # the target
    draft: str | None = None
    lookahead: int | None = None  # K, drafted tokens per full round
    rounds: int | None = None  # draft-then-verify rounds, counted per request
    drafted: int | None = None  # tokens
    accepted: int | None = None  # of the drafted tokens
    tokens_per_round: float | None = None  # with the bonus token
    tokens_per_target_forward: float | None = None  # where forwards are known and rounds are not
    acceptance_at_position: _Shares | None = None  # conditional, of the 1st, 2nd, ... drafted token
    joint_acceptance_at_position: _Shares | None = None  # what engines print per position
    histogram: tuple[int, ...] | None = None  # rounds by accepted tokens, 0 ... K
    cache_hit_rate: float | None = None  # of a speculation cache (SSD)
    tokens_per_round_on_hit: float | None = None  # rounds after a cache hit
    tokens_per_round_on_miss: float | None = None
    joint_acceptance_on_hit: _Shares | None = None
    acceptance_on_hit: _Shares | None = None  # conditional
    run_length: float | None = None  # accepted between two rejections (PEARL's MAT), which crosses rounds
    batch: float | None = None  # requests served at once
    overshoot_tokens: int | None = None  # counted past the end of a request: nobody received them
    notes: tuple[str, ...] = ()  # what a reader should know: contradictions, biases, what was derived

    def __post_init__(self) -> None:
        """What no engine can have measured is refused, whichever format says it."""
        for entry in fields(self):
            waiting = [getattr(self, entry.name)]
            while waiting:  # lists hold numbers or lists of them
                value = waiting.pop()
                if isinstance(value, tuple):
                    waiting += value
                elif isinstance(value, float) and not math.isfinite(value):
                    raise ImportRefused(f"{entry.name}: expected a finite number, got {value}")
        if self.accepted is not None and self.drafted is not None and self.accepted > self.drafted:
            raise ImportRefused(
                f"the source contradicts itself: {self.accepted} accepted tokens of {self.drafted} drafted"
            )
        if self.tokens_per_round is not None and self.lookahead is not None:
            check_length(self.tokens_per_round, self.lookahead)

    @classmethod
    def from_counts(cls, rounds: int, accepted: int | None, **known: Any) -> Imported:
        """A measurement that counts rounds and accepted tokens, but no positions; `known`: more of it."""
        length = None if accepted is None else 1.0 + accepted / rounds
        return cls(rounds=rounds, accepted=accepted, tokens_per_round=length, **known)

    @classmethod
    def from_histogram(cls, histogram: Sequence[int], **known: Any) -> Imported:
        """A measurement whose rounds are counted by accepted tokens, 0 ... K; `known`: more of it.

        Raises:
            ImportRefused: No rounds, a negative count, or a total that contradicts `known`.
        """
        histogram = _fitted(histogram, known.get("lookahead"))
        rounds = sum(histogram)
        if rounds <= 0 or min(histogram) < 0:
            raise ImportRefused(f"a histogram needs rounds and no negative count, got {histogram}")
        accepted = sum(j * count for j, count in enumerate(histogram))
        for name, counted in (("rounds", rounds), ("accepted", accepted)):
            stated = known.pop(name, None)
            if stated is not None and stated != counted:
                raise ImportRefused(
                    f"the source contradicts itself: its histogram {histogram} holds {counted} {name}, it "
                    f"states {stated}"
                )
        joint = tuple(s / rounds for s in survivors_of(histogram))
        values: dict[str, Any] = {
            "lookahead": len(histogram) - 1,
            "acceptance_at_position": conditional_of(joint) if joint else None,
            "joint_acceptance_at_position": joint or None,
            "histogram": tuple(histogram),
        }
        return cls.from_counts(rounds, accepted, **values | known)

    @classmethod
    def from_survivors(cls, rounds: int, survivors: Sequence[int], **known: Any) -> Imported:
        """A measurement that counts, per position, the rounds which got that far; as `from_histogram`."""
        if any(further > here for here, further in pairwise((rounds, *survivors))):
            raise ImportRefused(
                f"counts per position must fall from at most {rounds} rounds, got {list(survivors)}: these "
                "are not joint counts, or they belong to several runs"
            )
        return cls.from_histogram(histogram_of(rounds, survivors), **known)

    @classmethod
    def from_joint(
        cls, joint: Sequence[float], *, rounds: int | None, accepted: int | None, **known: Any
    ) -> Imported:
        """A measurement with printed joint shares per position; exact counts where they can be recovered.

        Where rounds are counted without positions, `joint` is empty; totals that are not stated are None.
        """
        joint = tuple(joint)
        if rounds and not joint:
            return cls.from_counts(rounds, accepted, **known)
        conditional = conditional_of(joint)
        if rounds and accepted is not None:
            survivors = [round(share * rounds) for share in joint]
            # Shares with few digits do not give the counts back; the total tells whether they did.
            if sum(survivors) == accepted:
                return cls.from_survivors(rounds, survivors, **known)
            known.setdefault("tokens_per_round", 1.0 + accepted / rounds)
        values: dict[str, Any] = {"tokens_per_round": 1.0 + sum(joint), "lookahead": len(joint)}
        return cls(
            rounds=rounds,
            accepted=accepted,
            acceptance_at_position=conditional,
            joint_acceptance_at_position=joint,
            **values | known,
        )

    @classmethod
    def from_rounds(cls, accepted: Sequence[int], drafted: Sequence[int], **known: Any) -> Imported:
        """A measurement of single rounds, each with its accepted and drafted tokens.

        Position i was tried only in rounds that drafted so far and accepted all before it: dividing by all
        rounds would count a short draft as a rejection.

        Raises:
            ImportRefused: Lists that do not belong together.
        """
        if len(accepted) != len(drafted) or any(a > d for a, d in zip(accepted, drafted, strict=True)):
            raise ImportRefused("expected as many accepted as drafted counts, none of them larger")
        if not drafted or max(drafted) == 0:
            raise ImportRefused("expected rounds that drafted something")
        deepest, rounds = believable(max(drafted)), list(zip(accepted, drafted, strict=True))
        conditional = []
        for i in range(1, deepest + 1):
            tried = sum(d >= i and a >= i - 1 for a, d in rounds)
            conditional.append(sum(a >= i for a, _ in rounds) / tried if tried else 0.0)
        varies = min(drafted) < deepest
        return cls.from_counts(
            len(rounds),
            sum(accepted),
            lookahead=deepest,
            drafted=sum(drafted),
            acceptance_at_position=tuple(conditional),
            joint_acceptance_at_position=joint_of(conditional),
            histogram=None if varies else tuple(accepted.count(j) for j in range(deepest + 1)),
            notes=(_VARIES,) * varies,
            **known,
        )

    @property
    def accepted_share(self) -> float | None:
        """Accepted over drafted: the engines' "acceptance rate", which is no acceptance of any position."""
        return self.accepted / self.drafted if self.accepted is not None and self.drafted else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over verified positions (docs/reference/metrics.md); None without positions."""
        joint = self.joint_acceptance_at_position
        return None if not joint else sum(joint) / (1.0 + sum(joint[:-1]))

    @property
    def missing(self) -> tuple[str, ...]:
        """What the source does not say, in words."""
        silent = [words for name, words in _SAID.items() if getattr(self, name) is None]
        if not self.speeds:
            silent.append("any time")
        return (*silent, "the hit curve of a speculation cache", "token ids")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        times = {f.name for f in fields(Speeds)}
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in times}
        return {
            **{name: list(v) if isinstance(v, tuple) else v for name, v in values.items()},
            "acceptance_rate": self.acceptance_rate,
            "accepted_share": self.accepted_share,
            "speeds": self.speeds,
            "missing": list(self.missing),
        }


def overshoot(rounds: int, accepted: int | None, delivered: int | None, finished: int = 1) -> int | None:
    """Tokens of the rounds and of each request's prefill beyond those delivered; None if not known."""
    if accepted is None or delivered is None:
        return None
    return finished + rounds + accepted - delivered


def check_length(tokens_per_round: float, lookahead: int) -> None:
    """Refuse more tokens per round than are drafted, with the bonus token.

    Raises:
        ImportRefused: With both numbers.
    """
    if tokens_per_round > lookahead + 1 + _ROUNDING:
        raise ImportRefused(
            f"the source contradicts itself: an accept length of {tokens_per_round:g} tokens per round, "
            f"where {lookahead} drafted ones and a bonus token make {lookahead + 1} at most"
        )


def believable(value: int) -> int:
    """A number of drafted tokens per round, of a size that a list can have.

    Raises:
        ImportRefused: More than `DEEPEST`, which no engine drafts.
    """
    if value > DEEPEST:
        raise ImportRefused(f"{value} drafted tokens in a round: expected at most {DEEPEST}")
    return value


def conditional_of(joint: Sequence[float]) -> tuple[float, ...]:
    """Conditional acceptance at each position from the joint one.

    Raises:
        ImportRefused: The list rises somewhere, so it is not joint.
    """
    try:
        return conditional_acceptance(joint)
    except SettingError as error:
        raise ImportRefused(
            f"{error}: a list that rises is not joint (conditional rates, or counters of several runs?)"
        ) from error


def survivors_of(histogram: Sequence[float]) -> tuple[float, ...]:
    """Rounds that accepted at least 1, 2, ... K tokens, from rounds that accepted exactly 0 ... K."""
    return tuple(sum(histogram[i:]) for i in range(1, len(histogram)))


def histogram_of(rounds: int, survivors: Sequence[int]) -> tuple[int, ...]:
    """Rounds that accepted exactly 0 ... K tokens, from those that accepted at least 1 ... K."""
    return tuple(here - further for here, further in pairwise((rounds, *survivors, 0)))


def uniform(drafted: int | None, rounds: int) -> dict[str, int]:
    """`lookahead=K` where every round can have drafted as many; nothing where drafts were cut short."""
    return {"lookahead": drafted // rounds} if drafted and drafted % rounds == 0 else {}


def _fitted(histogram: Sequence[int], lookahead: int | None) -> list[int]:
    """A histogram of 0 ... K: engines may leave out positions never reached, or list further ones."""
    if lookahead is None:
        return list(histogram)
    believable(lookahead)
    if any(histogram[lookahead + 1 :]):
        raise ImportRefused(
            f"{len(histogram) - 1} tokens were accepted in a round, but only {lookahead} are drafted: "
            f"{list(histogram)}"
        )
    return [*histogram[: lookahead + 1], *[0] * (lookahead + 1 - len(histogram))]


def pool(parts: Sequence[Imported]) -> Imported:
    """Windows of one run as one measurement: counts are added, shares weighted by rounds.

    Lengths are never averaged: a window of few rounds would weigh as much as one of many.

    Raises:
        ImportRefused: A window without rounds, or windows of different lookahead.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    counted = [part.rounds for part in parts if part.rounds is not None]
    if len({part.lookahead for part in parts}) > 1 or len(counted) < len(parts):
        raise ImportRefused(
            "these measurements cannot be added up (different lookahead, or no count of rounds); choose one "
            f"with --select: {', '.join(part.label for part in parts)}"
        )
    rounds = sum(counted)
    drafted, accepted = (_total([getattr(part, name) for part in parts]) for name in ("drafted", "accepted"))
    timed = [(part.rounds or 0, part.round_s) for part in parts if part.round_s is not None]
    weight = sum(count for count, _ in timed)
    known: dict[str, Any] = {
        "round_s": math.fsum(count / weight * seconds for count, seconds in timed) if weight else None,
        "engine": first.engine,
        "source": first.source,
        "label": f"{len(parts)} pooled",
        "version": first.version,
        "lookahead": first.lookahead,
        "drafted": drafted,
        "notes": tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    }
    lists = [part.joint_acceptance_at_position or () for part in parts]
    if not all(lists):
        return Imported.from_counts(rounds, accepted, **known)
    columns = zip_longest(*lists, fillvalue=0.0)
    joint = [math.fsum(n / rounds * s for n, s in zip(counted, shares, strict=True)) for shares in columns]
    return Imported.from_joint(joint, rounds=rounds, accepted=accepted, **known)


def _total(values: Sequence[int | None]) -> int | None:
    return None if None in values else sum(value or 0 for value in values)


def iid_acceptance(tokens_per_round: float, lookahead: int) -> float:
    """The one acceptance that, the same at each position, gives this many tokens per round.

    Raises:
        ImportRefused: No acceptance between 0 and 1 does.
    """
    check_length(tokens_per_round, believable(lookahead))
    try:
        return acceptance_from_tokens(min(tokens_per_round, lookahead + 1.0), lookahead)
    except ValueError as error:
        raise ImportRefused(str(error)) from error


def acceptance_of(
    measured: Imported, file: str, *, assume_iid: bool = False, lookahead: int | None = None
) -> AcceptanceFile:
    """The acceptance file of a measurement.

    Args:
        measured: What was imported.
        file: Name of the file that it comes from.
        assume_iid: Whether a mean may stand for every position, where there is only a mean.
        lookahead: K, where the source does not state it.

    Raises:
        ImportRefused: What is needed is missing, or `lookahead` contradicts the source.
    """
    if lookahead is not None and measured.lookahead not in (None, lookahead):
        raise ImportRefused(
            f"--lookahead {lookahead} contradicts the source, which says {measured.lookahead}"
        )
    conditional, assumed = measured.acceptance_at_position, list[str]()
    if conditional is None:
        conditional, why = _from_mean(measured, assume_iid, lookahead)
        assumed.append(why)
    elif measured.lookahead is None:
        assumed.append(
            f"lookahead {len(conditional)}, the deepest position seen: the source does not state it"
        )
    return AcceptanceFile(
        source=Provenance(
            file=Path(file).name,
            format=measured.source,
            engine=measured.engine,
            version=measured.version,
            label=measured.label,
            imported_at=datetime.now(UTC).replace(microsecond=0),
        ),
        lookahead=measured.lookahead or lookahead or len(conditional),
        acceptance_at_position=conditional,
        joint_acceptance_at_position=joint_of(conditional),
        tokens_per_round=measured.tokens_per_round,
        rounds=measured.rounds,
        histogram=measured.histogram,
        speeds=parse_json(to_json(measured.speeds)),  # tuples as the lists that will be read
        assumed=tuple(assumed),
        missing=measured.missing,
        notes=measured.notes,
    )


def _from_mean(measured: Imported, assume_iid: bool, lookahead: int | None) -> tuple[tuple[float, ...], str]:
    length = measured.tokens_per_round or measured.tokens_per_target_forward
    if length is None:
        raise ImportRefused(
            "nothing to simulate from: neither acceptance per position nor tokens per round is stated "
            f"(missing: {', '.join(measured.missing)})"
        )
    if not assume_iid:
        raise ImportRefused(
            f"the source states a mean ({length:.4g} tokens per round) but no acceptance per position; "
            "--assume-iid takes it to be the same at each position"
        )
    depth = measured.lookahead or lookahead
    if depth is None:
        raise ImportRefused(
            "the source does not state the lookahead that its mean belongs to: give --lookahead"
        )
    level = iid_acceptance(length, depth)
    per = "round" if measured.tokens_per_round else "target forward"
    why = f"acceptance {level:.4f} at each of {depth} positions, from {length:.4g} tokens per {per} alone"
    return (level,) * depth, why


def write_acceptance(path: Path, acceptance: AcceptanceFile) -> None:
    """Write the file, whole or not at all."""
    write_json(path, plain(acceptance))
