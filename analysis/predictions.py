"""What law, simulation and a naive baseline say of a setting before it is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from hardware_profiles.profile import MeasuredRun, Profile
from hardware_profiles.trace import Trace
from policies.records import Round, Span
from policies.registry import POLICIES, SettingError, Settings, configure, find_policy
from policies.summary import Summary
from simulator.law import assume, opinion
from simulator.run import Scenario, simulate
from simulator.tokens import replay


@dataclass(frozen=True, slots=True)
class Prediction:
    """Opinions on a setting at batch 1.

    Attributes:
        settings: The setting.
        law_tokens_per_second: The law's, told the means of `trace`; None where it has no answer.
        law_speedup_vs_ar: Likewise.
        simulated: Metrics of the simulation.
        simulated_speedup_vs_ar: Its speed over that of simulated plain decoding.
        rounds: Simulated rounds by request.
        spans: Timeline of the first request.
    """

    settings: Settings
    law_tokens_per_second: float | None
    law_speedup_vs_ar: float | None
    simulated: Summary
    simulated_speedup_vs_ar: float
    rounds: dict[int, list[Round]]
    spans: list[Span]


def expand(
    policies: Sequence[str],
    lookaheads: Sequence[int],
    fanouts: Sequence[tuple[int, ...]],
    backups: Sequence[str],
    *,
    seed: int = 0,
) -> list[Settings]:
    """Every combination of knobs that each policy has; AR first, and always there.

    Raises:
        SettingError: An unknown policy, or a knob out of its domain.
    """
    names = ["ar", *(find_policy(p).name for p in policies if find_policy(p).name != "ar")]
    settings: list[Settings] = []
    for name in names:
        knobs = POLICIES[name].knobs
        combinations = product(
            lookaheads if "lookahead" in knobs else (None,),
            fanouts if "fanout" in knobs else (None,),
            backups if "backup" in knobs else (None,),
        )
        settings += [
            configure(name, lookahead=lookahead, fanout=fanout, backup=backup, seed=seed)
            for lookahead, fanout, backup in combinations
        ]
    return list(dict.fromkeys(settings))


def predict(
    settings: Sequence[Settings], profile: Profile, trace: Trace, *, limit: int | None = None, seed: int = 0
) -> list[Prediction]:
    """Predict every setting on the prompts of a trace, one request at a time.

    Args:
        settings: What to predict.
        profile: Costs.
        trace: Tokens.
        limit: Most tokens per request.
        seed: Keys latency noise.
    """
    scenario = Scenario(tokens=replay(trace, limit=limit), profile=profile, seed=seed)
    told = assume(scenario)
    ar = simulate(scenario, configure("ar")).summary.tokens_per_second
    predictions = []
    for setting in settings:
        run = simulate(scenario, setting, timeline=True)
        law = opinion(setting, told, batch=1)
        first = run.rows.log.rounds(trace.requests[0].id)
        end = run.rows.log.ends[len(first) - 1]
        predictions.append(
            Prediction(
                settings=setting,
                law_tokens_per_second=law.tokens_per_second,
                law_speedup_vs_ar=law.speedup_vs_ar,
                simulated=run.summary,
                simulated_speedup_vs_ar=run.summary.tokens_per_second / ar,
                rounds={r.id: run.rows.log.rounds(r.id) for r in trace.requests},
                spans=[span for span in run.spans if span.end_s <= end],
            )
        )
    return predictions


def nearest_measured(settings: Settings, runs: Sequence[MeasuredRun]) -> MeasuredRun | None:
    """The calibrated setting that a careful person would take for this one: the naive baseline.

    Same policy and backup if there is one (then same policy), nearest lookahead, then nearest fan-out.
    """
    same = [run for run in runs if run.policy == settings.policy]
    same = [run for run in same if run.backup == settings.backup] or same
    if not same:
        return None
    return min(same, key=lambda run: (_gap(run.lookahead, settings.lookahead), _gap_fanout(run, settings)))


def _gap(a: int | None, b: int | None) -> int:
    return abs((a or 0) - (b or 0))


def _gap_fanout(run: MeasuredRun, settings: Settings) -> int:
    return abs((run.fanout or (0,))[0] - (settings.fanout or (0,))[0])


__all__ = ["Prediction", "SettingError", "expand", "nearest_measured", "predict"]
