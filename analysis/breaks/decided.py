"""What the shipped pair decided in place of coins: decision traces as worlds, and what laws are told."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from analysis.breaks.points import Case, Point
from analysis.breaks.worlds import RECORDING, scenario, told_by_recording
from analysis.studies.mirrorsd import overlap_counted
from hardware_profiles.decisions import Decisions, DecisionTrace, read_decisions
from hardware_profiles.store import decisions_name, find_decisions
from policies.double import Drafted
from policies.registry import Settings, configure, start
from policies.rows import Rows
from policies.values import Request
from simulator.replies import Recorded, revive
from simulator.world import SimulatedWorld

SAME_FOR_ANY = 1e-9
"""Exponent of a hit curve that does not depend on the number of guesses."""


@lru_cache(maxsize=8)
def decisions_of(policy: str) -> DecisionTrace:
    """The shipped decisions of a policy.

    Raises:
        TraceError: There are none.
    """
    return read_decisions(find_decisions(decisions_name(RECORDING, policy)))


def decided_rows(case: Case, settings: Settings, seed: int) -> Rows | None:
    """A run of recorded decisions at the point's costs, one request at a time; None: not recorded."""
    trace = decisions_of(settings.policy)
    found = trace.settings.get(settings.label)
    if found is None:
        return None
    costs = scenario(Case(case.point, replace(case.world, decided=False)), 2, seed)
    requests = [Request(entry.id, len(entry.prompt), trace.limit, entry.prompt) for entry in trace.requests]
    world = SimulatedWorld(
        costs.tokens,
        costs.costs,
        slowdowns=costs.slowdowns,
        rows=Recorded(found, 1 + max(request.id for request in requests)),
    )
    rows = Rows(requests, 1, keep_tokens=True)
    world.run(start(world, rows, settings))
    return rows


def told_by_decisions(point: Point) -> Point:
    """The point with what a reader would count in the decisions: acceptance, Omega, AMT, mean matches."""
    if point.halves:
        from analysis.breaks.rasd_trees import recorded_matches

        found = recorded_matches()
        return replace(point, halves=(float(found["drafted"].mean()), float(found["retrieved"].mean())))
    acceptance, exponent, scale = told_by_recording(0.0)
    told = replace(point, acceptance=acceptance, exponent=exponent, scale=scale)
    if point.kappa:
        settings = configure("mirror", lookahead=point.lookahead, kappa=point.kappa)
        return _with_overlap(told, _recorded("mirror", settings.label))
    if point.matched:
        found_there = _recorded("double", configure("double", lookahead=point.lookahead).label)
        told = told if found_there is None else replace(told, matched=_matched(found_there))
    return told


def _recorded(policy: str, label: str) -> Decisions | None:
    return decisions_of(policy).settings.get(label)


def _with_overlap(point: Point, found: Decisions | None) -> Point:
    """The point with the hit rate that gives the counted Omega = a + (1 - a) hit."""
    omega = None if found is None else overlap_counted([found])
    if omega is None:
        return point
    hit = max(0.0, omega - point.acceptance) / (1.0 - point.acceptance)
    return replace(point, exponent=SAME_FOR_ANY, scale=1.0 - hit)


def _matched(found: Decisions) -> float:
    """Mean retrieved tokens that the draft confirmed per forward."""
    replies = [revive(Drafted, plain) for key, plain in found.replies.items() if key[0] == "retrievingdraft"]
    return float(np.mean([count for reply in replies for count in reply.matched]))
