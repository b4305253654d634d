"""Texts that a streaming draft continues: each pass verifies what its streams proposed, and proposes anew.

Every token is the draft's own: its first choice, or its draw, keyed by request and position as that of a
draft that writes token by token.  A proposal is right where it equals that token; the first wrong one and
what hangs on it are forgotten.  So the texts are those of the draft alone, whatever is proposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from calibrate.live.arena import Block, LawWriter
from calibrate.live.branching import Branching
from calibrate.live.choice import DRAFTED, drafted_weights, draw
from calibrate.live.errors import AuditError, ModelError
from calibrate.live.runner import ModelRunner
from calibrate.live.streams import ModelStreams, stream_positions, stream_sight
from policies.sampling import Sampling, keyed_uniforms
from policies.values import NO_LAW, BoolArray, IntArray


class Nodes(Protocol):
    """Nodes over trunks, whose streams can be asked; see `StreamBranching`."""

    tokens: list[list[int]]

    def feed(self, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> Tensor:
        """See `Branching.feed`."""
        ...

    def propose(self, streams: int, asked: Sequence[int]) -> Tensor:
        """See `StreamBranching.propose`."""
        ...

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """See `Branching.keep`."""
        ...


class StreamBranching(Branching):
    """Nodes whose streams say what may follow the token after them.

    Args:
        runner: The model.
        slots: [R] different slots.
        streams: The model's.
    """

    def __init__(self, runner: ModelRunner, slots: Sequence[int], streams: ModelStreams) -> None:
        super().__init__(runner, slots)
        self.streams = streams
        self._entered: list[Tensor] = []
        self._where: tuple[list[int], IntArray, BoolArray] | None = None

    def propose(self, streams: int, asked: Sequence[int]) -> Tensor:
        """[R, n, s, V] logits of the first `streams` streams of the n nodes fed last.

        They belong to the pass that fed the nodes: they enter the top layer beside them, and need nothing
        that comes out of it.

        Args:
            streams: s.
            asked: [R] states that are meant, which count as fed; the rest is padding.
        """
        assert self._where is not None, "feed comes first"
        if not self._entered:
            raise ModelError("streams need a draft that torch runs, whose layers can be looked at")
        starts, positions, hidden = self._where
        count = positions.shape[1]
        begins = [start + count for start in starts]
        logits = self.runner.forward_states(
            self.streams.part,
            self.slots,
            begins,
            self.streams.heads.entering(self._entered[0], streams),
            positions=stream_positions(positions, streams),
            hidden=stream_sight(hidden, np.array(begins), streams),
        )
        self.runner.fed += sum(asked)
        self._fed = self.runner.fed
        return logits.unflatten(1, (count, streams))

    def _forward(
        self, starts: Sequence[int], tokens: Sequence[Sequence[int]], positions: IntArray, hidden: BoolArray
    ) -> Tensor:
        self._entered = []
        self._where = (list(starts), positions, hidden)
        with self.runner.showing(self.slots, self.streams.layers - 1, self._entered.append):
            return super()._forward(starts, tokens, positions, hidden)


@dataclass
class Text:
    """A text that grows.

    Attributes:
        row: Its row.
        parent: Node of the token before the newest one.
        newest: Its last token, not fed yet.
        request: Whose it is.
        position: Of the next token.
        written: Tokens written so far.
        emitted: How many each pass wrote.
        proposed: What streams take for the tokens after the newest one.
    """

    row: int
    parent: int
    newest: int
    request: int
    position: int
    written: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)


class Writing:
    """All texts of an operation, which grow to the same length.

    Args:
        texts: Row after row.
        rows: R.
        lookahead: Tokens to write in each.
        streams: S, most tokens proposed at once.
        sampling: How tokens are chosen.
        writer: Where laws are kept; needed where tokens are drawn.

    Attributes:
        counts: [R] (tokens, streams) of each pass of a row.
    """

    def __init__(
        self,
        texts: Sequence[Text],
        rows: int,
        *,
        lookahead: int,
        streams: int,
        sampling: Sampling,
        writer: LawWriter | None,
    ) -> None:
        if sampling.draft_sampled and writer is None:
            raise AuditError("this worker drafts at random but was given no memory for its laws")
        self.texts = list(texts)
        self.lookahead = lookahead
        self.streams = streams
        self.sampling = sampling
        self.counts: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
        self._writer = writer
        self._block: Block | None = None

    def left(self, text: Text) -> int:
        """Tokens that a text still lacks."""
        return self.lookahead - len(text.written)

    @property
    def growing(self) -> list[Text]:
        """Texts that are not done."""
        return [text for text in self.texts if self.left(text)]

    def pending(self, first: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """[R] tokens and [R] parents of the next pass: each text's newest token and its proposals.

        Args:
            first: [R] number of the next node of each row.
        """
        tokens: list[list[int]] = [[] for _ in first]
        parents: list[list[int]] = [[] for _ in first]
        for text in self.growing:
            node = first[text.row] + len(tokens[text.row])
            new = [text.newest, *text.proposed]
            tokens[text.row] += new
            parents[text.row] += [text.parent, *range(node, node + len(text.proposed))]
        return tokens, parents

    def asking(self) -> list[int]:
        """[R] streams that a row's texts may need after the next pass.

        That pass leaves a text at least a token less to write, and the last one needs no proposal.  It
        depends on the row alone, so that its work can be replayed.
        """
        most = [0] * len(self.counts)
        for text in self.growing:
            most[text.row] = max(most[text.row], min(self.streams, self.left(text) - 2))
        return most

    def write(self, first: Sequence[int], logits: Tensor) -> list[tuple[Text, int]]:
        """Write what the pass says: per text that grew, the last node fed for it that is right.

        Args:
            first: [R] number of the pass's first node in each row.
            logits: [R, n, V] after its nodes.

        Returns:
            The texts, with the place 0 ... n - 1 of that node.
        """
        growing, at = self.growing, [0] * len(first)
        places: list[range] = []
        for text in growing:
            begin = at[text.row]
            at[text.row] += 1 + len(text.proposed)
            places.append(range(begin, at[text.row]))
        flat = [(text.row, place) for text, own in zip(growing, places, strict=True) for place in own]
        rows, columns = torch.tensor(flat, device=logits.device).T
        steps = np.concatenate([np.arange(len(own)) for own in places])
        chosen = self._chosen(logits[rows, columns], growing, [len(own) for own in places], steps)
        tips = []
        for text, own in zip(growing, places, strict=True):
            mine = [next(chosen) for _ in own]
            right = 0
            while right < len(text.proposed) and text.proposed[right] == mine[right]:
                right += 1
            text.written += mine[: right + 1]
            text.emitted.append(right + 1)
            text.newest, text.parent, text.proposed = mine[right], first[text.row] + own[right], []
            tips.append((text, own[right]))
        return tips

    def take(self, tips: Sequence[tuple[Text, int]], logits: Tensor) -> None:
        """Take what streams propose, from their logits [R, n, s, V] at the nodes `tips`."""
        rows, columns = torch.tensor([(text.row, place) for text, place in tips], device=logits.device).T
        best = logits[rows, columns].argmax(dim=-1).tolist()
        for (text, _), proposed in zip(tips, best, strict=True):
            text.proposed = proposed[: max(0, self.left(text) - 1)]

    def seal(self) -> list[int]:
        """Handle of each text's laws; NO_LAW where nothing was drawn."""
        return [NO_LAW] * len(self.texts) if self._block is None else self._block.seal()

    def _chosen(
        self, logits: Tensor, growing: Sequence[Text], counts: Sequence[int], steps: IntArray
    ) -> Iterator[int]:
        """The draft's own token after each node, from the logits [n, V] of `counts` nodes per text.

        The law of every one is written down: those after a wrong proposal are overwritten in a later pass.
        """
        if not self.sampling.draft_sampled:
            tokens: list[int] = logits.argmax(dim=-1).tolist()
            return iter(tokens)
        assert self._writer is not None, "checked at the start"
        if self._block is None:
            self._block = self._writer.reserve(len(self.texts), self.lookahead, logits.shape[-1])
        number = {id(text): i for i, text in enumerate(self.texts)}
        requests, positions, blocks, lengths = (
            np.repeat(np.array(values, dtype=np.int64), counts)
            for values in zip(
                *((t.request, t.position, number[id(t)], len(t.written)) for t in growing), strict=True
            )
        )
        places = lengths + steps
        weights = drafted_weights(logits, self.sampling)
        drawn = draw(weights, keyed_uniforms(self.sampling.seed, DRAFTED, requests, positions + places))
        self._block.write_some(
            (blocks, places),
            weights.cpu().numpy(),
            weights.sum(dim=-1, dtype=torch.float64).cpu().numpy(),
            (requests, positions + places, drawn.cpu().numpy()),
        )
        found: list[int] = drawn.tolist()
        return iter(found)
