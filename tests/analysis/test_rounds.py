"""Round-by-round comparison: what counts as agreement, and what excuses a difference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analysis.rounds import compare_rounds
from hardware_profiles.trace import Trace, TraceMeta, TraceRequest
from policies.registry import configure
from policies.rows import Round

SETTINGS = configure("saguaro", lookahead=2, fanout=(1,))
ROUNDS = [
    Round(request=0, round=0, position=0, length=2, source=1, accepted=2, emitted=3, bonus=7, hit=1),
    Round(request=0, round=1, position=3, length=2, source=1, accepted=0, emitted=1, bonus=9, hit=0),
]


def trace(gap: float) -> Trace:
    """Four positions; the draft's first two choices are `gap` apart at position 3, 1 elsewhere."""
    top = np.log(np.array([[0.6, 0.2, 0.1]] * 4))
    top[3, 1] = top[3, 0] - gap
    return Trace.of(
        requests=(TraceRequest(id=0, question_id=0, category="a", prompt=(1,), ended="limit"),),
        meta=TraceMeta(
            target_model="t", draft_model="d", tokenizer="x", vocabulary=10, sampling={"temperature": 0.0},
            draft_top=3, target_top=3,
        ),
        request=np.zeros(4, dtype=np.int64),
        position=np.arange(4),
        token=np.array([1, 2, 7, 9]),
        draft_top_logprobs=top.astype(np.float32),
        target_top_logprobs=np.log(np.array([[0.6, 0.2, 0.1]] * 4)).astype(np.float32),
    )  # fmt: skip


def test_equal_rounds_agree() -> None:
    found = compare_rounds(SETTINGS, {0: ROUNDS}, {0: list(ROUNDS)}, trace(1.0))
    assert (found.rounds, found.differences, found.exact) == (2, (), True)


def test_a_difference_at_a_tie_is_excused_and_one_elsewhere_is_not() -> None:
    live = [ROUNDS[0], replace(ROUNDS[1], hit=1)]
    near = compare_rounds(SETTINGS, {0: ROUNDS}, {0: live}, trace(1e-6))
    far = compare_rounds(SETTINGS, {0: ROUNDS}, {0: live}, trace(0.5))
    assert near.rounds == far.rounds == 1
    assert near.exact and not far.exact
    assert far.differences[0].live == live[1]


def test_every_field_counts() -> None:
    for field, value in {"accepted": 1, "bonus": 8, "hit": 0, "emitted": 2, "position": 1}.items():
        live = [replace(ROUNDS[0], **{field: value}), ROUNDS[1]]
        assert not compare_rounds(SETTINGS, {0: ROUNDS}, {0: live}, trace(0.5)).exact, field


def test_a_missing_round_is_a_difference() -> None:
    found = compare_rounds(SETTINGS, {0: ROUNDS}, {0: ROUNDS[:1]}, trace(0.5))
    assert found.differences[0].live is None
