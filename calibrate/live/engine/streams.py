"""Lookahead streams of a draft: what may follow the next token, from the forward that verifies it.

Speculative streaming (Bhendawade et al., 2024; Mirror-SD, section 3.2): beside each token's main stream,
which is the model itself, S further streams predict the S tokens after the next one.  Stream j of a token
enters the top layer with the hidden state that the main stream enters it with, plus an embedding of j, and
stands at position t + j.  It sees what its token sees, and the streams 1 ... j of the same token; no other
token's streams, and no main stream sees any.

The paper's streams share the layers of a draft that is trained with them.  Here the draft stays as it is, to
the last bit, and the streams have a top layer of their own, which begins as a copy of the draft's.
`calibrate pair streams` trains them; they lie beside the draft's weights in `streams.safetensors`.

A text grows by passes: each verifies what the streams proposed, and proposes anew.  Every token is the
draft's own: its first choice, or its draw, keyed by request and position as that of a draft that writes
token by token. A proposal is right where it equals that token; the first wrong one and what hangs on it are
forgotten.  So the texts are those of the draft alone, whatever is proposed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrate.live.engine.additions import read_additions, write_additions
from calibrate.live.engine.compiled import second_part
from calibrate.live.engine.runner import Nodes, Runner
from calibrate.live.engine.sampling import DraftSampler
from calibrate.live.engine.trees import Branching
from calibrate.live.errors import ModelError
from calibrate.live.shared_probs import ProbsWriter
from policies.sampling import Sampling
from policies.values import BoolArray, IntArray

FILE = "streams.safetensors"
_SCHEMA = "spectwin/streams/1"
_EMBEDDING = "embedding"


class StreamHeads(nn.Module):
    """What S streams have of their own: an embedding each, and one copy of a Llama-like model's top layer."""

    def __init__(self, model: Any, streams: int) -> None:
        super().__init__()
        self.layer = copy.deepcopy(model.model.layers[-1]).requires_grad_(True)
        size = int(model.config.hidden_size)
        self.embedding = nn.Parameter(0.02 * torch.randn(streams, size, device=model.device))

    @property
    def streams(self) -> int:
        """S."""
        return int(self.embedding.shape[0])

    def entering(self, hidden: Tensor, streams: int) -> Tensor:
        """[..., n * s, H] states of the first s streams of tokens, from the main stream's [..., n, H]."""
        wide: Tensor = hidden[..., None, :] + self.embedding[:streams].to(hidden.dtype)
        return wide.flatten(-3, -2)


class ModelStreams:
    """The streams of a Llama-like model that is loaded.

    Attributes:
        part: The streams' layer with the model's norm and head; takes hidden states in place of ids.
    """

    def __init__(self, model: Any, heads: StreamHeads) -> None:
        self.heads = heads
        self.layers = int(model.config.num_hidden_layers)
        self.part = stream_part(model, heads)

    @property
    def streams(self) -> int:
        """S."""
        return self.heads.streams

    @property
    def share(self) -> float:
        """Share of a forward's layers that a stream goes through: 1 / N."""
        return 1.0 / self.layers


def stream_part(model: Any, heads: StreamHeads) -> Any:
    """The streams' layer as a model: hidden states in, logits of the model's own head out."""
    part = second_part(model, int(model.config.num_hidden_layers) - 1)
    part.model._modules["layers"] = nn.ModuleList([heads.layer])
    return part


def stream_sight(hidden: BoolArray, starts: IntArray, streams: int) -> BoolArray:
    """[R, n * S, L] the columns hidden from S streams each of tokens from which `hidden` [R, n, l] are.

    `starts` [R] is the column of a row's first stream; those of a token follow each other, token after token.
    """
    rows, count, length = hidden.shape
    widest = max(length, int(starts.max()) + count * streams)
    sight = np.ones((rows, count, streams, widest), dtype=np.bool_)
    sight[..., :length] = hidden[:, :, None]
    row, token, stream, other = (index.ravel() for index in np.indices((rows, count, streams, streams)))
    own = other <= stream
    columns = starts[row] + token * streams + other
    sight[row[own], token[own], stream[own], columns[own]] = False
    return sight.reshape(rows, count * streams, widest)


def stream_positions(positions: IntArray, streams: int) -> IntArray:
    """[R, n * S] positions of streams: stream j = 1 ... S of a token at t stands at t + j."""
    own: IntArray = (positions[..., None] + 1 + np.arange(streams)).reshape(len(positions), -1)
    return own


def save_streams(heads: StreamHeads, total: int, folder: Path) -> Path:
    """Write streams beside the weights of their model of `total` layers, in half precision; the file."""
    return write_additions(heads.state_dict(), folder / FILE, schema=_SCHEMA, layers=total)


def load_streams(model: Any) -> ModelStreams:
    """The streams of a loaded model, from beside its weights.

    Raises:
        ModelError: There are none, or they are of another model.
    """
    folder = Path(getattr(model.config, "_name_or_path", ""))
    path = folder / FILE
    if getattr(model.config, "embedding", None) is not None or not path.is_file():
        raise ModelError(
            f"{folder} holds no {FILE}: `--streams` needs a draft with trained streams; train them with "
            f"`calibrate pair streams --draft {folder}`, or leave `--streams` at 0"
        )
    tensors, trained = read_additions(path, schema=_SCHEMA, what="streams", needed=_EMBEDDING)
    heads = StreamHeads(model, int(tensors[_EMBEDDING].shape[0]))
    layers = str(model.config.num_hidden_layers)
    try:
        heads.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelError(f"{path} is of another model: {error}; train streams anew") from error
    if trained != layers:
        raise ModelError(f"{path} is of a model of {trained} layers, this one has {layers}; train anew")
    heads.to(device=model.device, dtype=model.dtype)
    return ModelStreams(model, heads.eval().requires_grad_(False))


class StreamBranching(Branching):
    """Nodes whose streams say what may follow the token after them."""

    def __init__(self, runner: Runner, slots: Sequence[int], streams: ModelStreams) -> None:
        super().__init__(runner, slots)
        self.streams = streams
        self._entered: list[Tensor] = []
        self._last: Nodes | None = None

    def propose(self, streams: int, asked: Sequence[int]) -> Tensor:
        """[R, n, s, V] logits of the first s streams of the n nodes fed last.

        They belong to the pass that fed the nodes: they enter the top layer beside them, and need nothing
        that comes out of it.  `asked` [R] states are meant, and count as fed; the rest is padding.
        """
        assert self._last is not None and self._entered, "feed comes first"
        count = self._last.positions.shape[1]
        starts = [start + count for start in self._last.starts]
        nodes = Nodes(
            starts,
            (),
            stream_positions(self._last.positions, streams),
            stream_sight(self._last.hidden, np.array(starts), streams),
        )
        states = self.streams.heads.entering(self._entered[0], streams)
        logits = self.runner.forward_states(self.streams.part, self.slots, states, nodes)
        self.runner.fed += sum(asked)
        self._fed = self.runner.fed
        return logits.unflatten(1, (count, streams))

    def _forward(self, nodes: Nodes) -> Tensor:
        self._entered, self._last = [], nodes
        with self.runner.showing(self.slots, self.streams.layers - 1, self._entered.append):
            return super()._forward(nodes)


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
    """All texts of an operation on R rows, which grow to the same length.

    Args:
        texts: Row after row.
        rows: R.
        lookahead: Tokens to write in each.
        streams: S, most tokens proposed at once.
        sampling: How tokens are chosen.
        writer: See `DraftSampler`.

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
        writer: ProbsWriter | None,
    ) -> None:
        self.texts = list(texts)
        self.lookahead = lookahead
        self.streams = streams
        self.counts: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
        requests, positions = [text.request for text in texts], [text.position for text in texts]
        self._sampler = DraftSampler(requests, positions, lookahead, sampling, writer=writer)
        self._number = {id(text): i for i, text in enumerate(self.texts)}

    def left(self, text: Text) -> int:
        """Tokens that a text still lacks."""
        return self.lookahead - len(text.written)

    @property
    def growing(self) -> list[Text]:
        """Texts that are not done."""
        return [text for text in self.texts if self.left(text)]

    def pending(self, first: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """[R] tokens and [R] parents of the next pass, whose nodes are numbered from `first` [R] on."""
        tokens: list[list[int]] = [[] for _ in first]
        parents: list[list[int]] = [[] for _ in first]
        for text in self.growing:
            node = first[text.row] + len(tokens[text.row])
            tokens[text.row] += [text.newest, *text.proposed]
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
        """Write what a pass over nodes from `first` [R] on says, by their logits [R, n, V].

        All tokens are chosen: those after a wrong proposal are overwritten in a later pass.

        Returns:
            The texts that grew, each with the place 0 ... n - 1 of the last node fed for it that is right.
        """
        growing, fed = self.growing, [0] * len(first)
        nodes: list[tuple[int, int, int, int]] = []
        places: list[range] = []
        for text in growing:
            begin = fed[text.row]
            fed[text.row] += 1 + len(text.proposed)
            places.append(range(begin, fed[text.row]))
            number, length = self._number[id(text)], len(text.written)
            nodes += [(text.row, place, number, length + i) for i, place in enumerate(places[-1])]
        rows, columns, numbers, offsets = np.array(nodes).T
        at = torch.from_numpy(rows).to(logits.device), torch.from_numpy(columns).to(logits.device)
        chosen = iter(self._sampler.choose_at(logits[at], numbers, offsets).tolist())
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
        """Handle of each text's distributions; NO_HANDLE where nothing was drawn."""
        return self._sampler.seal()
