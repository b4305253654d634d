"""A file that is written is seen whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import pytest

from hardware_profiles.files import atomic_write


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    with atomic_write(path) as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")

    def write() -> None:
        with atomic_write(path) as file:
            file.write("half of the n")
            raise failure

    with pytest.raises(failure):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_first_write_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on purpose"), atomic_write(tmp_path / "a" / "b.bin", binary=True):
        raise ValueError("on purpose")
    assert list((tmp_path / "a").iterdir()) == []


def test_missing_folders_are_made_and_others_may_read_the_file(tmp_path: Path) -> None:
    path, plain = tmp_path / "a" / "b" / "c.txt", tmp_path / "plain.txt"
    plain.write_text("")
    with atomic_write(path) as file:
        file.write("é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_link_is_followed(tmp_path: Path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    with atomic_write(link, binary=True) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"), atomic_write(tmp_path) as file:
        file.write("text")
    with pytest.raises(OSError, match="not a regular file"), atomic_write("/dev/null") as file:
        file.write("text")
    assert Path("/dev/null").is_char_device()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("binary", [False, True])
def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binary: bool) -> None:
    def full(_: Path, mode: str, **__: Any) -> IO[Any]:
        return opened(Path("/dev/full"), mode.replace("x", "w"))

    opened = Path.open
    monkeypatch.setattr(Path, "open", full)
    path = tmp_path / "profile.json"
    named = r"No space left on device: '.*profile\.json'"
    with pytest.raises(OSError, match=named), atomic_write(path, binary=binary) as file:
        file.write(b"text" if binary else "text")
    assert not list(tmp_path.iterdir())
