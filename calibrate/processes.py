"""Processes of ours: how they start, report, end with the one that started them, and leave nothing behind.

A process that is killed removes nothing.  Its temporary folders hold a file that it had locked: the kernel
let go of the lock with the process, whatever became of its number since.  The next process clears them;
folders without such a file are not ours.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing import util
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeAlias

from policies.commandline import RUNS_MODELS

PRELOADED = ["torch", "transformers.models.llama.modeling_llama", "calibrate.live.loading"]
"""What every process of ours needs and takes seconds to import."""
_FRAME = re.compile(r"^  File .*\n", re.MULTILINE)
_FRAME_AT = re.compile(r'^  File "(.*)", line (\d+)', re.MULTILINE)


def last_error(traceback: str) -> str:
    """What a traceback, as text, ends with, in one line: the error, and its place if it is not ours.

    Ours are written for people and need no name; of others, it and the place help to find the cause.
    """
    *_, last = _FRAME.split(traceback.strip())
    lines = [line for line in last.splitlines() if not line.startswith("    ")]  # what follows is the source
    kind, _, message = " ".join(" ".join(lines).split()).partition(": ")
    if kind.startswith("calibrate.") and message:
        return message
    name = kind.rpartition(".")[2]
    if name == "ModuleNotFoundError":
        return f"{message}; {RUNS_MODELS}"
    text = f"{name}: {message}" if message else name
    places = _FRAME_AT.findall(traceback)
    return f"{text} ({PurePath(places[-1][0]).name}, line {places[-1][1]})" if places else text


def process_context() -> ForkServerContext | SpawnContext:
    """Processes forked from one that has imported torch and nothing else, where the system knows that.

    A calibration starts half a dozen; each would import torch anew.  The process that they are forked from
    never runs a model: it has no threads and no accelerator that a fork could break.
    """
    claim_shared_folder()
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, however that ended, whatever runs here."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only in a process that another one started"
    threading.Thread(target=_outlive, args=(parent.sentinel,), name="parent-watch", daemon=True).start()


def _outlive(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


Report: TypeAlias = Callable[[Any], None]
Function: TypeAlias = Callable[[Any, Report], Any]


class SubprocessError(RuntimeError):
    """The function failed or its process died; the message is its error, a note its traceback."""


def run_isolated(function: Function, argument: Any, report: Report) -> Any:
    """Call `function(argument, report)` in a fresh process and return what it returns.

    Everything that `function` reports arrives here, in order, by calling `report`.  The process is gone
    when this returns or raises, Ctrl-C included, and on Linux also when this process is killed.

    Raises:
        SubprocessError: It failed or died.
    """
    return run_many(function, [argument], report)[0]


def run_many(function: Function, arguments: Sequence[Any], report: Report) -> list[Any]:
    """As `run_isolated` for every argument, side by side; the results in the order of the arguments.

    Raises:
        SubprocessError: One of them failed or died; the others are ended.
    """
    children = []
    results: dict[int, Any] = {}
    try:
        for argument in arguments:
            children.append(_start(function, argument))  # noqa: PERF401 - so that `finally` knows each
        while len(results) < len(children):
            waiting = {pipe: i for i, (_, pipe) in enumerate(children) if i not in results}
            for ready in wait(list(waiting)):
                index = waiting[ready]  # type: ignore[index]
                process, pipe = children[index]
                try:
                    kind, value = pipe.recv()
                except EOFError as error:
                    process.join()
                    raise SubprocessError(f"the process died with exit code {process.exitcode}") from error
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
        for process, pipe in children:
            process.terminate()
            process.join()
            pipe.close()


def _start(function: Function, argument: Any) -> tuple[BaseProcess, Connection]:
    context = process_context()
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(function, argument, there), daemon=True)
    process.start()
    there.close()
    return process, here


def _call(function: Function, argument: Any, pipe: Connection) -> None:
    end_with_parent()
    try:
        result = function(argument, lambda value: pipe.send(("report", value)))
        pipe.send(("done", result))
    except KeyboardInterrupt:
        pass
    except Exception:  # everything must reach the parent
        pipe.send(("failed", traceback.format_exc()))


OWNER = "spectwin-owner"
"""File in a folder that its owner keeps locked."""
PREFIX = "spectwin-live-"
PATTERNS = (f"{PREFIX}*", "pymp-*")
"""Ours, and those that `multiprocessing` makes for us."""


def temporary_folder() -> tuple[Path, BinaryIO | None]:
    """A new folder, and what keeps it from being cleared as long as that is open; None: nothing clears it."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    return folder, _own(folder)


@cache
def claim_shared_folder() -> BinaryIO | None:
    """Mark the folder of `multiprocessing` as this process's; what it returns stays open until the end.

    Clears what killed processes left, too: once in a process, before its first worker.
    """
    clear_leftovers()
    folder = Path(util.get_temp_dir())
    return None if (folder / OWNER).exists() else _own(folder)  # a child has its parent's folder


def clear_leftovers(root: Path | None = None) -> list[Path]:
    """Remove the folders whose owners are dead, by default those for temporary files; returns them."""
    folders = [path for pattern in PATTERNS for path in (root or Path(tempfile.gettempdir())).glob(pattern)]
    return [folder for folder in folders if _cleared(folder)]


def _own(folder: Path) -> BinaryIO | None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return None
    unnamed = folder / f".{OWNER}"
    file = unnamed.open("xb")
    fcntl.flock(file, fcntl.LOCK_EX)
    unnamed.rename(folder / OWNER)  # nobody sees it unlocked while we live
    return file


def _cleared(folder: Path) -> bool:
    try:
        import fcntl

        with (folder / OWNER).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except (ImportError, OSError):  # no owner's file, one of another user, or an owner who lives
        return False
    return not os.path.lexists(folder)
