"""The trace: what a target really wrote, and what its draft would have proposed at every position.

Its columns and what each is for, what is kept about requests and origin, checks, and the Parquet file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from hardware_profiles.files import FileRefused, atomic_write, check_regular, parse_json, to_json
from hardware_profiles.surface import Frozen

if TYPE_CHECKING:
    import pyarrow


TRACE_SCHEMA = "spectwin/trace/1"
"""The one schema that this version reads and writes."""


class TraceError(ValueError):
    """A trace cannot be found, read or used; the message names the file, the column and the row."""


@dataclass(frozen=True)
class Column:
    """One column of a trace.

    Attributes:
        name: Its name, in the file and as a field of `Trace`.
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

REQUIRED: tuple[Column, ...] = (
    Column("request", "int64", "the identity of the text"),
    Column("position", "int32", "the place in the text", low=0),
    Column("token", "int32", "the text itself", low=0),
)

OPTIONAL: tuple[Column, ...] = (
    Column("target_logprob", "float32", "acceptance when the target samples", high=_ROUNDING),
    Column("draft_logprob", "float32", "acceptance when the draft samples", high=_ROUNDING),
    Column("draft_rank", "int32", "greedy acceptance and hits of the speculation cache", low=0),
    Column("draft_top_ids", "int32", "the ids of cached candidates", "draft_top", low=0),
    Column("draft_top_logprobs", "float32", "the law of rejected tokens", "draft_top", high=_ROUNDING),
    Column("target_at_draft_top_logprobs", "float32", "rejections", "draft_top", high=_ROUNDING),
    Column("target_top_ids", "int32", "the target's own candidates", "target_top", low=0),
    Column("target_top_logprobs", "float32", "the target's own candidates", "target_top", high=_ROUNDING),
    Column("accept_mass", "float32", "rejections beyond the recorded candidates", low=0, high=1 + _ROUNDING),
    Column(
        "draft_next_top1_logprob", "float32", "the draft's confidence after its own first choice",
        high=_ROUNDING,
    ),
)  # fmt: skip

COLUMNS: Mapping[str, Column] = {column.name: column for column in REQUIRED + OPTIONAL}
"""All columns by name, in the order of the file."""


def exit_layer(name: str) -> int | None:
    """Layer of an `exit_rank_<layer>` column; None for any other."""
    prefix, _, layer = name.rpartition("_")
    return int(layer) if prefix == "exit_rank" and layer.isdecimal() else None


def describe_column(name: str) -> Column:
    """The column of that name; of an early exit's ranks, if it is none of the others."""
    return COLUMNS.get(name) or Column(name, "int32", "Mirror's early exits", low=0)


def explain_missing(name: str) -> str:
    """What a missing column is needed for, and what to do."""
    if name not in COLUMNS and exit_layer(name) is None:
        return f"column {name!r} is no column of a trace; there are {', '.join(COLUMNS)}, exit_rank_<layer>"
    return (
        f"column {name!r} is missing, which is needed for {describe_column(name).purpose}; record the trace "
        "again with `calibrate`, with this column, or choose a policy that does not need it"
    )


Ended: TypeAlias = Literal["end_token", "limit"]


class TraceRequest(Frozen):
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
    prompt: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    source: str = ""
    ended: Ended


class TraceMeta(Frozen):
    """Where a trace comes from.

    Attributes:
        target_model: Name of the target.
        draft_model: Name of the draft.
        tokenizer: Name of the tokenizer.
        vocabulary: Number of token ids.
        sampling: The target's sampling setting, e.g. `{"temperature": 0.0}`; the text has this law.
        end_token: Id that ends a text; None if there is none.
        draft_top: M, candidates of the draft recorded per position; no fan-out can exceed it.
        target_top: Candidates of the target recorded per position.
        prompt_set: Name of the prompts.
        prompt_set_hash: Hash of the prompts.
        backend: What ran the draft; its log-probabilities depend on it.
        precision: The draft's precision.
        when: Date and time, ISO 8601.
        versions: Version of each package involved.
    """

    target_model: str
    draft_model: str
    tokenizer: str
    vocabulary: PositiveInt
    sampling: Mapping[str, JsonValue]
    end_token: NonNegativeInt | None = None
    draft_top: NonNegativeInt = 0
    target_top: NonNegativeInt = 0
    prompt_set: str = ""
    prompt_set_hash: str = ""
    backend: str = ""
    precision: str = ""
    when: str = ""
    versions: Mapping[str, str] = Field(default_factory=dict)


def describe_invalid(error: ValidationError) -> str:
    """The first thing in which a value is not what it should be, with its field."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{error.title}: {where}: {first['msg']}" if where else f"{error.title}: {first['msg']}"


IntArray: TypeAlias = NDArray[np.int64]
Int32Array: TypeAlias = NDArray[np.int32]
Float32Array: TypeAlias = NDArray[np.float32]

REQUESTS = TypeAdapter(tuple[TraceRequest, ...])
KEY = "spectwin.{}"
"""Of a text in a file's metadata."""
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

    check_trace(trace, str(path))
    arrays = {name: _to_arrow(values, describe_column(name)) for name, values in trace.columns.items()}
    write_parquet(path, pa.table(arrays), metadata_texts(TRACE_SCHEMA, trace.meta, trace.requests))


def metadata_texts(schema: str, meta: TraceMeta, requests: tuple[TraceRequest, ...]) -> dict[str, str]:
    """What a recording's file says besides its rows."""
    return {
        "schema": schema,
        "meta": to_json(meta.model_dump(mode="json")),
        "requests": to_json(REQUESTS.dump_python(requests, mode="json")),
    }


def write_parquet(path: str | os.PathLike[str], table: pyarrow.Table, texts: Mapping[str, str]) -> None:
    """Write a table and texts beside it as one Parquet file, which appears complete or not at all."""
    import pyarrow.parquet as pq

    # Not as metadata of Arrow's schema, of which the file would hold a second copy, prompts and all.
    with (
        atomic_write(path, binary=True) as file,
        pq.ParquetWriter(file, table.schema, compression=_COMPRESSION, store_schema=False) as writer,
    ):
        writer.write_table(table)
        writer.add_key_value_metadata({KEY.format(key): text for key, text in texts.items()})


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
    raw = metadata.get(KEY.format(key).encode(), b"")
    try:
        if raw:
            parse_json(raw)
        return raw.decode()
    except FileRefused as error:
        raise TraceError(f"{source}: metadata {KEY.format(key)!r}: {error}") from error


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
        value = metadata.get(KEY.format(key).encode())
        if value is None:
            raise TraceError(f"{source}: is no trace, its metadata has no {KEY.format(key)!r}")
        texts[key] = (
            value.decode(errors="replace") if key == "schema" else checked_text(metadata, key, source)
        )
    if texts["schema"] != TRACE_SCHEMA:
        raise TraceError(f"{source}: has schema {texts['schema']!r:.60}, this version reads {TRACE_SCHEMA!r}")
    try:
        return REQUESTS.validate_json(texts["requests"]), TraceMeta.model_validate_json(texts["meta"])
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
