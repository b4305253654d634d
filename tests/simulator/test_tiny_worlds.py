"""Every policy in a world small enough to be worked out by hand."""

from __future__ import annotations

import pytest
from tiny_worlds import events, outcomes, run, tokens_by_hand

# Eight tokens; the draft's first choice is right at positions 0, 1, 3, 4, 6 and 7.
PATH = ("++-++-++", [0, 0, 1, 0, 0, 3, 0, 0])


def test_ar_takes_one_step_per_token() -> None:
    world, rows = run(tokens_by_hand(PATH), "ar")
    assert events(world) == [("target", "verify", float(i), float(i + 1)) for i in range(8)]
    assert outcomes(rows.log.rounds(0)) == [(0, 1, -1)] * 8


def test_sd_takes_turns() -> None:
    # K = 2: draft 2 x .25 = .5 s, verify 1 s.
    # round 0 at 0: + + accepted, bonus is position 2           -> 3 tokens
    # round 1 at 3: + + accepted, bonus is position 5           -> 3 tokens
    # round 2 at 6: + + accepted; the request ends there, no bonus -> 2 tokens
    world, rows = run(tokens_by_hand(PATH), "sd", lookahead=2)
    assert events(world) == [
        ("draft", "draft", 0.0, 0.5),
        ("target", "verify", 0.5, 1.5),
        ("draft", "draft", 1.5, 2.0),
        ("target", "verify", 2.0, 3.0),
        ("draft", "draft", 3.0, 3.5),
        ("target", "verify", 3.5, 4.5),
    ]
    assert outcomes(rows.log.rounds(0)) == [(2, 3, -1), (2, 3, -1), (2, 2, -1)]
    assert world.machine.overlap_s == 0.0


def test_sd_rejection_emits_the_correction() -> None:
    # K = 4: + + - : two accepted, the correction at 2; then + + - the same; then + + to the end.
    _, rows = run(tokens_by_hand(PATH), "sd", lookahead=4)
    assert outcomes(rows.log.rounds(0)) == [(2, 3, -1), (2, 3, -1), (2, 2, -1)]


def test_pearl_hits_while_all_is_accepted() -> None:
    # K = 2, both devices start together.
    # r0 (plain) emits 0; the draft's block is (0, 1), its first token is right: hit, (1) is pending
    # r1 verifies (1) and emits the bonus 2; the draft went on with its own choice there, wrong: miss
    # r2 (plain) emits 3; block (3, 4), hit, (4) pending
    # r3 verifies (4), emits 5 as the bonus; wrong again: miss
    # r4 (plain) emits 6; hit; r5 verifies (7) and the request ends
    world, rows = run(tokens_by_hand(PATH), "pearl", lookahead=2)
    assert outcomes(rows.log.rounds(0)) == [
        (0, 1, 1),
        (1, 2, 0),
        (0, 1, 1),
        (1, 2, 0),
        (0, 1, 1),
        (1, 1, -1),
    ]
    assert events(world)[:4] == [
        ("draft", "continue", 0.0, 0.5),
        ("target", "verify", 0.0, 1.0),
        ("draft", "continue", 1.0, 1.5),
        ("target", "verify", 1.0, 2.0),
    ]
    assert world.now == 6.0
    assert world.machine.overlap_s == pytest.approx(6 * 0.5)


@pytest.mark.parametrize("backup", ["primary", "plain", "random"])
def test_saguaro_after_a_hit_and_a_miss(backup: str) -> None:
    # K = 2, F = 1: after a rejection the cached set is the draft's 2nd choice; at k = K its 1st.
    # r0 at 0: + +, all accepted, bonus 2 has rank 1, F_2 = 1 holds rank 0 only: miss
    # then by backup:
    #   primary: redraft .5 s; r1 at 3: + +, bonus 5 has rank 3: miss; redraft; r2 at 6: + + end
    #   plain, random: r1 emits 3 (rank 0).  plain: nothing was rejected, rank 0 < F_0: hit.
    #     Random tokens are never accepted here and unknown: rank 0 is in the set: hit.
    #     r2 at 4: the cached + at 4, then - at 5 (rank 3 > F): accepted 1, emits 4 and 5: miss
    #     r3 at 6: emits 6, hit; r4 at 7: emits 7, end
    world, rows = run(tokens_by_hand(PATH), "saguaro", lookahead=2, fanout=(1,), backup=backup)
    got = outcomes(rows.log.rounds(0))
    if backup == "primary":
        assert got == [(2, 3, 0), (2, 3, 0), (2, 2, -1)]
        # first draft .5; rounds of 1 s; two redrafts of .5
        assert world.now == pytest.approx(0.5 + 1 + 0.5 + 1 + 0.5 + 1)
    else:
        assert got == [(2, 3, 0), (0, 1, 1), (1, 2, 0), (0, 1, 1), (1, 1, -1)]
        assert world.now == pytest.approx(0.5 + 5)


def test_cached_set_leaves_out_the_rejected_token() -> None:
    # Position 1 is a rejection whose token is the draft's 2nd choice (rank 1): with the rejected 1st
    # choice left out, F = 1 is enough.  A cache that kept it would miss.
    _, rows = run(tokens_by_hand(("+-+++", [0, 1, 0, 0, 0])), "saguaro", lookahead=2, fanout=(1,))
    assert outcomes(rows.log.rounds(0))[0] == (1, 2, 1)


def test_fanout_per_position() -> None:
    # One accepted, then rejected at k = 1 with rank 2: needs F_1 >= 2, whatever F_0 and F_2.
    path = ("+-+++", [0, 2, 0, 0, 0])
    for fanout, hit in (((0, 2, 0), 1), ((9, 1, 9), 0)):
        _, rows = run(tokens_by_hand(path), "saguaro", lookahead=2, fanout=fanout)
        assert outcomes(rows.log.rounds(0))[0] == (1, 2, hit)


def test_a_miss_of_one_row_leaves_the_other_its_cache() -> None:
    # Row 0 always hits, row 1 misses at its first round (rank 5); only row 1 is redrafted.
    hitting, missing = ("+++++++++", [0] * 9), ("+++++++++".replace("+", "-", 1), [5] + [0] * 8)
    world, rows = run(
        tokens_by_hand(hitting, missing), "saguaro", batch=2, lookahead=2, fanout=(1,), backup="primary"
    )
    assert [r.hit for r in rows.log.rounds(0)] == [1, 1, -1]
    assert rows.log.rounds(1)[0].hit == 0
    redrafts = [s for s in world.spans if s.name == "draft"]
    assert [s.details["rows"] for s in redrafts][:2] == [2, 1]


def test_overlap_is_counted_where_both_work() -> None:
    # K = 2: drafting takes .5 s of every round of 1 s, the first draft .5 s before.
    world, rows = run(tokens_by_hand(("+" * 9, [0] * 9)), "saguaro", lookahead=2, fanout=(1,))
    assert len(rows.log.ends) == 3
    assert world.machine.overlap_s == pytest.approx(3 * 0.5)
    assert world.machine.busy_s == pytest.approx({"target": 3.0, "draft": 0.5 + 3 * 0.5})


def test_rows_are_replaced_when_they_finish() -> None:
    # Batch 1, two requests of 3 tokens: served one after the other.
    path = ("+++", [0, 0, 0])
    world, rows = run(tokens_by_hand(path, path), "ar", batch=1)
    assert world.now == 6.0
    assert [len(rows.log.rounds(i)) for i in (0, 1)] == [3, 3]
