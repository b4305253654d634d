"""What workers do for operations, one module per family; a `Rowwise` one's is loaded when first asked for.

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

HANDLERS: dict[str, str] = {
    "guide": "calibrate.live.handlers.doubleguide:guide",
    "retrievingdraft": "calibrate.live.handlers.double:draft",
    "retrievingverify": "calibrate.live.handlers.doubleguide:verify",
    "draftsequences": "calibrate.live.handlers.duo_sequences:draft_sequences",
    "earlyverify": "calibrate.live.handlers.mirror:verify_early",
    "rollout": "calibrate.live.handlers.mirror:roll_out",
    "streamdraft": "calibrate.live.handlers.mirror_streams:draft",
    "streamrollout": "calibrate.live.handlers.mirror_streams:roll_out",
    "retrievetree": "calibrate.live.handlers.retrieval:retrieve_trees",
    "settlesequences": "calibrate.live.handlers.duo:settle_sequences",
    "verifypending": "calibrate.live.handlers.duo:verify_pending",
    "drafttree": "calibrate.live.handlers.treedraft:draft_trees",
    "verifytree": "calibrate.live.handlers.trees:verify_trees",
}
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
