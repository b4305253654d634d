"""What law, simulation and a naive baseline say of a setting before it is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

import numpy as np

from analysis.intervals import outside_grid, plain
from hardware_profiles.profile import MeasuredRun, Profile
from hardware_profiles.trace import Trace
from policies.registry import POLICIES, SettingError, Settings, configure, find_policy
from policies.rows import Round
from policies.summary import Summary, mean_summary
from policies.timeline import Span
from simulator.law import law_inputs, law_prediction
from simulator.run import Scenario, simulate
from simulator.tokens import replay

DRAWS = 8
"""Simulations of a sampled setting, whose mean is predicted: each has luck of its own, one to three per cent
of a speed over a thousand tokens."""

Setting: TypeAlias = tuple[Settings, int]
"""A policy with its knobs, sampling included, and the rows served at once."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Opinions on a setting.

    Attributes:
        settings: The setting.
        batch: Rows served at once.
        law_tokens_per_second: The law's, told the means of `trace`; None where it has no answer.
        law_speedup_vs_ar: Likewise.
        simulated: Metrics of the simulation; of sampled settings the mean over `DRAWS`.
        simulated_speedup_vs_ar: Its speed over that of simulated plain decoding in the same batch.
        alone_speedup_vs_ar: The same with devices that do not slow each other.
        rounds: Simulated rounds by request, of the first draw.
        spans: Timeline of the first request, likewise.
        extrapolated: Where costs lay outside the measured grid, prefills left out.
    """

    settings: Settings
    batch: int
    law_tokens_per_second: float | None
    law_speedup_vs_ar: float | None
    simulated: Summary
    simulated_speedup_vs_ar: float
    alone_speedup_vs_ar: float
    rounds: dict[int, list[Round]]
    spans: list[Span]
    extrapolated: tuple[str, ...]


def expand(
    policies: Sequence[str],
    lookaheads: Sequence[int],
    fanouts: Sequence[tuple[int, ...]],
    backups: Sequence[str],
    *,
    temperatures: Sequence[float] = (0.0,),
    seed: int = 0,
) -> list[Settings]:
    """Every combination of knobs that each policy has, at every temperature; AR first, and always there.

    Raises:
        SettingError: An unknown policy, or a knob out of its domain.
    """
    names = ["ar", *(find_policy(p).name for p in policies if find_policy(p).name != "ar")]
    settings: list[Settings] = []
    for temperature, name in product(temperatures, names):
        knobs = POLICIES[name].knobs
        combinations = product(
            lookaheads if "lookahead" in knobs else (None,),
            fanouts if "fanout" in knobs else (None,),
            backups if "backup" in knobs else (None,),
        )
        settings += [
            configure(
                name, lookahead=lookahead, fanout=fanout, backup=backup, temperature=temperature, seed=seed
            )
            for lookahead, fanout, backup in combinations
        ]
    return list(dict.fromkeys(settings))


def predict(
    settings: Sequence[Setting],
    profile: Profile,
    traces: Mapping[float, Trace],
    *,
    limit: int | None = None,
    seed: int = 0,
) -> list[Prediction]:
    """Predict every setting on the prompts of a trace, served in its order.

    Args:
        settings: What to predict.
        profile: Costs.
        traces: Tokens, by temperature.
        limit: Most tokens per request.
        seed: Keys latency noise and sampling luck.

    Raises:
        KeyError: No trace at a setting's temperature.
    """
    worlds = {t: _World(profile, t, trace, limit, seed) for t, trace in traces.items()}
    return [worlds[s.temperature].predict(s, batch) for s, batch in settings]


class _World:
    """The scenarios of one trace, one per draw, with plain decoding simulated once per batch."""

    def __init__(
        self, profile: Profile, temperature: float, trace: Trace, limit: int | None, seed: int
    ) -> None:
        self.requests = [r.id for r in trace.requests]
        self.scenarios = [
            Scenario(tokens=replay(trace, limit=limit, seed=each), profile=profile, seed=each)
            for each in range(seed, seed + (DRAWS if temperature > 0.0 else 1))
        ]
        self._ar: dict[tuple[Settings, int, bool], float] = {}

    def predict(self, settings: Settings, batch: int) -> Prediction:
        scenario, *others = (replace(each, batch=batch) for each in self.scenarios)
        run = simulate(scenario, settings, timeline=True)
        simulated = mean_summary([run.summary, *(simulate(each, settings).summary for each in others)])
        law = law_prediction(settings, law_inputs(scenario, settings), batch=batch)
        log = run.rows.log
        rounds = {request: log.rounds(request) for request in self.requests}
        end = log.ends[len(rounds[self.requests[0]]) - 1]
        return Prediction(
            settings=settings,
            batch=batch,
            law_tokens_per_second=law.tokens_per_second,
            law_speedup_vs_ar=law.speedup_vs_ar,
            simulated=simulated,
            simulated_speedup_vs_ar=simulated.tokens_per_second / self._plain(settings, batch, True),
            alone_speedup_vs_ar=self._alone(settings, batch),
            rounds=rounds,
            spans=[span for span in run.spans if span.end_s <= end],
            extrapolated=outside_grid(run),
        )

    def _alone(self, settings: Settings, batch: int) -> float:
        speed = self._speed(settings, batch, overlap=False)
        return speed / self._plain(settings, batch, False)

    def _plain(self, settings: Settings, batch: int, overlap: bool) -> float:
        ar = plain(settings)
        if (ar, batch, overlap) not in self._ar:
            self._ar[ar, batch, overlap] = self._speed(ar, batch, overlap=overlap)
        return self._ar[ar, batch, overlap]

    def _speed(self, settings: Settings, batch: int, *, overlap: bool) -> float:
        effects = replace(self.scenarios[0].effects, overlap=overlap)
        scenarios = [replace(each, batch=batch, effects=effects) for each in self.scenarios]
        return mean_summary([simulate(each, settings).summary for each in scenarios]).tokens_per_second


def nearest_measured(settings: Settings, runs: Sequence[MeasuredRun], batch: int = 1) -> MeasuredRun | None:
    """The calibrated setting that a careful person would take for this one: the naive baseline.

    Same policy, and same backup, temperature and batch where there is such a run (in that order; else the
    nearest temperature, then the batch nearest by ratio), then nearest lookahead, then nearest fan-out.
    """
    same = [run for run in runs if run.policy == settings.policy]
    same = [run for run in same if run.backup == settings.backup] or same
    if not same:
        return None
    return min(
        same,
        key=lambda run: (
            abs(run.temperature - settings.temperature),
            abs(float(np.log(run.batch / batch))),
            _gap(run.lookahead, settings.lookahead),
            _gap_fanout(run, settings),
        ),
    )


def _gap(a: int | None, b: int | None) -> int:
    return abs((a or 0) - (b or 0))


def _gap_fanout(run: MeasuredRun, settings: Settings) -> int:
    return abs((run.fanout or (0,))[0] - (settings.fanout or (0,))[0])


__all__ = ["Prediction", "Setting", "SettingError", "expand", "nearest_measured", "predict"]
