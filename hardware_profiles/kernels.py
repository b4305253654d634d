"""Reader of measured GPU kernel times: the tables of the wheel `aiconfigurator-core` (NVIDIA, Apache-2.0).

    systems/<gpu>.yaml                                          peaks, memory, empirical factors
    systems/query_versions.yaml                                 which version of each engine is current
    systems/data/<gpu>/<op>/<engine>/<version>/<table>.parquet  latency of one call, ms

The package is never imported: its tables are files.  A cell that several kernels were timed for counts with
the fastest of them; the engine is taken to choose it.  Every look-up returns a `Reading`: seconds, the cells
it came from, and how far they are from what was asked.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.store import user_directory

PACKAGE = "aiconfigurator-core"
VERSION = "0.12.0"
"""The one release whose tables were checked against live forwards (docs/how-to/unmeasured-hardware.md)."""
ENGINES = ("vllm", "sglang", "trtllm")
TILE = 64
"""Rows of the smallest tile of the tensor cores: within one, a call of fewer tokens cannot cost more."""
FloatArray: TypeAlias = NDArray[np.float64]
How: TypeAlias = Literal["cell", "interpolated", "beyond the table", "formula"]


class TablesError(ValueError):
    """Tables are absent, of another version, damaged, or lack what is asked; the message says which."""


class Reading(NamedTuple):
    """One look-up: seconds, the cells used, and how."""

    seconds: float
    cells: str
    how: How = "cell"


def find_tables(folder: Path | None = None) -> Path:
    """The folder `systems` of the tables.

    Args:
        folder: An unpacked wheel, the package in it, or its `systems`; None: the installed package, or else
            `tables` in the user's data folder.

    Raises:
        TablesError: There is none, or it is of another version.
    """
    tries = [folder] if folder is not None else [_installed(), user_directory() / "tables"]
    for root in filter(None, tries):
        for inner in (".", "systems", "aiconfigurator_core/systems"):
            systems = root / inner
            if (systems / "query_versions.yaml").is_file() and (systems / "data").is_dir():
                _check_version(systems)
                return systems
    where = f"{folder} holds no tables" if folder is not None else "no kernel tables are installed"
    raise TablesError(f"{where}: pip install {PACKAGE}=={VERSION}, or name its unpacked wheel with --tables")


def _installed() -> Path | None:
    try:
        return Path(str(metadata.distribution(PACKAGE).locate_file("aiconfigurator_core")))
    except metadata.PackageNotFoundError:
        return None


def _check_version(systems: Path) -> None:
    """Refuse a release other than the pinned one, which the folder beside the package is named after."""
    found = [path.name for path in systems.resolve().parent.parent.glob("aiconfigurator_core-*.dist-info")]
    if found and f"aiconfigurator_core-{VERSION}.dist-info" not in found:
        other = found[0].removeprefix("aiconfigurator_core-").removesuffix(".dist-info")
        raise TablesError(f"{systems}: tables of {PACKAGE} {other}, this version reads {VERSION} alone")


def version_key(version: str) -> tuple[tuple[int, str], ...]:
    """Versions in their order: 0.5.9 < 0.5.14, 1.3.0rc20 < 1.3.0rc23 < 1.3.0.

    >>> sorted(["0.5.14", "0.5.9", "0.5.6.post2"], key=version_key)
    ['0.5.6.post2', '0.5.9', '0.5.14']
    """
    parts = re.findall(r"\d+|[a-z]+", version.lower())
    # A release comes after its candidates: where nothing follows, a word between `dev`/`rc` and `post`
    # stands.
    keyed = [
        (int(part), "") if part.isdigit() else (-1 if part in ("rc", "dev") else 0, part) for part in parts
    ]
    return (*keyed, (0, "")) if "post" not in version else tuple(keyed)


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the yaml of a GPU says.

    Attributes:
        name: Of its yaml.
        bytes_per_s: Peak memory bandwidth.
        reached: Share of it that passes over memory reach.
        fixed_s: Fixed time of a small kernel.
        flops: Peak per second, by data type (`bfloat16`, `int8`, `fp8`, `fp4`).
        link_bytes_per_s: To the other GPUs of the node, one direction.
    """

    name: str
    bytes_per_s: float
    reached: float
    fixed_s: float
    memory_bytes: int
    flops: Mapping[str, float]
    link_bytes_per_s: float

    def elementwise(self, moved_bytes: float) -> Reading:
        """A kernel that only moves memory."""
        seconds = moved_bytes / (self.bytes_per_s * self.reached) + self.fixed_s
        return Reading(seconds, f"{moved_bytes:.0f} bytes of {self.name}.yaml's bandwidth", "formula")

    def peak(self, dtype: str) -> float:
        """Peak FLOP/s of a matrix product; weight-only types compute in bfloat16."""
        narrow = dtype.removesuffix("_block")
        if narrow in self.flops:
            return self.flops[narrow]
        return self.flops.get("fp4", self.flops["bfloat16"]) if narrow == "nvfp4" else self.flops["bfloat16"]


BYTES: Mapping[str, float] = {
    "bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8_wo": 1.0, "sq": 1.0, "int4_wo": 0.5, "nvfp4": 0.5625,
    "w4a16_mxfp4": 0.53125, "w4a8_mxfp4_mxfp8": 0.53125, "w4afp8": 0.53125,
}  # fmt: skip
"""Bytes per weight, scales of blocks included."""


class Tables:
    """Every table of one GPU and engine.

    Args:
        systems: See `find_tables`.
        gpu: Name of its yaml, or the short one of `SYSTEMS`.
        engine: One of `ENGINES`.

    Raises:
        TablesError: There is no such GPU, or it has no table of that engine.
    """

    def __init__(self, systems: Path, gpu: str, engine: str = "vllm") -> None:
        self.systems = systems
        self.gpu = read_gpu(systems, gpu)
        self.engine = engine
        self.used: dict[str, str] = {}
        self._gemms: dict[str, Gemm] = {}
        self._attention: dict[Heads, Attention] = {}
        self._lines: dict[str, Line] = {}
        if not (systems / "data" / self.gpu.name / "gemm" / engine).is_dir():
            have = [e for e in ENGINES if (systems / "data" / self.gpu.name / "gemm" / e).is_dir()]
            said = f"only of {', '.join(have)}" if have else "of no engine: only peaks are known of it"
            raise TablesError(f"{self.gpu.name} has kernel tables {said}, not of {engine}")

    @cached_property
    def current(self) -> str:
        """Version of the engine that is current on this GPU."""
        return current_version(self.systems, self.gpu.name, self.engine)

    def read(self, op: str, table: str, where: Mapping[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
        """Columns of the rows of a table, of the current version, else the nearest below, else above it.

        Raises:
            TablesError: No version has a row that fits, or a file cannot be read.
        """
        engine = "nccl" if table == "nccl_perf" else self.engine
        folder = self.systems / "data" / self.gpu.name / op / engine
        key = version_key(self.current)
        versions = sorted((p.name for p in folder.glob("*") if p.is_dir()), key=version_key)
        below = [v for v in reversed(versions) if version_key(v) <= key]
        order = versions[::-1] if engine == "nccl" else below + [v for v in versions if v not in below]
        for version in order:
            path = folder / version / f"{table}.parquet"
            if path.is_file() and len((rows := read_rows(path, where, columns))["latency"]):
                self.used[f"{op}/{engine}/{version}/{table}"] = str(path)
                return {**rows, "version": version}
        wanted = ", ".join(f"{k} {v}" for k, v in where.items())
        raise TablesError(
            f"{self.gpu.name}, {self.engine}: no row of {table}.parquet with {wanted or 'anything'}"
        )

    def gemm(self, dtype: str, m: int, n: int, k: int) -> Reading:
        """A matrix product of [m, k] with [k, n]."""
        if dtype not in self._gemms:
            columns = ("m", "n", "k", "latency")
            rows = self.read("gemm", "gemm_perf", {"gemm_dtype": dtype}, columns)
            if self.engine == "trtllm" and BYTES[dtype] < 2.0 and not dtype.endswith("_wo"):
                plain = self.read("gemm", "gemm_perf", {"gemm_dtype": "bfloat16"}, columns)
                rows = without_quantising(rows, plain)
            self._gemms[dtype] = Gemm(self.gpu, dtype, rows)
        return self._gemms[dtype].seconds(m, n, k)

    def attention(self, heads: Heads) -> Attention:
        """Attention of one layer with these heads on this GPU."""
        if heads not in self._attention:
            self._attention[heads] = Attention(self, heads)
        return self._attention[heads]

    def moe(self, key: MoeKey, tokens: int) -> Reading:
        """The experts of one layer, without router."""
        name = (
            f"moe_perf, {key.topk} of {key.num_experts} experts of {key.inter_size}, TP {key.moe_tp_size}, "
        )
        name += f"EP {key.moe_ep_size}, {key.moe_dtype}, {key.distribution}"
        return self._line(name, "moe", "moe_perf", key._asdict(), "num_tokens").seconds(tokens)

    def allreduce(self, gpus: int, elements: int, *, captured: bool = True) -> Reading:
        """One all-reduce of that many numbers of two bytes over the GPUs of a group.

        Captured graphs and eager calls are two rows of one table; TensorRT-LLM's does not tell them apart.
        NCCL's where the engine's own was not timed.
        """
        way = "graph" if captured else "eager"
        where = {"num_gpus": gpus, "backend": f"{self.engine}_{way}"}
        name = f"custom_allreduce_perf, {gpus} GPUs, {way}"
        try:
            line = self._line(name, "comm", "custom_allreduce_perf", where, "message_size")
        except TablesError:
            where = {"num_gpus": gpus, "op_name": "all_reduce", "nccl_dtype": "half"}
            line = self._line(f"nccl_perf, {gpus} GPUs", "comm", "nccl_perf", where, "message_size")
        return line.seconds(elements)

    def allgather(self, gpus: int, elements: int) -> Reading:
        """One all-gather, by NCCL; `elements` is the size of what every GPU ends up with."""
        where = {"num_gpus": gpus, "op_name": "all_gather", "nccl_dtype": "half"}
        name = f"nccl_perf, all_gather, {gpus} GPUs"
        return self._line(name, "comm", "nccl_perf", where, "message_size").seconds(elements)

    def _line(self, name: str, op: str, table: str, where: Mapping[str, Any], axis: str) -> Line:
        if name not in self._lines:
            rows = self.read(op, table, where, (axis, "latency"))
            (ticks,), seconds = dense(rows, (axis,))
            if op == "comm":  # a message can be filled up to a longer one that was faster
                seconds = np.minimum.accumulate(seconds[::-1])[::-1]
            self._lines[name] = Line(f"{name} {rows['version']}", ticks, seconds)
        return self._lines[name]

    def hashes(self) -> dict[str, str]:
        """SHA-256 of every file read so far, first 16 digits, by its place in the wheel."""
        return {
            name: hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
            for name, path in sorted(self.used.items())
        }


SYSTEMS: Mapping[str, str] = {
    "a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm",
    "rtxpro6000": "rtx_pro_6000_server", "a800": "a100_sxm",
}  # fmt: skip
"""Short names.  An A800 is an A100 with slower links: its compute and memory are the same."""


def systems_of(systems: Path) -> list[str]:
    """Names of the GPUs that there is a yaml of."""
    return sorted(p.stem for p in systems.glob("*.yaml") if "mem_bw:" in p.read_text(encoding="utf-8"))


def read_gpu(systems: Path, name: str) -> Gpu:
    """The peaks of a GPU.

    Raises:
        TablesError: There is no such yaml, or it lacks an entry.
    """
    full = SYSTEMS.get(name.lower(), name.lower())
    path = systems / f"{full}.yaml"
    if full not in systems_of(systems):
        raise TablesError(f"no GPU {name!r} in the tables; there are {', '.join(systems_of(systems))}")
    # `key: number # comment` under sections whose keys all differ: no reader of yaml is needed for that.
    found = dict(re.findall(r"^\s+(\w+):\s*([-+.\deE]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    try:
        return Gpu(
            name=full,
            bytes_per_s=float(found["mem_bw"]),
            reached=float(found["mem_bw_empirical_scaling_factor"]),
            fixed_s=float(found["mem_empirical_constant_latency"]),
            memory_bytes=int(float(found["mem_capacity"])),
            flops={
                k.removesuffix("_tc_flops"): float(v) for k, v in found.items() if k.endswith("_tc_flops")
            },
            link_bytes_per_s=float(found["intra_node_bw"]),
        )
    except (KeyError, ValueError) as error:
        raise TablesError(f"{path} is damaged: {error}") from error


def current_version(systems: Path, gpu: str, engine: str) -> str:
    """Which version of an engine `query_versions.yaml` calls current on a GPU.

    Raises:
        TablesError: It names none.
    """
    text = (systems / "query_versions.yaml").read_text(encoding="utf-8")
    defaults, _, overrides = text.partition("\noverrides:")
    own = re.search(rf"^  {gpu}:\n((?:    .*\n?)+)", overrides, re.MULTILINE)
    for part in (own.group(1) if own else "", defaults):
        if match := re.search(rf'^\s+{engine}:\s*{{current:\s*"([^"]+)"', part, re.MULTILINE):
            return match.group(1)
    raise TablesError(f"{systems / 'query_versions.yaml'} names no current version of {engine}")


TEXTS = ("gemm_dtype", "moe_dtype", "nccl_dtype", "kv_cache_dtype", "allreduce_dtype")
"""Columns that are not numbers."""


def read_rows(path: Path, where: Mapping[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
    """Columns of a parquet file, of the rows where others have given values; unknown columns filter nothing.

    Raises:
        TablesError: The file is no such table.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        names = set(file.schema_arrow.names)
        rows = file.read(columns=[*columns, *(name for name in where if name in names)])
        for name, value in where.items():
            if name in names:
                rows = rows.filter(pc.equal(rows[name], value))
        found = {name: rows[name].to_numpy() for name in columns}
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise TablesError(f"{path} is damaged or no table: {str(error).splitlines()[0][:120]}") from error
    for name, values in found.items():
        if name in TEXTS:
            continue
        if values.dtype.kind not in "iuf" or not np.all(np.isfinite(values)) or np.any(values < 0):
            raise TablesError(f"{path} is damaged: {name} is no column of numbers from 0 on")
    if np.any(found["latency"] <= 0):
        raise TablesError(f"{path} is damaged: a latency is not above 0")
    return found


def dense(rows: Mapping[str, Any], axes: tuple[str, ...]) -> tuple[list[FloatArray], FloatArray]:
    """Ticks of the axes, and seconds of their product: the fastest kernel of each cell; NaN where there is
    none.
    """
    ticks, places = [], []
    for axis in axes:
        values, place = np.unique(rows[axis], return_inverse=True)
        ticks.append(values.astype(np.float64))
        places.append(place)
    grid = np.full([len(t) for t in ticks], np.inf)
    np.minimum.at(grid, tuple(places), np.asarray(rows["latency"], dtype=np.float64) * 1e-3)
    return ticks, np.where(np.isinf(grid), np.nan, grid)


def without_quantising(rows: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Matrix products without the quantisation of their input that TensorRT-LLM's narrow cells hold.

    A cell of nothing takes 12 us in fp8 and 2 in bfloat16 on H100 as on B200; in an engine the norm or the
    activation before it writes 8 bits at once.  What the fastest cell takes beyond bfloat16's is taken off
    every one.
    """
    least = float(np.min(plain["latency"]))
    extra = max(0.0, float(np.min(rows["latency"])) - least)
    return {**rows, "latency": np.maximum(rows["latency"] - extra, least)}


def around(ticks: FloatArray, value: float) -> list[tuple[int, float]]:
    """The ticks beside a value with their weights, linear in the logarithm; the last one beyond the ends."""
    if value <= ticks[0]:
        return [(0, 1.0)]
    if value >= ticks[-1]:
        return [(len(ticks) - 1, 1.0)]
    above = int(np.searchsorted(ticks, value))
    if ticks[above] == value:
        return [(above, 1.0)]
    low, high = ticks[above - 1], ticks[above]
    part = math.log(value / low) / math.log(high / low)
    return [(above - 1, 1.0 - part), (above, part)]


class Gemm:
    """Matrix products of one data type: the ratio to the roofline, interpolated in the logarithms of m, n, k.

    The ratio and not the time, so that an output matrix wider than the table (65,536) is carried by its own
    size. Single cells are up to a third slow (another run of the same call has them right); a cell that is
    slower than one of more tokens in the same tile is taken for such.  Nothing is smoothed across the edge of
    a tile.
    """

    def __init__(self, gpu: Gpu, dtype: str, rows: Mapping[str, Any]) -> None:
        self.gpu, self.dtype, self.version = gpu, dtype, rows["version"]
        (self.m, self.n, self.k), seconds = dense(rows, ("m", "n", "k"))
        tile = (self.m - 1) // TILE
        for index in range(len(self.m) - 2, -1, -1):
            if tile[index] == tile[index + 1]:
                seconds[index] = np.fmin(seconds[index], seconds[index + 1])
        m, n, k = np.meshgrid(self.m, self.n, self.k, indexing="ij")
        self.ratio = seconds / self.roofline(m, n, k)
        self._known: dict[tuple[int, int, int], Reading] = {}

    def roofline(self, m: Any, n: Any, k: Any) -> Any:
        """Seconds at the peaks."""
        narrow = 2.0 if BYTES[self.dtype] == 2.0 or self.dtype.endswith("_wo") else 1.0
        moved = BYTES[self.dtype] * n * k + narrow * m * k + 2.0 * m * n
        return np.maximum(2.0 * m * n * k / self.gpu.peak(self.dtype), moved / self.gpu.bytes_per_s)

    def seconds(self, m: int, n: int, k: int) -> Reading:
        """A product of [m, k] with [k, n].

        Raises:
            TablesError: No cell near it was measured.
        """
        if (m, n, k) not in self._known:
            self._known[m, n, k] = self._look_up(m, n, k)
        return self._known[m, n, k]

    def _look_up(self, m: int, n: int, k: int) -> Reading:
        total, weight, cells = 0.0, 0.0, []
        for i, wi in around(self.m, m):
            for j, wj in around(self.n, n):
                for o, wo in around(self.k, k):
                    if np.isfinite(self.ratio[i, j, o]):
                        total += wi * wj * wo * float(self.ratio[i, j, o])
                        weight += wi * wj * wo
                        cells.append(f"{self.m[i]:.0f}x{self.n[j]:.0f}x{self.k[o]:.0f}")
        if weight < 0.25:
            raise TablesError(
                f"gemm_perf.parquet of {self.gpu.name} has no {self.dtype} cell near {m} x {n} x {k}"
            )
        outside = m > self.m[-1] or n > self.n[-1] or k > self.k[-1]
        how: How = "beyond the table" if outside else "cell" if len(cells) == 1 else "interpolated"
        return Reading(total / weight * float(self.roofline(m, n, k)), " ".join(cells), how)


class Heads(NamedTuple):
    """Heads of queries, of keys and values, their size, and the type that keys and values are kept in."""

    queries: int
    keys: int
    size: int
    kv_dtype: str = "bfloat16"


class Attention:
    """Attention of one layer, over B rows of n new tokens and L cached ones each.

        plain decoding:  cell(B, context 1) + B (L + 1) kv / W(B)
        n > 1:           max(cell(B, context 1), fresh(B, n)) + max(B L kv / W(B), 4 B n' L H d / F)

    `fresh` is the prompt cell of n tokens without history; kv are the bytes of a token's keys and values; n'
    is n filled up to tiles of 64 query rows; W and F are bandwidth and FLOP/s of the largest cells.  Cells of
    short contexts are not used: their keys stay in the cache from one repetition to the next, those of a
    forward do not.
    """

    def __init__(self, tables: Tables, heads: Heads) -> None:
        self.group, self.wide = heads.queries / heads.keys, heads.queries * heads.size
        bytes_each = BYTES[heads.kv_dtype]
        self.kv_bytes = 2.0 * heads.keys * heads.size * bytes_each
        decode = self._nearest(tables, "generation_attention_perf", heads)
        prompt = self._nearest(tables, "context_attention_perf", heads)
        self.name, self.how = decode[3], decode[4]
        (rows, steps), cells, shape = decode[:3]
        whole = np.isfinite(cells).sum(axis=1) > 1
        if not whole.any():
            raise TablesError(f"generation_attention_perf.parquet: {self.name}: a single cell of each batch")
        self.rows, cells = rows[whole], cells[whole]
        self.floors = np.array([row[np.isfinite(row)][0] for row in cells])
        kv = 2.0 * shape[1] * shape[2] * bytes_each
        self.bandwidths = self._bandwidths(cells, steps, kv)
        self.prompt_ticks, self.prompt = prompt[0], prompt[1]
        h, _, d = prompt[2]
        batch, length = np.meshgrid(*self.prompt_ticks, indexing="ij")
        with np.errstate(invalid="ignore"):
            self.flops = float(np.nanmax(2.0 * batch * length**2 * h * d / self.prompt))
        self.prompt_scale = self.wide / (h * d)

    @staticmethod
    def _nearest(tables: Tables, table: str, heads: Heads) -> Any:
        """Ticks, cells, (heads, KV heads, head size) of the nearest shape in the table, its name, how."""
        length = "step" if table.startswith("generation") else "isl"
        columns = ("batch_size", length, "num_heads", "num_key_value_heads", "head_dim", "latency")
        rows = tables.read("attention", table, {"kv_cache_dtype": heads.kv_dtype, "window_size": 0}, columns)
        shapes = np.stack([rows[c] for c in columns[2:5]], axis=1)
        known = np.unique(shapes, axis=0)
        away = np.abs(np.log(known / np.array(heads[:3]))) @ np.array([1.0, 2.0, 4.0])
        best = known[int(np.argmin(away))]
        kept = np.all(shapes == best, axis=1)
        ticks, cells = dense({c: rows[c][kept] for c in columns}, ("batch_size", length))
        exact = bool(np.min(away) == 0)
        name = f"{table} {rows['version']}, {best[0]} heads, {best[1]} KV heads of {best[2]}"
        return ticks, cells, tuple(map(int, best)), name, "cell" if exact else "interpolated"

    def _bandwidths(self, cells: FloatArray, steps: FloatArray, kv_bytes: float) -> FloatArray:
        """[batches] bytes per second of each batch's largest cell beyond its floor, at most the best of all.

        A batch whose largest cell is below a quarter of the largest of all stayed in the cache: it has the
        median of the others.
        """
        last = [int(np.flatnonzero(np.isfinite(row))[-1]) for row in cells]
        moved = np.array([b * (steps[i] + 1) * kv_bytes for b, i in zip(self.rows, last, strict=True)])
        spent = np.array([row[i] for row, i in zip(cells, last, strict=True)]) - self.floors
        large = (moved >= 0.1 * moved.max()) & (spent > 0)
        if not large.any():
            raise TablesError(
                f"generation_attention_perf.parquet: {self.name}: time does not grow with context"
            )
        found = np.where(large, moved / np.where(spent > 0, spent, 1.0), np.nan)
        return np.where(large, found, np.nanmedian(found))

    def seconds(self, rows: int, new: int, cached: int) -> Reading:
        """One layer; `rows`, new tokens of each, tokens cached of each."""
        beside = around(self.rows, rows)
        floor = sum(w * float(self.floors[i]) for i, w in beside)
        floor *= max(1.0, rows / float(self.rows[-1]))
        bandwidth = sum(w * float(self.bandwidths[i]) for i, w in beside)
        batches = " and ".join(f"{self.rows[i]:.0f}" for i, _ in beside)
        cells = f"{self.name}: batch {batches} at context 1 and longest"
        if new == 1:
            return Reading(floor + rows * (cached + 1) * self.kv_bytes / bandwidth, cells, self.how)
        filled = math.ceil(new * self.group / TILE) * TILE / self.group
        history = rows * cached * max(self.kv_bytes / bandwidth, 4.0 * filled * self.wide / self.flops)
        return Reading(max(floor, self.fresh(rows, new)) + history, f"{cells}, prompt {new}", self.how)

    def fresh(self, rows: int, new: int) -> float:
        """Seconds of prompts without history; missing cells are those of fewer rows, as often as needed."""
        batches, lengths = self.prompt_ticks
        at_most = lengths[-1]
        beyond = max(1.0, new / float(at_most)) ** 2
        total = 0.0
        for j, wj in around(lengths, new):
            have = np.flatnonzero(np.isfinite(self.prompt[:, j]))
            here = self.prompt[have, j]
            most = float(batches[have[-1]])
            cell = math.exp(sum(w * math.log(float(here[i])) for i, w in around(batches[have], rows)))
            total += wj * math.log(cell * max(1.0, rows / most))
        return float(math.exp(total) * beyond * self.prompt_scale)


class Line:
    """A table along one axis: linear between its points, proportional beyond the last, the first below it."""

    def __init__(self, name: str, ticks: FloatArray, seconds: FloatArray) -> None:
        self.name, self.ticks, self.values = name, ticks, seconds

    def seconds(self, value: float) -> Reading:
        """At a value of the axis."""
        last = float(self.ticks[-1])
        if value > last:
            return Reading(
                float(self.values[-1]) * value / last, f"{self.name}: {last:.0f}", "beyond the table"
            )
        found = float(np.interp(value, self.ticks, self.values))
        above = int(np.searchsorted(self.ticks, value))
        if self.ticks[above] == value or above == 0:
            return Reading(found, f"{self.name}: {self.ticks[above]:.0f}")
        return Reading(
            found, f"{self.name}: {self.ticks[above - 1]:.0f}, {self.ticks[above]:.0f}", "interpolated"
        )


def _line(name: str, rows: Mapping[str, Any], axis: str) -> Line:
    (ticks,), seconds = dense(rows, (axis,))
    return Line(f"{name} {rows['version']}", ticks, seconds)


SPREAD = "power_law_1.01"
"""How tokens spread over experts where nothing is said; tables have `balanced` and `power_law_1.2`, too."""


class MoeKey(NamedTuple):
    """What identifies a layer's experts in the tables; `distribution` says how tokens spread over them."""

    moe_dtype: str
    hidden_size: int
    inter_size: int
    topk: int
    num_experts: int
    moe_tp_size: int = 1
    moe_ep_size: int = 1
    distribution: str = SPREAD


_TYPES = {"gemm_perf": "gemm_dtype", "moe_perf": "moe_dtype", "nccl_perf": "nccl_dtype"}
_COMPOSED = (
    "gemm_perf",
    "generation_attention_perf",
    "context_attention_perf",
    "moe_perf",
    "custom_allreduce_perf",
    "nccl_perf",
)


def coverage(systems: Path) -> list[dict[str, Any]]:
    """A row per table that forwards are put together from: GPU, engine, version, rows, data types.

    Raises:
        TablesError: One cannot be read.
    """
    import pyarrow.compute as pc

    found = []
    for path in sorted((systems / "data").glob("*/*/*/*/*.parquet")):
        gpu, _, engine, version, _ = path.relative_to(systems / "data").parts
        if path.stem in _COMPOSED:
            column = _TYPES.get(
                path.stem, "kv_cache_dtype" if "attention" in path.stem else "allreduce_dtype"
            )
            rows = read_rows(path, {}, ("latency", column))
            types = sorted(map(str, pc.unique(rows[column]).to_pylist()))
            found.append(
                {
                    "gpu": gpu,
                    "engine": engine,
                    "table": path.stem,
                    "version": version,
                    "rows": len(rows["latency"]),
                    "types": types,
                }
            )
    return sorted(
        found, key=lambda row: (row["gpu"], row["table"], row["engine"], version_key(row["version"]))
    )
