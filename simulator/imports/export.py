"""Settings in the engines' own terms: vLLM's, SGLang's, TensorRT-LLM's and llama.cpp's.

The engines know plain speculation only.  Everything here that is said to engines is made by `Speculation`:
what `export` prints, and what `recommend` offers to paste.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hardware_profiles.files import to_json
from policies.config import Settings
from simulator.imports.measured import ImportRefused

NEEDS_MODEL = ("draft_model", "eagle", "eagle3")
SGLANG = {
    "draft_model": "STANDALONE",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
    "ngram": "NGRAM",
}
"""SGLang's algorithm, by vLLM's method."""
LLAMACPP = {"draft_model": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp"}
"""llama.cpp's type, by vLLM's method; without one a draft is loaded and not used."""
TENSORRT_LLM = {"draft_model": "DraftTarget", "eagle3": "Eagle3", "mtp": "MTP", "ngram": "NGram"}
"""TensorRT-LLM's type, by vLLM's method."""
METHOD_OF = {"sd": "draft_model", "pld": "ngram"}
"""What engines call the policies that they have."""
OURS = ("pair:", "shape:")
"""What names of models begin with that only this project knows."""
STARTS = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python", "-m", "sglang.launch_server", "--model-path"),
    "tensorrt-llm": ("trtllm-serve",),
}
"""Commands that serve a model by its name; llama.cpp's takes a file."""
NGRAM_WORDS = 3
"""Longest n-gram that is looked up, vLLM's documented example."""
DEEPEST_TREE = 1
"""SGLang's topk: a chain, which is what was simulated."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """One setting, for every engine that has the method; only vLLM knows `draft_sampled` and `by_batch`.

    Raises:
        ImportRefused: A model is missing or of no use, or a value is out of its domain.
    """

    lookahead: int  # K
    method: str = "draft_model"  # a key of `SGLANG`
    model: str | None = None  # draft model or head, for the methods that have one
    draft_sampled: bool = False  # vLLM drafts greedily unless told otherwise
    by_batch: Mapping[int, int] | None = None  # K by batch from which on it holds; 0 is plain decoding
    largest_batch: int | None = None  # end of the last range; the largest batch of `by_batch` by default
    forced: float | None = None  # tokens per round, the target's own counted, that engines are made to accept

    def __post_init__(self) -> None:
        """Refuse what no engine takes."""
        if self.method not in SGLANG:
            raise ImportRefused(f"unknown method {self.method!r}; choices: {', '.join(SGLANG)}")
        if self.lookahead < 1:
            raise ImportRefused(f"the lookahead must be at least 1, got {self.lookahead}")
        if (self.model is None) == (self.method in NEEDS_MODEL):
            missing = self.model is None
            need = "needs a draft model (--draft)" if missing else "has no draft model: leave out --draft"
            raise ImportRefused(f"method {self.method!r} {need}")
        if self.by_batch and max(self.by_batch.values()) > self.lookahead:
            raise ImportRefused(
                f"a lookahead by batch exceeds the {self.lookahead} that are drafted: {dict(self.by_batch)}"
            )

        if self.forced is not None and not 1.0 <= self.forced <= self.lookahead + 1.0:
            raise ImportRefused(f"{self.lookahead} drafted tokens make no rounds of {self.forced:g} tokens")

    @property
    def vllm_config(self) -> str:
        """The value of vLLM's `--speculative-config`."""
        config: dict[str, Any] = {"method": self.method}
        if self.model is not None:
            config["model"] = self.model
        config["num_speculative_tokens"] = self.lookahead
        if self.method == "ngram":
            config |= {"prompt_lookup_max": NGRAM_WORDS, "prompt_lookup_min": 1}
        if self.draft_sampled:
            config["draft_sample_method"] = "probabilistic"
        if self.forced is not None:
            config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": self.forced}
        if self.by_batch:
            config["num_speculative_tokens_per_batch_size"] = schedule(self.by_batch, self.largest_batch)
        return to_json(config)

    @property
    def flags(self) -> dict[str, str]:
        """By engine.  SGLang's tokens to verify count the root, so K + 1; llama.cpp drafts K at any doubt."""
        sglang: dict[str, Any] = {"algorithm": SGLANG[self.method]}
        if self.model is not None:
            sglang["draft-model-path"] = self.model
        if self.method != "ngram":
            sglang |= {"num-steps": self.lookahead, "eagle-topk": DEEPEST_TREE}
        sglang["num-draft-tokens"] = self.lookahead + 1
        flags = {
            "vllm": f"--speculative-config {shlex.quote(self.vllm_config)}",
            "sglang": " ".join(f"--speculative-{k} {shlex.quote(str(v))}" for k, v in sglang.items()),
        }
        if self.method in TENSORRT_LLM:
            # JSON is YAML, and bash makes a file of it.
            flags["tensorrt-llm"] = f"--config <(echo {shlex.quote(self.tensorrt_llm_config)})"
        if self.method in LLAMACPP:
            draft = "" if self.model is None else f"--model-draft {shlex.quote(self.model)} "
            depth = f"--spec-draft-n-max {self.lookahead} --spec-draft-n-min {self.lookahead}"
            flags["llama.cpp"] = f"{draft}--spec-type {LLAMACPP[self.method]} {depth} --spec-draft-p-min 0"
        return flags

    @property
    def tensorrt_llm_config(self) -> str:
        """The content of the file that TensorRT-LLM's `--config` names."""
        config: dict[str, Any] = {
            "decoding_type": TENSORRT_LLM[self.method],
            "max_draft_len": self.lookahead,
        }
        if self.model is not None:
            config["speculative_model"] = self.model
        if self.method == "ngram":
            config["max_matching_ngram_size"] = NGRAM_WORDS
        said: dict[str, Any] = {"speculative_config": config}
        if self.method in ("draft_model", "ngram"):
            said["disable_overlap_scheduler"] = True
        return to_json(said)

    @property
    def environment(self) -> dict[str, str]:
        """What is set in front of the command that serves, by engine, to force `forced` tokens per round.

        A run so tests the time model alone; what it writes is no text.  vLLM is told by its flags.
        TensorRT-LLM counts accepted drafts, without the target's own token.
        """
        if self.forced is None:
            return {}
        return {
            "sglang": f"SGLANG_SIMULATE_ACC_LEN={self.forced:g} SGLANG_SIMULATE_ACC_METHOD=match-expected "
            "SGLANG_SIMULATE_ACC_TOKEN_MODE=real-draft-token",
            "tensorrt-llm": f"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS={self.forced - 1.0:g}",
        }


def engine_lines(settings: Settings, target: str, draft: str) -> dict[str, str]:
    """Command lines of engines for a setting, by engine; empty where none has its policy or can load a model.

    vLLM drafts greedily unless told otherwise, also at a temperature above 0, where we sample by default.
    """
    method = METHOD_OF.get(settings.policy)
    if method is None or settings.lookahead is None:
        return {}
    model = draft if method in NEEDS_MODEL else None
    if not engines_load(target) or not engines_load(model or target):
        return {}
    sampled = model is not None and settings.sampling.draft_sampled
    flags = Speculation(settings.lookahead, method, model, draft_sampled=sampled).flags
    return {
        engine: f"{shlex.join([*start, target])} {flags[engine]}"
        for engine, start in STARTS.items()
        if engine in flags
    }


def engines_load(name: str) -> bool:
    """Whether a model's name is one that others know, too: not `pair:x5` or `shape:llama-3.1-8b`."""
    return not name.startswith(OURS)


def schedule(by_batch: Mapping[int, int], largest: int | None = None) -> list[list[int]]:
    """Ranges [from, to, K] of batch sizes: each K holds from its batch to the next; equal ones are joined.

    Args:
        by_batch: K by batch; the smallest batch's holds from 1 on.
        largest: End of the last range; the largest batch by default, beyond which nothing was looked at.

    Raises:
        ImportRefused: No batch, a batch below 1, a negative K, or `largest` below a batch.
    """
    batches = sorted(by_batch)
    if not batches or batches[0] < 1 or min(by_batch.values()) < 0:
        raise ImportRefused(
            f"lookaheads by batch need batches of at least 1 and K of at least 0, got {dict(by_batch)}"
        )
    end = batches[-1] if largest is None else largest
    if end < batches[-1]:
        raise ImportRefused(f"the largest batch {end} is below {batches[-1]}, for which a lookahead is given")
    ranges: list[list[int]] = []
    for first, following in pairwise([1, *batches[1:], end + 1]):
        depth = by_batch[batches[0] if first == 1 else first]
        if ranges and ranges[-1][2] == depth:
            ranges[-1][1] = following - 1
        else:
            ranges.append([first, following - 1, depth])
    return ranges
