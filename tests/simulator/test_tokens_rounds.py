"""Token models of a larger recording: luck, repetition, fan-outs and shares, whatever the round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chains import Chain, replayed, sampled_trace
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from text_by_hand import SAMPLED, VIEW, coins, drafted
from tiny_worlds import tokens_by_hand

from policies.operation import Prespeculate, Verify
from policies.registry import configure
from policies.sampling import Sampling
from policies.values import Source, Speculation, Verdict, View
from simulator.tokens import NEVER, TokenModel, accepted_runs, replay
from simulator.tokens.outcomes import Outcomes, shaped_runs

CHAIN = Chain.drawn(1, 6, likeness=0.8)
RECORDED = sampled_trace(CHAIN, requests=6, length=10, ranks=5, seed=3)


def test_every_policy_meets_the_same_luck_at_a_position() -> None:
    # Whether a position is accepted does not depend on the round that comes upon it.
    model = replay(RECORDED, seed=4)
    accept = model.run > 0
    for knobs in ({"policy": "sd", "lookahead": 1}, {"policy": "sd", "lookahead": 4}):
        for request, rounds in enumerate(
            replayed(model, configure(temperature=1.0, **knobs))  # type: ignore[arg-type]
        ):
            at = 10 * request
            for _, _, accepted, emitted, _ in rounds:
                assert accept[at : at + accepted].all()
                assert emitted == accepted or accepted == knobs["lookahead"] or not accept[at + accepted]
                at += emitted


def test_luck_is_keyed_by_the_seeds_of_run_and_replay() -> None:
    def rounds(seed: int, replay_seed: int) -> Any:
        settings = configure("saguaro", temperature=1.0, fanout=(2,), seed=seed)
        return replayed(replay(RECORDED, seed=replay_seed), settings)

    assert rounds(0, 0) == rounds(0, 0)
    assert rounds(1, 0) != rounds(0, 0) != rounds(0, 1)


def test_texts_served_again_meet_luck_of_their_own() -> None:
    model = replay(RECORDED)
    twice = model.repeated(15)
    assert [r.id for r in twice.requests] == list(range(15))
    assert twice.run[:60].tolist() == model.run.tolist()
    assert twice.run[60:120].tolist() != model.run.tolist()
    assert twice.tokens is not None and twice.tokens[60:120].tolist() == RECORDED.token.tolist()
    settings = configure("saguaro", temperature=1.0, fanout=(2,), backup="ngram")
    found = replayed(twice, settings)
    assert found[:6] == replayed(model, settings)
    assert all(sum(emitted for *_, emitted, _ in rounds) == 10 for rounds in found)
    # What is served does not depend on how often it is: the first ten requests are the same.
    assert replayed(model.repeated(10), settings) == found[:10]
    # Nor on whether it is repeated at once.
    assert model.repeated(12).repeated(24).run.tolist() == model.repeated(24).run.tolist()


def test_the_error_of_tails_is_told() -> None:
    model = replay(RECORDED)
    sampling = Sampling(temperature=1.0, scale=0.3)
    assert model.tail_error(sampling) == pytest.approx(0.0, abs=1e-6)
    assert model.tail_error(SAMPLED, source=Source.NGRAM) == 0.0
    narrow = replay(sampled_trace(CHAIN, requests=6, length=10, ranks=3, seed=3))
    assert 0.0 < narrow.tail_error(sampling, (1, 2)) < 0.5
    assert 0.0 < narrow.tail_error(SAMPLED, source=Source.RANDOM) < 0.5
    assert coins().tail_error(sampling, (1, 2)) == 0.0


def round_of(
    model: TokenModel, position: int, source: Source, sampling: Sampling, **knobs: Any
) -> tuple[Verdict, Prespeculate]:
    """A verification of three tokens in every request at once, and a pre-speculation beside it."""
    count = len(model.requests)
    rows = tuple(range(count))
    view = View(rows, rows, (position,) * count, tuple(row + 5 for row in rows), (10 - position,) * count)
    tokens = tuple(map(tuple, np.random.default_rng(position).integers(6, size=(count, 3)).tolist()))
    shape = (2, 1, 3) if sampling.scale < 1.0 and source == Source.PRIMARY else None
    speculation = Speculation((3,) * count, (int(source),) * count, tokens, source > Source.PRIMARY, shape)
    verdict = model.verify(view, Verify(view, speculation, sampling))
    return verdict, Prespeculate(view, speculation, 3, (0,) * 4, sampling=sampling, **knobs)


sources = st.sampled_from([Source.PRIMARY, Source.RANDOM, Source.NGRAM])
samplings = st.sampled_from([SAMPLED, Sampling(1.0, draft="greedy"), Sampling(1.0, scale=0.2)])
fanouts = st.tuples(*[st.integers(0, 4)] * 4)


@given(st.integers(0, 6), sources, samplings, fanouts, fanouts, st.booleans())
def test_more_fanout_never_loses_a_hit(  # noqa: PLR0917 - hypothesis fills them in
    position: int, source: Source, sampling: Sampling, one: Any, other: Any, keep: bool
) -> None:
    model = replay(RECORDED)
    verdict, operation = round_of(model, position, source, sampling, keep_rejected=keep)
    larger = tuple(map(max, one, other))
    few = model.hits(operation.view, replace(operation, fanout=one), verdict)
    many = model.hits(operation.view, replace(operation, fanout=larger), verdict)
    assert few <= many


@given(st.integers(0, 6), sources, samplings, fanouts, st.integers(1, 4), st.booleans())
def test_shares_of_several_devices_make_up_the_whole(  # noqa: PLR0917 - hypothesis fills them in
    position: int, source: Source, sampling: Sampling, fanout: Any, devices: int, keep: bool
) -> None:
    model = replay(RECORDED)
    verdict, operation = round_of(model, position, source, sampling, keep_rejected=keep)
    operation = replace(operation, fanout=fanout)
    parts = [
        model.hits(operation.view, replace(operation, part=(i, devices)), verdict) for i in range(devices)
    ]
    whole = model.hits(operation.view, operation, verdict)
    assert sorted(slot for part in parts for slot in part) == sorted(whole)


def test_shares_by_hand() -> None:
    # Row 0 accepts "+-": k = 1, rejected, rank 2: with rank 0 out it is the second of F_1 = 3.  After the
    # F_0 = 2 outcomes of k = 0 it has index 2 + 1 = 3: the share of device 1 of 2, of device 0 of 3.
    model = tokens_by_hand(("+-++", [0, 2, 0, 0]))
    view = replace(VIEW, rooms=(4,))
    speculation = drafted(2, Source.PRIMARY)
    verdict = model.verify(view, Verify(view, speculation))
    for devices, holder in ((2, 1), (3, 0), (4, 3)):
        operations = [
            Prespeculate(view, speculation, 2, (2, 3, 1), part=(i, devices)) for i in range(devices)
        ]
        assert [i for i, o in enumerate(operations) if model.hits(view, o, verdict)] == [holder]


def test_needs_by_depth() -> None:
    found = Outcomes(np.zeros(1, dtype=np.int64), np.array([[5, 6], [7, NEVER]]), np.array([0, 1, 0]))
    assert found.need_after(np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1])).tolist() == [5, 7, 6, 6]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=4), st.data())
def test_runs_are_what_a_loop_counts(texts: list[list[bool]], data: st.DataObject) -> None:
    lengths = [len(text) for text in texts]
    ends = np.repeat(np.cumsum(lengths), lengths)
    first = np.concatenate([np.array(text) for text in texts])
    second = np.array(data.draw(st.lists(st.booleans(), min_size=len(first), max_size=len(first))))
    proposal_at = np.array(data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=5)))
    for at in range(len(first)):
        run = 0
        while at + run < ends[at] and first[at + run]:
            run += 1
        assert accepted_runs(first, ends)[at] == run
        run = 0
        while run < len(proposal_at) and at + run < ends[at] and (first, second)[proposal_at[run]][at + run]:
            run += 1
        assert shaped_runs((first, second), proposal_at, ends)[at] == run
