"""Where a step of Mirror-SD goes and how often it falls back, in either world, beside the laws.

Times are means per round of the batch.  The laws are fed with the means of the pieces of that very run, so
that what is left between law and run is what the law does not know: host time, exchanges, contention, and
that the longer of two random times is longer than the longer mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.outcomes import WorldView
from analysis.results import Row
from calibrate.live_runs import LiveRun
from hardware_profiles.reply_trace import Decisions
from policies.laws import mirror as laws
from policies.laws.ssd import power_law_hit
from policies.mirror import STREAMS_BY_BATCH, MirrorConfig, scheduled_streams
from policies.rows import NO_CACHE
from policies.timeline import Span
from policies.values import IntArray
from simulator.run import Simulated


def columns(view: WorldView) -> Row:
    """Columns of a study of Mirror-SD: drafting in the open, fallbacks, and its account."""
    summaries, rounds = view.own.summaries, view.total("batch_rounds")
    row: Row = {
        "exposed_s": sum(s.stalled_s["target"] for s in summaries) / rounds,
        "draft_s": sum(s.seconds - s.stalled_s.get("draft", s.seconds) for s in summaries) / rounds,
        "fallback": fallback_rate(view.rounds()),
    }
    return row | (account(view) if view.settings.policy == "mirror" else {})


def account(view: WorldView) -> Row:
    """Where a step of Mirror-SD goes and how often it falls back; of simulated draws the first has times.

    Returns:
        Columns, of which those in seconds are means per round of the batch:

        - `step_s`: decode time; `prefix_s`, `suffix_s`: the target before and after its early result (the
          latter is Delta); `rollout_s`: of all candidates; `redraft_s`: drafting anew, mean per draft times
          drafts per round, first windows included; `hidden_s`: both devices at work;
        - `law_step_s`: `mirror.eq10` with the fallback term; `law_step_printed_s`: without it, as printed;
          `law_hidden_s`: min(Delta, rollout);
        - `fallback` (FF): rounds with a correction that was not prepared for, of all that were looked up;
          `fallback_whole`: rounds that accepted the whole window and whose next token was not prepared for,
          for which the paper has no rule; `fallback_given_correction`: FF over rounds with a correction;
        - `acceptance`: accepted over verified positions; `omega`: share of emitted tokens that were among the
          candidates of their position, of those at the first one where only that has candidates, and for
          coins, which count the drafted token among the candidates, what acceptance and hit curve make it;
        - `bound_printed`: 1 - Omega; `bound_counted`: (1 - Omega) times the tokens per round, as no run can
          have more fallbacks than tokens outside the candidates (candidates at each position);
          `law_fallback`: corrected `mirror.prop1` for iid positions; None where its premise fails, that a
          drafted token is a candidate (acceptance at most Omega);
        - `passes_...`: those of a streaming draft (`passes_of`).
    """
    config = view.settings.config
    assert isinstance(config, MirrorConfig)
    runs = view.own.runs if view.live else view.own.runs[:1]
    seconds, overlap_s, rounds = (
        sum(getattr(run.summary, name) for run in runs) for name in ("seconds", "overlap_s", "batch_rounds")
    )
    pieces = [piece for run in runs for piece in pieces_of(run)]
    suffix_s = _mean(late_s for name, _, late_s in pieces if name == "earlyverify")
    prefix_s = _mean(s for name, s, _ in pieces if name == "earlyverify") - suffix_s
    rollout_s = _mean(s for name, s, _ in pieces if name in {"rollout", "streamrollout"})
    redraft_s = sum(s for name, s, _ in pieces if name in {"draft", "streamdraft"}) / rounds
    overlaps, each = config.overlap == "on", config.candidates == "each"
    printed = prefix_s + suffix_s + rollout_s
    if overlaps:
        printed = laws.mirror_step_time_printed(prefix_s, suffix_s, rollout_s, 0.0)

    rows = view.rounds()
    looked, missed, whole = _looked_up(rows)
    accepted, verified = rows["accepted"], np.minimum(rows["accepted"] + 1, rows["length"])
    acceptance = _ratio(accepted.sum(), verified.sum())
    omega = overlap_counted(view.decisions)
    curve = None if view.decisions else view.scenario.tokens.power_law
    if curve is not None:
        hit = float(power_law_hit((config.kappa,), curve.exponent, curve.scale)[0])
        omega = acceptance + (1.0 - acceptance) * hit
    law = None
    if omega is not None and acceptance <= omega:
        law = (laws.fallback if each else laws.fallback_first)(acceptance, omega, config.lookahead)
    tokens = float(rows["emitted"].sum() / len(rows["emitted"]))
    streaming = passes_of(view.decisions, config.streams)
    return {
        "step_s": seconds / rounds,
        "prefix_s": prefix_s,
        "suffix_s": suffix_s,
        "rollout_s": rollout_s,
        "redraft_s": redraft_s,
        "hidden_s": overlap_s / rounds,
        "law_step_s": printed + redraft_s,
        "law_step_printed_s": printed,
        "law_hidden_s": min(suffix_s, rollout_s) if overlaps else 0.0,
        "fallback": _ratio((missed & ~whole).sum(), looked.sum()),
        "fallback_whole": _ratio((missed & whole).sum(), looked.sum()),
        "fallback_given_correction": _ratio((missed & ~whole).sum(), (looked & ~whole).sum()),
        "acceptance": acceptance,
        "omega": omega,
        "bound_printed": None if omega is None else laws.fallback_bound_printed(omega),
        "bound_counted": None if omega is None or not each else (1.0 - omega) * tokens,
        "law_fallback": law,
        **{f"passes_{name}": value for name, value in streaming.items()},
    }


def pieces_of(run: LiveRun | Simulated) -> list[tuple[str, float, float]]:
    """(name, seconds, of these after the early result) of each operation of a run.

    Live, the time of the early result itself belongs to the part before it.
    """
    if isinstance(run, LiveRun):
        steps = [[(step.name, step.end_s - step.start_s) for step in timing.steps] for timing in run.timings]
        timed = zip(run.timings, steps, strict=True)
        return [(t.operation, t.end_s - t.start_s, _late(own)) for t, own in timed]
    return [stretched(span) for span in run.spans]


def stretched(span: Span) -> tuple[str, float, float]:
    """A simulated operation as `pieces_of` tells it: contention stretches all its steps alike."""
    seconds, steps = span.end_s - span.start_s, span.details["steps"]
    total = sum(s for _, s in steps)
    return span.name, seconds, seconds * _late(steps) / total if total > 0.0 else 0.0


def _late(steps: Iterable[tuple[str, float]]) -> float:
    return sum(seconds for name, seconds in steps if name.startswith("late"))


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return float(np.mean(known)) if known else 0.0


def _ratio(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else 0.0


def _looked_up(rows: Mapping[str, IntArray]) -> tuple[Any, Any, Any]:
    """Of each round whether it was looked up, whether in vain, and whether the whole window was accepted."""
    looked = rows["hit"] != NO_CACHE
    return looked, looked & (rows["hit"] == 0), rows["accepted"] == rows["length"]


def fallback_rate(rows: Mapping[str, IntArray]) -> float | None:
    """FF: rounds with a correction not prepared for, of all that were looked up; None without any."""
    looked, missed, whole = _looked_up(rows)
    return _ratio((missed & ~whole).sum(), looked.sum()) if looked.any() else None


def overlap_counted(decisions: Sequence[Decisions]) -> float | None:
    """Share of emitted tokens that were among the exit's candidates at their position (Omega, `mirror.eq9`).

    Every emitted token has one position, at which the exit saw the true text before it, so that this is the
    mean of the target's mass on the candidates, exactly for greedy decoding and in expectation for sampled.
    None where no candidates were recorded.
    """
    inside = [
        token in candidates
        for run in decisions
        for key, said in run.early.items()
        if key[0] == "earlyverify"
        for token, candidates in zip(run.replies[key][0][1], said[0], strict=False)
    ]
    return sum(inside) / len(inside) if inside else None


def passes_of(decisions: Sequence[Decisions], streams: str) -> Row:
    """The passes of all windows that runs wrote, rollouts that nobody took among them; none: empty.

    Args:
        decisions: Of one setting.
        streams: Value of the knob; with `batch`, decisions of several batches count as of the narrowest.

    Returns:
        `windows`: how many; `shares` of passes that wrote 1, 2, ... tokens (eta_j of `mirror.ss`), and
        `tokens_per_pass`; `acceptance`: right over verified proposals, 0 where none was verified; `passes`:
        J, mean passes per window, and `law_passes`, where proposals are right independently with that
        acceptance; `slowest`: mean passes per operation and row, those of its slowest window, since branches
        are written side by side, and `law_slowest` of as many independent windows.
    """
    groups = [group for group in _windows(decisions) if group]
    windows = [window for group in groups for window in group]
    if not windows:
        return {}
    most = most_streams(streams)
    counts = Counter(tokens for window in windows for tokens in window)
    total, written = sum(counts.values()), sum(map(sum, windows))
    acceptance = _acceptance(windows, most)
    gamma = sum(windows[0])
    law = {n: laws.mean_passes(gamma, most, acceptance, n) for n in {1, *map(len, groups)}}
    return {
        "windows": len(windows),
        "shares": [counts[n] / total for n in range(1, max(counts) + 1)],
        "tokens_per_pass": written / total,
        "acceptance": acceptance,
        "passes": total / len(windows),
        "law_passes": law[1],
        "slowest": float(np.mean([max(map(len, group)) for group in groups])),
        "law_slowest": float(np.mean([law[len(group)] for group in groups])),
    }


def most_streams(streams: str) -> int:
    """S, the most that a value of the knob `streams` means."""
    return scheduled_streams(1) if streams == STREAMS_BY_BATCH else int(streams)


def _windows(decisions: Sequence[Decisions]) -> Iterator[list[list[int]]]:
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
            right += tokens - 1
            verified += min(tokens, streams, left - 1)
            left -= tokens
    return _ratio(right, verified)
