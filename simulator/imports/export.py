"""Settings in the engines' own terms: vLLM's `--speculative-config`, SGLang's and llama.cpp's flags.

The engines know plain speculation only.  Everything here that is said to engines is made by
`engine_flags`: what `export` prints, and what `recommend` offers to paste.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Protocol

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
METHODS = tuple(SGLANG)
METHOD_OF = {"sd": "draft_model", "pld": "ngram"}
"""What engines call the policies that they have."""
OURS = ("pair:", "shape:")
"""What names of models begin with that only this project knows."""
STARTS = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python", "-m", "sglang.launch_server", "--model-path"),
}
"""Commands that serve a model by its name; llama.cpp's takes a file."""
NGRAM_WORDS = 3
"""Longest n-gram that is looked up, vLLM's documented example."""
DEEPEST_TREE = 1
"""SGLang's topk: a chain, which is what was simulated."""


class _Setting(Protocol):
    @property
    def policy(self) -> str: ...
    @property
    def lookahead(self) -> int | None: ...


class PointLike(Protocol):
    """A point of `analysis.recommend.answer.over_batch`: the best setting at a batch."""

    @property
    def at(self) -> float:
        """The batch."""
        ...

    @property
    def best(self) -> _Setting:
        """What is fastest there."""
        ...


def vllm_config(
    lookahead: int,
    *,
    method: str = "draft_model",
    model: str | None = None,
    draft_sampled: bool = False,
    by_batch: Mapping[int, int] | None = None,
    largest_batch: int | None = None,
) -> str:
    """The value of vLLM's `--speculative-config`.

    Args:
        lookahead: K.
        method: One of `METHODS`.
        model: Draft model or head, for the methods that have one.
        draft_sampled: Whether the draft samples; vLLM drafts greedily unless told otherwise.
        by_batch: K by batch from which on it holds; 0 is plain decoding.
        largest_batch: End of the last range; the largest batch of `by_batch` by default.

    Raises:
        ImportRefused: A model is missing or of no use, or a value is out of its domain.
    """
    _check(lookahead, method, model)
    config: dict[str, Any] = {"method": method}
    if model is not None:
        config["model"] = model
    config["num_speculative_tokens"] = lookahead
    if method == "ngram":
        config |= {"prompt_lookup_max": NGRAM_WORDS, "prompt_lookup_min": 1}
    if draft_sampled:
        config["draft_sample_method"] = "probabilistic"
    if by_batch:
        if max(by_batch.values()) > lookahead:
            raise ImportRefused(
                f"a lookahead by batch exceeds the {lookahead} that are drafted: {dict(by_batch)}"
            )
        config["num_speculative_tokens_per_batch_size"] = schedule(by_batch, largest_batch)
    return to_json(config)


def sglang_flags(lookahead: int, *, method: str = "draft_model", model: str | None = None) -> str:
    """SGLang's flags; the tokens to verify count the root, so K + 1.  As `vllm_config`."""
    _check(lookahead, method, model)
    flags: dict[str, Any] = {"algorithm": SGLANG[method]}
    if model is not None:
        flags["draft-model-path"] = model
    if method != "ngram":
        flags |= {"num-steps": lookahead, "eagle-topk": DEEPEST_TREE}
    flags["num-draft-tokens"] = lookahead + 1
    return " ".join(f"--speculative-{name} {shlex.quote(str(value))}" for name, value in flags.items())


def llamacpp_flags(lookahead: int, *, model: str) -> str:
    """llama-server's flags for a draft model: K drafts every time, however unsure it is."""
    _check(lookahead, "draft_model", model)
    return (
        f"--model-draft {shlex.quote(model)} --draft-max {lookahead} --draft-min {lookahead} --draft-p-min 0"
    )


def engine_flags(
    lookahead: int,
    *,
    method: str = "draft_model",
    model: str | None = None,
    draft_sampled: bool = False,
    by_batch: Mapping[int, int] | None = None,
    largest_batch: int | None = None,
) -> dict[str, str]:
    """The same setting as flags of every engine that has the method, by engine.

    Only vLLM takes a lookahead by batch and a draft that samples; the others are told the rest.

    Args:
        lookahead: K.
        method: As in `vllm_config`.
        model: As in `vllm_config`.
        draft_sampled: As in `vllm_config`.
        by_batch: As in `vllm_config`.
        largest_batch: As in `vllm_config`.

    Raises:
        ImportRefused: As in `vllm_config`.
    """
    config = vllm_config(
        lookahead,
        method=method,
        model=model,
        draft_sampled=draft_sampled,
        by_batch=by_batch,
        largest_batch=largest_batch,
    )
    lines = {
        "vllm": f"--speculative-config {shlex.quote(config)}",
        "sglang": sglang_flags(lookahead, method=method, model=model),
    }
    if method == "draft_model" and model is not None:
        lines["llama.cpp"] = llamacpp_flags(lookahead, model=model)
    return lines


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
    flags = engine_flags(
        settings.lookahead,
        method=method,
        model=model,
        draft_sampled=model is not None and settings.sampling.draft_sampled,
    )
    return {engine: f"{shlex.join([*start, target])} {flags[engine]}" for engine, start in STARTS.items()}


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


def lookahead_by_batch(points: Iterable[PointLike]) -> dict[int, int]:
    """K by batch of the best setting at each batch; 0 for plain decoding.

    Raises:
        ImportRefused: A policy is best that no engine has.
    """
    found = {}
    for point in points:
        if point.best.policy not in ("ar", "sd"):
            raise ImportRefused(
                f"at batch {point.at:g} the fastest is {point.best.policy!r}, which no engine has"
            )
        found[int(point.at)] = point.best.lookahead or 0
    return found


def _check(lookahead: int, method: str, model: str | None) -> None:
    if method not in SGLANG:
        raise ImportRefused(f"unknown method {method!r}; choices: {', '.join(METHODS)}")
    if lookahead < 1:
        raise ImportRefused(f"the lookahead must be at least 1, got {lookahead}")
    if (model is None) == (method in NEEDS_MODEL):
        need = "needs a draft model (--draft)" if model is None else "has no draft model: leave out --draft"
        raise ImportRefused(f"method {method!r} {need}")
