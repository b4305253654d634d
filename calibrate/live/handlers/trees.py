"""Operations on token trees: their drafting, their verification, and retrieval, which calls no model."""

from __future__ import annotations

import time

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.rows import Row, rows_of
from calibrate.live.engine.sampling import top_tokens
from calibrate.live.engine.trees import Branching, TreeGrower
from calibrate.live.engine.verification import TreeJudge, cut, judge_greedy
from calibrate.live.errors import AuditError, ModelError
from hardware_profiles.datastore import Datastore, datastore_path
from policies.retrieval import PROMPT, Retrieved, RetrieveTree, retrieve
from policies.tokentree import ROOT, DraftTree, TreeDrafted, TreeVerdict, VerifyTree


@handles(DraftTree)
def draft_trees(executor: Executor, operation: DraftTree) -> list[TreeDrafted]:
    """A forward over what is unseen, then one per level of the trees but the last."""
    plan, feeds = operation.plan, operation.inputs
    rows, runner = rows_of(operation.view), executor.runner
    for row, unseen in zip(rows, feeds, strict=True):
        _rewind(executor, row, unseen)
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


def _rewind(executor: Executor, row: Row, unseen: tuple[int, ...]) -> None:
    """Roll back to the committed text without its unseen end; nothing else may be missing."""
    held, keep = executor.runner.held(row.slot), row.context - len(unseen)
    before = row.tail[: max(0, len(row.tail) - len(unseen))]
    if not unseen or keep < 0 or tuple(unseen[-len(row.tail) :]) != row.tail[-len(unseen) :]:
        raise AuditError(f"a text of {row.context} tokens ends in {row.tail}, not in {unseen} (DraftTree)")
    if len(held) < keep or tuple(held[keep - len(before) : keep]) != before:
        raise AuditError(f"slot {row.slot} misses more than the {len(unseen)} unseen tokens (DraftTree)")
    executor.runner.rollback(row.slot, keep)


@handles(VerifyTree)
def verify_trees(executor: Executor, operation: VerifyTree) -> list[TreeVerdict]:
    """One forward over the last committed token and all nodes of each row's tree."""
    rows, trees = rows_of(operation.view), operation.inputs
    for row in rows:
        executor.rewind(row)
    # The last committed token is node 0, from which the trees grow.
    tokens = [(row.tail[-1], *tree.tokens) for row, tree in zip(rows, trees, strict=True)]
    parents = [(ROOT, *(1 + parent for parent in tree.parents)) for tree in trees]
    with executor.step("verify", tokens):
        branching = Branching(executor.runner, [row.slot for row in rows])
        logits = branching.feed(tokens, parents)
        if operation.sampling.greedy:
            verdicts = judge_greedy(logits, trees)
        else:
            verdicts = TreeJudge(rows, trees, operation.sampling, executor.reader).judge(logits)
        branching.keep([(0, *(1 + node for node in own.path)) for own in verdicts])
    replies = []
    for row, tree, own in zip(rows, trees, verdicts, strict=True):
        tokens_on = [tree.tokens[node] for node in own.path]
        verdict = cut(tokens_on, own.bonus, row.room, executor.end_token_ids)
        replies.append(TreeVerdict(verdict, own.path, (("verify", 1 + len(tree.tokens)),)))
    return replies


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
