"""The trace: what a target really wrote, and what its draft would have proposed at every position.

Its columns and what each is for, what is kept about requests and origin, checks, and the Parquet file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from hardware_profiles.files import FileRefused, atomic_write, check_regular, parse_json, to_json
from hardware_profiles.records import Count, Frozen, Natural, RecordError, field, plain, record

if TYPE_CHECKING:
    import pyarrow


TRACE_SCHEMA = "spectwin/trace/1"
"""The one schema that this version reads and writes."""


class TraceError(ValueError):
    """A trace cannot be found, read or used; the message names the file, the column and the row."""


class Column(NamedTuple):
    """One column of a trace.

    Attributes:
        dtype: NumPy type of its numbers in the file.
        purpose: Who needs it, for the error when it is missing.
        width: Name of the `TraceMeta` field with the numbers per row; None if a row is one number.
        low: Smallest valid number, if any.
        high: Largest valid number, if any.
    """

    name: str
    dtype: Literal["int32", "int64", "float32"]
    purpose: str
    width: Literal["draft_top", "target_top"] | None = None
    low: float | None = None
    high: float | None = None


# Probabilities and masses are sums in float32, which may exceed 1 by rounding.
_ROUNDING = 1e-4

REQUIRED = ("request", "position", "token")

COLUMNS: Mapping[str, Column] = {
    column.name: column
    for column in (
        Column("request", "int64", "the identity of the text"),
        Column("position", "int32", "the place in the text", low=0),
        Column("token", "int32", "the text itself", low=0),
        Column("target_logprob", "float32", "acceptance when the target samples", high=_ROUNDING),
        Column("draft_logprob", "float32", "acceptance when the draft samples", high=_ROUNDING),
        Column("draft_rank", "int32", "greedy acceptance and hits of the speculation cache", low=0),
        Column("draft_top_ids", "int32", "the ids of cached candidates", "draft_top", low=0),
        Column("draft_top_logprobs", "float32", "the law of rejected tokens", "draft_top", high=_ROUNDING),
        Column("target_at_draft_top_logprobs", "float32", "rejections", "draft_top", high=_ROUNDING),
        Column("target_top_ids", "int32", "the target's own candidates", "target_top", low=0),
        Column("target_top_logprobs", "float32", "the target's candidates", "target_top", high=_ROUNDING),
        Column("accept_mass", "float32", "rejections beyond the candidates", low=0, high=1 + _ROUNDING),
        Column("draft_next_top1_logprob", "float32", "the draft's later confidence", high=_ROUNDING),
    )
}
"""All columns by name, in the order of the file, but those of early exits, `exit_rank_<layer>`.

- `*_logprob`: of the token written; minus infinity for a token that was cut by top-p.
- `draft_rank`: of the token written, 0 being the draft's first choice; rankings are those before the cut.
- `draft_top_*`: the draft's M likeliest tokens, the likeliest first.
- `target_at_draft_top_logprobs`: of the same tokens, under the target.
- `accept_mass`: sum over the vocabulary of min(p, q).
- `draft_next_top1_logprob`: of the draft's first choice after its own first choice at this position.
- `exit_rank_<layer>`: rank of the token written at that layer.
"""


def exit_layer(name: str) -> int | None:
    """Layer of an `exit_rank_<layer>` column; None for any other."""
    prefix, _, layer = name.rpartition("_")
    return int(layer) if prefix == "exit_rank" and layer.isdecimal() else None


def _column(name: str) -> Column:
    """The column of that name; of an early exit's ranks, if it is none of the others."""
    return COLUMNS.get(name) or Column(name, "int32", "Mirror's early exits", low=0)


def _missing(name: str) -> TraceError:
    """What a missing column is needed for, and what to do."""
    if name not in COLUMNS and exit_layer(name) is None:
        known = ", ".join(COLUMNS)
        return TraceError(f"column {name!r} is no column of a trace; there are {known}, exit_rank_<layer>")
    return TraceError(
        f"column {name!r} is missing, which is needed for {_column(name).purpose}; record the trace "
        "again with `calibrate`, with this column, or choose a policy that does not need it"
    )


class TraceRequest(Frozen, frozen=True, kw_only=True):
    """One recorded request.

    Attributes:
        id: Its identity, as in the column `request`.
        question_id: Its identity in the prompt set.
        category: Kind of text, to compare like with like.
        prompt: The prompt's token ids, at least one.
        source: Where the prompt comes from.
        ended: Whether the text ended by itself or at the limit.
    """

    id: int
    question_id: int | str
    category: str
    prompt: Annotated[tuple[Natural, ...], Meta(min_length=1)]
    source: str = ""
    ended: Literal["end_token", "limit"]


class TraceMeta(Frozen, frozen=True, kw_only=True):
    """Where a trace comes from.

    Attributes:
        vocabulary: Number of token ids.
        sampling: The target's sampling setting, e.g. `{"temperature": 0.0}`; the text has this distribution.
        end_token: Id that ends a text; None if there is none.
        draft_top: M, candidates of the draft recorded per position; no fan-out can exceed it.
        target_top: Candidates of the target recorded per position.
        backend: What ran the draft; its log-probabilities depend on it.
        precision: The draft's precision.
        when: Date and time, ISO 8601.
    """

    target_model: str
    draft_model: str
    tokenizer: str
    vocabulary: Count
    sampling: Mapping[str, Any]
    end_token: Natural | None = None
    draft_top: Natural = 0
    target_top: Natural = 0
    prompt_set: str = ""
    prompt_set_hash: str = ""
    backend: str = ""
    precision: str = ""
    when: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


IntArray: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded texts, one after the other: row i of every column is one generated position.

    n is the number of positions of all requests together.  Log-probabilities are natural and those of both
    models at the sampling setting, after the top-p cut.

    Attributes:
        requests: In the order of their rows.
        columns: [n] or [n, width] numbers by name (see `COLUMNS`), as far as they were recorded and read.
    """

    requests: tuple[TraceRequest, ...]
    meta: TraceMeta
    columns: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, requests: Iterable[TraceRequest], meta: TraceMeta, **columns: NDArray[Any]) -> Trace:
        """A trace with its columns in the order of the file: those of early exits last, by layer."""
        known = [name for name in COLUMNS if name in columns]
        exits = sorted(columns.keys() - COLUMNS.keys(), key=lambda name: exit_layer(name) or 0)
        return cls(tuple(requests), meta, {name: columns[name] for name in [*known, *exits]})

    def changed(self, **columns: NDArray[Any]) -> Trace:
        """The trace with other numbers in these columns."""
        return Trace.of(self.requests, self.meta, **{**self.columns, **columns})

    def __len__(self) -> int:
        """Number of positions n."""
        return len(self.request)

    @property
    def request(self) -> IntArray:
        """[n] request id."""
        return self.columns["request"]

    @property
    def position(self) -> IntArray:
        """[n] 0, 1, ... within each request."""
        return self.columns["position"]

    @property
    def token(self) -> IntArray:
        """[n] the token written."""
        return self.columns["token"]

    @cached_property
    def offsets(self) -> IntArray:
        """[R + 1] first row of each request, and n: request r has rows offsets[r] ... offsets[r+1] - 1."""
        starts = np.flatnonzero(np.diff(self.request, prepend=self.request[:1] - 1))
        return np.append(starts, len(self)).astype(np.int64)

    @property
    def ends(self) -> IntArray:
        """[n] row at which the request of each row ends."""
        return np.repeat(self.offsets[1:], np.diff(self.offsets))

    def column(self, name: str) -> NDArray[Any]:
        """One column, which must be there.

        Raises:
            TraceError: It is not; the message says what it is needed for and what to do.
        """
        if name not in self.columns:
            raise _missing(name)
        return self.columns[name]

    def of_category(self, category: str) -> Trace:
        """The trace of the prompts of one category.

        Raises:
            TraceError: There is none; the message lists the categories.
        """
        return self.slice(requests_of(self.requests, category, "trace"))

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
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *spans])
        requests = tuple(self.requests[r] for r in chosen)
        return Trace(requests, self.meta, {name: column[rows] for name, column in self.columns.items()})


def requests_of(requests: Sequence[TraceRequest], category: str, what: str) -> list[int]:
    """Ids of the requests of one category in a recording that is called `what`.

    Raises:
        TraceError: There is none; the message lists the categories.
    """
    ids = [request.id for request in requests if request.category == category]
    if not ids:
        known = ", ".join(dict.fromkeys(request.category for request in requests))
        raise TraceError(f"no prompt of category {category!r} in the {what}; categories: {known}")
    return ids


_KEY = "spectwin.{}"
GROUP = 1 << 16
"""Rows of a file that are written, and read, together."""
Part = TypeVar("Part")


def metadata_value(metadata: Mapping[bytes, bytes], key: str) -> Any:
    """The value of a JSON text of a file's metadata; None where there is none.

    Raises:
        FileRefused: It is none.
    """
    raw = metadata.get(_KEY.format(key).encode())
    try:
        return parse_json(raw) if raw else None
    except FileRefused as error:
        raise FileRefused(f"metadata {_KEY.format(key)!r}: {error}") from error


def write_recording(
    path: str | os.PathLike[str],
    schema: str,
    requests: tuple[TraceRequest, ...],
    meta: TraceMeta,
    table: pyarrow.Table,
    **texts: str,
) -> None:
    """Write a recording as one Parquet file, which appears complete or not at all."""
    import pyarrow.parquet as pq

    texts = {
        "schema": schema,
        "meta": to_json(plain(meta)),
        "requests": to_json(plain(requests)),
        **texts,
    }
    # Not as metadata of Arrow's schema, of which the file would hold a second copy, prompts and all.
    with (
        atomic_write(path, binary=True) as file,
        pq.ParquetWriter(file, table.schema, compression="zstd", store_schema=False) as writer,
    ):
        writer.write_table(table, row_group_size=GROUP)
        writer.add_key_value_metadata({_KEY.format(key): text for key, text in texts.items()})


@contextmanager
def parquet_refusals(path: str | os.PathLike[str], noun: str = "trace") -> Iterator[None]:
    """Whatever a recording's file may do to its reader, as one line that names it.

    Raises:
        TraceError: It is no regular file or no Parquet file, or damaged.
    """
    import pyarrow as pa

    try:
        check_regular(path)
        yield
    except RecordError as error:
        raise TraceError(f"{path}: metadata of {error.title}: {error}") from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise TraceError(f"{path}: {' '.join(str(why).split())}") from error
    except (TraceError, FileRefused) as error:
        raise TraceError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TraceError(f"{path}: damaged {noun}: {error}") from error


def read_recording(
    path: str | os.PathLike[str],
    schemas: Sequence[str],
    choose: Callable[[list[str]], list[str]],
    take: Callable[[tuple[TraceRequest, ...], pyarrow.Table], Part],
) -> tuple[tuple[TraceRequest, ...], TraceMeta, list[Part], Mapping[bytes, bytes]]:
    """The requests, the origin, what is taken of the rows and the metadata; within `parquet_refusals`.

    Args:
        path: The file.
        schemas: Those that are read, the newest first.
        choose: The columns to read, of those that are there.
        take: Of the next rows: beside what is taken, never more are in memory than a group has (`GROUP`).

    Raises:
        TraceError: It is no recording of these schemas.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        metadata = file.metadata.metadata or {}
        columns = choose(file.schema_arrow.names)
        for key in ("schema", "meta", "requests"):
            if _KEY.format(key).encode() not in metadata:
                raise TraceError(f"is no trace, its metadata has no {_KEY.format(key)!r}")
        schema = metadata[_KEY.format("schema").encode()].decode(errors="replace")
        if schema not in schemas:
            raise TraceError(f"has schema {schema!r:.60}, this version reads {schemas[0]!r}")
        requests = record(tuple[TraceRequest, ...], metadata_value(metadata, "requests"))
        groups: Iterable[list[int]] = (
            ([i] for i in range(file.num_row_groups)) if file.num_row_groups else [[]]
        )
        parts = [take(requests, file.read_row_groups(group, columns)) for group in groups]
    return requests, record(TraceMeta, metadata_value(metadata, "meta")), parts, metadata


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace as one Parquet file, which appears complete or not at all.

    Raises:
        TraceError: The trace contradicts itself; the message names the column and the first bad row.
        OSError: The file system refuses.
    """
    import pyarrow as pa

    check_trace(trace, str(path))
    arrays = {name: _to_arrow(values, _column(name)) for name, values in trace.columns.items()}
    write_recording(path, TRACE_SCHEMA, trace.requests, trace.meta, pa.table(arrays))


def read_trace(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    optional: Sequence[str] = (),
    category: str | None = None,
) -> Trace:
    """Read and check a trace, or as much of it as is asked for.

    Args:
        path: The file.
        columns: Columns to read besides `request`, `position` and `token`; None for all there are.
        optional: Columns to read, too, where the file has them.
        category: Of the prompts whose texts are read; None: all.

    Raises:
        TraceError: The file cannot be read, is no trace, lacks a column that was asked for, or
            contradicts itself.
    """

    def choose(present: list[str]) -> list[str]:
        known = [n for n in present if n in COLUMNS or exit_layer(n) is not None]
        if twice := [n for n in known if known.count(n) > 1]:
            raise TraceError(f"column {twice[0]!r} is there twice")
        wanted = [*REQUIRED, *(known if columns is None else columns)]
        if missing := [name for name in wanted if name not in known]:
            raise _missing(missing[0])
        return [name for name in known if name in wanted or name in optional]

    read = 0

    def take(requests: tuple[TraceRequest, ...], table: pyarrow.Table) -> dict[str, NDArray[Any]]:
        nonlocal read
        numbers = {n: _from_arrow(table.column(n), _column(n), str(path), read) for n in table.column_names}
        read += len(table)
        if category is None:
            return numbers
        mine = np.isin(numbers["request"], requests_of(requests, category, "trace"))
        return {name: column[mine] for name, column in numbers.items()}

    with parquet_refusals(path):
        requests, meta, parts, _ = read_recording(path, [TRACE_SCHEMA], choose, take)
        numbers = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
        kept = [each for each in requests if category in {None, each.category}]
        trace = Trace.of(kept, meta, **numbers)
        check_trace(trace, str(path))
    return trace


def _to_arrow(values: NDArray[Any], column: Column) -> pyarrow.Array:
    import pyarrow as pa

    numbers = pa.array(np.ascontiguousarray(values, dtype=column.dtype).ravel())
    if column.width is None:
        return numbers
    width = values.shape[1]
    return pa.ListArray.from_arrays(np.arange(len(values) + 1, dtype=np.int32) * width, numbers)


def _from_arrow(chunks: pyarrow.ChunkedArray, column: Column, source: str, first: int) -> NDArray[Any]:
    import pyarrow as pa

    kind, types = chunks.type, pa.types
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    inner = kind.value_type if lists else kind
    number = types.is_integer(inner) or (column.dtype == "float32" and types.is_floating(inner))
    if lists is (column.width is None) or not number:
        wanted = "lists of numbers" if column.width else "numbers"
        raise TraceError(f"{source}: column {column.name!r} holds {kind}, must hold {wanted}")
    array = pa.concat_arrays(chunks.chunks) if chunks.num_chunks else pa.array([], kind)
    if array.null_count:  # what tells which they are takes as long to import as the rest of Arrow
        _refuse_rows(source, column.name, array.is_null().to_numpy(zero_copy_only=False), "is empty", first)
    if column.width is None:
        # Flat integers are int64 in memory, to be indices without surprises.
        return np.asarray(array, dtype="float32" if column.dtype == "float32" else "int64")
    # Not `value_lengths` and `flatten`, which import pyarrow.compute.
    if types.is_fixed_size_list(kind):
        begins = np.arange(len(array) + 1) * kind.list_size
    else:
        begins = np.asarray(array.offsets)
    lengths = np.diff(begins)
    width = int(lengths[0]) if len(lengths) else 0
    _refuse_rows(source, column.name, lengths != width, f"has not {width} numbers like row {first}", first)
    flat, shape = array.values.slice(int(begins[0]), int(begins[-1] - begins[0])), (len(lengths), width)
    if flat.null_count:
        empty = flat.is_null().to_numpy(zero_copy_only=False).reshape(shape)
        _refuse_rows(source, column.name, empty.any(axis=1), "has an empty number", first)
    return np.asarray(flat, dtype=column.dtype).reshape(shape)


def _refuse_rows(source: str, column: str, bad: NDArray[np.bool_], problem: str, first: int = 0) -> None:
    """Raise the error of a column's first bad row, if there is one; `first` is the number of row 0."""
    if bad.any():
        raise TraceError(f"{source}: column {column!r}, row {first + int(np.argmax(bad))}: {problem}")


def check_trace(trace: Trace, source: str) -> None:
    """Raise the error of the first thing in which the trace contradicts itself."""
    for name, values in trace.columns.items():
        _check_column(trace, _column(name), values, source)
    _check_layout(trace, source)
    vocabulary = trace.meta.vocabulary
    problem = f"is not below the vocabulary of {vocabulary}"
    _refuse_rows(source, "token", trace.token >= vocabulary, problem)


def _check_column(trace: Trace, column: Column, values: NDArray[Any], source: str) -> None:
    shape: tuple[int, ...] = (len(trace),)
    wanted = ""
    if column.width is not None:
        shape, wanted = (*shape, getattr(trace.meta, column.width)), f" ({column.width} of the metadata)"
    if values.shape != shape:
        raise TraceError(
            f"{source}: column {column.name!r}, row 0: shape is {values.shape}, must be {shape}{wanted}"
        )
    bad = np.isnan(values)
    if column.low is not None:
        bad |= values < column.low
    if column.high is not None:
        bad |= values > column.high
    if bad.any():
        limits = f"between {column.low} and {column.high}".replace("None", "no limit")
        rows = bad.reshape(len(bad), -1).any(axis=1)
        _refuse_rows(source, column.name, rows, f"{values[bad][0]} is not a number {limits}")


def _check_layout(trace: Trace, source: str) -> None:
    starts, sizes = trace.offsets[:-1], np.diff(trace.offsets)
    # Before the positions, whose error a scattered request would cause too.
    groups = trace.request[starts].tolist()
    known = [request.id for request in trace.requests]
    for row, identity, listed in zip(starts, groups, known, strict=False):
        if identity != listed:
            problem = f"request {identity}, where the list of requests has {listed}"
            raise TraceError(f"{source}: column 'request', row {row}: {problem}")
    if len(groups) != len(known):
        raise TraceError(
            f"{source}: column 'request', row {len(trace)}: {len(groups)} groups of rows for {len(known)} "
            "requests; the rows of a request must be together, and each must have one"
        )
    if len(set(known)) != len(known):
        raise TraceError(f"{source}: column 'request': a request is listed twice")
    expected = np.arange(len(trace)) - np.repeat(starts, sizes)
    problem = "positions must be 0, 1, 2, ... within a request"
    _refuse_rows(source, "position", trace.position != expected, problem)
