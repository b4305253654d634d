"""The trace: what a target really wrote, and what its draft would have proposed at every position."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from hardware_profiles.atomic import atomic_write
from hardware_profiles.jsonfile import FileRefused, check_regular, parse_json, to_json
from hardware_profiles.trace_checks import bad_row, check_trace
from hardware_profiles.trace_schema import (
    COLUMNS,
    REQUIRED,
    TRACE_SCHEMA,
    Column,
    TraceError,
    TraceMeta,
    TraceRequest,
    describe_column,
    describe_invalid,
    exit_layer,
    explain_missing,
)

if TYPE_CHECKING:  # slow to import, and a simulation without a trace never needs it
    import pyarrow

__all__ = ["COLUMNS", "Trace", "TraceError", "TraceMeta", "TraceRequest", "read_trace", "write_trace"]

IntArray: TypeAlias = NDArray[np.int64]
Int32Array: TypeAlias = NDArray[np.int32]
Float32Array: TypeAlias = NDArray[np.float32]

_REQUESTS = TypeAdapter(tuple[TraceRequest, ...])
_KEY = "spectwin.{}"
_COMPRESSION = "zstd"


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded texts, one after the other: row i of every column is one generated position.

    n is the number of positions of all requests together, M is `meta.draft_top`.  Log-probabilities are
    natural and those of both laws at the sampling setting, after the top-p cut: minus infinity for a token
    that was cut.  Rankings are those before the cut, so that a cut token has a rank, too.  Columns that the
    file does not have, or that were not read, are None: get at them through `column`, which explains what
    is missing.

    Attributes:
        requests: The requests, in the order of their rows.
        meta: Where the trace comes from.
        request: [n] request id.
        position: [n] 0, 1, ... within each request.
        token: [n] the token written.
        target_logprob: [n] its log-probability under the target.
        draft_logprob: [n] its log-probability under the draft.
        draft_rank: [n] its rank under the draft, 0 being the draft's first choice.
        draft_top_ids: [n, M] the draft's M most likely tokens, most likely first.
        draft_top_logprobs: [n, M] their log-probabilities under the draft.
        target_at_draft_top_logprobs: [n, M] their log-probabilities under the target.
        target_top_ids: [n, meta.target_top] the target's most likely tokens, most likely first.
        target_top_logprobs: [n, meta.target_top] their log-probabilities under the target.
        accept_mass: [n] sum over the vocabulary of min(p, q).
        draft_next_top1_logprob: [n] log-probability of the draft's first choice after its own first
            choice at this position.
        exit_ranks: Per early-exit layer the [n] rank of the token at that layer (`exit_rank_<layer>`).
    """

    requests: tuple[TraceRequest, ...]
    meta: TraceMeta
    request: IntArray
    position: IntArray
    token: IntArray
    target_logprob: Float32Array | None = None
    draft_logprob: Float32Array | None = None
    draft_rank: IntArray | None = None
    draft_top_ids: Int32Array | None = None
    draft_top_logprobs: Float32Array | None = None
    target_at_draft_top_logprobs: Float32Array | None = None
    target_top_ids: Int32Array | None = None
    target_top_logprobs: Float32Array | None = None
    accept_mass: Float32Array | None = None
    draft_next_top1_logprob: Float32Array | None = None
    exit_ranks: Mapping[int, IntArray] | None = None

    def __len__(self) -> int:
        """Number of positions n."""
        return len(self.request)

    @cached_property
    def offsets(self) -> IntArray:
        """[R + 1] first row of each request, and n: request r has rows offsets[r] ... offsets[r+1] - 1."""
        starts = np.flatnonzero(np.diff(self.request, prepend=self.request[:1] - 1))
        return np.append(starts, len(self)).astype(np.int64)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns that are there, by name, in the order of the file."""
        found = {name: getattr(self, name) for name in COLUMNS if getattr(self, name) is not None}
        for layer, ranks in sorted((self.exit_ranks or {}).items()):
            found[f"exit_rank_{layer}"] = ranks
        return found

    def column(self, name: str) -> NDArray[Any]:
        """One column, which must be there.

        Raises:
            TraceError: It is not; the message says what it is needed for and what to do.
        """
        if name not in self.columns:
            raise TraceError(explain_missing(name))
        return self.columns[name]

    def run_lengths(self) -> IntArray:
        """[n] number of consecutive positions from each on that a greedy draft gets right (rank 0).

        A run ends with its request.  With a lookahead of K, min(run, K) tokens drafted from there
        are accepted when both models are greedy.

        Raises:
            TraceError: The column `draft_rank` is not there.
        """
        rows = np.arange(len(self), dtype=np.int64)
        ends = np.repeat(self.offsets[1:], np.diff(self.offsets))
        stops = np.where(self.column("draft_rank") == 0, ends, rows)
        # A run stops at the nearest stop at or after it: a minimum, taken from the back.
        return np.minimum.accumulate(stops[::-1])[::-1] - rows

    def of_category(self, category: str) -> Trace:
        """The trace of the prompts of one category.

        Raises:
            TraceError: There is none; the message lists the categories.
        """
        ids = [request.id for request in self.requests if request.category == category]
        if not ids:
            known = ", ".join(dict.fromkeys(request.category for request in self.requests))
            raise TraceError(f"no prompt of category {category!r} in the trace; categories: {known}")
        return self.slice(ids)

    def slice(self, ids: Iterable[int]) -> Trace:
        """The trace of some requests only, in the order given.

        Raises:
            TraceError: A request is not in the trace, or is named twice.
        """
        index = {request.id: number for number, request in enumerate(self.requests)}
        wanted = list(ids)
        if unknown := [i for i in wanted if i not in index]:
            raise TraceError(f"request {unknown[0]} is not in the trace")
        if len(set(wanted)) < len(wanted):
            raise TraceError("a request is named twice")
        chosen = [index[i] for i in wanted]
        spans = [np.arange(self.offsets[r], self.offsets[r + 1]) for r in chosen]
        rows = np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)
        taken: dict[str, Any] = {n: c[rows] for n, c in self.columns.items() if n in COLUMNS}
        exits = None if self.exit_ranks is None else {n: c[rows] for n, c in self.exit_ranks.items()}
        requests = tuple(self.requests[r] for r in chosen)
        return replace(self, requests=requests, exit_ranks=exits, **taken)


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace as one Parquet file, which appears complete or not at all.

    Raises:
        TraceError: The trace contradicts itself; the message names the column and the first bad row.
        OSError: The file system refuses.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_trace(trace, str(path))
    texts = {
        "schema": TRACE_SCHEMA,
        "meta": to_json(trace.meta.model_dump(mode="json")),
        "requests": to_json(_REQUESTS.dump_python(trace.requests, mode="json")),
    }
    arrays = {name: _to_arrow(values, describe_column(name)) for name, values in trace.columns.items()}
    table = pa.table(arrays)
    # Not as metadata of Arrow's schema, of which the file would hold a second copy, prompts and all.
    with (
        atomic_write(path, binary=True) as file,
        pq.ParquetWriter(file, table.schema, compression=_COMPRESSION, store_schema=False) as writer,
    ):
        writer.write_table(table)
        writer.add_key_value_metadata({_KEY.format(key): text for key, text in texts.items()})


def read_trace(
    path: str | os.PathLike[str], columns: Sequence[str] | None = None, *, optional: Sequence[str] = ()
) -> Trace:
    """Read and check a trace.

    Args:
        path: The file.
        columns: Columns to read besides `request`, `position` and `token`; None for all there are.
        optional: Columns to read, too, where the file has them.

    Raises:
        TraceError: The file cannot be read, is no trace, lacks a column that was asked for, or
            contradicts itself.
    """
    import pyarrow.parquet as pq

    with parquet_refusals(path), pq.ParquetFile(path) as file:
        metadata = file.metadata.metadata or {}
        names = _choose(file.schema_arrow.names, columns, optional, str(path))
        table = file.read(columns=names)
    texts = _read_texts(metadata, str(path))
    fields: dict[str, Any] = {n: _from_arrow(table.column(n), describe_column(n), str(path)) for n in names}
    exits = {layer: fields.pop(n) for n in names if (layer := exit_layer(n)) is not None}
    trace = Trace(*texts, exit_ranks=exits or None, **fields)
    check_trace(trace, str(path))
    return trace


@contextmanager
def parquet_refusals(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever a Parquet file may do to its reader, as one line that names it.

    Raises:
        TraceError: It is no regular file or no Parquet file, or damaged.
    """
    import pyarrow as pa

    try:
        check_regular(path)
        yield
    except FileRefused as error:
        raise TraceError(str(error)) from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise TraceError(f"{path}: {' '.join(str(why).split())}") from error


def checked_text(metadata: Mapping[bytes, bytes], key: str, source: str) -> str:
    """A JSON text of a file's metadata, which `parse_json` takes; empty where there is none.

    Raises:
        TraceError: It is none.
    """
    raw = metadata.get(_KEY.format(key).encode(), b"")
    try:
        if raw:
            parse_json(raw)
        return raw.decode()
    except FileRefused as error:
        raise TraceError(f"{source}: metadata {_KEY.format(key)!r}: {error}") from error


def _choose(
    present: Sequence[str], wanted: Sequence[str] | None, optional: Sequence[str], source: str
) -> list[str]:
    """Columns to read, in the order of the file format."""
    required = [column.name for column in REQUIRED]
    known = [n for n in present if n in COLUMNS or exit_layer(n) is not None]
    if twice := [n for n in known if known.count(n) > 1]:
        raise TraceError(f"{source}: column {twice[0]!r} is there twice")
    names = known if wanted is None else [*required, *wanted]
    if missing := [name for name in dict.fromkeys([*required, *names]) if name not in known]:
        raise TraceError(f"{source}: {explain_missing(missing[0])}")
    return [name for name in known if name in names or name in optional]


def _read_texts(metadata: Mapping[bytes, bytes], source: str) -> tuple[tuple[TraceRequest, ...], TraceMeta]:
    texts = {}
    for key in ("schema", "meta", "requests"):
        value = metadata.get(_KEY.format(key).encode())
        if value is None:
            raise TraceError(f"{source}: is no trace, its metadata has no {_KEY.format(key)!r}")
        texts[key] = (
            value.decode(errors="replace") if key == "schema" else checked_text(metadata, key, source)
        )
    if texts["schema"] != TRACE_SCHEMA:
        raise TraceError(f"{source}: has schema {texts['schema']!r:.60}, this version reads {TRACE_SCHEMA!r}")
    try:
        return _REQUESTS.validate_json(texts["requests"]), TraceMeta.model_validate_json(texts["meta"])
    except ValidationError as error:
        raise TraceError(f"{source}: metadata of {describe_invalid(error)}") from error


def _to_arrow(values: NDArray[Any], column: Column) -> pyarrow.Array:
    import pyarrow as pa

    numbers = pa.array(np.ascontiguousarray(values, dtype=column.dtype).ravel())
    if column.width is None:
        return numbers
    width = values.shape[1]
    return pa.ListArray.from_arrays(np.arange(len(values) + 1, dtype=np.int32) * width, numbers)


def _from_arrow(chunks: pyarrow.ChunkedArray, column: Column, source: str) -> NDArray[Any]:
    import pyarrow as pa

    wanted = "lists of numbers" if column.width else "numbers"
    kind = chunks.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    inner = kind.value_type if lists else kind
    if lists is (column.width is None) or not _is_number(inner, column.dtype):
        raise TraceError(f"{source}: column {column.name!r} holds {kind}, must hold {wanted}")
    array = pa.concat_arrays(chunks.chunks) if chunks.num_chunks else pa.array([], chunks.type)
    if array.null_count:
        raise bad_row(source, column.name, array.is_null().to_numpy(zero_copy_only=False), "is empty")
    if column.width is None:
        # Flat integers are int64 in memory, to be indices without surprises.
        return np.asarray(array, dtype="float32" if column.dtype == "float32" else "int64")
    lengths = np.asarray(array.value_lengths())
    width = int(lengths[0]) if len(lengths) else 0
    if (lengths != width).any():
        raise bad_row(source, column.name, lengths != width, f"has not {width} numbers like row 0")
    flat = array.flatten()
    if flat.null_count:
        empty = flat.is_null().to_numpy(zero_copy_only=False).reshape(len(lengths), width).any(axis=1)
        raise bad_row(source, column.name, empty, "has an empty number")
    return np.asarray(flat, dtype=column.dtype).reshape(len(lengths), width)


def _is_number(kind: pyarrow.DataType, dtype: str) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or (dtype == "float32" and pa.types.is_floating(kind)))
