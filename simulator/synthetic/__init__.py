"""Coins in place of recorded replies: the papers' assumptions, one module per family of operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeAlias

from policies.config import SettingError
from policies.operation import RowOperation, Verify
from policies.values import Speculation, Verdict
from simulator.tokens import TokenModel

Synthesis: TypeAlias = Callable[[Any, TokenModel], list[Any]]
"""(operation, coins) to the replies of its rows, or to their early results."""

_SYNTHESES: dict[tuple[str, bool], Synthesis] = {}


def synthesises(operation: type[RowOperation], *, early: bool = False) -> Callable[[Synthesis], Synthesis]:
    """Makes a function what replies to an operation out of coins, or what gives its early results."""

    def register(synthesis: Synthesis) -> Synthesis:
        _SYNTHESES[operation.kind, early] = synthesis
        return synthesis

    return register


class Synthetic:
    """Replies made of coin tosses; no step of theirs goes without a call of a model."""

    def __init__(self, tokens: TokenModel) -> None:
        self.tokens = tokens
        self.seconds: dict[str, float] = {}

    def replies(self, operation: RowOperation) -> list[Any]:
        """Replies of the rows.

        Raises:
            SettingError: Nothing is known of this kind of operation but by recording it.
        """
        return _synthesis_of(operation.kind, early=False)(operation, self.tokens)

    def early(self, operation: RowOperation) -> list[Any]:
        """Early results of the rows."""
        return _synthesis_of(operation.kind, early=True)(operation, self.tokens)


def _synthesis_of(kind: str, *, early: bool) -> Synthesis:
    if (kind, early) not in _SYNTHESES:  # the modules are loaded when coins are first asked for
        for family in iter_modules(__path__):
            import_module(f"{__name__}.{family.name}")
    if (kind, early) not in _SYNTHESES:
        raise SettingError(
            f"coin tosses cannot stand in for {kind!r}, which depends on the tokens themselves; use a "
            "decision trace (`calibrate decide`, then --decisions)"
        )
    return _SYNTHESES[kind, early]


def rows_of(operation: RowOperation) -> list[tuple[int, int, int, int, Any]]:
    """(slot, request, position, room, input) of each row."""
    view = operation.view
    return list(zip(view.slots, view.requests, view.positions, view.rooms, operation.inputs, strict=True))


def chains_of(operation: RowOperation, lengths: Sequence[int]) -> Speculation:
    """A speculation of the primary draft with so many tokens in each row of the operation."""
    return Speculation.primary(operation.width, operation.by_slot(lengths))


def verified(
    operation: RowOperation, lengths: Sequence[int], tokens: TokenModel, *, leave_open: bool = False
) -> Verdict:
    """What the coins of the rows' positions say of chains of these lengths: the same whoever asks."""
    verify = Verify(operation.view, chains_of(operation, lengths), operation.sampling, leave_open)
    return tokens.verify(operation.view, verify)
