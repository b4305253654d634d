"""Verification of chains and trees: what is accepted, and what comes after it; outcomes to prepare for.

Sampled verification is lossless whatever the draft does, provided that sigma is the very distribution that a
token was drawn from: of a sampled primary draft the one kept in the shared probability ring, as it was after
top-p and Saguaro's rescaling; of a draft's first choice and of an n-gram one-hot; of random tokens uniform.

Trees.  Greedy: down from the root along the target's first choices.  Sampled: recursive rejection among the
children of each accepted node (SpecInfer, Miao et al. 2024, algorithm 2; RASD uses the same), which is
lossless for children that were drawn independently of each other, or chosen without looking at the target's
luck.

The pure decisions need no torch, so that each rule can be read and tested on lists of integers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrate.live.engine.rows import Row
from calibrate.live.engine.runner import padded
from calibrate.live.engine.sampling import ACCEPTED, BONUS, accepted_run, draw, one_hot, residual, token_probs
from calibrate.live.errors import AuditError
from calibrate.live.shared_probs import ProbsReader
from policies.sampling import FloatArray, Sampling, keyed_uniforms
from policies.tokentree import ROOT, TokenTree
from policies.values import NO_HANDLE, UNKNOWN, BoolArray, IntArray, Outcome, RowVerdict, Source


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens at their positions, in arrays of one shape, and the distribution sigma each was drawn from.

    Attributes:
        handles: Of the distributions in the shared ring that tokens were drawn from.
        drawn: Whether a token was drawn from the distribution of its handle.
        random: Whether it was drawn from all ids alike: sigma is uniform.  Else, of a chosen token, one-hot.
        vocabulary: V.
    """

    requests: IntArray
    positions: IntArray
    tokens: IntArray
    handles: IntArray
    drawn: BoolArray
    random: BoolArray
    vocabulary: int
    reader: ProbsReader

    def at(self, index: Any) -> Candidates:
        """Some of them."""
        keys = self.requests[index], self.positions[index], self.tokens[index], self.handles[index]
        return Candidates(*keys, self.drawn[index], self.random[index], self.vocabulary, self.reader)

    def masses(self) -> FloatArray:
        """Sigma of each token."""
        masses: FloatArray = np.where(self.random, 1.0 / self.vocabulary, 1.0)
        if self.drawn.any():
            own = self.at(self.drawn)
            keys = own.handles, own.requests, own.positions, own.tokens
            masses[self.drawn] = self.reader.masses(*keys, self.vocabulary)
        return masses

    def probs(self, device: torch.device) -> Tensor:
        """[n, V] sigma of n tokens."""
        probs = one_hot(torch.from_numpy(self.tokens).to(device), self.vocabulary)
        if self.random.any():
            probs[torch.from_numpy(self.random).to(device)] = 1.0 / self.vocabulary
        if self.drawn.any():
            drawn = torch.from_numpy(self.reader.probs(self.handles[self.drawn], self.vocabulary))
            probs[torch.from_numpy(self.drawn).to(device)] = drawn.to(device)
        return probs


class Proposals:
    """Drafted tokens of R rows over V ids.

    Attributes:
        lengths: [R] drafted tokens.
        tokens: [R, m] their ids, 0 beyond a row's length.
        requests: [R].
        positions: [R] position of the first one.
        candidates: [R, m] of them, chosen ones beyond a row's length.
    """

    def __init__(self, rows: Sequence[Row], sampling: Sampling, vocabulary: int, reader: ProbsReader) -> None:
        self.seed = sampling.seed
        self.lengths = _array([len(row.tokens) for row in rows])
        self.tokens = _array(padded([row.tokens for row in rows]))
        self.requests = _array([row.request for row in rows])
        self.positions = _array([row.position for row in rows])
        at = np.arange(self.tokens.shape[1])
        within = at < self.lengths[:, None]
        sources = _array([row.source for row in rows])[:, None]
        handles = _array([row.handle for row in rows])[:, None]
        self.candidates = Candidates(
            self.requests[:, None].repeat(len(at), axis=1),
            self.positions[:, None] + at,
            self.tokens,
            np.where(handles < 0, handles, handles + at),  # a missing handle stays one
            within & (sources == Source.PRIMARY) & sampling.draft_sampled,
            within & (sources == Source.RANDOM),
            vocabulary,
            reader,
        )


def judge_chains(
    p: Tensor, proposals: Proposals, leave_open: BoolArray
) -> tuple[list[int], list[int | None]]:
    """Accepted tokens of each row, and the token that follows them.

    Args:
        p: [R, n, V] the target's distributions after the committed text and after each drafted token, the
            last not needed where all of a row's tokens are accepted and its end stays open.
        proposals: What was drafted.
        leave_open: [R] rows whose next token is not chosen if everything is accepted.

    Returns:
        [R] accepted tokens; [R] the next token, None where it stays open.
    """
    run = _accepted(p, proposals)
    rejected = run < proposals.lengths
    chosen = np.flatnonzero(rejected | ~leave_open)
    following: list[int | None] = [None] * len(run)
    if len(chosen):
        weights = p[torch.from_numpy(chosen).to(p.device), torch.from_numpy(run[chosen]).to(p.device)]
        corrected = np.flatnonzero(rejected[chosen])
        if len(corrected):
            rows, index = chosen[corrected], torch.from_numpy(corrected).to(p.device)
            sigma = proposals.candidates.at((rows, run[rows])).probs(p.device)
            weights[index] = residual(weights[index], sigma)
        keys = proposals.requests[chosen], proposals.positions[chosen] + run[chosen]
        for row, token in zip(chosen.tolist(), _bonus(weights, proposals.seed, *keys), strict=True):
            following[row] = token
    accepted: list[int] = run.tolist()
    return accepted, following


def _accepted(p: Tensor, proposals: Proposals) -> IntArray:
    """[R] length of each row's accepted run."""
    candidates, width = proposals.candidates, proposals.tokens.shape[1]
    if not width:
        return np.zeros(len(proposals.lengths), dtype=np.int64)
    tokens = torch.from_numpy(proposals.tokens).to(p.device)
    under_p = p[:, :width].gather(-1, tokens[..., None])[..., 0].cpu().numpy()
    uniforms = keyed_uniforms(proposals.seed, ACCEPTED, candidates.requests, candidates.positions)
    return accepted_run(under_p, candidates.masses(), uniforms, proposals.lengths)


def _bonus(weights: Tensor, seed: int, requests: IntArray, positions: IntArray) -> list[int]:
    """[n] next tokens of the distributions proportional to `weights` [n, V]."""
    tokens: list[int] = draw(weights, keyed_uniforms(seed, BONUS, requests, positions)).tolist()
    return tokens


def _array(values: Sequence[object]) -> IntArray:
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Judged:
    """What is left of a tree: the accepted nodes, from the root on, and the token after them."""

    path: tuple[int, ...]
    bonus: int


def judge_greedy(logits: Tensor, trees: Sequence[TokenTree]) -> list[Judged]:
    """[R] verdicts from the logits [R, n, V]: index 0 is after the committed text, 1 + i after node i."""
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

    A candidate's luck is keyed by request, position and its number among its siblings, that of the first as
    a chain's, so that a tree without forks has a chain's outcome.
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
            p = token_probs(logits[going.tolist(), [1 + node for node in nodes]], self.sampling)
            chosen, tokens = self.step(p, going, nodes, depth)
            for i, node in zip(going.tolist(), chosen.tolist(), strict=True):
                paths[i] += [node] if node != ROOT else []
            for i, token in tokens.items():
                bonus[i] = token
            going, depth = going[chosen != ROOT], depth + 1
        return [Judged(tuple(path), token) for path, token in zip(paths, bonus, strict=True)]

    def step(
        self, p: Tensor, going: IntArray, nodes: Sequence[int], depth: int
    ) -> tuple[IntArray, dict[int, int]]:
        """Try the children of one node of each row; see `_level`.

        Returns:
            [A] the child accepted, ROOT for none; by row the token that its text ends with where none was.
        """
        families = [self.trees[i].children(node) for i, node in zip(going.tolist(), nodes, strict=True)]
        chosen = self._level(p, going, families, depth)
        ends = np.flatnonzero(chosen == ROOT)
        if not len(ends):
            return chosen, {}
        rows, left = going[ends], p[torch.from_numpy(ends).to(p.device)]
        tokens = _bonus(left, self.sampling.seed, self._requests[rows], self._positions[rows] + depth)
        return chosen, dict(zip(rows.tolist(), tokens, strict=True))

    def _level(self, p: Tensor, going: IntArray, families: Sequence[Sequence[int]], depth: int) -> IntArray:
        """[A] the child accepted of each row's node, ROOT for none.

        Args:
            p: [A, V] the target's distributions after these; every failed child leaves its residual here.
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
            candidates = self._candidates(going[trying], nodes, depth, p.shape[-1])
            accepted = self._accept(p, trying, candidates, sibling)
            chosen[trying[accepted]] = nodes[accepted]
            failed = np.flatnonzero(~accepted)
            if len(failed):
                index = torch.from_numpy(trying[failed]).to(p.device)
                left = residual(p[index], candidates.at(failed).probs(p.device))
                p[index] = left / left.sum(dim=-1, keepdim=True)
        return chosen

    def _candidates(self, rows: IntArray, nodes: IntArray, depth: int, vocabulary: int) -> Candidates:
        trees = [self.trees[i] for i in rows]
        tokens = _array([tree.tokens[n] for tree, n in zip(trees, nodes, strict=True)])
        handles = _array([tree.handles[n] for tree, n in zip(trees, nodes, strict=True)])
        drawn, positions = handles != NO_HANDLE, self._positions[rows] + depth
        keys = self._requests[rows], positions, tokens, handles
        return Candidates(*keys, drawn, np.zeros_like(drawn), vocabulary, self.reader)

    def _accept(self, p: Tensor, at: IntArray, candidates: Candidates, sibling: int) -> BoolArray:
        """[n] whether each passes by the distributions p[at]: strictly u * sigma(c) < p(c)."""
        key = (candidates.requests, candidates.positions)
        uniforms = keyed_uniforms(self.sampling.seed, ACCEPTED, *key, *((sibling,) if sibling else ()))
        under_p = p[torch.from_numpy(at).to(p.device), torch.from_numpy(candidates.tokens).to(p.device)]
        passed: BoolArray = uniforms * candidates.masses() < under_p.cpu().numpy()
        return passed


def judge(drafted: Sequence[int], best: Sequence[int], room: int, end_tokens: Collection[int]) -> RowVerdict:
    """Greedy verification of a chain [m], by the target's first choices [m + 1]; see `cut`."""
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
    return outcomes[part[0] :: part[1]]


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
