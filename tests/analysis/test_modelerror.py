"""Model error and sources: what the simulator gets wrong where it can be checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_profiles import profile, trace

from analysis.intervals import FALLBACK, known_model_error, log_errors, model_error, ran_on
from analysis.sources import Sources, load_sources, only, temperature_of
from hardware_profiles.profile import MeasuredRun, save_profile
from hardware_profiles.trace import TraceError, write_trace
from policies.registry import SettingError, configure

RANKS = [[0] * 8] * 6


def run(policy: str, speedup: float, batch: int = 1, **knobs: object) -> MeasuredRun:
    return MeasuredRun(
        policy=policy, batch=batch, tokens=48, tokens_per_second=1.0, speedup_vs_ar=speedup, **knobs
    )  # type: ignore[arg-type]


def test_errors_against_measured_runs_by_hand() -> None:
    # SD on good texts: K = 1 is 8 / 5 as fast as AR; K = 3 emits 4 tokens in 1.75 s.
    runs = [run("ar", 1.0), run("sd", 1.6 / 1.1, lookahead=1), run("sd", 4 / 1.75 * 1.1, lookahead=3)]
    found = log_errors(profile(runs=runs), {0.0: trace(RANKS)})
    assert list(found.values()) == pytest.approx([np.log(1.1), -np.log(1.1)])
    assert model_error(profile(runs=runs), {0.0: trace(RANKS)}) == pytest.approx(np.log(1.1))


def test_batches_are_compared_with_batches() -> None:
    runs = [run("sd", 1.6, batch=b, lookahead=1) for b in (1, 2)]
    found = log_errors(profile(runs=runs), {0.0: trace(RANKS)})
    assert {batch for _, batch in found} == {1, 2}
    assert list(found.values()) == pytest.approx([0.0, 0.0])


def test_what_is_known_wins_and_what_is_unknown_is_guessed() -> None:
    traces = {0.0: trace(RANKS)}
    assert known_model_error(profile(model_error=0.07), traces) == 0.07
    assert known_model_error(profile(), traces) == 0.0
    assert known_model_error(profile(kind="measured"), traces) == FALLBACK
    assert model_error(profile(runs=[run("sd", 1.6, lookahead=1)]), traces) is None


def test_the_prompts_that_calibration_ran_are_found_by_their_tokens() -> None:
    recorded = trace([[0] * 8] * 9, categories=["a", "a", "a", "b", "b", "b", "c", "c", "c"])
    part, limit = ran_on(recorded, 48)
    assert ([r.id for r in part.requests], limit) == ([0, 1, 3, 4, 6, 7], None)
    assert ran_on(recorded, 7)[0] is recorded


def test_sources_by_file_and_category(tmp_path: Path) -> None:
    save_profile(profile(), tmp_path / "p.json")
    write_trace(trace([[0, 1], [0, 0]], categories=["code", "prose"]), tmp_path / "p.parquet")
    found = load_sources(str(tmp_path / "p.json"), category="prose")
    assert [r.id for r in found.trace(0.0).requests] == [1]
    assert temperature_of(found.trace(0.0)) == 0.0
    with pytest.raises(TraceError, match="categories: code, prose"):
        load_sources(str(tmp_path / "p.json"), category="poems")
    with pytest.raises(SettingError, match=r"calibrate --temperature 0\.7"):
        found.trace(0.7)


def test_a_bootstrap_carries_the_model_error() -> None:
    sources = Sources(profile(), {0.0: trace(RANKS)}, model_error=0.05)
    assert only(sources, "a").category == "a"
    found = sources.bootstrap(0.0).speedup(configure("sd", lookahead=1))
    assert found.low < 1.6 < found.high
