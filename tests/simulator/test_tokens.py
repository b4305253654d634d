"""Token models by hand: each number of a tiny recording worked out in a comment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chains import Chain, replayed, sampled_trace, trace_of
from hypothesis import given
from hypothesis import strategies as st
from tiny_worlds import outcomes, run, tokens_by_hand

from hardware_profiles.trace import Trace, TraceError
from policies.operations import (
    UNKNOWN,
    Continue,
    Prespeculate,
    Settle,
    Source,
    Speculation,
    Verdict,
    Verify,
    View,
)
from policies.registry import SettingError, configure
from policies.sampling import GREEDY, Sampling
from simulator.tokens import NEVER, TokenModel, accepted_runs, coin, replay, sampled
from simulator.tokens.outcomes import Outcomes, shaped_runs
from simulator.tokens.sampled import DRAFT, FIRST, UNIFORM, Chances, Law, Recorded, chances

SAMPLED = Sampling(temperature=1.0)

# Four tokens, of which the draft's three likeliest are listed; the draft ranks them 0 1 2 3 everywhere.
#   after 0: q .5 .3 .15 .05, p .2 .4 .3 .1      after 1: q .4 .3 .2 .1, p .3 .15 .5 .05
#   after 2: q .7 .1 .1 .1,   p .1 .1 .1 .7      after 3: as after 2
# The text is 1 2 3: ranks 1, 2 and 3, the last one not listed.
BY_HAND = Chain(
    p=np.array([[0.2, 0.4, 0.3, 0.1], [0.3, 0.15, 0.5, 0.05], [0.1, 0.1, 0.1, 0.7], [0.1, 0.1, 0.1, 0.7]]),
    q=np.array([[0.5, 0.3, 0.15, 0.05], [0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1]]),
)
TEXT = trace_of(BY_HAND, np.array([0, 1, 2]), np.array([1, 2, 3]), length=3, ranks=3)


def by_hand(law: Law, trace: Trace = TEXT) -> Chances:
    return chances(Recorded.of(trace, slice(None)), law)


def near(expected: list[float]) -> Any:
    return pytest.approx(expected, abs=1e-6)


def test_chances_of_a_sampled_draft() -> None:
    found = by_hand(DRAFT)
    # q(y)/p(y) = .3/.4, .2/.5, .1/.7
    assert found.accepted == near([0.75, 0.4, 1 / 7])
    # (q - p)+ is .3 0 0 | 0 of .3: the first choice, which outranks rank 1.
    # Then .1 .15 0 | .05 of .3: the first two outrank rank 2 with .25/.3.  Rank 3 is out of reach.
    assert found.freed == near([1.0, 5 / 6, 0.0])
    assert found.slack == near([0.0, 0.0, 0.0])


def test_chances_of_saguaro_sampling() -> None:
    # C = .5 on the first choice: after 1, Z = .5 x .4 + .6 = .8 and sigma = .25 .375 .25 .125.
    found = by_hand(Law("draft", 0.5, 1))
    # after 0: Z = .75, sigma(y) = .3/.75 = .4 = p(y); after 2: Z = .65, sigma(y) = .1/.65.
    assert found.accepted == near([1.0, 0.25 / 0.5, 0.1 / 0.65 / 0.7])
    # after 1: (sigma - p)+ = 0 .225 0 | .075 of .3
    assert found.freed[1] == pytest.approx(0.225 / 0.3, abs=1e-6)
    # F = 2 instead: Z = .35 + .3 = .65, sigma = .2/.65 .15/.65 .2/.65 .1/.65 = .308 .231 .308 .154, and
    # (sigma - p)+ = .0077 .0808 0 | .1038, in all .1923
    found = by_hand(Law("draft", 0.5, 2))
    assert found.accepted[1] == pytest.approx(0.2 / 0.65 / 0.5, abs=1e-6)
    above = (0.2 / 0.65 - 0.3) + (0.15 / 0.65 - 0.15)
    assert found.freed[1] == pytest.approx(above / (above + 0.1 / 0.65 - 0.05), abs=1e-6)


def test_chances_of_random_tokens() -> None:
    # sigma = 1/4: .25/.4, .25/.5, .25/.7 of y; after 1 (sigma - p)+ = 0 .1 0 | .2
    found = by_hand(UNIFORM)
    assert found.accepted == near([0.25 / 0.4, 0.25 / 0.5, 0.25 / 0.7])
    assert found.freed == near([0.05 / (0.05 + 0.15), 0.1 / 0.3, 0.0])
    assert found.slack == near([0.0, 0.0, 0.0])  # a single unlisted token is known by its mass


def test_chances_of_a_greedy_draft() -> None:
    # Its token is the first choice, never the text's here, and outranks whatever is.
    assert by_hand(FIRST).accepted.tolist() == [0.0, 0.0, 0.0]
    assert by_hand(FIRST).freed.tolist() == [1.0, 1.0, 1.0]


def test_where_c_0_leaves_nothing_the_law_stays_as_it_is() -> None:
    # top-p .6 keeps two tokens of q after 0 (.5 .3), renormalised to 5/8 3/8, and p's .4 .3 as 4/7 3/7.
    narrow = replace(BY_HAND, top_p=0.6)
    trace = trace_of(narrow, np.array([0]), np.array([1]), length=1, ranks=3)
    assert by_hand(Law("draft", 0.0, 1), trace).accepted == near([1.0])  # sigma is sure of token 1
    assert by_hand(Law("draft", 0.0, 2), trace).accepted == near([(3 / 8) / (4 / 7)])
    assert by_hand(Law("draft", 0.0, 3), trace).accepted == near([(3 / 8) / (4 / 7)])


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
    speculation = Speculation(np.array([2]), np.array([1]), shape=shape)
    return int(model.verify(VIEW, Verify(VIEW, speculation, sampling)).accepted[0])


ONE = np.zeros(1, dtype=np.int64)
VIEW = View(ONE, ONE, ONE, ONE + 5, ONE + 3)


def drafted(length: int, source: Source, *tokens: int) -> Speculation:
    known = np.array([tokens]) if tokens else None
    return Speculation(ONE + length, ONE + int(source), known, has_guesses=source > Source.PRIMARY)


GREEDY_TEXT = replace(TEXT, meta=TEXT.meta.model_copy(update={"sampling": {"temperature": 0.0}}))


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
    assert verdict.accepted.tolist() == [accepted]
    wide = replace(model, max_fanout=9)
    hits = [
        bool(wide.hits(VIEW, Prespeculate(VIEW, speculation, 3, (f,) * 4, sampling=sampling), verdict)[0])
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
        assert model.hits(VIEW, operation, verdict)[0] == hit


def test_fanouts_by_source() -> None:
    # Three rows verify nothing, a primary draft and a guess; each finds the first choice, rank 0.
    rows = np.arange(3)
    model = tokens_by_hand(*[("+++", [0, 0, 0])] * 3)
    view = View(rows, rows, rows * 0, rows * 0 + 5, rows * 0 + 3)
    verdict = Verdict(rows * 0, rows * 0 + 1, rows > 3, rows * 0 + UNKNOWN)
    speculation = Speculation(np.array([0, 0, 0]), np.array([0, 1, 2]))
    for fanout, backup, hits in (
        ((1, 0), None, [True, True, True]),
        ((1, 0), (0, 1), [False, True, False]),
        ((0, 1), (1, 0), [True, False, True]),
    ):
        operation = Prespeculate(view, speculation, 1, fanout, backup)
        assert model.hits(view, operation, verdict).tolist() == hits


def test_an_open_verdict_is_settled_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # One token drafted and accepted (.7 < .75); what follows is open until settled.
    luck(monkeypatch, acceptance=[0.7, 0.39, 0.9], rejected=[0.5, 0.5, 0.5])
    model, pending = replay(TEXT), drafted(1, Source.PRIMARY)
    verdict = model.verify(VIEW, Verify(VIEW, pending, SAMPLED, leave_open=True))
    assert (verdict.accepted[0], verdict.emitted[0], verdict.bonus[0]) == (1, 1, UNKNOWN)
    settled = model.settle(Settle(VIEW, verdict, pending, drafted(1, Source.PRIMARY), SAMPLED))
    assert (settled.accepted[0], settled.emitted[0], settled.bonus[0]) == (1, 2, 2)
    # .39 < .4: the first token past the block is accepted as well.
    assert model.continues(VIEW, Continue(VIEW, pending, 2, SAMPLED), settled)[0]
    # A rejection leaves nothing open: .8 > .75
    luck(monkeypatch, acceptance=[0.8, 0.39, 0.9], rejected=[0.5, 0.5, 0.5])
    rejected = replay(TEXT).verify(VIEW, Verify(VIEW, pending, SAMPLED, leave_open=True))
    assert (rejected.accepted[0], rejected.emitted[0], rejected.bonus[0]) == (0, 1, 1)


def test_emitted_ids_where_rows_keep_them() -> None:
    model, speculation = replay(GREEDY_TEXT), drafted(2, Source.NGRAM, 1, 2)
    view = replace(VIEW, tails=((0, 1),))
    assert model.verify(view, Verify(view, speculation)).tokens == ((1, 2, 3),)
    assert model.verify(VIEW, Verify(VIEW, speculation)).tokens is None
    assert model.requests[0].prompt == TEXT.requests[0].prompt
    with pytest.raises(SettingError, match="coin tosses have no token ids"):
        coins().verify(view, Verify(view, drafted(2, Source.PRIMARY)))


def coins() -> TokenModel:
    return coin(0.5, exponent=1.0, requests=1, length=9, prompt_length=1, seed=0)


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
        replay(replace(TEXT, accept_mass=None))
    never = replace(TEXT, target_logprob=np.full(3, -np.inf, dtype=np.float32))
    with pytest.raises(SettingError, match="probability 0"):
        replay(never)


def test_coins_fall_alike_at_any_temperature() -> None:
    found = [
        coins().verify(VIEW, Verify(VIEW, drafted(2, Source.PRIMARY), sampling)).accepted.tolist()
        for sampling in (GREEDY, SAMPLED, Sampling(0.3, 0.5, draft="greedy"))
    ]
    assert found[0] == found[1] == found[2]


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


LAWS = [DRAFT, UNIFORM, FIRST, *(Law("draft", c, f) for c in (0.0, 0.3, 0.9) for f in (1, 2))]


@given(
    seed=st.integers(0, 10_000),
    likeness=st.sampled_from([0.1, 1.0, 3.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.6]),
    ranks=st.integers(2, 6),
    law=st.sampled_from(LAWS),
)
def test_bounds_of_unlisted_tails_hold(
    seed: int, likeness: float, top_p: float, ranks: int, law: Law
) -> None:
    chain = Chain.drawn(seed, 7, likeness=likeness, top_p=top_p)
    full, cut = (sampled_trace(chain, requests=2, length=5, ranks=m, seed=seed) for m in (7, ranks))
    truth, found = by_hand(law, full), by_hand(law, cut)
    assert truth.slack == near([0.0] * 10)
    assert found.accepted == near(truth.accepted.tolist())
    # Where next to nothing is rejected, what was rejected is a matter of rounding.
    counts = (
        (full.column("draft_rank") < ranks) & (truth.accepted < 1.0 - 1e-4) & (residuals(full, law) > 1e-3)
    )
    assert (np.abs(found.freed - truth.freed) <= found.slack + 1e-3)[counts].all()
    if law == DRAFT:
        assert (found.slack <= 1e-3)[counts].all()


def residuals(trace: Trace, law: Law) -> np.ndarray:
    """[n] sum of (sigma - p)+, from a trace that lists everything."""
    if law == FIRST:
        return np.ones(len(trace))
    recorded = Recorded.of(trace, slice(None))
    listed = (sampled._uniform(recorded) if law == UNIFORM else sampled._rescaled(recorded, law)).listed
    return np.maximum(listed - recorded.target_listed, 0.0).sum(axis=1)


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
    rows = np.arange(len(model.requests))
    view = View(rows, rows, rows * 0 + position, rows + 5, rows * 0 + 10 - position)
    tokens = np.random.default_rng(position).integers(6, size=(len(rows), 3))
    shape = (2, 1, 3) if sampling.scale < 1.0 and source == Source.PRIMARY else None
    speculation = Speculation(rows * 0 + 3, rows * 0 + int(source), tokens, source > Source.PRIMARY, shape)
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
    assert (few <= many).all()


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
    assert np.sum(parts, axis=0).tolist() == model.hits(operation.view, operation, verdict).tolist()


def test_shares_by_hand() -> None:
    # Row 0 accepts "+-": k = 1, rejected, rank 2: with rank 0 out it is the second of F_1 = 3.  After the
    # F_0 = 2 outcomes of k = 0 it has index 2 + 1 = 3: the share of device 1 of 2, of device 0 of 3.
    model = tokens_by_hand(("+-++", [0, 2, 0, 0]))
    view = replace(VIEW, rooms=ONE + 4)
    speculation = drafted(2, Source.PRIMARY)
    verdict = model.verify(view, Verify(view, speculation))
    for devices, holder in ((2, 1), (3, 0), (4, 3)):
        operations = [
            Prespeculate(view, speculation, 2, (2, 3, 1), part=(i, devices)) for i in range(devices)
        ]
        assert [i for i, o in enumerate(operations) if model.hits(view, o, verdict)[0]] == [holder]


def test_needs_by_depth() -> None:
    found = Outcomes(ONE, np.array([[5, 6], [7, NEVER]]), np.array([0, 1, 0]))
    assert found.need_after(np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1])).tolist() == [5, 7, 6, 6]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=4), st.data())
def test_runs_are_what_a_loop_counts(texts: list[list[bool]], data: st.DataObject) -> None:
    lengths = [len(text) for text in texts]
    ends = np.repeat(np.cumsum(lengths), lengths)
    first = np.concatenate([np.array(text) for text in texts])
    second = np.array(data.draw(st.lists(st.booleans(), min_size=len(first), max_size=len(first))))
    law_at = np.array(data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=5)))
    for at in range(len(first)):
        run = 0
        while at + run < ends[at] and first[at + run]:
            run += 1
        assert accepted_runs(first, ends)[at] == run
        run = 0
        while run < len(law_at) and at + run < ends[at] and (first, second)[law_at[run]][at + run]:
            run += 1
        assert shaped_runs((first, second), law_at, ends)[at] == run
