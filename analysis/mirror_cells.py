"""Runs of Mirror-SD and of what it is compared with: on coins, or on a pair, simulated and live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from analysis.decided import run_deciding
from analysis.mirror_account import Account, Times, account, pieces_of_spans, pieces_of_timings
from calibrate.calibration import record
from calibrate.job import Job
from calibrate.live_runs import Cell, LiveRun, measure
from calibrate.prompts import Prompt
from hardware_profiles.decisions import Decisions
from hardware_profiles.profile import Profile
from policies.laws.mirror import draft_communication, target_communication
from policies.mirror import DEFAULT_EXIT
from policies.registry import Settings, configure
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""


@dataclass(frozen=True)
class Outcome:
    """One setting in one world.

    Attributes:
        settings: The policy and its knobs.
        batch: Rows served at once.
        world: `simulated` or `live`.
        tokens_per_second: Ratio of sums.
        speedup_vs_ar: Over plain decoding in the same world at the same batch.
        tokens_per_round: With the bonus token.
        account: Of Mirror-SD; None for all others.
    """

    settings: Settings
    batch: int
    world: str
    tokens_per_second: float
    speedup_vs_ar: float
    tokens_per_round: float
    account: Account | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "setting": self.settings.label,
            "policy": self.settings.policy,
            "knobs": self.settings.knobs,
            "batch": self.batch,
            "world": self.world,
            "tokens_per_second": self.tokens_per_second,
            "speedup_vs_ar": self.speedup_vs_ar,
            "tokens_per_round": self.tokens_per_round,
            "account": None if self.account is None else self.account.as_dict(),
        }


def settings_grid(
    lookaheads: Sequence[int], kappas: Sequence[int], exits: Sequence[str], **target: Any
) -> list[Settings]:
    """Plain decoding, SD, PEARL, Saguaro and Mirror-SD: exits and kappas, and its other readings once each.

    Args:
        lookaheads: K of all.
        kappas: Candidates per position.
        exits: Early exits.
        target: Temperature and seed.
    """
    found = [configure("ar", **target)]
    for k in lookaheads:
        found += [
            configure("sd", lookahead=k, **target),
            configure("pearl", lookahead=k, **target),
            configure("saguaro", lookahead=k, fanout=(3,), backup="primary", **target),
        ]
        found += [
            configure("mirror", lookahead=k, kappa=kappa, exit=exit_, **target)
            for exit_ in exits
            for kappa in kappas
        ]
        middle = exits[len(exits) // 2] if DEFAULT_EXIT not in exits else DEFAULT_EXIT
        plain = {"lookahead": k, "kappa": max(kappas), "exit": middle, **target}
        found += [
            configure("mirror", overlap="off", **plain),
            configure("mirror", candidates="first", **plain),
        ]
        if target.get("temperature", 0.0) > 0.0:
            found.append(configure("mirror", acceptance_rule="matching", **plain))
    return found


def on_coins(scenario: Scenario, settings: Sequence[Settings], batches: Sequence[int]) -> list[Outcome]:
    """Every setting at every batch, simulated."""
    found = []
    for batch in batches:
        here = replace(scenario, batch=batch)
        plain = simulate(here, settings[0]).summary.tokens_per_second
        found += [simulated(here, each, plain) for each in settings]
    return found


def simulated(
    scenario: Scenario, settings: Settings, plain: float, decided: Sequence[Decisions] = ()
) -> Outcome:
    """One setting simulated.

    Args:
        scenario: Where, with the decisions that the setting needs.
        settings: What.
        plain: Simulated tokens per second of plain decoding.
        decided: The same decisions, for the account.
    """
    run = simulate(scenario, settings, timeline=settings.policy == "mirror")
    summary, own = run.summary, None
    if settings.policy == "mirror":
        times = Times(summary.seconds, summary.overlap_s, summary.batch_rounds)
        table, pieces = run.rows.log.table(), pieces_of_spans(run.spans)
        curve = None if decided else scenario.tokens.power_law
        own = account(settings, times, table, pieces, decided, curve=curve)
    speed = summary.tokens_per_second
    return Outcome(settings, scenario.batch, "simulated", speed, speed / plain, summary.tokens_per_round, own)


def on_pair(
    job: Job,
    profile: Profile,
    settings: Sequence[Settings],
    prompts: Sequence[Prompt],
    *,
    prompt_set: str,
    batches: Sequence[int],
    repeats: int,
    progress: Progress,
) -> list[Outcome]:
    """Every setting on a profile's pair: simulated on what the pair decides, and measured.

    Args:
        job: Pair and machine, as the profile was measured.
        profile: What predicts.
        settings: All at one sampling, plain decoding first.
        prompts: Held out from the calibration.
        prompt_set: Their name.
        batches: Rows served at once.
        repeats: Live repetitions; 0: run Mirror-SD once, untimed, for its decisions alone.
        progress: (stage, done, total).
    """
    trace = record(replace(job, temperature=settings[0].temperature), prompts, prompt_set, progress)
    cells = [Cell("", each, batch) for batch in batches for each in settings]
    mirrors = [s for s in settings if s.policy == "mirror"]
    runs, scenario = run_deciding(job, profile, trace, cells, mirrors, repeats=repeats, progress=progress)
    assert scenario.decisions is not None
    decided = scenario.decisions.settings
    found = measured(runs) if runs else []
    for batch in batches:
        here = replace(scenario, batch=batch)
        plain = simulate(here, settings[0]).summary.tokens_per_second
        for done, each in enumerate(settings):
            own = [decided[each.label]] if each.label in decided else []
            found.append(simulated(here, each, plain, own))
            progress(f"simulations at batch {batch}", done + 1, len(settings))
    return found


def measured(runs: Sequence[LiveRun]) -> list[Outcome]:
    """Every setting of the live runs, plain decoding among them."""
    speeds = measure(runs)
    plain = {cell.batch: m.tokens_per_second for cell, m in speeds.items() if cell.settings.policy == "ar"}
    found = []
    for cell, speed in speeds.items():
        mine = [run for run in runs if run.cell == cell]
        own = _live_account(mine) if cell.settings.policy == "mirror" else None
        found.append(
            Outcome(
                cell.settings,
                cell.batch,
                "live",
                speed.tokens_per_second,
                speed.tokens_per_second / plain[cell.batch],
                sum(run.summary.tokens for run in mine) / sum(run.summary.rounds for run in mine),
                own,
            )
        )
    return found


def _live_account(runs: Sequence[LiveRun]) -> Account:
    rounds = [r for run in runs for own in run.rounds.values() for r in own]
    names = ("accepted", "length", "emitted", "hit")
    table = {name: np.array([getattr(r, name) for r in rounds], dtype=np.int64) for name in names}
    times = Times(
        sum(run.summary.seconds for run in runs),
        sum(run.summary.overlap_s for run in runs),
        sum(run.summary.batch_rounds for run in runs),
    )
    pieces = pieces_of_timings([timing for run in runs for timing in run.timings])
    return account(runs[0].settings, times, table, pieces, [run.decisions for run in runs])


@dataclass(frozen=True, slots=True)
class Shards:
    """A target of N layers on G devices, and a draft sharded in segments (the paper's SPD); no pair here is.

    Attributes:
        devices: G.
        layers: N.
        message: M, words per rank and all-reduce, of both.
        hop_s: alpha.
        word_s: beta.
    """

    devices: int
    layers: int
    message: float
    hop_s: float
    word_s: float

    def costs(self, alone: TextbookCosts) -> TextbookCosts:
        """Costs of a step where compute is divided evenly and collectives are added (`mirror.comm`).

        The target pays two all-reduces per layer; the draft two per step, whatever its depth (two segments).

        Args:
            alone: Compute of one device, without communication.
        """
        shared = (self.devices, self.hop_s, self.word_s)
        target = target_communication(self.message, self.layers, *shared)
        draft = draft_communication(self.message, 1, *shared)
        return TextbookCosts(alone.target_s / self.devices + target, alone.draft_s / self.devices + draft)
