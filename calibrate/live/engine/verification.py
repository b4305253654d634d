"""Verification of chains and trees: what is accepted, what comes after it, which outcomes are prepared for.

Sampled verification is lossless whatever the draft does, provided that sigma is the very law that a token was
drawn from:

- sampled primary draft: the law kept in the shared probability ring, as it was after top-p and Saguaro's
  rescaling;
- the draft's first choice, and an n-gram: one-hot;
- random tokens: uniform.

Trees.  Greedy: down from the root along the target's first choices.  Sampled: recursive rejection among the
children of each accepted node (SpecInfer, Miao et al. 2024, algorithm 2; RASD uses the same), which is
lossless for children that were drawn independently of each other, or chosen without looking at the target's
luck.

The pure decisions need no torch, so that each rule can be read and tested on lists of integers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrate.live.engine.rows import Row
from calibrate.live.engine.sampling import ACCEPTED, BONUS, accepted_run, draw, law, one_hot, residual
from calibrate.live.errors import AuditError
from calibrate.live.shared_probs import ProbsReader
from policies.sampling import FloatArray, Sampling, keyed_uniforms
from policies.tokentree import ROOT, TokenTree
from policies.values import NO_LAW, UNKNOWN, BoolArray, IntArray, Outcome, RowVerdict, Source


class Proposals:
    """Drafted tokens of R rows, and the laws sigma that they were drawn from.

    Args:
        rows: What is verified.
        sampling: How the tokens were chosen.
        vocabulary: V.
        reader: Finds the laws of sampled tokens.

    Attributes:
        requests: [R].
        positions: [R] position of the first drafted token.
        lengths: [R] drafted tokens.
        tokens: [R, m] their ids, 0 beyond a row's length.
    """

    def __init__(self, rows: Sequence[Row], sampling: Sampling, vocabulary: int, reader: ProbsReader) -> None:
        self.sampling = sampling
        self.vocabulary = vocabulary
        self.requests = _array([row.request for row in rows])
        self.positions = _array([row.position for row in rows])
        self.lengths = _array([len(row.tokens) for row in rows])
        width = int(self.lengths.max())
        self.tokens = _array([(*row.tokens, *[0] * (width - len(row.tokens))) for row in rows])
        sources = _array([row.source for row in rows])
        self._random: BoolArray = sources == Source.RANDOM
        self._drawn: BoolArray = (sources == Source.PRIMARY) & sampling.draft_sampled
        self._handles = _array([row.law for row in rows])
        self._reader = reader

    def masses(self) -> FloatArray:
        """[R, m] sigma of each drafted token; 1 beyond a row's length."""
        masses = np.where(self._random, 1.0 / self.vocabulary, 1.0)[:, None].repeat(self.tokens.shape[1], 1)
        within = np.arange(self.tokens.shape[1]) < self.lengths[:, None]
        row, at = np.nonzero(within & self._drawn[:, None])
        if len(row):
            masses[row, at] = self._reader.masses(
                self._handles_at(row, at),
                self.requests[row],
                self.positions[row] + at,
                self.tokens[row, at],
                self.vocabulary,
            )
        return masses

    def laws(self, row: IntArray, at: IntArray) -> FloatArray:
        """[n, V] sigma of the tokens `at` [n] of the rows `row` [n]."""
        laws = np.zeros((len(row), self.vocabulary))
        laws[np.arange(len(row)), self.tokens[row, at]] = 1.0
        laws[self._random[row]] = 1.0 / self.vocabulary
        drawn = np.flatnonzero(self._drawn[row])
        if len(drawn):
            laws[drawn] = self._reader.laws(self._handles_at(row[drawn], at[drawn]), self.vocabulary)
        return laws

    def _handles_at(self, row: IntArray, at: IntArray) -> IntArray:
        """Handles of the laws of single tokens; a missing handle stays one."""
        handles = self._handles[row]
        return np.where(handles < 0, handles, handles + at)


def judge_chains(
    p: Tensor, proposals: Proposals, leave_open: BoolArray
) -> tuple[list[int], list[int | None]]:
    """Accepted tokens of each row, and the token that follows them.

    Args:
        p: [R, n, V] the target's laws after the committed text and after each drafted token; where all of a
            row's tokens are accepted and its end stays open, the last one is not needed.
        proposals: What was drafted.
        leave_open: [R] rows whose next token is not chosen if everything is accepted.

    Returns:
        [R] accepted tokens; [R] the next token, None where it stays open.
    """
    run, seed = _accepted(p, proposals), proposals.sampling.seed
    rejected = run < proposals.lengths
    chosen = np.flatnonzero(rejected | ~leave_open)
    following: list[int | None] = [None] * len(run)
    if len(chosen):
        weights = p[torch.from_numpy(chosen).to(p.device), torch.from_numpy(run[chosen]).to(p.device)]
        corrected = np.flatnonzero(rejected[chosen])
        if len(corrected):
            rows = chosen[corrected]
            sigma = torch.from_numpy(proposals.laws(rows, run[rows])).to(p.device)
            index = torch.from_numpy(corrected).to(p.device)
            weights[index] = residual(weights[index], sigma)
        uniforms = keyed_uniforms(
            seed, BONUS, proposals.requests[chosen], proposals.positions[chosen] + run[chosen]
        )
        for row, token in zip(chosen.tolist(), draw(weights, uniforms).tolist(), strict=True):
            following[row] = token
    accepted: list[int] = run.tolist()
    return accepted, following


def _accepted(p: Tensor, proposals: Proposals) -> IntArray:
    """[R] length of each row's accepted run."""
    width = proposals.tokens.shape[1]
    if not width:
        return np.zeros(len(proposals.lengths), dtype=np.int64)
    tokens = torch.from_numpy(proposals.tokens).to(p.device)
    under_p = p[:, :width].gather(-1, tokens[..., None])[..., 0].cpu().numpy()
    uniforms = keyed_uniforms(
        proposals.sampling.seed,
        ACCEPTED,
        proposals.requests[:, None],
        proposals.positions[:, None] + np.arange(width),
    )
    return accepted_run(under_p, proposals.masses(), uniforms, proposals.lengths)


def _array(values: Sequence[object]) -> IntArray:
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Judged:
    """What is left of a tree.

    Attributes:
        path: Accepted nodes, from the root on.
        bonus: The token after them.
    """

    path: tuple[int, ...]
    bonus: int


def judge_greedy(logits: Tensor, trees: Sequence[TokenTree]) -> list[Judged]:
    """[R] verdicts from the logits [R, n, V] after the committed text and after each node.

    Args:
        logits: Index 0 is after the committed text, 1 + i after node i.
        trees: [R].
    """
    best: list[list[int]] = logits.argmax(dim=-1).tolist()
    return [_walk(tree, row) for tree, row in zip(trees, best, strict=True)]


def _walk(tree: TokenTree, best: Sequence[int]) -> Judged:
    path: list[int] = []
    # Of equal siblings the first one stays: it is tried first.
    edges = reversed([*enumerate(zip(tree.parents, tree.tokens, strict=True))])
    following = {edge: node for node, edge in edges}
    node = ROOT
    while (node, best[1 + node]) in following:
        node = following[node, best[1 + node]]
        path.append(node)
    return Judged(tuple(path), best[1 + node])


class TreeJudge:
    """Sampled verification of the trees of R rows, level by level and sibling by sibling.

    A candidate's luck is keyed by request, position and its number among its siblings; that of the first as
    a chain's, so that a tree without forks has a chain's outcome.

    Args:
        rows: [R] what is verified.
        trees: [R].
        sampling: How tokens are chosen.
        reader: Finds the laws of sampled candidates.
    """

    def __init__(
        self, rows: Sequence[Row], trees: Sequence[TokenTree], sampling: Sampling, reader: ProbsReader
    ) -> None:
        self.trees = trees
        self.sampling = sampling
        self.reader = reader
        self._requests = _array([row.request for row in rows])
        self._positions = _array([row.position for row in rows])

    def judge(self, logits: Tensor) -> list[Judged]:
        """[R] verdicts from the logits [R, n, V]; see `judge_greedy`."""
        paths: list[list[int]] = [[] for _ in self.trees]
        bonus = [0] * len(self.trees)
        going, depth = np.arange(len(self.trees)), 0
        while len(going):
            nodes = [paths[i][-1] if paths[i] else ROOT for i in going]
            p = law(logits[going.tolist(), [1 + node for node in nodes]], self.sampling)
            families = [self.trees[i].children(n) for i, n in zip(going.tolist(), nodes, strict=True)]
            chosen = self._level(p, going, families, depth)
            for i, node in zip(going.tolist(), chosen.tolist(), strict=True):
                paths[i] += [node] if node != ROOT else []
            ends = np.flatnonzero(chosen == ROOT)
            for i, token in zip(going[ends].tolist(), self._bonus(p, going, ends, depth), strict=True):
                bonus[i] = token
            going, depth = going[chosen != ROOT], depth + 1
        return [Judged(tuple(path), token) for path, token in zip(paths, bonus, strict=True)]

    def _level(self, p: Tensor, going: IntArray, families: Sequence[Sequence[int]], depth: int) -> IntArray:
        """[A] the child accepted of each row's node, ROOT for none.

        Args:
            p: [A, V] the target's laws after these nodes; every failed child leaves its residual here.
            going: [A] rows.
            families: [A] children of each node.
            depth: Accepted nodes of each row.
        """
        chosen = np.full(len(going), ROOT)
        sizes = _array([len(family) for family in families])
        for sibling in range(int(sizes.max())):
            trying = np.flatnonzero((chosen == ROOT) & (sibling < sizes))
            if not len(trying):
                break
            nodes = _array([families[i][sibling] for i in trying.tolist()])
            candidates = self._candidates(going[trying], nodes, depth)
            accepted = self._accept(p, trying, candidates, sibling)
            chosen[trying[accepted]] = nodes[accepted]
            failed = np.flatnonzero(~accepted)
            if len(failed):
                index = torch.from_numpy(trying[failed]).to(p.device)
                left = residual(p[index], self._sigma(candidates.some(failed), p))
                p[index] = left / left.sum(dim=-1, keepdim=True)
        return chosen

    def _candidates(self, rows: IntArray, nodes: IntArray, depth: int) -> _Candidates:
        trees = [self.trees[i] for i in rows]
        tokens = _array([tree.tokens[n] for tree, n in zip(trees, nodes, strict=True)])
        laws = _array([tree.laws[n] for tree, n in zip(trees, nodes, strict=True)])
        positions = self._positions[rows] + depth
        return _Candidates(self._requests[rows], positions, tokens, laws)

    def _accept(self, p: Tensor, at: IntArray, candidates: _Candidates, sibling: int) -> BoolArray:
        """[n] whether each candidate passes: strictly u * sigma(c) < p(c)."""
        key = (candidates.requests, candidates.positions)
        luck = keyed_uniforms(self.sampling.seed, ACCEPTED, *key, *((sibling,) if sibling else ()))
        masses, drawn = np.ones(len(at)), candidates.drawn
        if len(drawn):
            masses[drawn] = self.reader.masses(
                candidates.laws[drawn],
                candidates.requests[drawn],
                candidates.positions[drawn],
                candidates.tokens[drawn],
                p.shape[-1],
            )
        under_p = p[torch.from_numpy(at).to(p.device), torch.from_numpy(candidates.tokens).to(p.device)]
        passed: BoolArray = luck * masses < under_p.cpu().numpy()
        return passed

    def _sigma(self, candidates: _Candidates, p: Tensor) -> Tensor:
        """[n, V] the laws that candidates were drawn from; one-hot where they were chosen."""
        sigma = one_hot(torch.from_numpy(candidates.tokens).to(p.device), p.shape[-1])
        drawn = candidates.drawn
        if len(drawn):
            laws = torch.from_numpy(self.reader.laws(candidates.laws[drawn], p.shape[-1]))
            sigma[torch.from_numpy(drawn).to(p.device)] = laws.to(p.device)
        return sigma

    def _bonus(self, left: Tensor, going: IntArray, ends: IntArray, depth: int) -> list[int]:
        """The next token of the rows `ends` of `going`, from what is left of their laws [A, V]."""
        if not len(ends):
            return []
        rows = going[ends]
        luck = keyed_uniforms(self.sampling.seed, BONUS, self._requests[rows], self._positions[rows] + depth)
        tokens: list[int] = draw(left[torch.from_numpy(ends).to(left.device)], luck).tolist()
        return tokens


@dataclass(frozen=True, slots=True)
class _Candidates:
    """[n] tokens that are tried at their positions, and the handles of their laws."""

    requests: IntArray
    positions: IntArray
    tokens: IntArray
    laws: IntArray

    @property
    def drawn(self) -> IntArray:
        """Those that were drawn from a law."""
        return np.flatnonzero(self.laws != NO_LAW)

    def some(self, chosen: IntArray) -> _Candidates:
        return _Candidates(
            self.requests[chosen], self.positions[chosen], self.tokens[chosen], self.laws[chosen]
        )


def judge(drafted: Sequence[int], best: Sequence[int], room: int, end_tokens: Collection[int]) -> RowVerdict:
    """Greedy verification of a chain, cut at the first end token and at the limit.

    Args:
        drafted: [m] tokens under verification.
        best: [m + 1] the target's argmax after the committed text and after each drafted token.
        room: Tokens that may still be emitted, at least 1.
        end_tokens: Ids that end a request.
    """
    if len(best) != len(drafted) + 1:
        raise AuditError(f"{len(drafted)} drafted tokens, {len(best)} judgements")
    agreed = 0
    while agreed < len(drafted) and drafted[agreed] == best[agreed]:
        agreed += 1
    return cut(drafted[:agreed], best[agreed], room, end_tokens)


def cut(accepted: Sequence[int], bonus: int | None, room: int, end_tokens: Collection[int]) -> RowVerdict:
    """What a row emits, cut at the first end token and at the limit.

    Args:
        accepted: The accepted tokens.
        bonus: The bonus token; None if it is left open, and then the row emits the accepted ones alone.
        room: Tokens that may still be emitted, at least 1.
        end_tokens: Ids that end a request.
    """
    if room < 1:
        raise AuditError(f"a row without room for a token (room {room}) is verified")
    whole = tuple(accepted) if bonus is None else (*accepted, bonus)
    emitted = whole[:room]
    ended = len(emitted) == room
    for i, token in enumerate(emitted):
        if token in end_tokens:
            emitted, ended = emitted[: i + 1], True
            break
    return RowVerdict(
        accepted=min(len(accepted), len(emitted)),
        emitted=emitted,
        ended=ended,
        bonus=UNKNOWN if bonus is None or len(emitted) < len(whole) else bonus,
    )


def prepared_outcomes(
    ranked: Sequence[Sequence[int]],
    drafted: Sequence[int],
    fanout: Sequence[int],
    *,
    keep_rejected: bool = False,
    part: tuple[int, int] = (0, 1),
) -> list[Outcome]:
    """Outcomes to prepare for: after k accepted tokens the best `fanout[k]`, the rejected one left out.

    Args:
        ranked: [m + 1] the draft's candidates after k accepted tokens, best first; at least
            `fanout[k] + 1` of them where k < m and the vocabulary has as many.
        drafted: [m] tokens under verification; after k < m accepted ones, `drafted[k]` was rejected.
        fanout: F_k for k = 0 ... m at least.
        keep_rejected: Do not leave the rejected one out.
        part: (i, n): of all these every n-th from the i-th on.
    """
    if len(ranked) != len(drafted) + 1 or len(fanout) < len(ranked):
        raise AuditError(f"{len(drafted)} drafted, {len(ranked)} ranked positions, {len(fanout)} fan-outs")
    outcomes: list[Outcome] = []
    for k, candidates in enumerate(ranked):
        rejected = drafted[k] if k < len(drafted) and not keep_rejected else None
        others = [token for token in candidates if token != rejected]
        outcomes += [(k, token) for token in others[: fanout[k]]]
    first, every = part
    return outcomes[first::every]


def agreement(held: Sequence[int], context: int, tail: tuple[int, ...], ahead: tuple[int, ...] = ()) -> int:
    """Length of the longest prefix of `held` that agrees with the committed text and `ahead`.

    The worker knows the end of the committed text only; what lies before it was fed from verified
    tokens.  At least one token is always left to feed, since its logits are what is wanted.

    Args:
        held: Token ids whose KV is in the cache.
        context: Length of the committed text.
        tail: Its last one or two tokens.
        ahead: Tokens that follow it.

    Raises:
        AuditError: The cache misses tokens from before the tail.
    """
    start = context - len(tail)
    if not tail or start < 0 or len(held) < start:
        raise AuditError(f"cache of {len(held)} tokens cannot continue a text of {context} ending in {tail}")
    keep = start
    for token in (*tail, *ahead)[:-1]:
        if keep == len(held) or held[keep] != token:
            break
        keep += 1
    return keep
