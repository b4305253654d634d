"""What a profile's name brings along: traces, and decisions of policies that the traces cannot replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import sources
from analysis.recommend.search import recorded_settings
from analysis.sources import load_sources
from hardware_profiles.reply_trace import read_decisions, write_decisions
from hardware_profiles.store import find_decisions, user_decisions
from policies.registry import POLICIES

DECIDED = {name for name, info in POLICIES.items() if info.needs_decisions and "live" in info.worlds}
TIMED = {"duo", "double", "mirror", "tree", "rest", "rasd"}
"""Policies whose operations were timed, too."""
SHIPPED = TIMED | {"lookahead", "recycling", "gated", "ouroboros", "specbranch"}
"""Policies whose recordings come with the profile `cpu2-x5`; of others it is said how to make them."""


@pytest.fixture(autouse=True)
def _no_model_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is simulated, takes a while, and is not looked at here."""
    monkeypatch.setattr(sources, "known_model_error", lambda profile, traces: 0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_shipped_decisions_are_of_the_shipped_prompts(temperature: float) -> None:
    """Those of other prompts are left out of every comparison."""
    loaded = load_sources("cpu2-x5")
    found = loaded.decisions[temperature].settings.values()
    assert {each.policy for each in found} == SHIPPED
    assert {each.policy for each in found if each.timings} == TIMED
    assert set(loaded.undecided[temperature]) == DECIDED - SHIPPED
    # ... and come back as the settings that they are of.
    tried = recorded_settings(loaded.scenario(temperature), temperature)
    assert {each.label for each in tried} == set(loaded.decisions[temperature].settings)


def test_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    shipped = read_decisions(find_decisions("cpu2-x5-duo"))
    mine = user_decisions("cpu2-x5-duo")
    mine.parent.mkdir(parents=True)
    write_decisions(shipped.slice([0, 1, 2]), mine)
    loaded = load_sources("cpu2-x5")
    assert "of 3 prompts that are not the trace's 48" in loaded.undecided[0.0]["duo"]
    assert "calibrate decide --hw cpu2-x5 --policy duo`" in loaded.undecided[0.0]["duo"]
    assert "duo" not in {each.policy for each in loaded.decisions[0.0].settings.values()}
    mine.write_bytes(b"no parquet")
    assert "of no use" in load_sources("cpu2-x5").undecided[0.0]["duo"]
    elsewhere = load_sources("cpu2-x20").undecided[1.0]
    assert set(elsewhere) == DECIDED
    assert "--policy rest --temperature 1" in elsewhere["rest"]
