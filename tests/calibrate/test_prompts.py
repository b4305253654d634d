"""Prompt files: what is read and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrate.prompts import Prompt, PromptError, find_prompts, load_prompts, spread


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
    return path


def row(number: int, category: str = "a", text: str = "hello") -> dict[str, object]:
    return {"question_id": number, "category": category, "turns": [text, "second"]}


def test_the_first_turn_is_the_prompt(tmp_path: Path) -> None:
    found = load_prompts(write(tmp_path / "p.jsonl", row(81), "", row(82, "b")))
    assert found == [Prompt(81, "a", "hello"), Prompt(82, "b", "hello")]


def test_a_prompt_a_line_is_enough(tmp_path: Path) -> None:
    # Numbered by their lines; a category may be given, and other fields are passed over.
    found = load_prompts(
        write(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": "b", "category": "c", "x": 1})
    )
    assert found == [Prompt(1, "prompts", "a"), Prompt(2, "c", "b")]
    text = write(tmp_path / "p.txt", "Why?", "", '{"prompt": "a"}')
    assert [(p.question_id, p.text) for p in load_prompts(text)] == [(1, "Why?"), (3, '{"prompt": "a"}')]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["{"], ":1: expected .*Spec-Bench row.*or .txt, a prompt a line"),
        ([row(1), {"question_id": 2}], ":2: expected .*prompt.*, or question_id, category and turns"),
        ([{"prompt": 3}], ":1: the prompt is empty"),
        ([row(1), row(1)], "occurs twice"),
        ([row(1, text=" ")], "empty"),
        ([], "no prompt"),
    ],
)
def test_bad_files_name_the_line(tmp_path: Path, rows: list[object], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        load_prompts(write(tmp_path / "p.jsonl", *rows))


def test_unknown_names_list_the_shipped_sets() -> None:
    with pytest.raises(PromptError, match="calibration, heldout"):
        find_prompts("nothing-here")


def test_a_small_sample_has_all_categories() -> None:
    prompts = [Prompt(i, "abc"[i // 10], "x") for i in range(30)]
    assert [p.category for p in spread(prompts, 6)] == ["a", "b", "c"] * 2
    assert len(spread(prompts, 99)) == 30
