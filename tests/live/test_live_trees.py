"""Trees on the live engine: what is emitted and what is kept is what plain decoding emits and keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from live_support import LIMIT, InlineWorld, Reference, inline_world, prefilled, serve, texts_of, view_of
from plain_decoding import plain_decode
from tiny_models import VOCABULARY
from transformers import PreTrainedModel

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine.executor import Executor
from calibrate.live.engine.rows import Row
from calibrate.live.errors import AuditError
from calibrate.live.placement import Mode
from policies.registry import Settings, configure
from policies.rows import Rows
from policies.tokentree import DraftTree, TokenTree, TreeDrafted, TreePlan, TreeVerdict, VerifyTree

Prompts = list[tuple[int, ...]]


def verify(
    executor: Executor, texts: Sequence[Sequence[int]], trees: Sequence[TokenTree], room: int = 99
) -> list[TreeVerdict]:
    rows = [Row(slot, slot, 0, len(text), tuple(text[-2:]), room) for slot, text in enumerate(texts)]
    return list(executor.execute(VerifyTree(view_of(*rows), len(rows), tuple(trees))))


def bushy(right: Sequence[int], depth: int, luck: np.random.Generator) -> TokenTree:
    """A tree that holds the first `depth` right tokens, among wrong ones at every level."""
    lengths = (1, 1, 2, 2, 3, 3)
    common = [right[: int(luck.integers(min(depth, 2) + 1))] for _ in lengths]
    paths = [
        (*begin, *luck.integers(VOCABULARY, size=length).tolist())
        for begin, length in zip(common, lengths, strict=True)
    ]
    paths.insert(int(luck.integers(len(paths))), tuple(right[:depth]))
    return TokenTree.of_paths([p for p in paths if p])


@pytest.mark.parametrize(("batch", "mode"), [(1, "eager"), (3, "eager"), (3, "compiled")])
def test_trees_emit_and_keep_what_plain_decoding_does(
    batch: int, mode: Mode, target_model: PreTrainedModel, prompts: Prompts, traced: None
) -> None:
    """Rounds of trees that hold 0 to 5 right tokens; the keys and values kept are those of the text."""
    luck = np.random.default_rng(3)
    runner = ModelRunner(target_model, slots=batch, mode=mode)
    executor = Executor(runner)
    texts = [list(prompt) for prompt in prompts[::3][:batch]]
    right = [plain_decode(target_model, text, 48) for text in texts]
    starts = [len(text) for text in texts]
    prefilled(executor, dict(enumerate(map(tuple, texts))))
    seen = set()
    while min(len(t) - s for t, s in zip(texts, starts, strict=True)) < 36:
        depths = luck.integers(6, size=batch).tolist()
        following = [r[len(t) - s :] for r, t, s in zip(right, texts, starts, strict=True)]
        trees = [
            bushy(f, d, luck) if luck.random() < 0.8 else TokenTree()
            for f, d in zip(following, depths, strict=True)
        ]
        fed = runner.fed
        for slot, found in enumerate(verify(executor, texts, trees)):
            assert list(found.verdict.emitted) == following[slot][: len(found.verdict.emitted)]
            assert found.verdict.accepted == len(found.path) >= min(depths[slot], len(trees[slot].tokens))
            assert found.work == (("verify", 1 + len(trees[slot].tokens)),)
            texts[slot].extend(found.verdict.emitted)
            assert runner.held(slot) == texts[slot][:-1]
            seen.add(found.verdict.accepted)
        assert runner.fed - fed == sum(1 + len(tree.tokens) for tree in trees)
        texts = [text[: start + 40] for text, start in zip(texts, starts, strict=True)]
    assert len(seen) >= 4
    check_kept(runner, target_model, texts)


def check_kept(runner: ModelRunner, model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> None:
    """Keys and values of every slot are those of a prefill of its text."""
    other = ModelRunner(model, slots=len(texts))
    for slot, text in enumerate(texts):
        length = min(len(text) - 1, len(runner.held(slot)))
        other.reset(slot)
        other.forward([slot], [text[:length]])
        row = runner._layout.row(slot)
        for mine, fresh in zip(runner._cache.layers, other._cache.layers, strict=True):
            for one, two in ((mine.keys, fresh.keys), (mine.values, fresh.values)):
                torch.testing.assert_close(one[row, :, :length], two[slot, :, :length], rtol=2e-4, atol=2e-4)


STATIC = [
    configure("tree", tree_widths=widths) for widths in ((1,), (1, 1, 1), (3,), (4, 2, 1), (2, 2, 2, 2))
]
DYNAMIC = [
    configure("tree", tree_plan="dynamic", tree_depth=depth, tree_topk=topk, tree_budget=budget)
    for depth, topk, budget in ((1, 3, 2), (2, 2, 6), (4, 3, 9), (5, 1, 5))
]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("settings", [*STATIC, *DYNAMIC], ids=lambda settings: settings.label)
def test_tree_speculation_emits_what_plain_decoding_emits(
    settings: Settings, batch: int, reference: Reference
) -> None:
    """And every tree is what the draft makes of the committed text, whatever it drafted before."""
    prompts, texts = reference.some(2 * batch, 16)
    world = inline_world(reference.target, reference.draft)
    rows = serve(world, settings, prompts, limit=16, batch=batch)
    assert texts_of(rows) == texts
    assert rows.log.table()["accepted"].max() > 0
    check_trees(world, rows, prompts, reference.draft)


def test_compiled_models_emit_the_same(reference: Reference, traced: None) -> None:
    """One row at a time, as the test above compiles for several."""
    prompts, texts = reference.some(2, 24)
    runners = (ModelRunner(model, mode="compiled") for model in (reference.target, reference.draft))
    world = InlineWorld(*runners)
    rows = serve(world, DYNAMIC[2], prompts, limit=24)
    assert texts_of(rows) == texts
    check_trees(world, rows, prompts, reference.draft)


@pytest.mark.parametrize("settings", [STATIC[3], DYNAMIC[2]], ids=lambda settings: settings.label)
def test_requests_stop_at_the_end_token(settings: Settings, reference: Reference) -> None:
    """Also within an accepted path, whose rest is not emitted."""
    prompts, texts = reference.some(5, LIMIT)
    ends = {texts[0][20], texts[3][9]}
    world = inline_world(reference.target, reference.draft, end_token_ids=tuple(ends))
    rows = serve(world, settings, prompts, batch=3)
    stops = [min([i for i, token in enumerate(text) if token in ends], default=LIMIT) for text in texts]
    assert texts_of(rows) == [text[: stop + 1] for text, stop in zip(texts, stops, strict=True)]
    assert len(set(stops)) > 1
    verdicts = [row for _, answer in world.target.served if answer for row in answer.values()]
    assert any(len(row.path) > row.verdict.accepted for row in verdicts)


def test_a_draft_is_told_what_it_has_not_seen(draft_model: PreTrainedModel) -> None:
    """Neither more nor less, and the end of the very text that it holds."""
    executor = Executor(ModelRunner(draft_model))
    prefilled(executor, {0: (3, 1, 4, 1, 5)})

    def draft(context: int, tail: tuple[int, ...], unseen: tuple[int, ...]) -> TreeDrafted:
        view = view_of(Row(0, 0, 0, context, tail))
        (reply,) = executor.execute(DraftTree(view, 1, (unseen,), plan=TreePlan(widths=(2,))))
        assert isinstance(reply, TreeDrafted)
        return reply

    assert draft(5, (1, 5), (5,)).tree == draft(5, (1, 5), (1, 5)).tree
    assert draft(5, (1, 5), (4, 1, 5)).work == (("feed", 3),)
    for unseen in ((), (4,), (9, 5), (3, 5)):
        with pytest.raises(AuditError, match="not in"):
            draft(5, (1, 5), unseen)
    assert executor.runner.held(0) == [3, 1, 4, 1, 5]
    with pytest.raises(AuditError, match="misses more than the 1 unseen"):
        draft(7, (2, 6), (6,))


def check_trees(world: InlineWorld, rows: Rows, prompts: Prompts, draft: PreTrainedModel) -> None:
    """Every drafted tree against one made from plain forwards of the draft over whole texts."""
    compared = 0
    for operation, answer in world.draft.served:
        if not isinstance(operation, DraftTree):
            continue
        view = operation.view
        for slot, request, position in zip(view.slots, view.requests, view.positions, strict=True):
            text = (*prompts[request], *rows.texts[request][:position])
            tree = answer[slot].tree
            make = static_tree if operation.plan.kind == "static" else dynamic_tree
            assert set(tree.paths) == make(operation.plan, draft, text)
            compared += 1
        steps = [
            sum(tokens for _, tokens in parts)
            for parts in zip(*(answer[s].work for s in view.slots), strict=True)
        ]
        assert steps == [sum(map(len, operation.inputs)), *(n * len(view.slots) for n in operation.plan.fed)]
    assert compared > 5


def confidences(draft: PreTrainedModel, text: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = draft(input_ids=torch.tensor([list(text)])).logits[0, -1]
    return logits.log_softmax(dim=-1)


def static_tree(plan: TreePlan, draft: PreTrainedModel, text: Sequence[int]) -> set[tuple[int, ...]]:
    """The paths of the tree by its definition."""
    found: set[tuple[int, ...]] = set()
    level: list[tuple[int, ...]] = [()]
    for width in plan.widths:
        level = [
            (*path, token)
            for path in level
            for token in confidences(draft, (*text, *path)).topk(width).indices.tolist()
        ]
        found |= set(level)
    return found


def dynamic_tree(plan: TreePlan, draft: PreTrainedModel, text: Sequence[int]) -> set[tuple[int, ...]]:
    """EAGLE-2's tree by its definition."""
    scores: dict[tuple[int, ...], float] = {(): 0.0}
    level: list[tuple[int, ...]] = [()]
    for _ in range(plan.depth):
        level = sorted(level, key=lambda path: -scores[path])[: plan.topk]
        children = []
        for path in level:
            best = confidences(draft, (*text, *path)).topk(plan.topk)
            for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                scores[*path, token] = scores[path] + value
                children.append((*path, token))
        level = children
    del scores[()]
    return set(sorted(scores, key=lambda path: -scores[path])[: plan.budget])
