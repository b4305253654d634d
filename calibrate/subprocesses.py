"""Run a function in a process of its own, with its progress reported here."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class SubprocessError(RuntimeError):
    """The function failed or its process died; the message holds the remote error."""


def run_apart(
    function: Callable[[Any, Callable[[Any], None]], Any],
    argument: Any,
    report: Callable[[Any], None],
) -> Any:
    """Call `function(argument, report)` in a fresh process and return what it returns.

    Everything that `function` reports arrives here, in order, by calling `report`.  The process is gone
    when this returns or raises, Ctrl-C included.

    Raises:
        SubprocessError: It failed or died.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(function, argument, there), daemon=True)
    process.start()
    there.close()
    try:
        while True:
            kind, value = here.recv()
            if kind == "report":
                report(value)
            elif kind == "done":
                process.join()
                return value
            else:
                raise SubprocessError(value)
    except EOFError as error:
        process.join()
        raise SubprocessError(f"the process died with exit code {process.exitcode}") from error
    finally:
        process.terminate()
        process.join()
        here.close()


def _call(function: Callable[[Any, Callable[[Any], None]], Any], argument: Any, pipe: Connection) -> None:
    try:
        result = function(argument, lambda value: pipe.send(("report", value)))
        pipe.send(("done", result))
    except KeyboardInterrupt:
        pass
    except Exception as error:  # everything must reach the parent
        detail = f"{type(error).__name__}: {error}"
        pipe.send(("failed", f"{detail}\n{traceback.format_exc()}"))
