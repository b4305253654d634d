"""What a draft of another backend has to do: the torch model's forwards, and fair samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from live_support import InlineWorld, check_cached_sets, check_drafts, serve, texts_of, worker_specs
from sampling_support import BATCH, LENGTH, PROMPTS, REQUESTS, VOCABULARY, Fit, TableRunner, fit, tables
from tiny_models import tiny_model, with_noise
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine.runner import Nodes
from calibrate.live.shared_probs import Block
from calibrate.live.transport.world import LiveWorld
from policies.registry import Settings, configure, start
from policies.rows import Rows
from policies.values import Request

TEXTS = ((3, 1, 4, 1, 5, 9, 2), (6, 5), (3, 5, 8, 9, 7), (9, 3, 2, 3))
CHAINS = ((7,), (1, 2, 3, 4), (5, 6), (8, 9, 10))
FORKS = ((2, 2, 6, -1), (0, 1), (), (3,))
CHAIN_SLOTS = ([0, 1, 2, 3], [1, 2], [2, 0], [3, 1, 0], [2])
TREE_SLOTS = ([0, 1, 2, 3], [0], [3, 1])
SAMPLED = configure("sd", lookahead=3, temperature=0.9, seed=1)
GREEDY = [
    configure("sd", lookahead=3),
    configure("pearl", lookahead=3),
    configure("saguaro", lookahead=3, fanout=(2,)),
]

Runners = tuple[ModelRunner, ModelRunner]
"""A backend's and torch's, which hold the same texts."""


def filled(runner: ModelRunner) -> ModelRunner:
    """Slot i holds text i."""
    for slot, text in enumerate(TEXTS):
        runner.reset(slot)
        runner.forward([slot], [text])
    return runner


def assert_same(mine: Tensor, theirs: Tensor, counts: Sequence[int]) -> None:
    assert mine.shape == theirs.shape
    for row, count in enumerate(counts):
        torch.testing.assert_close(mine[row, :count], theirs[row, :count], rtol=2e-4, atol=2e-4)


def check_chains(pair: Runners, slots: Sequence[int], *, last: bool = False) -> None:
    chains = [CHAINS[slot] for slot in slots]
    mine, theirs = (runner.forward(slots, chains, last_only=last) for runner in pair)
    assert_same(mine, theirs, [1] * len(slots) if last else [len(chain) for chain in chains])
    assert [pair[0].held(slot) for slot in slots] == [pair[1].held(slot) for slot in slots]
    assert pair[0].fed == pair[1].fed


def check_rollbacks(pair: Runners, slots: Sequence[int]) -> None:
    """Ragged chains of any rows; keys and values that it wrote are read again by the next ones."""
    pair[0].fed = pair[1].fed = 0
    check_chains(pair, slots)
    check_chains(pair, [0, 1, 2, 3], last=True)
    for runner in pair:
        for slot, keep in enumerate((2, 0, 5, 4)):
            runner.rollback(slot, keep)
    check_chains(pair, slots)
    for runner in pair:
        runner.reset(1)
    check_chains(pair, [1, 3])


def check_trees(pair: Runners, slots: Sequence[int]) -> None:
    """Branches side by side, and that they leave no trace."""
    forks = [FORKS[slot] for slot in slots]
    width = max(map(len, forks))
    steps = torch.randint(64, (3, len(slots), width), generator=torch.Generator().manual_seed(5))
    found = []
    for runner in pair:
        tree = runner.open_tree(slots, forks, 3)
        found.append([runner.tree_forward(tree, tokens) for tokens in steps])
        runner.close_tree(tree)
    for mine, theirs in zip(*found, strict=True):
        assert_same(mine, theirs, [len(row) for row in forks])
    check_chains(pair, slots)


def check_nodes(pair: Runners) -> None:
    """Tokens with a mask of the caller's, behind what slots hold, of which some are then adopted."""
    slots, starts, tokens = [0, 3], [7, 4], [[8, 9, 10], [8, 9, 10]]
    positions = np.array([[7, 8, 8], [4, 5, 5]])  # a root and two children
    hidden = np.ones((2, 3, 10), dtype=bool)
    for row, trunk in enumerate(starts):
        hidden[row, :, :trunk] = False
        for node, seen in enumerate(([0], [0, 1], [0, 2])):
            hidden[row, node, [trunk + each for each in seen]] = False
    mine, theirs = (runner.forward_at(slots, Nodes(starts, tokens, positions, hidden)) for runner in pair)
    assert_same(mine, theirs, [3, 3])
    for runner in pair:
        runner.adopt(slots, [[7, 9], [4, 6]], [[8, 10], [8, 10]])
    check_chains(pair, slots)


@contextmanager
def backend_world(pair: tuple[str, str], backend: str) -> Iterator[LiveWorld]:
    """A torch target and a draft of a backend, in processes; their files are in the session's cache."""
    target, drafts = worker_specs(pair)
    with LiveWorld(target, replace(drafts[0], backend=backend, slots=3)) as world:
        yield world


def check_greedy(
    world: LiveWorld, settings: Settings, prompts: Sequence[tuple[int, ...]], texts: Sequence[list[int]]
) -> None:
    """Texts are plain decoding's, with accepted and rejected drafts."""
    for batch in (1, 3):
        rows = serve(world, settings, prompts[2:7], batch=batch)
        assert texts_of(rows) == texts[2:7]
        assert {0, 1} <= set(np.minimum(rows.log.table()["accepted"], 1).tolist())


def check_drafting(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    runner: ModelRunner,
    settings: Settings,
    prompts: Sequence[tuple[int, ...]],
) -> None:
    """A runner of the draft drafts what the draft alone decodes: losslessness cannot see a wrong one."""
    inline = InlineWorld(ModelRunner(target), runner)
    rows = serve(inline, settings, prompts[2:6], limit=16, batch=2)
    assert check_drafts(inline, rows, prompts[2:6], draft) > 10
    assert (check_cached_sets(inline) > 0) == (settings.policy == "saguaro")


def table_draft() -> LlamaForCausalLM:
    """A draft of the table's five tokens."""
    return with_noise(tiny_model(4, vocabulary=VOCABULARY), 0.0)


def sampled_fit(draft: ModelRunner, **options: Any) -> tuple[Fit, Rows]:
    """Thousands of texts of a target that is a table, drafted by a runner of `table_draft`.

    Its slots have to be `BATCH`, of `LENGTH` tokens and the prompt's.
    """
    table: Any = TableRunner(tables()[0])
    world = InlineWorld(table, draft, vocabulary=VOCABULARY, ring_bytes=1 << 24)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(REQUESTS)]
    queue = [Request(i, len(prompt), LENGTH, prompt) for i, prompt in enumerate(prompts)]
    rows = Rows(queue, BATCH, keep_tokens=True)
    settings = replace(SAMPLED, **options)
    world.run(start(world, rows, settings))
    return fit(rows, settings.sampling), rows


def check_fit(draft: ModelRunner) -> None:
    """A G-test of the four tokens jointly, as in `test_live_sampling`."""
    found, rows = sampled_fit(draft)
    assert found.impossible == 0
    assert found.p_value > 1e-3, str(found)
    table = rows.log.table()
    assert (table["accepted"] > 0).sum() > 1000 and (table["accepted"] < table["length"]).sum() > 1000


def check_a_sharper_law_is_caught(draft: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check_fit` would notice a draft whose kept law is sharper than the one it draws by."""
    write = Block.write

    def sharper(self: Block, step: int, weights: Any, totals: Any, owners: Any) -> None:
        write(self, step, weights**2, (weights.astype(np.float64) ** 2).sum(axis=-1), owners)

    monkeypatch.setattr(Block, "write", sharper)
    found, _ = sampled_fit(draft)
    assert found.p_value < 1e-6, str(found)
