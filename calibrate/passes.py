"""Passes of a calibration that begin some time apart: one quarter of an hour of a machine is not the next."""

from __future__ import annotations

import time
from collections.abc import Callable

from calibrate.journal import Journal

STAGE = "waiting for the next pass"


def begin_pass(
    number: int,
    apart_s: float,
    journal: Journal,
    progress: Callable[[str, int, int], None],
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until a pass may begin, and note that it did.

    A resumed calibration that already began the pass waits no more; one that was killed while it waited goes
    on waiting for the same moment.

    Args:
        number: Of the pass, from 1.
        apart_s: Least seconds from one pass's beginning to the next one's.
        journal: Keeps when each pass began.
        progress: Called with (stage, seconds waited, seconds to wait).
        clock: Seconds since the epoch.
        sleep: Waits that many seconds.
    """
    if journal.has("pass", number):
        return
    if number > 1 and apart_s > 0.0:
        begun = clock()
        until = float(journal.get("pass", number - 1)) + apart_s
        total = max(0, round(until - begun))
        while (now := clock()) < until:
            progress(STAGE, round(now - begun), total)
            sleep(min(1.0, until - now))
        progress(STAGE, total, total)
    journal.put(clock(), "pass", number)
