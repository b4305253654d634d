"""Token trees and their plans: structure, counts, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.config import SettingError
from policies.registry import configure
from policies.tokentree import ROOT, TokenTree, TreePlan, TreeVerdict, levels_tried
from policies.tree import TreeConfig
from policies.values import NO_HANDLE, RowVerdict, Source

PATHS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=6)


@given(PATHS)
def test_a_trie_holds_every_prefix_once(paths: list[list[int]]) -> None:
    tree = TokenTree.of_paths(paths)
    prefixes = {tuple(path[:n]) for path in paths for n in range(1, len(path) + 1)}
    assert len(tree.paths) == len(set(tree.paths))
    assert set(tree.paths) == prefixes


@given(PATHS)
def test_parents_come_first(paths: list[list[int]]) -> None:
    tree = TokenTree.of_paths(paths, Source.NGRAM)
    assert all(ROOT <= parent < node for node, parent in enumerate(tree.parents))
    assert set(tree.sources) <= {int(Source.NGRAM)}
    assert set(tree.handles) <= {NO_HANDLE}


@given(PATHS)
def test_every_node_is_the_child_of_its_parent(paths: list[list[int]]) -> None:
    tree = TokenTree.of_paths(paths)
    families = [tree.children(node) for node in range(ROOT, len(tree.tokens))]
    assert sorted(child for family in families for child in family) == list(range(len(tree.tokens)))
    assert all(tree.parents[child] == node for node, family in enumerate(families, ROOT) for child in family)
    assert all(list(family) == sorted(family) for family in families)


def test_siblings_stand_in_the_order_of_their_first_path() -> None:
    tree = TokenTree.of_paths([(5, 6), (7,), (5, 8), (5, 6, 9)])
    # Nodes in the order in which they come up: 5, 5-6, 7, 5-8, 5-6-9.
    assert tree.tokens == (5, 6, 7, 8, 9)
    assert tree.parents == (ROOT, 0, ROOT, 0, 1)
    assert tree.children(ROOT) == (0, 2)
    assert tree.children(0) == (1, 3)
    assert tree.paths == [(5,), (5, 6), (7,), (5, 8), (5, 6, 9)]
    assert TokenTree.of_paths([]) == TokenTree()


def test_levels_tried() -> None:
    tree = TokenTree.of_paths([(5, 6), (7,)])

    def tried(path: tuple[int, ...], room: int = 9, tree: TokenTree = tree) -> int:
        tokens = (*(tree.tokens[node] for node in path), 4)[:room]
        verdict = RowVerdict(min(len(path), room), tokens, len(tokens) == room)
        return levels_tried(tree, TreeVerdict(verdict, path, ()))

    assert tried(()) == 1  # both first candidates failed
    assert tried((0,)) == 2  # 5 passed, 6 failed
    assert tried((0, 1)) == 2  # all passed
    assert tried((2,)) == 1  # 7 passed, and has no child
    assert tried((0,), room=1) == 1  # 5 was the last token
    assert tried((0, 1), room=1) == 1
    assert tried((), tree=TokenTree()) == 0


def test_static_counts() -> None:
    plan = TreePlan(widths=(4, 2, 1))
    # 4 + 4 * 2 + 8 * 1 nodes; all but the last level are fed to the draft.
    assert (plan.nodes, plan.fed) == (20, (4, 8))
    assert TreePlan(widths=(7,)).fed == ()


def test_dynamic_counts() -> None:
    plan = TreePlan("dynamic", depth=3, topk=2, budget=7)
    # 2 + 2 * 2 + 2 * 2 candidates: two nodes of each level but the last are fed, and get two children each.
    assert (plan.candidates, plan.nodes, plan.fed) == (10, 7, (2, 2))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"tree_widths": ()}, "at least 1"),
        ({"tree_widths": (2, 0)}, "at least 1"),
        ({"tree_widths": (32, 32)}, "more than the 1024 allowed"),
        ({"tree_plan": "dynamic", "tree_budget": 69}, "lower the budget"),
        ({"tree_plan": "dynamic", "tree_depth": 0}, "at least 1"),
        ({"tree_plan": "bushy"}, "unknown tree plan"),
        ({"tree_plan": "dynamic", "tree_widths": (2,)}, "changes nothing with tree_plan 'dynamic'"),
        ({"tree_budget": 3}, "changes nothing with tree_plan 'static'"),
        ({"tree_plan": "dynamic", "temperature": 1.0}, "draft_sampling 'greedy'"),
        ({"draft_sampling": "greedy"}, "changes nothing at temperature 0"),
    ],
)
def test_trees_that_cannot_be(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        configure("tree", **knobs)


def test_a_plan_is_what_was_configured() -> None:
    settings = configure("tree", tree_plan="dynamic", tree_depth=3, tree_topk=2, tree_budget=6)
    assert isinstance(settings.config, TreeConfig)
    assert settings.config.plan == TreePlan("dynamic", depth=3, topk=2, budget=6)
    assert settings.label == "tree tree_plan=dynamic tree_depth=3 tree_topk=2 tree_budget=6"
    assert configure("tree", tree_widths=(3, 1)).label == "tree tree_widths=3,1"


def test_nodes_lie_ahead_of_the_text() -> None:
    assert configure("tree", tree_widths=(3, 2)).config.ahead == 9
    assert configure("tree", tree_plan="dynamic", tree_budget=7).config.ahead == 7
    assert configure("heads", tree_widths=(2, 1)).config.ahead == 4
    assert configure("sd", lookahead=3).config.ahead == 3
    assert configure("pearl", lookahead=3).config.draft_ahead == 6
    assert configure("rest").config.ahead == 0
