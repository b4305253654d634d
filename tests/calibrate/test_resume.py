"""A calibration that is killed goes on where it was, and ends as if nothing had happened.

`pytest tests/calibrate/test_resume.py --kills 10` kills more often; two are enough for every day.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from small_calibration import PIECES, PLAN, small_job

import calibrate.record
from calibrate.calibration import run_calibration, trace_path
from calibrate.job import Job, inputs
from calibrate.journal import Journal, open_journal
from hardware_profiles.profile import Profile, load_profile
from hardware_profiles.trace import Trace, read_trace, write_trace

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATIENCE_S = 300.0
pytestmark = pytest.mark.slow


def start(pair: tuple[str, str], out: Path) -> subprocess.Popen[bytes]:
    """The small calibration as a process."""
    command = [sys.executable, str(HERE / "small_calibration.py"), *pair, str(out)]
    # The rest as here: variables may choose the kernels of linear algebra, which differ in a fit's last bits.
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}"})


def descendants(parent: int) -> set[int]:
    """Processes that a process started, and those that these did."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found: set[int] = set()
    while more := {pid for pid, above in parents.items() if above in {parent, *found}} - found:
        found |= more
    return found


def lives(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def lines(out: Path) -> bytes:
    """The complete lines of the unfinished work."""
    for path in out.glob(".small.partial/*.jsonl"):
        text = path.read_bytes()
        return text[: text.rfind(b"\n") + 1]
    return b""


def kill_after(process: subprocess.Popen[bytes], out: Path, pieces: int, delay_s: float) -> bool:
    """Kill it a moment after so many pieces are done; False if it had ended before."""
    deadline = time.monotonic() + PATIENCE_S
    while lines(out).count(b"\n") < pieces and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(delay_s)
    children = descendants(process.pid)
    ended = process.poll() is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(map(lives, children)):
        assert time.monotonic() < deadline, f"orphans: {[pid for pid in children if lives(pid)]}"
        time.sleep(0.05)
    return not ended


@pytest.fixture(scope="module")
def finished(
    request: pytest.FixtureRequest, pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Job, Path, list[bytes]]:
    """A calibration killed several times: its job, its folder, and what each kill left."""
    out = tmp_path_factory.mktemp("out")
    luck = random.Random(11)
    left: list[bytes] = []
    kills = request.config.getoption("kills", 2)
    for pieces in sorted(luck.choices(range(2, PIECES), k=kills)):
        if not kill_after(start(pair, out), out, pieces, luck.uniform(0.0, 0.3)):
            break
        for path in out.glob("*.parquet"):  # killed while results were written: each is whole, or not there
            read_trace(path)
        left.append(lines(out))
    assert start(pair, out).wait(PATIENCE_S) == 0
    return small_job(*pair), out, left


@pytest.mark.skipif(sys.platform != "linux", reason="looks for orphans in /proc")
def test_nothing_done_is_done_again(finished: tuple[Job, Path, list[bytes]]) -> None:
    _, out, left = finished
    history = [*left, (out / "journal.jsonl").read_bytes()]
    for before, after in pairwise(history):
        assert after.startswith(before)
    assert not (out / ".small.partial").exists()


def test_the_traces_are_those_of_an_undisturbed_recording(
    finished: tuple[Job, Path, list[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, out, _ = finished

    def here(function, arguments, report):  # type: ignore[no-untyped-def]
        return [function(argument, report) for argument in arguments]

    monkeypatch.setattr(calibrate.record, "run_many", here)
    for temperature in job.temperature:
        found = trace_path(job, temperature, out)
        alone = calibrate.record.record_trace(job, temperature)
        write_trace(at_the_same_time(alone, read_trace(found)), tmp_path / "t.parquet")
        assert (tmp_path / "t.parquet").read_bytes() == found.read_bytes()


def at_the_same_time(trace: Trace, other: Trace) -> Trace:
    """A trace that says it was recorded when another was."""
    return replace(trace, meta=trace.meta.but(when=other.meta.when))


def test_the_profile_is_complete_and_follows_from_the_pieces(
    finished: tuple[Job, Path, list[bytes]], tmp_path: Path
) -> None:
    job, out, left = finished
    profile = load_profile(out / "small.json")
    for grid in PLAN.grids:
        cost = profile.operations[grid.operation]  # type: ignore[index]
        assert {point.at for point in cost.points} == set(grid.points) - set(grid.held_out)  # type: ignore[union-attr]
        assert len(cost.block_factors) == PLAN.repeats  # type: ignore[union-attr]
    assert {(r.policy, r.batch, r.temperature) for r in profile.measured_runs} == {
        (p, b, t) for p in ("ar", "sd", "pearl", "saguaro") for b, t in ((1, 0.0), (2, 0.0), (1, 1.0))
    }
    assert set(profile.host.operations) == {"decode", "verify", "draft", "prespeculate", "continue"}
    assert set(profile.host.sampled) == {*profile.host.operations, "settle"}
    assert (profile.provenance.note or "").count("resumed at") == bool(left)
    # From the complete journal alone, without a worker, the same profile comes out.
    copy = tmp_path / "journal.jsonl"
    copy.write_bytes((out / "journal.jsonl").read_bytes())
    with Journal(copy) as journal:
        again = run_calibration(job, lambda *_: None, journal=journal, what=PLAN).profile
    assert unnoted(again) == unnoted(profile)


def unnoted(profile: Profile) -> Profile:
    """The profile without the note of when it was resumed."""
    return profile.but(provenance=profile.provenance.but(note=None))


def test_what_is_left_belongs_to_its_inputs(pair: tuple[str, str], tmp_path: Path) -> None:
    job = small_job(*pair)
    with open_journal(tmp_path, inputs(job, PLAN)) as journal:
        journal.put([], "grids", 0)
    for other in (
        replace(job, seed=4),
        replace(job, max_tokens=13),
        replace(job, temperature=(0.0,)),
        replace(job, prompts=job.prompts[:3]),
        replace(job, draft=job.target),
    ):
        with open_journal(tmp_path, inputs(other, PLAN)) as journal:
            assert not journal.has("grids", 0)
    with open_journal(tmp_path, inputs(small_job(*pair), PLAN)) as journal:
        assert journal.has("grids", 0)
