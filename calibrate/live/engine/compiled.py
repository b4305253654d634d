"""A model's forward compiled ahead of time, once per kind of shape; and a model in two parts.

A small model spends most of a forward in Python and in launching operations one by one; a compiled one
does not.  On CPU the weights are also laid out anew: the usual product of five tokens with a matrix
costs several times that of one, the packed one little more, since both read the matrix once.

Shapes are dynamic: a graph serves any number of columns, and four graphs serve all batches, since a
compiler treats a size of one as a case of its own.

A graph says nothing on its way.  Where something is to be seen between two layers (Mirror-SD's early exit),
the model runs as two parts.
"""

from __future__ import annotations

import copy
import itertools
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from calibrate.live.engine.slots import Buffers, Plan, SlotCache
from calibrate.live.errors import ModelError

PACKED = 2**17
"""Numbers in the average matrix from which packing pays: below, what a call costs outweighs it.  Packed
graphs are not kept between processes, so that such a model is compiled anew in each."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 2e-1}
"""Largest difference of logits, relative to the largest of them, that a converted model may show."""

Graph: TypeAlias = Callable[..., Tensor]
_numbers = itertools.count()


class Kind(NamedTuple):
    """What a graph is for: one row or several, one new token per row or several."""

    one_row: bool
    one_token: bool


class Feed(NamedTuple):
    """Inputs of a forward but its keys and values.

    Attributes:
        ids: [R, n]; hidden states [R, n, H] of the later part of a model.
        positions: [R, n].
        columns: [R, n] where keys and values are written.
        mask: [R, 1, n, L] additive.
    """

    ids: Tensor
    positions: Tensor
    columns: Tensor
    mask: Tensor

    @property
    def kind(self) -> Kind:
        """The kind of graph that serves it."""
        rows, count = self.positions.shape
        return Kind(rows == 1, count == 1)


# -- a forward, and an example by which one that was converted is held against the model --------------------


def call_model(model: Any, feed: Feed, buffers: Sequence[Buffers]) -> Tensor:
    """[R, n, V] logits by the model itself; writes keys and values to the buffers of R rows per layer."""
    logits: Tensor = model(
        input_ids=feed.ids,
        attention_mask=feed.mask,
        position_ids=feed.positions,
        past_key_values=SlotCache(buffers, Plan(slice(None), 0, feed.mask.shape[-1], feed.columns)),
        use_cache=True,
    ).logits
    return logits


def example(
    model: Any, sizes: tuple[int, int, int, int], buffers: Sequence[Buffers], hidden: int | None = None
) -> tuple[Feed, list[Buffers]]:
    """Random inputs of R, n, L and capacity as given by `sizes`, at columns that differ from row to row.

    `buffers` tell heads and widths; with `hidden`, states of so many numbers take the place of ids.
    """
    rows, count, length, capacity = sizes
    generator = torch.Generator().manual_seed(rows * count)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device=model.device, dtype=model.dtype)

    starts = length - count - torch.arange(rows)[:, None]
    columns = (starts + torch.arange(count)).to(model.device)
    mask = torch.zeros((rows, 1, count, length), dtype=model.dtype, device=model.device)
    unseen = torch.arange(length, device=model.device) > columns[:, None, :, None]
    mask.masked_fill_(unseen, torch.finfo(mask.dtype).min)
    if hidden is None:
        vocabulary = int(model.config.get_text_config().vocab_size)
        ids = torch.randint(vocabulary, (rows, count), generator=generator).to(model.device)
    else:
        ids = noise(rows, count, hidden)
    shapes = [[(rows, part.shape[1], capacity, part.shape[3]) for part in pair] for pair in buffers]
    pairs = [(noise(*keys), noise(*values)) for keys, values in shapes]
    return Feed(ids, columns.clone(), columns, mask), pairs


def is_near(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """Whether two results are as near as a precision explains; not if one of them is no number."""
    limit = TOLERANCE[dtype] * float(other.abs().max())
    return one.shape == other.shape and float((one - other).abs().max()) <= limit


# -- compiled forwards ------------------------------------------------------------------------------------


def compiler_problem(device: torch.device) -> str | None:
    """Why models cannot be compiled here; None if they can."""
    if device.type == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception as error:  # of the compiler's own types, which move between versions
            return f"no C++ compiler was found ({error}); install g++ or use mode 'eager'"
    elif device.type == "cuda":
        from importlib.util import find_spec

        if find_spec("triton") is None:
            return "Triton is not installed; install it or use mode 'eager'"
    else:
        return f"devices of type {device.type!r} are not compiled for; use mode 'eager'"
    return None


class Capture:
    """Compiled forwards of a model, which may take hidden states of so many numbers in place of ids.

    Attributes:
        packs: Whether weights are packed.
        compile_s: Seconds that compiling each graph took so far.

    Raises:
        ModelError: There is no compiler.
    """

    def __init__(self, model: PreTrainedModel, *, hidden: int | None = None) -> None:
        problem = compiler_problem(model.device)
        if problem is not None:
            raise ModelError(f"the model cannot be compiled: {problem}")
        self.model = model
        self.hidden = hidden
        self.packs = model.device.type == "cpu" and _packs(model)
        self.compile_s: dict[Kind, float] = {}
        self._graphs: dict[Kind, Graph] = {}
        # One thread of compilation: a worker is pinned to its cores, a pool would only wait for them.
        self._settings_of_inductor: dict[str, Any] = {"compile_threads": 1}
        if model.device.type == "cpu":
            self._settings_of_inductor |= {"cpp_wrapper": True, "freezing": self.packs}

    def call(self, feed: Feed, buffers: Sequence[Buffers]) -> Tensor:
        """[R, n, V] logits of contiguous inputs; writes keys and values to the buffers of R rows."""
        graph = self._graphs.get(feed.kind)
        if graph is None:
            graph = self.prepare(feed.kind, buffers)
        return graph(*feed, *_flat(buffers))

    def prepare(self, kind: Kind, buffers: Sequence[Buffers]) -> Graph:
        """The graph of a kind, compiled unless it is there, and checked against the model itself.

        Raises:
            ModelError: The model cannot be compiled, or the compiled one computes something else.
        """
        if kind in self._graphs:
            return self._graphs[kind]
        start = time.perf_counter()
        graph = self._compile(kind)
        try:
            # Sizes that occur nowhere else in a model, so that no dimension is taken for another.
            with self._settings():
                _run_marked(graph, *self._example(kind, (3, 7, 67, 101), buffers))
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"the model cannot be compiled; use mode 'eager'. {error}") from error
        self.compile_s[kind] = time.perf_counter() - start
        # Guards are off, so that a graph that took a size for a constant would be wrong in silence.
        for sizes in ((2, 2, 40, 64), (5, 4, 33, 48)):
            self._check(graph, *self._example(kind, sizes, buffers))
        self._graphs[kind] = graph
        return graph

    def _compile(self, kind: Kind) -> Graph:
        model = self.model

        def step(ids: Tensor, positions: Tensor, columns: Tensor, mask: Tensor, *flat: Tensor) -> Tensor:
            pairs = list(zip(flat[::2], flat[1::2], strict=True))
            return call_model(model, Feed(ids, positions, columns, mask), pairs)

        # Compiled code is kept by code object, and without guards the first found is taken: each graph
        # of each model needs a code object of its own.
        name = f"step_{next(_numbers)}"
        own = types.FunctionType(step.__code__.replace(co_name=name), globals(), name, None, step.__closure__)
        options = {**self._settings_of_inductor, "guard_filter_fn": _no_guards}
        graph: Graph = torch.compile(own, fullgraph=True, dynamic=False, options=options)
        return graph

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """How to compile; set for the moment, since tracing looks at some of them before `options` count."""
        from torch._inductor import config
        from torch.fx.experimental import _config

        # Sizes that are equal in the example are not taken to be equal always.
        with config.patch(self._settings_of_inductor), _config.patch(use_duck_shape=False):
            yield

    def _example(
        self, kind: Kind, sizes: tuple[int, int, int, int], buffers: Sequence[Buffers]
    ) -> tuple[Feed, list[Buffers]]:
        rows, count, length, capacity = sizes
        rows, count = (1 if kind.one_row else rows), (1 if kind.one_token else count)
        return example(self.model, (rows, count, length, capacity), buffers, self.hidden)

    def _check(self, graph: Graph, feed: Feed, buffers: list[Buffers]) -> None:
        """Compare with the model called as usual, from equal keys and values."""
        copies = [(keys.clone(), values.clone()) for keys, values in buffers]
        with torch.inference_mode():
            logits = graph(*feed, *_flat(buffers))
            expected = call_model(self.model, feed, copies)
        pairs = [(logits, expected), *zip(_flat(buffers), _flat(copies), strict=True)]
        if not all(is_near(one, other, other.dtype) for one, other in pairs):
            raise ModelError(f"the compiled model computes something else; use mode 'eager' ({feed.kind})")


def _flat(buffers: Sequence[Buffers]) -> Iterator[Tensor]:
    return itertools.chain.from_iterable(buffers)


def _no_guards(guards: Sequence[Any]) -> list[bool]:
    """Keep none: a graph's shapes are known before it is called, and checking them takes a while."""
    return [False] * len(guards)


def _packs(model: PreTrainedModel) -> bool:
    sizes = [m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear)]
    return bool(sizes) and sum(sizes) / len(sizes) >= PACKED


def _run_marked(graph: Graph, feed: Feed, buffers: list[Buffers]) -> None:
    """The first call, which compiles: says which sizes vary."""
    from torch._dynamo import mark_dynamic

    varying = [(tensor, (0, 1)) for tensor in feed[:3]] + [(feed.mask, (0, 2, 3))]
    varying += [(tensor, (0, 2)) for tensor in _flat(buffers)]
    for tensor, sizes in varying:
        for size in sizes:
            if tensor.shape[size] > 1:
                mark_dynamic(tensor, size)
    with torch.inference_mode():
        graph(*feed, *_flat(buffers))


# -- a look between layers, and a model in two parts --------------------------------------------------------


@contextmanager
def watched(model: Any, layer: int, see: Callable[[Tensor], None]) -> Iterator[None]:
    """Show `see` what leaves the first `layer` layers [R, n, H] of every forward within the block."""

    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        see(output[0] if isinstance(output, tuple) else output)

    handle = model.model.layers[layer - 1].register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class SplitCapture:
    """Compiled forwards of a Llama-like model in two graphs, with a look behind the first `layer` layers.

    `see` is shown the hidden states [R, n, H] between the parts.
    """

    def __init__(self, model: PreTrainedModel, layer: int) -> None:
        size = int(model.config.get_text_config().hidden_size)
        self.layer = layer
        self._first = Capture(first_part(model, layer))
        self._second = Capture(second_part(model, layer), hidden=size)
        self.see: Callable[[Tensor], None] = lambda hidden: None

    def call(self, feed: Feed, buffers: Sequence[Buffers]) -> Tensor:
        """See `Capture.call`."""
        hidden = self._first.call(feed, buffers)
        self.see(hidden)
        return self._second.call(feed._replace(ids=hidden.contiguous()), buffers)


def first_part(model: Any, layer: int) -> Any:
    """The embedding and the first `layer` layers, whose "logits" are hidden states; weights are shared."""
    inner = _with_modules(model.model, layers=model.model.layers[:layer], norm=nn.Identity())
    return _with_modules(model, model=inner, lm_head=nn.Identity())


def second_part(model: Any, layer: int) -> Any:
    """The layers after the first `layer`, norm and head; takes hidden states in place of ids."""
    layers = model.model.layers[layer:]
    return _with_modules(model, model=_with_modules(model.model, layers=layers, embed_tokens=nn.Identity()))


def some_layers(model: Any, kept: Sequence[int]) -> Any:
    """The model with a part of its layers, whose keys and values lie where they do in the whole one."""
    layers = nn.ModuleList(model.model.layers[at] for at in kept)
    return _with_modules(model, model=_with_modules(model.model, layers=layers))


def _with_modules(module: Any, **modules: Any) -> Any:
    """A copy that shares all weights, with some submodules replaced."""
    changed = copy.copy(module)
    changed._modules = {**module._modules, **modules}
    return changed
