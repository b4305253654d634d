"""Every reader on damaged files: a valid run, or one line that names the file and what is wrong in it."""

import json
from pathlib import Path
from typing import Any

import pytest
from fuzzing import MUTATIONS, Format, Unguarded, all_formats, fuzz


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> list[Format]:
    return all_formats(tmp_path_factory.mktemp("samples"))


def test_no_damaged_file_gets_past_its_reader(formats: list[Format], tmp_path: Path) -> None:
    counts = {fmt.name: fuzz(fmt, MUTATIONS, tmp_path) for fmt in formats}
    assert len(counts) == len(formats) > 40
    assert all(count.mutations == count.accepted + count.refused == MUTATIONS for count in counts.values())
    # Damage that nothing refuses would be no damage; a reader that accepts all of it checks nothing.
    refused = sum(count.refused for count in counts.values())
    assert refused > len(counts) * MUTATIONS // 3
    assert [name for name, count in counts.items() if not count.refused and "profile" in name] == []


@pytest.mark.parametrize(
    ("read", "caught"),
    [
        (lambda path: json.loads(path.read_text())["roles"]["target"]["device"]["kind"].upper(), "Error"),
        (lambda path: _refuse(path, "x"), "no file is named"),
        (lambda path: _refuse(path, f"{path}: a\nb"), "more than a line"),
        (lambda path: _refuse(path, str(path)), "no reason"),
    ],
)
def test_a_reader_without_a_guard_is_caught(
    formats: list[Format], tmp_path: Path, read: Any, caught: str
) -> None:
    sound = next(fmt for fmt in formats if fmt.name == "profile by hand")
    with pytest.raises(Unguarded, match=caught):
        fuzz(Format("planted", sound.sample, read), 40, tmp_path)


def _refuse(path: Path, said: str) -> None:
    try:
        json.loads(path.read_text())["roles"]["target"]["device"]["kind"].upper()
    except Exception as error:
        raise ValueError(said) from error


def test_the_same_seed_does_the_same_damage(formats: list[Format], tmp_path: Path) -> None:
    fmt = next(fmt for fmt in formats if fmt.name == "prompts")
    assert fuzz(fmt, 8, tmp_path) == fuzz(fmt, 8, tmp_path)
