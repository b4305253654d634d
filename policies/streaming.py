"""What a streaming draft is asked for: windows in fewer steps than tokens (Mirror-SD, section 3.2 and D.2).

In one pass the draft verifies what its streams proposed in the pass before, by its own choice of every token,
and its streams propose what may follow.  A window is what the draft writes alone, token by token; only the
number of passes differs, J <= gamma, and with it the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from policies.exits import Rollout
from policies.rowwise import Like, Rowwise, Work

MOST_STREAMS = 3
"""Streams of Figure 6b; the batch schedule has at most two."""
BY_BATCH = "batch"
STREAMS = (*map(str, range(MOST_STREAMS + 1)), BY_BATCH)
"""Values of the knob `streams`; 0: the draft writes token by token."""
ACCEPTANCE = 0.5
"""Of a stream's proposal, in worlds of coin tosses."""

UNSTREAMED = "unstreamed"
"""Step of a row whose windows need no further proposal, while those of other rows may."""

_NARROW, _FEW, _WIDE = 8, 2, 1
_PART = 32


def scheduled_streams(batch: int) -> int:
    """Streams at a batch size: 2 up to batch 8, else 1 (`mirror.sched`).

    The paper defines 1, 8 and from 16 on; a size between 8 and 16 takes the smaller number, that of the
    larger batch, as `policies.mirror.scheduled_kappa` does.

    Raises:
        ValueError: `batch` below 1.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    return _FEW if batch <= _NARROW else _WIDE


def part_of(kappa: int, streams: int) -> int:
    """Tells operations of different widths apart: what was decided at one is no answer to another."""
    return kappa + (streams << _PART)


class StreamWindow(NamedTuple):
    """Reply of `StreamDraft`.

    Attributes:
        tokens: The window.
        law: Handle of the tokens' laws.
        emitted: Tokens that each pass wrote (eta_j of `mirror.ss`).
        work: The passes.
    """

    tokens: tuple[int, ...]
    law: int
    emitted: tuple[int, ...]
    work: Work


class StreamRolled(NamedTuple):
    """Reply of `StreamRollout`.

    Attributes:
        branches: A `policies.exits.Branch` per candidate, as plain tuples.
        emitted: Per branch, tokens that each pass wrote.
        work: The passes.
    """

    branches: tuple[tuple[Any, ...], ...]
    emitted: tuple[tuple[int, ...], ...]
    work: Work


@dataclass(frozen=True, slots=True)
class StreamDraft(Rowwise):
    """A window after the committed text, of which the draft has not seen the last token.

    A pass is two steps: `draft`, the model over the newest token and what was proposed after it, and
    `draft:s`, the streams of these tokens through their share s of the layers (`unstreamed` where no further
    proposal is needed).  `asks`: nothing.

    Attributes:
        lookahead: gamma.
        streams: S, at least 1.
        acceptance: Of a proposal, in worlds of coin tosses.
    """

    kind: ClassVar[str] = "streamdraft"
    like: ClassVar[Like] = "draft"
    reply: ClassVar[type[Any]] = StreamWindow

    lookahead: int = 4
    streams: int = 1
    acceptance: float = ACCEPTANCE


@dataclass(frozen=True, slots=True)
class StreamRollout(Rollout):
    """A `Rollout` whose branches are written by streams, all at once; passes are `tree` and `tree:s`.

    Attributes:
        streams: S, at least 1.
        acceptance: Of a proposal, in worlds of coin tosses.
    """

    kind: ClassVar[str] = "streamrollout"
    reply: ClassVar[type[Any]] = StreamRolled

    streams: int = 1
    acceptance: float = ACCEPTANCE


def passes(name: str, share: float, counts: list[tuple[int, int]]) -> Work:
    """Work of passes over (tokens, streams) of a row each.

    Args:
        name: Of the model's step.
        share: Of the layers that streams go through; 0: they cost nothing.
        counts: By pass.
    """
    steps: list[tuple[str, int]] = []
    for tokens, streams in counts:
        steps.append((name, tokens))
        if share:
            steps.append((f"{name}:{share:.4g}", streams) if streams else (UNSTREAMED, 0))
    return tuple(steps)
