"""Values that cross the boundary: merging speculations, fan-outs by source, the rows' text and clock."""

from __future__ import annotations

import numpy as np
import pytest

from policies.operation import Prespeculate
from policies.pld import lookup
from policies.rows import Rows
from policies.ssd import JoinedCache
from policies.values import Request, Source, Speculation, Verdict

PRIMARY, NGRAM = int(Source.PRIMARY), int(Source.NGRAM)


def primary(lengths: list[int], tokens: list[list[int]], laws: list[int]) -> Speculation:
    sources = [PRIMARY if n else 0 for n in lengths]
    return Speculation(
        np.array(lengths), np.array(sources), np.array(tokens), shape=(2, 2), handles=np.array(laws)
    )


def verdict(accepted: list[int], bonus: list[int]) -> Verdict:
    emitted = np.array(accepted) + 1
    return Verdict(np.array(accepted), emitted, np.zeros(len(bonus), dtype=bool), np.array(bonus))


def test_a_merge_takes_tokens_sources_and_laws_together() -> None:
    drafted = primary([2, 2], [[1, 2], [3, 4]], [10, 11])
    guessed = Speculation(np.array([0, 1]), np.array([0, NGRAM]), np.array([[-1], [7]]), has_guesses=True)
    merged = drafted.merge(guessed, np.array([False, True]))
    assert merged.lengths.tolist() == [2, 1]
    assert merged.sources.tolist() == [PRIMARY, NGRAM]
    assert merged.tokens is not None and merged.tokens.tolist() == [[1, 2], [7, -1]]
    # A law that outlived its tokens would be the stale q of a row that missed.
    assert merged.handles is not None and merged.handles.tolist() == [10, -1]
    assert merged.has_guesses and merged.shape == (2, 2)
    assert drafted.merge(Speculation.empty(2), np.array([True, False])).lengths.tolist() == [0, 2]


def test_the_fan_out_follows_the_source_of_what_is_verified() -> None:
    rows = Rows([Request(0, 1, 9), Request(1, 1, 9), Request(2, 1, 9)], 3)
    rows.admit()
    mixed = Speculation(np.array([2, 2, 0]), np.array([PRIMARY, NGRAM, 0]))
    asked = Prespeculate(rows.view(), mixed, 2, (1, 1, 4), (6, 0, 0))
    assert [asked.fanout_of(slot) for slot in range(3)] == [(1, 1, 4), (6, 0, 0), (6, 0, 0)]
    same = Prespeculate(rows.view(), mixed, 2, (1, 1, 4))
    assert same.fanout_of(1) == (1, 1, 4)


class ByHand:
    """A cache that is written out: (accepted, bonus) to one token."""

    def __init__(self, entries: dict[tuple[int, int], int]) -> None:
        self.entries = entries

    def lookup(self, verdict: Verdict) -> np.ndarray:
        outcomes = zip(verdict.accepted.tolist(), verdict.bonus.tolist(), strict=True)
        return np.array([o in self.entries for o in outcomes])

    def take(self, verdict: Verdict, hits: np.ndarray) -> Speculation:
        outcomes = list(zip(verdict.accepted.tolist(), verdict.bonus.tolist(), strict=True))
        tokens = [[self.entries[o] if h else -1] for o, h in zip(outcomes, hits, strict=True)]
        return Speculation(hits.astype(int), hits * PRIMARY, np.array(tokens))

    def opening(self) -> Speculation:
        return Speculation.empty(1)


def test_a_joined_cache_is_the_union_of_its_parts() -> None:
    joined = JoinedCache([ByHand({(0, 5): 50}), ByHand({(1, 6): 60})])
    outcome = verdict([0, 1, 1], [5, 6, 7])
    hits = joined.lookup(outcome)
    assert hits.tolist() == [True, True, False]
    taken = joined.take(outcome, hits)
    assert taken.lengths.tolist() == [1, 1, 0]
    assert taken.tokens is not None and taken.tokens[:, 0].tolist() == [50, 60, -1]


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
    told = Verdict(np.array([1]), np.array([2]), np.array([False]), np.array([6]), ((5, 6),))
    rows.commit(rows.view(), Speculation.empty(1), told, now=3.5)
    rows.commit(rows.view(), Speculation.empty(1), told, now=4.0)
    assert rows.text(4) == (8, 9, 5, 6, 5, 6)
    # Admitted at 2, first tokens at 3.5; the second round changes nothing.
    assert rows.log.times_to_first_token() == [1.5]


def test_a_run_without_ids_has_no_text() -> None:
    with pytest.raises(ValueError, match="keeps no token ids"):
        Rows([Request(0, 1, 1)], 1).text(0)
