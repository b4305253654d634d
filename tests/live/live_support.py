"""Helpers of the live tests: a world without processes, and checks that mutants must fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import simpy
from plain_decoding import plain_decode
from tiny_models import VOCABULARY
from transformers import PreTrainedModel

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine.executor import Executor
from calibrate.live.engine.rows import Row
from calibrate.live.placement import WorkerSpec, available_cores
from calibrate.live.shared_probs import ProbsReader, ProbsWriter, Segment
from calibrate.live.wire import pack, pack_operation, unpack, unpack_replies
from calibrate.live_runs import plain
from policies.operation import Prefill, Prespeculate, RowOperation, Verify
from policies.registry import Settings, start
from policies.rows import Rows
from policies.values import OutcomeCache, Request, Source, Verdict, View

LIMIT = 48
Prompts = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Reference:
    """The models in this process, some prompts, and what plain decoding makes of them."""

    target: PreTrainedModel
    draft: PreTrainedModel
    prompts: Prompts
    texts: list[list[int]]

    def some(self, count: int, limit: int) -> tuple[Prompts, list[list[int]]]:
        """The last prompts, and the beginnings of their texts."""
        return self.prompts[-count:], [text[:limit] for text in self.texts[-count:]]


def worker_specs(pair: tuple[str, str], drafts: int = 1) -> tuple[WorkerSpec, list[WorkerSpec]]:
    """Workers on the first and the last core there is."""
    cores = available_cores()
    names = ["draft", *(f"draft-{i}" for i in range(1, drafts))]
    return (
        WorkerSpec("target", pair[0], cores[:1], role="target"),
        [WorkerSpec(name, pair[1], cores[-1:], role="draft") for name in names],
    )


class InlineTask(simpy.Event):
    """An operation that was done when it was submitted, so that there is nothing to stop."""

    def __init__(self, environment: simpy.Environment) -> None:
        super().__init__(environment)
        self.early = environment.event()

    def stop(self) -> None:
        pass


class InlineDevice:
    """A device that works within `submit`, for tests of everything but processes.

    Keeps every operation with its answer in `served`.  A mutant overrides `alter_reply` or `alter_answer`.
    """

    def __init__(self, environment: simpy.Environment, name: str, executor: Executor) -> None:
        self.environment = environment
        self.name = name
        self.executor = executor
        self.served: list[tuple[Any, Any]] = []

    def submit(self, operation: Any) -> InlineTask:
        task = InlineTask(self.environment)
        self.executor.say_early = lambda replies: task.early.succeed(
            operation.answer(unpack_replies(operation, pack(replies), early=True))
        )
        sent = unpack(pack_operation(operation), type(operation))
        replies = unpack_replies(operation, pack(self.executor.execute(sent)))
        answer = self.alter_answer(operation, operation.answer(self.alter_reply(operation, replies)))
        self.served.append((operation, answer))
        task.succeed(answer)
        return task

    def alter_reply(self, operation: Any, replies: Any) -> Any:
        return replies

    def alter_answer(self, operation: Any, answer: Any) -> Any:
        return answer


class InlineWorld:
    """All devices in this process.

    Args:
        target: Runs the target's model.
        drafts: Run the draft's.
        vocabulary: V.
        ring_bytes: Memory per draft for the laws of sampled tokens.
    """

    def __init__(
        self,
        target: ModelRunner,
        *drafts: ModelRunner,
        vocabulary: int = VOCABULARY,
        end_token_ids: Sequence[int] = (),
        target_type: Callable[..., InlineDevice] = InlineDevice,
        draft_type: Callable[..., InlineDevice] = InlineDevice,
        ring_bytes: int = 1 << 30,
    ) -> None:
        self.environment = simpy.Environment()
        self.segments = [Segment(ring_bytes) for _ in drafts]
        reader = ProbsReader(self.segments)
        executor = Executor(target, end_token_ids=end_token_ids, reader=reader)
        self.target = target_type(self.environment, "target", executor)
        self.drafts = [
            draft_type(self.environment, f"draft-{i}", Executor(runner, writer=ProbsWriter(segment, i)))
            for i, (runner, segment) in enumerate(zip(drafts, self.segments, strict=True))
        ]
        self.targets, self.draft = [self.target], self.drafts[0]
        self.vocabulary = vocabulary

    @property
    def now(self) -> float:
        return float(self.environment.now)

    def run(self, steps: Any) -> None:
        self.environment.run(until=self.environment.process(steps))

    def __del__(self) -> None:
        for segment in self.segments:
            segment.close()


def view_of(*rows: Row) -> View:
    """The view that rows come from."""
    columns = zip(*(row[:4] for row in rows), strict=True)
    return View(*columns, tuple(row.room for row in rows), tuple(row.tail for row in rows))


def prefilled(executor: Executor, prompts: dict[int, tuple[int, ...]]) -> None:
    """Fill slots with prompts."""
    rows = [Row(slot, slot, 0, len(prompt), prompt[-2:]) for slot, prompt in prompts.items()]
    executor.execute(Prefill(view_of(*rows), tuple(prompts.values())))


def new_rows(prompts: Prompts, limit: int = LIMIT, batch: int = 1) -> Rows:
    """Rows over the prompts."""
    requests = [Request(i, len(prompt), limit, tuple(prompt)) for i, prompt in enumerate(prompts)]
    return Rows(requests, batch, keep_tokens=True)


def serve(world: Any, settings: Settings, prompts: Prompts, limit: int = LIMIT, batch: int = 1) -> Rows:
    """Serve prompts with a policy, `batch` at a time; the rows hold texts and rounds."""
    rows = new_rows(prompts, limit, batch)
    world.run(start(world, rows, settings))
    return rows


def texts_of(rows: Rows) -> list[list[int]]:
    """What was emitted, in the order of the requests."""
    return [rows.texts[i] for i in sorted(rows.texts)]


def inline_world(
    target: PreTrainedModel, draft: PreTrainedModel, *, drafts: int = 1, **options: Any
) -> InlineWorld:
    """A correct world without processes, or one with a mutant device."""
    return InlineWorld(ModelRunner(target), *(ModelRunner(draft) for _ in range(drafts)), **options)


def check_drafts(world: InlineWorld, rows: Rows, prompts: Prompts, draft: PreTrainedModel) -> int:
    """Every primary speculation is what the draft alone decodes from the committed text.

    Losslessness cannot see a wrong branch or a stale cache entry: the target rejects what is wrong, and
    only speed suffers.  This can.  Returns how many speculations were compared.
    """
    compared = 0
    for operation, _ in world.target.served:
        if not isinstance(operation, Verify):
            continue
        view, speculation = operation.view, operation.speculation
        for slot, request, position in zip(view.slots, view.requests, view.positions, strict=True):
            if speculation.sources[slot] != Source.PRIMARY:
                continue
            length = speculation.lengths[slot]
            assert speculation.tokens is not None
            text = (*prompts[request], *rows.texts[request][:position])
            assert list(speculation.tokens[slot]) == plain_decode(draft, text, length)
            compared += 1
    return compared


def check_cached_sets(world: InlineWorld) -> int:
    """Every row's caches hold, between the drafts, F_k outcomes per k and never the rejected token.

    Returns how many rows were seen.
    """
    passes = [
        [(operation, cache) for operation, cache in device.served if isinstance(operation, Prespeculate)]
        for device in world.drafts
    ]
    used = [served for served in passes if served]
    seen = 0
    for parts in zip(*used, strict=True):
        for slot in parts[0][0].view.slots:
            _check_cached_set(slot, [operation for operation, _ in parts], [cache for _, cache in parts])
            seen += 1
    return seen


def _check_cached_set(slot: int, operations: list[Prespeculate], caches: list[OutcomeCache]) -> None:
    operation = operations[0]
    outcomes = [outcome for cache in caches for outcome in cache.entries[slot]]
    sizes = [len(cache.entries[slot]) for cache in caches]
    assert max(sizes) - min(sizes) <= 1, "the drafts do not share the work evenly"
    assert len(set(outcomes)) == len(outcomes), "an outcome was prepared twice"
    length, fanout = operation.speculation.lengths[slot], operation.fanout_of(slot)
    expected = 0
    for k in range(length + 1):
        after_k = {token for accepted, token in outcomes if accepted == k}
        left_out = k < length and not operation.keep_rejected
        expected += min(fanout[k], VOCABULARY - left_out)
        assert len(after_k) == min(fanout[k], VOCABULARY - left_out)
        if left_out:
            assert operation.speculation.tokens is not None
            assert operation.speculation.tokens[slot][k] not in after_k
    assert len(outcomes) == expected


def verdicts(world: InlineWorld) -> list[Verdict]:
    """All verdicts, in order."""
    return [answer for _, answer in world.target.served if isinstance(answer, Verdict)]


def decided_replies(world: InlineWorld) -> dict[Any, Any]:
    """What `calibrate.live_runs` collects of a live world, as a file keeps it."""
    return {
        key: json.loads(json.dumps(plain(answer[slot])))
        for device in (world.target, world.draft)
        for operation, answer in device.served
        if isinstance(operation, RowOperation)
        for key, slot in zip(operation.reply_keys(), operation.view.slots, strict=True)
    }
