"""The trace file: what is read is what was written, and a bad row is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles import trace as trace_file
from hardware_profiles.trace import (
    COLUMNS,
    Trace,
    TraceError,
    TraceMeta,
    TraceRequest,
    read_trace,
    write_trace,
)

VOCABULARY = 50
M = 3


def meta(**changes: Any) -> TraceMeta:
    """Metadata of a greedy trace."""
    fields: dict[str, Any] = {
        "target_model": "big", "draft_model": "small", "tokenizer": "bytes", "vocabulary": VOCABULARY,
        "sampling": {"temperature": 0.0}, "end_token": 0, "draft_top": M, "target_top": 2,
    }  # fmt: skip
    return TraceMeta(**fields | changes)


def request(number: int) -> TraceRequest:
    """A request with a two-token prompt."""
    return TraceRequest(id=number, question_id=f"q{number}", category="code", prompt=(7, 8), ended="limit")


def bare(*lengths: int, **columns: Any) -> Trace:
    """A trace of requests 10, 11, ... of the given lengths, with required columns and the given ones."""
    n = sum(lengths)
    ids = [10 + i for i in range(len(lengths))]
    return Trace.of(
        requests=tuple(request(i) for i in ids),
        meta=meta(),
        request=np.repeat(np.array(ids, dtype=np.int64), lengths),
        position=np.concatenate([np.arange(length) for length in lengths]),
        token=np.arange(n) % VOCABULARY,
        **columns,
    )


def full(*lengths: int, seed: int = 0) -> Trace:
    """A trace with every column, of random content."""
    random = np.random.default_rng(seed)
    n = sum(lengths)
    columns: dict[str, Any] = {}
    for column in list(COLUMNS.values())[3:]:
        shape = (n,) if column.width is None else (n, getattr(meta(), column.width))
        if column.dtype == "float32":
            sign = 1 if column.name == "accept_mass" else -1
            columns[column.name] = (sign * random.random(shape)).astype(np.float32)
        else:
            columns[column.name] = random.integers(VOCABULARY, size=shape)
    return bare(*lengths, **columns, exit_rank_3=random.integers(9, size=n))


def same(one: Trace, other: Trace) -> bool:
    """Whether two traces agree in everything."""
    return (
        one.requests == other.requests
        and one.meta == other.meta
        and list(one.columns) == list(other.columns)
        and all(np.array_equal(one.columns[name], other.columns[name]) for name in one.columns)
    )


def forged(path: Path, column: str, values: Any) -> Path:
    """The file with one column replaced, as another program might have written it."""
    table = pq.read_table(path).replace_schema_metadata()
    table = table.set_column(table.schema.get_field_index(column), column, values)
    rewrite(path, table, pq.read_metadata(path).metadata)
    return path


def rewrite(path: Path, table: pa.Table, metadata: dict[bytes, bytes]) -> None:
    """Replace the file by a table with the given metadata."""
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 9))
def test_what_is_read_is_what_was_written_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    trace = full(*lengths, seed=seed)
    write_trace(trace, folder / "a.parquet")
    again = read_trace(folder / "a.parquet")
    assert same(again, trace)
    write_trace(again, folder / "b.parquet")
    assert (folder / "a.parquet").read_bytes() == (folder / "b.parquet").read_bytes()


def test_numbers_are_small_on_disk_and_indices_in_memory(tmp_path: Path) -> None:
    write_trace(full(4), tmp_path / "t.parquet")
    schema = pq.read_schema(tmp_path / "t.parquet")
    assert schema.field("target_logprob").type == pa.float32()
    assert schema.field("draft_top_ids").type == pa.list_(schema.field("draft_top_ids").type.value_field)
    assert schema.field("draft_top_ids").type.value_type == pa.int32()
    trace = read_trace(tmp_path / "t.parquet")
    assert trace.column("draft_rank").dtype == np.int64
    assert trace.column("draft_top_ids").shape == (4, M)


def test_only_the_columns_asked_for_are_read(tmp_path: Path) -> None:
    write_trace(full(2, 3), tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet", ["draft_rank", "exit_rank_3"])
    assert list(trace.columns) == ["request", "position", "token", "draft_rank", "exit_rank_3"]
    assert list(read_trace(tmp_path / "t.parquet", []).columns) == ["request", "position", "token"]


def test_a_trace_without_optional_columns_is_accepted_until_one_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_trace(bare(2, 3), path)
    trace = read_trace(path)
    assert list(trace.columns) == ["request", "position", "token"]
    reason = r"'draft_rank' is missing, which is needed for greedy acceptance.*record the trace again"
    with pytest.raises(TraceError, match=rf"t\.parquet: column {reason}"):
        read_trace(path, ["draft_rank"])
    with pytest.raises(TraceError, match=reason):
        trace.column("draft_rank")
    with pytest.raises(TraceError, match="'exit_rank_5' is missing, which is needed for Mirror"):
        trace.column("exit_rank_5")
    with pytest.raises(TraceError, match="'rank' is no column of a trace; there are request, position"):
        read_trace(path, ["rank"])


def test_slice_takes_whole_requests_in_the_order_given(tmp_path: Path) -> None:
    trace = full(2, 3, 1)
    part = trace.slice([12, 10])
    assert [r.id for r in part.requests] == [12, 10]
    assert part.request.tolist() == [12, 10, 10]
    assert part.column("draft_rank").tolist() == trace.column("draft_rank")[[5, 0, 1]].tolist()
    assert part.column("exit_rank_3").tolist() == trace.column("exit_rank_3")[[5, 0, 1]].tolist()
    write_trace(part, tmp_path / "part.parquet")
    assert same(read_trace(tmp_path / "part.parquet"), part)
    assert same(trace.slice([10, 11, 12]), trace)
    assert len(trace.slice([])) == 0
    with pytest.raises(TraceError, match="request 9 is not in the trace"):
        trace.slice([9])
    with pytest.raises(TraceError, match="named twice"):
        trace.slice([10, 10])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": np.array([0, 1, 0, 2, 3])}, "column 'position', row 3: positions must be 0, 1, 2"),
        ({"position": np.array([1, 2, 0, 1, 2])}, "column 'position', row 0"),
        ({"request": np.array([10, 11, 10, 11, 11])}, "column 'request', row 5: 4 groups of rows for 2"),
        ({"request": np.array([10, 10, 12, 12, 12])}, "column 'request', row 2: request 12, where .* has 11"),
        ({"requests": (request(10),)}, "column 'request', row 5: 2 groups of rows for 1 requests"),
        ({"token": np.array([0, 1, 2, 50, 4])}, "column 'token', row 3: is not below the vocabulary of 50"),
        ({"token": np.array([0, 1, -1, 5, 4])}, "column 'token', row 2: -1 is not a number between 0 and"),
        ({"token": np.array([0, 1])}, r"column 'token', row 0: shape is \(2,\), must be \(5,\)"),
        ({"draft_rank": np.array([0, 0, 0, 0, -2])}, "column 'draft_rank', row 4: -2"),
        ({"draft_logprob": np.array([0, -1, 0.5, 0, 0])}, "column 'draft_logprob', row 2: 0.5"),
        ({"accept_mass": np.array([0, 1, np.nan, 0, 0])}, "column 'accept_mass', row 2: nan"),
        ({"draft_top_ids": np.zeros((5, 2), int)}, r"'draft_top_ids', row 0: .*must be \(5, 3\) \(draft_top"),
    ],
)  # fmt: skip
def test_a_trace_that_contradicts_itself_is_not_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    requests = changes.get("requests", bare(2, 3).requests)
    columns = {**bare(2, 3).columns, **{n: c for n, c in changes.items() if n != "requests"}}
    with pytest.raises(TraceError, match=rf"t\.parquet: .*{message}"):
        write_trace(Trace.of(requests, meta(), **columns), tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_probability_of_zero_is_a_logprob_of_minus_infinity(tmp_path: Path) -> None:
    trace = bare(2, draft_logprob=np.array([-np.inf, 0.0], dtype=np.float32))
    write_trace(trace, tmp_path / "t.parquet")
    assert same(read_trace(tmp_path / "t.parquet"), trace)


def test_the_first_bad_row_of_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_trace(full(2, 2), path)
    with pytest.raises(TraceError, match=r"t\.parquet: column 'token', row 1: is empty"):
        read_trace(forged(path, "token", pa.array([1, None, 3, 4], pa.int32())))
    write_trace(full(2, 2), path)
    lists = pa.array([[1, 2, 3], [1, 2, 3], [1, 2], [1, 2, 3]], pa.list_(pa.int32()))
    with pytest.raises(TraceError, match="column 'draft_top_ids', row 2: has not 3 numbers"):
        read_trace(forged(path, "draft_top_ids", lists))


def test_a_category_is_read_group_by_group_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows 0 to 6 in groups of 2: requests 10, 11 and 12 have rows 0-2, 3-4 and 5-6."""
    monkeypatch.setattr(trace_file, "GROUP", 2)
    path, whole = tmp_path / "t.parquet", full(3, 2, 2)
    requests = (*whole.requests[:1], whole.requests[1].but(category="prose"), whole.requests[2])
    write_trace(replace(whole, requests=requests), path)
    assert pq.read_metadata(path).num_row_groups == 4
    assert same(read_trace(path), replace(whole, requests=requests))
    assert same(read_trace(path, category="code"), replace(whole, requests=requests).slice([10, 12]))
    with pytest.raises(
        TraceError, match="no prompt of category 'tables' in the trace; categories: code, prose"
    ):
        read_trace(path, category="tables")
    table, metadata = pq.read_table(path).replace_schema_metadata(), pq.read_metadata(path).metadata
    bad = pa.array([1, 2, 3, None, 5, 6, 7], pa.int32())
    place = table.schema.get_field_index("token")
    pq.write_table(
        table.set_column(place, "token", bad).replace_schema_metadata(metadata), path, row_group_size=2
    )
    with pytest.raises(TraceError, match="column 'token', row 3: is empty"):
        read_trace(path)


def test_fixed_size_lists_and_wider_numbers_of_other_writers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_trace(full(2), path)
    forged(path, "draft_top_ids", pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int64(), 3)))
    assert read_trace(path).column("draft_top_ids").tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("columns", [None, ["draft_rank"]])
def test_a_file_without_a_required_column_is_refused(tmp_path: Path, columns: list[str] | None) -> None:
    path = tmp_path / "t.parquet"
    write_trace(full(2), path)
    rewrite(
        path,
        pq.read_table(path).replace_schema_metadata().drop_columns(["position"]),
        pq.read_metadata(path).metadata,
    )
    with pytest.raises(TraceError, match="column 'position' is missing"):
        read_trace(path, columns)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with pytest.raises(TraceError, match=r"t\.parquet: .*[Nn]o such file"):
        read_trace(path)
    path.write_text("hello")
    with pytest.raises(TraceError, match=r"t\.parquet: .*Parquet"):
        read_trace(path)
    write_trace(bare(1), path)
    table, metadata = pq.read_table(path).replace_schema_metadata(), pq.read_metadata(path).metadata
    rewrite(path, table, {})
    with pytest.raises(TraceError, match=r"is no trace, its metadata has no 'spectwin\.schema'"):
        read_trace(path)
    rewrite(path, table, metadata | {b"spectwin.schema": b"x/2"})
    with pytest.raises(TraceError, match=r"has schema 'x/2', this version reads 'spectwin/trace/1'"):
        read_trace(path)
    rewrite(path, table, metadata | {b"spectwin.meta": b"{}"})
    with pytest.raises(TraceError, match="metadata of TraceMeta: target_model: is required"):
        read_trace(path)
