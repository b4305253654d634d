"""What every live device promises, on real worker processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from live_support import new_rows, serve, texts_of, worker_specs
from plain_decoding import plain_decode
from transformers import PreTrainedModel

from calibrate.live.errors import LiveError, ModelError, StuckPolicy, WorkerDied, WorkerError
from calibrate.live.transport.world import LiveWorld
from calibrate.live.wire import Echo, Probe, ProbeResult
from policies.operation import Draft, Prefill, Verify
from policies.registry import configure
from policies.timeline import busy_seconds, overlap_seconds
from policies.values import Speculation

REPOSITORY = Path(__file__).parents[2]
ENDLESS = 100_000


def test_tasks_fire_once_in_order_and_submit_does_not_wait(world: LiveWorld) -> None:
    fired: list[int] = []

    def policy() -> Iterator[Any]:
        tasks = [world.draft.submit(Probe(repeats=ENDLESS))]
        # Far more than a pipe holds, while the worker reads nothing but its probe's stop requests.
        tasks += [world.draft.submit(Echo((i,) * 5_000)) for i in range(200)]
        assert not any(task.triggered for task in tasks)
        assert world.draft.outstanding == len(tasks)
        for i, task in enumerate(tasks):
            task.callbacks.append(lambda event, i=i: fired.append(i))
        tasks[0].stop()
        probe = yield tasks[0]
        assert isinstance(probe, ProbeResult)
        assert len(probe.durations_s) < ENDLESS
        last = yield tasks[-1]
        assert last == (199,) * 5_000
        assert [task.value[0] for task in tasks[1:]] == list(range(200))
        tasks[0].stop()  # a no-op by now

    world.run(policy())
    assert fired == list(range(201))
    timings = world.timings()
    assert [timing.queued for timing in timings] == [False] + [True] * 200
    assert all(a.end_s <= b.start_s for a, b in pairwise(timings))
    assert all(t.submit_s <= t.start_s <= t.end_s <= t.arrival_s for t in timings)


def test_stop_gives_the_partial_draft(world: LiveWorld, draft_model: PreTrainedModel) -> None:
    prompt = (3, 1, 4)

    def policy() -> Iterator[Any]:
        rows = new_rows([prompt])
        rows.admit()
        view = rows.view()
        yield world.draft.submit(Prefill(view, rows.prompts(view)))
        unseen = (1,)
        long = world.draft.submit(Draft(view, ENDLESS, unseen))
        queued = world.draft.submit(Echo())
        behind = world.draft.submit(Draft(view, ENDLESS, unseen))
        behind.stop()  # has not begun
        yield world.environment.timeout(0.05)
        long.stop()
        partial = yield long
        length = partial.lengths[0]
        assert list(partial.tokens[0]) == plain_decode(draft_model, prompt, length)
        assert length < ENDLESS
        yield queued
        nothing = yield behind
        assert nothing.lengths == (0,)

    world.run(policy())


def test_a_failure_carries_the_remote_traceback_and_the_world_lives_on(
    world: LiveWorld, prompts: list[tuple[int, ...]], plain_texts: list[list[int]]
) -> None:
    def policy() -> Iterator[Any]:
        rows = new_rows([(1, 2, 3)])
        rows.admit()
        view = rows.view()
        yield world.target.submit(Prefill(view, rows.prompts(view)))
        world.draft.submit(Probe(repeats=ENDLESS))  # left behind; the world stops it
        world.target.submit(Verify(rows.view(), Speculation.empty(1)))
        wrong = msgspec.structs.replace(view, contexts=(view.contexts[0] + 4,))
        yield world.target.submit(Verify(wrong, Speculation.empty(1)))

    with pytest.raises(WorkerError, match="verify failed on worker 'target'") as caught:
        world.run(policy())
    assert "AuditError: cache of" in caught.value.remote_traceback
    assert "executor.py" in caught.value.remote_traceback
    assert not any(device.outstanding for device in world.devices)
    rows = serve(world, configure("saguaro"), prompts[:2], batch=2)
    assert texts_of(rows) == plain_texts[:2]


def test_a_stuck_policy_and_its_own_errors_come_out(world: LiveWorld) -> None:
    def stuck() -> Iterator[Any]:
        yield world.draft.submit(Echo())
        yield world.environment.event()

    def broken() -> Iterator[Any]:
        yield world.draft.submit(Echo())
        raise KeyError("mine")

    with pytest.raises(StuckPolicy):
        world.run(stuck())
    with pytest.raises(KeyError, match="mine"):
        world.run(broken())


def test_timeline_of_a_live_run(world: LiveWorld, prompts: list[tuple[int, ...]]) -> None:
    serve(world, configure("saguaro", lookahead=3, fanout=(2,)), prompts[4:7], batch=2)
    spans = world.spans
    assert {span.name for span in spans} == {"prefill", "verify", "prespeculate", "draft"}
    assert busy_seconds(spans, "target") > 0
    assert overlap_seconds(spans, "target", "draft") > 0
    passes = [span for span in spans if span.name == "prespeculate"]
    assert all([name for name, _ in s.details["steps"]] == ["glue", "tree", "tree", "tree"] for s in passes)
    assert {tuple(s.details["requests"]) for s in passes} >= {(0, 1)}
    for timing in world.timings():
        model_s = sum(step.end_s - step.start_s for step in timing.steps)
        assert 0 < model_s <= timing.end_s - timing.start_s
        assert 1 <= timing.rows <= 2
        assert timing.context > 0
        assert {step.rows for step in timing.steps} == {timing.rows}
        assert timing.tokens <= sum(step.rows * step.width for step in timing.steps)
    assert {t.width for t in world.timings() if t.operation == "prespeculate"} == {8}
    world.clear_records()
    assert not world.spans
    assert not world.timings()


def test_pairs_that_do_not_fit(pair: tuple[str, str], other_vocabulary: str) -> None:
    target, draft = worker_specs((pair[0], other_vocabulary))
    with pytest.raises(ModelError, match=r"vocabularies differ.*has 64.*has 80"):
        LiveWorld(target, draft)
    with pytest.raises(ValueError, match="several workers are called 'target'"):
        LiveWorld(target, target)


def test_a_model_that_cannot_be_loaded(pair: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((Path(pair[0]) / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor")
    target, _ = worker_specs((str(tmp_path), pair[1]))
    with pytest.raises(WorkerError, match="loading") as caught:
        LiveWorld(target)
    assert "Traceback" in caught.value.remote_traceback
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    with pytest.raises(
        WorkerError, match=r"^loading .* failed on worker 'target': .*model\.safetensors.*"
    ) as caught:
        LiveWorld(target)
    assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)


def test_a_dead_worker_is_named_and_nothing_is_left(pair: tuple[str, str]) -> None:
    def policy() -> Iterator[Any]:
        task = world.target.submit(Probe(repeats=ENDLESS))
        os.kill(pid, signal.SIGKILL)
        yield task

    with LiveWorld(worker_specs(pair)[0]) as world:
        assert world.end_token_ids == ()
        with pytest.raises(LiveError, match="without a draft"):
            _ = world.draft
        process = world.target.link.process
        pid = process.pid
        assert pid is not None
        with pytest.raises(WorkerDied, match="worker 'target' died with exit code -9"):
            world.run(policy())
    assert not process.is_alive()
    with pytest.raises(LiveError, match="closed"):
        world.run(policy())


SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts with it ignored
import sys
from calibrate.live.wire import Probe
from calibrate.live.placement import WorkerSpec, available_cores
from calibrate.live.transport.world import LiveWorld

def policy(world):
    yield world.target.submit(Probe(repeats=100_000_000))

if __name__ == "__main__":
    assert "torch" not in sys.modules and "transformers" not in sys.modules
    with LiveWorld(WorkerSpec("target", sys.argv[1], available_cores()[:1])) as world:
        print(world.target.link.process.pid, flush=True)
        world.run(policy(world))
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_parent(pair: tuple[str, str], tmp_path: Path, ending: signal.Signals) -> None:
    """Ctrl-C reaches the whole process group; a killed parent can tell nobody."""
    script = tmp_path / "endless.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), pair[0]]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        line = parent.stdout.readline()
        assert line, parent.stderr.read().decode()
        worker = os.pidfd_open(int(line))
        try:
            if ending == signal.SIGINT:
                os.killpg(parent.pid, ending)
            else:
                parent.send_signal(ending)
            assert parent.wait(60) != 0
            gone, _, _ = select.select([worker], [], [], 60)
            assert gone, "the worker is still there"
        finally:
            os.close(worker)
        if ending == signal.SIGINT:
            assert "KeyboardInterrupt" in parent.stderr.read().decode()
