"""No knob is silently ignored: another value of it makes another run.

Compared are the replies of the devices, operation by operation, and never what was asked of them: a knob that
a policy passes on and a handler forgets would change the question alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from live_support import serve, texts_of
from mirror_support import lens_world, tiny_models

from policies.registry import POLICIES, configure

NEW = ("double", "duo", "mirror", "tree", "rest", "rasd")
ELSEWHERE = {
    "matched_length": "coins only; with tokens it is refused",
    "overlap": "changes when, not what: tests/policies/test_mirror.py, test_double.py",
    "streams": "changes in how many passes, not what: tests/live/test_live_streams.py",
    "stream_acceptance": "coins only; with tokens it is refused",
    "datastore": "tests/live/test_live_rasd.py, test_live_double.py",
}
OTHERS: dict[str, Any] = {
    "lookahead": 3,
    "longest_suffix": 1,
    "sequences": "1",
    "kappa": 1,
    "exit": "1/4",
    "candidates": "first",
    "retrieval_length": 2,
    "draft_retrieval": "off",
    "target_retrieval": "off",
    "rejected_cache": "off",
    "longest_match": 1,
    "shortest_match": 1,
    "retrieval_candidates": 1,
    "retrieval_attempts": 0,
    "prune_top": 1,
    "fusion": "off",
    "retrieval_nodes": 1,
    "tree_plan": "dynamic",
    "tree_widths": (2, 1),
    "tree_depth": 2,
    "tree_topk": 2,
    "tree_budget": 3,
    "draft_sampling": "greedy",
    "acceptance_rule": "matching",
}
"""A value of each knob other than its default."""
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    **{("tree", f"tree_{knob}"): {"tree_plan": "dynamic"} for knob in ("depth", "topk", "budget")},
    ("rest", "longest_match"): {"shortest_match": 1},
    ("rasd", "longest_match"): {"shortest_match": 1},
}
"""What else is set, in both runs, for a knob to have a say."""
TEXT = (5, 9, 3, 7, 5, 9, 3, 8, 5, 9, 4, 7, 9, 3, 7, 5, 9, 3)
PROMPTS = [TEXT, TEXT[::-1], (1, 2) * 6, (3, 3, 4) * 5]

CASES = [
    (name, knob) for name in NEW for knob in POLICIES[name].knobs if knob not in ELSEWHERE and knob in OTHERS
]


def replies(policy: str, knobs: dict[str, Any], temperature: float) -> list[Any]:
    """What the devices answered, and what was emitted."""
    settings = configure(policy, temperature=temperature, seed=1, **knobs)
    world = lens_world(tiny_models())
    rows = serve(world, settings, PROMPTS, limit=24, batch=2)
    served = [answer for device in (world.target, *world.drafts) for _, answer in device.served]
    return [*map(_plain, served), texts_of(rows)]


@cache
def usual(policy: str, knob: str, temperature: float) -> list[Any]:
    """The run that a knob's other value is held against; one for all knobs that nothing else is set for."""
    return replies(policy, BESIDE.get((policy, knob), {}), temperature)


def _plain(answer: Any) -> Any:
    """An answer by slot without handles of distributions, which number themselves."""
    if not isinstance(answer, dict):
        return type(answer).__name__
    return [
        {name: value for name, value in reply._asdict().items() if "law" not in name and name != "opening"}
        for _, reply in sorted(answer.items())
    ]


@pytest.mark.parametrize(("policy", "knob"), CASES, ids=str)
def test_another_value_makes_another_run(policy: str, knob: str) -> None:
    beside = BESIDE.get((policy, knob), {})
    temperature = 1.0 if knob in {"draft_sampling", "acceptance_rule"} else 0.0
    changed = replies(policy, {**beside, knob: OTHERS[knob]}, temperature)
    assert changed != usual(policy, knob if beside else "", temperature)


@pytest.mark.parametrize("policy", NEW)
def test_every_knob_is_tried_here_or_elsewhere(policy: str) -> None:
    assert set(POLICIES[policy].knobs) <= {*OTHERS, *ELSEWHERE}


def test_the_same_value_makes_the_same_run() -> None:
    assert replies("double", {}, 1.0) == replies("double", {}, 1.0)
