"""Equal devices, candidates and the search, where the answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_profiles import profile, trace

from analysis.intervals import sums_by_request
from analysis.recommend.answer import Query, crossovers, recommend, thinned, time_per_token
from analysis.recommend.search import (
    MOST_DRAFTS,
    GridSpan,
    SettingSearch,
    deploy,
    exact_shape,
    grid,
    leaders,
    neighbours,
    refine,
)
from analysis.recommend.table import every_setting
from analysis.sources import Sources
from policies.registry import SettingError, Settings, configure
from simulator.run import Engine, Scenario, simulate
from simulator.tokens import replay

AR, SD, SSD = configure("ar"), configure("sd"), configure("saguaro", fanout=(2,))


@pytest.mark.parametrize(
    ("settings", "devices", "batch", "words", "widths"),
    [
        (AR, 2, 1, "2 replicas of 1 device", {1: 1}),
        (SD, 2, 5, "2 replicas of 1 device", {3: 1, 2: 1}),
        (SSD, 2, 5, "1 group of 2 devices", {5: 1}),
        (SSD, 5, 8, "2 groups of 2 devices", {4: 2}),
        (configure("saguaro", draft_devices=2), 3, 4, "1 group of 3 devices", {4: 1}),
    ],
)
def test_requests_are_spread_over_groups(settings, devices, batch, words, widths) -> None:  # type: ignore[no-untyped-def]
    found = deploy(settings, profile(), devices=devices, batch=batch)
    assert found is not None
    assert (found.words, dict(found.widths)) == (words, widths)


def test_a_full_grid_has_every_knob_that_changes_anything() -> None:
    # Of 2 lookaheads and 1 fan-out: plain decoding, suffix decoding, 2 SD, 2 prompt lookup, 2 PEARL; Saguaro
    # with 2 cached sets after a redraft and with 3 other backups x 2 beginnings x 2 fan-outs after x 2 sets.
    tokens = replay(trace([[0, 1, 0, 2, 0, 0, 1, 0]]))
    found = grid(tokens, 0.0, GridSpan((1, 2), (2,), everything=True))
    assert len(found) == 2 + 2 + 2 + 2 + 2 * (2 + 3 * 2 * 2 * 2)
    scenario = Scenario(tokens, profile=profile(), batch=1)
    exhaustive = [s for s in found if SettingSearch(scenario, 2, 1).try_out(s) is not None]
    assert exhaustive == found  # none is refused


def test_the_compiled_search_finds_the_winner_of_the_event_world() -> None:
    rng = np.random.default_rng(3)
    tokens = replay(trace([rng.choice([0, 0, 0, 1, 3], 20).tolist() for _ in range(3)]))
    scenario = Scenario(tokens, profile=profile(draft_s=0.2), batch=1)
    settings = grid(tokens, 0.0, GridSpan((1, 3), (1, 2)))
    ranked = [
        [choice.settings for choice in SettingSearch(replace(scenario, engine=engine), 2, 1).best(settings)]
        for engine in ("event", "compiled")
    ]
    assert ranked[0][:3] == ranked[1][:3]


def test_rejection_finds_what_exhaustive_search_of_the_event_world_finds() -> None:
    rng = np.random.default_rng(5)
    tokens = replay(trace([rng.choice([0, 0, 0, 1, 3], 10).tolist() for _ in range(12)]))
    scenario = Scenario(tokens, profile=profile(draft_s=0.2), batch=1)
    span = GridSpan((1, 3), (1, 2))
    events = SettingSearch(replace(scenario, engine="event"), 2, 1)
    search = SettingSearch(scenario, 2, 1)
    found = refine(search, span)
    every = events.best({*grid(tokens, 0.0, span), *(choice.settings for choice in search.tried)})
    assert found[0].settings.policy == every[0].settings.policy
    assert found[0].tokens_per_second == pytest.approx(every[0].tokens_per_second, rel=1e-9)


def test_a_hopeless_policy_is_known_by_its_ratio_to_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = replay(trace([[0] * 20] * 30))  # all alike: five requests say what thirty do
    scenario = Scenario(tokens, profile=profile(), batch=1)
    search = SettingSearch(scenario, 2, 1)
    monkeypatch.setattr("analysis.recommend.search.HOPELESS", (0.0, 1.0))
    found = {choice.settings.policy: choice for choice in refine(search)}
    assert found["ar"].requests == found["sd"].requests == 30
    rejected = next(choice for choice in found.values() if choice.requests < 30)
    whole = search.try_out(rejected.settings)
    assert whole is not None
    assert rejected.tokens_per_second == pytest.approx(whole.tokens_per_second, rel=1e-6)


def test_every_setting_tried_has_an_interval() -> None:
    ranks = np.random.default_rng(1).choice([0, 1, 3], p=[0.6, 0.2, 0.2], size=(24, 20)).tolist()
    answer = recommend(Sources(profile(), {0.0: trace(ranks)}, model_error=0.0), Query(crossovers=False))
    rows = every_setting(answer)
    assert len(rows) == answer.search.simulated and len({row["setting"] for row in rows}) == len(rows)
    for row in rows:
        assert row["speedup_vs_ar_low"] <= row["speedup_vs_ar"] <= row["speedup_vs_ar_high"]
        assert row["tokens_per_second_low"] <= row["tokens_per_second_high"]
    (plain,) = (row for row in rows if row["policy"] == "ar")
    assert plain["speedup_vs_ar_low"] == plain["speedup_vs_ar_high"] == 1.0
    # Where all prompts were met, resamples of sums are the answer's own bootstrap but for their luck.
    best = next(row for row in rows if row["setting"] == answer.winner.settings.label)
    assert best["requests"] == 24
    assert best["speedup_vs_ar_low"] == pytest.approx(answer.winner.over_ar.low, rel=0.03)
    assert best["speedup_vs_ar_high"] == pytest.approx(answer.winner.over_ar.high, rel=0.03)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("engine", ["compiled", "event"])
def test_the_seconds_of_a_run_are_shared_by_its_requests(engine: Engine, batch: int) -> None:
    tokens = replay(trace([[0] * 12, [5] * 12, [0, 5] * 6, [0] * 12]))
    run = simulate(Scenario(tokens, profile=profile(), batch=batch, engine=engine), SSD)
    emitted, seconds = sums_by_request(run)
    assert emitted.tolist() == [12.0] * 4
    assert seconds.sum() == pytest.approx(run.summary.seconds)
    assert seconds[1] > 2 * seconds[0]  # a token per round against five


def test_one_device_has_no_room_for_a_second_model_unless_the_profile_shares_it() -> None:
    assert deploy(SSD, profile(), devices=1, batch=1) is None
    shared = deploy(SSD, profile(placement="shared"), devices=1, batch=1)
    assert shared is not None and shared.group_devices == 1


def test_speed_on_all_devices_by_hand() -> None:
    # Two replicas of AR with a row each: 1 token/s each; with one request one of them idles.
    scenario = Scenario(tokens=replay(trace([[0] * 8] * 4)), profile=profile())
    two = SettingSearch(scenario, devices=2, batch=2).try_out(AR)
    one = SettingSearch(scenario, devices=2, batch=1).try_out(AR)
    assert two is not None and one is not None
    assert (two.tokens_per_second, two.per_device, two.per_request) == pytest.approx((2.0, 1.0, 1.0))
    assert (one.tokens_per_second, one.per_device, one.per_busy_device) == pytest.approx((1.0, 0.5, 1.0))


def test_what_cannot_run_is_refused_with_its_reason() -> None:
    scenario = Scenario(tokens=replay(trace([[0] * 8] * 4, listed=4)), profile=profile())
    search = SettingSearch(scenario, devices=2, batch=1)
    wide = configure("saguaro", lookahead=2, fanout=(9,))
    assert search.best([wide, AR])[0].settings == AR
    assert "fan-out 9 is more than this trace can decide" in search.refused[wide]


def test_shapes_follow_the_recorded_outcomes() -> None:
    # All is rejected at the first token, which is the draft's third choice: 2 guesses on position 0 hit.
    tokens = replay(trace([[2] * 30] * 4))
    assert exact_shape(tokens, 2, 6) == (2, 0, 0)
    near = neighbours(configure("saguaro", lookahead=2, fanout=(2,)), tokens)
    assert {s.lookahead for s in near} == {1, 2, 3}
    assert {"primary", "plain", "random", "ngram"} <= {s.backup for s in near}
    assert len(grid(tokens, 0.0, GridSpan((1, 2), (1,)))) == 2 + 2 + 2 + 2 + 4


def hard(length: int = 24) -> list[list[int]]:
    return [[5] * length] * 8


def easy(length: int = 24) -> list[list[int]]:
    return [[0] * length] * 8


def test_a_draft_that_is_never_right_means_plain_decoding() -> None:
    sources = Sources(profile(), {0.0: trace(hard())}, model_error=0.01)
    found = recommend(sources, Query(crossovers=False))
    assert found.winner.settings.policy == "ar"
    assert found.over_sd.low > 1.0


def test_a_draft_that_is_always_right_means_ssd_for_one_request_and_sd_replicas_for_many() -> None:
    sources = Sources(profile(), {0.0: trace(easy())}, model_error=0.0)
    one = recommend(sources, Query(batch=1, crossovers=False))
    # Drafting is hidden: a round of K + 1 tokens takes a target step (plus the draft's excess).
    assert one.winner.settings.policy in {"saguaro", "pearl"}
    assert one.over_sd.low > 1.2
    # Where costs grow with the batch, two replicas with half of the rows each are twice as fast.
    loaded = Sources(profile(linear=True), {0.0: trace(easy())}, model_error=0.0)
    many = recommend(loaded, Query(batch=8, crossovers=False))
    assert many.winner.settings.policy == "sd"
    assert set(many.best) >= {"ar", "sd", "saguaro"}


def test_one_device_allows_plain_decoding_and_sd_only() -> None:
    sources = Sources(profile(), {0.0: trace(easy())}, model_error=0.0)
    found = recommend(sources, Query(max_devices=1, crossovers=False))
    assert set(found.best) == {"ar", "sd", "pld", "suffix"} and found.winner.settings.policy == "sd"


def test_winner_and_runner_up_that_do_not_differ_are_not_told_apart() -> None:
    sources = Sources(profile(draft_s=1e-6), {0.0: trace(hard())}, model_error=0.02)
    found = recommend(sources, Query(max_devices=1, crossovers=False))
    assert not found.runner_up.distinguishable
    clear = recommend(Sources(profile(), {0.0: trace(easy())}, 0.0), Query(max_devices=1, crossovers=False))
    assert clear.runner_up.distinguishable


def test_many_devices_are_more_groups_not_more_drafts_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty devices take no longer to search than five."""
    asked = []

    def recorded(*_: object, draft_devices: int) -> list[Settings]:
        asked.append(draft_devices)
        return [AR, SD]

    monkeypatch.setattr("analysis.recommend.search.grid", recorded)
    scenario = Scenario(tokens=replay(trace([[0] * 8] * 4, listed=4)), profile=profile())
    for devices in (2, 5, 40):
        assert refine(SettingSearch(scenario, devices, 1))
    assert asked == [1, MOST_DRAFTS, MOST_DRAFTS]


def test_crossovers_are_seen() -> None:
    sources = Sources(profile(linear=True), {0.0: trace(easy())}, model_error=0.0)
    found = recommend(sources, Query(batch=1))
    assert [point.at for point in found.by_batch] == [1, 2, 4, 8, 16]
    policies = [point.best.policy for point in found.by_batch]
    assert policies[0] in {"saguaro", "pearl"} and policies[-1] == "sd"
    assert crossovers(found.by_batch)
    assert found.by_acceptance[0].speedup_vs_ar < found.by_acceptance[-1].speedup_vs_ar


def test_thinning_meets_the_acceptance_and_keeps_the_ranking_consistent() -> None:
    ranks = np.random.default_rng(0).choice([0, 1, 3], p=[0.6, 0.2, 0.2], size=(10, 200)).tolist()
    recorded = trace(ranks)
    for wanted in (0.3, 0.9):
        found = thinned(recorded, wanted)
        rank = found.column("draft_rank")
        assert np.mean(rank == 0) == pytest.approx(wanted, abs=0.03)
        listed = found.column("draft_top_ids")
        assert (listed[np.arange(len(rank)), rank] == found.token).all()
        assert all(len(set(row)) == len(row) for row in listed.tolist())


def test_time_per_token_adds_up() -> None:
    scenario = Scenario(tokens=replay(trace([[0, 0, 1, 0] * 6] * 4)), profile=profile())
    for settings in (AR, SD, SSD, configure("pearl", lookahead=2)):
        choice = SettingSearch(scenario, devices=2, batch=1).try_out(settings)
        assert choice is not None
        parts = time_per_token(choice.summary)
        assert sum(parts.values()) == pytest.approx(1e3 / choice.summary.tokens_per_second)
        assert min(parts.values()) >= 0.0


def test_leaders_keep_the_best_of_each_policy() -> None:
    scenario = Scenario(tokens=replay(trace(easy())), profile=profile())
    ranked = SettingSearch(scenario, 2, 1).best([AR, SD, SSD, configure("saguaro", fanout=(1,))])
    assert {c.settings.policy for c in leaders(ranked, 1)} == {"ar", "sd", "saguaro"}


@pytest.mark.parametrize("fields", [{"batch": 0}, {"max_devices": 0}, {"temperature": -1.0}])
def test_bad_wishes_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(SettingError, match="must be at least"):
        Query(**fields)  # type: ignore[arg-type]
