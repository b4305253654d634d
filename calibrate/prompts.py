"""Prompt sets, one JSON object a line.

Spec-Bench's have `question_id`, `category` and `turns`, whose first is used; of others `prompt` is enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol, TypeVar

from calibrate.shipped import PROMPTS
from hardware_profiles.files import FileRefused, parse_json, read_text


class PromptError(ValueError):
    """A prompt file cannot be used; the message names the file and line."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: the first turn, and the document it was cut from; empty if the file does not say."""

    question_id: int
    category: str
    text: str
    source: str = ""


def find_prompts(name_or_path: str) -> Path:
    """`calibration` or `heldout` (shipped with the pair), or a file.

    Raises:
        PromptError: Neither.
    """
    if name_or_path in PROMPTS:
        return PROMPTS[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        raise PromptError(f"no prompt file {name_or_path!r}; shipped sets: {', '.join(PROMPTS)}")
    return path


def choose_prompts(name_or_path: str, count: int | None = None, *, half: bool = False) -> list[Prompt]:
    """Prompts of a set or file: all, or `count` (or half) of them, taken from every category.

    Raises:
        PromptError: There is no such set or file, or it cannot be used.
    """
    prompts = load_prompts(find_prompts(name_or_path))
    if count is None and half:
        count = -(-len(prompts) // 2)
    return prompts if count is None else spread(prompts, count)


def load_prompts(path: Path) -> list[Prompt]:
    """All prompts of a file.

    Raises:
        PromptError: Not JSONL, a field missing or empty, an id twice, or no prompt at all.
    """
    try:
        lines = read_text(path).splitlines()
    except FileRefused as error:
        raise PromptError(str(error)) from error
    prompts: dict[int, Prompt] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        plain = str(path).endswith(".txt")
        prompt = Prompt(number, "prompts", line, "") if plain else _parse(line, number, f"{path}:{number}")
        if prompt.question_id in prompts:
            raise PromptError(f"{path}:{number}: question_id {prompt.question_id} occurs twice")
        prompts[prompt.question_id] = prompt
    if not prompts:
        raise PromptError(f"{path}: no prompt in it")
    return list(prompts.values())


def _parse(line: str, number: int, where: str) -> Prompt:
    try:
        row: dict[str, Any] = parse_json(line)
        text = row["prompt"] if "prompt" in row else row["turns"][0]
        if "prompt" in row:
            row = {"question_id": number, "category": "prompts", **row}
        prompt = Prompt(int(row["question_id"]), str(row["category"]), text, str(row.get("source", "")))
    except FileRefused as error:
        raise PromptError(
            f'{where}: expected {{"prompt": "..."}} or a Spec-Bench row: {error}; or .txt, a prompt a line'
        ) from error
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise PromptError(
            f'{where}: expected {{"prompt": "..."}}, or question_id, category and turns ({error!r})'
        ) from error
    if not isinstance(text, str) or not text.strip():
        raise PromptError(f"{where}: the prompt is empty")
    return prompt


class Categorised(Protocol):
    """Whatever is of a category of prompts."""

    @property
    def category(self) -> str:
        """Of the prompt."""
        ...


OfPrompt = TypeVar("OfPrompt", bound=Categorised)


def spread(items: Iterable[OfPrompt], count: int | None = None) -> list[OfPrompt]:
    """`count` items (None: all), taken in turn from every category, so that a small sample is a fair one."""
    by_category: dict[str, list[OfPrompt]] = {}
    for item in items:
        by_category.setdefault(item.category, []).append(item)
    turns = zip_longest(*by_category.values())
    return [item for turn in turns for item in turn if item is not None][:count]
