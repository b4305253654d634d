"""The map of the fastest policy, in worlds small enough to be known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from analysis.__main__ import main
from analysis.studies import gpu_map
from analysis.studies.gpu_map import cell, envelope, in_words, worth
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile

TEXTBOOK = load_profile(find_profile("textbook"))


def test_a_cell_of_constant_costs() -> None:
    found = cell(TEXTBOOK, TEXTBOOK, batch=1, context=8, acceptance=0.9)
    assert found is not None and found["devices"] == 2
    # One request on two devices: SSD hides its drafting, SD does not, and both beat plain decoding.
    assert found["winner"] == "saguaro" and found["saguaro_vs_ar"] > found["sd_vs_ar"] > 1.0


def _row(acceptance: float, sd: float | None, saguaro: float | None) -> dict[str, object]:
    speeds = {"ar": 1.0, "sd": sd, "saguaro": saguaro, "pearl": None}
    winner = max((name for name in speeds if speeds[name]), key=lambda name: speeds[name] or 0.0)
    named = {f"{name}_vs_ar": value for name, value in speeds.items() if name != "ar"}
    return {
        "gpu": "g",
        "pair": "p",
        "context": 8,
        "batch": 1,
        "acceptance": acceptance,
        "winner": winner,
        **named,
    }


def test_where_the_winner_changes() -> None:
    # SD doubles from 0.5 to 2 between 0.4 and 0.8, so that it passes 1 at 0.6; SSD from 0.5 to 4, so that it
    # passes SD where both are 0.5, and AR at 0.4 + 0.4 / 3 = 0.533.
    assert envelope([_row(0.8, 2.0, None), _row(0.4, 0.5, None)]) == [("ar", 0.4), ("sd", pytest.approx(0.6))]
    found = envelope([_row(0.4, 0.5, 0.5), _row(0.8, 2.0, 4.0)])
    assert found == [("ar", 0.4), ("saguaro", pytest.approx(0.4 + 0.4 / 3))]
    # AR until 0.5; SD, 1.5 times as fast there, is passed by SSD in the second part.
    three = [_row(0.3, 0.7, 0.5), _row(0.5, 1.5, 1.2), _row(0.9, 1.5, 3.0)]
    names = [name for name, _ in envelope(three)]
    assert names == ["ar", "sd", "saguaro"] and in_words(envelope(three)).startswith("ar, sd 0.3")
    # Two crossings within one part: AR 1, SD 0.9 to 2, SSD 0.5 to 4.
    both = envelope([_row(0.0, 0.9, 0.5), _row(1.0, 2.0, 4.0)])
    assert [name for name, _ in both] == ["ar", "sd", "saguaro"]


def test_what_a_gpu_is_worth() -> None:
    # Against the best of AR and SD: 0.8 / 1, then 2 / 1.25; straight in the logarithm, it pays from
    # 0.4 + 0.4 log(1.25) / log(2) on.
    (found,) = worth([_row(0.4, 0.5, 0.8), _row(0.8, 1.25, 2.0)])
    assert found["pays"] == pytest.approx((0.4 + 0.4 * math.log(1.25) / math.log(2.0), 0.8))
    assert found["gains"] == {"0.4": pytest.approx(-0.2), "0.8": pytest.approx(0.6)}
    assert worth([_row(0.4, 1.5, 1.2)])[0]["pays"] is None
    assert worth([_row(0.4, 1.5, None), _row(0.8, 1.5, 1.6)])[0]["pays"] == (0.8, 0.8)
    # It gains a quarter at 0.6 and loses as much on both sides: from 0.5 to 0.7.
    both = [_row(0.4, 1.25, 1.0), _row(0.6, 1.0, 1.25), _row(0.8, 1.25, 1.0)]
    assert worth(both)[0]["pays"] == pytest.approx((0.5, 0.7))


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_map, "pair_profile", lambda pair: (TEXTBOOK, "here"))
    arguments = ["run", "gpu-map", "--hw", "h100", "--pairs", "8b+1b", "--batch", "1,2"]
    arguments += ["--contexts", "8", "--acceptances", "0.5,0.9"]
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert len(found["rows"]) == 4 and len(found["worth"]) == 2
    said = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)]).stdout
    assert "h100, 8b+1b, batch 2" in said and (tmp_path / "gpu-map.png").stat().st_size > 1000
