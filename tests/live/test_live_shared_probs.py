"""Shared laws: what is written is read, what was overwritten is refused, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_support import inline_world, new_rows, serve, worker_specs
from transformers import PreTrainedModel

from calibrate.live.errors import AuditError, LiveError, WorkerDied
from calibrate.live.shared_probs import ALIVE, Block, ProbsReader, ProbsWriter, Segment
from calibrate.live.transport.world import LiveWorld
from policies.registry import configure, start
from policies.sampling import FloatArray
from policies.values import IntArray

V = 7


@pytest.fixture
def segments() -> Iterator[list[Segment]]:
    made = [Segment(1 << 20) for _ in range(2)]
    yield made
    for segment in made:
        segment.close()


def owners(block: int, step: int) -> tuple[int, int, int]:
    """Request, position and token of a law, as these tests have them."""
    return 100 + block, 10 * block + step, (block + step) % V


def fill(writer: ProbsWriter, blocks: int, depth: int, seed: int) -> tuple[list[int], FloatArray]:
    """Write random laws; handles, and what the laws are when normalised, [blocks, depth, V]."""
    weights = np.random.default_rng(seed).random((blocks, depth, V)).astype(np.float32)
    block: Block = writer.reserve(blocks, depth, V)
    totals = weights.astype(np.float64).sum(axis=-1)
    for step in range(depth):
        whose = np.array([owners(b, step) for b in range(blocks)]).T
        block.write(step, weights[:, step], totals[:, step], tuple(whose))  # type: ignore[arg-type]
    return block.seal(), weights / totals[..., None]


def ask(reader: ProbsReader, handles: list[int], at: list[tuple[int, int]]) -> FloatArray:
    requests, positions, tokens = (np.array(column) for column in zip(*(owners(*a) for a in at), strict=True))
    return reader.masses(np.array(handles), requests, positions, tokens, V)


def test_what_is_written_is_read(segments: list[Segment]) -> None:
    writers = [ProbsWriter(segment, i) for i, segment in enumerate(segments)]
    reader = ProbsReader(segments)
    first, laws = fill(writers[0], 3, 2, seed=0)
    second, others = fill(writers[1], 1, 4, seed=1)
    found = reader.probs(np.array([first[2] + 1, second[0] + 3, first[0]]), V)
    assert found == pytest.approx(np.stack([laws[2, 1], others[0, 3], laws[0, 0]]))
    assert found.sum(axis=1) == pytest.approx(1.0)
    at = [(2, 1), (0, 3)]
    expected = [laws[2, 1, owners(2, 1)[2]], others[0, 3, owners(0, 3)[2]]]
    assert ask(reader, [first[2] + 1, second[0] + 3], at) == pytest.approx(expected)


def test_a_law_lives_as_long_as_it_may_be_needed(segments: list[Segment]) -> None:
    """Through a few operations of any sizes up to the largest; after a whole turn it is refused."""
    writer, reader = ProbsWriter(segments[0]), ProbsReader(segments)
    fill(writer, 6, 3, seed=0)
    written: list[tuple[list[int], FloatArray]] = []
    for i, blocks in enumerate((6, 2, 6, 2, 1, 6, 6, 3, 6, 1, 6, 6, 2, 6)):
        written.append(fill(writer, blocks, 3, seed=i))
        for handles, laws in written[-3:]:
            found = reader.probs(np.array(handles) + 1, V)
            assert found == pytest.approx(laws[:, 1])
    old: IntArray = np.array(written[-2 * ALIVE][0])
    with pytest.raises(AuditError, match="were overwritten"):
        reader.probs(old, V)
    for _ in range(ALIVE):
        writer.reserve(6, 3, V)  # reserved is overwritten, whether or not it was written yet
    with pytest.raises(AuditError, match="were overwritten"):
        reader.probs(np.array(written[-1][0]), V)


def test_a_law_knows_whose_it_is(segments: list[Segment]) -> None:
    handles, _ = fill(ProbsWriter(segments[0]), 3, 2, seed=0)
    reader = ProbsReader(segments)
    with pytest.raises(AuditError, match=r"\(101, 11, 2\) came with the distribution of \(100, 1, 1\)"):
        ask(reader, [handles[0] + 1], [(1, 1)])
    with pytest.raises(AuditError, match="without the distribution"):
        ask(reader, [-1], [(1, 1)])
    with pytest.raises(AuditError, match="of which this worker was told nothing"):
        ask(ProbsReader(), handles[:1], [(0, 0)])


def test_too_much_is_refused(segments: list[Segment], monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ProbsWriter(segments[0])
    with pytest.raises(LiveError, match=r"smaller fan-out, lookahead or batch, or more `ring_bytes`"):
        writer.reserve(1000, 100, V)

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(LiveError, match=r"no shared memory for .*No space left"):
        writer.reserve(2, 2, V)
    with pytest.raises(ValueError, match="at most 127 drafts"):
        ProbsWriter(segments[0], 127)


def test_sampled_drafts_need_memory(target_model: PreTrainedModel, draft_model: PreTrainedModel) -> None:
    world = inline_world(target_model, draft_model)
    world.draft.executor.writer = None
    with pytest.raises(AuditError, match="no memory for its distributions"):
        serve(world, configure("sd", temperature=1.0), [(1, 2, 3)])


def shared_memory() -> list[str]:
    """What this process holds of laws; they have no name that could outlive it."""
    gc.collect()
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except OSError:
            continue
    return sorted(link for link in links if "spectwin-probs" in link)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
@pytest.mark.parametrize("victim", ["target", "draft"])
def test_a_worker_killed_in_a_sampled_run_leaves_nothing(
    pair: tuple[str, str], prompts: list[tuple[int, ...]], victim: str
) -> None:
    """One clear error, no process, no memory."""
    before = shared_memory()
    settings = configure("saguaro", lookahead=3, fanout=(2,), temperature=1.0)
    with LiveWorld(*worker_specs(pair)) as world:
        assert len(shared_memory()) == len(before) + 1
        processes = {device.name: device.link.process for device in world.devices}
        rows = new_rows(prompts, batch=3)

        def fatal() -> Iterator[Any]:
            """The policy, with a death in the middle."""
            policy, answer = start(world, rows, settings), None
            while True:
                event = policy.send(answer)
                if rows.log.batch_rounds == 5:
                    os.kill(processes[victim].pid or 0, signal.SIGKILL)
                answer = yield event

        with pytest.raises(WorkerDied, match=f"worker '{victim}' died with exit code -9"):
            world.run(fatal())
    assert not any(process.is_alive() for process in processes.values())
    assert shared_memory() == before
