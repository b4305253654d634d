"""Helpers of the live tests: tiny models, a world without processes, and checks that mutants must fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import simpy
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from calibrate.live.codec import LiveCache, decode, encode
from calibrate.live.executor import Executor
from calibrate.live.messages import Reply
from calibrate.live.placement import WorkerSpec, available_cores
from calibrate.live.plain import plain_decode
from calibrate.live.runner import ModelRunner
from policies.operations import Prespeculate, Request, Source, Verdict, Verify
from policies.registry import Settings, start
from policies.rows import Rows

VOCABULARY = 64
LIMIT = 48
Prompts = Sequence[tuple[int, ...]]


def tiny_model(
    seed: int, *, vocabulary: int = VOCABULARY, layers: int = 2, attention: str = "sdpa"
) -> LlamaForCausalLM:
    """A random Llama whose logits are spread out (the default initialisation makes all tokens alike)."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


def with_noise(model: LlamaForCausalLM, scale: float) -> LlamaForCausalLM:
    """A copy that mostly agrees: a draft whose acceptances are mixed."""
    draft = LlamaForCausalLM(model.config).eval()
    draft.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weights in draft.parameters():
            weights.add_(torch.randn(weights.shape, generator=generator), alpha=scale * float(weights.std()))
    return draft


def worker_specs(pair: tuple[str, str]) -> tuple[WorkerSpec, WorkerSpec]:
    """Workers on the first and the last core there is."""
    cores = available_cores()
    return (
        WorkerSpec("target", pair[0], cores[:1], role="target"),
        WorkerSpec("draft", pair[1], cores[-1:], role="draft"),
    )


class InlineDevice:
    """A device that works within `submit`, for tests of everything but processes.

    Keeps every operation with its answer in `served`.  A mutant overrides `alter_reply` or `alter_answer`.
    """

    def __init__(self, environment: simpy.Environment, name: str, executor: Executor) -> None:
        self.environment = environment
        self.name = name
        self.executor = executor
        self.served: list[tuple[Any, Any]] = []

    def submit(self, operation: Any) -> simpy.Event:
        reply = self.alter_reply(operation, self.executor.execute(encode(operation)))
        answer = self.alter_answer(operation, decode(operation, reply))
        self.served.append((operation, answer))
        return self.environment.event().succeed(answer)

    def alter_reply(self, operation: Any, reply: Reply) -> Reply:
        return reply

    def alter_answer(self, operation: Any, answer: Any) -> Any:
        return answer


class InlineWorld:
    """Both devices in this process."""

    def __init__(
        self,
        target: Executor,
        draft: Executor,
        *,
        target_type: Callable[..., InlineDevice] = InlineDevice,
        draft_type: Callable[..., InlineDevice] = InlineDevice,
    ) -> None:
        self.environment = simpy.Environment()
        self.target = target_type(self.environment, "target", target)
        self.draft = draft_type(self.environment, "draft", draft)
        self.vocabulary = VOCABULARY

    @property
    def now(self) -> float:
        return float(self.environment.now)

    def run(self, steps: Any) -> None:
        self.environment.run(until=self.environment.process(steps))


def new_rows(prompts: Prompts, limit: int = LIMIT) -> Rows:
    """Batch-1 rows over the prompts."""
    requests = [Request(i, len(prompt), limit, tuple(prompt)) for i, prompt in enumerate(prompts)]
    return Rows(requests, 1, keep_tokens=True)


def serve(world: Any, settings: Settings, prompts: Prompts, limit: int = LIMIT) -> Rows:
    """Serve prompts one after another with a policy; the rows hold texts and rounds."""
    rows = new_rows(prompts, limit)
    world.run(start(world, rows, settings))
    return rows


def inline_world(target: PreTrainedModel, draft: PreTrainedModel, **options: Any) -> InlineWorld:
    """A correct world without processes, or one with a mutant device."""
    return InlineWorld(Executor(ModelRunner(target)), Executor(ModelRunner(draft)), **options)


def check_drafts(world: InlineWorld, rows: Rows, prompts: Prompts, draft: PreTrainedModel) -> int:
    """Every primary speculation is what the draft alone decodes from the committed text.

    Losslessness cannot see a wrong branch or a stale cache entry: the target rejects what is wrong, and
    only speed suffers.  This can.  Returns how many speculations were compared.
    """
    compared = 0
    for operation, _ in world.target.served:
        if not isinstance(operation, Verify) or operation.speculation.sources[0] != Source.PRIMARY:
            continue
        request, position = int(operation.view.requests[0]), int(operation.view.positions[0])
        length = int(operation.speculation.lengths[0])
        tokens = operation.speculation.tokens
        assert tokens is not None
        text = (*prompts[request], *rows.texts[request][:position])
        assert tokens[0, :length].tolist() == plain_decode(draft, text, length)
        compared += 1
    return compared


def check_cached_sets(world: InlineWorld) -> int:
    """Every cache holds F_k outcomes per k and never the rejected token; returns how many were seen."""
    seen = 0
    for operation, cache in world.draft.served:
        if not isinstance(operation, Prespeculate):
            continue
        assert isinstance(cache, LiveCache)
        length = int(operation.speculation.lengths[0])
        entries = cache.entries[0]
        for k in range(length + 1):
            after_k = {token for accepted, token in entries if accepted == k}
            others = VOCABULARY - (1 if k < length else 0)
            assert len(after_k) == min(operation.fanout[k], others)
            if k < length:
                assert operation.speculation.tokens is not None
                assert int(operation.speculation.tokens[0, k]) not in after_k
        assert len(entries) == sum(min(f, VOCABULARY) for f in operation.fanout[: length + 1])
        seen += 1
    return seen


def verdicts(world: InlineWorld) -> list[Verdict]:
    """All verdicts, in order."""
    return [answer for _, answer in world.target.served if isinstance(answer, Verdict)]
