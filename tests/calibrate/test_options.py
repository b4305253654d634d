"""Measuring commands that take turns: never two at once, nobody waits for ever, the dead hold nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

from calibrate.options import TimeSlices, time_sliced

CONTEXT = multiprocessing.get_context("spawn")


def _work(path: Path, log: Path, name: str, pieces: int) -> None:
    """Log when each piece begins and ends; a turn is over after every piece."""
    slices = TimeSlices(path, slice_s=0.0)
    slices.take()
    for _ in range(pieces):
        _write(log, f"{name} begin\n")
        time.sleep(0.01)
        _write(log, f"{name} end\n")
        slices.pause()
    slices.give()


def _write(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(line)


def _hold(path: Path, held: Path) -> None:
    TimeSlices(path).take()
    held.touch()
    time.sleep(600.0)


def test_two_processes_take_turns(tmp_path: Path) -> None:
    path, log = tmp_path / "turns", tmp_path / "log"
    workers = [CONTEXT.Process(target=_work, args=(path, log, name, 20)) for name in ("a", "b")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
        assert worker.exitcode == 0
    lines = log.read_text().splitlines()
    assert len(lines) == 2 * 2 * 20
    # Whoever begins a piece ends it before anybody begins another.
    assert all(a.split()[0] == b.split()[0] for a, b in zip(lines[::2], lines[1::2], strict=True))


def test_a_killed_process_holds_no_turn(tmp_path: Path) -> None:
    path, held = tmp_path / "turns", tmp_path / "held"
    other = CONTEXT.Process(target=_hold, args=(path, held))
    other.start()
    while not held.exists():
        assert other.is_alive()
        time.sleep(0.01)
    assert other.pid is not None
    os.kill(other.pid, signal.SIGKILL)
    slices = TimeSlices(path)
    slices.take()  # would wait for ever
    assert slices.taken == 1
    slices.give()
    other.join()


def test_a_turn_lasts_its_time(tmp_path: Path) -> None:
    now = [0.0]
    slices = TimeSlices(
        tmp_path / "new" / "turns", slice_s=10.0, clock=lambda: now[0], sleep=lambda seconds: None
    )
    slices.take()
    for now[0], taken in ((3.0, 1), (9.9, 1), (10.0, 2), (19.0, 2), (20.5, 3)):
        slices.pause()
        assert slices.taken == taken
    slices.give()
    slices.give()  # once is enough


def test_progress_is_passed_on_and_the_lock_let_go(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = tmp_path / "turns"

    def bars(stage: str, done: int, total: int) -> None:
        seen.append((stage, done, total))

    with time_sliced(None, bars) as progress:
        assert progress is bars
    try:
        with time_sliced(path, bars) as progress:
            progress("grids", 1, 2)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert seen == [("grids", 1, 2)]
    slices = TimeSlices(path)
    slices.take()  # what failed holds no turn
    slices.give()
