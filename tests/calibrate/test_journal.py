"""The journal: what survives a kill, a cut line and a second process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.journal import Journal, JournalError, open_journal, other_inputs, pack, unpack

INPUTS = {"seed": 1, "target": "a"}


def test_pieces_are_there_again(tmp_path: Path) -> None:
    with open_journal(tmp_path / ".work", INPUTS) as journal:
        journal.put([1, 2.5, None], "grids", 0)
        assert journal.once(lambda: "made", "messages") == "made"
    with open_journal(tmp_path / ".work", INPUTS) as again:
        assert again.get("grids", 0) == [1, 2.5, None]
        assert again.once(lambda: "made anew", "messages") == "made"
        assert again.resumed == {"grids": 1, "messages": 1}
        assert not again.has("grids", 1)
        again.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lost", range(1, 12))
def test_a_cut_last_line_is_dropped_and_written_again(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        journal.put("first", "a")
        journal.put("second", "b")
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    with Journal(path) as again:
        assert again.get("a") == "first" and not again.has("b")
        again.put("second", "b")
    assert path.read_bytes() == whole


def test_a_damaged_line_costs_that_piece_only(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        for name in "abc":
            journal.put(name * 3, name)
    path.write_bytes(path.read_bytes().replace(b"bbb", b"bxb"))
    with Journal(path) as again:
        assert [again.has(name) for name in "abc"] == [True, False, True]
        again.put("bbb", "b")
    with Journal(path) as last:
        assert [last.get(name) for name in "abc"] == ["aaa", "bbb", "ccc"]


def test_other_inputs_have_a_file_of_their_own(tmp_path: Path) -> None:
    with open_journal(tmp_path, INPUTS) as journal:
        journal.put(1, "grids", 0)
    with open_journal(tmp_path, INPUTS | {"seed": 2, "mode": "eager"}) as other:
        assert not other.has("grids", 0)
        assert other_inputs(other) == ["mode", "seed"]
    with open_journal(tmp_path, INPUTS) as journal:
        assert journal.has("grids", 0)
    with open_journal(tmp_path, INPUTS, fresh=True) as journal:
        assert not journal.has("grids", 0) and other_inputs(journal) == []


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with (
        open_journal(tmp_path, INPUTS),
        pytest.raises(JournalError, match="another calibration of that name is running"),
        open_journal(tmp_path, INPUTS),
    ):
        pass


HOLD = """
import sys
from pathlib import Path
from calibrate.journal import open_journal
with open_journal(Path(sys.argv[1]), {"seed": 1, "target": "a"}) as journal:
    journal.put(1, "grids", 0)
    print("held", flush=True)
    sys.stdin.readline()
    journal.put(2, "grids", 1)
"""


@pytest.mark.parametrize("inputs", [INPUTS, INPUTS | {"seed": 2}], ids=["same inputs", "other inputs"])
@pytest.mark.parametrize("fresh", [True, False])
def test_the_journal_of_a_running_process_is_not_touched(
    tmp_path: Path, inputs: dict[str, Any], fresh: bool
) -> None:
    """Neither by `--fresh`, nor by a run with other inputs, which would remove it at its end."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "work")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stdout.readline() == "held\n"
        with pytest.raises(JournalError, match="another calibration of that name is running"):
            open_journal(tmp_path / "work", inputs, fresh=fresh)
        running.communicate("\n")
    assert running.returncode == 0
    with open_journal(tmp_path / "work", INPUTS) as journal:
        assert journal.stage("grids") == [1, 2]


def test_a_folder_that_is_removed_while_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    work = tmp_path / "work"
    first = open_journal(work, INPUTS)
    locked = fcntl.flock

    def late(file: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", locked)
        first.discard()  # between the opening of the lock and its taking
        locked(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with open_journal(work, INPUTS) as journal:
        journal.put(1, "grids", 0)
        with pytest.raises(JournalError):
            open_journal(work, INPUTS)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    def measure() -> None:
        with Journal(tmp_path / "j.jsonl") as journal:
            assert journal._file is not None
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, journal._file.fileno())
            os.close(full)
            journal.put(1, "grids", 0)

    with pytest.raises(OSError, match=r"No space left on device: '.*j\.jsonl'"):
        measure()


def test_arrays_come_back_bit_by_bit() -> None:
    for array in (
        np.array([[1.5, -np.inf], [np.pi, 0.0]], dtype=np.float32),
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.zeros((0, 4)),
    ):
        again = unpack(pack(array))
        assert again.dtype == array.dtype and np.array_equal(again, array)


def test_without_a_file_it_is_a_memory() -> None:
    with Journal() as journal:
        journal.put(1, "a")
        assert journal.get("a") == 1 and journal.stage("a") == [1]
        journal.discard()
