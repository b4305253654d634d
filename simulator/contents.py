"""What row operations answer in the simulated world: recorded replies, or coins in their place."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, TypeAlias

from hardware_profiles.decisions import Decisions
from policies.config import SettingError
from policies.operation import RowOperation
from policies.values import RowVerdict, cut_to
from simulator.tokens.model import TokenModel


class Contents(Protocol):
    """Answers of rowwise operations, without their time."""

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of steps that call no model, by name."""
        ...

    def replies(self, operation: RowOperation) -> list[Any]:
        """[n] the reply of each row of the operation's view."""
        ...

    def early(self, operation: RowOperation) -> list[Any]:
        """[n] the early result of each row."""
        ...


class Decided:
    """The replies of a decision trace.

    Args:
        decisions: Of the setting that runs.
        requests: Ids in the trace are below this; the same texts served again have ids that many higher.
    """

    def __init__(self, decisions: Decisions, requests: int) -> None:
        self.decisions = decisions
        self.requests = requests
        self.seconds = dict(decisions.seconds)
        self._revived: dict[tuple[str, int, int, int], Any] = {}

    def replies(self, operation: RowOperation) -> list[Any]:
        """See `Contents`.

        Raises:
            SettingError: The trace does not hold this moment: it is of another setting, or ended earlier.
        """
        replies = [self._reply(operation, key) for key in self._keys(operation)]
        if "verdict" not in operation.reply._fields:
            return replies
        rooms = operation.view.rooms.tolist()
        return [
            reply._replace(verdict=cut_to(reply.verdict, room))
            for reply, room in zip(replies, rooms, strict=True)
        ]

    def early(self, operation: RowOperation) -> list[Any]:
        """See `Contents`."""
        return [
            revive(operation.early_reply, self._found(self.decisions.marks, key))
            for key in self._keys(operation)
        ]

    def _keys(self, operation: RowOperation) -> list[tuple[str, int, int, int]]:
        return [(k, part, request % self.requests, at) for k, part, request, at in operation.reply_keys()]

    def _reply(self, operation: RowOperation, key: tuple[str, int, int, int]) -> Any:
        if key not in self._revived:
            self._revived[key] = revive(operation.reply, self._found(self.decisions.replies, key))
        return self._revived[key]

    def _found(self, replies: Any, key: tuple[str, int, int, int]) -> Any:
        if key not in replies:
            kind, _, request, position = key
            raise SettingError(
                f"the decision trace of {self.decisions.label!r} has no {kind} of request {request} at "
                f"position {position}: it is of another run; record it again with `calibrate decide`"
            )
        return replies[key]


Synthesise: TypeAlias = Callable[[RowOperation, TokenModel], list[Any]]
"""(operation, coins) to the replies of its rows."""

SYNTHETIC: dict[str, str] = {
    "guide": "simulator.synthetic.double:guide",
    "retrievingdraft": "simulator.synthetic.double:draft",
    "retrievingverify": "simulator.synthetic.double:verify",
    "draftsequences": "simulator.synthetic.duo:draft_sequences",
    "earlyverify": "simulator.synthetic.mirror:verify_early",
    "earlyverify.mark": "simulator.synthetic.mirror:candidates",
    "rollout": "simulator.synthetic.mirror:roll_out",
    "streamdraft": "simulator.synthetic.mirror:draft_by_streams",
    "streamrollout": "simulator.synthetic.mirror:roll_out_by_streams",
    "settlesequences": "simulator.synthetic.duo:settle_sequences",
    "verifypending": "simulator.synthetic.duo:verify_pending",
    "draftheads": "simulator.synthetic.trees:draft_heads",
    "drafttree": "simulator.synthetic.trees:draft_trees",
    "verifytree": "simulator.synthetic.trees:verify_trees",
}
"""Kind of operation to `module:function` (an `Synthesise`), where coins can stand in for decisions."""


class Synthetic:
    """Replies made of coin tosses: the papers' assumptions in place of a recording.

    Args:
        tokens: The coins.
    """

    def __init__(self, tokens: TokenModel) -> None:
        self.tokens = tokens
        self.seconds: dict[str, float] = {}

    def replies(self, operation: RowOperation) -> list[Any]:
        """See `Contents`.

        Raises:
            SettingError: Nothing is known of this kind of operation but by recording it.
        """
        return synthesise(operation.kind)(operation, self.tokens)

    def early(self, operation: RowOperation) -> list[Any]:
        """See `Contents`; made under the kind with `.mark` added."""
        return synthesise(f"{operation.kind}.mark")(operation, self.tokens)


def synthesise(kind: str) -> Synthesise:
    """What makes replies of a kind out of coins."""
    if kind not in SYNTHETIC:
        raise SettingError(
            f"coin tosses cannot stand in for {kind!r}, which depends on the tokens themselves; use a "
            "decision trace (`calibrate decide`, then --decisions)"
        )
    module, _, name = SYNTHETIC[kind].partition(":")
    found: Synthesise = getattr(import_module(module), name)
    return found


def revive(reply: type[Any], plain: Any) -> Any:
    """A named tuple out of the lists that a file keeps."""
    found = reply._make(_tupled(part) for part in plain)
    if "verdict" in found._fields:
        found = found._replace(verdict=RowVerdict._make(found.verdict))
    return found


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
