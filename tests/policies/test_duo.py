"""DuoDecoding in worlds small enough to be worked out by hand, and against its law."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_worlds import events, outcomes, tokens_by_hand

from policies.config import LawInputs, SettingError
from policies.duo import mean_sequences, most_sequences, openings, sequence_lengths, sequences_work
from policies.laws.duo import draft_sequences, duo_speedup
from policies.registry import configure, start
from policies.rows import Rows
from simulator.auto import resolve, settings_query
from simulator.costs import TextbookCosts
from simulator.law import law_prediction
from simulator.run import Scenario, simulate
from simulator.synthetic import Synthetic
from simulator.tokens import TokenModel, coin
from simulator.world import SimulatedWorld

# Eight tokens; the draft's first choice is right at positions 0, 1, 3, 4, 6 and 7, its second at 2, its
# fourth at 5.
PATH = ("++-++-++", [0, 0, 1, 0, 0, 3, 0, 0])


def run(
    tokens: TokenModel, *, batch: int = 1, draft_s: float = 0.25, **knobs: object
) -> tuple[SimulatedWorld, Rows]:
    world = SimulatedWorld(tokens, TextbookCosts(1.0, draft_s), timeline=True, rows=Synthetic(tokens))
    rows = Rows(tokens.requests, batch)
    world.run(start(world, rows, configure("duo", **knobs)))  # type: ignore[arg-type]
    return world, rows


def test_one_sequence_is_pearl() -> None:
    # As `test_pearl_hits_while_all_is_accepted`: K = 2, two draft steps of .25 s beside a target step of 1 s.
    # r0 emits 0, first token right: (1) pending; r1 accepts it and emits 2, the draft's first choice is wrong
    # there; r2, r3 the same from 3 on; r4 emits 6, r5 verifies (7) and the request ends
    world, rows = run(tokens_by_hand(PATH), lookahead=2, sequences="1")
    assert outcomes(rows.log.rounds(0)) == [(0, 1, 1), (1, 2, 0), (0, 1, 1), (1, 2, 0), (0, 1, 1), (1, 1, -1)]
    assert events(world)[:4] == [
        ("draft", "draftsequences", 0.0, 0.5),
        ("target", "verifypending", 0.0, 1.0),
        ("draft", "draftsequences", 1.0, 1.5),
        ("target", "verifypending", 1.0, 2.0),
    ]
    assert world.now == 6.0
    assert world.machine.overlap_s == pytest.approx(6 * 0.5)


def test_a_second_sequence_saves_a_round() -> None:
    # K = 5, two sequences: (1 + 2) + 2 tokens in three draft steps of .25 s.
    # r0 (plain) emits 0: leading sequence, its other 2 tokens are pending
    # r1 verifies 1 (right), 2 (wrong): accepted 1, the correction 2 ends it: nothing goes on
    # r2 (plain) emits 3: leading, 2 pending; r3 verifies 4 (right), 5 (wrong): emits 4, 5
    # r4 (plain) emits 6: leading; r5 verifies 7, the last token
    world, rows = run(tokens_by_hand(PATH), lookahead=5, sequences="2")
    assert outcomes(rows.log.rounds(0)) == [(0, 1, 1), (1, 2, 0), (0, 1, 1), (1, 2, 0), (0, 1, 1), (1, 1, -1)]
    assert events(world)[0] == ("draft", "draftsequences", 0.0, 0.75)


def test_the_second_choice_goes_on() -> None:
    # K = 3, two sequences of 2 and 1 tokens: draft steps 2 x .25 s.
    # r0 emits 0 (leading): 1 pending; r1 accepts 1 and emits 2, the draft's second choice: the second
    # sequence goes on, of which nothing is left; r2 (plain) emits 3 (leading): 4 pending; r3 accepts 4 and
    # emits 5, its fourth choice: neither; r4 emits 6: 7 pending; r5 ends
    _, rows = run(tokens_by_hand(PATH), lookahead=3, sequences="2")
    assert outcomes(rows.log.rounds(0)) == [(0, 1, 1), (1, 2, 1), (0, 1, 1), (1, 2, 0), (0, 1, 1), (1, 1, -1)]


def test_a_draft_slower_than_the_target_sets_the_pace() -> None:
    # K = 6, one sequence: 6 x .25 = 1.5 s of drafting a round.  r0 emits 0; r1 verifies 1, 2 (wrong): emits
    # 1, 2; r2 emits 3; r3 emits 4, 5; r4 emits 6; r5 emits 7.
    world, _ = run(tokens_by_hand(PATH), lookahead=6, sequences="1")
    assert world.now == 6 * 1.5


def test_rows_of_a_batch_do_not_know_of_each_other() -> None:
    tokens = tokens_by_hand(PATH, ("-+-+", [1, 0, 2, 0]))
    alone = [run(tokens, lookahead=3, sequences="2")[1].log.rounds(i) for i in (0, 1)]
    world, rows = run(tokens, batch=2, lookahead=3, sequences="2")
    assert [rows.log.rounds(i) for i in (0, 1)] == alone
    assert world.now == 6.0  # rounds of the longer row


def test_the_open_position_is_settled_to_the_same_end() -> None:
    # A sampled draft asks once more; with coins the answer is the same and costs nothing.
    greedy = run(tokens_by_hand(PATH), lookahead=3, sequences="2")
    sampled = run(tokens_by_hand(PATH), lookahead=3, sequences="2", temperature=1.0)
    assert outcomes(sampled[1].log.rounds(0)) == outcomes(greedy[1].log.rounds(0))
    assert sampled[0].now == greedy[0].now
    assert "settlesequences" in {name for _, name, _, _ in events(sampled[0])}


def test_budget_is_shared() -> None:
    # K = 8: one sequence of 8; 3 + 3 + 2... the leading one is a token ahead: 1 + S d <= 8.
    assert sequence_lengths(8, 1) == (8,)
    assert sequence_lengths(8, 2) == (4, 3)
    assert sequence_lengths(8, 3) == (3, 2, 2)
    assert sequence_lengths(8, 7) == (2, 1, 1, 1, 1, 1, 1)
    assert sequence_lengths(1, 1) == (1,)
    assert sequences_work(3, 8, 3, alone=False) == (("feed", 3), ("draft", 1), ("tree", 3))
    assert sequences_work(1, 4, 1, alone=True) == (("feed", 1), ("draft", 1), ("draft", 1), ("draft", 1))


@given(st.integers(1, 64), st.integers(0, 8), st.data())
def test_sequences_keep_to_their_budget(lookahead: int, wanted: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, most_sequences(lookahead, wanted)))
    lengths = sequence_lengths(lookahead, count)
    assert len(lengths) == count and min(lengths) >= 1
    assert lookahead - count < sum(lengths) <= lookahead or lookahead == 1
    work = sequences_work(1, lookahead, count, alone=count == 1)
    assert sum(tokens for _, tokens in work) <= sum(lengths)


def test_the_threshold_is_strict_and_keeps_the_leading_token() -> None:
    law, ranked = [0.5, 0.3, 0.2], [0, 1, 2]
    # theta = .5 x .4 = .2: .3 is above, .2 is not.
    assert openings(ranked, law, 0, 0.5 * 0.4, 5) == (0, 1)
    # p(1, 2) = 1: theta = .5, which no token exceeds, the likeliest least of all.
    assert openings(ranked, law, 0, 0.5, 5) == (0,)
    # One-hot: theta = p(1, 2) < 1 lets in the leading token alone; with p(1, 2) = 1 it stays all the same.
    assert openings(ranked, [1.0, 0.0, 0.0], 0, 0.3, 5) == (0,)
    assert openings(ranked, [1.0, 0.0, 0.0], 0, 1.0, 5) == (0,)
    # One-hot first law and a draft that is sure of nothing after: theta = 0 still opens no impossible token.
    assert openings(ranked, [1.0, 0.0, 0.0], 0, 0.0, 5) == (0,)
    # A drawn leading token keeps its place, whatever its rank: theta = .2 x .5.
    assert openings(ranked, law, 2, 0.2 * 0.5, 5) == (2, 0, 1)
    assert openings(ranked, law, 2, None, 2) == (2, 0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.floats(0.0, 1.0))
def test_the_threshold_is_the_laws(weights: list[int], next_top: float) -> None:
    law = np.array(weights) / sum(weights)
    ranked = np.argsort(-law, kind="stable").tolist()
    leading = ranked[0]
    expected = draft_sequences(law, next_top)
    law_ = law / law.sum()  # as the law does, to the last bit
    theta = float(law_[leading]) * next_top
    found = openings(ranked, law_[ranked].tolist(), leading, theta, len(law))
    assert found == expected.first_tokens


def test_coins_open_as_many_sequences_as_their_means_say() -> None:
    # a = .8, curve 1 - .5 / F: p(2, 1) = .2 x .5 = .1 < .64.
    # a = .3: theta = .09; steps .7 x (.5, .25, .083): .35 and .175 are above, .058 is not.
    assert mean_sequences(0.8, 1.0, 0.5, 8) == 1
    assert mean_sequences(0.3, 1.0, 0.5, 8) == 3
    assert mean_sequences(0.3, 1.0, 0.5, 2) == 2
    assert mean_sequences(0.3, None, 1.0, 8) == 1


@pytest.mark.parametrize(("acceptance", "lookahead"), [(0.8, 10), (0.8, 5), (0.5, 10), (0.9, 14)])
def test_simulation_agrees_with_the_law(acceptance: float, lookahead: int) -> None:
    """One sequence, constant times, c = 10, long texts: within three standard errors of independent texts."""
    requests, length = 40, 500
    tokens = coin(acceptance, exponent=1.0, requests=requests, length=length, prompt_length=1, seed=3)
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.1), batch=requests)
    run = simulate(scenario, configure("duo", lookahead=lookahead, sequences="1"))
    rounds = np.bincount(run.rows.log.table()["request"])
    pace = max(1.0, lookahead / 10)
    speeds = length / (rounds * pace)  # a target step takes 1 s, so this is the speedup over AR
    error = speeds.std(ddof=1) / np.sqrt(requests)
    law = duo_speedup(acceptance, lookahead, 10.0)
    # Where a text ends costs it at most one round, of `law * pace` tokens in the mean.
    assert abs(speeds.mean() - law) < 3 * error + law * (law * pace) / length
    assert error / law < 0.02
    assert run.rows.log.ends[-1] == pytest.approx(rounds.max() * pace)


def test_the_budget_is_the_cost_ratio_where_costs_are_even() -> None:
    tokens = coin(0.8, exponent=1.0, requests=8, length=400, prompt_length=1, seed=0)
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.125))
    found = resolve(scenario, settings_query("duo", "auto", sequences="2"))
    (choice,) = found.choices
    assert found.settings.label == f"duo K={choice.value} sequences=2"
    assert choice.numbers["cost_ratio"] == pytest.approx(8.0)
    speeds = choice.numbers["tokens_per_second"]
    assert {"7", "8", "9"} <= speeds.keys() and choice.value == 8


def test_the_law_knows_one_sequence() -> None:
    told = LawInputs(acceptance=0.8, exponent=1.0, scale=0.5, target_s=1.0, draft_s=0.1)
    for sequences in ("1", "dynamic"):  # doubt is too small for a second one, on average
        law = law_prediction(configure("duo", lookahead=10, sequences=sequences), told, batch=1)
        assert law.speedup_vs_ar == pytest.approx(duo_speedup(0.8, 10, 10.0))
    several = law_prediction(configure("duo", lookahead=10, sequences="3"), told, batch=1)
    assert several.speedup_vs_ar is None and "several sequences (3 here)" in str(several.reason)


def test_more_candidates_are_accepted_more_often() -> None:
    tokens = coin(0.6, exponent=1.0, scale=0.5, requests=40, length=200, prompt_length=1, seed=0)
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.1), batch=40)
    hits = []
    for sequences in ("1", "2", "4"):
        table = simulate(scenario, configure("duo", lookahead=9, sequences=sequences)).rows.log.table()
        whole = (table["accepted"] == table["length"]) & (table["hit"] >= 0)
        hits.append(float(table["hit"][whole].mean()))
    # a, then a + (1 - a)(1 - .5), then a + (1 - a)(1 - .5 / 3)
    assert hits == pytest.approx([0.6, 0.8, 1.0 - 0.4 * 0.5 / 3], abs=0.03)


@pytest.mark.parametrize(("lookahead", "sequences"), [(1, "2"), (4, "4"), (8, "8")])
def test_sequences_need_room(lookahead: int, sequences: str) -> None:
    with pytest.raises(SettingError, match=f"at least {int(sequences) + 1}.*got {lookahead}"):
        configure("duo", lookahead=lookahead, sequences=sequences)
    assert configure("duo", lookahead=int(sequences) + 1, sequences=sequences).lookahead


@pytest.mark.parametrize("sequences", ["0", "9", "many"])
def test_other_numbers_of_sequences_are_refused(sequences: str) -> None:
    with pytest.raises(SettingError, match="unknown sequences"):
        configure("duo", sequences=sequences)
