"""What workers do for operations, one module per policy family; they are loaded when first asked for.

A handler takes the executor and the operation, and returns one reply per row of the operation's view.  It
calls the model through `executor.runner`, stamps every model call (`executor.stamp`), checks with
`executor.audit_fed` that nothing was recomputed, and keeps what outlives the operation in `executor.kept`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from calibrate.live.errors import AuditError
from policies.operation import Operation

if TYPE_CHECKING:
    from calibrate.live.executor import Executor

Handler: TypeAlias = "Callable[[Executor, Any], Sequence[Any]]"
H = TypeVar("H", bound="Callable[..., Sequence[Any]]")

FAMILIES = ("chains", "double", "duo", "mirror", "probe", "trees")
"""Modules of this package that have handlers."""


class Handled(NamedTuple):
    """A kind of operation: its class, and what a worker does for it."""

    operation: type[Operation]
    handler: Handler


_HANDLED: dict[str, Handled] = {}


def handles(operation: type[Operation]) -> Callable[[H], H]:
    """Makes a function the handler of an operation."""

    def register(handler: H) -> H:
        _HANDLED[operation.kind] = Handled(operation, handler)
        return handler

    return register


def handled(kind: str) -> Handled:
    """The class and the handler of a kind of operation.

    Raises:
        AuditError: There is none.
    """
    if kind not in _HANDLED:
        for family in FAMILIES:
            import_module(f"{__name__}.{family}")
    if kind not in _HANDLED:
        raise AuditError(f"no handler for operations of kind {kind!r}")
    return _HANDLED[kind]
