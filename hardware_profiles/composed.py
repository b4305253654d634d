"""A forward put together from measured kernels, and profiles made of such forwards.

B rows of n new tokens over L cached ones, m = B n, tensor parallel t; per layer

    gemm(m, (H + 2 KV) d / t, h) + gemm(m, h, H d / t)         queries, keys, values; output
    + gemm(m, 2 i / t, h) + gemm(m, h, i / t)                  gate and up; down - or gemm(m, E, h) + moe(m)
    + attention(B, n, L)                                       `kernels.Attention`: the cache once per row
    + 2 elementwise(8 m h) + elementwise(6 m i / t)            norms with residual; activation
    + 2 allreduce(m h)                                         if t > 1

and once gemm(m, V / t, h), its gather and two passes over m V (the sampler).  Nothing is fitted to forwards.
What launches kernels one by one takes `EAGER_LAYER_S` a layer at least; a captured graph runs at the next
size that was captured, and more tokens than the largest graph holds run uncaptured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from hardware_profiles.kernels import (
    BYTES,
    PACKAGE,
    SPREAD,
    VERSION,
    Heads,
    How,
    MoeKey,
    Reading,
    Tables,
    TablesError,
)
from hardware_profiles.networks import Network
from hardware_profiles.optime import Host, HostOperation, OperationHost
from hardware_profiles.predicted import turns
from hardware_profiles.profile import DeviceInfo, Profile, Role, Roles
from hardware_profiles.surface import AXES, Axis, GridCost, OperationName, Point, Provenance, RoleName

EAGER_LAYER_S = 265e-6
"""Least time of a layer whose kernels are launched one by one: 0.23 to 0.30 ms seen on an H100's host."""
CAPTURE_LIMIT = 512
"""Tokens of the largest captured graph; what vLLM captures by default."""
Placement = Literal["own", "shared"]


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of kernel of a forward: how often, seconds of all of them, and where that is from."""

    name: str
    count: float
    seconds: float
    cells: str
    how: How

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {name: getattr(self, name) for name in ("name", "count", "seconds", "how", "cells")}


@dataclass(frozen=True, slots=True)
class Forward:
    """Seconds of a forward and its parts; `floor_s` is what launching it takes at least, 0 where captured."""

    seconds: float
    parts: tuple[Part, ...]
    floor_s: float = 0.0

    @property
    def interpolated(self) -> dict[How, float]:
        """Share of the kernels' time by how it was looked up."""
        total = sum(part.seconds for part in self.parts)
        shares: dict[How, float] = {}
        for part in self.parts:
            shares[part.how] = shares.get(part.how, 0.0) + part.seconds / total
        return shares


@dataclass(slots=True)
class Composer:
    """A network on a group of GPUs.

    Attributes:
        tensor_parallel: GPUs that every layer is spread over.
        eager: Whether kernels are launched one by one.
        distribution: How tokens spread over experts, as the tables call it.
        correlation: Of the experts of one row's tokens: 0, independent, as the tables have them; 1, the same
            ones, so that a wide verification activates no more than a narrow one.
        kv_dtype: What keys and values are kept in.
        capture_limit: Tokens of the largest captured graph.
    """

    tables: Tables
    network: Network
    tensor_parallel: int = 1
    eager: bool = False
    distribution: str = SPREAD
    correlation: float = 0.0
    kv_dtype: str = "bfloat16"
    capture_limit: int = CAPTURE_LIMIT
    _layers: dict[tuple[int, int], list[Part]] = field(default_factory=dict)

    def forward(
        self, rows: int, new: int, cached: int, *, head: bool = True, answers: int | None = None
    ) -> Forward:
        """A forward over `rows` rows of `new` tokens each, with `cached` tokens before them.

        Args:
            rows: Rows of the batch.
            new: Tokens of each.
            cached: Tokens of each in the KV cache.
            head: With output matrix and sampler.
            answers: Tokens whose logits are asked for; None: all.

        Raises:
            TablesError: A table has nothing near.
        """
        tokens = rows * new
        captured = not self.eager and tokens <= self.capture_limit
        run = captured_size(tokens) if captured else tokens
        parts = [*self._layer(run, rows), *self._attention(rows, new, cached)]
        parts += self._reduce(run, captured=captured)
        if head:
            parts += self._head(tokens if answers is None else answers)
        seconds = sum(part.seconds for part in parts)
        floor = 0.0 if captured else EAGER_LAYER_S * self.network.shape.layers
        return Forward(max(seconds, floor), tuple(parts), floor)

    def _gemm(
        self, name: str, times: float, size: tuple[int, int, int], dtype: str | None = None
    ) -> list[Part]:
        (m, n, k), dtype = size, dtype or self.network.dtype
        found = [_part(name, times, self.tables.gemm(dtype, m, n, k))]
        # Activations are quantised first; TensorRT-LLM does so in the kernel before.
        if BYTES[dtype] < 2.0 and not dtype.endswith("_wo") and self.tables.engine != "trtllm":
            found.append(_part(f"{name} quantised", times, self.tables.gpu.elementwise(3.0 * m * k)))
        return found

    def _layer(self, m: int, rows: int) -> list[Part]:
        """All layers but for attention and all-reduces."""
        if (m, rows) in self._layers:
            return self._layers[m, rows]
        network, shape, t = self.network, self.network.shape, self.tensor_parallel
        layers, hidden, gpu = shape.layers, shape.hidden, self.tables.gpu
        heads = shape.query_width // t + 2 * self._kv_heads * shape.head_dim
        inputs = 2 * hidden if network.fused_hidden == 3 else hidden
        parts = self._gemm("qkv", layers, (m, heads, inputs))
        parts += self._gemm("output", layers, (m, hidden, shape.query_width // t))
        experts = network.experts
        plain = layers if experts is None else experts.dense_layers
        if plain:
            parts += self._mlp("", plain, m, shape.intermediate // t)
        if experts is not None:
            parts += self._experts(layers - plain, m, rows)
        parts.append(_part("norms", 2 * layers, gpu.elementwise(8.0 * m * hidden)))
        if network.fused_hidden:
            parts += self._gemm("fused hidden states", 1, (m, hidden, network.fused_hidden * hidden))
        parts.append(_part("embedding", 1, gpu.elementwise(4.0 * m * hidden)))
        self._layers[m, rows] = parts
        return parts

    def _mlp(self, kind: str, layers: int, m: int, width: int) -> list[Part]:
        parts = self._gemm(f"{kind}gate and up", layers, (m, 2 * width, self.network.shape.hidden))
        parts += self._gemm(f"{kind}down", layers, (m, self.network.shape.hidden, width))
        parts.append(_part(f"{kind}activation", layers, self.tables.gpu.elementwise(6.0 * m * width)))
        return parts

    def _experts(self, layers: int, m: int, rows: int) -> list[Part]:
        experts, hidden = self.network.experts, self.network.shape.hidden
        assert experts is not None
        parts = self._gemm("router", layers, (m, experts.count, hidden), "bfloat16")
        key = MoeKey(
            self.network.moe_dtype, hidden, experts.width, experts.topk, experts.count, self.tensor_parallel,
            1, self.distribution,
        )  # fmt: skip
        reading = self.tables.moe(key, m)
        alone = self.tables.moe(key, min(m, rows)).seconds
        seconds = self.correlation * min(alone, reading.seconds) + (1.0 - self.correlation) * reading.seconds
        parts.append(_part("experts", layers, reading._replace(seconds=seconds)))
        if experts.shared_width:
            parts += self._mlp("shared expert's ", layers, m, experts.shared_width // self.tensor_parallel)
        return parts

    @property
    def _kv_heads(self) -> int:
        """Of one GPU: where there are fewer than GPUs, they are repeated."""
        return max(1, self.network.shape.kv_heads // self.tensor_parallel)

    def _attention(self, rows: int, new: int, cached: int) -> list[Part]:
        shape = self.network.shape
        heads = max(1, shape.heads // self.tensor_parallel)
        one = self.tables.attention(Heads(heads, self._kv_heads, shape.head_dim, self.kv_dtype))
        return [
            _part("attention", layers, one.seconds(rows, new, min(cached, window) if window else cached))
            for window, layers in self.network.layer_windows
        ]

    def _reduce(self, m: int, *, captured: bool) -> list[Part]:
        t, shape = self.tensor_parallel, self.network.shape
        if t == 1:
            return []
        reading = self.tables.allreduce(t, m * shape.hidden, captured=captured)
        return [_part("all-reduce", 2 * shape.layers, reading)]

    def _head(self, m: int) -> list[Part]:
        shape, t, gpu = self.network.shape, self.tensor_parallel, self.tables.gpu
        parts = [
            _part("output matrix", 1, self.tables.gemm("bfloat16", m, shape.vocabulary // t, shape.hidden))
        ]
        if t > 1:
            parts.append(_part("gather of logits", 1, self.tables.allgather(t, m * shape.vocabulary)))
        parts.append(_part("logits to 32 bits", 1, gpu.elementwise(6.0 * m * shape.vocabulary)))
        parts.append(_part("choice of tokens", 1, gpu.elementwise(4.0 * m * shape.vocabulary)))
        return parts


def captured_size(tokens: int) -> int:
    """The graph that vLLM runs so many tokens in: 1, 2, 4, multiples of 8, and of 16 past 256.

    >>> [captured_size(n) for n in (1, 3, 9, 257)]
    [1, 4, 16, 272]
    """
    if tokens <= 4:
        return 1 << (tokens - 1).bit_length()
    step = 8 if tokens <= 256 else 16
    return -(-tokens // step) * step


def _part(name: str, times: float, reading: Reading) -> Part:
    return Part(name, times, times * reading.seconds, reading.cells, reading.how)


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)
TICKS: Mapping[str, Mapping[Axis, tuple[int, ...]]] = {
    "forward": {"batch": BATCHES, "new_tokens": WIDTHS, "context": (0, 131_072)},
    "prefill": {"batch": (1, 8, 64), "new_tokens": (16, 128, 512, 1024, 2048, 8192, 32_768, 131_072)},
    "tree": {"batch": BATCHES, "branches": (1, 2, 4, 8, 16, 32, 64), "context": (0, 131_072)},
}
"""Where forwards are put together for a profile.  They are linear in the context."""
SMALL_TICKS: Mapping[str, Mapping[Axis, tuple[int, ...]]] = {
    "forward": {
        "batch": (1, 2, 4, 8, 16, 32, 64, 128, 256),
        "new_tokens": (1, 2, 3, 4, 5, 6, 8, 12, 16, 32),
        "context": (0, 131_072),
    },
    "prefill": {"batch": (1, 8, 64), "new_tokens": (16, 128, 512, 2048, 8192, 131_072)},
    "tree": {
        "batch": (1, 2, 4, 8, 16, 32, 64, 128, 256),
        "branches": (1, 4, 8, 16, 32, 64),
        "context": (0, 131_072),
    },
}
"""Those of the shipped profiles."""
HOST_GAP_S = 1.2e-3
"""What an engine's host takes between a forward and the next: 1.2068 ms is what SpecDecode-Bench fitted to
vLLM on an H100, where one more stands in public logs (7.07 ms a token for forwards of 5.9)."""


def composed_profile(
    target: Composer,
    draft: Composer,
    *,
    name: str,
    placement: Placement = "own",
    host_gap_s: float = HOST_GAP_S,
    ticks: Mapping[str, Mapping[Axis, tuple[int, ...]]] = TICKS,
) -> Profile:
    """A profile of a pair: both roles' operations, put together point by point.

    Args:
        target: On its GPUs.
        draft: On its own ones, or on the target's.
        name: Of the profile.
        placement: `own`: the draft has GPUs for itself; `shared`: both take turns on the target's.
        host_gap_s: Between two forwards of the target that follow each other.
        ticks: Coordinates of the grids.

    Raises:
        TablesError: The weights do not fit into memory, or the tables have nothing near a point.
    """
    composers: dict[RoleName, Composer] = {"target": target, "draft": draft}
    operations: dict[OperationName, GridCost] = {}
    for operation in AXES:
        role, kind = operation.split(".")
        composer = composers["target" if role == "target" else "draft"]
        operations[operation] = _grid(composer, operation, ticks[kind])
    shape = target.network.shape
    many = f"{target.tensor_parallel} x {target.tables.gpu.name}"
    beside = "the same, in turns" if placement == "shared" else f"{draft.tensor_parallel} more"
    return Profile(
        name=name,
        description=f"{shape.name} on {many}, drafted for by {draft.network.shape.name} on {beside}; "
        f"forwards put together from kernel times that {PACKAGE} {VERSION} holds",
        roles=Roles(target=_role(target), draft=_role(draft)),
        placement="shared" if placement == "shared" else "split",
        placement_note=PLACED[placement],
        verification="packed",
        operations=operations,
        host=_host(host_gap_s),
        overlap=turns() if placement == "shared" else (),
        provenance=Provenance(
            kind="composed",
            versions={PACKAGE: VERSION, **target.tables.hashes(), **draft.tables.hashes()},
            note=f"no forward was measured; a gap of {1e3 * host_gap_s:g} ms between forwards is what others "
            "printed of vLLM on an H100; no jitter",
        ),
    )


PLACED: Mapping[str, str] = {
    "own": "a GPU group each, and neither slows the other (assumed)",
    "shared": "both take turns on one GPU group, each at half speed beside the other (assumed)",
}


def _host(gap_s: float) -> Host:
    """The gap stands after each forward of the target; what the draft does in between has none of its own."""
    own: dict[HostOperation, OperationHost] = {
        name: OperationHost() for name in ("draft", "prespeculate", "continue", "settle")
    }
    return Host(report_s=gap_s, operations=own)


def _grid(composer: Composer, operation: OperationName, ticks: Mapping[Axis, tuple[int, ...]]) -> GridCost:
    """One operation: points, and how far the tables were from them, as shares of the kernels' time."""
    axes = tuple(axis for axis in AXES[operation] if axis in ticks)
    prefill = operation.endswith("prefill")
    points, shares, seconds = [], dict[How, float](), 0.0
    for at in product(*(ticks[axis] for axis in axes)):
        rows, new, cached = (*at, 0) if prefill else at
        found = composer.forward(rows, new, cached, answers=rows if prefill else None)
        points.append(Point(at=at, mean_s=float(f"{found.seconds:.5g}")))
        seconds += 1.0
        for how, share in found.interpolated.items():
            shares[how] = shares.get(how, 0.0) + share
    far = ", ".join(
        f"{100 * s / seconds:.0f} % {how}" for how, s in sorted(shares.items(), key=lambda x: -x[1])
    )
    masked = "; the mask of a tree costs nothing (assumed)" if operation.endswith("tree") else ""
    if composer.network.experts is not None:
        masked += f"; experts spread as {composer.distribution}, correlated within a row by "
        masked += f"{composer.correlation:g} (assumed)"
    note = f"{composer.tables.engine} {composer.tables.current} on {composer.tables.gpu.name}: {far}{masked}"
    return GridCost(axes=axes, points=tuple(points), provenance=Provenance(kind="composed", note=note))


def _role(composer: Composer) -> Role:
    """A role with its sizes.

    Raises:
        TablesError: Its weights do not fit.
    """
    network, t, gpu = composer.network, composer.tensor_parallel, composer.tables.gpu
    if network.weight_bytes > t * gpu.memory_bytes:
        raise TablesError(
            f"{network.shape.name} weighs {network.weight_bytes / 1e9:.0f} GB, {t} x {gpu.name} hold "
            f"{t * gpu.memory_bytes / 1e9:.0f}: spread it over more GPUs (--tp)"
        )
    return Role(
        device=DeviceInfo(kind="cuda", name=gpu.name, memory_bytes=gpu.memory_bytes),
        model=network.shape.name,
        parameters=network.parameters,
        precision="bf16" if network.dtype == "bfloat16" else network.dtype,
        backend=composer.tables.engine,
        mode="eager" if composer.eager else "captured",
        tensor_parallel=t,
        kv_bytes_per_token=round(network.shape.kv_numbers_per_token * BYTES[composer.kv_dtype]),
        weight_bytes=network.weight_bytes,
        layers=network.shape.layers,
    )
