"""SSD's cache on one-pass drafts and EAGLE heads, where every forward takes the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from analysis.__main__ import main
from analysis.studies import onepass
from analysis.studies.onepass import OnePassPlan, accepted_after, best, cell, scenario
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from policies.registry import configure
from simulator.run import simulate

TEXTBOOK = load_profile(find_profile("textbook"))


@pytest.fixture(autouse=True)
def constant_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onepass, "pair_profile", lambda pair: (TEXTBOOK, "here"))
    monkeypatch.setattr(onepass, "TOKENS", 16)


def test_a_cell_of_constant_costs() -> None:
    """The cache hides drafting where nothing is lost in it; 4 of 5 GPUs is what it has to make up for."""
    plan = OnePassPlan(lookahead=(4,), acceptance=0.8)
    found = {draft: cell(plan, "h100", "70b", draft, 1) for draft in onepass.DRAFTS}
    for row in found.values():
        assert row["cached"] > row["alone"] > 1.0
        assert row["cached_per_gpu"] == pytest.approx(row["cached"] / row["alone"] * 4 / 5)
    # A block hides one draft step per round, a chain four; what is lost is lost to heads alone.
    assert found["model"]["cached_per_gpu"] > found["dflash"]["cached_per_gpu"]
    assert (
        found["dflash"]["late"] < found["dflash"]["cached"]
        and found["model"]["late"] == found["model"]["cached"]
    )


def test_acceptance_after_a_hit_and_after_a_miss() -> None:
    """Prepared tokens are never accepted, redrafted ones always."""
    world = scenario(TEXTBOOK, (1.0,), 1)
    run = simulate(world, configure("saguaro-block", lookahead=3, outcomes=1, ahead_acceptance=0.0))
    after_hit, after_miss = accepted_after(run)
    assert after_hit == 0.0 and after_miss == pytest.approx(3.0, abs=0.25)  # a request's last round is cut
    found = best((world, configure("block", lookahead=k)) for k in (1, 3))
    assert found.run.settings.lookahead == 3 and found.law is not None


def test_the_command(tmp_path: Path) -> None:
    arguments = [
        "run",
        "onepass",
        "--pairs",
        "8b",
        "--batch",
        "1,2",
        "--lookahead",
        "1",
        "--out",
        str(tmp_path),
    ]
    said = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)]).stdout
    found = json.loads((tmp_path / "onepass.json").read_text())
    assert [(row["batch"], row["draft"]) for row in found["rows"]] == [
        (batch, draft) for batch in (1, 2) for draft in onepass.DRAFTS
    ]
    assert "per GPU" in said and (tmp_path / "onepass.png").stat().st_size > 1000
