"""Values that cross the boundary: merging speculations, fan-outs by source, the rows' text and clock."""

from __future__ import annotations

import pytest

from policies.operation import Prespeculate
from policies.pld import lookup
from policies.rows import Rows
from policies.ssd import JoinedCache
from policies.values import Drafted, Request, Slots, Source, Speculation, Verdict

PRIMARY, NGRAM = int(Source.PRIMARY), int(Source.NGRAM)


def primary(lengths: list[int], tokens: list[list[int]], laws: list[int]) -> Speculation:
    sources = [PRIMARY if n else 0 for n in lengths]
    texts = tuple(map(tuple, tokens))
    return Speculation(tuple(lengths), tuple(sources), texts, shape=(2, 2), handles=tuple(laws))


def verdict(accepted: list[int], bonus: list[int]) -> Verdict:
    return Verdict(tuple(accepted), tuple(count + 1 for count in accepted), frozenset(), tuple(bonus))


def test_a_merge_takes_tokens_sources_and_laws_together() -> None:
    drafted = primary([2, 2], [[1, 2], [3, 4]], [10, 11])
    guessed = Speculation((0, 1), (0, NGRAM), ((), (7,)), has_guesses=True)
    merged = drafted.merge(guessed, frozenset({1}))
    assert merged.lengths == (2, 1)
    assert merged.sources == (PRIMARY, NGRAM)
    assert merged.tokens == ((1, 2), (7,))
    # A law that outlived its tokens would be the stale q of a row that missed.
    assert merged.handles == (10, -1)
    assert merged.has_guesses and merged.shape == (2, 2)
    assert drafted.merge(Speculation.empty(2), frozenset({0})).lengths == (0, 2)


def test_the_fan_out_follows_the_source_of_what_is_verified() -> None:
    rows = Rows([Request(0, 1, 9), Request(1, 1, 9), Request(2, 1, 9)], 3)
    rows.admit()
    mixed = Speculation((2, 2, 0), (PRIMARY, NGRAM, 0))
    asked = Prespeculate(rows.view(), mixed, 2, (1, 1, 4), (6, 0, 0))
    assert [asked.fanout_of(slot) for slot in range(3)] == [(1, 1, 4), (6, 0, 0), (6, 0, 0)]
    same = Prespeculate(rows.view(), mixed, 2, (1, 1, 4))
    assert same.fanout_of(1) == (1, 1, 4)


class ByHand:
    """A cache that is written out: (accepted, bonus) to one token."""

    def __init__(self, entries: dict[tuple[int, int], int]) -> None:
        self.entries = entries

    def lookup(self, verdict: Verdict) -> Slots:
        outcomes = zip(verdict.accepted, verdict.bonus, strict=True)
        return frozenset(slot for slot, outcome in enumerate(outcomes) if outcome in self.entries)

    def take(self, verdict: Verdict, hits: Slots) -> Speculation:
        outcomes = list(zip(verdict.accepted, verdict.bonus, strict=True))
        return Speculation.drafted(3, {slot: Drafted((self.entries[outcomes[slot]],)) for slot in hits})

    def opening(self) -> Speculation:
        return Speculation.empty(1)


def test_a_joined_cache_is_the_union_of_its_parts() -> None:
    joined = JoinedCache([ByHand({(0, 5): 50}), ByHand({(1, 6): 60})])
    outcome = verdict([0, 1, 1], [5, 6, 7])
    hits = joined.lookup(outcome)
    assert hits == {0, 1}
    taken = joined.take(outcome, hits)
    assert taken.lengths == (1, 1, 0)
    assert taken.tokens == ((50,), (60,), ())


@pytest.mark.parametrize(
    ("text", "lookahead", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 2, (9, 1)),  # the suffix 1 2 3 stood at the beginning
        ([1, 2, 8, 1, 2, 9, 1, 2], 1, (9,)),  # 1 2 stood twice before: the latest counts
        ([5, 4, 7, 4], 3, (7, 4)),  # only the last token stood before; what follows it ends here
        ([7, 7], 4, (7,)),
        ([1, 2, 3], 4, ()),  # 3 never stood before
        ([1], 4, ()),
    ],
)
def test_lookup(text: list[int], lookahead: int, expected: tuple[int, ...]) -> None:
    assert lookup(text, lookahead) == expected


def test_a_text_is_the_prompt_and_what_was_emitted() -> None:
    rows = Rows([Request(4, 2, 9, (8, 9))], 1, keep_tokens=True)
    rows.admit(now=2.0)
    told = Verdict((1,), (2,), frozenset(), (6,), ((5, 6),))
    rows.commit(rows.view(), Speculation.empty(1), told, now=3.5)
    rows.commit(rows.view(), Speculation.empty(1), told, now=4.0)
    assert rows.text(4) == (8, 9, 5, 6, 5, 6)
    # Admitted at 2, first tokens at 3.5; the second round changes nothing.
    assert rows.log.times_to_first_token() == [1.5]


def test_a_run_without_ids_has_no_text() -> None:
    with pytest.raises(ValueError, match="keeps no token ids"):
        Rows([Request(0, 1, 1)], 1).text(0)
