"""What a killed process leaves among the temporary files goes with the next run; the living keep theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from calibrate.processes import clear_leftovers

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from calibrate.processes import temporary_folder
from calibrate.processes import process_context

if __name__ == "__main__":
    process_context()
    folder, owner = temporary_folder()
    (folder / "target.stderr").touch()
    print("there", flush=True)
    sys.stdin.read()
"""
NEXT = "from calibrate.processes import process_context; process_context()"


def names(folder: Path) -> list[str]:
    return sorted(path.name.split("-")[0] for path in folder.iterdir())


def test_a_killed_process_is_cleared_up_after(tmp_path: Path) -> None:
    temporary, script = tmp_path / "tmp", tmp_path / "script.py"
    temporary.mkdir()
    script.write_text(SCRIPT)
    (temporary / "pymp-of-another-program").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}

    def start() -> subprocess.Popen[str]:
        running = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert running.stdout is not None and running.stdout.readline() == "there\n"
        return running

    with start() as dead, start() as living:
        assert names(temporary) == ["pymp", "pymp", "pymp", "spectwin", "spectwin"]
        assert clear_leftovers(temporary) == [], "both live"
        dead.send_signal(signal.SIGKILL)
        dead.wait(60)
        before = set(temporary.iterdir())
        subprocess.run([sys.executable, "-c", NEXT], env=environment, check=True)
        gone = before - set(temporary.iterdir())
        assert sorted(path.name.split("-")[0] for path in gone) == ["pymp", "spectwin"]
        assert names(temporary) == ["pymp", "pymp", "spectwin"], "another program's, and the living one's"
        living.communicate()
    assert clear_leftovers(temporary) and names(temporary) == ["pymp"]
