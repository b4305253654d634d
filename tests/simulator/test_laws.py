"""The simulated world agrees with the law where the law's assumptions hold.

Each case compares a long-run ratio with its law by a z-test over independent requests.  With `LEVEL` 4.5
standard errors a correct simulator fails one case in about 150 000.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policies.config import LawInputs
from policies.laws.double import pearl_speedup
from policies.laws.ssd import expected_tokens, hit_rate, hit_rate_primary
from policies.registry import configure
from simulator.costs import TextbookCosts
from simulator.law import law_prediction
from simulator.run import Scenario, simulate
from simulator.tokens import coin

LEVEL = 4.5
REQUESTS = 12
LENGTH = 600


def ratio_with_error(numerators: np.ndarray, denominators: np.ndarray) -> tuple[float, float]:
    """Ratio of sums over independent requests and its standard error (delta method)."""
    ratio = numerators.sum() / denominators.sum()
    residual = numerators - ratio * denominators
    return ratio, float(np.sqrt((residual**2).sum()) / denominators.sum())


def per_request(acceptance: float, policy: str, **knobs: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[REQUESTS] tokens, rounds, and seconds in units of a target step, each request run by itself."""
    tokens = coin(acceptance, exponent=1.0, requests=REQUESTS, length=LENGTH, prompt_length=1, seed=7)
    emitted, rounds, seconds = [], [], []
    for request in tokens.requests:
        alone = Scenario(
            tokens=replace(tokens, requests=(request,)),
            textbook=TextbookCosts(1.0, 0.1),
        )
        summary = simulate(alone, configure(policy, **knobs)).summary  # type: ignore[arg-type]
        emitted.append(summary.tokens)
        rounds.append(summary.rounds)
        seconds.append(summary.seconds)
    return np.array(emitted, float), np.array(rounds, float), np.array(seconds)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.95])
@pytest.mark.parametrize("lookahead", [1, 7])
def test_sd_tokens_per_round(acceptance: float, lookahead: int) -> None:
    tokens, rounds, _ = per_request(acceptance, "sd", lookahead=lookahead)
    measured, error = ratio_with_error(tokens, rounds)
    # A request of n tokens cuts its last round short by at most K tokens: a bias below (K + 1) / n.
    bias = (lookahead + 1) / LENGTH * expected_tokens(acceptance, lookahead)
    assert abs(measured - expected_tokens(acceptance, lookahead)) <= LEVEL * error + bias


@pytest.mark.parametrize("acceptance", [0.3, 0.8])
@pytest.mark.parametrize("lookahead", [2, 8, 14])
def test_pearl_speed(acceptance: float, lookahead: int) -> None:
    tokens, _, seconds = per_request(acceptance, "pearl", lookahead=lookahead)
    measured, error = ratio_with_error(tokens, seconds)
    law = pearl_speedup(acceptance, lookahead, 10.0)
    assert abs(measured - law) <= LEVEL * error + (lookahead + 1) / LENGTH * law


@pytest.mark.parametrize(("acceptance", "fanout"), [(0.3, 6), (0.8, 2)])
@pytest.mark.parametrize("backup", ["primary", "plain", "random"])
@pytest.mark.parametrize("lookahead", [3, 12])
def test_saguaro_speed(acceptance: float, fanout: int, backup: str, lookahead: int) -> None:
    # Draft steps of .1: K = 3 hides under the verification, K = 12 does not (T_p = 1.2).
    tokens, _, seconds = per_request(
        acceptance, "saguaro", lookahead=lookahead, fanout=(fanout,), backup=backup
    )
    measured, error = ratio_with_error(tokens, seconds)
    settings = configure("saguaro", lookahead=lookahead, fanout=(fanout,), backup=backup)
    law = law_prediction(settings, LawInputs(acceptance, 1.0, 1.0, 1.0, 0.1), batch=1).speedup_vs_ar
    assert law is not None
    # Besides the cut-off end, the request's first speculation costs K draft steps once.
    bias = (lookahead + 1 + lookahead * 0.1 * law) / LENGTH * law
    assert abs(measured - law) <= LEVEL * error + bias


def test_the_bound_bites() -> None:
    """A simulator that counted the bonus token twice would be refused by the tests above."""
    tokens, rounds, _ = per_request(0.8, "sd", lookahead=4)
    measured, error = ratio_with_error(tokens + rounds, rounds)
    law = expected_tokens(0.8, 4)
    assert abs(measured - law) > LEVEL * error + 5 / LENGTH * law


@pytest.mark.parametrize("batch", [2, 8])
def test_batch_stalls_on_any_miss(batch: int) -> None:
    # Corollary 16, many rounds so that start-up and drain are small: 2 % is 5 standard errors here.
    tokens = coin(0.8, exponent=1.0, requests=batch, length=5_000, prompt_length=1, seed=3)
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.1), batch=batch)
    settings = configure("saguaro", lookahead=4, fanout=(3,), backup="primary")
    run = simulate(scenario, settings)
    ends = np.array(run.rows.log.ends)
    table = run.rows.log.table()
    # Only rounds with a full batch: the first `full` of them.
    full = min(len(run.rows.log.rounds(i)) for i in range(batch))
    emitted = table["emitted"][: full * batch].sum()
    law = law_prediction(settings, LawInputs(0.8, 1.0, 1.0, 1.0, 0.1), batch=batch).speedup_vs_ar
    assert law is not None
    assert emitted / ends[full - 1] / batch == pytest.approx(law, rel=0.02)


def test_hit_rates_by_what_was_verified() -> None:
    tokens = coin(0.7, exponent=0.5, requests=8, length=2500, prompt_length=1, seed=5)
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.1))
    summary = simulate(
        scenario, configure("saguaro", lookahead=5, fanout=(6, 5, 5, 4, 3, 9), backup="plain")
    ).summary
    p_primary = hit_rate_primary(0.7, (6, 5, 5, 4, 3, 9), 0.5)
    p_backup = 1.0 - 6**-0.5
    # About 7 500 rounds: a binomial standard error below .008 in each class.
    assert summary.hit_rate_after_primary == pytest.approx(p_primary, abs=0.036)
    assert summary.hit_rate_after_backup == pytest.approx(p_backup, abs=0.036)
    assert summary.cache_hit_rate == pytest.approx(hit_rate(p_primary, p_backup), abs=0.036)


TOLD = LawInputs(0.8, 1.0, 1.0, 1.0, 0.1)


def test_what_is_cached_after_a_backup_has_fan_outs_of_its_own() -> None:
    # K = 4, F = 4 everywhere: p_hit,p = 1 - 1/4.  After a plain decode F_0 alone counts: 1 - 1/4 or 1 - 1/20.
    found = {}
    for backup, p_backup in ((None, 0.75), ((20, 0, 0, 0, 0), 0.95)):
        settings = configure("saguaro", lookahead=4, fanout=(4,), fanout_backup=backup, backup="plain")
        found[p_backup] = law_prediction(settings, TOLD, batch=1).cache_hit_rate
        assert found[p_backup] == pytest.approx(hit_rate(0.75, p_backup))
    assert found[0.95] > found[0.75]  # type: ignore[operator]


def test_there_is_no_law_for_a_batch_that_goes_on_without_the_misses() -> None:
    settings = configure("saguaro", lookahead=4, fanout=(4,), stall="rows")
    assert law_prediction(settings, TOLD, batch=2).speedup_vs_ar is None
    assert "no law" in str(law_prediction(settings, TOLD, batch=2).reason)


def test_redrafting_all_rows_has_the_same_law_as_redrafting_the_missing_ones() -> None:
    one, all_rows = (
        law_prediction(configure("saguaro", lookahead=4, fanout=(4,), backup=backup), TOLD, batch=8)
        for backup in ("primary", "primary-all")
    )
    assert one == all_rows


def test_pearls_ceiling_is_the_ratio_of_the_steps() -> None:
    assert law_prediction(configure("pearl", lookahead=4), TOLD, batch=1).ceiling == pytest.approx(10.0)
    assert law_prediction(configure("sd", lookahead=4), TOLD, batch=1).ceiling is None
