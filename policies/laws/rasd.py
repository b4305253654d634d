"""Laws of RASD: candidates retrieved by suffix match, pruned by the draft, fused with its tree.

The tree itself, fusion and verification are in `policies.laws.tree`.  The draft is a Markov table here:
row t of `draft_table` is its law after token t, which is enough to say what each step does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from policies.laws.candidates import accept_probability, draw, reject, token_law
from policies.laws.retrieval import Texts, Tokens, occurrences
from policies.laws.sampling import top_tokens
from policies.laws.ssd import FloatArray

Candidates = tuple[tuple[int, ...], ...]


def draft_input(text: Tokens, root: int) -> tuple[int, ...]:
    """Input s' = (x_1, ..., x_n, y_0) that the draft continues and retrieval is asked for (`rasd.eq1-3`).

    Args:
        text: s, prompt and emitted tokens; may be empty.
        root: y_0, the token that the target itself emitted last.
    """
    return (*text, root)


def draft_chain(
    text: Tokens, draft_table: ArrayLike, uniforms: Sequence[float]
) -> tuple[tuple[int, ...], FloatArray]:
    """Tokens drafted one by one, each given the ones before, and the laws they came from (`rasd.eq4-6`).

    Args:
        text: s', at least one token.
        draft_table: [V, V] the draft's law after each token.
        uniforms: [m] coins in [0, 1); no coins, no tokens.

    Returns:
        The tokens and [m, V] laws.

    Raises:
        ValueError: Outside the domain.
    """
    table = _table(draft_table)
    tokens = list(_last_token(text, table))
    for uniform in uniforms:
        tokens.append(draw(table[tokens[-1]], uniform))
    return tuple(tokens[1:]), table[tokens[:-1]]


@dataclass(frozen=True, slots=True)
class Judgement:
    """How drafted tokens are judged at a position.

    Attributes:
        accept: [V] probability that each token is accepted, if drafted.
        residual: [V] law of the token that replaces a rejected one.
    """

    accept: FloatArray
    residual: FloatArray


def judge(target_law: ArrayLike, draft_law: ArrayLike) -> Judgement:
    """min(1, p/q) and norm(max(0, p - q))  (`rasd.accept`); p itself for the residual where p = q.

    Raises:
        ValueError: Not two laws over one vocabulary.
    """
    return Judgement(accept_probability(target_law, draft_law), reject(target_law, draft_law))


def judge_printed(target_law: ArrayLike, draft_law: ArrayLike) -> Judgement:
    """The same with the residual as printed, max(0, p - q) between norm bars (`rasd.accept`).

    It sums to the probability of a rejection, not to 1, and so is no law to draw from.

    Raises:
        ValueError: Not two laws over one vocabulary.
    """
    accept = accept_probability(target_law, draft_law)
    over = np.maximum(token_law("target_law", target_law) - token_law("draft_law", draft_law), 0.0)
    return Judgement(accept, over)


def suffix_candidates(
    text: Tokens, datastore: Texts, *, longest: int, shortest: int, count: int, span: int
) -> Candidates:
    """Distinct continuations of the longest endings of s' first (`rasd.eq7`, `rasd.alg1`; corrected).

    For i from `longest` down to `shortest` the last i tokens of s', y_0 among them, are looked for, in the
    order of the datastore, until `count` continuations are found.  Near the end of a stored text a
    continuation is shorter than `span`; where nothing follows there is none.

    Args:
        text: s', which ends in y_0.
        datastore: D, texts.
        longest: n_max.
        shortest: n_min, at least 1.
        count: n, continuations at most.
        span: l, tokens of each.

    Raises:
        ValueError: Outside the domain.
    """
    _check_search(longest, shortest, count, span)
    found: dict[tuple[int, ...], None] = {}
    for size in range(min(longest, len(text)), shortest - 1, -1):
        for number, after in occurrences(text[len(text) - size :], datastore):
            if len(found) >= count:
                return tuple(found)
            found[tuple(datastore[number][after : after + span])] = None
    return tuple(found)[:count]


def suffix_candidates_printed(
    text: Tokens, datastore: Texts, *, longest: int, shortest: int, count: int, span: int
) -> Candidates:
    """Algorithm 1 as printed: the ending (x_(n-i+1), ..., x_n, y_0) is compared with i-grams.

    That ending has i + 1 tokens, so it equals no i-gram: nothing is ever found.

    Args:
        text: As in `suffix_candidates`.
        datastore: As in `suffix_candidates`.
        longest: As in `suffix_candidates`.
        shortest: As in `suffix_candidates`.
        count: As in `suffix_candidates`.
        span: As in `suffix_candidates`.

    Raises:
        ValueError: Outside the domain.
    """
    _check_search(longest, shortest, count, span)
    found: dict[tuple[int, ...], None] = {}
    for i in range(longest, shortest - 1, -1):
        if len(found) >= count:
            break
        ending = tuple(text[max(0, len(text) - i - 1) :]) if len(text) > i else ()
        for stored in datastore:
            for start in range(len(stored) - i):
                if tuple(stored[start : start + i]) == ending and len(found) < count:
                    found[tuple(stored[start + i : start + i + span])] = None
    return tuple(found)


def lookup_rounds(
    text: Tokens,
    datastore: Texts,
    draft_table: ArrayLike,
    *,
    top_k: int,
    attempts: int,
    longest: int,
    shortest: int,
    count: int,
    span: int,
) -> Candidates:
    """Retrieval that lets the draft go on until something is found (`rasd.pld_iter`).

    If s' has no match, each of the draft's `top_k` next tokens is appended and the search made again, and
    so on for at most `attempts` tokens.  A candidate begins with the tokens that were appended, since it
    continues s'.  The paper gives no limit; without one a datastore that matches nothing is never done.
    REST is `attempts` 0: one search per draft.

    Args:
        text: s', which ends in y_0.
        datastore: D, texts.
        draft_table: [V, V] the draft's law after each token.
        top_k: Tokens appended to each text.
        attempts: Most tokens appended, at least 0.
        longest: As in `suffix_candidates`.
        shortest: As in `suffix_candidates`.
        count: As in `suffix_candidates`, over all texts.
        span: As in `suffix_candidates`, without the appended tokens.

    Raises:
        ValueError: Outside the domain.
    """
    table = _table(draft_table)
    _last_token(text, table)
    if top_k < 0 or attempts < 0:
        raise ValueError(f"needs top_k >= 0 and attempts >= 0, got {top_k}, {attempts}")
    level: list[tuple[int, ...]] = [()]
    for turn in range(attempts + 1):
        found: dict[tuple[int, ...], None] = {}
        for extra in level:
            grown = (*text, *extra)
            for tail in suffix_candidates(
                grown, datastore, longest=longest, shortest=shortest, count=count, span=span
            ):
                found[*extra, *tail] = None
        if found or turn == attempts:
            return tuple(found)[:count]
        level = [
            (*extra, int(token)) for extra in level for token in top_tokens(table[(*text, *extra)[-1]], top_k)
        ]
    return ()


def first_layer(text: Tokens, draft_table: ArrayLike) -> FloatArray:
    """[V] P_1 = P(. | s'; draft)  (`rasd.eq8`).  The text calls it the target's; the symbol is the draft's.

    Args:
        text: s'.
        draft_table: [V, V] the draft's law after each token.

    Raises:
        ValueError: Outside the domain.
    """
    table = _table(draft_table)
    return np.array(table[_last_token(text, table)[0]])


def prune(candidates: Sequence[Sequence[int]], draft_law: ArrayLike, top_k: int) -> Candidates:
    """Candidates whose first token is among the `top_k` likeliest of P_1  (`rasd.prune`).

    All of them for top_k >= V, none for 0; of equally likely tokens the lower id counts as likelier.

    Args:
        candidates: Retrieved token lists; empty ones are dropped.
        draft_law: [V] P_1.
        top_k: k >= 0.

    Raises:
        ValueError: Outside the domain.
    """
    kept = set(top_tokens(token_law("draft_law", draft_law), top_k).tolist())
    return tuple(tuple(path) for path in candidates if len(path) and path[0] in kept)


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a speedup and an acceptance length say together.

    Attributes:
        tokens_per_round: tau + 1, with the target's own token.
        step_cost: Time of a round over that of a plain step, (tau + 1)/SR.
        consistent: Whether a round costs at least a plain step: SR <= tau + 1.
    """

    tokens_per_round: float
    step_cost: float
    consistent: bool


def metrics(speedup: float, accepted_per_round: float) -> Metrics:
    """Check of a published pair: a round of tau + 1 tokens is not faster than a plain step (`rasd.metrics`).

    The paper's table breaks it: REST on NL2SQL has SR 3.59 at tau 1.51, faster than its 2.51 tokens.

    Args:
        speedup: SR, wall time of plain decoding over that of the method.
        accepted_per_round: tau, without the target's own token.

    Raises:
        ValueError: A speedup that is not above 0 or a tau below 0.
    """
    if not (0.0 < speedup < math.inf and 0.0 <= accepted_per_round < math.inf):
        raise ValueError(
            f"needs speedup > 0 and accepted_per_round >= 0, got {speedup:g}, {accepted_per_round:g}"
        )
    cost = (accepted_per_round + 1.0) / speedup
    return Metrics(accepted_per_round + 1.0, cost, cost >= 1.0)


def _table(draft_table: ArrayLike) -> FloatArray:
    table = np.asarray(draft_table, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ValueError(f"draft_table must be [V, V], a law after each token, got shape {table.shape}")
    return np.stack([token_law("draft_table", row) for row in table])


def _last_token(text: Tokens, table: FloatArray) -> tuple[int]:
    if len(text) == 0 or not 0 <= text[-1] < len(table):
        raise ValueError(f"text must end in a token of the draft's vocabulary of {len(table)}")
    return (int(text[-1]),)


def _check_search(longest: int, shortest: int, count: int, span: int) -> None:
    if not 1 <= shortest <= longest or count < 0 or span < 1:
        raise ValueError(
            "needs 1 <= shortest <= longest, count >= 0 and span >= 1, "
            f"got {shortest}, {longest}, {count}, {span}"
        )
