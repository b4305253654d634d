"""Token models by hand: each number of a tiny recording worked out in a comment."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from text_by_hand import GREEDY_TEXT, SAMPLED, TEXT, VIEW, coins, drafted
from tiny_worlds import outcomes, run, tokens_by_hand

from hardware_profiles.trace import Trace, TraceError
from policies.operation import Continue, Prespeculate, Settle, Verify
from policies.registry import SettingError
from policies.sampling import GREEDY, Sampling
from policies.values import UNKNOWN, Source, Speculation, Verdict, View
from simulator.tokens import TokenModel, replay, sampled


def luck(patch: pytest.MonkeyPatch, **streams: list[float]) -> None:
    patch.setattr(sampled, "keyed_uniforms", lambda _, stream, *__: np.array(streams[stream]))


@pytest.mark.parametrize(("rejected", "hit"), [(0.83, 1), (0.84, 0)])
def test_a_round_by_hand(monkeypatch: pytest.MonkeyPatch, rejected: float, hit: int) -> None:
    # .74 < .75: the first token is accepted.  .41 > .4: the second is rejected, token 2 (rank 2) emitted.
    # If the rejected one outranks it (.83 < 5/6), it is the second of the others: F_1 = 2 holds it.
    luck(monkeypatch, acceptance=[0.74, 0.41, 0.9], rejected=[0.5, rejected, 0.5])
    _, rows = run(replay(TEXT), "saguaro", temperature=1.0, lookahead=2, fanout=(1, 2, 1))
    assert outcomes(rows.log.rounds(0)) == [(1, 2, hit), (0, 1, -1)]
    assert [r.bonus for r in rows.log.rounds(0)] == [2, 3]


def test_saguaro_sampling_rescales_by_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    # C = .5 with F = 1, 2: at depth 0 the ratio is 1 (see above), at depth 1 it is .2/.65/.5 = .615.
    luck(monkeypatch, acceptance=[0.99, 0.61, 0.5], rejected=[0.5, 0.5, 0.5])
    sampling = Sampling(temperature=1.0, scale=0.5)
    model = replay(TEXT)
    assert run_of(model, sampling, (1, 2)) == 2
    # At depth 1 with F = 1 the ratio is .5 < .61.
    assert run_of(model, sampling, (1, 1)) == 1
    # At depth 0 with F = 2: sigma(y) = .5 x .3/.6 = .25 of .4.
    assert run_of(model, sampling, (2, 1)) == 0
    # Without rescaling .75 < .99.
    assert run_of(model, sampling, None) == 0


def run_of(model: TokenModel, sampling: Sampling, shape: tuple[int, ...] | None) -> int:
    speculation = Speculation((2,), (1,), shape=shape)
    return model.verify(VIEW, Verify(VIEW, speculation, sampling)).accepted[0]


@pytest.mark.parametrize(
    ("trace", "sampling"), [(GREEDY_TEXT, GREEDY), (TEXT, SAMPLED)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize(
    ("guess", "accepted", "need"),
    [
        ((1, 2, 3), 3, None),
        ((1, 0), 1, 2),  # token 2, rank 2, is the second choice once the first, token 0, is out
        ((1, 3), 1, 3),  # token 3 ranks after it: it stays the third
        ((0,), 0, 1),
        ((2,), 0, 2),
    ],
)
def test_n_gram_tokens_are_compared(
    trace: Trace, sampling: Sampling, guess: tuple[int, ...], accepted: int, need: int | None
) -> None:
    # The text is 1 2 3; the draft's ranking is 0 1 2 3.
    model, speculation = replay(trace), drafted(len(guess), Source.NGRAM, *guess)
    verdict = model.verify(VIEW, Verify(VIEW, speculation, sampling))
    assert verdict.accepted == (accepted,)
    wide = replace(model, max_fanout=9)
    hits = [
        bool(wide.hits(VIEW, Prespeculate(VIEW, speculation, 3, (f,) * 4, sampling=sampling), verdict))
        for f in range(5)
    ]
    assert hits == [need is not None and f >= need for f in range(5)]


def test_random_tokens_decide_greedily_and_their_law_does_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    speculation = drafted(2, Source.RANDOM, 1, 2)
    assert replay(GREEDY_TEXT).verify(VIEW, Verify(VIEW, speculation)).accepted[0] == 2
    # .25/.4 = .625 and .25/.5
    luck(monkeypatch, acceptance=[0.62, 0.51, 0.0], rejected=[0.0, 0.0, 0.0])
    for tokens in ((1, 2), (0, 0)):
        operation = Verify(VIEW, drafted(2, Source.RANDOM, *tokens), SAMPLED)
        assert replay(TEXT).verify(VIEW, operation).accepted[0] == 1


def test_the_rejected_token_may_be_kept() -> None:
    # A greedy draft's first choice, 0, is rejected; token 1 is the first of the others, the second of all.
    model, speculation = replay(TEXT), drafted(2, Source.PRIMARY)
    sampling = Sampling(temperature=1.0, draft="greedy")
    verdict = model.verify(VIEW, Verify(VIEW, speculation, sampling))
    assert verdict.accepted[0] == 0
    for keep, fanout, hit in ((False, 1, True), (True, 1, False), (True, 2, True)):
        operation = Prespeculate(VIEW, speculation, 2, (fanout,) * 3, sampling=sampling, keep_rejected=keep)
        assert bool(model.hits(VIEW, operation, verdict)) == hit


def test_fanouts_by_source() -> None:
    # Three rows verify nothing, a primary draft and a guess; each finds the first choice, rank 0.
    rows = (0, 1, 2)
    model = tokens_by_hand(*[("+++", [0, 0, 0])] * 3)
    view = View(rows, rows, (0,) * 3, (5,) * 3, (3,) * 3)
    verdict = Verdict((0,) * 3, (1,) * 3, frozenset(), (UNKNOWN,) * 3)
    speculation = Speculation((0, 0, 0), (0, 1, 2))
    for fanout, backup, hits in (
        ((1, 0), None, {0, 1, 2}),
        ((1, 0), (0, 1), {1}),
        ((0, 1), (1, 0), {0, 2}),
    ):
        operation = Prespeculate(view, speculation, 1, fanout, backup)
        assert model.hits(view, operation, verdict) == hits


def test_an_open_verdict_is_settled_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # One token drafted and accepted (.7 < .75); what follows is open until settled.
    luck(monkeypatch, acceptance=[0.7, 0.39, 0.9], rejected=[0.5, 0.5, 0.5])
    model, pending = replay(TEXT), drafted(1, Source.PRIMARY)
    verdict = model.verify(VIEW, Verify(VIEW, pending, SAMPLED, leave_open=True))
    assert (verdict.accepted[0], verdict.emitted[0], verdict.bonus[0]) == (1, 1, UNKNOWN)
    settled = model.settle(Settle(VIEW, verdict, pending, drafted(1, Source.PRIMARY), SAMPLED))
    assert (settled.accepted[0], settled.emitted[0], settled.bonus[0]) == (1, 2, 2)
    # .39 < .4: the first token past the block is accepted as well.
    assert model.continues(VIEW, Continue(VIEW, pending, 2, SAMPLED), settled)
    # A rejection leaves nothing open: .8 > .75
    luck(monkeypatch, acceptance=[0.8, 0.39, 0.9], rejected=[0.5, 0.5, 0.5])
    rejected = replay(TEXT).verify(VIEW, Verify(VIEW, pending, SAMPLED, leave_open=True))
    assert (rejected.accepted[0], rejected.emitted[0], rejected.bonus[0]) == (0, 1, 1)


def test_emitted_ids_where_rows_keep_them() -> None:
    model, speculation = replay(GREEDY_TEXT), drafted(2, Source.NGRAM, 1, 2)
    view = msgspec.structs.replace(VIEW, tails=((0, 1),))
    assert model.verify(view, Verify(view, speculation)).tokens == ((1, 2, 3),)
    assert model.verify(VIEW, Verify(VIEW, speculation)).tokens is None
    assert model.requests[0].prompt == TEXT.requests[0].prompt
    with pytest.raises(SettingError, match="coin tosses have no token ids"):
        coins().verify(view, Verify(view, drafted(2, Source.PRIMARY)))


@pytest.mark.parametrize(
    ("trace", "sampling", "message"),
    [
        (GREEDY_TEXT, SAMPLED, "recorded at temperature 0 .* `calibrate --temperature 1`"),
        (TEXT, GREEDY, "recorded at temperature 1 .*no run at temperature 0; .*`calibrate --temperature 0`"),
        (
            TEXT,
            Sampling(0.7, 0.9),
            "temperature 0.7 and top-p 0.9; .*`calibrate --temperature 0.7 --top-p 0.9`",
        ),
    ],
)
def test_another_sampling_is_refused(trace: Trace, sampling: Sampling, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        replay(trace).verify(VIEW, Verify(VIEW, drafted(1, Source.PRIMARY), sampling))


def test_what_a_recording_cannot_decide_is_refused() -> None:
    model, speculation = replay(TEXT), drafted(1, Source.PRIMARY)
    verdict = model.verify(VIEW, Verify(VIEW, speculation, SAMPLED))
    with pytest.raises(SettingError, match=r"fan-out 3 is more than .* first 3 choices, enough for .* of 2"):
        model.hits(VIEW, Prespeculate(VIEW, speculation, 1, (3, 1), sampling=SAMPLED), verdict)
    with pytest.raises(SettingError, match="F = 4 rescales more tokens than the 3"):
        run_of(model, Sampling(1.0, scale=0.5), (4, 1))
    with pytest.raises(SettingError, match="coin tosses do not have"):
        run_of(coins(), Sampling(1.0, scale=0.5), (1, 1))
    with pytest.raises(TraceError, match="accept_mass"):
        replay(replace(TEXT, columns={n: c for n, c in TEXT.columns.items() if n != "accept_mass"}))
    never = TEXT.changed(target_logprob=np.full(3, -np.inf, dtype=np.float32))
    with pytest.raises(SettingError, match="probability 0"):
        replay(never)


def test_coins_fall_alike_at_any_temperature() -> None:
    found = [
        coins().verify(VIEW, Verify(VIEW, drafted(2, Source.PRIMARY), sampling)).accepted
        for sampling in (GREEDY, SAMPLED, Sampling(0.3, 0.5, draft="greedy"))
    ]
    assert found[0] == found[1] == found[2]
