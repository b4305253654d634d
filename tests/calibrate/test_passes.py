"""Passes that begin apart, on a clock of the test's own."""

from __future__ import annotations

from calibrate.calibration import WAITING, begin_pass
from calibrate.journal import Journal


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.told: list[tuple[str, int, int]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0.0 < seconds <= 1.0
        self.now += seconds

    def begin(self, number: int, journal: Journal, apart_s: float = 10.0) -> float:
        """When the pass began."""
        begin_pass(
            number, apart_s, journal, lambda *said: self.told.append(said), clock=self, sleep=self.sleep
        )
        return self.now


def test_a_pass_waits_for_its_time() -> None:
    clock, journal = Clock(), Journal()
    assert clock.begin(1, journal) == 1000.0
    clock.now = 1004.5  # the first pass took 4.5 s: 5.5 s are left of 10
    assert clock.begin(2, journal) == 1010.0
    assert clock.told[0] == (WAITING, 0, 6) and clock.told[-1] == (WAITING, 6, 6)


def test_a_long_pass_is_followed_at_once() -> None:
    clock, journal = Clock(), Journal()
    clock.begin(1, journal)
    clock.now = 1025.0
    assert clock.begin(2, journal) == 1025.0
    assert clock.begin(3, journal) == 1035.0  # counted from when the second began


def test_nothing_waits_unless_asked() -> None:
    clock, journal = Clock(), Journal()
    assert clock.begin(1, journal, 0.0) == clock.begin(2, journal, 0.0) == 1000.0
    assert clock.told == []


def test_a_killed_wait_goes_on_for_the_same_moment() -> None:
    clock, journal = Clock(), Journal()
    clock.begin(1, journal)
    clock.now = 1007.0  # killed while waiting, started again: 3 s are left
    assert clock.begin(1, journal) == 1007.0
    assert clock.begin(2, journal) == 1010.0
    clock.now = 1500.0  # killed in the second pass
    assert clock.begin(2, journal) == 1500.0
    assert journal.get("pass", 2) == 1010.0
