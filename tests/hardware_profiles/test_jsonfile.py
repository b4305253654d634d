import ast
import math
import os
from pathlib import Path

import pytest

from hardware_profiles.files import (
    DEEPEST,
    FileRefused,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    to_json,
    write_json,
)

ROOT = Path(__file__).parents[2]
PACKAGES = ("analysis", "calibrate", "hardware_profiles", "policies", "simulator")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "-1e400"])
def test_numbers_that_are_not_finite_are_refused_with_their_field(word: str) -> None:
    with pytest.raises(FileRefused, match=r"^roles\.0\.seconds: must be a finite number"):
        parse_json(f'{{"roles": [{{"seconds": {word}}}]}}')


def test_words_in_texts_are_no_numbers() -> None:
    assert parse_json('{"note": "NaN, Infinity, 1e999"}') == {"note": "NaN, Infinity, 1e999"}


def test_whole_numbers_have_64_bits() -> None:
    assert parse_json(f"[{2**63 - 1}, {-(2**63)}]") == [2**63 - 1, -(2**63)]
    with pytest.raises(FileRefused, match=r"^a: is a whole number beyond 64 bits"):
        parse_json(f'{{"a": {2**63}}}')
    with pytest.raises(FileRefused, match="too many digits"):
        parse_json("1" * 5000)


def test_depth_is_bounded() -> None:
    assert parse_json("[" * DEEPEST + "]" * DEEPEST)
    for levels in (DEEPEST + 2, 100_000):
        with pytest.raises(FileRefused, match="nested"):
            parse_json("[" * levels + "]" * levels)


def test_half_a_character_is_refused() -> None:
    with pytest.raises(FileRefused, match="lone surrogate"):
        parse_json(r'{"a": "\ud800"}')
    assert parse_json(r'["\ud83d\ude00"]') == ["\N{GRINNING FACE}"]


def test_a_file_and_its_line_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1,\n "b": }')
    with pytest.raises(FileRefused, match=r"a\.json:2: is not JSON"):
        read_json(path)
    path.write_bytes(b"\xff")
    with pytest.raises(FileRefused, match=r"a\.json: expected text in UTF-8"):
        read_text(path)


def test_what_never_ends_is_not_begun(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/zero"), tmp_path):
        with pytest.raises(FileRefused, match="is no regular file"):
            read_bytes(path)
    large = tmp_path / "large"
    large.write_bytes(bytes(2 * 1024 * 1024))
    with pytest.raises(FileRefused, match="larger than 1 MiB"):
        read_bytes(large, 1024 * 1024)


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b"])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(FileRefused) as caught:
        read_bytes(name)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nothing_that_is_not_finite_is_written(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match=r"^rows\.1\.speed is (nan|inf), which JSON cannot hold"):
        to_json({"rows": [{}, {"speed": value}]})
    with pytest.raises(ValueError, match="which JSON cannot hold"):
        write_json(tmp_path / "a.json", [value])
    assert not list(tmp_path.iterdir())


def test_all_json_goes_through_here() -> None:
    """Python's own module lets NaN through unless told otherwise every time, msgspec's writes null."""
    own = ROOT / "hardware_profiles" / "files.py"
    strangers = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if path != own
        for node in ast.walk(ast.parse(path.read_text()))
        if _is_json(node)
    ]
    assert not strangers


def _is_json(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name == "json" for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module == "json"
    return isinstance(node, ast.Attribute) and ast.unparse(node).startswith("msgspec.json")
