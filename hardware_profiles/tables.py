"""Tables of plain values, a row each, in the formats that data frames read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hardware_profiles.files import atomic_write, to_json

Row: TypeAlias = dict[str, Any]
FORMATS = (".parquet", ".csv", ".json")


def write_rows(rows: Sequence[Row], path: Path, metadata: Mapping[bytes, bytes] | None = None) -> None:
    """Write a table as its file's ending says: Parquet, CSV or JSON.

    Raises:
        ValueError: Another ending.
    """
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {name: pa.array([row.get(name) for row in rows]) for name in columns_of(rows)}
        with atomic_write(path, binary=True) as file:
            pq.write_table(pa.table(columns).replace_schema_metadata(metadata), file)
        return
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: a table ends in {', '.join(FORMATS)}")
    text = csv_of(rows) if path.suffix == ".csv" else to_json(list(rows), indent=1) + "\n"
    with atomic_write(path) as file:
        file.write(text)


def csv_of(rows: Sequence[Row]) -> str:
    """A table as CSV; lists and the like as JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({n: to_json(v) if isinstance(v, list | dict) else v for n, v in row.items()})
    return text.getvalue()


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Names of all columns, in the order in which they come up."""
    return list(dict.fromkeys(name for row in rows for name in row))
