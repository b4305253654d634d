"""What workers do for `Rowwise` operations, one module per family, loaded when first asked for.

A handler takes the executor and the message, and returns one reply per row of the message.  It calls the
model through `executor.runner`, stamps every model call (`executor.stamp`), checks with `executor.audit_fed`
that nothing was recomputed, and keeps what outlives the operation in `executor.kept`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from calibrate.live.errors import AuditError

if TYPE_CHECKING:
    from calibrate.live.executor import Executor
    from calibrate.live.messages import RowwiseRows

Handler: TypeAlias = "Callable[[Executor, RowwiseRows], tuple[Any, ...]]"

HANDLERS: dict[str, str] = {}
"""Kind of operation to `module:function`."""


def handler_of(kind: str) -> Handler:
    """The handler of a kind of operation.

    Raises:
        AuditError: There is none.
    """
    if kind not in HANDLERS:
        raise AuditError(f"no handler for operations of kind {kind!r}")
    module, _, name = HANDLERS[kind].partition(":")
    handler: Handler = getattr(import_module(module), name)
    return handler
