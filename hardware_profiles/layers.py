"""Layer times that somebody profiled on a GPU: LLMServingSim's tables, or a CSV of whole forwards.

LLMServingSim (casys-kaist, MIT) times vLLM's layers one by one, in microseconds: `dense.csv` by tokens,
`per_sequence.csv` by sequences, `attention.csv` by a prompt chunk with its history beside decoding rows of
equal context.  Put together they are a forward; verification was not profiled: K + 1 tokens whose queries fit
one tile read the cache once, as a decoding row does, more of them are a prompt chunk.  All-reduces are not in
these tables.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hardware_profiles.composed import TICKS, Forward, Part
from hardware_profiles.files import FileRefused, read_text
from hardware_profiles.kernels import TILE, FloatArray, How
from hardware_profiles.networks import Network
from hardware_profiles.profile import DeviceInfo, Profile, Role, Roles
from hardware_profiles.store import ANY
from hardware_profiles.surface import GridCost, OperationName, Point, Provenance

US = 1e-6
ONCE = ("embedding", "final_layernorm")
TWICE = ("layernorm",)
"""Per layer; every other row of `dense.csv` is once per layer."""


class LayersError(ValueError):
    """Layer times cannot be read or are not of the network; the message names the file."""


class Link(NamedTuple):
    """How GPUs of a group reach each other: one direction, and the time that a message takes at least.

    The defaults are those that LLMServingSim's own simulator assumes of PCIe.
    """

    bytes_per_s: float = 16e9
    latency_s: float = 20e-6

    def allreduce_s(self, gpus: int, moved_bytes: float) -> float:
        """One all-reduce over a ring."""
        return self.latency_s + 2.0 * (gpus - 1) / gpus * moved_bytes / self.bytes_per_s


@dataclass(slots=True)
class _Grid:
    """Cells on axes, linear between them and beyond."""

    ticks: tuple[FloatArray, ...]
    cells: FloatArray
    interpolate: Any

    @classmethod
    def of(cls, at: FloatArray, seconds: FloatArray, file: Path) -> _Grid:
        from scipy.interpolate import RegularGridInterpolator

        if np.any(seconds <= 0.0):
            raise LayersError(f"{file}: a time is not above 0")
        ticks = tuple(np.unique(column) for column in at.T)
        cells = np.full([len(tick) for tick in ticks], np.nan)
        cells[tuple(np.searchsorted(tick, column) for tick, column in zip(ticks, at.T, strict=True))] = (
            seconds
        )
        for row in cells.reshape(-1, len(ticks[-1])):
            known = np.flatnonzero(np.isfinite(row))
            if len(known) < 2:
                raise LayersError(f"{file}: a row of its grid has fewer than two cells")
            # Two grids of different steps in one file, and corners that did not fit: the line between the
            # cells there are, and that of the last two beyond them.
            last, before = known[-1], known[-2]
            slope = (row[last] - row[before]) / (ticks[-1][last] - ticks[-1][before])
            beyond = row[last] + slope * (ticks[-1][last + 1 :] - ticks[-1][last])
            row[: last + 1] = np.interp(ticks[-1][: last + 1], ticks[-1][known], row[known])
            row[last + 1 :] = beyond
        return cls(ticks, cells, RegularGridInterpolator(ticks, cells, bounds_error=False, fill_value=None))

    def __call__(self, *at: float) -> tuple[float, How]:
        inside = all(tick[0] <= value <= tick[-1] for tick, value in zip(self.ticks, at, strict=True))
        known = all(value in tick for tick, value in zip(self.ticks, at, strict=True))
        how: How = "cell" if known else "interpolated" if inside else "beyond the table"
        return max(float(self.interpolate([at])[0]), 0.5 * float(self.cells.min())), how


class Layers:
    """A network's layers as timed on one GPU of a group.

    Args:
        folder: With `dense.csv`, `per_sequence.csv` and `attention.csv`, or `tpN` folders of them.
        network: Whose layers they are.
        tensor_parallel: GPUs of the group.
        link: Between them.

    Raises:
        LayersError: A file is missing or damaged.
    """

    def __init__(
        self, folder: Path, network: Network, tensor_parallel: int = 1, link: Link | None = None
    ) -> None:
        inner = folder / f"tp{tensor_parallel}"
        self.folder = inner if inner.is_dir() else folder
        self.network, self.tensor_parallel, self.link = network, tensor_parallel, link or Link()
        self.dense = self._lines("dense.csv", "tokens")
        self.per_sequence = self._lines("per_sequence.csv", "sequences")
        if missing := {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"} - set(self.dense):
            raise LayersError(f"{self.folder / 'dense.csv'} has no layer {sorted(missing)[0]}")

    def _lines(self, name: str, axis: str) -> dict[str, tuple[FloatArray, FloatArray]]:
        rows = read_csv(self.folder / name, ("layer", axis, "time_us"))
        found = {}
        for layer in dict.fromkeys(row["layer"] for row in rows):
            own = sorted((row[axis], row["time_us"] * US) for row in rows if row["layer"] == layer)
            found[layer] = (np.array([x for x, _ in own]), np.array([y for _, y in own]))
        return found

    @cached_property
    def attention(self) -> tuple[_Grid, _Grid]:
        """Decoding rows by (rows, context); a prompt chunk by (tokens, history)."""
        path = self.folder / "attention.csv"
        names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
        table = np.array([[row[name] for name in names] for row in read_csv(path, names)])
        decode, chunk = table[table[:, 0] == 0], table[(table[:, 2] == 0) & (table[:, 0] > 0)]
        return (
            _Grid.of(decode[:, 2:4], decode[:, 4] * US, path),
            _Grid.of(chunk[:, :2], chunk[:, 4] * US, path),
        )

    def forward(
        self, rows: int, new: int, cached: int, *, head: bool = True, answers: int | None = None
    ) -> Forward:
        """As `composed.Composer.forward`."""
        tokens, layers = rows * new, self.network.shape.layers
        parts = []
        for name, line in self.dense.items():
            times = 1 if name in ONCE else 2 * layers if name in TWICE else layers
            parts.append(_part(name, times, _along(line, tokens)))
        shape = self.network.shape
        decode, chunk = self.attention
        if new * shape.heads / shape.kv_heads <= TILE:
            parts.append(_part("attention", layers, decode(rows, cached + new)))
        else:
            most = int(chunk.ticks[0][-1])  # a longer prompt is read in chunks: its attention is not linear
            taken = [chunk(min(most, new - read), cached + read) for read in range(0, new, most)]
            attended = sum(seconds for seconds, _ in taken)
            parts.append(_part("attention", layers * rows, (attended, taken[-1][1])))
        if self.tensor_parallel > 1:
            seconds = self.link.allreduce_s(self.tensor_parallel, 2.0 * tokens * shape.hidden)
            parts.append(_part("all-reduce", 2 * layers, (seconds, "formula")))
        if head:
            for name, line in self.per_sequence.items():
                parts.append(_part(name, 1, _along(line, tokens if answers is None else answers)))
        return Forward(sum(part.seconds for part in parts), tuple(parts))

    @property
    def machine(self) -> str:
        """The GPU as `meta.yaml` calls it."""
        for folder in (self.folder, self.folder.parent):
            if (folder / "meta.yaml").is_file():
                match = re.search(r"^gpu:\s*(.+)$", read_text(folder / "meta.yaml"), re.MULTILINE)
                return match.group(1).strip() if match else "not stated"
        return "not stated"


def _part(name: str, times: float, found: tuple[float, How]) -> Part:
    return Part(name, times, times * found[0], "", found[1])


def _along(line: tuple[FloatArray, FloatArray], value: int) -> tuple[float, How]:
    """Linear between the points of a line; beyond the last in proportion."""
    ticks, seconds = line
    if value > ticks[-1]:
        return float(seconds[-1]) * value / float(ticks[-1]), "beyond the table"
    return float(np.interp(value, ticks, seconds)), "cell" if value in ticks else "interpolated"


def read_csv(path: Path, columns: Iterable[str]) -> list[dict[str, Any]]:
    """Rows of a CSV: `layer` is a word, every other column a number of at least 0.

    Raises:
        LayersError: A column is missing, or a value is none; the message has file and line.
    """
    try:
        lines = list(csv.DictReader(read_text(path).splitlines()))
    except (FileRefused, csv.Error) as error:
        raise LayersError(f"{path}: {error}") from error
    rows = []
    for number, line in enumerate(lines, 2):
        row: dict[str, Any] = {}
        for name in columns:
            text = line.get(name)
            try:
                row[name] = text if name == "layer" and text else float(text or "")
            except ValueError:
                raise LayersError(f"{path}:{number}: {name}: expected a number, got {text!r:.40}") from None
            if name != "layer" and not 0.0 <= row[name] < np.inf:
                raise LayersError(
                    f"{path}:{number}: {name}: expected a number of at least 0, got {text!r:.40}"
                )
        rows.append(row)
    if not rows:
        raise LayersError(f"{path}: holds no rows")
    return rows


def layers_profile(target: Layers, draft: Layers | None = None, *, name: str) -> Profile:
    """A profile of layers that were measured; without a draft for policies that need none."""
    operations: dict[OperationName, GridCost] = {}
    sides: dict[str, Layers | None] = {"target": target, "draft": draft}
    kinds: tuple[OperationName, ...] = (
        "target.forward",
        "target.prefill",
        "draft.forward",
        "draft.prefill",
        "draft.tree",
    )
    for operation in kinds:
        side, kind = operation.split(".")
        if (layers := sides[side]) is not None:
            operations[operation] = _grid(layers, kind)
    reduced = ""
    if target.tensor_parallel > 1:
        link = f"{target.link.bytes_per_s / 1e9:g} GB/s and {1e6 * target.link.latency_s:g} us"
        reduced = f"; all-reduces over {target.tensor_parallel} GPUs by a link of {link} (assumed)"
    shape = target.network.shape
    return Profile(
        name=name,
        description=f"{shape.name} on {target.tensor_parallel} x {target.machine}, from its layers' times",
        roles=Roles(target=_role(target), draft=_role(draft or target, model=None if draft else ANY)),
        verification="packed",
        operations=operations,
        provenance=Provenance(
            kind="measured",
            machine=target.machine,
            note="layer by layer (LLMServingSim), put together without host time; verification as decoding "
            f"rows or prompt chunks{reduced}",
        ),
    )


WINDOWS = (0, 128, 1024, 4096, 16_384)
"""Contexts of the grids: what was profiled, and further in proportion."""


def _grid(layers: Layers, kind: str) -> GridCost:
    ticks: dict[Any, tuple[int, ...]] = {**TICKS[kind]}
    if kind == "prefill":
        ticks["new_tokens"] = tuple(n for n in ticks["new_tokens"] if n <= 32_768)
    else:
        ticks["context"] = WINDOWS
    points = []
    for at in product(*ticks.values()):
        rows, new, cached = (*at, 0) if kind == "prefill" else at
        seconds = layers.forward(rows, new, cached, answers=rows if kind == "prefill" else None).seconds
        points.append(Point(at=at, mean_s=float(f"{seconds:.5g}")))
    return GridCost(axes=tuple(ticks), points=tuple(points))


def _role(layers: Layers, model: str | None = None) -> Role:
    network = layers.network
    return Role(
        device=DeviceInfo(kind="cuda", name=layers.machine),
        model=model or network.shape.name,
        parameters=network.parameters,
        precision="bf16",
        backend="vllm",
        tensor_parallel=layers.tensor_parallel,
        kv_bytes_per_token=2 * network.shape.kv_numbers_per_token,
        weight_bytes=network.weight_bytes,
        layers=network.shape.layers,
    )


def forwards_profile(path: Path, *, name: str, machine: str) -> Profile:
    """A profile of whole forwards that somebody timed: a CSV of `tokens`, `context`, `ms`, and perhaps
    `rows`.

    `context` counts the cached tokens of all rows together where there is no column `rows`, and B rows of n
    tokens are taken to cost what B n tokens over as many cached ones do; with it, tokens and context are of
    each row.

    Raises:
        LayersError: The file cannot be read, or its points are no full grid.
    """
    wide = "rows" in read_text(path).partition("\n")[0].split(",")
    columns = (("rows",) if wide else ()) + ("tokens", "context", "ms")
    table = np.array([[row[name] for name in columns] for row in read_csv(path, columns)])
    grid = _Grid.of(table[:, :-1], table[:, -1] * 1e-3, path)
    batches = (
        grid.ticks[0] if wide else np.array([b for b in TICKS["forward"]["batch"] if b <= grid.ticks[0][-1]])
    )
    points = []
    for b, n, c in product(batches, *grid.ticks[-2:]):
        seconds, _ = grid(b, n, c) if wide else grid(b * n, b * c)
        points.append(Point(at=(int(b), int(n), int(c)), mean_s=float(f"{seconds:.6g}")))
    cost = GridCost(axes=("batch", "new_tokens", "context"), points=tuple(points))
    role = Role(device=DeviceInfo(kind="cuda", name=machine), model=ANY)
    return Profile(
        name=name,
        description=f"whole forwards on {machine}",
        roles=Roles(target=role, draft=role),
        operations={"target.forward": cost},
        provenance=Provenance(kind="measured", machine=machine, note=f"whole forwards, {path.name}"),
    )
