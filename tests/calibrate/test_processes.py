"""Processes of ours: results, reports, failures, deaths, and the folders that they leave."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from calibrate.live.errors import ModelError, last_error
from calibrate.processes import Report, SubprocessError, clear_leftovers, run_isolated, run_many


def count(argument: int, report: Report) -> int:
    for i in range(argument):
        report((argument, i))
    return argument * argument


def fail(argument: Any, report: Report) -> None:
    if argument == "wait":
        time.sleep(60)
    report(argument)
    raise KeyError(argument)


def die(argument: int, report: Report) -> None:
    os._exit(argument)


def test_results_keep_their_order_and_reports_theirs() -> None:
    seen: list[tuple[int, int]] = []
    assert run_many(count, [3, 1, 0], seen.append) == [9, 1, 0]
    assert [i for n, i in seen if n == 3] == [0, 1, 2] and (1, 0) in seen


def test_a_failure_brings_its_message_and_ends_the_others() -> None:
    started = time.monotonic()
    with pytest.raises(SubprocessError) as caught:
        run_many(fail, ["wait", "now"], lambda _: None)
    assert re.fullmatch(r"KeyError: 'now' \(test_processes.py, line \d+\)", str(caught.value))
    assert "Traceback" in caught.value.__notes__[0]
    assert time.monotonic() - started < 50  # nobody waited for the sleeper


def test_a_death_is_noticed() -> None:
    with pytest.raises(SubprocessError, match="exit code 3"):
        run_isolated(die, 3, lambda _: None)


def test_errors_of_ours_are_told_as_they_are_written() -> None:
    def told(error: Exception) -> str:
        try:
            try:
                raise KeyError("a cause")
            except KeyError as cause:
                raise error from cause
        except Exception:
            return last_error(traceback.format_exc())

    assert told(ModelError("no weights\nin two lines")) == "no weights in two lines"
    assert re.fullmatch(r"OSError: no file \(test_processes.py, line \d+\)", told(OSError("no file")))
    assert told(StopIteration()).startswith("StopIteration (test_processes.py")
    assert last_error("the reason") == "the reason"
    missing = told(ModuleNotFoundError("No module named 'torch'"))
    assert missing == "No module named 'torch'; this runs models: pip install 'spectwin[live]'"


ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from calibrate.processes import temporary_folder
from calibrate.processes import process_context

if __name__ == "__main__":
    process_context()
    folder, owner = temporary_folder()
    (folder / "target.stderr").touch()
    print("there", flush=True)
    sys.stdin.read()
"""
NEXT = "from calibrate.processes import process_context; process_context()"


def names(folder: Path) -> list[str]:
    return sorted(path.name.split("-")[0] for path in folder.iterdir())


def test_a_killed_process_is_cleared_up_after(tmp_path: Path) -> None:
    temporary, script = tmp_path / "tmp", tmp_path / "script.py"
    temporary.mkdir()
    script.write_text(SCRIPT)
    (temporary / "pymp-of-another-program").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}

    def start() -> subprocess.Popen[str]:
        running = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert running.stdout is not None and running.stdout.readline() == "there\n"
        return running

    with start() as dead, start() as living:
        assert names(temporary) == ["pymp", "pymp", "pymp", "spectwin", "spectwin"]
        assert clear_leftovers(temporary) == [], "both live"
        dead.send_signal(signal.SIGKILL)
        dead.wait(60)
        before = set(temporary.iterdir())
        subprocess.run([sys.executable, "-c", NEXT], env=environment, check=True)
        gone = before - set(temporary.iterdir())
        assert sorted(path.name.split("-")[0] for path in gone) == ["pymp", "spectwin"]
        assert names(temporary) == ["pymp", "pymp", "spectwin"], "another program's, and the living one's"
        living.communicate()
    assert clear_leftovers(temporary) and names(temporary) == ["pymp"]
