"""Fits and forecasts on cases that can be worked out by hand."""

from __future__ import annotations

import pytest

from analysis.papers.cells import load_cells
from analysis.papers.double import double_coin, double_speedup
from analysis.papers.duodecoding import duo_coin, duo_speedup
from analysis.papers.forecast import (
    Band,
    Coin,
    Forecast,
    acceptance_of_pearl,
    acceptance_of_tokens,
    assumed,
    chain,
    given,
    naive_guess,
    relative,
    spread,
    toss,
)
from analysis.papers.mirror import mirror_over_sd
from analysis.papers.predicted import predict_paper
from analysis.papers.rasd import fused_tau, step_cost
from policies.laws.double import pearl_speedup


def one(paper: str, law: str, **columns: str) -> Forecast:
    found = [
        f
        for f in predict_paper(paper, simulate=False).forecasts
        if f.law.startswith(law) and all(getattr(f.cell, k) == v for k, v in columns.items())
    ]
    assert len(found) == 1
    return found[0]


def test_a_chain_is_recovered_from_its_own_points() -> None:
    # a = .5, c = .1: K = 1: 1.5 / 1.1; K = 2: 1.75 / 1.2; K = 3: 1.875 / 1.3.
    points = [(1, 1.5 / 1.1), (2, 1.75 / 1.2), (3, 1.875 / 1.3)]
    for some in (points, points[:2]):
        accepted, cost = chain(some)
        assert accepted == pytest.approx(0.5, abs=1e-4) and cost == pytest.approx(0.1, abs=1e-4)
    # More tokens than K + 1: the nearest law has a = 1, and a cost of 0, not a negative one.
    accepted, cost = chain([(1, 2.5), (2, 3.5)])
    assert accepted > 0.98 and cost == 0.0


def test_acceptance_from_tokens_and_from_pearl() -> None:
    assert acceptance_of_tokens(1.75, 2) == pytest.approx(0.5)  # 1 + .5 + .25
    assert acceptance_of_tokens(9.0, 2) == pytest.approx(1.0)  # more than K + 1: none gives so many
    assert acceptance_of_tokens(0.5, 2) == pytest.approx(0.0)
    # a = .5, g = C = 1: .5 / (.5 (.5 + .5)) = 1.
    assert pearl_speedup(0.5, 1, 1.0) == pytest.approx(1.0)
    assert acceptance_of_pearl(pearl_speedup(0.7, 4, 4.0), 4, 4.0) == pytest.approx(0.7)


def test_the_longer_of_two_matches() -> None:
    # Means 1 and 1: q = 1/2 each, E[max] = 1 + 1 - (1/4) / (3/4) = 5/3.
    assert fused_tau(1.0, 1.0) == pytest.approx(5 / 3)
    assert fused_tau(2.0, 0.0) == 2.0
    assert step_cost(3.0, 2.0) == 2.0


def test_mirror_over_sd() -> None:
    # Draft half a step, exit in the middle, no streams: 1.5 / (.5 + max(.5, .5)) = 1.5, the cap of overlap.
    assert mirror_over_sd(0.5, 1.0, 0.0, 0.5, 0.0) == 1.5
    # Two tokens per internal step hide a draft of a whole step: 2 / 1.
    assert mirror_over_sd(1.0, 2.0, 0.0, 0.5, 0.0) == 2.0
    # Every tenth window drafted again: 2 / (1 + .1 * .5).
    assert mirror_over_sd(1.0, 2.0, 0.1, 0.5, 0.0) == pytest.approx(2 / 1.05)


def test_a_first_token_that_is_sure_makes_every_other_round_a_full_one() -> None:
    # a = .5, long drafts: PEARL 1 / (.5 * 1.5) = 4/3.  h = 1: (1 + 2) / 2 = 1.5.
    assert duo_speedup(0.5, 64) == pytest.approx(4 / 3)
    assert duo_speedup(0.5, 64, 0.5) == pytest.approx(4 / 3)
    assert duo_speedup(0.5, 64, 1.0) == pytest.approx(1.5)


def test_double_without_matches_is_pearl() -> None:
    assert double_speedup(0.8, 4.0, 0.0) == pearl_speedup(0.8, 4, 4.0)
    # One match per step doubles the ratio.
    assert double_speedup(0.8, 4.0, 1.0) == pearl_speedup(0.8, 8, 8.0)


def test_naive_guess_leaves_its_own_row_out() -> None:
    cells = load_cells("ssd")[:3]
    values = [cell.value for cell in cells]
    # The other two rows' ratios to a baseline of 2, averaged, times 4.
    expected = (values[1] / 2 + values[2] / 2) / 2 * 4
    bases = {cells[0]: 4.0, cells[1]: 2.0, cells[2]: 2.0}
    assert naive_guess(cells[0], cells, bases.get) == pytest.approx(expected)
    assert naive_guess(cells[0], cells[:1], bases.get) is None
    # Rows without a baseline do not count, and a cell without one has no guess.
    assert naive_guess(cells[0], cells, {cells[0]: 4.0, cells[1]: 2.0}.get) == values[1] / 2 * 4
    assert naive_guess(cells[0], cells, {cells[1]: 2.0}.get) is None


def test_intervals_are_the_extremes_over_all_corners() -> None:
    known = {"x": given("x", 2.0, 0.5), "y": assumed("y", 0.0, -1.0, 1.0), "z": given("z", 3.0)}
    # x y over 1.5..2.5 and -1..1; z is known, and not asked for.
    assert spread(lambda x, y: x * y, known) == Band(0.0, -2.5, 2.5)
    assert known["x"].text == "x given 2 in 1.5..2.5" and given("z", 1.0).text == "z given 1"
    assert Band(1.0, 0.5, 2.0).scaled(2.0) == Band(2.0, 1.0, 4.0)
    assert relative(1.1, 1.0) == pytest.approx(0.1) and relative(0.25, 0.0) == 0.25


def test_rounding_of_the_printed_value_counts_as_inside() -> None:
    cell = next(cell for cell in load_cells("ssd") if cell.printed == "2.50")

    def inside(low: float) -> bool:
        return Forecast(cell, "x", Band(low, low, low), (), ()).inside

    assert inside(2.5049) and not inside(2.506)


def test_a_cell_of_each_paper_by_hand() -> None:
    # DOUBLE, Deepseek, SpS on GSM8K: M 3.94, C 3.9, gamma = max(ceil 3.9, 3) = 4: 3.94 * 3.9 / 7.9.
    place = {"target": "Deepseek-Coder-33B", "dataset": "GSM8K", "table": "Table 1"}
    assert one("double", "double.eq11", **place).estimate.value == pytest.approx(3.94 * 3.9 / 7.9)
    # DOUBLE's M there: PEARL's 7.83 and 1 + .9.
    assert one("double", "double.eq6", **place).estimate.value == pytest.approx(9.73)
    # RASD(PLD), Qwen, HumanEval, T = 0: taus 3.10 and .55, EAGLE2's step (3.10 + 1) / 2.84.
    place = {"target": "Qwen2.5-14B-Instruct", "dataset": "HumanEval", "temperature": "0", "table": "Table 1"}
    both = 3.10 / 4.10 * 0.55 / 1.55
    tau = 3.10 + 0.55 - both / (1 - both)
    assert one("rasd", "rasd.fuse", **place).estimate.value == pytest.approx(tau)
    assert one("rasd", "rasd.metrics +", **place).estimate.value == pytest.approx((tau + 1) / 4.10 * 2.84)
    # Mirror, Qwen3-14B, translation, T = 0: SD 2.34, T_draft the middle of .1 and 1 (8 / 2.80 - 1 > 1) = .55;
    # 2.34 * 1.55 / (1 + .1 * .275).
    place = {"target": "Qwen3-14B", "dataset": "Translation", "temperature": "0"}
    assert one("mirror", "mirror.eq10", **place).estimate.value == pytest.approx(2.34 * 1.55 / 1.0275)
    # One adapter of Qwen3-14B: 5120^2 of 14.8e9 = .1771 %.
    adapter = one("mirror", "mirror.eq15", target="Qwen3-14B")
    assert adapter.estimate.value == pytest.approx(0.17712, abs=1e-5)
    # Time to first token: (1.35 / 1.6) of SpS'.
    assert one("duodecoding", "duo.ttft").estimate.value == pytest.approx(84.375)


def test_the_construction_is_exact() -> None:
    forecasts = [
        f for f in predict_paper("ssd", simulate=False).forecasts if f.cell.table.startswith("Construction")
    ]
    assert len(forecasts) == 16
    assert all(abs(f.error) < 1e-9 and f.inside for f in forecasts)


def test_coins_agree_with_the_laws_they_stand_for() -> None:
    # SD, a = .8, K = 4, draft .25: 3.3616 / 2 = 1.6808; 16384 tokens, standard error about 1 %.
    assert toss(Coin("sd", 0.8, 4, 0.25)) == pytest.approx(1.6808, rel=0.03)
    assert toss(Coin("pearl", 0.8, 4, 0.25)) == pytest.approx(pearl_speedup(0.8, 4, 4.0), rel=0.03)
    # Saguaro that always hits and drafts within a step: 3.3616 tokens per step; a coin's factor is the unit.
    knobs = (("fanout", (1,)), ("backup", "primary"))
    assert toss(Coin("saguaro", 0.8, 4, 0.25, 1.0, 10.0, knobs)) == pytest.approx(33.616, rel=0.03)
    # DOUBLE that matches nothing is PEARL, and DuoDecoding with one sequence, too.
    assert toss(double_coin(0.8, 4.0, 0.0)) == pytest.approx(pearl_speedup(0.8, 4, 4.0), rel=0.03)
    assert toss(duo_coin(0.8, 24, plain=2.0)) == pytest.approx(2 * pearl_speedup(0.8, 24, 24.0), rel=0.03)


def test_mirrors_coin_by_hand() -> None:
    # Qwen3-14B, translation, T = 0: T_draft .55 and two streams make .275 / 7 a token; 8 of these (the glue
    # step) take .314 < .5.  A tenth of the rounds drafts anew: 1.0275 a round, as the law has it.
    place = {"target": "Qwen3-14B", "dataset": "Translation", "temperature": "0"}
    found = one("mirror", "mirror.eq10", **place)
    assert found.coin is not None and found.coin.hit == pytest.approx(0.9)
    assert found.coin.draft_step == pytest.approx(0.55 / 2 / 7) and dict(found.coin.knobs)["exit"] == "1/2"
    assert acceptance_of_tokens(2.34 * 1.55, 7) == pytest.approx(found.coin.acceptance)
    assert toss(found.coin) == pytest.approx(found.estimate.value, rel=0.03)
