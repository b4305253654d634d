"""When the answer changes: the best setting over the batch, and over how well the draft does.

Another acceptance is made by *thinning* a greedy trace: at each position, by a coin keyed to it, the
draft's first choice is taken to be wrong (it and the second change places), or the target's token is taken
to be the draft's first choice; all else, clusters of easy text included, stays as recorded.  Sampled
traces have no such handle; there coins are tossed at the acceptance wanted, with the hit curve fitted to
the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.candidates import FEW, grid
from analysis.search import Choice, Progress, Search, best_of
from analysis.sources import Sources
from hardware_profiles.trace import Trace
from policies.registry import Settings
from policies.sampling import keyed_uniforms
from simulator.law import assume
from simulator.run import Scenario
from simulator.tokens import TokenModel, coin, replay

BATCHES = (1, 2, 4, 8, 16)
ACCEPTANCES = (0.3, 0.45, 0.6, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class Point:
    """The best setting at one batch or acceptance.

    Attributes:
        at: The batch or acceptance.
        best: What is fastest there.
        vs_ar: Its speed over plain decoding's on the same devices.
        vs_sd: Its speed over the best SD's on the same devices.
        extrapolated: Whether costs outside the measured grid were used.
        winner_vs_ar: Speed over plain decoding of the setting recommended for the traffic asked about.
    """

    at: float
    best: Settings
    vs_ar: float
    vs_sd: float
    extrapolated: bool
    winner_vs_ar: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "at": self.at,
            "best": self.best.label,
            "policy": self.best.policy,
            "speedup_vs_ar": self.vs_ar,
            "speedup_vs_sd": self.vs_sd,
            "extrapolated": self.extrapolated,
            "recommended_vs_ar": self.winner_vs_ar,
        }


def over_batch(
    search: Search, finalists: Sequence[Settings], batches: Sequence[int], progress: Progress
) -> list[Point]:
    """The best of a small grid and the finalists at each batch.

    Args:
        search: Traffic, hardware and devices.
        finalists: Settings that were good at the traffic asked about, the winner first.
        batches: Requests served at any time.
        progress: (stage, done, total).
    """
    points = []
    for done, batch in enumerate(batches):
        there = Search(search.scenario, search.devices, batch)
        points.append(_point(float(batch), there, finalists, requests=max(6, 2 * batch)))
        progress("other batches", done + 1, len(batches))
    return points


def over_acceptance(
    search: Search,
    sources: Sources,
    finalists: Sequence[Settings],
    acceptances: Sequence[float],
    progress: Progress,
) -> list[Point]:
    """The best of a small grid and the finalists at each acceptance, at the search's own batch."""
    temperature = finalists[0].temperature
    points = []
    for done, acceptance in enumerate(acceptances):
        trace = sources.trace(temperature)
        tokens = (
            replay(thinned(trace, acceptance))
            if temperature == 0.0
            else coins_like(search.scenario, finalists[0], acceptance)
        )
        # Decisions belong to the acceptance they were made at.
        scenario = replace(search.scenario, tokens=tokens, decisions=None)
        there = Search(scenario, search.devices, search.batch)
        points.append(_point(acceptance, there, finalists, requests=max(6, 2 * search.batch)))
        progress("other acceptances", done + 1, len(acceptances))
    return points


def _point(at: float, search: Search, finalists: Sequence[Settings], *, requests: int) -> Point:
    few: dict[str, Any] = dict(FEW)
    small = grid(search.scenario.tokens, finalists[0].temperature, **few)
    # Coins have neither texts nor laws: settings that need them are refused and drop out.
    ranked = search.best([*finalists, *small], requests)
    ar, sd = best_of(ranked, "ar"), best_of(ranked, "sd")
    assert ar is not None and sd is not None, "every profile with a draft runs both"
    winner = search.try_out(finalists[0], requests)
    best: Choice = ranked[0]
    return Point(
        at=at,
        best=best.settings,
        vs_ar=best.tokens_per_second / ar.tokens_per_second,
        vs_sd=best.tokens_per_second / sd.tokens_per_second,
        extrapolated=bool(best.extrapolated or ar.extrapolated),
        winner_vs_ar=None if winner is None else winner.tokens_per_second / ar.tokens_per_second,
    )


def changes(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Neighbouring points between which the best policy changes."""
    return [(a, b) for a, b in pairwise(points) if a.best.policy != b.best.policy]


def thinned(trace: Trace, acceptance: float, *, seed: int = 0) -> Trace:
    """A greedy trace with another acceptance (see above).

    Args:
        trace: With `draft_rank`, and `draft_top_ids` where the draft's choices are recorded.
        acceptance: Share of positions whose token is to be the draft's first choice; to be met on average.
        seed: Keys the coins, by request and position.
    """
    rank = trace.column("draft_rank")
    now = float(np.mean(rank == 0))
    luck = keyed_uniforms(seed, "thinning", trace.request, trace.position)
    changed = rank.copy()
    if acceptance < now:
        changed[(rank == 0) & (luck < 1.0 - acceptance / now)] = 1
    elif now < 1.0:
        changed[(rank > 0) & (luck < (acceptance - now) / (1.0 - now))] = 0
    ids = trace.draft_top_ids
    return replace(trace, draft_rank=changed, draft_top_ids=None if ids is None else _moved(trace, changed))


def _moved(trace: Trace, rank: np.ndarray) -> np.ndarray:
    """[n, M] the draft's choices with the target's token at its new rank."""
    ids = trace.column("draft_top_ids").copy()
    before = trace.column("draft_rank")
    down = np.flatnonzero((before == 0) & (rank == 1))
    if ids.shape[1] > 1:
        ids[down, :2] = ids[down, 1::-1]
    for row in np.flatnonzero((before > 0) & (rank == 0)):
        last = min(int(before[row]), ids.shape[1] - 1)
        ids[row, 1 : last + 1] = ids[row, :last]
        ids[row, 0] = trace.token[row]
    return ids


def coins_like(scenario: Scenario, settings: Settings, acceptance: float) -> TokenModel:
    """Coins with a recording's fitted hit curve and lengths, at another acceptance."""
    told = assume(scenario, settings)
    requests = scenario.tokens.requests
    return coin(
        acceptance,
        exponent=max(told.exponent or 1.0, 1e-3),
        scale=told.scale,
        requests=len(requests),
        length=round(float(np.mean([r.limit for r in requests]))),
        prompt_length=round(float(np.mean([r.prompt_length for r in requests]))),
        seed=0,
    )
