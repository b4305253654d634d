"""KV blocks: who holds which, and which freed ones still hold a text that others start with.

As in vLLM: a freed block goes to the end of a queue and keeps its text until it is taken from its front, so
that the one that was freed longest ago is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """KV blocks of a device.

    Args:
        number: Of blocks; None: as many as are asked for.
        caching: Whether texts are found again.

    Attributes:
        used: Blocks in use.
        most_used: The most there ever were.
    """

    def __init__(self, number: int | None, *, caching: bool) -> None:
        self.number = number
        self.caching = caching
        self.used = 0
        self.most_used = 0
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(number or 0))
        self._made = number or 0
        self._users = [0] * self._made
        self._names: list[int | None] = [None] * self._made
        self._found: dict[int, int] = {}

    @property
    def free(self) -> float:
        """Blocks that can be taken."""
        return float("inf") if self.number is None else self.number - self.used

    def known(self, names: Sequence[int]) -> list[int]:
        """The blocks that hold a text's first blocks, as far as they are known."""
        blocks: list[int] = []
        for name in names:
            block = self._found.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def unused(self, blocks: Sequence[int]) -> int:
        """How many of some blocks nobody uses: sharing them takes them from those that are free."""
        return sum(1 for block in blocks if self._users[block] == 0)

    def share(self, blocks: Sequence[int]) -> None:
        """Use blocks that hold a text already."""
        for block in blocks:
            if self._users[block] == 0:
                self._free.pop(block, None)
                self.used += 1
            self._users[block] += 1
        self.most_used = max(self.most_used, self.used)

    def take(self, count: int) -> list[int]:
        """Use `count` blocks, at most as many as are free; what they held is forgotten."""
        if self.number is None and len(self._free) < count:
            fresh = range(self._made, self._made + count)
            self._made += count
            self._users += [0] * count
            self._names += [None] * count
            blocks = list(fresh)
        else:
            blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        users, names = self._users, self._names
        for block in blocks:
            users[block] = 1
            if (name := names[block]) is not None:
                names[block] = None
                del self._found[name]
        self.used += count
        self.most_used = max(self.most_used, self.used)
        return blocks

    def name(self, block: int, text: int) -> None:
        """Say what a full block holds; a text that is known already stays where it is."""
        if self.caching and text not in self._found:
            self._found[text] = block
            self._names[block] = text

    def give_back(self, blocks: Sequence[int]) -> None:
        """End the use of blocks; the last of a text is taken first."""
        users, names, free, limited = self._users, self._names, self._free, self.number is not None
        for block in reversed(blocks):
            users[block] -= 1
            if users[block] == 0:
                self.used -= 1
                if limited or names[block] is None:
                    free[block] = None
