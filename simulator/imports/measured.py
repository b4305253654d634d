"""What an engine measured, in this project's names (docs/reference/metrics.md), whatever the engine calls it.

Two lists per position must never be mixed up.  *Joint*: the share of rounds whose first i drafted tokens were
all accepted; it never rises.  *Conditional*: the share of those that got as far as token i; it may do
anything.  Nearly every engine prints the joint one and calls it "per-position acceptance rate".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from hardware_profiles.jsonfile import FileRefused

DEEPEST = 1024
"""Most drafted tokens of a round that are believed."""
_ROUNDING = 1e-6


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


@dataclass(frozen=True, slots=True)
class Speeds:
    """Times and throughputs that a source states, or that follow from it without an assumption.

    Attributes:
        tokens_per_second: Output tokens per second of all requests together.
        round_s: Seconds of one draft-then-verify round.
        target_step_s: Seconds of one plain decoding step of the target.
        draft_s_per_round: Seconds a round spends drafting.
        verify_s: Seconds of one verification.
        time_to_first_token_s: Mean (median where the source has no mean).
        time_per_token_s: Seconds per output token of a request, its first token left out.
        prefill_s: Seconds of a prefill of `prefill_tokens` prompt tokens.
        prefill_tokens: Prompt tokens of `prefill_s`.
        forward_s: (new tokens, seconds) of one forward at batch 1: what a verification of that width costs.
        step_s_by_batch: (batch, seconds) of one plain decoding step.
        round_s_by_batch: (batch, K, seconds) of one round; K = 0 is plain decoding.
    """

    tokens_per_second: float | None = None
    round_s: float | None = None
    target_step_s: float | None = None
    draft_s_per_round: float | None = None
    verify_s: float | None = None
    time_to_first_token_s: float | None = None
    time_per_token_s: float | None = None
    prefill_s: float | None = None
    prefill_tokens: int | None = None
    forward_s: tuple[tuple[int, float], ...] = ()
    step_s_by_batch: tuple[tuple[int, float], ...] = ()
    round_s_by_batch: tuple[tuple[int, int, float], ...] = ()

    def __post_init__(self) -> None:
        """Times are finite."""
        _check_finite(self)

    def stated(self) -> dict[str, Any]:
        """Only what is known, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, ())}


@dataclass(frozen=True, slots=True)
class Imported:
    """One measurement of one engine.  What the source does not say is None, and listed in `missing`.

    Attributes:
        engine: Whose numbers: `vllm`, `sglang`, `llama.cpp`, ...
        source: Name of the format that was read.
        label: Which measurement of the file, where it holds several.
        version: Of the engine.
        model: Of the target.
        draft: The drafter.
        lookahead: K, drafted tokens per full round.
        rounds: Draft-then-verify rounds, counted per request.
        drafted: Drafted tokens.
        accepted: Drafted tokens accepted.
        tokens_per_round: With the bonus token.
        tokens_per_target_forward: Where forwards are known and rounds are not.
        acceptance_at_position: Conditional acceptance of the 1st, 2nd, ... drafted token.
        joint_acceptance_at_position: Joint acceptance, what engines print per position.
        histogram: Rounds by accepted tokens, 0 ... K.
        cache_hit_rate: Of a speculation cache (SSD).
        tokens_per_round_on_hit: Of rounds after a cache hit.
        tokens_per_round_on_miss: Of rounds after a cache miss.
        joint_acceptance_on_hit: Joint acceptance of rounds after a cache hit.
        acceptance_on_hit: The conditional one.
        run_length: Accepted tokens between two rejections (PEARL's MAT), which crosses rounds.
        batch: Requests served at once.
        overshoot_tokens: Tokens counted past the end of a request, which nobody received.
        speeds: Times.
        notes: What a reader should know: contradictions, biases, what was derived.
    """

    engine: str
    source: str
    label: str = ""
    version: str | None = None
    model: str | None = None
    draft: str | None = None
    lookahead: int | None = None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    tokens_per_round: float | None = None
    tokens_per_target_forward: float | None = None
    acceptance_at_position: tuple[float, ...] | None = None
    joint_acceptance_at_position: tuple[float, ...] | None = None
    histogram: tuple[int, ...] | None = None
    cache_hit_rate: float | None = None
    tokens_per_round_on_hit: float | None = None
    tokens_per_round_on_miss: float | None = None
    joint_acceptance_on_hit: tuple[float, ...] | None = None
    acceptance_on_hit: tuple[float, ...] | None = None
    run_length: float | None = None
    batch: float | None = None
    overshoot_tokens: int | None = None
    speeds: Speeds = field(default_factory=Speeds)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """What no engine can have measured is refused, whichever format says it."""
        _check_finite(self)
        if self.accepted is not None and self.drafted is not None and self.accepted > self.drafted:
            raise ImportRefused(
                f"the source contradicts itself: {self.accepted} accepted tokens of {self.drafted} drafted"
            )
        if self.tokens_per_round is not None and self.lookahead is not None:
            check_length(self.tokens_per_round, self.lookahead)

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
        said = {
            "the engine's version": self.version,
            "the lookahead": self.lookahead,
            "the number of rounds": self.rounds,
            "drafted tokens": self.drafted,
            "accepted tokens": self.accepted,
            "tokens per round": self.tokens_per_round,
            "acceptance at each position": self.acceptance_at_position,
            "the histogram of accepted tokens per round": self.histogram,
            "the batch": self.batch,
            "any time": self.speeds.stated() or None,
        }
        silent = [name for name, value in said.items() if value is None]
        return (*silent, "the hit curve of a speculation cache", "token ids")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "speeds"}
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
        return {
            **plain,
            "acceptance_rate": self.acceptance_rate,
            "accepted_share": self.accepted_share,
            "speeds": self.speeds.stated(),
            "missing": list(self.missing),
        }


def _check_finite(values: Speeds | Imported) -> None:
    """Refuse NaN and infinity, whichever way they came about; lists hold numbers or lists of them."""
    for entry in fields(values):
        waiting = [getattr(values, entry.name)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, tuple):
                waiting += value
            elif isinstance(value, float) and not math.isfinite(value):
                raise ImportRefused(f"{entry.name}: expected a finite number, got {value}")


def number(value: object, name: str, line: int | None = None) -> float:
    """A finite number of at least 0, or a clear error.

    Raises:
        ImportRefused: Anything else.
    """
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if isinstance(value, bool) or not math.isfinite(found) or found < 0.0:
        raise ImportRefused(f"{name}: expected a number of at least 0, got {value!r:.80}", line)
    return found


def count(value: object, name: str, line: int | None = None) -> int:
    """A whole number of at least 0, also as `6.5e+06`; as `number`."""
    found = number(value, name, line)
    if found != int(found) or found >= 2**63:
        raise ImportRefused(f"{name}: expected a whole number of at most 64 bits, got {value!r:.80}", line)
    return int(found)


def check_length(tokens_per_round: float, lookahead: int, line: int | None = None) -> None:
    """Refuse more tokens per round than are drafted, with the bonus token.

    Raises:
        ImportRefused: With both numbers.
    """
    if tokens_per_round > lookahead + 1 + _ROUNDING:
        raise ImportRefused(
            f"the source contradicts itself: an accept length of {tokens_per_round:g} tokens per round, "
            f"where {lookahead} drafted ones and a bonus token make {lookahead + 1} at most",
            line,
        )


def believable(value: int) -> int:
    """A number of drafted tokens per round, of a size that a list can have.

    Raises:
        ImportRefused: More than `DEEPEST`, which no engine drafts.
    """
    if value > DEEPEST:
        raise ImportRefused(f"{value} drafted tokens in a round: expected at most {DEEPEST}")
    return value


def optional(mapping: Mapping[str, Any], key: str) -> float | None:
    """`number` of an entry that may be absent or null."""
    return None if mapping.get(key) is None else number(mapping[key], key)


def milliseconds(mapping: Mapping[str, Any], key: str) -> float | None:
    """An entry in milliseconds, in seconds; None if absent."""
    value = optional(mapping, key)
    return None if value is None else value / 1e3
