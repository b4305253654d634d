"""Run functions in processes of their own, with their progress reported here."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias

from calibrate.live.errors import last_error
from calibrate.processes import end_with_parent, process_context

Report: TypeAlias = Callable[[Any], None]
Function: TypeAlias = Callable[[Any, Report], Any]


class SubprocessError(RuntimeError):
    """The function failed or its process died; the message is its error, a note its traceback."""


def run_apart(function: Function, argument: Any, report: Report) -> Any:
    """Call `function(argument, report)` in a fresh process and return what it returns.

    Everything that `function` reports arrives here, in order, by calling `report`.  The process is gone
    when this returns or raises, Ctrl-C included, and on Linux also when this process is killed.

    Raises:
        SubprocessError: It failed or died.
    """
    return run_many(function, [argument], report)[0]


def run_many(function: Function, arguments: Sequence[Any], report: Report) -> list[Any]:
    """As `run_apart` for every argument, side by side; the results in the order of the arguments.

    Raises:
        SubprocessError: One of them failed or died; the others are ended.
    """
    children = []
    results: dict[int, Any] = {}
    try:
        for argument in arguments:
            children.append(_start(function, argument))  # noqa: PERF401 - so that `finally` knows each
        while len(results) < len(children):
            waiting = {child.pipe: i for i, child in enumerate(children) if i not in results}
            for pipe in wait(list(waiting)):
                index = waiting[pipe]  # type: ignore[index]
                kind, value = _receive(children[index])
                if kind == "done":
                    results[index] = value
                elif kind == "report":
                    report(value)
                else:
                    failed = SubprocessError(last_error(value))
                    failed.add_note(value)  # for whoever looks for the cause; users get the line
                    raise failed
        return [results[i] for i in range(len(children))]
    finally:
        for child in children:
            child.process.terminate()
            child.process.join()
            child.pipe.close()


@dataclass(frozen=True, slots=True)
class _Child:
    process: BaseProcess
    pipe: Connection


def _start(function: Function, argument: Any) -> _Child:
    context = process_context()
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(function, argument, there), daemon=True)
    process.start()
    there.close()
    return _Child(process, here)


def _receive(child: _Child) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = child.pipe.recv()
    except EOFError as error:
        child.process.join()
        raise SubprocessError(f"the process died with exit code {child.process.exitcode}") from error
    return message


def _call(function: Function, argument: Any, pipe: Connection) -> None:
    end_with_parent()
    try:
        result = function(argument, lambda value: pipe.send(("report", value)))
        pipe.send(("done", result))
    except KeyboardInterrupt:
        pass
    except Exception:  # everything must reach the parent
        pipe.send(("failed", traceback.format_exc()))
