"""Where a step of Mirror-SD goes and how often it falls back, in either world, beside the laws.

Times are means per round of the batch.  The laws are fed with the means of the pieces of that very run, so
that what is left between law and run is what the law does not know: host time, exchanges, contention, and
that the longer of two random times is longer than the longer mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from analysis.execute import View
from analysis.results import Row
from calibrate.live_runs import LiveRun
from hardware_profiles.decisions import Decisions
from policies.laws.mirror import (
    fallback,
    fallback_bound_printed,
    fallback_first,
    mean_passes,
    mirror_step_time_printed,
)
from policies.laws.ssd import PowerLaw, power_law_hit
from policies.mirror import STREAMS_BY_BATCH, MirrorConfig, scheduled_streams
from policies.registry import Settings
from policies.rows import NO_CACHE
from policies.timeline import Span
from policies.values import IntArray

_ROLLOUTS = {"rollout", "streamrollout"}
_DRAFTS = {"draft", "streamdraft"}


class Piece(NamedTuple):
    """An operation that was served.

    Attributes:
        operation: Its name.
        seconds: How long it took.
        late_s: Of these, after the early exit had spoken; 0 for all but `earlyverify`.
    """

    operation: str
    seconds: float
    late_s: float = 0.0


class _Step(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def start_s(self) -> float: ...
    @property
    def end_s(self) -> float: ...


class _Timing(Protocol):
    @property
    def operation(self) -> str: ...
    @property
    def start_s(self) -> float: ...
    @property
    def end_s(self) -> float: ...
    @property
    def steps(self) -> Sequence[_Step]: ...


def pieces_of_spans(spans: Iterable[Span]) -> list[Piece]:
    """The operations of a simulated run; what contention stretched is stretched in proportion."""
    found = []
    for span in spans:
        seconds = span.end_s - span.start_s
        steps: list[tuple[str, float]] = [(name, s) for name, s in span.details["steps"]]
        total = sum(s for _, s in steps)
        late = sum(s for name, s in steps if name.startswith("late"))
        found.append(Piece(span.name, seconds, seconds * late / total if total > 0.0 else 0.0))
    return found


def pieces_of_timings(timings: Iterable[_Timing]) -> list[Piece]:
    """The operations of a live run; the time of the word itself belongs to the part before the exit."""
    return [
        Piece(
            timing.operation,
            timing.end_s - timing.start_s,
            sum(step.end_s - step.start_s for step in timing.steps if step.name.startswith("late")),
        )
        for timing in timings
    ]


@dataclass(frozen=True)
class Account:
    """One run of Mirror-SD; seconds are means per round of the batch.

    Attributes:
        step_s: Decode time.
        prefix_s: Target up to the mark.
        suffix_s: Delta, target after it.
        rollout_s: Rollout of all candidates.
        redraft_s: Drafting anew: mean per draft times drafts per round, first windows included.
        hidden_s: Both devices at work.
        law_step_s: `mirror.eq10` with the fallback term.
        law_step_printed_s: Without it, as printed.
        law_hidden_s: min(Delta, rollout).
        fallback: FF, rounds with a correction that was not prepared for, of all that were looked up.
        fallback_whole: Rounds that accepted the whole window and whose next token was not prepared for; the
            paper has no rule for them.
        fallback_given_correction: FF over rounds with a correction.
        acceptance: Accepted over verified positions.
        omega: Share of emitted tokens that were among the candidates of their position; of those at the first
            one where only that has candidates.  For coins, which count the drafted token among the
            candidates, what their acceptance and hit curve make it.
        bound_printed: 1 - Omega.
        bound_counted: (1 - Omega) times the tokens per round: no run can have more fallbacks than tokens
            outside the candidates (candidates at each position).
        law_fallback: Corrected `mirror.prop1` for iid positions; None where its premise fails, that a drafted
            token is a candidate (acceptance at most Omega).
        passes: Of a streaming draft; None for others, and on coins.
    """

    step_s: float
    prefix_s: float
    suffix_s: float
    rollout_s: float
    redraft_s: float
    hidden_s: float
    law_step_s: float
    law_step_printed_s: float
    law_hidden_s: float
    fallback: float
    fallback_whole: float
    fallback_given_correction: float
    acceptance: float
    omega: float | None
    bound_printed: float | None
    bound_counted: float | None
    law_fallback: float | None
    passes: Passes | None = None

    def as_row(self) -> Row:
        """Columns; those of the passes begin with `passes_`."""
        told = {name: value for name, value in asdict(self).items() if name != "passes"}
        return told | (
            {} if self.passes is None else {f"passes_{n}": v for n, v in vars(self.passes).items()}
        )


class Times(NamedTuple):
    """Time of a run.

    Attributes:
        seconds: Decode seconds.
        overlap_s: Of these, seconds in which both devices worked.
        rounds: Rounds of the batch.
    """

    seconds: float
    overlap_s: float
    rounds: float


def account(
    settings: Settings,
    times: Times,
    table: Mapping[str, IntArray],
    pieces: Sequence[Piece],
    decisions: Sequence[Decisions] = (),
    *,
    curve: PowerLaw | None = None,
) -> Account:
    """The account of a run.

    Args:
        settings: Of the policy `mirror`.
        times: As a whole.
        table: `RoundLog.table`.
        pieces: Its operations, prefills left out or not.
        decisions: What was decided in it; empty for coins.
        curve: Hit curve that coins were tossed by.
    """
    verify = [p for p in pieces if p.operation == "earlyverify"]
    rollout_s = _mean([p.seconds for p in pieces if p.operation in _ROLLOUTS])
    redraft_s = sum(p.seconds for p in pieces if p.operation in _DRAFTS) / times.rounds
    suffix_s = _mean([p.late_s for p in verify])
    prefix_s = _mean([p.seconds for p in verify]) - suffix_s
    config = settings.config
    assert isinstance(config, MirrorConfig)
    overlaps = config.overlap == "on"
    printed = mirror_step_time_printed(prefix_s, suffix_s, rollout_s, 0.0)
    if not overlaps:
        printed = prefix_s + suffix_s + rollout_s
    first = config.candidates == "first"
    rates = _rates(table)
    omega = overlap_counted(decisions)
    if curve is not None:
        hit = float(power_law_hit((config.kappa,), curve.exponent, curve.scale)[0])
        omega = rates[3] + (1.0 - rates[3]) * hit
    tokens = float(table["emitted"].sum() / len(table["emitted"]))
    return Account(
        step_s=times.seconds / times.rounds,
        prefix_s=prefix_s,
        suffix_s=suffix_s,
        rollout_s=rollout_s,
        redraft_s=redraft_s,
        hidden_s=times.overlap_s / times.rounds,
        law_step_s=printed + redraft_s,
        law_step_printed_s=printed,
        law_hidden_s=min(suffix_s, rollout_s) if overlaps else 0.0,
        fallback=rates[0],
        fallback_whole=rates[1],
        fallback_given_correction=rates[2],
        acceptance=rates[3],
        omega=omega,
        bound_printed=None if omega is None else fallback_bound_printed(omega),
        bound_counted=None if omega is None or first else (1.0 - omega) * tokens,
        law_fallback=_law_fallback(rates[3], omega, settings.lookahead or 1, first=first),
        passes=passes_of(decisions, config.streams),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _rates(table: Mapping[str, IntArray]) -> tuple[float, float, float, float]:
    """FF, misses after whole windows, FF given a correction, acceptance."""
    looked = table["hit"] != NO_CACHE
    accepted, length, hit = (table[name] for name in ("accepted", "length", "hit"))
    whole = accepted == length
    missed = looked & (hit == 0)
    corrected = looked & ~whole
    verified = np.minimum(accepted + 1, length).sum()
    return (
        _ratio((missed & ~whole).sum(), looked.sum()),
        _ratio((missed & whole).sum(), looked.sum()),
        _ratio((missed & ~whole).sum(), corrected.sum()),
        _ratio(accepted.sum(), verified),
    )


def fallback_rate(table: Mapping[str, IntArray]) -> float | None:
    """FF: rounds with a correction not prepared for, of all that were looked up; None without any."""
    looked = table["hit"] != NO_CACHE
    missed = looked & (table["hit"] == 0) & (table["accepted"] < table["length"])
    return _ratio(missed.sum(), looked.sum()) if looked.any() else None


def _ratio(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else 0.0


def _law_fallback(acceptance: float, omega: float | None, lookahead: int, *, first: bool) -> float | None:
    if omega is None or acceptance > omega:
        return None
    return (fallback_first if first else fallback)(acceptance, omega, lookahead)


def overlap_counted(decisions: Sequence[Decisions], kappa: int | None = None) -> float | None:
    """Share of emitted tokens that were among the exit's candidates at their position (Omega, `mirror.eq9`).

    Every emitted token has one position, at which the exit saw the true text before it, so that this is the
    mean of the target's mass on the candidates, exactly for greedy decoding and in expectation for sampled.

    Args:
        decisions: What runs decided.
        kappa: Count the first so many candidates of each position; None: all.

    Returns:
        None where no candidates were recorded.
    """
    inside = counted = 0
    for run in decisions:
        for key, mark in run.marks.items():
            if key[0] == "earlyverify":
                emitted = run.replies[key][0][1]
                for token, candidates in zip(emitted, mark[0], strict=False):
                    inside += token in candidates[:kappa]
                    counted += 1
    return inside / counted if counted else None


@dataclass(frozen=True)
class Passes:
    """The passes of all windows that a run wrote, rollouts that nobody took among them.

    Attributes:
        windows: Windows written.
        shares: Share of passes that wrote 1, 2, ... tokens (eta_j of `mirror.ss`).
        tokens_per_pass: Their mean.
        acceptance: Right proposals over verified ones; 0 where none was verified.
        passes: J, mean passes per window.
        law_passes: The same where proposals are right independently with that acceptance.
        slowest: Mean passes per operation and row: those of its slowest window, since branches are written
            side by side.
        law_slowest: The same of as many independent windows.
    """

    windows: int
    shares: tuple[float, ...]
    tokens_per_pass: float
    acceptance: float
    passes: float
    law_passes: float
    slowest: float
    law_slowest: float


def passes_of(decisions: Sequence[Decisions], streams: str) -> Passes | None:
    """The passes in what runs decided; None where nothing streamed.

    Args:
        decisions: Of one setting.
        streams: Value of the knob; with `batch`, decisions of several batches count as of the narrowest.
    """
    return _counted([g for g in _groups(decisions) if g], most_streams(streams))


def most_streams(streams: str) -> int:
    """S, the most that a value of the knob `streams` means."""
    return scheduled_streams(1) if streams == STREAMS_BY_BATCH else int(streams)


def _counted(groups: Sequence[Sequence[Sequence[int]]], streams: int) -> Passes | None:
    windows = [window for group in groups for window in group]
    if not windows:
        return None
    counts = Counter(tokens for window in windows for tokens in window)
    total, written = sum(counts.values()), sum(map(sum, windows))
    acceptance = _acceptance(windows, streams)
    gamma = sum(windows[0])
    laws = {n: mean_passes(gamma, streams, acceptance, n) for n in {1, *map(len, groups)}}
    return Passes(
        windows=len(windows),
        shares=tuple(counts[n] / total for n in range(1, max(counts) + 1)),
        tokens_per_pass=written / total,
        acceptance=acceptance,
        passes=total / len(windows),
        law_passes=laws[1],
        slowest=float(np.mean([max(map(len, group)) for group in groups])),
        law_slowest=float(np.mean([laws[len(group)] for group in groups])),
    )


def _groups(decisions: Sequence[Decisions]) -> Iterator[list[list[int]]]:
    """Tokens per pass of the windows of each operation and row."""
    for run in decisions:
        for (kind, *_), reply in run.replies.items():
            if kind == "streamdraft":
                yield [reply[2]]
            elif kind == "streamrollout":
                yield reply[1]


def _acceptance(windows: Sequence[Sequence[int]], streams: int) -> float:
    """Right over verified proposals: after the first wrong one of a pass none is verified."""
    right = verified = 0
    for window in windows:
        left = sum(window) - window[0]
        for tokens in window[1:]:
            proposed = min(streams, left - 1)
            right += tokens - 1
            verified += min(tokens, proposed)
            left -= tokens
    return right / verified if verified else 0.0


def columns(view: View) -> Row:
    """Columns of a study of Mirror-SD: drafting in the open, fallbacks, and its account."""
    rounds, table = view.total("batch_rounds"), view.rounds()
    draft = (s.seconds - s.stalled_s.get("draft", s.seconds) for s in view.own.summaries)
    row: Row = {
        "exposed_s": sum(s.stalled_s["target"] for s in view.own.summaries) / rounds,
        "draft_s": sum(draft) / rounds,
        "fallback": fallback_rate(table),
    }
    if view.settings.policy != "mirror":
        return row
    run = view.own.runs[0]
    if isinstance(run, LiveRun):
        live = [run for run in view.own.runs if isinstance(run, LiveRun)]
        pieces = pieces_of_timings([timing for run in live for timing in run.timings])
    else:  # the first draw has its timeline
        pieces, rounds = pieces_of_spans(run.spans), run.summary.batch_rounds
    summaries = view.own.summaries if view.live else view.own.summaries[:1]
    times = Times(sum(s.seconds for s in summaries), sum(s.overlap_s for s in summaries), rounds)
    curve = None if view.decisions else view.scenario.tokens.power_law
    own = account(view.settings, times, table, pieces, view.decisions, curve=curve)
    return row | own.as_row()
