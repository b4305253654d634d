"""Streaming drafts for tests: streams that nobody trained, and streams that often know what comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pytest
import torch
from live_support import VOCABULARY, InlineWorld
from mirror_support import Models, lens_world
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.engine.streams import ModelStreams, StreamBranching, StreamHeads
from calibrate.live.engine.trees import Branching
from calibrate.live.handlers import mirror as handlers
from policies.mirror import EarlyVerify, Rollout, StreamDraft, StreamRollout
from policies.rows import Rows
from policies.tokentree import ROOT

Text: TypeAlias = tuple[int, ...]


def untrained(model: PreTrainedModel, streams: int = 3) -> ModelStreams:
    torch.manual_seed(1)
    return ModelStreams(model, StreamHeads(model, streams).requires_grad_(False).eval())


def stream_world(models: Models) -> InlineWorld:
    world = lens_world(models)
    world.draft.executor.kept[handlers.STREAMS] = untrained(models[1])
    return world


def numbered(fed: Sequence[Sequence[int]], new: Sequence[Sequence[int]]) -> list[range]:
    """[R] numbers of further nodes."""
    return [range(len(old), len(old) + len(row)) for old, row in zip(fed, new, strict=True)]


class Knowing(StreamBranching):
    """Streams that know what the draft alone wrote, and say something else now and then.

    What they say depends on nothing but the text before it, as with real ones.
    """

    known: Mapping[Text, Text]

    def feed(self, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> Tensor:
        self._newest = numbered(self.tokens, tokens)
        return super().feed(tokens, parents)

    def propose(self, streams: int, asked: Sequence[int]) -> Tensor:
        logits = super().propose(streams, asked)
        for row, slot in enumerate(self.slots):
            for place, node in enumerate(self._newest[row]):
                text = (*self.runner.held(slot), *self._path(row, node))
                said = self.known.get(text, ())[1 : 1 + streams]
                for stream, token in enumerate(said):
                    lie = stream == sum(text) % 4
                    logits[row, place, stream, (token + lie) % VOCABULARY] = 1e9
        return logits

    def _path(self, row: int, node: int) -> Text:
        if node == ROOT:
            return ()
        return (*self._path(row, self.parents[row][node]), self.tokens[row][node])


def knowing_world(models: Models, known: Mapping[Text, Text], monkeypatch: pytest.MonkeyPatch) -> InlineWorld:
    """A world whose streams are `Knowing`."""

    def nodes_of(executor: Any, rows: Any) -> Knowing:
        nodes = Knowing(executor.runner, [row.slot for row in rows], handlers.streams_of(executor))
        nodes.known = known
        return nodes

    monkeypatch.setattr(handlers, "nodes_of", nodes_of)
    return stream_world(models)


def knowledge(world: InlineWorld, rows: Rows, prompts: Sequence[Text]) -> dict[Text, Text]:
    """After every text that the draft continued in a run, what it wrote there."""
    known: dict[Text, Text] = {}

    def learn(text: Text, written: Text) -> None:
        for i in range(len(written)):
            found = known.get((*text, *written[:i]), ())
            known[*text, *written[:i]] = max(found, written[i:], key=len)

    for operation, answer in (*world.target.served, *world.draft.served):
        if not isinstance(operation, EarlyVerify | Rollout):
            continue
        view = operation.view
        for slot, request, position, ask in zip(
            view.slots,
            view.requests,
            view.positions,
            operation.inputs,
            strict=True,
        ):
            text = (*prompts[request], *rows.texts[request][:position])
            if isinstance(operation, EarlyVerify):
                learn(text, ask.tokens)
            else:
                for accepted, branch, _ in answer[slot].branches:
                    learn((*text, *ask.window.tokens[:accepted], branch[0]), branch[1:])
    return known


def windows(world: InlineWorld) -> list[list[tuple[int, ...]]]:
    """The windows of every verification, in order."""
    return [
        [ask.tokens for ask in operation.inputs]
        for operation, _ in world.target.served
        if isinstance(operation, EarlyVerify)
    ]


def branches(world: InlineWorld) -> list[list[tuple[Any, ...]]]:
    """(accepted, tokens) of the branches of every rollout, in order."""
    return [
        [(branch[0], branch[1]) for slot in operation.view.slots for branch in answer[slot].branches]
        for operation, answer in world.draft.served
        if operation.__class__.__name__.endswith("Rollout")
    ]


def emissions(world: InlineWorld) -> Iterator[tuple[int, ...]]:
    """Tokens per pass of every window that was written."""
    for operation, answer in world.draft.served:
        for slot in operation.view.slots:
            if isinstance(operation, StreamDraft):
                yield answer[slot].emitted
            elif isinstance(operation, StreamRollout):
                yield from answer[slot].emitted


class TableNodes(Branching):
    """Nodes of a `TableRunner`, whose streams walk its table by its first choices."""

    def feed(self, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> Tensor:
        self._newest = numbered(self.tokens, tokens)
        return super().feed(tokens, parents)

    def propose(self, streams: int, asked: Sequence[int]) -> Tensor:
        table: Any = self.runner.table  # type: ignore[attr-defined]
        logits = torch.zeros(len(self.slots), max(map(len, self._newest)), streams, table.shape[-1])
        for row, slot in enumerate(self.slots):
            held = self.runner.held(slot)
            for place, node in enumerate(self._newest[row]):
                parent = self.parents[row][node]
                before = self.tokens[row][parent] if parent != ROOT else held[-1] if held else 0
                pair = before, self.tokens[row][node]
                for stream in range(streams):
                    pair = pair[1], int(table[pair].argmax())
                    logits[row, place, stream] = table[pair]
        self.runner.fed += sum(asked)
        self._fed = self.runner.fed
        return logits
