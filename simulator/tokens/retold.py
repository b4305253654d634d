"""What a live run drew, told again: its own rounds as a token model.

A sampled live run takes another path than any recording, so that its speed and a prediction's differ by luck.
With its own rounds retold, nothing is left to differ but time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.operation import Continue, Prespeculate, Verify
from policies.registry import SettingError
from policies.rows import Round
from policies.sampling import Sampling
from policies.values import NO_SLOTS, BoolArray, IntArray, Request, Slots, Verdict, View
from simulator.tokens.model import TokenModel

NO_ROUND = -1
"""At positions where no live round began."""


@dataclass(frozen=True, slots=True)
class RetoldRounds(TokenModel):
    """Outcomes by the position at which a live round began; the event world alone asks for them.

    Attributes:
        hit: [n] whether the outcome was in the speculation cache.
    """

    hit: BoolArray | None = None

    @property
    def decides_guesses(self) -> bool:
        """Their outcome was told."""
        return True

    def check_sampling(self, sampling: Sampling, shape: tuple[int, ...] | None) -> None:
        """Whatever was drawn is told."""

    def check_fanout(self, widest: int) -> None:
        """Whether it hit is told."""

    def hits(self, view: View, operation: Prespeculate, verdict: Verdict) -> Slots:
        """See `TokenModel`; of several draft devices the first one is said to have prepared it."""
        return self._told(view, verdict) if operation.part[0] == 0 else NO_SLOTS

    def continues(self, view: View, operation: Continue, verdict: Verdict) -> Slots:
        """See `TokenModel`."""
        return self._told(view, verdict)

    def _told(self, view: View, verdict: Verdict) -> Slots:
        assert self.hit is not None
        rows = zip(view.slots, view.requests, view.positions, strict=True)
        found = (slot for slot, request, position in rows if self.hit[self.starts[request] + position])
        return frozenset(found) - verdict.ended

    def runs(self, sampling: Sampling, shape: tuple[int, ...] | None) -> IntArray:
        """See `TokenModel`."""
        return self.run

    def _accepted_guess(self, operation: Verify, slot: int, here: int, run: int) -> int:
        """They are accepted as it was told."""
        return run

    def verify(self, view: View, operation: Verify) -> Verdict:
        """See `TokenModel`.

        Raises:
            SettingError: The simulated round begins where no live one did: the two worlds part.
        """
        for request, position in zip(view.requests, view.positions, strict=True):
            if self.run[self.starts[request] + position] == NO_ROUND:
                raise SettingError(
                    f"no live round of request {request} began at position {position}, where the simulation "
                    "has one"
                )
        return TokenModel.verify(self, view, operation)


def retold(
    requests: Sequence[Request],
    rounds: Mapping[int, Sequence[Round]],
    texts: Mapping[int, Sequence[int]],
    vocabulary: int,
) -> RetoldRounds:
    """The token model of what live runs did.

    Args:
        requests: As they were served; they end where the live texts did.
        rounds: Of each request, by its id.
        texts: Emitted token ids of each.
        vocabulary: Number of token ids.
    """
    served = [replace(each, limit=len(texts[each.id])) for each in requests]
    lengths = [each.limit for each in served]
    accepted, hit = np.full(sum(lengths), NO_ROUND, dtype=np.int64), np.zeros(sum(lengths), dtype=np.bool_)
    starts = dict(zip((each.id for each in served), np.cumsum([0, *lengths]).tolist(), strict=False))
    for request, own in rounds.items():
        for each in own:
            accepted[starts[request] + each.position] = each.accepted
            hit[starts[request] + each.position] = each.hit == 1
    return RetoldRounds.of(  # type: ignore[return-value]
        served,
        lengths,
        tokens=np.concatenate([np.asarray(texts[each.id], dtype=np.int64) for each in served]),
        vocabulary=vocabulary,
        run=accepted,
        need_rejected=np.zeros_like(accepted),
        need_free=np.zeros_like(accepted),
        max_fanout=vocabulary,
        hit=hit,
    )
