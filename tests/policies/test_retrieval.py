"""Retrieval, pruning and fusion against the laws that state them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles.datastore import Datastore
from policies.commandline import parse_setting
from policies.config import SettingError
from policies.laws import rasd as laws
from policies.rasd import RasdConfig, candidates, fused, pruned, unfused
from policies.registry import configure
from policies.rest import RestConfig
from policies.retrieval import (
    RetrievalAsk,
    Retrieved,
    Search,
    frequent_beginnings,
    retrieve,
    retrieve_trees,
    text_candidates,
)
from policies.rows import Rows
from policies.sampling import GREEDY
from policies.tokentree import ROOT, TokenTree, TreeDrafted
from policies.values import NO_HANDLE, Request, Source

VOCABULARY = 4
TOKENS = st.integers(0, VOCABULARY - 1)
PATHS = st.lists(st.lists(TOKENS, max_size=4).map(tuple), max_size=6)
LAW = np.array([0.1, 0.4, 0.2, 0.3])


def paths_of(tree: TokenTree) -> set[tuple[int, ...]]:
    """Every node's token path."""
    return set(tree.paths)


def beginnings(paths: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return {path[:depth] for path in paths for depth in range(1, len(path) + 1)}


@given(
    st.lists(TOKENS, min_size=1, max_size=25),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_prompt_lookup_is_algorithm_1(
    text: list[int], longest: int, shortest: int, count: int, span: int
) -> None:
    longest, shortest = max(longest, shortest), min(longest, shortest)
    search = Search(longest=longest, shortest=shortest, count=count, span=span)
    expected = laws.suffix_candidates(
        text, [text], longest=longest, shortest=shortest, count=count, span=span
    )
    assert tuple(text_candidates(text, (), search)) == expected


@given(st.lists(TOKENS, min_size=1, max_size=15), st.lists(TOKENS, max_size=3).map(tuple), st.integers(1, 5))
def test_appended_tokens_change_the_ending_alone(
    text: list[int], path: tuple[int, ...], longest: int
) -> None:
    search = Search(longest=longest, shortest=1, count=50, span=3)
    expected = laws.suffix_candidates([*text, *path], [text], longest=longest, shortest=1, count=50, span=3)
    assert tuple(text_candidates(text, path, search)) == expected


@given(
    st.lists(st.lists(TOKENS, max_size=12).map(tuple), max_size=3), st.lists(TOKENS, min_size=1, max_size=6)
)
def test_a_datastores_tree_holds_what_algorithm_1_finds(
    texts: list[tuple[int, ...]], text: list[int]
) -> None:
    search = Search(longest=6, shortest=1, count=10**6, span=3, nodes=10**6)
    expected = laws.suffix_candidates(text, texts, longest=6, shortest=1, count=10**6, span=3)
    found = retrieve(RetrievalAsk(tuple(text)), search, Datastore.of_texts(texts, VOCABULARY))
    assert paths_of(found.tree) == beginnings(list(expected))
    assert found.work == (("retrieve", 0),)


@given(PATHS, st.integers(1, 10))
def test_a_cut_tree_keeps_the_most_frequent_beginnings(paths: list[tuple[int, ...]], nodes: int) -> None:
    counts = Counter(path[:depth] for path in paths for depth in range(1, len(path) + 1))
    found = frequent_beginnings(paths, nodes)
    assert [number for _, number in found] == sorted(counts.values(), reverse=True)[:nodes]
    seen: set[tuple[int, ...]] = {()}
    for path, number in found:
        assert number == counts[path]
        assert path[:-1] in seen
        seen.add(path)


def test_drafted_tokens_are_appended_where_nothing_is_found() -> None:
    # 3 occurs once, at the end; after 3 0 nothing, after 3 1 and 1 1 nothing, but a shorter ending: 1 -> 2.
    text = (0, 1, 2, 3)
    search = Search(longest=2, shortest=1, count=4, span=2, nodes=8)
    assert retrieve(RetrievalAsk(text), search, None) == Retrieved(TokenTree(), 0, (("retrieve", 0),))
    found = retrieve(RetrievalAsk(text, (((1,), (3,)),)), search, None)
    assert found.appended == 1
    assert paths_of(found.tree) == {(1,), (1, 2), (1, 2, 3)}
    assert set(found.tree.sources) == {int(Source.NGRAM)}
    deeper = retrieve(RetrievalAsk(text, (((3,),), ((3, 0),))), search, None)
    assert deeper.appended == 2
    assert paths_of(deeper.tree) == {(3,), (3, 0), (3, 0, 1), (3, 0, 1, 2)}


def test_what_is_found_at_once_ends_the_search() -> None:
    found = retrieve(RetrievalAsk((1, 2, 1), (((3,),),)), Search(shortest=1), None)
    assert (found.appended, paths_of(found.tree)) == (0, {(2,), (2, 1)})


def test_only_what_is_searched_by_crosses_to_the_device() -> None:
    rows = Rows([Request(0, 3, 1, (1, 2, 3))], 1, keep_tokens=True)
    rows.admit()

    def crosses(datastore: str | None) -> tuple[int, ...]:
        config = RestConfig(datastore=datastore, longest_match=2)
        return retrieve_trees(rows, rows.view(), config, GREEDY).inputs[0].text

    assert crosses("stdlib") == (2, 3)
    assert crosses(None) == (1, 2, 3)


@given(PATHS, st.integers(0, VOCABULARY))
def test_pruning_is_the_papers(paths: list[tuple[int, ...]], top: int) -> None:
    tree = TokenTree.of_paths(paths, Source.NGRAM)
    first = laws.top_tokens(LAW, top).tolist()
    found = pruned(tree, first)
    assert paths_of(found) == beginnings(list(laws.prune(paths, LAW, top)))
    assert all(parent < node for node, parent in enumerate(found.parents))
    if top == VOCABULARY:
        assert found == tree


@given(PATHS, PATHS)
def test_fusion_is_the_trie_of_both(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> None:
    draft, retrieved = TokenTree.of_paths(one), TokenTree.of_paths(other, Source.NGRAM)
    found = fused(draft, retrieved)
    law = laws.fuse_paths(9, one, other)
    assert paths_of(found) == {law.path(node) for node in range(1, len(law.tokens))}
    assert len(found.tokens) == len(law.tokens) - 1  # no node twice
    assert [column[: len(draft.tokens)] for column in found] == [*draft]
    assert all(parent < node for node, parent in enumerate(found.parents))
    apart = unfused(draft, retrieved)
    assert len(apart.tokens) == len(draft.tokens) + len(retrieved.tokens)
    assert [column[: len(found.tokens)] for column in apart] == [*found]


def test_a_drawn_node_keeps_its_law_and_a_retrieved_one_has_none() -> None:
    # Two draws of 5 and one of 6, as a sampled tree may have; 5 7 and 8 are retrieved.
    draft = TokenTree((5, 5, 6), (ROOT, ROOT, ROOT), (1, 1, 1), (10, 11, 12))
    found = fused(draft, TokenTree.of_paths([(5, 7), (8,)], Source.NGRAM))
    assert found == TokenTree(
        (5, 5, 6, 7, 8), (ROOT, ROOT, ROOT, 0, ROOT), (1, 1, 1, 3, 3), (10, 11, 12, NO_HANDLE, NO_HANDLE)
    )


def test_candidates_are_the_draft_and_what_pruning_leaves() -> None:
    drafted = TreeDrafted(TokenTree.of_paths([(1, 2)]), (), (1, 3))
    found = Retrieved(TokenTree.of_paths([(1, 4), (2,), (3,)], Source.NGRAM), 0, ())
    assert paths_of(candidates(drafted, found, RasdConfig())) == {(1,), (1, 2), (1, 4), (3,)}
    every = candidates(drafted, found, RasdConfig(prune_top=0))
    assert paths_of(every) == {(1,), (1, 2), (1, 4), (3,), (2,)}
    # Unfused, 1 is verified twice.
    assert len(candidates(drafted, found, RasdConfig(fusion="off")).tokens) == 5


def test_a_datastore_is_asked_once_and_a_text_again() -> None:
    assert RasdConfig().attempts == 2
    assert RasdConfig(datastore="stdlib").attempts == 0
    assert RasdConfig(datastore="stdlib", retrieval_attempts=1).attempts == 1


def test_labels_name_knobs_in_the_order_in_which_recordings_have_them() -> None:
    label = "rasd retrieval_attempts=1 prune_top=0 retrieval_nodes=8 tree_depth=3"
    policy, knobs = parse_setting(label)
    assert configure(policy, **knobs).label == label


@pytest.mark.parametrize(
    ("policy", "knobs", "message"),
    [
        ("rest", {"shortest_match": 9, "longest_match": 3}, "above longest_match 3"),
        ("rasd", {"tree_budget": 999}, "budget"),
        ("rest", {"prune_top": 3}, "has no prune_top"),
        ("rasd", {"retrieval_nodes": 0}, "at least 1"),
    ],
)
def test_knobs_that_cannot_be_are_refused(policy: str, knobs: dict[str, int], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        configure(policy, **knobs)
