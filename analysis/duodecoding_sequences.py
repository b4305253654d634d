"""Whether the draft's doubt says when a second sequence is worth it (DuoDecoding, Table 4 and Figure 5).

Read from decisions, recorded or of a live run: per round the sequences drafted, and which of their first
tokens the target went on with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from hardware_profiles.decisions import Decisions
from policies.duo import DraftSequences, SettleSequences, VerifyPending
from policies.values import UNKNOWN


@dataclass(frozen=True)
class Doubt:
    """Rounds in which the position past the block was reached.

    Attributes:
        counts: Rounds by number of sequences.
        leading: Of those, rounds in which the leading sequence's first token was the target's.
        going_on: Of those, rounds in which any sequence's was.
        drafted: Mean tokens drafted per round, all rounds.
    """

    counts: dict[int, int]
    leading: dict[int, int]
    going_on: dict[int, int]
    drafted: float

    @property
    def rounds(self) -> int:
        """Rounds counted."""
        return sum(self.counts.values())

    def share(self, *, several: bool, needed: bool) -> float:
        """A cell of the paper's Table 4.

        Args:
            several: Whether more than one sequence was drafted ("Pred > 1").
            needed: Whether the leading one failed, so that one was not enough ("Actual > 1").
        """
        found = 0
        for count, rounds in self.counts.items():
            if (count > 1) == several:
                leading = self.leading.get(count, 0)
                found += rounds - leading if needed else leading
        return found / self.rounds

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        names = {False: "one", True: "several"}
        cells = {
            f"actual_{names[needed]}_predicted_{names[several]}": self.share(several=several, needed=needed)
            for several in (False, True)
            for needed in (False, True)
        }
        return {
            "rounds": self.rounds,
            "rounds_by_sequences": self.counts,
            "leading_went_on": self.leading,
            "any_went_on": self.going_on,
            "drafted_per_round": self.drafted,
            **cells,
        }


def doubt_of(decisions: Decisions, requests: Collection[int] | None = None) -> Doubt:
    """Count the rounds of a setting.

    Args:
        decisions: Of DuoDecoding.
        requests: Count these only; None: all.

    Raises:
        ValueError: They are of another policy, or the position past a block was never reached.
    """
    counts: Counter[int] = Counter()
    leading: Counter[int] = Counter()
    going_on: Counter[int] = Counter()
    drafted = rounds = 0
    for (kind, part, request, position), reply in decisions.replies.items():
        if kind != DraftSequences.kind or (requests is not None and request not in requests):
            continue
        sequences = reply[0]
        rounds += 1
        drafted += sum(map(len, sequences))
        chosen = _chosen(decisions, part, request, position)
        if chosen is None:
            continue
        first_tokens = [sequence[0] for sequence in sequences]
        counts[len(sequences)] += 1
        leading[len(sequences)] += first_tokens[0] == chosen
        going_on[len(sequences)] += chosen in first_tokens
    if not counts:
        raise ValueError(f"{decisions.label!r} has no round in which a sequence was tried")
    return Doubt(
        dict(sorted(counts.items())),
        {count: leading[count] for count in sorted(leading)},
        {count: going_on[count] for count in sorted(going_on)},
        drafted / rounds,
    )


def _chosen(decisions: Decisions, part: int, request: int, position: int) -> int | None:
    """The target's token past the block; None where the block was not accepted as a whole, or cut."""
    (accepted, _, _, bonus), work = decisions.replies[VerifyPending.kind, part, request, position]
    settled = decisions.replies.get((SettleSequences.kind, part, request, position))
    if settled is not None:
        last: int = settled[0][3]
        return last
    whole = accepted == work[0][1] - 1 and bonus != UNKNOWN
    return int(bonus) if whole else None
