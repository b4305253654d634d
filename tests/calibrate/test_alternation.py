"""A calibration beside live runs: turns by time, results, failures; and what the machine was like."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.options import Alternation, Progress, alternating, quiet
from calibrate.weather import WeatherStation


def test_turns_change_where_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a least length of a turn every report is a change, until one of both is done."""
    monkeypatch.setattr(Alternation.__init__, "__defaults__", (0.0, lambda: 0.0))
    done: list[str] = []

    def other(progress: Progress) -> str:
        for i in range(2):
            done.append(f"other {i}")
            progress("other", i, 2)
        return "found"

    with alternating(other, quiet) as (progress, result):
        for i in range(4):
            done.append(f"own {i}")
            progress("own", i, 4)
        assert result() == "found"
    assert done == ["own 0", "other 0", "own 1", "other 1", "own 2", "own 3"]


def test_a_turn_lasts_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))  # a second between any two looks at the clock
    monkeypatch.setattr(Alternation.__init__, "__defaults__", (3.0, lambda: float(next(now))))
    done: list[str] = []

    def other(progress: Progress) -> None:
        done.append("other")

    with alternating(other, quiet) as (progress, _):
        for i in range(4):
            done.append(f"own {i}")
            progress("own", i, 4)
    assert done == ["own 0", "own 1", "own 2", "other", "own 3"]


@pytest.mark.parametrize("asked", [True, False])
def test_what_the_other_one_failed_of_is_said(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Alternation.__init__, "__defaults__", (0.0, lambda: 0.0))

    def other(progress: Progress) -> None:
        raise ValueError("no such model")

    def both() -> None:
        with alternating(other, quiet) as (progress, result):
            if asked:
                result()
            for i in range(9):
                progress("own", i, 9)

    with pytest.raises(ValueError, match="no such model"):
        both()


def test_a_failure_here_ends_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Alternation.__init__, "__defaults__", (0.0, lambda: 0.0))
    done: list[int] = []

    def other(progress: Progress) -> None:
        for i in range(1000):
            done.append(i)
            progress("other", i, 1000)

    def both() -> None:
        with alternating(other, quiet) as (progress, _):
            progress("own", 0, 1)
            raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        both()
    assert len(done) < 1000


def test_steal_is_a_share_of_what_passed(tmp_path: Path) -> None:
    """Of 30 ticks since the last look 6 went to others; the guests' at the end are the user's already."""
    stat, info = tmp_path / "stat", tmp_path / "cpuinfo"
    stat.write_text("cpu 10 0 10 70 0 0 0 10 5 0\ncpu0 1\n")
    info.write_text("processor : 0\ncpu MHz\t\t: 2000.0\ncpu MHz\t\t: 3000.0\n")
    station = WeatherStation(stat, info)
    stat.write_text("cpu 20 0 14 80 0 0 0 16 9 0\n")
    found = station.look()
    assert (found.steal, found.mhz) == (pytest.approx(6.0 / 30.0), 2500.0) and found.kernel_s > 0.0
    again = WeatherStation(tmp_path / "none", tmp_path / "none").look()
    assert (again.steal, again.mhz) == (None, None)
