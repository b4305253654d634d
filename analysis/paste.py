"""Settings ready to paste: our own commands, and those of engines for what they know (plain SD)."""

from __future__ import annotations

import shlex

from analysis.sources import Sources
from policies.registry import Settings
from simulator.imports.export import sglang_flags, vllm_config


def simulate_line(settings: Settings, sources: Sources, *, batch: int = 1) -> str:
    """The `simulate` command of a setting."""
    words = ["simulate", "--hw", sources.hw or sources.profile.name]
    if settings.temperature in sources.files:
        words += ["--trace", sources.files[settings.temperature]]
    return shlex.join([*words, "--policy", settings.policy, *knobs(settings), "--batch", str(batch)])


def validate_line(settings: Settings, *, target: str, draft: str, batch: int = 1) -> str | None:
    """The `validate` command that would check a setting live; None where it has no such option."""
    if settings.unusual or settings.fanout_backup is not None or len(set(settings.fanout or (1,))) > 1:
        return None
    words = ["validate", "--target", target, "--draft", draft, "--policies", settings.policy]
    words += [*knobs(settings), "--batch", str(batch), "--count", str(max(6, 2 * batch))]
    return shlex.join(words)


def knobs(settings: Settings) -> list[str]:
    """The options of a setting that `simulate` takes."""
    words: list[str] = []
    for name in ("lookahead", "fanout", "fanout_backup", "backup"):
        value = getattr(settings, name)
        if value is None:
            continue
        if isinstance(value, tuple):
            value = value[0] if len(set(value)) == 1 else ",".join(map(str, value))
        words += [f"--{name.replace('_', '-')}", str(value)]
    for name, value in settings.unusual.items():
        words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    if settings.temperature > 0.0:
        words += ["--temperature", f"{settings.temperature:g}"]
    return words


METHODS = {"sd": "draft_model", "pld": "ngram"}
"""What engines call the policies that they have."""


def engine_lines(settings: Settings, target: str, draft: str) -> dict[str, str]:
    """Command lines of engines for a setting, by engine; empty where none has it.

    vLLM drafts greedily unless told otherwise, also at a temperature above 0, where we sample by default.
    """
    method = METHODS.get(settings.policy)
    if method is None or settings.lookahead is None:
        return {}
    model = draft if method == "draft_model" else None
    config = vllm_config(
        settings.lookahead,
        method=method,
        model=model,
        draft_sampled=model is not None and settings.sampling.draft_sampled,
    )
    flags = sglang_flags(settings.lookahead, method=method, model=model)
    start = f"python -m sglang.launch_server --model-path {shlex.quote(target)}"
    return {
        "vllm": shlex.join(["vllm", "serve", target, "--speculative-config", config]),
        "sglang": f"{start} {flags}",
    }
