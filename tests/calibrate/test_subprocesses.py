"""Functions in processes of their own: results, reports, failures, deaths."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from calibrate.subprocesses import Report, SubprocessError, run_apart, run_many


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
    with pytest.raises(SubprocessError, match="KeyError: 'now'"):
        run_many(fail, ["wait", "now"], lambda _: None)
    assert time.monotonic() - started < 50  # nobody waited for the sleeper


def test_a_death_is_noticed() -> None:
    with pytest.raises(SubprocessError, match="exit code 3"):
        run_apart(die, 3, lambda _: None)
