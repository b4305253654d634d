"""Placements: what is compared, and ratios by hand on live runs made of simulated ones."""

from __future__ import annotations

import pytest
from simulated_live import JOB, run_without_models
from tiny_profiles import profile, trace

from analysis.execute import Bench
from analysis.results import Results
from analysis.sources import Sources
from analysis.studies.placements import BOTH, ONE, STUDY, PlacementsPlan, contenders, show
from analysis.study import RECORDED, SPLIT

TEXTS = trace([[0, 0, 1, 0] * 6] * 2, listed=8)


def test_a_draft_device_of_its_own_is_held_against_equal_devices() -> None:
    places = [(entry.settings.policy, entry.place) for entry in contenders((4,), 3)]
    assert places == [
        ("ar", ONE), ("ar", BOTH), ("sd", ONE), ("sd", BOTH), ("pearl", SPLIT), ("saguaro", SPLIT),
        ("saguaro", SPLIT),
    ]  # fmt: skip


def test_speedups_are_over_plain_decoding_on_one_and_on_both_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain decoding is twice as fast on both cores; the second repetition of all else is twice as long."""
    tiny = profile()

    def slower(cell, repeat):  # type: ignore[no-untyped-def]
        return (0.5 if cell.place == BOTH else 1.0) if cell.settings.policy == "ar" else 1.0 + repeat

    run_without_models(monkeypatch, tiny, {0.0: TEXTS}, slower)
    plan = PlacementsPlan(prompts=RECORDED, count=None, max_tokens=None, live=True, repeats=2)
    bench = Bench(STUDY, plan, given_sources=Sources(tiny, {0.0: TEXTS}, 0.0), given_job=JOB)
    rows = STUDY.rows(bench)
    pearl = next(row for row in rows if row["policy"] == "pearl")
    assert pearl["speedup_vs_ar_one_core"] == pytest.approx(2 * pearl["speedup_vs_ar_both_cores"])
    low, high = (pearl[f"speedup_vs_ar_one_core_{end}"] for end in ("low", "high"))
    assert high == pytest.approx(2 * low) and low < pearl["speedup_vs_ar_one_core"] < high
    assert pearl["simulated_speedup_vs_ar"] is not None  # the profile's own placement
    (shown,) = show(Results("placements", tuple(rows)))
    assert shown.row_count == len(rows)
