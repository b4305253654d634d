"""Planted bugs: each is caught by a check that the correct code passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from live_support import (
    InlineDevice,
    InlineWorld,
    check_cached_sets,
    check_drafts,
    inline_world,
    new_rows,
    serve,
)
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live import executor as executor_module
from calibrate.live.codec import LiveCache
from calibrate.live.errors import AuditError
from calibrate.live.executor import Executor
from calibrate.live.messages import PrefillRow, Reply, Verified, VerifyRow
from calibrate.live.runner import ModelRunner
from policies.operations import Draft, Prespeculate
from policies.registry import configure, start

Prompts = list[tuple[int, ...]]
WIDE = configure("saguaro", lookahead=3, fanout=(6,))


class RecomputingRunner(ModelRunner):
    """Bug: feeds the whole prefix again with every chain."""

    def forward(self, slot: int, tokens: Sequence[int], *, last_only: bool = False) -> Tensor:
        text = [*self.held(slot), *tokens]
        self.reset(slot)
        return super().forward(slot, text, last_only=last_only)[-len(tokens) :]


class SiblingRunner(ModelRunner):
    """Bug: branches see each other."""

    def _tree_mask(self, forks: Tensor, trunk: int, depth: int) -> Tensor:
        mask = super()._tree_mask(forks, trunk, depth)
        mask[..., trunk:] = 0
        return mask


class FullTrunkRunner(ModelRunner):
    """Bug: branches see the trunk past their fork."""

    def _tree_mask(self, forks: Tensor, trunk: int, depth: int) -> Tensor:
        mask = super()._tree_mask(forks, trunk, depth)
        mask[..., :trunk] = 0
        return mask


class StaleDevice(InlineDevice):
    """Bug: looks outcomes up in the map of the round before."""

    previous: LiveCache | None = None

    def alter_answer(self, operation: Any, answer: Any) -> Any:
        if not isinstance(operation, Prespeculate):
            return answer
        stale, self.previous = self.previous, answer
        return stale or answer


class DoubleBonusDevice(InlineDevice):
    """Bug: emits the bonus token twice."""

    def alter_reply(self, operation: Any, reply: Reply) -> Reply:
        if isinstance(reply, Verified) and not reply.ended:
            return replace(reply, emitted=(*reply.emitted, reply.bonus))
        return reply


class ForgetfulDevice(InlineDevice):
    """Bug: the policy forgets that the draft has not seen the last drafted token."""

    def submit(self, operation: Any) -> Any:
        if isinstance(operation, Draft):
            operation = replace(operation, unseen=operation.unseen * 0 + 1)
        return super().submit(operation)


def test_recomputing_the_prefix_is_caught(target_model: PreTrainedModel) -> None:
    prompt, drafted = (3, 1, 4, 1, 5), (9, 2)
    replies = []
    for runner in (ModelRunner(target_model), RecomputingRunner(target_model)):
        executor = Executor(runner)
        executor.execute(PrefillRow(0, prompt))
        try:
            replies.append(executor.execute(VerifyRow(0, len(prompt), prompt[-2:], drafted, 10)))
        except AuditError as error:
            replies.append(str(error))
    assert isinstance(replies[0], Verified)
    assert replies[1] == "Verify fed 7 tokens to the model instead of 3"


def branch_logits(runner: ModelRunner, trunk: Sequence[int], forks: Sequence[int], depth: int) -> Tensor:
    """[N, depth, V] logits of greedy branches that start with token ids 10, 11, ..."""
    runner.reset(0)
    runner.forward(0, trunk)
    tree = runner.open_tree(0, forks, depth)
    tokens = torch.arange(10, 10 + len(forks))
    steps = []
    for _ in range(depth):
        steps.append(runner.tree_forward(tree, tokens))
        tokens = steps[-1].argmax(-1)
    runner.close_tree(tree)
    assert runner.held(0) == list(trunk)
    return torch.stack(steps, dim=1)


def chain_logits(runner: ModelRunner, trunk: Sequence[int], forks: Sequence[int], depth: int) -> Tensor:
    """The same, each branch on its own."""
    branches = []
    for i, fork in enumerate(forks):
        runner.reset(0)
        runner.forward(0, trunk[: fork + 1])
        token, steps = 10 + i, []
        for _ in range(depth):
            steps.append(runner.forward(0, [token])[0])
            token = int(steps[-1].argmax())
        branches.append(torch.stack(steps))
    return torch.stack(branches)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("bug", [None, SiblingRunner, FullTrunkRunner])
def test_branches_equal_chains_unless_the_mask_is_wrong(
    pair: tuple[str, str], attention: str, bug: type[ModelRunner] | None
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair[1], dtype=torch.float64, attn_implementation=attention)
    trunk, forks = (5, 6, 7, 8, 9, 10), (2, 2, 3, 5, 5)
    # Eager attention computes its softmax in single precision, whatever the model.
    expected = chain_logits(ModelRunner(model), trunk, forks, 4)
    found = branch_logits((bug or ModelRunner)(model), trunk, forks, 4)
    assert torch.allclose(found, expected, atol=1e-4) == (bug is None)


@pytest.mark.parametrize("bug", [SiblingRunner, FullTrunkRunner])
def test_a_wrong_mask_is_lossless_but_drafts_something_else(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: Prompts,
    plain_texts: list[list[int]],
    bug: type[ModelRunner],
) -> None:
    world = InlineWorld(Executor(ModelRunner(target_model)), Executor(bug(draft_model)))
    rows = serve(world, WIDE, prompts[:4])
    assert [rows.texts[i] for i in range(4)] == plain_texts[:4]
    with pytest.raises(AssertionError):
        check_drafts(world, rows, prompts, draft_model)


def test_a_stale_cache_is_lossless_but_drafts_something_else(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: Prompts,
    plain_texts: list[list[int]],
) -> None:
    world = inline_world(target_model, draft_model, draft_type=StaleDevice)
    rows = serve(world, WIDE, prompts)
    assert [rows.texts[i] for i in range(len(prompts))] == plain_texts
    with pytest.raises(AssertionError):
        check_drafts(world, rows, prompts, draft_model)


def test_caching_the_rejected_token_is_caught(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: Prompts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_rejected(ranked: Any, drafted: Any, fanout: Any) -> list[tuple[int, int]]:
        return [(k, token) for k, row in enumerate(ranked) for token in row[: fanout[k]]]

    monkeypatch.setattr(executor_module, "prepared_outcomes", with_rejected)
    world = inline_world(target_model, draft_model)
    serve(world, WIDE, prompts[:2])
    with pytest.raises(AssertionError):
        check_cached_sets(world)


def test_a_bonus_token_counted_twice_is_caught(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: Prompts,
    plain_texts: list[list[int]],
) -> None:
    world = inline_world(target_model, draft_model, target_type=DoubleBonusDevice)
    rows = new_rows(prompts[1:2])
    with pytest.raises(AuditError):  # the next round's context does not fit the cache
        world.run(start(world, rows, configure("sd", lookahead=2)))
    emitted = rows.texts[0]
    assert emitted
    assert emitted != plain_texts[1][: len(emitted)]


def test_a_wrong_count_of_unseen_tokens_is_caught(
    target_model: PreTrainedModel, draft_model: PreTrainedModel, prompts: Prompts
) -> None:
    world = inline_world(target_model, draft_model, draft_type=ForgetfulDevice)
    with pytest.raises(AuditError, match="was told of 1 unseen tokens but has to feed 2"):
        serve(world, configure("sd", lookahead=2), prompts)
