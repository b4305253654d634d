"""Results of studies: one tidy table, kept as Parquet with its metadata, and as CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from hardware_profiles.files import atomic_write, parse_json, read_json, to_json
from hardware_profiles.tables import columns_of, csv_of, write_rows
from policies.registry import Settings, configure

RESULTS = Path(__file__).resolve().parent / "results"
FORMAT = "spectwin/study/1"
KEY = b"spectwin.study"

Row: TypeAlias = dict[str, Any]
"""One setting on some prompts: what it is, and by every opinion what it does."""


@dataclass(frozen=True)
class Results:
    """What a study found.

    Attributes:
        study: Its name.
        asked: Its options.
        rows: One per setting, place, batch and category of prompts; a column that is not of a row is absent
            or None there.
        about: What is said of all rows together: title, errors, orders.
    """

    study: str
    rows: tuple[Row, ...]
    asked: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether anything was measured."""
        return any(row.get("measured_speedup_vs_ar") is not None for row in self.rows)

    def where(self, **wanted: Any) -> list[Row]:
        """The rows with these values; of all categories of prompts together unless one is named."""
        wanted = {"category": EVERY, **wanted} if "category" in self.columns else wanted
        return where(self.rows, **wanted)

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in the order in which they come up."""
        return columns_of(self.rows)

    def as_json(self) -> str:
        """One JSON object; what is not a number becomes null."""
        content = {"study": self.study, "asked": dict(self.asked), **self.about, "rows": list(self.rows)}
        return to_json(_finite(content), indent=1)

    def as_csv(self) -> str:
        """The table; lists and the like as JSON."""
        return csv_of(self.rows)

    def write(self, folder: Path, name: str | None = None) -> list[Path]:
        """Write NAME.parquet, .csv and .json to a folder; returns the files.

        Raises:
            ValueError: The folder holds live results of that study, and these are simulated only.
        """
        paths = [folder / f"{name or self.study}.{ending}" for ending in ("parquet", "csv", "json")]
        if paths[0].is_file() and not self.live and read(paths[0]).live:
            raise ValueError(f"{paths[0]} holds live results; give --out another folder, or --live")
        folder.mkdir(parents=True, exist_ok=True)
        meta = {"format": FORMAT, "study": self.study, "asked": dict(self.asked), "about": dict(self.about)}
        for path in paths[:2]:
            write_rows(self.rows, path, {KEY: to_json(_finite(meta)).encode()})
        with atomic_write(paths[2]) as file:
            file.write(self.as_json() + "\n")
        return paths


EVERY = "all"
"""Stands for all categories of prompts."""


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows with these values of columns or, where a row has no such column, of knobs."""
    return [row for row in rows if all(value_of(row, name) == value for name, value in wanted.items())]


def value_of(row: Row, name: str) -> Any:
    """A column of a row, else a knob of its setting; None where there is neither."""
    value = row.get(name)
    return parse_json(row.get("knobs") or "{}").get(name) if value is None else value


def in_world(rows: Iterable[Row], world: str) -> list[Row]:
    """The rows that have a speed in a world, whose columns they also have without its name before them."""
    start = f"{world}_"
    return [
        row | {name.removeprefix(start): value for name, value in row.items() if name.startswith(start)}
        for row in rows
        if row.get(f"{world}_speedup_vs_ar") is not None
    ]


def read(path: Path) -> Results:
    """Stored results: Parquet, or JSON as earlier versions wrote it.

    Args:
        path: The file, or a folder that holds just one Parquet file of results.

    Raises:
        OSError: There is none.
        ValueError: It holds no results.
    """
    if path.is_dir():
        tables = [p for p in sorted(path.glob("*.parquet")) if KEY in (pq.read_schema(p).metadata or {})]
        if len(tables) != 1:
            raise ValueError(f"{path}: holds {len(tables)} tables of results; name one")
        path = tables[0]
    try:
        if path.suffix != ".parquet":
            content = read_json(path)
            rest = {name: value for name, value in content.items() if name not in {"study", "asked", "rows"}}
            return Results(
                content.get("study", path.stem), tuple(content["rows"]), content.get("asked", {}), rest
            )
        table = pq.read_table(path)
        meta = parse_json(table.schema.metadata[KEY])
        if meta["format"] != FORMAT:
            raise ValueError(f"its format is {meta['format']!r}, not {FORMAT!r}")
        return Results(meta["study"], tuple(table.to_pylist()), meta["asked"], meta["about"])
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise ValueError(f"{path}: no results of `python -m analysis run --out`: {error}") from error


def load(name: str) -> Results:
    """A result that comes with the project, e.g. `systems/mirror`.

    Raises:
        OSError: There is none.
    """
    return read(RESULTS / f"{name}.parquet")


def describe(settings: Settings) -> Row:
    """The columns that say which setting a row is of, enough to make it anew."""
    names = ("policy", "lookahead", "fanout", "backup", "draft_devices", "scale")
    sampling = ("temperature", "top_p", "seed")
    knobs = {name: list(v) if isinstance(v, tuple) else v for name, v in settings.knobs.items()}
    return {
        "setting": settings.label,
        **{name: getattr(settings, name) for name in (*names, *sampling)},
        "fanout": None if settings.fanout is None else ",".join(map(str, settings.fanout)),
        "knobs": to_json(knobs),
    }


def settings_of(row: Row) -> Settings:
    """The setting that a row is of; rows of earlier versions, without `knobs`, are understood."""
    if row.get("knobs"):
        knobs = parse_json(row["knobs"])
    else:
        knobs = {name: row[name] for name in ("lookahead", "fanout", "backup") if row.get(name) is not None}
    if isinstance(shape := knobs.get("fanout"), str):
        knobs["fanout"] = [int(f) for f in shape.split(",")]
    top_p, seed = row.get("top_p") or 1.0, row.get("seed") or 0
    return configure(row["policy"], temperature=row["temperature"], top_p=top_p, seed=seed, **knobs)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _finite(part) for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
