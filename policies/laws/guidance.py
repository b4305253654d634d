"""What DOUBLE commits when the target guides the draft  (`double.eq6`, `double.eq19`, `double.alg1`, `alg2`).

X_q (`draft_tokens`) is what the draft proposes after the text, Y_p (`target_tokens`) what the target's own
retrieval forward yields there: matched tokens and one of its own.  Greedy throughout, but for
`guide_sampled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from policies.laws.candidates import draw, reject, token_law
from policies.laws.retrieval import Tokens, common_prefix
from policies.laws.ssd import FloatArray


@dataclass(frozen=True, slots=True)
class Guided:
    """Outcome of comparing a draft with the target's guidance.

    Attributes:
        committed: Tokens that are now part of the text.
        accepted: How many of them were drafted.
        pending: Drafted tokens after them that nothing has judged yet.
        outcome: `correction`: a drafted token was replaced; `extension`: all were right, and the
            guidance reached beyond them; `pending`: the guidance ended first.
    """

    committed: tuple[int, ...]
    accepted: int
    pending: tuple[int, ...]
    outcome: Literal["correction", "extension", "pending"]


def guide(draft_tokens: Tokens, target_tokens: Tokens) -> Guided:
    """x_1 ... x_(i-1) and then y_i ... y_(s+1), i the first mismatch (`double.eq6`); greedy decoding.

    Lossless, since every y is the target's greedy token after the ones before it: what is committed is a
    beginning of the target's own path, and at least one token of it.

    Args:
        draft_tokens: X_q; may be empty.
        target_tokens: Y_p, s + 1 tokens, at least one.

    Raises:
        ValueError: No target token: a retrieval forward always yields the target's own.
    """
    if len(target_tokens) == 0:
        raise ValueError("target_tokens is empty: a retrieval forward always yields the target's own token")
    accepted = common_prefix(draft_tokens, target_tokens)
    if accepted == len(target_tokens) < len(draft_tokens):
        return Guided(tuple(draft_tokens[:accepted]), accepted, tuple(draft_tokens[accepted:]), "pending")
    committed = (*draft_tokens[:accepted], *target_tokens[accepted:])
    return Guided(committed, accepted, (), "extension" if accepted == len(draft_tokens) else "correction")


def guide_sampled(
    draft_tokens: Tokens,
    target_tokens: Tokens,
    target_laws: Sequence[FloatArray],
    draft_laws: Sequence[FloatArray],
    uniforms: Sequence[float],
) -> Guided:
    """The same with sampling (`double.eq19`): after a rejection the rest of the guidance is dropped.

    Each drafted token is accepted with min(1, p/q); a rejected one is replaced by a token of the residual
    norm(max(p - q, 0)), by which y_(i+1) ... lose their condition.  The target knows p only along its own
    tokens, so that an accepted token beside them leaves the rest of the draft pending.  Where all drafted
    tokens are accepted and lie on the guidance, its remainder is committed too.  Lossless if each
    y_i was drawn from target_laws[i] and not from the coins used here.

    Args:
        draft_tokens: X_q, L tokens.
        target_tokens: Y_p, s + 1 tokens, at least one.
        target_laws: [s + 1, V] target's law of each token of the guidance.
        draft_laws: [L, V] law that each drafted token was drawn from.
        uniforms: [L + 1] coins in [0, 1): one per drafted token, the last for the residual.

    Raises:
        ValueError: Shapes or tokens that do not fit.
    """
    rejected = _first_rejected(draft_tokens, target_tokens, target_laws, draft_laws, uniforms)
    if rejected.outcome != "correction":
        return rejected
    i = rejected.accepted
    token = draw(reject(target_laws[i], draft_laws[i]), uniforms[-1])
    return Guided((*rejected.committed, token), i, (), "correction")


def guide_sampled_printed(
    draft_tokens: Tokens,
    target_tokens: Tokens,
    target_laws: Sequence[FloatArray],
    draft_laws: Sequence[FloatArray],
    uniforms: Sequence[float],
) -> Guided:
    """Equation 6 taken literally with sampling: a rejected x_i makes way for y_i ... y_(s+1); biased.

    y_i comes from the target's law and not from the residual: p = (.9, .1) and q = (.5, .5) emit the first
    token with min(p, q) + (1 - .6) p = .86 instead of .9.

    Args:
        draft_tokens: As in `guide_sampled`.
        target_tokens: As in `guide_sampled`.
        target_laws: As in `guide_sampled`.
        draft_laws: As in `guide_sampled`.
        uniforms: As in `guide_sampled`; the last one is not used.

    Raises:
        ValueError: Shapes or tokens that do not fit.
    """
    rejected = _first_rejected(draft_tokens, target_tokens, target_laws, draft_laws, uniforms)
    if rejected.outcome != "correction":
        return rejected
    i = rejected.accepted
    return Guided((*rejected.committed, *target_tokens[i:]), i, (), "correction")


def _first_rejected(
    draft_tokens: Tokens,
    target_tokens: Tokens,
    target_laws: Sequence[FloatArray],
    draft_laws: Sequence[FloatArray],
    uniforms: Sequence[float],
) -> Guided:
    """What coins accept; a `correction` still lacks the token that replaces the rejected one."""
    _check_sampled(draft_tokens, target_tokens, target_laws, draft_laws, uniforms)
    done = tuple(draft_tokens)
    for i, token in enumerate(done):
        if i == len(target_tokens):
            return Guided(done[:i], i, done[i:], "pending")
        if uniforms[i] * draft_laws[i][token] >= target_laws[i][token]:  # strict: probability 0 never passes
            return Guided(done[:i], i, (), "correction")
        if token != target_tokens[i] and i + 1 < len(done):
            return Guided(done[: i + 1], i + 1, done[i + 1 :], "pending")
    on_path = done == tuple(target_tokens[: len(done)])
    rest = tuple(target_tokens[len(done) :]) if on_path else ()
    return Guided((*done, *rest), len(done), (), "extension")


def step(
    pending: Tokens, answers: Tokens, draft_tokens: Tokens, target_tokens: Tokens
) -> tuple[Guided, Literal["pre-verify", "post-verify"]]:
    """One step of DOUBLE, greedy, and the mode of the next (`double.alg1` and `double.alg2`, corrected).

    Pre-verify is the case with nothing pending.  Pending tokens are judged first, by the target's answers;
    all right, the new draft is compared with the guidance as in `guide`.  Every step commits at
    least one token, and only tokens of the target's path.

    Args:
        pending: Drafted tokens of the last step that were not judged, which the draft continued.
        answers: The target's greedy token at each of their positions, given the pending ones before it.
        draft_tokens: X_q, what the draft proposes after the pending tokens.
        target_tokens: Y_p, what the target yields after the pending tokens; worth nothing if one is wrong.

    Raises:
        ValueError: As many answers as pending tokens are needed; `target_tokens` empty.
    """
    if len(answers) != len(pending):
        raise ValueError(f"{len(pending)} pending tokens need as many answers, got {len(answers)}")
    right = common_prefix(pending, answers)
    if right < len(pending):
        return Guided((*pending[:right], answers[right]), right, (), "correction"), "pre-verify"
    guided = guide(draft_tokens, target_tokens)
    committed = (*pending, *guided.committed)
    result = Guided(committed, right + guided.accepted, guided.pending, guided.outcome)
    return result, "post-verify" if guided.pending else "pre-verify"


def preverify_printed(draft_tokens: Tokens, target_tokens: Tokens) -> tuple[int, ...]:
    """Tokens appended in pre-verify mode as printed (`double.alg1`, lines 13 to 20): X_q or Y_p[:n].

    n is the number of drafted tokens accepted, which makes the test n = n_p for "all accepted" come out.
    But Y_p[:n] then holds accepted tokens only: with the first token wrong nothing is committed, and
    greedy decoding stands still for ever.  X_q is appended whole although only n_p of its tokens
    were judged: the rest is pending.

    Args:
        draft_tokens: X_q, n_q tokens.
        target_tokens: Y_p, n_p tokens.

    Raises:
        ValueError: `target_tokens` empty.
    """
    if len(target_tokens) == 0:
        raise ValueError("target_tokens is empty: a retrieval forward always yields the target's own token")
    accepted = common_prefix(draft_tokens, target_tokens)
    return tuple(draft_tokens) if accepted == len(target_tokens) else tuple(target_tokens[:accepted])


def postverify_printed(
    pending: Tokens, answers: Tokens, draft_tokens: Tokens, target_tokens: Tokens
) -> tuple[int, ...]:
    """Text after the last judged token in post-verify mode as printed (`double.alg2`).

    All pending tokens but the first are judged (`prev_tokens - 1`), since pre-verification appends the
    n_p >= 1 tokens it has judged together with the rest.  So it is right on what the printed pre-verification
    leaves, and judges n_p - 1 tokens twice; of tokens that nothing has judged a wrong first one would stay.

    Args:
        pending: As in `step`.
        answers: As in `step`.
        draft_tokens: As in `step`.
        target_tokens: As in `step`.

    Returns:
        The pending tokens kept and what follows them; a tail of drafted tokens may still be unjudged.

    Raises:
        ValueError: No pending token, or not as many answers.
    """
    if not pending or len(answers) != len(pending):
        raise ValueError(f"needs a pending token and as many answers: {len(pending)}, {len(answers)}")
    right = common_prefix(pending[1:], answers[1:])
    if right < len(pending) - 1:
        return (*pending[: right + 1], answers[right + 1])
    if len(target_tokens) < len(draft_tokens) and common_prefix(draft_tokens, target_tokens) == len(
        target_tokens
    ):
        return (*pending, *draft_tokens)
    return (*pending, *target_tokens)


def _check_sampled(
    draft_tokens: Tokens,
    target_tokens: Tokens,
    target_laws: Sequence[FloatArray],
    draft_laws: Sequence[FloatArray],
    uniforms: Sequence[float],
) -> None:
    if not 0 < len(target_tokens) == len(target_laws):
        raise ValueError(
            f"needs a law for each of at least one target token: {len(target_tokens)}, {len(target_laws)}"
        )
    if len(draft_tokens) != len(draft_laws) or len(uniforms) != len(draft_tokens) + 1:
        raise ValueError(
            f"{len(draft_tokens)} drafted tokens need as many laws and one coin more: "
            f"{len(draft_laws)}, {len(uniforms)}"
        )
    sizes = {len(token_law("law", law)) for law in (*target_laws, *draft_laws)}
    if len(sizes) != 1 or not all(0 <= token < min(sizes) for token in (*draft_tokens, *target_tokens)):
        raise ValueError(f"tokens and laws need one vocabulary, got laws of {sorted(sizes)} tokens")
