"""Contexts have no end: what a measured surface says of 200,000 tokens is what the simulation charges."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_profiles import trace

from hardware_profiles.networks import find_network
from hardware_profiles.pairs import USUAL
from hardware_profiles.profile import Profile, load_profile
from hardware_profiles.reply_trace import DecisionTrace, read_decisions
from hardware_profiles.store import find_decisions, find_profile, shipped_profiles
from hardware_profiles.surface import LatencySurface
from policies.operation import Draft, Prespeculate, Verify
from policies.registry import POLICIES, configure
from policies.values import View
from simulator.costs import Effects, ProfileCosts
from simulator.probe import primary_chains
from simulator.run import Scenario, simulate
from simulator.tokens import coin, replay

LONGEST = 200_000
RECORDED = {"rest", "rasd", "gated", "lookahead", "recycling", "ouroboros"}
"""Policies that coins cannot stand in for."""
POLICY_NAMES = sorted(name for name, info in POLICIES.items() if not info.clocked)
TOSSED = coin(0.8, exponent=1.0, scale=1.0, requests=2, length=6, prompt_length=1, seed=0)
TEXT = trace([[0, 0, 5, 0, 0, 0], [5, 0, 0, 0, 5, 0]])

contexts = st.integers(1, LONGEST)


@cache
def recorded(policy: str) -> DecisionTrace | None:
    """What the shipped pair decided, for the policies that look words up; None where coins do."""
    return read_decisions(find_decisions(f"cpu2-x5-{policy}")) if policy in RECORDED else None


@cache
def shipped(name: str) -> Profile:
    return load_profile(find_profile(name))


@cache
def surfaces(name: str) -> dict[str, LatencySurface]:
    return {operation: LatencySurface(cost) for operation, cost in shipped(name).operations.items()}


OTHERS = {pair.name(find_network(pair.target), find_network(pair.draft)) for pair in USUAL[1:]}
NAMES = [name for name in shipped_profiles() if name not in OTHERS]
"""Composed profiles have the same axes: one of them is enough."""


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(context=contexts, rows=st.integers(1, 4), lookahead=st.integers(1, 6), width=st.integers(1, 9))
def test_operations_cost_what_the_surface_says_at_their_context(
    name: str, context: int, rows: int, lookahead: int, width: int
) -> None:
    costs = ProfileCosts(surfaces(name), effects=Effects(jitter=False), seed=0)
    slots, full = tuple(range(rows)), (context,) * rows
    view = View(slots, slots, (0,) * rows, full, full)
    ahead = primary_chains(rows, lookahead)
    at = {"batch": rows, "context": context}
    forward, draft, tree = (surfaces(name)[n] for n in ("target.forward", "draft.forward", "draft.tree"))

    def said(operation: object) -> list[float]:
        return [seconds for _, seconds in costs.steps("target", operation)]  # type: ignore[arg-type]

    assert said(Verify(view, ahead)) == pytest.approx([forward.seconds(new_tokens=1 + lookahead, **at)])
    opening = draft.seconds(new_tokens=2, **at)
    rest = [draft.seconds(batch=rows, new_tokens=1, context=context + j) for j in range(1, lookahead)]
    assert said(Draft(view, lookahead, (2,) * rows)) == pytest.approx([opening, *rest])
    fanout = (*[0] * lookahead, width)
    glue = draft.seconds(new_tokens=1 + lookahead, **at)
    trees = [
        tree.seconds(batch=rows, branches=width, context=context + 1 + lookahead + j * width)
        for j in range(lookahead)
    ]
    assert said(Prespeculate(view, ahead, lookahead, fanout)) == pytest.approx([glue, *trees])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_runs_at_any_context_on_every_profile(policy: str, name: str) -> None:
    """Which tokens are accepted does not depend on how long the prompts are; seconds grow with them."""
    luck = np.random.default_rng([POLICY_NAMES.index(policy), NAMES.index(name)])
    lengths = (100, *luck.integers(1, LONGEST, 2))
    tokens = replay(TEXT) if policy in {"pld", "suffix"} else TOSSED
    knobs = {"matched_length": 2.0} if "matched_length" in POLICIES[policy].knobs else {}
    emitted = []
    for length in map(int, lengths):
        # Long texts need memory; whether a device has it is another question.
        scenario = Scenario(
            tokens,
            roomy(shipped(name)),
            batch=2,
            requests=2,
            prompt_length=length,
            decisions=recorded(policy),
        )
        summary = simulate(scenario, configure(policy, **knobs)).summary
        assert 0.0 < summary.tokens_per_second < float("inf")
        emitted.append((summary.tokens, summary.rounds))
    assert len(set(emitted)) == 1


def roomy(profile: Profile) -> Profile:
    """The profile with devices whose memory nobody knows, so that it bounds nothing."""
    roles = {
        name: role.but(device=role.device.but(memory_bytes=None))
        for name, role in (("target", profile.roles.target), ("draft", profile.roles.draft))
    }
    return profile.but(roles=profile.roles.but(**roles))
