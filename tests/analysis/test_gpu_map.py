"""The map of the fastest policy, in worlds small enough to be known."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from analysis.__main__ import main
from analysis.studies import gpu_map
from analysis.studies.gpu_map import cell, worth
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile

TEXTBOOK = load_profile(find_profile("textbook"))


def test_a_cell_of_constant_costs() -> None:
    found = cell(TEXTBOOK, TEXTBOOK, batch=1, context=8, acceptance=0.9)
    assert found is not None and found["devices"] == 2
    # One request on two devices: SSD hides its drafting, SD does not, and both beat plain decoding.
    assert found["winner"] == "saguaro" and found["saguaro_vs_ar"] > found["sd_vs_ar"] > 1.0
    assert found["own_gpu_gain"] == pytest.approx(found["saguaro_vs_ar"] / found["sd_vs_ar"] - 1.0)


def test_what_a_gpu_is_worth() -> None:
    rows = [
        {"gpu": "g", "pair": "p", "batch": b, "own_gpu_gain": gain}
        for b, gain in ((1, 0.4), (2, 0.2), (4, -0.1))
    ]
    (found,) = worth([*rows, {"gpu": "g", "pair": "p", "batch": 8, "own_gpu_gain": None}])
    assert found["share"] == 0.5 and found["largest"] == 0.4 and found["batches"] == [1, 2]


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_map, "pair_profile", lambda pair: (TEXTBOOK, "here"))
    arguments = ["run", "gpu-map", "--hw", "h100", "--pairs", "8b+1b", "--batch", "1,2"]
    arguments += ["--contexts", "8", "--acceptances", "0.5,0.9"]
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert len(found["rows"]) == 4 and found["worth"][0]["cells"] == 4
    assert "h100, 8b+1b, batch 2" in CliRunner().invoke(main, arguments).stdout
