"""Drafting by heads on the target (`policies.heads`): no draft model, the target's own hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.heads import (
    EagleHead,
    HydraHeads,
    MedusaHeads,
    eagle_part,
    forward_weights,
    load_heads,
    target_states,
    weights,
)
from calibrate.live.engine.rows import Row, rows_of
from calibrate.live.engine.runner import Tokens
from calibrate.live.engine.trees import Branching, TreeGrower
from calibrate.live.errors import AuditError, ModelError
from policies.heads import DraftHeads, HeadFamily
from policies.operation import Work
from policies.sampling import GREEDY
from policies.tokentree import ROOT, TokenTree, TreeDrafted


class MedusaDrafter:
    """Medusa heads of a loaded model.

    Attributes:
        share: What a pass reads, in weights of the target's forward.
    """

    def __init__(self, model: Any, heads: MedusaHeads) -> None:
        self.heads, self._out = heads, model.lm_head
        own = weights(heads.blocks) + len(heads.blocks) * weights(model.lm_head)
        self.share = own / forward_weights(model)

    def logits(self, states: Sequence[Tensor]) -> Tensor:
        """[R, J, V] from the last of each row's states."""
        logits: Tensor = self._out(self.heads.states(torch.stack([own[-1] for own in states])))
        return logits


class HydraDrafter(MedusaDrafter):
    """Hydra heads of a loaded model, one pass for each level."""

    heads: HydraHeads

    def __init__(self, model: Any, heads: HydraHeads) -> None:
        self.heads, self._out, self._embed = heads, model.lm_head, model.model.embed_tokens
        own = weights(heads.blocks) / len(heads.blocks) + weights(model.lm_head)
        self.share = own / forward_weights(model)

    def level(self, states: Tensor, paths: Sequence[Tokens]) -> Tensor:
        """[R, m, V] behind paths of equal length, m in each row, from each row's last state [R, H]."""
        embedded = self._embed(torch.tensor(paths, device=states.device))
        logits: Tensor = self._out(
            self.heads.state(states[:, None].expand(-1, embedded.shape[1], -1), embedded)
        )
        return logits


class EagleDrafter:
    """An EAGLE head of a loaded model, with keys and values of its own.

    Attributes:
        head: Its weights.
        runner: The head over slots.
        share: What a pass reads, in weights of the target's forward.
    """

    def __init__(self, model: Any, head: EagleHead) -> None:
        self.head = head
        part, self._pairs = eagle_part(model, head)
        self.runner = ModelRunner(part)
        self._out = model.lm_head
        own = weights(head.fuse) + weights(head.layer) + weights(model.lm_head)
        self.share = own / forward_weights(model)

    def load(self, tokens: Tokens, states: Sequence[Tensor]) -> list[range]:
        """Lay out each row's pairs of tokens and states [n_r, H]; their ids."""
        flat = [token for row in tokens for token in row]
        self._pairs.load(torch.tensor(flat, device=self.runner.device), torch.cat(list(states)))
        ends = [sum(map(len, tokens[: i + 1])) for i in range(len(tokens))]
        return [range(end - len(row), end) for end, row in zip(ends, tokens, strict=True)]

    def logits(self, states: Tensor) -> Tensor:
        """[..., V] of estimated states [..., H]."""
        logits: Tensor = self._out(states)
        return logits


Drafter: TypeAlias = MedusaDrafter | HydraDrafter | EagleDrafter
DRAFTERS: dict[HeadFamily, Callable[[Any], Drafter]] = {
    "medusa": lambda model: MedusaDrafter(model, load_heads(model, MedusaHeads)),
    "hydra": lambda model: HydraDrafter(model, load_heads(model, HydraHeads)),
    "eagle2": lambda model: EagleDrafter(model, load_heads(model, EagleHead)),
}
"""Families that can be trained here, from the target's model."""


@handles(DraftHeads)
def draft_heads(executor: Executor, operation: DraftHeads) -> list[TreeDrafted]:
    """A tree per row; an empty one before a row's first forward, which leaves no state to read.

    Raises:
        ModelError: No such heads can be trained here, or there are none beside the target.
    """
    if operation.heads not in DRAFTERS:
        raise ModelError(
            f"heads of kind {operation.heads!r} run in the simulated world only; live ones are "
            f"{', '.join(DRAFTERS)}"
        )
    kept, make = target_states(executor), DRAFTERS[operation.heads]
    drafter = executor.once(operation.heads, lambda: make(executor.runner.model))
    rows = rows_of(operation.view)
    new = {row: own for row in rows if (own := kept.take(row.slot)) is not None}
    drafted = {row.slot: TreeDrafted(TokenTree(), ()) for row in rows}
    if new:
        grower = TreeGrower(operation.plan, list(new), GREEDY, None)
        name = f"head:{drafter.share:.4g}"
        if isinstance(drafter, HydraDrafter):
            works = _by_hydra(executor, drafter, name, new, grower)
        elif isinstance(drafter, MedusaDrafter):
            works = _by_medusa(executor, drafter, name, list(new.values()), grower)
        else:
            works = _by_eagle(executor, drafter, name, new, grower)
        trees = zip(new, grower.trees(), works, strict=True)
        drafted |= {row.slot: TreeDrafted(tree, work) for row, tree, work in trees}
    return [drafted[row.slot] for row in rows]


def _by_medusa(
    executor: Executor, drafter: MedusaDrafter, name: str, states: Sequence[Tensor], grower: TreeGrower
) -> list[Work]:
    """All levels from one pass: a head's choices hang under every node of the level before."""
    levels, heads = 1 + len(grower.plan.fed), len(drafter.heads.blocks)
    if levels > heads:
        raise ModelError(f"{heads} Medusa heads draft at most {heads} levels, {levels} were asked for")
    with executor.step(name, [(0,)] * len(states)):
        logits = drafter.logits(states)
        executor.runner.fed += len(states)
        level, nodes = 0, 1
        while grower.grow(logits[:, level : level + 1].expand(-1, nodes, -1)):
            level, nodes = level + 1, len(grower.pending()[0][0])
    return [((name, 1),)] * len(states)


def _by_hydra(
    executor: Executor, drafter: HydraDrafter, name: str, new: dict[Row, Tensor], grower: TreeGrower
) -> list[Work]:
    """A pass per level: each node's head reads the last committed token and the nodes on its way."""
    levels, heads = 1 + len(grower.plan.fed), len(drafter.heads.blocks)
    if levels > heads:
        raise ModelError(f"{heads} Hydra heads draft at most {heads} levels, {levels} were asked for")
    states = torch.stack([own[-1] for own in new.values()])
    # [R] the path to each node in the order in which they are fed, that to the root first.
    paths = [[[row.tail[-1]]] for row in new]
    newest, more = paths, True
    while more:
        with executor.step(name, [range(len(own)) for own in newest]):
            more = grower.grow(drafter.level(states, newest))
            executor.runner.fed += sum(map(len, newest))
        if more:
            newest = [
                [[*known[parent - ROOT], token] for token, parent in zip(*own, strict=True)]
                for known, own in zip(paths, zip(*grower.pending(), strict=True), strict=True)
            ]
            paths = [known + added for known, added in zip(paths, newest, strict=True)]
    return [((name, 1), *((name, count) for count in grower.plan.fed))] * len(new)


def _by_eagle(
    executor: Executor, drafter: EagleDrafter, name: str, new: dict[Row, Tensor], grower: TreeGrower
) -> list[Work]:
    """A pass over the pairs of what was committed since the last tree, then one per level but the last."""
    runner, slots, states = drafter.runner, [row.slot for row in new], list(new.values())
    chains = [_committed(executor, drafter, row, len(own)) for row, own in new.items()]
    with executor.step(name, chains):
        # [R, 1, H] then of each row's nodes, in the order in which they are fed, behind the text's last one.
        estimates = runner.forward(slots, drafter.load(chains, states), last_only=True)
        executor.runner.fed += sum(map(len, chains))
        more = grower.grow(drafter.logits(estimates))
    behind = [list(row) for row in estimates]
    branching = Branching(runner, slots)
    while more:
        tokens, parents = grower.pending()
        with executor.step(name, tokens):
            states = [torch.stack([behind[i][p - ROOT] for p in own]) for i, own in enumerate(parents)]
            estimates = branching.feed(drafter.load(tokens, states), parents)
            executor.runner.fed += sum(map(len, tokens))
            more = grower.grow(drafter.logits(estimates))
        for mine, later in zip(behind, estimates, strict=True):
            mine.extend(later)
    fed = tuple((name, count) for count in grower.plan.fed)
    return [((name, len(chain)), *fed) for chain in chains]


def _committed(executor: Executor, drafter: EagleDrafter, row: Row, count: int) -> list[int]:
    """The tokens of a row's `count` new pairs: each follows the token whose state it is paired with."""
    runner, held = drafter.runner, executor.runner.held(row.slot)
    if count == len(held):  # the request's first pairs
        runner.reset(row.slot)
    elif len(runner.held(row.slot)) + count != len(held):
        raise AuditError(
            f"slot {row.slot}: {count} new states after {len(runner.held(row.slot))} pairs of a text of "
            f"{len(held)} tokens"
        )
    return [*held[len(held) - count + 1 :], row.tail[-1]]
