"""The grid of settings and the naive baseline."""

from __future__ import annotations

import pytest
from tiny_profiles import profile, trace

from analysis.predictions import DRAWS, expand, nearest_measured, predict
from hardware_profiles.profile import MeasuredRun, Overlap
from hardware_profiles.store import find_trace
from hardware_profiles.trace import read_trace
from policies.registry import SettingError, configure
from simulator.run import Scenario, simulate
from simulator.tokens import replay


def test_expand_gives_each_policy_its_own_knobs_and_ar_first() -> None:
    found = [s.label for s in expand(["saguaro", "sd"], [2, 4], [(1,), (3,)], ["plain"])]
    assert found == [
        "ar",
        "saguaro K=2 F=1 plain",
        "saguaro K=2 F=3 plain",
        "saguaro K=4 F=1 plain",
        "saguaro K=4 F=3 plain",
        "sd K=2",
        "sd K=4",
    ]


def test_expand_refuses_unknown_policies() -> None:
    with pytest.raises(SettingError, match="unknown policy"):
        expand(["medusa"], [4], [(3,)], ["plain"])


def measured(
    policy: str,
    lookahead: int,
    fanout: int | None = None,
    backup: str | None = None,
    *,
    batch: int = 1,
    temperature: float = 0.0,
) -> MeasuredRun:
    spread = None if fanout is None else (fanout,) * (lookahead + 1)
    return MeasuredRun(
        policy=policy, lookahead=lookahead, fanout=spread, backup=backup,
        batch=batch, temperature=temperature, tokens=1, tokens_per_second=1.0, speedup_vs_ar=1.0,
    )  # fmt: skip


def test_nearest_is_same_policy_same_backup_nearest_lookahead() -> None:
    runs = [
        measured("sd", 4),
        measured("saguaro", 3, 2, "primary"),
        measured("saguaro", 6, 2, "primary"),
        measured("saguaro", 3, 2, "plain"),
    ]
    assert nearest_measured(configure("saguaro", lookahead=7, backup="primary"), runs) is runs[2]
    assert nearest_measured(configure("saguaro", lookahead=2, backup="plain"), runs) is runs[3]
    # No run with that backup: any of the policy's.
    assert nearest_measured(configure("saguaro", lookahead=7, backup="random"), runs) is runs[2]
    assert nearest_measured(configure("pearl", lookahead=4), runs) is None


def test_nearest_prefers_the_same_temperature_then_the_batch_nearest_by_ratio() -> None:
    runs = [
        measured("sd", 4),
        measured("sd", 6, batch=4),
        measured("sd", 2, batch=4),
        measured("sd", 4, temperature=1.0),
    ]
    assert nearest_measured(configure("sd", lookahead=4), runs, 1) is runs[0]
    assert nearest_measured(configure("sd", lookahead=5), runs, 8) is runs[1]
    assert nearest_measured(configure("sd", lookahead=4, temperature=1.0), runs, 4) is runs[3]


def test_predictions_of_a_batch_by_hand() -> None:
    # Two good texts of 8 in step: 4 rounds of 1.25 s for 16 tokens; AR: 8 steps of 1 s.
    found = predict([(configure("sd", lookahead=1), 2)], profile(), {0.0: trace([[0] * 8] * 2)})[0]
    assert found.simulated.tokens_per_second == pytest.approx(16 / 5)
    assert found.simulated_speedup_vs_ar == pytest.approx(8 / 5)
    assert [len(rounds) for rounds in found.rounds.values()] == [4, 4]


def test_contention_can_be_switched_off() -> None:
    # The draft's trees take 0.25 s a step; beside a busy target twice that: K = 4 then takes 2 s a round.
    slow = Overlap(device="draft", operation="tree", while_busy="target", slowdown=2.0)
    settings = configure("saguaro", lookahead=4, fanout=(1,))
    recorded = {0.0: trace([[0] * 100])}
    plain = predict([(settings, 1)], profile(), recorded)[0]
    slowed = predict([(settings, 1)], profile(overlap=(slow,)), recorded)[0]
    assert slowed.alone_speedup_vs_ar == pytest.approx(plain.simulated_speedup_vs_ar)
    assert slowed.simulated_speedup_vs_ar < 0.9 * plain.simulated_speedup_vs_ar


def test_a_sampled_setting_is_predicted_by_the_mean_of_several_draws() -> None:
    settings, recorded = configure("sd", lookahead=2, temperature=1.0), read_trace(find_trace("cpu2-x5-t1"))
    part = recorded.slice([0, 1])
    found = predict([(settings, 1)], profile(), {1.0: part}, limit=32, seed=5)[0]
    runs = [
        simulate(Scenario(replay(part, limit=32, seed=seed), profile=profile(), seed=seed), settings).summary
        for seed in range(5, 5 + DRAWS)
    ]
    assert len({run.seconds for run in runs}) > 1  # luck differs
    assert found.simulated.tokens_per_second == pytest.approx(64 * DRAWS / sum(run.seconds for run in runs))
    # Plain decoding takes a second a token, whatever the luck.
    assert found.simulated_speedup_vs_ar == pytest.approx(found.simulated.tokens_per_second)
