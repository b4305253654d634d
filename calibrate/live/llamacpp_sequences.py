"""Which of llama.cpp's sequences are whose."""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.live.errors import ModelError
from calibrate.live.llamacpp_context import LlamaContext


class Sequences:
    """Slots have the sequences of their own numbers; branches take the highest ones that nobody uses.

    Args:
        context: Where they are kept.

    Attributes:
        free: What nobody uses.
    """

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self.free = list(range(context.sequences))

    def claim(self, slot: int) -> None:
        """Take the sequence of a slot's number, for good.

        Raises:
            ModelError: There is none, or a branch has it.
        """
        if slot not in self.free:
            raise ModelError(f"llama.cpp keeps {self._context.sequences} sequences, none for slot {slot}")
        self.free.remove(slot)

    def branch(self, source: int, length: int) -> int:
        """A sequence that begins with the first `length` tokens of another one."""
        self.check_room(1)
        branch = self.free.pop()
        self._context.copy(source, branch, 0, length)
        return branch

    def check_room(self, count: int) -> None:
        """Refuse more sequences than nobody uses.

        Raises:
            ModelError: There are not so many.
        """
        if count > len(self.free):
            raise ModelError(
                f"llama.cpp keeps {self._context.sequences} sequences, {count} more are asked for and "
                f"{len(self.free)} are free: use fewer rows at once, or fewer branches (--fanout)"
            )

    def give_back(self, branches: Sequence[int]) -> None:
        """Forget branches."""
        for branch in branches:
            self._context.remove(branch)
        self.free.extend(reversed(branches))
