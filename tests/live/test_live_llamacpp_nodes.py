"""Trees as sequences, against llama.cpp's rule of what a token sees; llama.cpp itself is not needed here."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_support import worker_specs
from tiny_models import tiny_model

from calibrate.live.backends import open_runner
from calibrate.live.backends.installed import gguf_file, has_llamacpp, import_llamacpp
from calibrate.live.backends.llamacpp import GrowingNodes
from calibrate.live.errors import AuditError, ModelError
from calibrate.live.placement import WorkerSpec
from policies.tokentree import ROOT

SLOT = 0


@dataclass
class Cells:
    """llama.cpp's buffer: a cell per token, with its position and sequences.

    Attributes:
        cells: Of each token's name: position and sequences.
        made: Sequences that were asked for.
    """

    trunk: int
    cells: dict[int, tuple[int, set[int]]] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self) -> None:
        self.cells = {column: (column, {SLOT}) for column in range(self.trunk)}

    def branch(self, source: int, length: int) -> int:
        self.made += 1
        for position, members in self.cells.values():
            if position < length and source in members:
                members.add(self.made)
        return self.made

    def feed(self, first: int, positions: list[int], owners: list[list[int]]) -> list[set[int]]:
        """What each new token sees: its first sequence's cells, at its position and before."""
        for i, (position, members) in enumerate(zip(positions, owners, strict=True)):
            self._check(position, members)
            self.cells[first + i] = (position, set(members))
        return [
            {name for name, (at, members) in self.cells.items() if owner[0] in members and at <= position}
            for position, owner in zip(positions, owners, strict=True)
        ]

    def _check(self, position: int, members: list[int]) -> None:
        """llama.cpp's own: a sequence of a batch goes on from where it ended."""
        for member in members:
            before = [at for at, held in self.cells.values() if member in held]
            assert position == max(before, default=-1) + 1, "not consecutive"


@st.composite
def portions(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """A trunk, and parents of nodes in portions."""
    trunk, size, found = draw(st.integers(0, 4)), 0, []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 5))
        found.append([draw(st.integers(ROOT, size + i - 1)) for i in range(count)])
        size += count
    return trunk, found


def ancestors(parents: list[int], node: int) -> list[int]:
    """From the root to the node itself."""
    return [] if node == ROOT else [*ancestors(parents, parents[node]), node]


@given(portions())
def test_every_node_sees_its_trunk_and_its_ancestors(tree: tuple[int, list[list[int]]]) -> None:
    trunk, portioned = tree
    cells, nodes, parents = Cells(trunk), GrowingNodes(SLOT, trunk), []
    for portion in portioned:
        first = len(parents)
        parents += portion
        paths = [ancestors(parents, first + i) for i in range(len(portion))]
        wanted = [{*range(trunk), *(trunk + node for node in path)} for path in paths]
        positions = [trunk + len(path) - 1 for path in paths]
        seen = np.zeros((len(portion), trunk + len(parents)), dtype=bool)
        for row, columns in zip(seen, wanted, strict=True):
            row[list(columns)] = True
        owners = nodes.grow(trunk + first, np.array(positions), seen, cells.branch)
        assert cells.feed(trunk + first, positions, owners) == wanted
    inner = {parent for parent in parents if parent != ROOT}
    assert cells.made >= len(parents) - len(inner)  # one sequence per leaf at least
    for node in range(len(parents)):
        path = [trunk + each for each in ancestors(parents, node)]
        held = {name for name, (_, members) in cells.cells.items() if nodes.holder(path) in members}
        assert set(path) <= held


def test_a_chain_needs_one_sequence() -> None:
    cells, nodes = Cells(3), GrowingNodes(SLOT, 3)
    for column in (3, 4, 5):
        seen = np.arange(column + 1)[None] <= column
        assert nodes.grow(column, np.array([column]), seen, cells.branch) == [[1]]
        cells.feed(column, [column], [[1]])
    assert cells.made == 1 and nodes.sequences == [1]


def test_other_masks_are_refused() -> None:
    nodes = GrowingNodes(SLOT, 2)
    cells = Cells(2)
    whole = np.ones((1, 3), dtype=bool)
    for seen, position in (([[1, 0, 1]], 2), ([[1, 1, 1]], 3), ([[1, 1, 0]], 2)):
        with pytest.raises(ModelError, match="the whole trunk and the path"):
            nodes.grow(2, np.array([position]), np.array(seen, dtype=bool), cells.branch)
    with pytest.raises(AuditError, match="the next is not at 3"):
        nodes.grow(3, np.array([2]), whole, cells.branch)
    nodes.grow(2, np.array([2]), whole, cells.branch)
    with pytest.raises(AuditError, match="no path"):
        nodes.holder([3])


# -- without llama.cpp ------------------------------------------------------------------------------------


def test_without_the_package_the_error_says_how_to_install_it(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    assert not has_llamacpp()
    with pytest.raises(ModelError, match=r"pip install 'spectwin\[llamacpp\]'.*'torch'"):
        import_llamacpp()
    spec: WorkerSpec = worker_specs(pair)[1][0]
    with pytest.raises(ModelError, match=r"pip install 'spectwin\[llamacpp\]'"):
        open_runner(WorkerSpec("draft", spec.model, spec.cores, role="draft", backend="llamacpp:q8_0"))
    assert not gguf_file(spec.model, "q8_0").exists()


def test_a_file_is_of_a_models_weights(
    pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    changed = tmp_path_factory.mktemp("changed")
    tiny_model(5).save_pretrained(changed)
    files = {gguf_file(model, "q8_0") for model in (*pair, str(changed))}
    assert len(files) == 3 and {file.name for file in files} == {"q8_0.gguf"}
