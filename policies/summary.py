"""Metrics of a run, defined once for both worlds (docs/reference/metrics.md gives the symbols)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from policies.rows import NO_CACHE, RoundLog
from policies.values import Source


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run of a policy achieved.

    Rates are ratios of sums over all rows.  None where nothing was counted.  Counts are whole numbers, but in
    the mean of several runs (`mean_summary`).

    Attributes:
        tokens: Tokens emitted.
        rounds: Rounds, counted per row.
        batch_rounds: Rounds of the batch.
        seconds: Decode time: the whole run less the time the batch waited for prefills.
        prefill_s: That waiting time.
        tokens_per_second: tokens / seconds.
        tokens_per_round: tokens / rounds, the bonus token included (the engines' acceptance length).
        accepted_per_round: Drafted tokens accepted per round.
        acceptance_rate: Accepted / verified positions of the primary draft; a position after the first
            rejection is not verified.
        cache_hit_rate: Rounds whose outcome was in the speculation cache / rounds in which it was looked up.
        hit_rate_after_primary: The same over rounds that verified the primary draft's tokens (p_hit,p).
        hit_rate_after_backup: The same over rounds that verified a backup's tokens or none (p_hit,b).
        run_length: Accepted tokens between two rejections (PEARL's M); a bonus token that goes on with the
            draft's own block counts as accepted.
        time_to_first_token_s: Mean over requests, from getting a slot to the first token.
        utilization: Per device, seconds of work / `seconds`.
        stalled_s: Per device, decode seconds without work.
        overlap_s: Seconds in which both devices worked.
    """

    tokens: float
    rounds: float
    batch_rounds: float
    seconds: float
    prefill_s: float
    tokens_per_second: float
    tokens_per_round: float
    accepted_per_round: float
    acceptance_rate: float | None
    cache_hit_rate: float | None
    hit_rate_after_primary: float | None
    hit_rate_after_backup: float | None
    run_length: float | None
    time_to_first_token_s: float | None
    utilization: dict[str, float]
    stalled_s: dict[str, float]
    overlap_s: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


class RoundCounts(NamedTuple):
    """What a summary counts of rounds, whatever time they take; the fields are those of `Summary`."""

    tokens: int
    rounds: int
    accepted_per_round: float
    acceptance_rate: float | None
    cache_hit_rate: float | None
    hit_rate_after_primary: float | None
    hit_rate_after_backup: float | None
    run_length: float | None


def count_rounds(
    table: dict[str, np.ndarray], *, runs_on: bool, times: np.ndarray | None = None
) -> RoundCounts:
    """Counts over the columns of a log, in any order; see `RoundLog`.

    `times` [n] says how often each of these rounds was; None: once.
    """
    accepted, length, emitted, hit = (table[name] for name in ("accepted", "length", "emitted", "hit"))

    def total(values: np.ndarray) -> int:
        return int(values.sum() if times is None else values @ times)

    rounds = len(emitted) if times is None else int(times.sum())
    primary, looked_up = table["source"] == Source.PRIMARY, hit != NO_CACHE
    whole, cut, hits = accepted == length, emitted == accepted, hit == 1

    def rate(among: np.ndarray) -> float | None:
        return _ratio(total(hits & among), total(among))

    # Where runs go on past a block (PEARL), a hit's bonus token is a drafted one that was accepted, and a
    # miss after everything else was accepted is a rejection.
    broken = ~cut & (~whole | (hit == 0)) if runs_on else ~cut & ~whole
    drafted = total(accepted) + (total(hits) if runs_on else 0)
    return RoundCounts(
        tokens=total(emitted),
        rounds=rounds,
        accepted_per_round=total(accepted) / rounds,
        acceptance_rate=_ratio(total(accepted * primary), total((accepted + (~whole & ~cut)) * primary)),
        cache_hit_rate=rate(looked_up),
        hit_rate_after_primary=rate(looked_up & primary),
        hit_rate_after_backup=rate(looked_up & ~primary),
        run_length=_ratio(drafted, total(broken)),
    )


def summarise(log: RoundLog, *, total_s: float, busy_s: dict[str, float], overlap_s: float) -> Summary:
    """Metrics of a finished run.

    Args:
        log: Its rounds.
        total_s: Seconds from start to end, prefills included.
        busy_s: Seconds of work per device, prefills left out.
        overlap_s: Seconds in which both devices worked, prefills left out.
    """
    counts = count_rounds(log.table(), runs_on=log.runs_on)
    return timed(counts, log, total_s=total_s, busy_s=busy_s, overlap_s=overlap_s)


def timed(
    counts: RoundCounts, log: RoundLog, *, total_s: float, busy_s: dict[str, float], overlap_s: float
) -> Summary:
    """As `summarise`, of rounds that are counted already."""
    seconds = total_s - log.prefill_s
    return Summary(
        **counts._asdict(),
        batch_rounds=log.batch_rounds,
        seconds=seconds,
        prefill_s=log.prefill_s,
        tokens_per_second=counts.tokens / seconds if seconds > 0 else float("inf"),
        tokens_per_round=counts.tokens / counts.rounds,
        time_to_first_token_s=_mean(log.times_to_first_token()),
        utilization={name: busy / seconds if seconds > 0 else 0.0 for name, busy in busy_s.items()},
        stalled_s={name: seconds - busy for name, busy in busy_s.items()},
        overlap_s=overlap_s,
    )


def mean_summary(runs: Sequence[Summary]) -> Summary:
    """What several runs of the same setting achieve in the mean, which differ by their luck.

    Counts and seconds are means over the runs; tokens per second, per round and accepted ones are ratios of
    sums; other rates are means over the runs that have them.
    """
    if len(runs) == 1:
        return runs[0]

    def mean(name: str) -> Any:
        values = [value for run in runs if (value := getattr(run, name)) is not None]
        if values and isinstance(values[0], dict):
            return {device: float(np.mean([value[device] for value in values])) for device in values[0]}
        return _mean(values)

    tokens, rounds = sum(run.tokens for run in runs), sum(run.rounds for run in runs)
    seconds = sum(run.seconds for run in runs)
    means: dict[str, Any] = {each.name: mean(each.name) for each in fields(Summary)}
    return replace(
        Summary(**means),
        tokens_per_second=tokens / seconds if seconds > 0 else float("inf"),
        tokens_per_round=tokens / rounds,
        accepted_per_round=sum(run.accepted_per_round * run.rounds for run in runs) / rounds,
    )


def _mean(values: Sequence[float] | np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _ratio(numerator: float, denominator: float) -> float | None:
    return float(numerator) / float(denominator) if denominator else None
