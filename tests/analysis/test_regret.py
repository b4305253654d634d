"""Regret by hand, and the choice for a category."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tiny_profiles import profile, trace

from analysis.execute import profiled_job
from analysis.regret import DEFAULT_CHOICE, GRID, Case, as_json, choose, main, summary
from analysis.sources import Sources, load_sources


def case(choice: str, **speedups: float) -> Case:
    return Case("p", "code", choice, (1.0, 1.2, 1.4), {**speedups, DEFAULT_CHOICE.label: 1.0})


def test_regret_by_hand() -> None:
    found = case("x", x=1.2, y=1.5)
    assert found.best == "y"
    assert (found.regret, found.gain, found.default_regret) == pytest.approx((0.2, 0.2, 1 / 3))
    both = summary([found, case("x", x=1.6)])
    assert (both["mean_regret"], both["worst_regret"]) == pytest.approx((0.1, 0.2))
    assert both["predicted_interval_holds"] == 1
    assert json.loads(as_json([found]))["cases"][0]["tried"]["y"] == 1.5


def test_the_choice_of_a_category_rests_on_its_own_prompts() -> None:
    recorded = trace([[0] * 24] * 4 + [[5] * 24] * 4, categories=["easy"] * 4 + ["hard"] * 4)
    sources = Sources(profile(), {0.0: recorded}, 0.0)
    assert choose(sources, "easy")[0].policy in {"saguaro", "pearl"}
    setting, predicted = choose(sources, "hard")
    assert setting.policy == "ar" and predicted == (1.0, 1.0, 1.0)


def test_the_default_is_among_what_is_tried() -> None:
    assert DEFAULT_CHOICE in GRID and len(set(GRID)) == len(GRID)


def test_an_unknown_profile_is_refused() -> None:
    result = CliRunner().invoke(main, ["--hw", "abacus"])
    assert result.exit_code == 2 and "no profile 'abacus'" in result.stderr


def test_a_pair_runs_as_it_was_measured() -> None:
    job = profiled_job(load_sources("cpu2-x5"), limit=32, seed=0)
    assert (job.mode, job.limit, job.names) == ("compiled", 32, ("pair:x5", "pair:draft"))
