"""Operations on token trees: their drafting, their verification, and retrieval, which calls no model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.heads import keeping_states
from calibrate.live.engine.rows import Row, rows_of
from calibrate.live.engine.sampling import top_tokens
from calibrate.live.engine.trees import Branching, TreeGrower
from calibrate.live.engine.verification import TreeJudge, cut, judge_greedy
from calibrate.live.errors import AuditError, ModelError
from hardware_profiles.datastore import Datastore, datastore_path
from policies.operation import RowOperation
from policies.retrieval import PROMPT, Retrieved, RetrieveTree, retrieve
from policies.tokentree import ROOT, DraftTree, Path, TokenTree, TreeDrafted, TreeVerdict, VerifyTree
from policies.values import RowVerdict

T = TypeVar("T")


@handles(DraftTree)
def draft_trees(executor: Executor, operation: DraftTree) -> list[TreeDrafted]:
    """A forward over what is unseen, then one per level of the trees but the last."""
    plan, feeds = operation.plan, operation.inputs
    rows, runner = rows_of(operation.view), executor.runner
    for row, unseen in zip(rows, feeds, strict=True):
        rewind_unseen(executor, row, unseen)
    grower = TreeGrower(plan, rows, operation.sampling, executor.writer)
    slots = [row.slot for row in rows]
    with executor.step("feed", feeds):
        first = runner.forward(slots, feeds, last_only=True)
        wanted = operation.root_top
        tops = top_tokens(first[:, 0], wanted) if wanted else [[] for _ in rows]
        more = grower.grow(first)
    branching = Branching(runner, slots)
    while more:
        start, fed = time.perf_counter(), runner.fed
        tokens, parents = grower.pending()
        more = grower.grow(branching.feed(tokens, parents))
        executor.stamp("tree", start, fed, tokens)
    return [
        TreeDrafted(tree, (("feed", len(unseen)), *(("tree", n) for n in plan.fed)), tuple(top))
        for tree, unseen, top in zip(grower.trees(), feeds, tops, strict=True)
    ]


def rewind_unseen(executor: Executor, row: Row, unseen: Path) -> None:
    """Roll back to the committed text without its unseen end; nothing else may be missing."""
    held, keep = executor.runner.held(row.slot), row.context - len(unseen)
    before = row.tail[: max(0, len(row.tail) - len(unseen))]
    if not unseen or keep < 0 or tuple(unseen[-len(row.tail) :]) != row.tail[-len(unseen) :]:
        raise AuditError(f"a text of {row.context} tokens ends in {row.tail}, not in {unseen}")
    if len(held) < keep or tuple(held[keep - len(before) : keep]) != before:
        raise AuditError(f"slot {row.slot} misses more than the {len(unseen)} unseen tokens")
    executor.runner.rollback(row.slot, keep)


@handles(VerifyTree)
def verify_trees(executor: Executor, operation: VerifyTree) -> list[TreeVerdict]:
    """One forward over the last committed token and all nodes of each row's tree."""
    trees = operation.inputs
    verdicts, paths, _ = judged_trees(executor, operation, trees)
    return [
        TreeVerdict(verdict, path, (("verify", 1 + len(tree.tokens)),))
        for verdict, path, tree in zip(verdicts, paths, trees, strict=True)
    ]


def judged_trees(
    executor: Executor,
    operation: RowOperation,
    trees: Sequence[TokenTree],
    beside: Sequence[TokenTree] | None = None,
) -> tuple[list[RowVerdict], list[tuple[int, ...]], Tensor]:
    """Verify a tree per row in one forward, and feed further trees in it that nothing is accepted of.

    Returns:
        [R] verdicts; [R] accepted nodes; [R, n, V] logits, of each row after the last committed token, after
        its tree's nodes, and after those `beside`.
    """
    rows = rows_of(operation.view)
    for row in rows:
        executor.rewind(row)
    # The last committed token is node 0, from which the trees grow.
    tokens, parents = [], []
    for row, *own in zip(rows, trees, beside or [TokenTree()] * len(rows), strict=True):
        tokens.append([row.tail[-1]])
        parents.append([ROOT])
        for tree in own:
            first = len(tokens[-1])
            parents[-1] += [0 if parent == ROOT else first + parent for parent in tree.parents]
            tokens[-1] += tree.tokens
    slots, accepted = [row.slot for row in rows], list[list[int]]()
    states = isinstance(operation, VerifyTree) and operation.states
    with executor.step("verify", tokens), keeping_states(executor, states, slots, accepted):
        branching = Branching(executor.runner, slots)
        logits = branching.feed(tokens, parents)
        if operation.sampling.greedy:
            judged = judge_greedy(logits, trees)
        else:
            judged = TreeJudge(rows, trees, operation.sampling, executor.reader).judge(logits)
        accepted += [[0, *(1 + node for node in own.path)] for own in judged]
        branching.keep(accepted)
    verdicts = [
        cut([tree.tokens[node] for node in own.path], own.bonus, row.room, executor.end_token_ids)
        for row, tree, own in zip(rows, trees, judged, strict=True)
    ]
    return verdicts, [own.path for own in judged], logits


def own_states(
    executor: Executor, operation: RowOperation, prompts: Sequence[Path], begin: Callable[[Path, int], T]
) -> list[T]:
    """[R] what the target keeps of each row for trees of its own: begun from the prompt, found again later.

    Args:
        executor: Keeps them by slot.
        operation: What they are for.
        prompts: [R] the text of rows that begin, () of others.
        begin: (prompt, request) to the state of a new row.

    Raises:
        AuditError: A row goes on that never began.
    """
    kept = executor.once(f"states of {operation.kind}", dict[int, tuple[int, T]])
    states = []
    for row, prompt in zip(rows_of(operation.view), prompts, strict=True):
        if prompt:
            kept[row.slot] = row.request, begin(prompt, row.request)
        if row.slot not in kept or kept[row.slot][0] != row.request:
            raise AuditError(f"slot {row.slot} has no state of request {row.request} ({operation.kind})")
        states.append(kept[row.slot][1])
    return states


@handles(RetrieveTree)
def retrieve_trees(executor: Executor, operation: RetrieveTree) -> list[Retrieved]:
    """Looks words up in a row's own text or in a datastore."""
    name, search = operation.datastore, operation.search
    datastore = None if name == PROMPT else opened(executor, name)
    with executor.step("retrieve", [()] * len(operation.inputs)):
        return [retrieve(asked, search, datastore) for asked in operation.inputs]


def opened(executor: Executor, name: str) -> Datastore:
    """The datastore of a name or path, opened once per worker and kept.

    Raises:
        DatastoreError: There is none.
        ModelError: It was made with a tokenizer of more ids than the model knows.
    """
    return executor.once(f"datastore {name}", lambda: _open(executor, name))


def _open(executor: Executor, name: str) -> Datastore:
    datastore = Datastore.open(datastore_path(name))
    config = getattr(executor.runner, "config", None)
    known = None if config is None else int(config.get_text_config().vocab_size)
    if known is not None and datastore.meta.vocabulary > known:
        raise ModelError(
            f"datastore {name!r} holds ids up to {datastore.meta.vocabulary - 1}, the model knows "
            f"{known}: build it with the model's own tokenizer (calibrate datastore build --tokenizer)"
        )
    return datastore
