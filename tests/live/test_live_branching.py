"""Nodes of any shape: every node is answered as if its path were a text; and the judge, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_support import MODELS, TEXTS, assert_close, filled, plain
from transformers import PreTrainedModel

from calibrate.live.engine import verification
from calibrate.live.engine.rows import Row
from calibrate.live.engine.trees import Branching
from calibrate.live.engine.verification import Judged, TreeJudge, judge_greedy
from calibrate.live.errors import AuditError, ModelError
from calibrate.live.shared_probs import ProbsReader, ProbsWriter, Segment
from policies.sampling import Sampling
from policies.tokentree import ROOT, TokenTree
from policies.values import NO_HANDLE, IntArray

SAMPLED = Sampling(temperature=1.0, seed=5)


@pytest.fixture(params=MODELS, scope="module")
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return MODELS[request.param]().double().eval()


def check_nodes(
    branching: Branching, logits: torch.Tensor, firsts: Sequence[int], texts: Sequence[Sequence[int]]
) -> None:
    for row, text in enumerate(texts):
        tree = TokenTree(tuple(branching.tokens[row]), tuple(branching.parents[row]))
        for i, path in enumerate(tree.paths[firsts[row] :]):
            assert_close(logits[row, i], plain(branching.runner.model, [*text, *path])[-1])


def test_nodes_grow_from_any_parent(model: PreTrainedModel) -> None:
    """In several steps, ragged, rows without a node in some; then a path is kept and the text goes on."""
    runner = filled(model)
    slots = [2, 0, 3]
    texts = [list(TEXTS[slot]) for slot in slots]
    branching = Branching(runner, slots)
    firsts = [0, 0, 0]
    steps = [
        ([[5, 6], [7], [8, 9, 1]], [[ROOT, ROOT], [ROOT], [ROOT, 0, 0]]),
        ([[4], [], [3, 2]], [[1], [], [2, ROOT]]),
        ([[1, 1, 2], [6, 6], [5]], [[0, 2, 3], [0, ROOT], [3]]),
    ]
    for tokens, parents in steps:
        check_nodes(branching, branching.feed(tokens, parents), firsts, texts)
        firsts = [len(row) for row in branching.tokens]
    assert runner.fed == sum(map(len, TEXTS)) + 15
    branching.keep([(1, 2, 4), (), (0, 2, 3, 5)])
    texts = [[*texts[0], 6, 4, 1], texts[1], [*texts[2], 8, 1, 3, 5]]
    assert [runner.held(slot) for slot in slots] == texts
    for found, text in zip(runner.forward(slots, [(7,), (7,), (7,)]), texts, strict=True):
        assert_close(found[0], plain(model, [*text, 7])[-1])


def test_a_branching_that_is_let_go_leaves_no_trace(model: PreTrainedModel) -> None:
    runner = filled(model)
    Branching(runner, [0, 1]).feed([[1, 2], [3]], [[ROOT, ROOT], [ROOT]])
    assert [runner.held(slot) for slot in (0, 1)] == [list(text) for text in TEXTS[:2]]
    for slot in (0, 1):
        assert_close(runner.forward([slot], [(7,)])[0, 0], plain(model, [*TEXTS[slot], 7])[-1])


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return MODELS["llama"]().double().eval()


@settings(max_examples=15)
@given(st.data())
def test_any_tree_over_any_trunks(llama: PreTrainedModel, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    parents = [[data.draw(st.integers(ROOT, node - 1)) for node in range(count)] for count in counts]
    tokens = [data.draw(st.lists(st.integers(0, 63), min_size=n, max_size=n)) for n in counts]
    slots = data.draw(st.permutations(range(4)))[: len(counts)]
    branching = Branching(filled(llama), slots)
    logits = branching.feed(tokens, parents)
    check_nodes(branching, logits, [0] * len(slots), [TEXTS[slot] for slot in slots])


def test_a_long_path_beside_a_full_row(llama: PreTrainedModel) -> None:
    """Buffers grow where a short path is padded to the length of a long one."""
    texts = [list(range(1, 15)), [3, 4]]
    runner = filled(llama, texts, capacity=16)
    branching = Branching(runner, [0, 1])
    branching.feed([[5], [6]], [[ROOT], [ROOT]])
    for node in range(5):
        branching.feed([[], [7 + node]], [[], [node]])
    branching.keep([(0,), (0, 1, 2, 3, 4, 5)])
    for slot, text in enumerate([[*texts[0], 5], [*texts[1], 6, 7, 8, 9, 10, 11]]):
        assert runner.held(slot) == text
        assert_close(runner.forward([slot], [(2,)])[0, 0], plain(llama, [*text, 2])[-1])


def test_misuse_is_an_error(llama: PreTrainedModel) -> None:
    runner = filled(llama)
    branching = Branching(runner, [0, 1])
    for tokens, parents in (([[], []], [[], []]), ([[1], [2]], [[ROOT], []]), ([[1], []], [[0], []])):
        with pytest.raises(AuditError):
            branching.feed(tokens, parents)
    branching.feed([[1, 2], [3]], [[ROOT, 0], [ROOT]])
    with pytest.raises(AuditError, match="no path"):
        branching.keep([(1,), ()])
    runner.forward([3], [(1,)])
    with pytest.raises(AuditError, match="something else"):
        branching.feed([[1], []], [[0], []])
    with pytest.raises(AuditError, match="something else"):
        branching.keep([(0,), ()])
    short = Branching(runner, [2])
    short.feed([[1]], [[ROOT]])
    short.keep([(0,)])
    with pytest.raises(AuditError, match="something else"):
        short.keep([(0,)])


def test_a_tree_that_outgrows_the_positions_is_refused() -> None:
    neox = MODELS["neox"]().double().eval()
    branching = Branching(filled(neox, [[1] * 62]), [0])
    branching.feed([[1, 2, 3, 4]], [[ROOT, 0, ROOT, ROOT]])
    with pytest.raises(ModelError, match="outgrows"):
        branching.feed([[1]], [[1]])


def logits_of(laws: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.tensor([laws], dtype=torch.float64).log()


def unlucky_in(monkeypatch: pytest.MonkeyPatch, *levels: float) -> None:
    """The coming draws, one after the other."""
    left = iter(levels)

    def next_one(_: int, __: str, *key: IntArray | int) -> Any:
        return np.full(np.broadcast_arrays(*key)[0].shape, next(left))

    monkeypatch.setattr(verification, "keyed_uniforms", next_one)


def judged(tree: TokenTree, laws: Sequence[Sequence[float]], reader: ProbsReader | None = None) -> Judged:
    rows = [Row(0, 7, 3, 9, (1, 2))]
    return TreeJudge(rows, [tree], SAMPLED, reader or ProbsReader()).judge(logits_of(laws))[0]


LAWS = [(0.5, 0.3, 0.2), (0.1, 0.6, 0.3), (0.2, 0.2, 0.6)]
CHOSEN = TokenTree((1, 0), (ROOT, ROOT), (1, 1), (NO_HANDLE, NO_HANDLE))


@pytest.mark.parametrize(
    ("luck", "expected"),
    [
        # Token 1 passes with 0.3; node 0 is then a leaf, and the bonus comes from (0.1, 0.6, 0.3).
        ((0.29, 0.05), Judged((0,), 0)),
        ((0.29, 0.65), Judged((0,), 1)),
        # It fails; of p (0.5, 0, 0.2) / 0.7 is left, and token 0 passes with 5/7 = 0.714.
        ((0.31, 0.71, 0.1), Judged((1,), 0)),
        # Both fail: only token 2 is left.
        ((0.31, 0.72, 0.0), Judged((), 2)),
    ],
)
def test_chosen_candidates_by_hand(
    luck: tuple[float, ...], expected: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlucky_in(monkeypatch, *luck)
    assert judged(CHOSEN, LAWS) == expected


@pytest.mark.parametrize(
    ("luck", "expected"),
    [
        # sigma = (0.2, 0.6, 0.2): token 1 passes with 0.3 / 0.6.
        ((0.49, 0.05), Judged((0,), 0)),
        # It fails; (p - sigma)+ = (0.3, 0, 0): token 0, drawn from sigma too, passes with 1 / 0.2, surely.
        ((0.51, 0.99, 0.3), Judged((1,), 1)),
    ],
)
def test_drawn_candidates_by_hand(
    luck: tuple[float, ...], expected: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = Segment(1 << 20)
    block = ProbsWriter(segment).reserve(2, 1, 3)
    sigma = np.array([[1.0, 3.0, 1.0]] * 2, dtype=np.float32)
    block.write(0, sigma, sigma.sum(axis=1), (np.array([7, 7]), np.array([3, 3]), np.array([1, 0])))
    tree = CHOSEN._replace(handles=tuple(block.seal()))
    laws = [LAWS[0], LAWS[1], (0.2, 0.2, 0.6)]
    unlucky_in(monkeypatch, *luck)
    assert judged(tree, laws, ProbsReader([segment])) == expected
    segment.close()


def test_greedy_walks_by_hand() -> None:
    tree = TokenTree.of_paths([(4, 5), (4, 6, 7), (8,)])
    best = torch.zeros((2, 6, 10))
    for node, token in enumerate([4, 6, 1, 7, 2, 3]):  # after the text, 4, 5, 6, 7, 8
        best[0, node, token] = 1.0
    best[1, 0, 9] = 1.0
    assert judge_greedy(best, [tree, tree]) == [Judged((0, 2, 3), 2), Judged((), 9)]
