"""Functions in processes of their own: results, reports, failures, deaths."""

from __future__ import annotations

import os
import re
import time
import traceback
from typing import Any

import pytest

from calibrate.live.errors import ModelError, last_error
from calibrate.processes import Report, SubprocessError, run_apart, run_many


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
    assert re.fullmatch(r"KeyError: 'now' \(test_subprocesses.py, line \d+\)", str(caught.value))
    assert "Traceback" in caught.value.__notes__[0]
    assert time.monotonic() - started < 50  # nobody waited for the sleeper


def test_a_death_is_noticed() -> None:
    with pytest.raises(SubprocessError, match="exit code 3"):
        run_apart(die, 3, lambda _: None)


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
    assert re.fullmatch(r"OSError: no file \(test_subprocesses.py, line \d+\)", told(OSError("no file")))
    assert told(StopIteration()).startswith("StopIteration (test_subprocesses.py")
    assert last_error("the reason") == "the reason"
