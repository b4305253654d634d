"""The speculation cache of several draft devices, each of which prepared a share of the outcomes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.operations import BoolArray, Speculation, Verdict
from policies.protocols import Cache


class JoinedCache:
    """The union of caches that share no outcome (see `policies.protocols.Cache`).

    Args:
        parts: One cache per draft device, at least one.
    """

    def __init__(self, parts: Sequence[Cache]) -> None:
        self.parts = tuple(parts)

    def lookup(self, verdict: Verdict) -> BoolArray:
        """[B] whether any part holds each row's outcome."""
        found: BoolArray = np.any([part.lookup(verdict) for part in self.parts], axis=0)
        return found

    def take(self, verdict: Verdict, hits: BoolArray) -> Speculation:
        """The prepared speculation of the rows marked in `hits`, each from the part that holds it."""
        taken = Speculation.empty(len(hits))
        for part in self.parts:
            held = hits & part.lookup(verdict)
            taken = taken.merge(part.take(verdict, held), held)
        return taken

    def opening(self) -> Speculation:
        """The opening of the first part."""
        return self.parts[0].opening()
