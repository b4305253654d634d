"""Recommendations for traffic whose acceptance is a number, on hardware that nobody calibrated."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from analysis.recommend.__main__ import main
from analysis.recommend.answer import Query
from analysis.recommend.given import LENGTH, REQUESTS, given_sources, made_up
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from policies.registry import SettingError, configure
from simulator.request import DEFAULT_ACCEPTANCE, DEFAULT_PROFILE
from simulator.run import simulate

PROFILE = load_profile(find_profile("textbook"))
PAIR = ("--hw", "h100", "--tp", "4", "--target", "llama-3.1-70b", "--draft", "llama-3.2-1b")
FEW = ("--no-crossovers", "--max-tokens", "24", "--json")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_made_up_recording_has_the_rates_asked_for() -> None:
    trace = made_up(PROFILE, 0.7, curve=(1.0, 0.5))
    rank = trace.column("draft_rank")
    assert len(trace) == REQUESTS * LENGTH and len(trace.requests[0].prompt) == LENGTH
    # P(rank > F | rejected) = 0.5 / F: half need one guess, another quarter two.
    missed = rank[rank > 0]
    assert np.mean(rank == 0) == pytest.approx(0.7, abs=0.02)
    assert [np.mean(missed > f) for f in (1, 2, 5)] == pytest.approx([0.5, 0.25, 0.1], abs=0.03)


def test_it_replays_as_coins_do() -> None:
    summary = simulate(
        given_sources(PROFILE, "here", 0.8).scenario(0.0), configure("sd", lookahead=3)
    ).summary
    assert summary.tokens_per_round == pytest.approx(1 + 0.8 + 0.64 + 0.512, rel=0.04)
    flat = given_sources(PROFILE, "here", 0.8, hit_rate=0.6).scenario(0.0)
    hits = [simulate(flat, configure("saguaro", lookahead=3, fanout=(f,) * 4)).summary for f in (1, 8)]
    rates = [summary.cache_hit_rate for summary in hits]
    # After a round that was accepted whole it hits where the draft's first choice is right.
    assert rates[1] is not None and rates[0] is not None and rates[1] - rates[0] < 0.3
    with pytest.raises(SettingError, match="exponent above 0: got 1"):
        made_up(PROFILE, 1.2)


def test_a_pair_that_nobody_calibrated() -> None:
    found = json.loads(run(*PAIR, "--acceptance", "0.8", *FEW).stdout)
    assert found["profile"] == "h100x4-llama-3.1-70b+llama-3.2-1b" and found["devices"] == 5
    assert found["trace"]["acceptance"] == pytest.approx(0.8, abs=0.03)
    assert found["margin_vs_ar"]["middle"] > 2.0 and found["winner"]["policy"] == "saguaro"


def test_a_run_length_is_an_acceptance() -> None:
    answers = [run(*PAIR, *rate, *FEW).stdout for rate in (("--run-length", "4"), ("--acceptance", "0.8"))]
    assert json.loads(answers[0])["winner"] == json.loads(answers[1])["winner"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (PAIR, "nothing was recorded of such a pair: give --acceptance or --run-length"),
        (("--tp", "4"), "--target, --draft and --hw"),
        (("--hw", "cpu2-x5", "--hit-rate", "0.5"), "go with --acceptance or --run-length"),
        (("--acceptance", "0.5", "--run-length", "3"), "not both"),
        (("--hw", "cpu2-x5", "--acceptance", "0.5", "--temperature", "1"), "are of recorded traffic"),
    ],
)
def test_contradictions_are_refused(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2 and said in result.stderr


def test_acceptance_by_position_is_searched_with_coins_of_its_own() -> None:
    sources = given_sources(PROFILE, "here", (0.9, 0.5, 0.1))
    summary = simulate(sources.scenario(0.0), configure("sd", lookahead=3)).summary
    assert summary.tokens_per_round == pytest.approx(1 + 0.9 + 0.45 + 0.045, rel=0.03)
    # The recording beside them has as many tokens a round: 1 + a + a^2 + a^3.
    rate = float(np.mean(sources.trace(0.0).column("draft_rank") == 0))
    assert 1 + rate + rate**2 + rate**3 == pytest.approx(2.395, rel=0.03)


def test_recorded_lengths_are_replayed(tmp_path: Path) -> None:
    # A text of four tokens, whose rounds emit 3, 2 and 1 of those that follow the prefill's.
    row = {
        "prompt_token_ids": [1],
        "generated_token_ids": [5, 6, 7, 8],
        "acc_eagle": {"acc_len": [3, 2, 1, 1]},
    }
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row))
    sources = given_sources(PROFILE, "here", path)
    summary = simulate(sources.scenario(0.0), configure("sd", lookahead=2)).summary
    assert summary.tokens == 3 and summary.tokens_per_round == 3.0
    assert "accepted lengths of 1 recorded texts" in sources.origins[0.0]


def test_everything_that_simulate_takes() -> None:
    found = json.loads(run(*PAIR, "--acceptance", "dflash-k7", *FEW).stdout)
    line = found["paste"]["simulate"]
    assert "--acceptance dflash-k7" in line and "--hit-curve 1,1" in line
    mixed = run(*PAIR, "--acceptance", "0.9", "--miss-acceptance", "0.6", "--hit-rate", "0.8", *FEW)
    assert "--miss-acceptance 0.6" in json.loads(mixed.stdout)["paste"]["simulate"]


def test_without_hardware_it_is_the_default_pair_with_its_published_acceptance() -> None:
    sources = Query().sources()
    assert sources.profile.name == DEFAULT_PROFILE and sources.given["acceptance"] == DEFAULT_ACCEPTANCE
    assert Query(acceptance=0.7).sources().given["acceptance"] == "0.7"
    with pytest.raises(SettingError, match=r"--temperature needs recordings.*--hw cpu2-x5"):
        Query(temperature=1.0).sources()
