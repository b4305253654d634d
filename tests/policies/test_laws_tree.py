"""Trees of candidates: against sets of paths, and their verification against exact laws."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.laws.rasd import TokenTree, fuse, fuse_paths, merge, verify_tree
from policies.laws.sampling import acceptance_of_candidates, candidates_probs

paths = st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=6)


class TestTree:
    """`rasd.tree` and `rasd.fuse`."""

    @given(candidates=paths)
    def test_merged_paths_and_nodes(self, candidates: list[list[int]]) -> None:
        tree = merge(9, candidates)
        prefixes = {tuple(c[:n]) for c in candidates for n in range(1, len(c) + 1)}
        assert {tree.path(node) for node in range(1, len(tree.tokens))} == prefixes
        assert len(tree.tokens) == len(prefixes) + 1
        longest = {p for p in prefixes if not any(q[:-1] == p for q in prefixes)}
        assert set(tree.paths) == longest
        assert (
            list(tree.depths) == sorted(tree.depths) == [len(tree.path(n)) for n in range(len(tree.tokens))]
        )

    @given(candidates=paths)
    def test_a_node_sees_its_beginnings(self, candidates: list[list[int]]) -> None:
        tree = merge(9, candidates)
        every = [tree.path(node) for node in range(len(tree.tokens))]
        sees = [[path[: len(other)] == other for other in every] for path in every]
        assert tree.mask.tolist() == sees

    @given(first=paths, second=paths)
    def test_fusion_is_the_union(self, first: list[list[int]], second: list[list[int]]) -> None:
        one, other = merge(9, first), merge(9, second)
        both = fuse(one, other)
        nodes = [{tree.path(n) for n in range(len(tree.tokens))} for tree in (one, other, both)]
        assert nodes[2] == nodes[0] | nodes[1]
        assert len(both.tokens) <= len(one.tokens) + len(other.tokens) - 1
        assert fuse(one, one) == one

    def test_by_hand(self) -> None:
        both = fuse_paths(0, [[1, 2], [3]], [[1, 4], [5]])
        assert both.tokens == (0, 1, 3, 5, 2, 4) and both.parents == (-1, 0, 0, 0, 1, 1)
        assert both.paths == ((3,), (5,), (1, 2), (1, 4))
        assert both.mask[5].tolist() == [True, True, False, False, False, True]
        assert merge(7, []) == merge(7, [[]]) == TokenTree((7,), (-1,)) and merge(7, []).paths == ()
        with pytest.raises(ValueError, match="different roots"):
            fuse(merge(0, []), merge(1, []))
        with pytest.raises(ValueError, match="before their children"):
            TokenTree((0, 1, 2), (-1, 2, 0))
        with pytest.raises(ValueError, match="begins with its root"):
            TokenTree((0,), (0,))


MARKOV = np.array([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
QUARTERS, TWELFTHS = [(i + 0.5) / 4 for i in range(4)], [(i + 0.5) / 12 for i in range(12)]


def _laws(tree: TokenTree) -> list[np.ndarray]:
    return [MARKOV[token] for token in tree.tokens]


def _complete(law: Counter[tuple[int, ...]], emitted: tuple[int, ...], weight: float, length: int) -> None:
    """Add what is emitted, decoded plainly to a length."""
    for rest in itertools.product(range(3), repeat=max(0, length - len(emitted))):
        chance = math.prod(MARKOV[x][y] for x, y in itertools.pairwise((emitted[-1], *rest)))
        law[(*emitted, *rest)[:length]] += weight * chance


def _plain(length: int) -> dict[tuple[int, ...], float]:
    chains = itertools.product(range(3), repeat=length)
    return {c: math.prod(MARKOV[x][y] for x, y in itertools.pairwise((0, *c))) for c in chains}


class TestVerify:
    """`rasd.verify` on a Markov target; all probabilities at the nodes are multiples of 1/4 or 1/12."""

    def test_chosen_candidates_have_exactly_the_targets_law(self) -> None:
        tree = merge(0, [[1, 1], [2]])
        law: Counter[tuple[int, ...]] = Counter()
        for *coins, last in itertools.product(QUARTERS, QUARTERS, QUARTERS, TWELFTHS):
            emitted, accepted = verify_tree(tree, _laws(tree), [last, *coins])
            assert len(emitted) == accepted + 1
            _complete(law, emitted, 1.0 / (4**3 * 12), 3)
        assert dict(law) == pytest.approx(_plain(3), abs=1e-12)

    @staticmethod
    def _drawn_twice() -> dict[tuple[int, ...], float]:
        """First token's law with two siblings drawn from q = (.5, .25, .25), none of them merged."""
        q = np.array([0.5, 0.25, 0.25])
        law: Counter[tuple[int, ...]] = Counter()
        for pair in itertools.product(range(3), repeat=2):
            tree = TokenTree((0, *pair), (-1, 0, 0))
            for *coins, last in itertools.product(QUARTERS, QUARTERS, TWELFTHS):
                emitted, _ = verify_tree(tree, _laws(tree), [last, *coins], [None, q, q])
                law[emitted[:1]] += q[pair[0]] * q[pair[1]] / (4**2 * 12)
        return dict(law)

    def test_drawn_siblings_must_not_be_merged(self) -> None:
        """Every draw that failed takes its law off the residual, also where it drew the same token again."""
        assert self._drawn_twice() == pytest.approx(_plain(1), abs=1e-12)
        # p = (.1, .5, .4), q = (.6, .2, .2): a failed 0 leaves (0, .6, .4), a second one (0, 2/3, 1/3).
        p, q = np.array([0.1, 0.5, 0.4]), np.array([0.6, 0.2, 0.2])
        exact, merged = np.zeros(3), np.zeros(3)
        for pair in itertools.product(range(3), repeat=2):
            weight = q[pair[0]] * q[pair[1]]
            exact += weight * candidates_probs(p, pair, [q, q])
            once = pair[:1] if pair[0] == pair[1] else pair
            merged += weight * candidates_probs(p, once, [q] * len(once))
        assert exact == pytest.approx(p, abs=1e-12)
        assert np.abs(merged - p).max() > 0.01

    def test_by_hand(self) -> None:
        bare = merge(0, [])
        assert verify_tree(bare, _laws(bare), [0.5]) == ((1,), 0)
        tree = merge(0, [[1, 1], [2]])
        assert verify_tree(tree, _laws(tree), [0.0, 0.4, 0.9, 0.2]) == ((1, 1, 0), 2)
        assert verify_tree(tree, _laws(tree), [0.0, 0.6, 0.9, 0.2]) == ((0,), 0)
        with pytest.raises(ValueError, match="as many distributions and coins"):
            verify_tree(tree, _laws(tree), [0.5])
        with pytest.raises(ValueError, match="draft rows"):
            verify_tree(bare, _laws(bare), [0.5], [])

    def test_accepted_tokens_against_tossed_coins(self) -> None:
        """20 000 verifications: mean accepted 3/4 + 1/2 * 1/4, 4.9 standard errors allowed."""
        tree, rng = merge(0, [[1, 1], [2]]), np.random.default_rng(6)
        accepted = np.array([verify_tree(tree, _laws(tree), rng.random(4))[1] for _ in range(20_000)])
        expected = acceptance_of_candidates(MARKOV[0], [1, 2]) + 0.5 * acceptance_of_candidates(
            MARKOV[1], [1]
        )
        assert expected == pytest.approx(0.875)
        assert abs(accepted.mean() - expected) < 4.9 * accepted.std() / math.sqrt(20_000)
