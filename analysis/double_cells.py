"""Runs of DOUBLE and of what it is compared with, on a profile's pair: law, simulated, measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from analysis.decided import run_deciding
from analysis.double_entries import Entry
from analysis.livecells import identical
from calibrate.calibration import record
from calibrate.job import Job
from calibrate.live_runs import Cell, LiveRun, measure
from calibrate.prompts import Prompt
from hardware_profiles.decisions import Decisions
from hardware_profiles.profile import Profile
from hardware_profiles.trace import Trace
from policies.laws.double import double_speedup_printed
from policies.registry import Settings
from simulator.law import law_inputs, law_prediction
from simulator.run import Scenario, Simulated, simulate

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""


@dataclass(frozen=True, slots=True)
class Account:
    """What retrieval did.

    Attributes:
        draft_matched: AMT of the draft: retrieved tokens confirmed, per forward.
        target_matched: The same of the target; after a rejected pending token it confirms none.
        drafted: Drafted tokens per round.
        retrieve_s: Median seconds of a lookup step, for all rows.
    """

    draft_matched: float
    target_matched: float
    drafted: float
    retrieve_s: float

    @classmethod
    def of(cls, decisions: Decisions) -> Account:
        """From the replies of a run."""
        by_kind: dict[str, list[Any]] = {"retrievingdraft": [], "retrievingverify": [], "guide": []}
        for (kind, *_), reply in decisions.replies.items():
            by_kind[kind].append(reply)
        matched = [count for reply in by_kind["retrievingdraft"] for count in reply[2]]
        # The last emitted token is the target's own, or the draft's, and not a retrieved one.
        behind = [
            max(0, len(reply[0][1]) - reply[0][0] - 1)
            for kind in ("retrievingverify", "guide")
            for reply in by_kind[kind]
        ]
        return cls(
            draft_matched=float(np.mean(matched)) if matched else 0.0,
            target_matched=sum(behind) / len(by_kind["retrievingverify"]),
            drafted=float(np.mean([len(reply[0]) for reply in by_kind["retrievingdraft"]])),
            retrieve_s=decisions.seconds.get("retrieve", 0.0),
        )


@dataclass(frozen=True)
class Outcome:
    """What one setting did; speedups are over plain decoding in the same world.

    Attributes:
        entry: The setting.
        ratio: C, target step over draft step; PEARL's ceiling.
        law: Speedup by the law; see `law_of`.
        law_printed: Of DOUBLE: equation 7 as printed, from this run's own counts.
        simulated: Speedup.
        measured: Speedup live, over all repetitions; None where nothing was timed.
        by_repeat: The same of each repetition.
        tokens_per_round: Emitted per round.
        run_length: M, accepted tokens between two rejections.
        stretch: A simulated round over a simulated plain step.  Speedup is tokens per round over it: to pass
            C, a round has to emit more than C times as many.
        account: Of DOUBLE.
        identical: Whether every greedy live text is plain decoding's; None where nothing was compared.
    """

    entry: Entry
    ratio: float
    law: float | None
    law_printed: float | None
    simulated: float
    measured: float | None
    by_repeat: tuple[float, ...]
    tokens_per_round: float
    run_length: float | None
    stretch: float
    account: Account | None
    identical: bool | None

    @property
    def error(self) -> float | None:
        """Simulated over measured speedup, less 1; None where nothing was timed."""
        return None if self.measured is None else self.simulated / self.measured - 1.0

    @property
    def passes_ceiling(self) -> bool:
        """Whether its speed, measured if it was, is above C."""
        return (self.simulated if self.measured is None else self.measured) > self.ratio

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "part": self.entry.part,
            "name": self.entry.name,
            "setting": self.entry.settings.label,
            "ceiling": self.ratio,
            "passes_ceiling": self.passes_ceiling,
            "law_speedup_vs_ar": self.law,
            "law_printed_speedup_vs_ar": self.law_printed,
            "simulated_speedup_vs_ar": self.simulated,
            "measured_speedup_vs_ar": self.measured,
            "measured_by_repeat": list(self.by_repeat),
            "error": self.error,
            "tokens_per_round": self.tokens_per_round,
            "run_length": self.run_length,
            "round_over_plain_step": self.stretch,
            "retrieval": None if self.account is None else asdict(self.account),
            "lossless": self.identical,
        }


def law_of(settings: Settings, tokens_per_round: float, ratio: float) -> float:
    """DOUBLE's speedup if a round lasted as long as the slower of f draft forwards and one target step.

    (tokens per round) C / max(f, C), or C / (f + C) in turns: equation 7 corrected (`double_speedup`) for
    a pipeline that pre-verifies while it drafts, and so has no bubble.  The tokens are counted, not
    predicted: no law gives them from an acceptance.

    Args:
        settings: Of DOUBLE.
        tokens_per_round: Of its run.
        ratio: C.
    """
    forwards = float(settings.lookahead or 1)
    turns = settings.knobs["overlap"] == "off"
    return tokens_per_round * ratio / (forwards + ratio if turns else max(forwards, ratio))


def printed_law_of(settings: Settings, run: Simulated, account: Account, ratio: float) -> float:
    """Equation 7 as printed, its gamma in tokens, from the counts of a run.

    A run of the paper ends where nothing is pending any more; L_b are the target's retrieved tokens.
    """
    table = run.rows.log.table()
    runs = max(1, int((table["hit"] != 1).sum()))
    bonus = account.target_matched * len(table["hit"])
    tokens = float(table["emitted"].sum())
    return float(
        double_speedup_printed(
            max(0.0, tokens - bonus) / runs,
            bonus / runs,
            len(table["hit"]) / runs,
            (settings.lookahead or 1) * (1.0 + account.draft_matched),
            ratio,
            matched=account.draft_matched,
        )
    )


def on_pair(
    job: Job,
    profile: Profile,
    entries: Sequence[Entry],
    prompts: Sequence[Prompt],
    *,
    repeats: int,
    progress: Progress,
) -> tuple[list[Outcome], Trace]:
    """Every setting on a profile's pair: simulated on what the pair decides, and measured.

    Args:
        job: Pair and machine, as the profile was measured.
        profile: What predicts.
        entries: All at one sampling, plain decoding first.
        prompts: Held out from the calibration.
        repeats: Live repetitions; 0: run DOUBLE once, untimed, for its decisions alone.
        progress: (stage, done, total).

    Returns:
        The outcomes, and the recording of the prompts by plain decoding.
    """
    settings = list(dict.fromkeys(entry.settings for entry in entries))
    trace = record(replace(job, temperature=settings[0].temperature), prompts, "heldout", progress)
    doubles = [each for each in settings if each.policy == "double"]
    cells = [Cell("", each) for each in settings]
    runs, scenario = run_deciding(job, profile, trace, cells, doubles, repeats=repeats, progress=progress)
    plain = simulate(scenario, settings[0])
    found = []
    for done, entry in enumerate(entries):
        found.append(_outcome(scenario, entry, plain, runs, trace))
        progress("simulations", done + 1, len(entries))
    return found, trace


def _outcome(
    scenario: Scenario, entry: Entry, plain: Simulated, runs: Sequence[LiveRun], trace: Trace
) -> Outcome:
    settings = entry.settings
    run, told = simulate(scenario, settings), law_inputs(scenario, None)
    ratio, summary = told.target_s / told.draft_s, run.summary
    account, printed = None, None
    law = law_prediction(settings, told, batch=1).speedup_vs_ar
    if settings.policy == "double":
        assert scenario.decisions is not None
        account = Account.of(scenario.decisions.settings[settings.label])
        law = law_of(settings, summary.tokens_per_round, ratio)
        printed = printed_law_of(settings, run, account, ratio)
    mine = [each for each in runs if each.settings == settings]
    measured, by_repeat = _measured(mine, runs, plain.settings)
    return Outcome(
        entry,
        ratio,
        law,
        printed,
        simulated=summary.tokens_per_second / plain.summary.tokens_per_second,
        measured=measured,
        by_repeat=by_repeat,
        tokens_per_round=summary.tokens_per_round,
        run_length=summary.run_length,
        stretch=summary.seconds / summary.batch_rounds * plain.summary.tokens_per_second,
        account=account,
        identical=identical(mine, trace) if mine and settings.temperature == 0.0 else None,
    )


def _measured(
    mine: Sequence[LiveRun], runs: Sequence[LiveRun], plain: Settings
) -> tuple[float | None, tuple[float, ...]]:
    if not mine:
        return None, ()
    own = measure(mine)[mine[0].cell]
    unit = measure([run for run in runs if run.settings == plain])[Cell("", plain)]
    by_repeat = tuple(a / b for a, b in zip(own.by_repeat, unit.by_repeat, strict=True))
    return own.tokens_per_second / unit.tokens_per_second, by_repeat
