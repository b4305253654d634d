"""Schedules of tiny engines by hand; and what holds of every run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.loop import serve
from serving.metrics import Served
from serving.scheduler import EngineOptions, Scheduler, Step
from serving.traffic import ServedRequest, Traffic


@dataclass
class Clock:
    """A step takes a second; every `rejects`-th verification accepts nothing, the others all."""

    lookahead: int = 0
    rejects: int = 2
    now: float = 0.0
    log: list[str] = field(default_factory=list)
    verified: int = 0

    def wait_until(self, at_s: float) -> None:
        self.now = at_s

    def run(self, step: Step) -> tuple[list[int], int]:
        self.now += 1.0
        decodes = [f"{row.place}x{width}" for row, width in zip(step.decodes, step.widths, strict=True)]
        self.log.append(" ".join([*decodes, *(f"{row.place}:{h}+{n}" for row, n, h in step.chunks)]))
        accepted = []
        for width in step.widths:
            self.verified += 1
            accepted.append(0 if self.verified % self.rejects == 0 else width - 1)
        return accepted, self.lookahead


def run(
    requests: list[tuple[float, int, int]], engine: Clock | None = None, **options: int | bool
) -> tuple[Served, Clock]:
    engine = engine or Clock()
    traffic = Traffic(tuple(ServedRequest(*each) for each in requests), "tiny")
    small = {"max_num_seqs": 4, "max_num_batched_tokens": 8, "block_size": 4, **options}
    return serve(traffic, EngineOptions(**small), engine), engine  # type: ignore[arg-type]


def test_running_rows_first_then_chunks() -> None:
    # Budget 8: request 0 reads 6, request 1 what is left of it; a token of 0 comes before the rest of 1.
    served, engine = run([(0.0, 6, 3), (0.0, 5, 2)])
    assert engine.log == ["0:0+6 1:0+2", "0x1 1:2+3", "0x1 1x1"]
    assert served.ttft_s.tolist() == [1.0, 2.0]
    assert served.tpot_s.tolist() == [1.0, 1.0]
    assert served.counts.emitted == 5 and served.steps == 3


def test_rows_are_capped() -> None:
    _, engine = run([(0.0, 1, 2)] * 3, max_num_seqs=2)
    assert engine.log == ["0:0+1 1:0+1", "0x1 1x1", "2:0+1", "2x1"]


def test_a_whole_prompt_waits_for_a_step_with_room() -> None:
    _, engine = run([(0.0, 5, 2), (0.0, 5, 1)], enable_chunked_prefill=False)
    assert engine.log == ["0:0+5", "0x1 1:0+5"]


def test_requests_wait_for_their_time() -> None:
    served, engine = run([(0.0, 2, 1), (5.5, 2, 1)])
    assert engine.now == 6.5
    assert served.ttft_s.tolist() == [1.0, 1.0]


def test_a_call_waits_for_the_one_before_it() -> None:
    traffic = Traffic((ServedRequest(0.0, 2, 2), ServedRequest(0.0, 2, 1, after=0, pause_s=1.5)), "session")
    served = serve(traffic, EngineOptions(), Clock())
    assert served.arrival_s.tolist() == [0.0, 3.5]  # two steps, then its tool
    assert served.last_s.tolist() == [2.0, 4.5]


def test_users_of_a_closed_loop() -> None:
    traffic = Traffic((ServedRequest(0.0, 1, 2),) * 6, "loop")
    served = serve(traffic, EngineOptions(), Clock(), max_concurrency=2)
    assert served.arrival_s.tolist() == [0, 0, 2, 2, 4, 4]
    assert served.e2el_s.tolist() == [2.0] * 6


def test_verification_takes_its_share_of_the_budget() -> None:
    # K = 2: the first token comes from the prompt, then rounds of 3 tokens; the second rejects all.
    served, engine = run([(0.0, 2, 6)], Clock(lookahead=2))
    assert engine.log == ["0:0+2", "0x3", "0x3", "0x3"]  # 1, then 3, 1 and the sixth alone
    assert (served.counts.accepted, served.counts.rejected) == (4, 2 + 2)
    # A budget of 4 has room for one row's 3 tokens and one of the other's.
    _, engine = run([(0.0, 2, 9), (0.0, 2, 9)], Clock(lookahead=2, rejects=99), max_num_batched_tokens=4)
    assert engine.log[:2] == ["0:0+2 1:0+2", "0x3 1x1"]


def test_the_newest_is_preempted_and_computed_again() -> None:
    # 4 blocks of 4 tokens.  After the prompts of 4 and four words more both have filled two; the ninth token
    # of 0 needs a third: 1 goes, and comes back when 0 has ended, its five words as prompt: 8 tokens and 1.
    served, engine = run([(0.0, 4, 6), (0.0, 4, 6)], num_gpu_blocks=4, enable_prefix_caching=False)
    assert engine.log == ["0:0+4 1:0+4", *["0x1 1x1"] * 4, "0x1", "1:0+8", "1x1"]
    assert served.gaps.tolist() == [[1.0, 9.0], [3.0, 1.0]]  # the ninth and tenth words of 1 are 3 s apart
    assert served.counts.preemptions == 1
    assert served.counts.lost == 8


def test_a_known_beginning_is_not_read_again() -> None:
    shared = ServedRequest(0.0, 9, 1, blocks=(1, 2))
    later = ServedRequest(2.0, 9, 1, blocks=(1, 2))
    whole = ServedRequest(4.0, 8, 1, blocks=(1, 2))  # known to its end: its last block is computed again
    options = EngineOptions(block_size=4, num_gpu_blocks=20)
    engine = Clock()
    served = serve(Traffic((shared, later, whole), "x"), options, engine)
    assert engine.log == ["0:0+9", "1:8+1", "2:4+4"]
    assert served.counts.hit == 12
    engine = Clock()
    serve(Traffic((shared, later), "x"), EngineOptions(block_size=4, enable_prefix_caching=False), engine)
    assert engine.log == ["0:0+9", "1:0+9"]


def test_what_was_freed_longest_ago_is_forgotten_first() -> None:
    # 3 blocks of 4.  The first text leaves (1), (2); the second takes the empty one and the last of these.
    first, second = ServedRequest(0.0, 8, 1, blocks=(1, 2)), ServedRequest(2.0, 7, 1, blocks=(3,))
    again = ServedRequest(4.0, 9, 1, blocks=(1, 2))
    engine = Clock()
    options = EngineOptions(max_num_seqs=2, block_size=4, num_gpu_blocks=3)
    serve(Traffic((first, second, again), "x"), options, engine)
    assert engine.log == ["0:0+8", "1:0+7", "2:4+5"]


requests = st.lists(
    st.tuples(st.floats(0, 20), st.integers(1, 30), st.integers(1, 12), st.integers(0, 2)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(
    asked=requests,
    lookahead=st.integers(0, 3),
    blocks=st.sampled_from([None, *range(12, 20)]),
    rows=st.integers(1, 6),
    caching=st.booleans(),
    users=st.sampled_from([None, 3]),
)
def test_nothing_is_lost(
    *,
    asked: list[tuple[float, int, int, int]],
    lookahead: int,
    blocks: int | None,
    rows: int,
    caching: bool,
    users: int | None,
) -> None:
    """Conservation of tokens, rows and blocks, and Little's law, of any run."""
    asked.sort(key=lambda each: each[0])
    traffic = Traffic(
        tuple(
            ServedRequest(at, p, o, tuple(10 * kind + i for i in range(p // 4)) if kind else ())
            for at, p, o, kind in asked
        ),
        "any",
    )
    options = EngineOptions(
        max_num_seqs=rows,
        max_num_batched_tokens=16,
        block_size=4,
        num_gpu_blocks=blocks,
        enable_prefix_caching=caching,
    )
    engine = Watched(lookahead, most_rows=rows, blocks=blocks)
    watched = Scheduler.schedule
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "schedule", lambda self: engine.see(self, watched(self)))
        served = serve(traffic, options, engine, max_concurrency=users)
    counts = served.counts
    assert counts.emitted == traffic.output_tokens
    # Of every request all is computed but its last token: read or found, or verified and kept, and not lost.
    computed = counts.read + counts.hit + counts.verified - counts.rejected - counts.lost
    assert computed == traffic.prompt_tokens + traffic.output_tokens - len(traffic.requests)
    assert engine.scheduler is not None and engine.scheduler.pool.used == 0
    assert (served.first_s > served.arrival_s).all() and (served.last_s >= served.first_s).all()
    # Little's law: the time that requests spend is the number of them in the system, summed over time.
    times = np.sort(np.concatenate([served.arrival_s, served.last_s]))
    inside = [(served.arrival_s <= t).sum() - (served.last_s <= t).sum() for t in times[:-1]]
    assert np.dot(inside, np.diff(times)) == pytest.approx(served.e2el_s.sum())
    if users is not None:
        assert max(inside, default=0) <= users


class Watched(Clock):
    """Looks at every step before it runs."""

    def __init__(self, lookahead: int, *, most_rows: int, blocks: int | None) -> None:
        super().__init__(lookahead)
        self.most_rows, self.blocks = most_rows, blocks
        self.scheduler: Scheduler | None = None

    def see(self, scheduler: Scheduler, step: Step | None) -> Step | None:
        self.scheduler = scheduler
        if step is not None:
            assert step.tokens <= 16 and len(scheduler.running) <= self.most_rows
            held = [block for row in scheduler.running for block in row.blocks]
            assert len(set(held)) == scheduler.pool.used <= (self.blocks or 10**9)
            for row in scheduler.running:
                assert len(set(row.blocks)) == len(row.blocks)
            for row, width in zip(step.decodes, step.widths, strict=True):
                assert row.computed + width <= 4 * len(row.blocks)
        return step
