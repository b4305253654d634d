"""What the tests of runners share: models of several kinds, and the checks of chains and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tiny_models import SIZES, VOCABULARY, tiny_model
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from calibrate.live.backends.torch import ModelRunner

TEXTS = ((3, 1, 4, 1, 5, 9, 2), (6, 5), (3, 5, 8, 9, 7), (9, 3, 2, 3))
CHAINS = ((7,), (1, 2, 3, 4), (5, 6), (8, 9, 10))
FORKS = ((2, 2, 6, -1), (0, 1), (), (3,))


def qwen3() -> PreTrainedModel:
    torch.manual_seed(3)
    shape: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64}
    return Qwen3ForCausalLM(Qwen3Config(**SIZES | shape, vocab_size=VOCABULARY))


def neox() -> PreTrainedModel:
    torch.manual_seed(4)
    return GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, vocab_size=VOCABULARY, max_position_embeddings=64))


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: tiny_model(1),
    "llama, eager attention": lambda: tiny_model(1, attention="eager"),
    "qwen3": qwen3,
    "neox": neox,
}


def plain(model: PreTrainedModel, text: Sequence[int]) -> Tensor:
    """[n, V] logits of a text, by a call of transformers without a cache."""
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([list(text)]), use_cache=False).logits[0]
    return logits


def assert_close(found: Tensor, expected: Tensor) -> None:
    """In fp64 eager attention still takes its softmax in fp32."""
    limit = 1e-5 if found.dtype == torch.float64 else 2e-4
    torch.testing.assert_close(found, expected, rtol=limit, atol=limit)


def filled(model: PreTrainedModel, texts: Sequence[Sequence[int]] = TEXTS, **options: Any) -> ModelRunner:
    """Slot i holds text i."""
    runner = ModelRunner(model, **{"slots": len(texts), "capacity": 32, **options})
    for slot, text in enumerate(texts):
        runner.reset(slot)
        runner.forward([slot], [text])
    return runner


def check_chains(runner: ModelRunner, slots: Sequence[int], chains: Sequence[Sequence[int]]) -> None:
    """A forward of these chains gives what plain transformers gives for each row alone."""
    texts = [[*runner.held(slot)] for slot in slots]
    fed = runner.fed
    logits = runner.forward(slots, chains)
    assert logits.shape == (len(slots), max(map(len, chains)), VOCABULARY)
    assert runner.fed - fed == sum(map(len, chains))
    for slot, text, chain, found in zip(slots, texts, chains, logits, strict=True):
        expected = plain(runner.model, [*text, *chain])[len(text) :]
        assert_close(found[: len(chain)], expected)
        assert runner.held(slot) == [*text, *chain]


def check_tree(runner: ModelRunner, slots: Sequence[int], depth: int = 3) -> None:
    """Every branch gets what it gets as a chain of its own, whatever its siblings and the other rows do."""
    forks = [FORKS[slot] for slot in slots]
    texts = [list(runner.held(slot)) for slot in slots]
    width, fed = max(map(len, forks)), runner.fed
    tree = runner.open_tree(slots, forks, depth)
    assert tree.branches == width
    steps = torch.randint(VOCABULARY, (depth, len(slots), width), generator=torch.Generator().manual_seed(5))
    found = [runner.tree_forward(tree, tokens) for tokens in steps]
    runner.close_tree(tree)
    assert runner.fed - fed == depth * sum(map(len, forks))
    assert [runner.held(slot) for slot in slots] == texts
    for row, branches in enumerate(forks):
        for branch, fork in enumerate(branches):
            chain = steps[:, row, branch].tolist()
            expected = plain(runner.model, [*texts[row][: fork + 1], *chain])[fork + 1 :]
            assert_close(torch.stack([step[row, branch] for step in found]), expected)
