"""Datastores: the index against a search by hand, files, and what is refused."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles.datastore import Datastore, DatastoreError, by_doubling, datastore_path, suffix_array

VOCABULARY = 4
WORDS = st.lists(st.integers(0, VOCABULARY - 1), max_size=30).map(tuple)
TEXTS = st.lists(WORDS, max_size=4)


@given(st.lists(st.integers(0, 3), max_size=60), st.sampled_from([">u2", ">u4"]))
def test_both_ways_to_a_suffix_array_agree(tokens: list[int], kind: str) -> None:
    expected = sorted(range(len(tokens)), key=lambda start: tokens[start:])
    assert by_doubling(np.array(tokens, dtype=kind)).tolist() == expected
    assert suffix_array(np.array(tokens, dtype=kind)).tolist() == expected


def test_numpy_alone_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    found = Datastore.of_texts([(1, 2, 1, 3), (1, 2)], VOCABULARY)
    assert found.lookup((1,), longest=1, span=1, count=3) == [((2,), 2), ((3,), 1)]


def test_bytes_do_not_sort_across_tokens() -> None:
    # As bytes 00 02 | 02 00 | 01 01: a suffix that began inside a token would come between.
    tokens = np.array([2, 512, 257], dtype=">u2")
    assert suffix_array(tokens).tolist() == by_doubling(tokens).tolist() == [0, 2, 1]


def by_hand(texts: list[tuple[int, ...]], ending: tuple[int, ...], span: int) -> Counter[tuple[int, ...]]:
    """What followed an ending, and how often."""
    size = len(ending)
    return Counter(
        text[start + size : start + size + span]
        for text in texts
        for start in range(len(text) - size)
        if text[start : start + size] == ending
    )


@given(TEXTS, WORDS, st.integers(1, 4), st.integers(1, 5), st.integers(0, 12))
def test_lookups_find_what_a_search_by_hand_finds(
    texts: list[tuple[int, ...]], text: tuple[int, ...], longest: int, span: int, count: int
) -> None:
    expected: dict[tuple[int, ...], int] = {}
    for size in range(min(longest, len(text)), 0, -1):
        if len(expected) >= count:
            break
        found = by_hand(texts, text[-size:], span)
        # Lexical order among equals, an end being above every token.
        order = sorted(found, key=lambda each: (-found[each], [*each, VOCABULARY]))
        for each in order:
            expected.setdefault(each, found[each])
    datastore = Datastore.of_texts(texts, VOCABULARY)
    assert datastore.lookup(text, longest=longest, span=span, count=count) == list(expected.items())[:count]


@given(TEXTS, WORDS, st.integers(1, 4), st.integers(1, 12))
def test_beginnings_of_the_longest_ending_are_the_most_frequent(
    texts: list[tuple[int, ...]], text: tuple[int, ...], span: int, nodes: int
) -> None:
    sizes = [size for size in range(1, len(text) + 1) if by_hand(texts, text[-size:], span)]
    found = Datastore.of_texts(texts, VOCABULARY).prefixes(text, longest=99, span=span, nodes=nodes)
    if not sizes:
        assert found == []
        return
    counts: Counter[tuple[int, ...]] = Counter()
    for path, number in by_hand(texts, text[-sizes[-1] :], span).items():
        counts.update({path[:depth]: number for depth in range(1, len(path) + 1)})
    frequencies = [number for _, number in found]
    assert frequencies == sorted(counts.values(), reverse=True)[:nodes]
    assert all(counts[path] == number for path, number in found)
    # A tree: what a path begins with is there before it.
    seen: set[tuple[int, ...]] = {()}
    for path, _ in found:
        assert path[:-1] in seen
        seen.add(path)


@given(TEXTS, WORDS)
def test_occurrences_are_counted(texts: list[tuple[int, ...]], words: tuple[int, ...]) -> None:
    size = len(words)
    starts = [t[i : i + size] for t in texts for i in range(len(t) - size + 1)]
    expected = starts.count(words) if words else 0
    assert Datastore.of_texts(texts, VOCABULARY).occurrences(words) == expected


def test_shorter_endings_fill_the_tree_up() -> None:
    # After 1 2 came 3; after 2 alone came 3, 0 and 0: the longer ending first, then 0 (twice).
    datastore = Datastore.of_texts([(1, 2, 3), (2, 0), (3, 2, 0)], VOCABULARY)
    assert datastore.prefixes((1, 2), longest=2, span=1, nodes=4) == [((3,), 1)]
    assert datastore.prefixes((1, 2), longest=2, span=1, nodes=4, enough=2) == [((3,), 1), ((0,), 2)]
    assert datastore.prefixes((1, 2), longest=2, shortest=2, span=1, nodes=4, enough=2) == [((3,), 1)]


def test_many_occurrences_are_sampled_evenly() -> None:
    # 3 x 4096 places after 0: two in three go on with 1, so that of 4096 looked at about 2731 do.
    datastore = Datastore.of_texts([(0, 1, 0, 1, 0, 2) * 4096], VOCABULARY)
    found = dict(datastore.lookup((0,), longest=1, span=1, count=2))
    assert sum(found.values()) == 4096
    assert found[1,] == pytest.approx(2731, abs=2)


def test_files_keep_everything(tmp_path: Path) -> None:
    made = Datastore.of_texts([(1, 2, 3), (0, 1, 2)], VOCABULARY, tokenizer="x", sources=["here"])
    made.write(tmp_path / "store")
    made.write(tmp_path / "store")  # in place of the old one
    found = Datastore.open(tmp_path / "store")
    assert found.meta == made.meta
    assert len(found) == 8  # with an end after each text
    assert found.lookup((1,), longest=1, span=2, count=9) == [((2, 3), 1), ((2,), 1)]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_pickles_are_not_read(tmp_path: Path) -> None:
    Datastore.of_texts([(1, 2, 3)], VOCABULARY).write(tmp_path / "store")
    np.save(tmp_path / "store" / "tokens.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(DatastoreError, match="damaged"):
        Datastore.open(tmp_path / "store")


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatastoreError, match="calibrate datastore build"):
        Datastore.open(tmp_path / "none")
    with pytest.raises(DatastoreError, match="another tokenizer"):
        Datastore.of_texts([(VOCABULARY,)], VOCABULARY)
    with pytest.raises(ValueError, match="shortest"):
        Datastore.of_texts([], VOCABULARY).lookup((1,), longest=1, shortest=2, span=1, count=1)
    (tmp_path / "other").mkdir()
    with pytest.raises(DatastoreError, match="no datastore"):
        Datastore.of_texts([], VOCABULARY).write(tmp_path / "other")
    store = tmp_path / "store"
    Datastore.of_texts([(1,)], VOCABULARY).write(store)
    stated = json.loads((store / "datastore.json").read_text())
    (store / "datastore.json").write_text(json.dumps({**stated, "tokens": 7}))
    with pytest.raises(DatastoreError, match="differ in length"):
        Datastore.open(store)
    (store / "datastore.json").write_text("{}")
    with pytest.raises(DatastoreError, match="schema"):
        Datastore.open(store)


def test_names_are_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert datastore_path("stdlib") == tmp_path / "spectwin" / "datastores" / "stdlib"
    assert datastore_path("./stdlib") == Path("./stdlib")
    assert datastore_path(tmp_path / "a") == tmp_path / "a"
