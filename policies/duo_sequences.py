"""DuoDecoding's sequences: which are opened, how they share the budget, what they cost (`policies.duo`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.laws.ssd import power_law_hit
from policies.rowwise import Work


def openings(
    ranked: Sequence[int], masses: Sequence[float], leading: int, theta: float | None, most: int
) -> tuple[int, ...]:
    """First tokens of the sequences: the leading one, and those that the threshold lets in.

    The strict test alone would turn away even the leading token where the draft is sure of the next one
    (theta is then its own probability), so that nothing would be drafted: it is kept (`duo.theta`,
    corrected).

    Args:
        ranked: Tokens by their probability at the first position, best first.
        masses: Their probabilities.
        leading: First token of the leading sequence, whatever its rank (it may have been drawn).
        theta: Probability of the leading sequence's first two tokens; None: no threshold.
        most: Sequences, at least 1.
    """
    others = [
        token
        for token, mass in zip(ranked, masses, strict=True)
        if token != leading and (theta is None or mass > theta)
    ]
    return (leading, *others[: most - 1])


def mean_sequences(acceptance: float, exponent: float | None, scale: float, most: int) -> int:
    """Sequences that pass the threshold where every position has the mean probabilities.

    p(1, 1) = p(1, 2) = the acceptance a, and p(r, 1) is (1 - a) times the hit curve's step at r - 1.

    Args:
        acceptance: a.
        exponent: r of the hit curve 1 - c F^-r after a rejection; None without a curve.
        scale: c.
        most: Sequences, at least 1.
    """
    if exponent is None or most == 1:
        return 1
    curve = power_law_hit(list(range(1, most)), exponent, scale)
    steps = (1.0 - acceptance) * np.diff(curve, prepend=0.0)
    return len(openings(range(most), [acceptance, *steps.tolist()], 0, acceptance**2, most))


def most_sequences(lookahead: int, sequences: int) -> int:
    """Sequences that a budget can have: each gets at least a token, the leading one two (if there are two).

    Args:
        lookahead: K.
        sequences: As in `DraftSequences`.
    """
    room = max(1, lookahead - 1)
    return min(sequences, room) if sequences else room


def sequence_lengths(lookahead: int, count: int) -> tuple[int, ...]:
    """[count] tokens of each sequence: 1 + d of the leading one, d of the others, 1 + count * d <= K.

    The leading one is a token ahead, since the threshold needs the law after its first token.
    """
    if lookahead == 1:
        return (1,)
    depth = (lookahead - 1) // count
    return (1 + depth, *((depth,) * (count - 1)))


def sequences_work(fed: int, lookahead: int, count: int, *, alone: bool) -> Work:
    """Steps of a row: the unseen tokens, the leading first token, then a token of every sequence per step.

    Args:
        fed: Tokens that the draft has not seen, the pending block among them.
        lookahead: K.
        count: Sequences of this row.
        alone: Whether no row ever has more than one; then the steps are those of plain drafting.
    """
    steps = [("feed", fed)]
    if lookahead > 1:
        steps.append(("draft", 1))
        grown = sequence_lengths(lookahead, count)[0] - 2
        steps += [("draft" if alone else "tree", count)] * grown
    return tuple(steps)
