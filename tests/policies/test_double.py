"""DOUBLE in worlds small enough to be worked out by hand, and against its laws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_worlds import events, outcomes, tokens_by_hand

from hardware_profiles.reply_trace import Decisions
from policies.config import SettingError
from policies.double import Ask, RoundOutcome, outcome_of
from policies.laws.double import draft_length, pearl_speedup, step
from policies.laws.retrieval import common_prefix
from policies.operation import RowOperation
from policies.registry import configure, start
from policies.rows import Rows
from policies.values import Request
from simulator.costs import TextbookCosts
from simulator.replies import Recorded
from simulator.run import Scenario, simulate
from simulator.synthetic import Synthetic
from simulator.tokens import TokenModel, coin
from simulator.world import SimulatedWorld

# Eight tokens; a drafted token is right everywhere but at position 3.
PATH = ("+++-++++", [0, 0, 0, 1, 0, 0, 0, 0])


def run(tokens: TokenModel, *, batch: int = 1, **knobs: object) -> tuple[SimulatedWorld, Rows]:
    """A world of coins, in which nothing matches unless told otherwise."""
    settings = configure("double", **{"matched_length": 0, **knobs})  # type: ignore[arg-type]
    world = SimulatedWorld(tokens, TextbookCosts(1.0, 0.25), timeline=True, rows=Synthetic(tokens))
    rows = Rows(tokens.requests, batch)
    world.run(start(world, rows, settings))
    return world, rows


def test_without_a_match_it_is_pearl() -> None:
    # gamma = 2: two draft forwards of .25 s beside a target forward of 1 s.
    # r0 emits 0, which is what X_q = (0, 1) begins with: (1) is pending
    # r1 accepts 1 and emits 2; X_q = (2, wrong): (wrong) is pending
    # r2 corrects it: 3
    # r3 emits 4, X_q = (4, 5); r4 accepts 5 and emits 6, X_q = (6, 7)
    # r5 accepts 7, the last token; there is no room to draft for
    world, rows = run(tokens_by_hand(PATH), lookahead=2)
    rounds = rows.log.rounds(0)
    assert outcomes(rounds) == [(1, 1, 1), (2, 2, 1), (0, 1, 0), (1, 1, 1), (2, 2, 1), (1, 1, -1)]
    assert [r.length for r in rounds] == [1, 2, 1, 1, 2, 1]
    assert events(world)[:4] == [
        ("draft", "retrievingdraft", 0.0, 0.5),
        ("target", "retrievingverify", 0.0, 1.0),
        ("draft", "retrievingdraft", 1.0, 1.5),
        ("target", "retrievingverify", 1.0, 2.0),
    ]
    assert world.now == 6.0
    # Of the last round's draft nothing is asked, so that it takes no time.
    assert world.machine.overlap_s == pytest.approx(5 * 0.5)


def test_in_turns_it_is_speculative_decoding() -> None:
    # K = 2: r0 drafts 0 1, both right, and the target's own token is 2; r1 drafts wrong (3), which is
    # corrected; r2 drafts 4 5, and 6 is the target's; r3 drafts the last token.
    world, rows = run(tokens_by_hand(PATH), lookahead=2, overlap="off")
    assert outcomes(rows.log.rounds(0)) == [(2, 3, 0), (0, 1, 0), (2, 3, 0), (1, 1, -1)]
    assert events(world) == [
        ("draft", "retrievingdraft", 0.0, 0.5),
        ("target", "retrievingverify", 0.5, 1.5),
        ("draft", "retrievingdraft", 1.5, 2.0),
        ("target", "retrievingverify", 2.0, 3.0),
        ("draft", "retrievingdraft", 3.0, 3.5),
        ("target", "retrievingverify", 3.5, 4.5),
        ("draft", "retrievingdraft", 4.5, 4.75),
        ("target", "retrievingverify", 4.75, 5.75),
    ]
    assert world.machine.overlap_s == 0.0


def test_sampled_drafts_are_judged_before_the_target_chooses() -> None:
    world, rows = run(tokens_by_hand(PATH), lookahead=2, temperature=1.0)
    assert outcomes(rows.log.rounds(0)) == [(1, 1, 1), (2, 2, 1), (0, 1, 0), (1, 1, 1), (2, 2, 1), (1, 1, -1)]
    # r2 rejects what is pending, r5 ends with it: nothing is open then.
    guides = [event for event in events(world) if event[1] == "guide"]
    assert guides == [("target", "guide", at, at) for at in (1.0, 2.0, 4.0, 5.0)]


class Spy(Recorded):
    """Remembers what was asked."""

    def __init__(self, decisions: Decisions) -> None:
        super().__init__(decisions, 1)
        self.asked: dict[tuple[str, int], Any] = {}

    def replies(self, operation: RowOperation) -> list[Any]:
        self.asked[operation.kind, int(operation.view.positions[0])] = operation.inputs[0]
        return super().replies(operation)


Replies: TypeAlias = Mapping[tuple[str, int], list[Any]]


def decided(replies: Replies, **knobs: object) -> tuple[SimulatedWorld, Rows, Spy]:
    """Eight tokens of one request, by hand."""
    keyed = {(kind, 0, 0, position): reply for (kind, position), reply in replies.items()}
    spy = Spy(Decisions("double", keyed, {}, {"retrieve": 0.125}))
    tokens = coin(1.0, exponent=1.0, requests=1, length=8, prompt_length=1, seed=0)
    world = SimulatedWorld(tokens, TextbookCosts(1.0, 0.25), timeline=True, rows=spy)
    rows = Rows([Request(0, 1, 8, (9,))], 1, keep_tokens=True)
    world.run(start(world, rows, configure("double", lookahead=2, **knobs)))  # type: ignore[arg-type]
    return world, rows, spy


def looked(name: str, *tokens: int) -> list[list[object]]:
    return [step for count in tokens for step in (["retrieve", 0], [name, count])]


def test_correction_and_extension() -> None:
    # r0 at 0: the target says 1, and X_q = 1 2 3 begins with it: 2 3 are pending.
    # r1 at 1: they are right, and the guidance behind them is 4 5 6 (two retrieved tokens, one of its own).
    #    X_q = 4 7: 7 makes way for 5 6, a correction.
    # r2 at 6: guidance 8 9, X_q = 8: all right, and the guidance reaches beyond it, an extension.
    world, rows, spy = decided(
        {
            ("retrievingverify", 0): [[0, [1], False, 1], 0, False, looked("verify", 1)],
            ("retrievingdraft", 0): [[1, 2, 3], -1, [1, 0], [2, 0], looked("draft", 3, 1)],
            ("retrievingverify", 1): [[2, [2, 3, 4, 5, 6], False, 6], 2, False, looked("verify", 5)],
            ("retrievingdraft", 1): [[4, 7], -1, [0, 0], [0, 0], looked("draft", 1, 1)],
            ("retrievingverify", 6): [[0, [8, 9], True, 9], 1, False, looked("verify", 2)],
            ("retrievingdraft", 6): [[8], -1, [0], [0], looked("draft", 2)],
        }
    )
    assert rows.texts[0] == [1, 2, 3, 4, 5, 6, 8, 9]
    # A forward of the target and a lookup take 1.125 s, two of the draft and their lookups .75 s.
    assert rows.log.ends == [1.125, 2.25, 3.375]
    assert [(r.length, r.accepted, r.emitted, r.hit) for r in rows.log.rounds(0)] == [
        (1, 1, 1, 1),
        (4, 3, 5, 0),
        (1, 1, 2, -1),
    ]
    assert events(world)[:2] == [
        ("draft", "retrievingdraft", 0.0, 0.75),
        ("target", "retrievingverify", 0.0, 1.125),
    ]
    asked = [spy.asked["retrievingdraft", at] for at in (0, 1, 6)]
    assert asked == [
        Ask(news=(9,)),
        Ask(news=(1,), agreed=1, pending=(2, 3)),
        Ask(news=(2, 3, 4, 5, 6), agreed=3, rejected=(7,)),
    ]
    assert [spy.asked["retrievingverify", at] for at in (0, 1, 6)] == asked


def test_a_rejected_pending_token_takes_all_behind_it_along() -> None:
    # r1: 2 is right, 3 is corrected to 5; X_q = 6 was drafted behind 3 and goes with it.
    _, rows, spy = decided(
        {
            ("retrievingverify", 0): [[0, [1], False, 1], 0, False, looked("verify", 1)],
            ("retrievingdraft", 0): [[1, 2, 3], -1, [1, 0], [2, 0], looked("draft", 3, 1)],
            ("retrievingverify", 1): [[1, [2, 5], False, 5], 0, False, looked("verify", 3)],
            ("retrievingdraft", 1): [[6], -1, [0], [0], looked("draft", 1)],
            ("retrievingverify", 3): [[0, [5, 5, 5, 5, 5], True, 5], 4, False, looked("verify", 5)],
            ("retrievingdraft", 3): [[], -1, [], [], []],
        }
    )
    assert rows.texts[0] == [1, 2, 5, 5, 5, 5, 5, 5]
    assert spy.asked["retrievingverify", 3] == Ask(news=(2, 5), agreed=1, rejected=(3, 6))
    assert outcomes(rows.log.rounds(0)) == [(1, 1, 1), (1, 2, 0), (0, 5, -1)]


def test_what_is_left_has_the_laws_it_was_drawn_from() -> None:
    # X_q = 1 2 3 has the laws 40, 41, 42.  Sampled, 1 and 2 are accepted: 3 is pending, with the law 42.
    # Next 3 is right and X_q = 4 5 (laws 70, 71) is asked about behind one pending token.
    _, _, spy = decided(
        {
            ("retrievingverify", 0): [[0, [], False, -1], 1, True, looked("verify", 2)],
            ("retrievingdraft", 0): [[1, 2, 3], 40, [1, 0], [2, 0], looked("draft", 3, 1)],
            ("guide", 0): [[2, [1, 2], False, -1], [["guide", 0]]],
            ("retrievingverify", 2): [[1, [3], False, -1], 1, True, looked("verify", 3)],
            ("retrievingdraft", 2): [[4, 5], 70, [0, 0], [0, 0], looked("draft", 1, 1)],
            ("guide", 2): [[2, [4, 5, 6, 7, 8], True, 8], [["guide", 0]]],
        },
        temperature=1.0,
    )
    assert spy.asked["retrievingverify", 2] == Ask(news=(1, 2), agreed=2, pending=(3,), handle=42)
    assert spy.asked["guide", 0] == ((1, 2, 3), 40, 0)
    assert spy.asked["guide", 2] == ((4, 5), 70, 1)


bits = st.integers(0, 1)
chains = st.lists(bits, max_size=5).map(tuple)


@given(path=st.lists(bits, min_size=12, max_size=12), pending=chains, drafted=chains, data=st.data())
def test_an_outcome_is_a_step_of_the_algorithm(
    path: list[int], pending: tuple[int, ...], drafted: tuple[int, ...], data: st.DataObject
) -> None:
    """As `policies.laws.double.step` corrects algorithms 1 and 2, whatever is drafted and retrieved."""
    right = common_prefix(pending, path)
    guidance = tuple(path[len(pending) :][: data.draw(st.integers(1, 5))])
    emitted = (*pending, *guidance) if right == len(pending) else tuple(path[: right + 1])
    answers = (*path[: right + 1], *pending)[: len(pending)]
    expected, _ = step(pending, answers, drafted, guidance)
    found = outcome_of((*pending, *drafted), emitted, False)
    assert emitted == expected.committed
    assert (found.agreed, found.left) == (expected.accepted, expected.pending)
    assert found.judged == found.agreed + (expected.outcome == "correction")
    assert bool(found.rejected) == (expected.outcome == "correction")


def test_nothing_is_pending_after_the_end() -> None:
    assert outcome_of((1, 2, 3), (1,), True) == RoundOutcome(1, 1, (), ())
    assert outcome_of((1, 2, 3), (1,), False) == RoundOutcome(1, 1, (2, 3), ())


def speedup(acceptance: float, ratio: float = 4.0, **knobs: object) -> float:
    tossed = coin(acceptance, exponent=1.0, requests=4, length=2000, prompt_length=1, seed=3)
    settings = configure("double", **knobs)  # type: ignore[arg-type]
    scenario = Scenario(tossed, textbook=TextbookCosts(1.0, 1.0 / ratio))
    return simulate(scenario, settings).summary.tokens_per_second


@pytest.mark.parametrize(
    ("acceptance", "lookahead", "temperature"),
    [(0.5, 2, 0.0), (0.5, 4, 1.0), (0.8, 4, 0.0), (0.8, 6, 0.0), (0.95, 4, 0.0), (0.95, 2, 1.0)],
)
def test_without_retrieval_it_has_pearls_rate(acceptance: float, lookahead: int, temperature: float) -> None:
    found = speedup(acceptance, lookahead=lookahead, matched_length=0, temperature=temperature)
    assert found == pytest.approx(pearl_speedup(acceptance, lookahead, 4.0), rel=0.03)


@pytest.mark.parametrize("matched", [0.5, 1.0, 3.0])
def test_a_perfect_draft_breaks_the_ceiling(matched: float) -> None:
    # gamma = C forwards take a target step, and each yields 1 + AMT tokens.
    found = speedup(1.0, lookahead=4, matched_length=matched, retrieval_length=64)
    assert found == pytest.approx(float(draft_length(4, matched)), rel=0.05)
    assert found > 4.0


def test_the_targets_own_retrieval_knows_no_ceiling() -> None:
    # Nothing that is drafted is right: a round is a retrieval forward of the target, 1 + AMT = 8 tokens.
    found = speedup(0.0, lookahead=1, matched_length=7.0, retrieval_length=64, draft_retrieval="off")
    assert found == pytest.approx(8.0, rel=0.05)


def test_coins_have_to_be_told_how_long_matches_are() -> None:
    with pytest.raises(SettingError, match="--matched-length"):
        speedup(0.8)
    assert speedup(0.8, draft_retrieval="off", target_retrieval="off") == speedup(0.8, matched_length=0)


def test_real_tokens_match_what_they_match() -> None:
    with pytest.raises(SettingError, match="coin tosses"):
        decided({}, matched_length=1.0)


def test_rows_of_a_batch_do_not_meet() -> None:
    tossed = coin(0.7, exponent=1.0, requests=5, length=40, prompt_length=1, seed=1)
    _, alone = run(tossed, matched_length=1.0)
    _, together = run(tossed, batch=3, matched_length=1.0)
    assert [alone.log.rounds(i) for i in range(5)] == [together.log.rounds(i) for i in range(5)]
