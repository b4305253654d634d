"""Runs taken apart and put together: which requests are served, and how long each took."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.costs import ConstantCost
from policies.values import IntArray
from simulator.run import Scenario, Simulated
from simulator.tokens import TokenModel

FloatArray: TypeAlias = NDArray[np.float64]
INSTANT_S = 1e-12
"""Seconds of a prefill that takes no time."""


def outside_grid(run: Simulated) -> tuple[str, ...]:
    """Operations of a decode whose cost lay outside the measured grid, in words."""
    return tuple(str(found) for found in run.extrapolated if not found.operation.endswith("prefill"))


def chosen_requests(tokens: TokenModel, indices: IntArray) -> TokenModel:
    """The token model serving some of its requests, in that order; one drawn twice is served twice."""
    copies = int(np.bincount(indices).max())
    pool = tokens.repeated(copies * len(tokens.requests)) if copies > 1 else tokens
    seen: dict[int, int] = {}
    requests = []
    for index in indices.tolist():
        requests.append(pool.requests[seen.get(index, 0) * len(tokens.requests) + index])
        seen[index] = seen.get(index, 0) + 1
    return replace(pool, requests=tuple(requests))


def without_prefill(scenario: Scenario) -> Scenario:
    """The scenario with prefills that take no time: decode speeds leave them out anyway."""
    profile = scenario.profile
    if profile is None:
        return scenario
    operations: dict[Any, Any] = {
        name: ConstantCost(seconds=INSTANT_S) if name.endswith("prefill") else cost
        for name, cost in profile.operations.items()
    }
    return replace(scenario, profile=profile.model_copy(update={"operations": operations}))


def share_surfaces(original: Scenario, copy: Scenario) -> None:
    """Let a scenario with the same profile use the latency surfaces that another has built."""
    if copy.profile is original.profile:
        copy.__dict__["surfaces"] = original.surfaces


def seconds_by_request(run: Simulated) -> tuple[FloatArray, FloatArray]:
    """([n] tokens, [n] decode seconds) of each request of a run at batch 1, in the order served.

    A request takes from getting its slot to its last round; what is left of prefills (messages) is the
    same for all and taken off.
    """
    log = run.rows.log
    table = log.table()
    order = list(dict.fromkeys(table["request"].tolist()))
    last = dict(zip(table["request"].tolist(), log.ends, strict=True))
    prefill = log.prefill_s / len(order)
    tokens = np.bincount(
        np.searchsorted(np.sort(order), table["request"]), weights=table["emitted"], minlength=len(order)
    )
    counts = tokens[np.searchsorted(np.sort(order), order)].astype(np.float64)
    seconds = [last[request] - log.admitted_s[request] - prefill for request in order]
    return counts, np.array(seconds, dtype=np.float64)
