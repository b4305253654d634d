"""What the machine was like while something was measured: a reference kernel, steal, and frequency.

A shared machine makes fewer tokens in one minute than in the next.  What can be known of that stands beside
every live run, so that drift is a covariate: the time of a kernel that never changes, the share of processor
time that the hypervisor gave to others, and the clock's frequency, as far as the system tells.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

KERNEL_SIZE = 1 << 15
KERNEL_RUNS = 3
"""The fastest of so many counts: a process that has just slept finds cold caches."""
STAT, CPUINFO = Path("/proc/stat"), Path("/proc/cpuinfo")
STEAL = 8
"""Place of stolen time in the first line of /proc/stat; the guests' that follows is counted already."""


class Weather(NamedTuple):
    """The machine at a moment.

    Attributes:
        at_s: On the monotonic clock.
        kernel_s: Seconds of the reference kernel, a sort of 32 768 numbers.
        steal: Share of all processors' time since the last look that others got; None where it is not told.
        mhz: Mean frequency of the processors; None where it is not told.
    """

    at_s: float
    kernel_s: float
    steal: float | None = None
    mhz: float | None = None


class WeatherStation:
    """Looks at the machine between two live runs, for about three milliseconds.

    Args:
        stat: Where the system counts processor time.
        cpuinfo: Where it tells frequencies.
    """

    def __init__(self, stat: Path = STAT, cpuinfo: Path = CPUINFO) -> None:
        self._stat, self._cpuinfo = stat, cpuinfo
        self._numbers = np.random.default_rng(0).random(KERNEL_SIZE)
        self._counted = self._count()

    def look(self) -> Weather:
        """The machine now."""
        taken = []
        for _ in range(KERNEL_RUNS):
            began = time.perf_counter()
            np.sort(self._numbers)
            taken.append(time.perf_counter() - began)
        before, self._counted = self._counted, self._count()
        steal = None
        if before is not None and self._counted is not None and self._counted[1] > before[1]:
            steal = (self._counted[0] - before[0]) / (self._counted[1] - before[1])
        return Weather(time.perf_counter(), min(taken), steal, self._frequency())

    def _count(self) -> tuple[int, int] | None:
        """Stolen and all ticks so far."""
        with suppress(OSError, ValueError, IndexError):
            line = self._stat.read_text().splitlines()[0].split()
            ticks = [int(each) for each in line[1 : STEAL + 1]]
            return ticks[STEAL - 1], sum(ticks)
        return None

    def _frequency(self) -> float | None:
        with suppress(OSError, ValueError, IndexError):
            lines = self._cpuinfo.read_text().splitlines()
            told = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
            return sum(told) / len(told) if told else None
        return None
