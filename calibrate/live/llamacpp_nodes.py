"""Trees that grow node by node, as sequences of llama.cpp: one per leaf.

llama.cpp takes no mask.  A token belongs to sequences and sees what its sequence holds; so a node belongs to
the sequences of all leaves below it.  Where a node of an earlier call gets several children, the first takes
up the sequence that ends there, and each other one a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from calibrate.live.errors import AuditError, ModelError
from policies.values import BoolArray, IntArray

Branch: TypeAlias = Callable[[int, int], int]
"""Makes a sequence that begins as another one does: its number, and so many tokens of it."""


@dataclass
class Nodes:
    """The nodes behind what a slot holds; a node is named by its column.

    Attributes:
        slot: Whose.
        trunk: T, tokens that the slot holds.
        parents: Of each node; T - 1 where it hangs on the trunk.
        holders: A sequence that holds each node.
        tips: The node at which each sequence ends.
    """

    slot: int
    trunk: int
    parents: dict[int, int] = field(default_factory=dict)
    holders: dict[int, int] = field(default_factory=dict)
    tips: dict[int, int] = field(default_factory=dict)

    @property
    def sequences(self) -> list[int]:
        """All that its nodes are in."""
        return list(self.tips)

    def path(self, node: int) -> list[int]:
        """From the trunk to a node, itself included."""
        found = []
        while node >= self.trunk:
            found.append(node)
            node = self.parents[node]
        return found[::-1]

    def holder(self, path: Sequence[int]) -> int:
        """The sequence that holds a path from the trunk on.

        Raises:
            AuditError: It is none.
        """
        if path[-1] not in self.parents or self.path(path[-1]) != list(path):
            raise AuditError(f"the columns {list(path)} of slot {self.slot} are no path from its trunk on")
        return self.holders[path[-1]]


def grow_nodes(
    nodes: Nodes,
    start: int,
    positions: IntArray,
    seen: BoolArray,
    branch: Branch,
) -> list[list[int]]:
    """Add nodes in the columns from `start` on.

    Args:
        nodes: To which.
        start: T plus the number of nodes there are.
        positions: [n] of each new node.
        seen: [n, L] columns that each new node sees.
        branch: Makes further sequences.

    Returns:
        [n] sequences that each new node belongs to.

    Raises:
        AuditError: The columns do not follow on those there are.
        ModelError: A node does not see the whole trunk and one path.
    """
    if start != nodes.trunk + len(nodes.parents):
        raise AuditError(f"slot {nodes.slot} has {len(nodes.parents)} nodes, the next is not at {start}")
    new = range(start, start + len(positions))
    for node, position, row in zip(new, positions.tolist(), seen, strict=True):
        _add(nodes, node, position, np.flatnonzero(row).tolist())
    inner = {nodes.parents[node] for node in new}
    owners: dict[int, list[int]] = {node: [] for node in new}
    for leaf in (node for node in new if node not in inner):
        sequence = _sequence_of(nodes, leaf, start, branch)
        for node in nodes.path(leaf):
            if node >= start:
                owners[node].append(sequence)
                nodes.holders[node] = sequence
    return list(owners.values())


def _add(nodes: Nodes, node: int, position: int, columns: list[int]) -> None:
    """Note a node that sees some columns, itself among them."""
    path = columns[nodes.trunk :]
    parent = path[-2] if len(path) > 1 else nodes.trunk - 1
    whole = columns[: nodes.trunk] == list(range(nodes.trunk)) and path[-1:] == [node]
    if not whole or nodes.path(parent) != path[:-1] or position != nodes.trunk + len(path) - 1:
        raise ModelError(
            f"node {node} of slot {nodes.slot} sees {columns} from position {position}: llama.cpp can only "
            "show the whole trunk and the path to the node"
        )
    nodes.parents[node] = parent


def _sequence_of(nodes: Nodes, leaf: int, start: int, branch: Branch) -> int:
    """The sequence that a new leaf ends: one that ended at its last old ancestor, or a copy."""
    old = [node for node in nodes.path(leaf) if node < start]
    ended = next((s for s, tip in nodes.tips.items() if old and tip == old[-1]), None)
    if ended is None:
        ended = branch(nodes.holders[old[-1]] if old else nodes.slot, nodes.trunk + len(old))
    nodes.tips[ended] = leaf
    return ended
