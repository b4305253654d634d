"""Comparison of engines, on engines of paper, and of eager with compiled forwards."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from analysis.__main__ import main
from analysis.studies import engines
from analysis.studies.engines import BASE, EnginesPlan, Runs, compare, measure, pinned_name, summarise
from calibrate.live.reference import Generated
from policies.values import Request

REQUESTS = [Request(i, 1, 4, (i,)) for i in range(3)]


def test_every_engine_serves_every_request_in_turn_after_a_warm_up() -> None:
    log: list[tuple[str, int]] = []

    def engine(name: str) -> engines.Engine:
        def run(request: Request) -> Generated:
            log.append((name, request.id))
            return Generated((request.id,), 1.0)

        return run

    seen: list[tuple[int, int]] = []
    runs = measure(
        {name: engine(name) for name in "abc"},
        REQUESTS,
        repeats=2,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert log[:3] == [("a", 0), ("b", 0), ("c", 0)]
    turns = [log[i : i + 3] for i in range(3, len(log), 3)]
    served = [{request for _, request in turn} for turn in turns]
    assert all(len(each) == 1 for each in served)
    assert set.union(*served[:3]) == set.union(*served[3:]) == {0, 1, 2}
    assert all({name for name, _ in turn} == set("abc") for turn in turns)
    assert len({tuple(name for name, _ in turn) for turn in turns}) > 1
    orders = [[[run.tokens for run in row] for row in runs[name]] for name in "abc"]
    assert orders[0] == orders[1] == orders[2], "what is compared is of the same prompt"
    assert [sorted(row) for row in orders[0]] == [[(0,), (1,), (2,)]] * 2
    assert seen[-1] == (18, 18)


def test_speeds_are_ratios_of_sums_per_repetition() -> None:
    pinned = pinned_name(4)
    same, other, short = (1, 2, 3, 4), (1, 2, 9, 4), (1, 2, 3)
    runs = {
        BASE: [[Generated(same, 1.0), Generated(same, 3.0)], [Generated(same, 2.0), Generated(same, 2.0)]],
        pinned: [[Generated(same, 1.0), Generated(same, 1.0)], [Generated(same, 0.5), Generated(same, 0.5)]],
        "ours": [
            [Generated(same, 1.0), Generated(other, 1.0)],
            [Generated(short, 1.0), Generated(same, 6.0)],
        ],
    }
    base, assisted, ours = compare(runs, pinned)
    names = ("tokens_per_second", "vs_plain", "vs_pinned", "identical", "runs", "first_difference")
    assert [base[name] for name in names] == [2.0, [1.0, 1.0, 1.0], [0.375, 0.25, 0.5], 4, 4, None]
    assert assisted["vs_plain"] == [3.0, 2.0, 4.0]
    assert [ours[name] for name in names] == [2.5, [1.25, 0.5, 2.0], [0.5625, 0.125, 1.0], 2, 4, 2]


def test_the_command_prints_json_and_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[EnginesPlan] = []

    def run_engines(plan: EnginesPlan, texts: list[str], progress: object) -> Runs:
        plans.append(plan)
        assert len(texts) == 2
        return {name: [[Generated((1, 2), 1.0)]] for name in (BASE, pinned_name(4))}

    monkeypatch.setattr(engines, "run_engines", run_engines)
    options = ["run", "engines", "--target", "pair:target", "--count", "2", "--mode", "eager"]
    printed = CliRunner().invoke(main, [*options, "--json"], catch_exceptions=False).stdout
    found = json.loads(printed)
    assert found["rows"][0]["vs_pinned"] == [1.0, 1.0, 1.0]
    assert (found["asked"]["target"], plans[0].mode, plans[0].lookahead) == ("pair:target", ("eager",), 4)
    assert BASE in CliRunner().invoke(main, options, catch_exceptions=False).stdout


def test_ratios_are_of_one_repetition() -> None:
    # Medians 2 and 4 against 1 and 4: ratios 2 and 1.
    row = summarise("x", {"eager": [[1.0, 2.0, 9.0], [4.0]], "compiled": [[1.0], [4.0]]})
    assert (row["eager_s"], row["compiled_s"]) == (3.0, 2.5)
    assert row["eager_over_compiled"] == pytest.approx([1.0, 1.5, 2.0])


def test_both_modes_need_the_same_repetitions() -> None:
    with pytest.raises(ValueError, match="zip"):
        summarise("x", {"eager": [[1.0]], "compiled": [[1.0], [2.0]]})
