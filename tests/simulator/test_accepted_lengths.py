"""SpecDecode-Bench's accepted lengths: rounds by hand, at every lookahead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from simulator.cli import main

LENGTHS = ([1, 4, 3, 2, 1], [1, 8, 7, 6, 5, 4, 3, 2, 1], [2], [1, 1, 3, 1])


def line(index: int, lengths: list[int]) -> str:
    text = [50 + 7 * i for i in range(len(lengths))]
    return json.dumps({"id": f"x{index}", "prompt_token_ids": [1, 2], "generated_token_ids": text,
                       "acc_ngram": {"acc_len": lengths}, "acc_eagle": {"acc_len": lengths}})  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "accepted.jsonl"
    file.write_text("\n".join(line(i, lengths) for i, lengths in enumerate(LENGTHS)))
    return file


def run(path: Path, *arguments: str) -> Result:
    asked = [
        "--acceptance",
        str(path),
        "--target-time",
        "1",
        "--draft-time",
        "0.1",
        "--requests",
        "3",
        "--json",
    ]
    return CliRunner().invoke(main, [*asked, *arguments])


def answer(path: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(path, *arguments).stdout)
    return found


def by_hand(lengths: list[int], lookahead: int) -> int:
    """The benchmark's own count."""
    done, rounds = 1, 0
    while done < len(lengths):
        done += min(lengths[done - 1], lookahead + 1)
        rounds += 1
    return rounds


def test_rounds_are_those_of_the_benchmark(path: Path) -> None:
    # 1 4 3 2 1 at K = 1: 1, 2, 4, 6: three rounds; the text of one token has none.
    assert [by_hand(LENGTHS[0], k) for k in (1, 2)] == [3, 2] and by_hand(LENGTHS[2], 1) == 0
    for lookahead in range(1, 9):
        expected = sum(by_hand(lengths, lookahead) for lengths in LENGTHS)
        found = answer(path, "--policy", "sd", "--lookahead", str(lookahead))
        assert (found["rounds"], found["tokens"]) == (expected, 4 + 8 + 3)


def test_other_policies_read_the_text(path: Path) -> None:
    # Nothing in these texts comes twice: every round of prompt lookup emits one token.
    assert answer(path, "--policy", "pld", "--lookahead", "2")["rounds"] == 15
    assert answer(path, "--policy", "ar", "--max-tokens", "2")["tokens"] == 6
    assert "hits of a speculation cache" in run(path, "--policy", "saguaro").stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", r"accepted.jsonl:1: expected a line of SpecDecode-Bench"),
        ("[1", "accepted.jsonl:1: is not JSON"),
        (line(0, [1, 0]), "acc_len: expected numbers from 1 on"),
        (line(0, [1]), "no text has a token to decode"),
    ],
)
def test_damage_is_named(path: Path, text: str, said: str) -> None:
    path.write_text(text)
    result = run(path, "--policy", "sd")
    assert result.exit_code == 2 and said in result.stderr
