"""Regret by hand, and the choice for a category."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from tiny_profiles import profile, trace

from analysis.__main__ import main
from analysis.execute import profiled_job
from analysis.sources import Sources, load_sources
from analysis.studies.regret import DEFAULT_CHOICE, GRID, cases, choose, summary


def case(choice: str, **speedups: float) -> dict[str, Any]:
    where = {"profile": "p", "category": "code"}
    rows = [
        {**where, "setting": setting, "measured_speedup_vs_ar": speedup}
        for setting, speedup in {**speedups, DEFAULT_CHOICE.label: 1.0}.items()
    ]
    chosen = next(row for row in rows if row["setting"] == choice)
    chosen |= {"chosen": True, "predicted_low": 1.0, "predicted_middle": 1.2, "predicted_high": 1.4}
    (found,) = cases(rows)
    return found


def test_regret_by_hand() -> None:
    found = case("x", x=1.2, y=1.5)
    assert found["best"] == "y"
    told = (found["regret"], found["gain_over_sd5"], found["regret_of_sd5"])
    assert told == pytest.approx((0.2, 0.2, 1 / 3))
    both = summary([found, case("x", x=1.6)])
    assert (both["mean_regret"], both["worst_regret"]) == pytest.approx((0.1, 0.2))
    assert both["predicted_interval_holds"] == 1


def test_the_choice_of_a_category_rests_on_its_own_prompts() -> None:
    recorded = trace([[0] * 24] * 4 + [[5] * 24] * 4, categories=["easy"] * 4 + ["hard"] * 4)
    sources = Sources(profile(), {0.0: recorded}, 0.0)
    assert choose(sources, "easy")[0].policy in {"saguaro", "pearl"}
    setting, predicted = choose(sources, "hard")
    assert setting.policy == "ar" and predicted == (1.0, 1.0, 1.0)


def test_the_default_is_among_what_is_tried() -> None:
    assert DEFAULT_CHOICE in GRID and len(set(GRID)) == len(GRID)


def test_an_unknown_profile_is_refused() -> None:
    result = CliRunner().invoke(main, ["run", "regret", "--hw", "abacus"])
    assert result.exit_code == 2 and "no profile 'abacus'" in result.stderr


def test_a_pair_runs_as_it_was_measured() -> None:
    job = profiled_job(load_sources("cpu2-x5"), limit=32, seed=0)
    assert (job.mode, job.max_tokens, job.names) == ("compiled", 32, ("pair:x5", "pair:draft"))
