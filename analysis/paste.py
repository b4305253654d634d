"""Settings ready to paste into our own commands; `simulator.imports.export` has those of engines."""

from __future__ import annotations

import shlex

from analysis.sources import Sources
from policies.registry import Settings, find_policy


def simulate_line(
    settings: Settings,
    sources: Sources,
    *,
    batch: int = 1,
    requests: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> str:
    """The `simulate` command of a setting, with every option that changes its answer.

    Args:
        settings: The setting.
        sources: Profile, traces and category of prompts.
        batch: Rows served at once.
        requests: How many requests are served; None: as many as `simulate` serves by default.
        limit: Most tokens per request; None: as recorded.
        seed: Keys latency noise and luck.
    """
    words = ["simulate", "--hw", sources.hw or sources.profile.name]
    if settings.temperature in sources.files:
        words += ["--trace", sources.files[settings.temperature]]
    words += ["--policy", settings.policy, *knobs(settings), "--batch", str(batch)]
    traffic = {"--prompt-category": sources.category, "--requests": requests, "--max-tokens": limit}
    traffic["--seed"] = seed or None
    for option, value in traffic.items():
        words += [] if value is None else [option, str(value)]
    return shlex.join(words)


def validate_line(
    settings: Settings,
    sources: Sources,
    *,
    target: str,
    draft: str,
    batch: int = 1,
    limit: int | None = None,
) -> str | None:
    """The command that would check a setting live; None where none would.

    `validate` has not every knob.  Where it does not reach, the study `family` runs requests one by one.
    """
    if not _beyond_validate(settings):
        words = ["validate", "--target", target, "--draft", draft, "--policies", settings.policy]
        words += [*knobs(settings), "--batch", str(batch), "--count", str(max(6, 2 * batch))]
        words += [] if limit is None else ["--max-tokens", str(limit)]
        return shlex.join(words)
    if batch > 1 or "live" not in find_policy(settings.policy).worlds:
        return None
    words = [
        "python",
        "-m",
        "analysis",
        "run",
        "family",
        "--live",
        "--hw",
        sources.hw or sources.profile.name,
    ]
    return shlex.join([*words, "--setting", text_of(settings), "--temperature", f"{settings.temperature:g}"])


def _beyond_validate(settings: Settings) -> bool:
    uneven = settings.fanout_backup is not None or len(set(settings.fanout or (1,))) > 1
    return uneven or bool(settings.unusual) or find_policy(settings.policy).needs_decisions


def text_of(settings: Settings) -> str:
    """A setting as `--setting` takes it, e.g. `mirror lookahead=3 kappa=1`."""
    words = knobs(settings)[: -2 if settings.temperature > 0.0 else None]
    names = [word.removeprefix("--").replace("-", "_") for word in words[::2]]
    pairs = (f"{name}={value}" for name, value in zip(names, words[1::2], strict=True))
    return " ".join([settings.policy, *pairs])


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
