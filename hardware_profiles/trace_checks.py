"""Whether a trace contradicts itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.trace_schema import Column, TraceError, describe_column

if TYPE_CHECKING:
    from hardware_profiles.trace import Trace


def bad_row(source: str, column: str, bad: NDArray[np.bool_], problem: str) -> TraceError:
    """The error of a column's first bad row."""
    return TraceError(f"{source}: column {column!r}, row {int(np.argmax(bad))}: {problem}")


def check_trace(trace: Trace, source: str) -> None:
    """Raise the error of the first thing in which the trace contradicts itself."""
    for name, values in trace.columns.items():
        _check_column(trace, describe_column(name), values, source)
    _check_layout(trace, source)
    above = trace.token >= trace.meta.vocabulary
    if above.any():
        raise bad_row(source, "token", above, f"is not below the vocabulary of {trace.meta.vocabulary}")


def _check_column(trace: Trace, column: Column, values: NDArray[Any], source: str) -> None:
    shape: tuple[int, ...] = (len(trace),)
    if column.width is not None:
        shape = (len(trace), getattr(trace.meta, column.width))
    if values.shape != shape:
        wanted = f" ({column.width} of the metadata)" if column.width else ""
        raise TraceError(
            f"{source}: column {column.name!r}, row 0: shape is {values.shape}, must be {shape}{wanted}"
        )
    bad = np.isnan(values)
    if column.low is not None:
        bad |= values < column.low
    if column.high is not None:
        bad |= values > column.high
    if bad.any():
        bad = bad.reshape(len(bad), -1)
        row = int(np.argmax(bad.any(axis=1)))
        value = values.reshape(len(bad), -1)[row, int(np.argmax(bad[row]))]
        limits = f"between {column.low} and {column.high}".replace("None", "no limit")
        raise bad_row(source, column.name, bad.any(axis=1), f"{value} is not a number {limits}")


def _check_layout(trace: Trace, source: str) -> None:
    starts, sizes = trace.offsets[:-1], np.diff(trace.offsets)
    expected = np.arange(len(trace)) - np.repeat(starts, sizes)
    # Before the positions, whose error a scattered request would cause too.
    found = trace.request[starts].tolist()
    known = [request.id for request in trace.requests]
    for row, identity, listed in zip(starts, found, known, strict=False):
        if identity != listed:
            problem = f"request {identity}, where the list of requests has {listed}"
            raise TraceError(f"{source}: column 'request', row {row}: {problem}")
    if len(found) != len(known):
        raise TraceError(
            f"{source}: column 'request', row {len(trace)}: {len(found)} groups of rows for {len(known)} "
            "requests; the rows of a request must be together, and each must have one"
        )
    if len(set(known)) != len(known):
        raise TraceError(f"{source}: column 'request': a request is listed twice")
    if (trace.position != expected).any():
        problem = "positions must be 0, 1, 2, ... within a request"
        raise bad_row(source, "position", trace.position != expected, problem)
