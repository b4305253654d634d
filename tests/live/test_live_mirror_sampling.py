"""Sampled Mirror-SD: both rules of acceptance have the target's law, and planted bugs have not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from live_support import InlineWorld
from mirror_support import believes_the_exit, uses_any_rollout
from sampling_support import BATCH, LENGTH, PROMPTS, TableRunner, fit, tables
from sampling_support import VOCABULARY as TOKENS
from torch import Tensor

from calibrate.live.errors import AuditError
from calibrate.live.handlers import mirror as handlers
from policies.registry import Settings, configure, start
from policies.rows import Rows
from policies.values import Request


class TableExits:
    """The hidden state of a table is the proxy's logits already."""

    layers = 2

    def layer(self, name: str) -> int:
        return 1

    def logits(self, name: str, hidden: Tensor) -> Tensor:
        return hidden


class SpeakingTable(TableRunner):
    """A table whose early exit is the table with some noise."""

    @contextmanager
    def showing(self, slots: Sequence[int], layer: int, see: Callable[[Tensor], None]) -> Iterator[None]:
        forward = self.forward

        def shown(slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
            logits = forward(slots, tokens)
            see(logits + torch.tensor([0.5, -0.5, 0.3, 0.0, -0.2], dtype=logits.dtype))
            return logits

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "forward", shown)
            yield


def table_world() -> InlineWorld:
    target, draft = tables()
    runners: list[Any] = [SpeakingTable(target), TableRunner(draft)]
    world = InlineWorld(*runners, vocabulary=TOKENS, ring_bytes=1 << 24)
    world.target.executor.kept[handlers.EXITS] = TableExits()
    return world


def sampled(settings: Settings, requests: int = 4_000) -> Rows:
    world = table_world()
    queue = [Request(i, len(p), LENGTH, p) for i, p in zip(range(requests), itertools.cycle(PROMPTS))]
    rows = Rows(queue, BATCH, keep_tokens=True)
    world.run(start(world, rows, settings))
    return rows


SAMPLED = {
    (rule, reading): configure(
        "mirror", lookahead=2, kappa=2, candidates=reading, acceptance_rule=rule, temperature=0.9, seed=2
    )
    for rule in ("speculative", "matching")
    for reading in ("each", "first")
}
SPECULATIVE, MATCHING = SAMPLED["speculative", "each"], SAMPLED["matching", "each"]
HOPELESS = 1e-12


@pytest.mark.parametrize("settings", SAMPLED.values(), ids=lambda settings: settings.label)
def test_sampled_texts_have_the_targets_law(settings: Settings) -> None:
    """All four tokens jointly, over several rounds, hits and misses among them."""
    rows = sampled(settings)
    found = fit(rows, settings.sampling)
    assert found.p_value > 1e-3, str(found)
    assert {0, 1} <= set(rows.log.table()["hit"].tolist())


def test_matching_accepts_sum_pq_and_speculative_sampling_more() -> None:
    """First tokens after the common ending: sum p q against sum min(p, q), of the tables themselves."""
    p, q = (torch.softmax(table[1, 2] / 0.9, -1) for table in tables())
    for settings, expected in ((MATCHING, (p * q).sum()), (SPECULATIVE, torch.minimum(p, q).sum())):
        log = sampled(settings, requests=2_000).log.table()
        first = np.unique(log["request"], return_index=True)[1]
        share = float((log["accepted"][first] > 0).mean())
        error = 4.0 * (float(expected) * (1.0 - float(expected)) / len(first)) ** 0.5
        assert share == pytest.approx(float(expected), abs=error)


def by_argmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matches the drafted token with the target's first choice, at a temperature above 0."""
    monkeypatch.setattr(handlers, "own_draws", lambda rows, p, seed: p.argmax(dim=-1).tolist())


@pytest.mark.parametrize("plant", [by_argmax, believes_the_exit])
def test_a_planted_bug_changes_the_law(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = fit(sampled(MATCHING), MATCHING.sampling)
    assert found.p_value < HOPELESS, str(found)


def test_a_stale_rollout_does_not_even_come_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law knows whose it is."""
    uses_any_rollout(monkeypatch)
    with pytest.raises(AuditError, match="came with the distribution of"):
        sampled(SPECULATIVE, requests=500)
