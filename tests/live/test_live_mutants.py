"""Planted bugs: each is caught by a check that the correct code passes."""

from __future__ import annotations

from collections.abc import Sequence
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
    prefilled,
    serve,
    texts_of,
    view_of,
)
from msgspec.structs import replace
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine.executor import Executor
from calibrate.live.engine.rows import Row
from calibrate.live.errors import AuditError
from calibrate.live.handlers import chains
from policies.operation import Draft, Prespeculate, Verify
from policies.registry import configure, start
from policies.values import NO_HANDLE, OutcomeCache, Speculation

Prompts = list[tuple[int, ...]]
WIDE = configure("saguaro", lookahead=3, fanout=(6,))


class RecomputingRunner(ModelRunner):
    """Bug: feeds the whole prefix again with every chain."""

    def forward(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], *, last_only: bool = False
    ) -> Tensor:
        texts = [[*self.held(slot), *chain] for slot, chain in zip(slots, tokens, strict=True)]
        for slot in slots:
            self.reset(slot)
        logits = super().forward(slots, texts)
        ends = [logits[i, : len(text)] for i, text in enumerate(texts)]
        return torch.stack([end[-len(tokens[0]) :] for end in ends])


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

    previous: OutcomeCache | None = None

    def alter_answer(self, operation: Any, answer: Any) -> Any:
        if not isinstance(operation, Prespeculate):
            return answer
        stale, self.previous = self.previous, answer
        return stale or answer


class DoubleBonusDevice(InlineDevice):
    """Bug: emits the bonus token of the last row twice."""

    def alter_reply(self, operation: Any, reply: Any) -> Any:
        if not isinstance(operation, Verify) or reply[-1].ended:
            return reply
        return (*reply[:-1], reply[-1]._replace(emitted=(*reply[-1].emitted, reply[-1].bonus)))


class ShiftedDevice(InlineDevice):
    """Bug: answers for one row with the verdict of the next."""

    def alter_reply(self, operation: Any, reply: Any) -> Any:
        return (*reply[1:], reply[0]) if isinstance(operation, Verify) else reply


class GreedyPartDevice(InlineDevice):
    """Bug: every draft device prepares the whole cache."""

    def submit(self, operation: Any) -> Any:
        if isinstance(operation, Prespeculate):
            operation = replace(operation, part=(0, 1))
        return super().submit(operation)


class ForgetfulDevice(InlineDevice):
    """Bug: the policy forgets that the draft has not seen the last drafted token."""

    def submit(self, operation: Any) -> Any:
        if isinstance(operation, Draft):
            operation = replace(operation, unseen=(1,) * operation.width)
        return super().submit(operation)


def test_recomputing_the_prefix_is_caught(target_model: PreTrainedModel) -> None:
    prompt, drafted = (3, 1, 4, 1, 5), (9, 2)
    replies = []
    for runner in (ModelRunner(target_model), RecomputingRunner(target_model)):
        executor = Executor(runner)
        prefilled(executor, {0: prompt})
        view = view_of(Row(0, 0, 0, len(prompt), prompt[-2:], 10))
        try:
            replies.append(executor.execute(Verify(view, Speculation.drafted(1, {0: (drafted, NO_HANDLE)}))))
        except AuditError as error:
            replies.append(str(error))
    assert isinstance(replies[0], tuple)
    assert replies[1] == "Verify fed 7 tokens to the model instead of 3"


def branch_logits(runner: ModelRunner, trunk: Sequence[int], forks: Sequence[int], depth: int) -> Tensor:
    """[N, depth, V] logits of greedy branches that start with token ids 10, 11, ..."""
    runner.reset(0)
    runner.forward([0], [trunk])
    tree = runner.open_tree([0], [forks], depth)
    tokens = torch.arange(10, 10 + len(forks))[None]
    steps = []
    for _ in range(depth):
        steps.append(runner.tree_forward(tree, tokens))
        tokens = steps[-1].argmax(-1)
    runner.close_tree(tree)
    assert runner.held(0) == list(trunk)
    return torch.stack(steps, dim=2)[0]


def chain_logits(runner: ModelRunner, trunk: Sequence[int], forks: Sequence[int], depth: int) -> Tensor:
    """The same, each branch on its own."""
    branches = []
    for i, fork in enumerate(forks):
        runner.reset(0)
        runner.forward([0], [trunk[: fork + 1]])
        token, steps = 10 + i, []
        for _ in range(depth):
            steps.append(runner.forward([0], [[token]])[0, 0])
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
    world = InlineWorld(ModelRunner(target_model), bug(draft_model))
    rows = serve(world, WIDE, prompts[:4], batch=2)
    assert texts_of(rows) == plain_texts[:4]
    with pytest.raises(AssertionError):
        check_drafts(world, rows, prompts, draft_model)


def test_a_stale_cache_is_lossless_but_drafts_something_else(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: Prompts,
    plain_texts: list[list[int]],
) -> None:
    world = inline_world(target_model, draft_model, draft_type=StaleDevice)
    rows = serve(world, WIDE, prompts, batch=2)
    assert texts_of(rows) == plain_texts
    with pytest.raises(AssertionError):
        check_drafts(world, rows, prompts, draft_model)


def test_caching_the_rejected_token_is_caught(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: Prompts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_rejected(ranked: Any, drafted: Any, fanout: Any, **_: Any) -> list[tuple[int, int]]:
        return [(k, token) for k, row in enumerate(ranked) for token in row[: fanout[k]]]

    monkeypatch.setattr(chains, "prepared_outcomes", with_rejected)
    world = inline_world(target_model, draft_model)
    serve(world, WIDE, prompts[:2], batch=2)
    with pytest.raises(AssertionError):
        check_cached_sets(world)


def test_an_outcome_prepared_by_two_drafts_is_caught(
    target_model: PreTrainedModel, draft_model: PreTrainedModel, prompts: Prompts
) -> None:
    settings = configure("saguaro", lookahead=3, fanout=(3,), draft_devices=2)
    world = inline_world(target_model, draft_model, drafts=2, draft_type=GreedyPartDevice)
    serve(world, settings, prompts[:2], batch=2)
    with pytest.raises(AssertionError, match="prepared twice"):
        check_cached_sets(world)


def test_verdicts_of_other_rows_are_caught(
    target_model: PreTrainedModel, draft_model: PreTrainedModel, prompts: Prompts
) -> None:
    world = inline_world(target_model, draft_model, target_type=ShiftedDevice)
    rows = new_rows(prompts[1:4], batch=3)
    with pytest.raises(AuditError):  # the rows' contexts do not fit their caches
        world.run(start(world, rows, configure("sd", lookahead=3)))


def test_a_bonus_token_counted_twice_is_caught(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: Prompts,
    plain_texts: list[list[int]],
) -> None:
    world = inline_world(target_model, draft_model, target_type=DoubleBonusDevice)
    rows = new_rows(prompts[1:3], batch=2)
    with pytest.raises(AuditError):  # the next round's context does not fit the cache
        world.run(start(world, rows, configure("sd", lookahead=2)))
    emitted = rows.texts[1]
    assert emitted
    assert emitted != plain_texts[2][: len(emitted)]


def test_a_wrong_count_of_unseen_tokens_is_caught(
    target_model: PreTrainedModel, draft_model: PreTrainedModel, prompts: Prompts
) -> None:
    world = inline_world(target_model, draft_model, draft_type=ForgetfulDevice)
    with pytest.raises(AuditError, match="was told of 1 unseen tokens but has to feed 2"):
        serve(world, configure("sd", lookahead=2), prompts)
