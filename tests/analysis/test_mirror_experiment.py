"""The account of a Mirror-SD run, by hand, and the command on coins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from analysis.__main__ import main
from analysis.studies.mirror import MirrorPlan
from analysis.studies.mirror_account import account, overlap_counted, stretched
from hardware_profiles.reply_trace import Decisions
from policies.registry import configure
from policies.rows import NO_CACHE
from policies.timeline import Span

KEY = ("earlyverify", 4, 0)
DECISIONS = Decisions(
    "mirror",
    replies={
        (*KEY, 0): [[1, [7, 8], False, 8], []],
        (*KEY, 2): [[0, [9], False, 9], []],
        ("rollout", 4, 0, 0): [[], []],
    },
    early={(*KEY, 0): [[[7, 5], [6, 8], [1, 2]]], (*KEY, 2): [[[4, 3], [9, 1]]]},
)


def test_omega_is_the_share_of_emitted_tokens_among_the_candidates() -> None:
    # 7 is the first candidate of its position, 8 the second, 9 none of its own (it is of the next one's).
    assert overlap_counted([DECISIONS]) == pytest.approx(2 / 3)
    assert overlap_counted([]) is None


def test_an_account_by_hand() -> None:
    table = {
        "accepted": np.array([2, 0, 1, 2, 1]),
        "length": np.array([2, 2, 2, 2, 2]),
        "emitted": np.array([3, 1, 2, 3, 2]),
        "hit": np.array([0, 0, 1, 1, NO_CACHE]),
    }
    verify = {"steps": [["early:0.5", 0.6], ["late:0.5", 0.4]]}
    spans = [Span("target", "earlyverify", 0.0, 1.0, verify)] * 5
    spans += [Span("draft", "rollout", 0.0, 0.5, {"steps": []})] * 5
    spans += [Span("draft", "draft", 0.0, 0.3, {"steps": []})] * 3
    run = SimpleNamespace(summary=SimpleNamespace(seconds=6.4, overlap_s=1.5, batch_rounds=5), spans=spans)
    view: Any = SimpleNamespace(
        settings=configure("mirror", lookahead=2, kappa=2),
        live=False,
        own=SimpleNamespace(runs=[run]),
        rounds=lambda: table,
        decisions=[DECISIONS],
    )
    found = account(view)
    # 0.6 before the mark and 0.5 of rollout, which outlasts the 0.4 after it; three drafts in five rounds.
    assert found["law_step_printed_s"] == pytest.approx(1.1)
    assert found["law_step_s"] == pytest.approx(1.1 + 0.18)
    assert found["step_s"] == pytest.approx(1.28)
    assert (found["hidden_s"], found["law_hidden_s"]) == pytest.approx((0.3, 0.4))
    # Four rounds looked up: one correction missed of two, and one whole window of two.
    assert (found["fallback"], found["fallback_whole"], found["fallback_given_correction"]) == (
        0.25,
        0.25,
        0.5,
    )
    assert found["acceptance"] == pytest.approx(6 / 9)  # verified: all but the second of the second round
    assert found["bound_printed"] == pytest.approx(1 / 3)
    assert found["bound_counted"] == pytest.approx(11 / 15)
    assert found["law_fallback"] == pytest.approx((1 - 2 / 3) * (1 + 6 / 9))  # (1 - Omega)(1 + a)


def test_contention_stretches_all_pieces_of_a_forward_alike() -> None:
    steps = [["host", 0.1], ["early:0.25", 0.2], ["exit", 0.1], ["late:0.75", 0.6]]
    span = Span("target", "earlyverify", 1.0, 3.0, {"rows": 1, "steps": steps})
    assert stretched(span) == ("earlyverify", 2.0, pytest.approx(1.2))


def test_shards_add_collectives() -> None:
    reduce_s = 1e-3 * np.log(4) + 1e-3  # alpha log G + beta M
    plan = MirrorPlan(devices=4, layers=10, message=100.0, hop_time=1e-3, word_time=1e-5)
    costs = replace(plan, coins=True, target_time=1.0, draft_time=0.1).costs
    assert costs.target_s == pytest.approx(0.25 + 20 * reduce_s)
    assert costs.draft_s == pytest.approx(0.025 + 2 * reduce_s)


def test_the_grid_has_every_reading() -> None:
    plan = MirrorPlan(lookahead=(3,), kappa=(2, 4), exits=("1/4", "1/2"))
    labels = [settings.label for settings in plan.settings(1.0)]
    assert len(labels) == len(set(labels)) == 4 + 4 + 3
    for part in ("overlap=off", "candidates=first", "acceptance_rule=matching", "exit=1/4"):
        assert any(part in label for label in labels)


def test_the_study_on_coins(tmp_path: Path) -> None:
    asked = "--coins --count 4 --max-tokens 24 --lookahead 2 --kappa 1,4 --exits 1/4,3/4 --batch 1,2 --json"
    done = CliRunner().invoke(main, ["run", "mirror", *asked.split(), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "mirror.json").read_text())["rows"]
    assert (tmp_path / "mirror.png").stat().st_size > 10_000
    mirrors = [row for row in found if row["policy"] == "mirror"]
    assert len(mirrors) == 2 * (4 + 2)
    for row in mirrors:
        assert row["simulated_step_s"] == pytest.approx(row["simulated_law_step_s"])
        assert row["simulated_hidden_s"] == pytest.approx(row["simulated_law_hidden_s"])


def test_coins_have_nothing_to_run_live() -> None:
    done = CliRunner().invoke(main, ["run", "mirror", "--coins", "--live"])
    assert done.exit_code != 0
    assert "leave out --coins or --live" in done.output
