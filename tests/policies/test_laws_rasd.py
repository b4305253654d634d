"""RASD: retrieval against string search, judgement in exact distributions, trees against sets of paths."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.laws.rasd import (
    TokenTree,
    draft_chain,
    draft_input,
    first_layer,
    fuse,
    fuse_paths,
    judge,
    judge_printed,
    lookup_rounds,
    merge,
    metrics,
    prune,
    suffix_candidates,
    suffix_candidates_printed,
    verify_tree,
)
from policies.laws.sampling import acceptance_of_candidates, candidates_probs

words = st.lists(st.integers(0, 2), min_size=1, max_size=14)
texts = st.lists(words, max_size=4)
paths = st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=6)
SEARCH = {"longest": 3, "shortest": 1, "count": 4, "span": 2}


def test_draft_input() -> None:
    assert draft_input([1, 2], 3) == (1, 2, 3)
    assert draft_input([], 3) == (3,)


class TestDraftChain:
    """`rasd.eq4-6`."""

    TABLE = ((0.25, 0.75), (0.5, 0.5))

    def test_exact_law_by_all_coins(self) -> None:
        grid = (0.125, 0.375, 0.625, 0.875)
        counts = Counter(
            draft_chain([1], self.TABLE, coins)[0] for coins in itertools.product(grid, repeat=3)
        )
        for chain, times in counts.items():
            weight = math.prod(self.TABLE[x][y] for x, y in itertools.pairwise((1, *chain)))
            assert times / 4**3 == weight
        assert counts.total() == 4**3

    def test_the_laws_are_those_drawn_from(self) -> None:
        tokens, laws = draft_chain([0, 1], self.TABLE, [0.1, 0.9, 0.9])
        assert tokens == (0, 1, 1)
        assert laws.tolist() == [[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]
        assert draft_chain([1], self.TABLE, [])[1].shape == (0, 2)

    def test_bad_input(self) -> None:
        with pytest.raises(ValueError, match="draft_table must be"):
            draft_chain([0], [0.5, 0.5], [])
        with pytest.raises(ValueError, match="end in a token"):
            draft_chain([], self.TABLE, [])
        with pytest.raises(ValueError, match="end in a token"):
            first_layer([2], self.TABLE)


def test_accepted_and_resampled_make_the_targets_law() -> None:
    """`rasd.accept` in fractions: q min(1, p/q) + P(rejected) residual = p; as printed it sums to less."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        weights = rng.integers(1, 9, (2, 4))
        p, q = ([Fraction(int(w), int(row.sum())) for w in row] for row in weights)
        over = [max(x - y, Fraction(0)) for x, y in zip(p, q, strict=True)]
        rejected = sum(over)
        judged = judge([float(x) for x in p], [float(x) for x in q])
        exact = [float(min(Fraction(1), x / y)) for x, y in zip(p, q, strict=True)]
        assert judged.accept == pytest.approx(exact, abs=1e-15)
        if rejected:
            assert judged.residual == pytest.approx([float(x / rejected) for x in over], abs=1e-14)
            law = [y * min(Fraction(1), x / y) + o for x, y, o in zip(p, q, over, strict=True)]
            assert law == p
        printed = judge_printed([float(x) for x in p], [float(x) for x in q])
        assert printed.residual.sum() == pytest.approx(float(rejected))
    same = judge([0.5, 0.5], [0.5, 0.5])
    assert same.residual.tolist() == [0.5, 0.5] and same.accept.tolist() == [1.0, 1.0]


class TestSuffixCandidates:
    """`rasd.eq7` and `rasd.alg1`."""

    @staticmethod
    def _brute(text: Sequence[int], datastore: Sequence[Sequence[int]]) -> list[str]:
        """Strings after every place where an ending stands, longest endings first."""
        found: list[str] = []
        whole = "".join(map(str, text))
        for size in range(min(SEARCH["longest"], len(text)), 0, -1):
            for stored in datastore:
                string = "".join(map(str, stored))
                places = [i for i in range(len(string)) if string.startswith(whole[-size:], i)]
                found += [string[i + size : i + size + SEARCH["span"]] for i in places]
        return list(dict.fromkeys(x for x in found if x))[: SEARCH["count"]]

    @given(text=words, datastore=texts)
    def test_against_string_search(self, text: list[int], datastore: list[list[int]]) -> None:
        found = suffix_candidates(text, datastore, **SEARCH)
        assert ["".join(map(str, c)) for c in found] == self._brute(text, datastore)

    @given(text=words, datastore=texts)
    def test_as_printed_nothing_is_ever_found(self, text: list[int], datastore: list[list[int]]) -> None:
        assert suffix_candidates_printed(text, datastore, **SEARCH) == ()

    def test_by_hand(self) -> None:
        store = [[1, 2, 3, 4], [9, 2, 5], [1, 2, 3, 4], [1, 2]]
        # 1 2 (twice the same), then 2; the end of the last text has no continuation.
        assert suffix_candidates([7, 1, 2], store, **SEARCH) == ((3, 4), (5,))
        assert suffix_candidates([7, 1, 2], store, **{**SEARCH, "count": 1}) == ((3, 4),)
        assert suffix_candidates([7, 1, 2], store, **{**SEARCH, "count": 0}) == ()
        assert suffix_candidates([7, 1, 2], [], **SEARCH) == ()
        assert suffix_candidates([2], store, longest=3, shortest=2, count=9, span=1) == ()
        with pytest.raises(ValueError, match="shortest"):
            suffix_candidates([1], [], longest=1, shortest=2, count=1, span=1)


class TestLookupRounds:
    """`rasd.pld_iter`."""

    TABLE = np.array([[0.1, 0.6, 0.3], [0.2, 0.2, 0.6], [0.5, 0.3, 0.2]])

    def test_the_draft_goes_on_until_something_matches(self) -> None:
        store = [[1, 2, 2]]
        # 0 is not in the store; the draft's best after 0 is 1, then 2.
        assert lookup_rounds([0], store, self.TABLE, top_k=1, attempts=0, **SEARCH) == ()
        assert lookup_rounds([0], store, self.TABLE, top_k=1, attempts=3, **SEARCH) == ((1, 2, 2),)
        # Both of the two best match in the same round; the better one comes first.
        two = lookup_rounds([0], store, self.TABLE, top_k=2, attempts=1, **SEARCH)
        assert two == ((1, 2, 2), (2, 2))
        assert lookup_rounds([1], store, self.TABLE, top_k=2, attempts=1, **SEARCH) == ((2, 2),)

    def test_it_ends_where_nothing_matches(self) -> None:
        assert lookup_rounds([0], [], self.TABLE, top_k=2, attempts=4, **SEARCH) == ()
        assert lookup_rounds([0], [[1, 2]], self.TABLE, top_k=0, attempts=4, **SEARCH) == ()
        with pytest.raises(ValueError, match="attempts"):
            lookup_rounds([0], [], self.TABLE, top_k=1, attempts=-1, **SEARCH)

    @given(text=words, datastore=texts, attempts=st.integers(0, 3))
    def test_candidates_follow_the_draft_and_the_store(
        self, text: list[int], datastore: list[list[int]], attempts: int
    ) -> None:
        """Level by level: all texts the draft could have come to, the first level with a match."""
        expected: tuple[tuple[int, ...], ...] = ()
        best = np.argsort(-self.TABLE, axis=1, kind="stable")[:, :2].tolist()
        for level in range(attempts + 1):
            grown = [
                extra
                for extra in itertools.product(range(3), repeat=level)
                if all(y in best[x] for x, y in itertools.pairwise((text[-1], *extra)))
            ]
            found = {
                (*extra, *tail)
                for extra in grown
                for tail in suffix_candidates([*text, *extra], datastore, **SEARCH)
            }
            if found:
                expected = tuple(found)
                break
        got = lookup_rounds(text, datastore, self.TABLE, top_k=2, attempts=attempts, **SEARCH)
        assert set(got) <= set(expected) and len(got) == min(len(expected), SEARCH["count"])


@given(candidates=paths, top_k=st.integers(0, 4))
def test_pruning(candidates: list[list[int]], top_k: int) -> None:
    """`rasd.prune`: P_1 ranks 2, 0, 1."""
    law = first_layer([5, 1], [[0.2, 0.3, 0.5], [0.3, 0.2, 0.5], [1, 0, 0]])
    kept = [tuple(c) for c in candidates if c and c[0] in [2, 0, 1][:top_k]]
    assert list(prune(candidates, law, top_k)) == kept


class TestMetrics:
    """`rasd.metrics`."""

    def test_a_round_that_costs_a_plain_step(self) -> None:
        assert metrics(2.0, 1.0).step_cost == 1.0 and metrics(2.0, 1.0).consistent
        assert metrics(2.84, 3.10).step_cost == pytest.approx(4.10 / 2.84)

    @pytest.mark.parametrize(
        ("speedup", "accepted"),
        [(3.59, 1.51), (3.58, 1.14), (3.78, 2.76), (4.05, 2.77), (1.74, 0.59)],
    )
    def test_pairs_of_the_paper_that_cannot_be(self, speedup: float, accepted: float) -> None:
        """REST and EAGLE2 on NL2SQL, PLD on DPR: faster than their tokens allow."""
        assert not metrics(speedup, accepted).consistent

    def test_a_cheaper_step_than_without_retrieval(self) -> None:
        """Qwen on NL2SQL: RASD 2.56 at 2.45, EAGLE2 2.05 at 2.36; retrieval cannot make a step cheaper."""
        assert metrics(2.56, 2.45).step_cost == pytest.approx(1.35, abs=5e-3)
        assert metrics(2.05, 2.36).step_cost == pytest.approx(1.64, abs=5e-3)

    def test_bad_input(self) -> None:
        with pytest.raises(ValueError, match="speedup must be above 0"):
            metrics(0.0, 1.0)
        with pytest.raises(ValueError, match="accepted_per_round"):
            metrics(1.0, math.nan)


tree_paths = st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=6)


class TestTree:
    """`rasd.tree` and `rasd.fuse`."""

    @given(candidates=tree_paths)
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

    @given(candidates=tree_paths)
    def test_a_node_sees_its_beginnings(self, candidates: list[list[int]]) -> None:
        tree = merge(9, candidates)
        every = [tree.path(node) for node in range(len(tree.tokens))]
        sees = [[path[: len(other)] == other for other in every] for path in every]
        assert tree.mask.tolist() == sees

    @given(first=tree_paths, second=tree_paths)
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
