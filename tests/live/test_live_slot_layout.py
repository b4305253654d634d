"""Slots are moved so that the rows of a forward lie side by side, and nobody notices."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import VOCABULARY, tiny_model

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine.slots import SlotLayout
from calibrate.live.errors import AuditError

subsets = st.lists(
    st.lists(st.integers(0, 6), min_size=1, max_size=7, unique=True), min_size=1, max_size=8
)  # of seven slots, one forward after the other


@given(subsets)
def test_after_the_moves_rows_lie_side_by_side(forwards: list[list[int]]) -> None:
    layout = SlotLayout()
    for slots in forwards:
        moves = layout.moves(slots)
        assert len(moves) < len(slots)
        for one, other in moves:
            layout.swap(one, other)
        rows = sorted(layout.row(slot) for slot in slots)
        assert rows == list(range(rows[0], rows[0] + len(rows)))
        assert layout.moves(slots) == []
        assert sorted(layout.row(slot) for slot in range(7)) == list(range(7))
        assert all(layout.slot(layout.row(slot)) == slot for slot in range(7))


def test_the_fewest_rows_move() -> None:
    layout = SlotLayout()
    # Rows 0 to 3 hold three of the four already; of equals the first range is taken.
    assert layout.moves([4, 0, 2, 3]) == [(4, 1)]
    layout.swap(4, 1)
    assert [layout.row(slot) for slot in (1, 4)] == [4, 1]


@settings(max_examples=15)
@given(subsets)
def test_a_row_is_the_same_wherever_it_sits(forwards: list[list[int]]) -> None:
    model = tiny_model(1).double()
    shared, alone = ModelRunner(model, slots=7), [ModelRunner(model) for _ in range(7)]
    for slot in range(7):
        prompt = [(3 * slot + i) % VOCABULARY for i in range(1 + slot)]
        for runner, own in ((shared, slot), (alone[slot], 0)):
            runner.reset(own)
            runner.forward([own], [prompt])
    for number, slots in enumerate(forwards):
        chains = [
            [(number + slot + i) % VOCABULARY for i in range(1 + (slot + number) % 3)] for slot in slots
        ]
        check_forward(shared, alone, slots, chains)
        check_tree(shared, alone, slots)


def check_forward(
    shared: ModelRunner, alone: Sequence[ModelRunner], slots: Sequence[int], chains: Sequence[Sequence[int]]
) -> None:
    found = shared.forward(slots, chains)
    for row, slot, chain in zip(found, slots, chains, strict=True):
        torch.testing.assert_close(row[: len(chain)], alone[slot].forward([0], [chain])[0])


def check_tree(shared: ModelRunner, alone: Sequence[ModelRunner], slots: Sequence[int]) -> None:
    """Two steps of branches that differ from row to row."""
    forks = [[len(shared.held(slot)) - 1] * (1 + slot % 3) for slot in slots]
    tree, width = shared.open_tree(slots, forks, 2), max(map(len, forks))
    own = [alone[slot].open_tree([0], [row], 2) for slot, row in zip(slots, forks, strict=True)]
    for step in range(2):
        tokens = torch.tensor([[(slot + step + i) % VOCABULARY for i in range(width)] for slot in slots])
        found = shared.tree_forward(tree, tokens)
        for row, slot, mine, chosen in zip(found, slots, own, tokens, strict=True):
            expected = alone[slot].tree_forward(mine, chosen[None, : mine.branches])[0]
            torch.testing.assert_close(row[: mine.branches], expected)
    shared.close_tree(tree)
    for slot, mine in zip(slots, own, strict=True):
        alone[slot].close_tree(mine)


def test_a_tree_whose_rows_were_moved_is_refused() -> None:
    runner = ModelRunner(tiny_model(1).double(), slots=4)
    for slot in range(4):
        runner.reset(slot)
        runner.forward([slot], [[1, 2]])
    tree = runner.open_tree([0, 1], [[1], [1]], 1)
    runner.forward([0, 3], [[4], [4]])  # the rows of 1 and 3 change places
    runner.rollback(0, 2)
    with pytest.raises(AuditError, match="moved"):
        runner.tree_forward(tree, torch.zeros((2, 1), dtype=torch.long))
