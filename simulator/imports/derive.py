"""From one way of counting acceptance to another: histogram, joint, conditional; and windows added up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from policies.registry import SettingError
from simulator.imports.measured import Imported, ImportRefused, believable
from simulator.tokens import conditional_acceptance


def joint_of(conditional: Sequence[float]) -> tuple[float, ...]:
    """Joint acceptance at each position from the conditional one: a running product."""
    return tuple(accumulate(conditional, lambda a, b: a * b))


def conditional_of(joint: Sequence[float]) -> tuple[float, ...]:
    """Conditional acceptance at each position from the joint one.

    Raises:
        ImportRefused: The list rises somewhere, so it is not joint.
    """
    try:
        return conditional_acceptance(joint)
    except SettingError as error:
        raise ImportRefused(
            f"{error}: a list that rises is not joint (conditional rates, or counters of several runs?)"
        ) from error


def survivors_of(histogram: Sequence[int]) -> tuple[int, ...]:
    """Rounds that accepted at least 1, 2, ... K tokens, from rounds that accepted exactly 0 ... K."""
    return tuple(sum(histogram[i:]) for i in range(1, len(histogram)))


def histogram_of(rounds: int, survivors: Sequence[int]) -> tuple[int, ...]:
    """Rounds that accepted exactly 0 ... K tokens, from those that accepted at least 1 ... K."""
    return tuple(here - further for here, further in pairwise((rounds, *survivors, 0)))


def from_histogram(histogram: Sequence[int], **known: Any) -> Imported:
    """A measurement whose rounds are counted by accepted tokens, 0 ... K.

    Args:
        histogram: Rounds by accepted tokens.
        known: Further attributes of `Imported`.

    Raises:
        ImportRefused: No rounds, a negative count, or a total that contradicts `known`.
    """
    histogram = _fitted(histogram, known.get("lookahead"))
    rounds = sum(histogram)
    if rounds <= 0 or min(histogram) < 0:
        raise ImportRefused(f"a histogram needs rounds and no negative count, got {list(histogram)}")
    accepted = sum(j * count for j, count in enumerate(histogram))
    for name, counted in (("rounds", rounds), ("accepted", accepted)):
        stated = known.pop(name, None)
        if stated is not None and stated != counted:
            raise ImportRefused(
                f"the source contradicts itself: its histogram {list(histogram)} holds {counted} {name}, it "
                f"states {stated}"
            )
    joint = tuple(s / rounds for s in survivors_of(histogram))
    values: dict[str, Any] = {
        "lookahead": len(histogram) - 1,
        "acceptance_at_position": conditional_of(joint) if joint else None,
        "joint_acceptance_at_position": joint or None,
    }
    values |= known
    return Imported(
        rounds=rounds,
        accepted=accepted,
        tokens_per_round=1.0 + accepted / rounds,
        histogram=tuple(histogram),
        **values,
    )


def _fitted(histogram: Sequence[int], lookahead: int | None) -> list[int]:
    """A histogram of 0 ... K: engines may leave out positions never reached, or list further ones."""
    if lookahead is None:
        return list(histogram)
    believable(lookahead)
    if any(histogram[lookahead + 1 :]):
        raise ImportRefused(
            f"{len(histogram) - 1} tokens were accepted in a round, but only {lookahead} are drafted: "
            f"{list(histogram)}"
        )
    return [*histogram[: lookahead + 1], *[0] * (lookahead + 1 - len(histogram))]


def from_survivors(rounds: int, survivors: Sequence[int], **known: Any) -> Imported:
    """A measurement that counts, per position, the rounds which got that far; as `from_histogram`."""
    if any(further > here for here, further in pairwise((rounds, *survivors))):
        raise ImportRefused(
            f"counts per position must fall from at most {rounds} rounds, got {list(survivors)}: these are "
            "not joint counts, or they belong to several runs"
        )
    return from_histogram(histogram_of(rounds, survivors), **known)


def from_joint(joint: Sequence[float], *, rounds: int | None, accepted: int | None, **known: Any) -> Imported:
    """A measurement with printed joint shares per position; exact counts where they can be recovered.

    Args:
        joint: Joint acceptance at each position.
        rounds: As stated; None if not.
        accepted: As stated; None if not.
        known: Further attributes of `Imported`.
    """
    joint = tuple(joint)
    conditional = conditional_of(joint)
    if rounds and accepted is not None:
        survivors = [round(share * rounds) for share in joint]
        # Shares with few digits do not give the counts back; the total tells whether they did.
        if sum(survivors) == accepted:
            return from_survivors(rounds, survivors, **known)
        known.setdefault("tokens_per_round", 1.0 + accepted / rounds)
    known.setdefault("tokens_per_round", 1.0 + sum(joint))
    known.setdefault("lookahead", len(joint))
    return Imported(
        rounds=rounds,
        accepted=accepted,
        acceptance_at_position=conditional,
        joint_acceptance_at_position=joint,
        **known,
    )


def iid_acceptance(tokens_per_round: float, lookahead: int) -> float:
    """The one acceptance that, the same at each position, gives this many tokens per round.

    Solves 1 + a + a^2 + ... + a^K = tokens per round by bisection: the sum rises with a.

    Raises:
        ImportRefused: No acceptance between 0 and 1 does.
    """
    believable(lookahead)
    if lookahead < 1 or not 1.0 <= tokens_per_round <= lookahead + 1.0 + 1e-9:
        raise ImportRefused(
            f"no acceptance gives {tokens_per_round:g} tokens per round at lookahead {lookahead}: it must be "
            f"between 1 and {lookahead + 1}"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if math.fsum(middle**i for i in range(lookahead + 1)) < tokens_per_round:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def pool(parts: Sequence[Imported]) -> Imported:
    """Windows of one run as one measurement: counts are added, shares weighted by rounds.

    Lengths are never averaged: a window of few rounds would weigh as much as one of many.

    Raises:
        ImportRefused: A window without rounds, or windows of different lookahead.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if len({part.lookahead for part in parts}) > 1 or any(part.rounds is None for part in parts):
        raise ImportRefused(
            "these measurements cannot be added up (different lookahead, or no count of rounds); choose one "
            f"with --select: {', '.join(part.label for part in parts)}"
        )
    rounds = sum(part.rounds or 0 for part in parts)
    known: dict[str, Any] = {
        "engine": first.engine,
        "source": first.source,
        "label": f"{len(parts)} pooled",
        "version": first.version,
        "lookahead": first.lookahead,
        "drafted": _total(parts, "drafted"),
        "notes": tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    }
    accepted = _total(parts, "accepted")
    lists = [part.joint_acceptance_at_position for part in parts]
    depth = max(len(shares or ()) for shares in lists)
    if any(not shares for shares in lists):
        length = None if accepted is None else 1.0 + accepted / rounds
        return Imported(rounds=rounds, accepted=accepted, tokens_per_round=length, **known)
    weights = [(part.rounds or 0) / rounds for part in parts]
    joint = [
        math.fsum(
            w * (shares[i] if shares and i < len(shares) else 0.0)
            for w, shares in zip(weights, lists, strict=True)
        )
        for i in range(depth)
    ]
    return from_joint(joint, rounds=rounds, accepted=accepted, **known)


def _total(parts: Sequence[Imported], name: str) -> int | None:
    values = [getattr(part, name) for part in parts]
    return None if any(value is None for value in values) else sum(values)
