"""Exactness of replay: do the simulated and the live run agree round by round?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hardware_profiles.trace import Trace
from policies.registry import Settings
from policies.rows import Round

GAP_BOUND = 1e-4
"""Log-probability gap below which two tokens may swap places between runs: fp32 forwards of different
shapes differ by about 1e-5 here, so a swap at a gap above this bound is a bug."""


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """Where two sequences part: the length of the shorter one where it is cut short; None if they do not."""
    both = zip(one, other, strict=False)
    at = next((i for i, (a, b) in enumerate(both) if a != b), min(len(one), len(other)))
    return None if at == len(one) == len(other) else at


@dataclass(frozen=True, slots=True)
class Difference:
    """The first round in which the two worlds disagree on a request.

    Attributes:
        settings: The setting.
        request: The request.
        simulated: That round, simulated; None if there was none any more.
        live: That round, live; None if there was none any more.
        gap: Smallest gap between log-probabilities that the round's decisions hang on: between the
            target's first two choices, and between neighbours in the draft's ranking.
    """

    settings: Settings
    request: int
    simulated: Round | None
    live: Round | None
    gap: float

    @property
    def excused(self) -> bool:
        """Whether the gap is so small that rounding explains the difference."""
        return self.gap < GAP_BOUND

    def __str__(self) -> str:
        return (
            f"  {self.settings.label}, request {self.request}: logit gap {self.gap:.2e} "
            f"({'below' if self.excused else 'ABOVE'} the bound)\n    simulated {self.simulated}\n"
            f"    live      {self.live}"
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """Comparison of a setting's rounds over many requests.

    Attributes:
        rounds: Rounds that agree in (accepted, emitted, bonus, hit, position, length, source).
        differences: First disagreement of each request that has one.
    """

    rounds: int
    differences: tuple[Difference, ...]

    @property
    def exact(self) -> bool:
        """Whether every difference is excused."""
        return all(difference.excused for difference in self.differences)


def compare_rounds(
    settings: Settings,
    simulated: Mapping[int, Sequence[Round]],
    live: Mapping[int, Sequence[Round]],
    trace: Trace,
) -> Agreement:
    """Compare round by round, up to the first difference of each request.

    After a difference the two runs stand at different places, so that later rounds tell nothing.
    """
    agreeing, differences = 0, []
    for request, rounds in live.items():
        at = first_difference(simulated[request], rounds)
        agreeing += len(rounds) if at is None else at
        if at is not None:
            one, other = (next(iter(each[at : at + 1]), None) for each in (simulated[request], rounds))
            gap = _gap(trace.slice([request]), [r for r in (one, other) if r is not None], settings)
            differences.append(Difference(settings, request, one, other, gap))
    return Agreement(agreeing, tuple(differences))


def _gap(part: Trace, rounds: Sequence[Round], settings: Settings) -> float:
    """Smallest gap at the positions that any of the rounds decided.

    Of the draft the ranks count that the setting looks at: its cached set, the rejected token, and the next.
    """
    first = min(r.position for r in rounds)
    last = min(max(r.position + r.emitted for r in rounds) + 1, len(part))
    gaps = [np.inf]
    for column, ranks in (
        ("target_top_logprobs", 2),
        ("draft_top_logprobs", max(settings.fanout or (0,)) + 2),
    ):
        ranked = part.column(column)[first:last, :ranks]
        gaps.append(float(np.min(-np.diff(ranked, axis=1), initial=np.inf)))
    return min(gaps)
