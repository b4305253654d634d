"""The `simulate` command at a temperature above 0, on a recording of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from chains import Chain, sampled_trace
from simulate_command import answer, simulated

from hardware_profiles.store import user_trace
from hardware_profiles.trace import write_trace


@pytest.fixture
def sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own trace at temperature 1, in the place where it is looked for."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = user_trace("cpu2-x5-t1")
    path.parent.mkdir(parents=True)
    write_trace(sampled_trace(Chain.drawn(3, vocabulary=9), requests=8, length=60, ranks=8, seed=4), path)
    return path


HOT = ["--temperature", "1", "--requests", "8"]


def test_the_trace_of_a_temperature_is_found_by_its_name(sampled: Path) -> None:
    found = answer(*HOT)
    knobs = found["knobs"]
    assert (found["temperature"], knobs["draft_sampling"], knobs["scale"]) == (1.0, "sampled", 1.0)
    assert "cpu2-x5-t1" in str(found["sources"]) and "at temperature 1" in str(found["sources"])
    law = found["law"]
    assert isinstance(law, dict)
    # The mean of sum min(p, q), as verification meets it.
    assert law["assumptions"]["acceptance"] == pytest.approx(float(str(found["acceptance_rate"])), abs=0.08)
    assert answer(*HOT, "--trace", str(sampled))["tokens_per_second"] == found["tokens_per_second"]


@pytest.mark.parametrize(
    "extra",
    [
        ["--draft-sampling", "greedy"],
        ["--scale", "0.5"],
        ["--cache-set", "top"],
        ["--seed", "3"],
        ["--policy", "pearl"],
        ["--policy", "sd"],
        ["--shape", "exact", "--budget", "9"],
        ["--backup", "auto"],
        ["--backup", "random"],
        ["--backup", "ngram"],
    ],
    ids=" ".join,
)
def test_every_option_changes_a_sampled_answer(sampled: Path, extra: list[str]) -> None:
    same = [{k: v for k, v in answer(*HOT, *e).items() if k != "seed"} for e in ([], extra)]
    assert same[0] != same[1]


def test_a_top_p_needs_a_trace_of_its_own(sampled: Path) -> None:
    result = simulated(*HOT, "--top-p", "0.9")
    assert result.exit_code == 2
    assert "no trace of profile 'cpu2-x5' at temperature 1 and top-p 0.9" in result.stderr
