"""Which settings stand for a policy where its output is compared with plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from policies.registry import POLICIES, SettingError, Settings, configure, find_policy

Knobs = dict[str, Any]

VARIANTS: dict[str, tuple[Knobs, ...]] = {
    "sd": ({"lookahead": 1}, {"lookahead": 5}),
    "pld": ({"lookahead": 5},),
    "rest": ({}, {"retrieval_nodes": 12}),
    "pearl": ({"lookahead": 2}, {"lookahead": 5}),
    "saguaro": (
        *({"lookahead": 4, "fanout": (3,), "backup": b} for b in ("primary", "primary-all", "plain")),
        *({"lookahead": 3, "fanout": (2,), "backup": b, "first": "backup"} for b in ("random", "ngram")),
        {"lookahead": 4, "fanout": (2,), "stall": "rows"},
        {"lookahead": 3, "fanout": (3,), "cache_set": "top", "tree": "abort"},
        {"lookahead": 3, "fanout": (3,), "draft_devices": 2},
    ),
    "double": (
        {},
        {"overlap": "off"},
        {"lookahead": 2, "retrieval_length": 4},
        {"draft_retrieval": "off"},
        {"target_retrieval": "off"},
        {"rejected_cache": "off"},
    ),
    "duo": ({"lookahead": 6}, {"sequences": "1"}, {"lookahead": 6, "sequences": "4"}),
    "tree": (
        {"tree_widths": (2, 2, 1)},
        {"tree_plan": "dynamic", "tree_depth": 4, "tree_topk": 3, "tree_budget": 12},
    ),
    "mirror": (
        *({"exit": e, "kappa": 4} for e in ("1/4", "1/2", "3/4")),
        {"lookahead": 3, "kappa": 1},
        {"lookahead": 3, "kappa": 8},
        {"kappa": 2, "candidates": "first"},
        {"kappa": 4, "overlap": "off"},
        {"kappa": 2, "candidates": "first", "overlap": "off"},
        *({"kappa": 2, "streams": streams} for streams in ("1", "2", "3")),
        {"kappa": 4, "streams": "2", "overlap": "off"},
    ),
    "rasd": (
        {},
        {"tree_depth": 3, "tree_topk": 2, "tree_budget": 6, "retrieval_nodes": 8},
        {"prune_top": 0, "fusion": "off"},
    ),
}
"""Knobs of each policy's settings; every named value that changes how a greedy run goes is in one."""
STORED = ("rest", "rasd", "double")
"""Policies that retrieve from a datastore where one is given."""


def identity_settings(names: Sequence[str] = (), *, datastore: str | None = None) -> list[Settings]:
    """Greedy settings whose output has to be plain decoding's.

    Args:
        names: Policies, by name or alias; none: all that run live.
        datastore: One more setting of each policy that retrieves, from this one; None: none.

    Raises:
        SettingError: An unknown policy, or one that runs no models.
    """
    chosen = [find_policy(name) for name in names] or [p for p in POLICIES.values() if "live" in p.worlds]
    for info in chosen:
        if "live" not in info.worlds:
            raise SettingError(f"policy {info.name!r} runs in the simulated world only, without models")
    found = []
    for info in chosen:
        variants = VARIANTS.get(info.name, ({},))
        if datastore and info.name in STORED:
            variants = (*variants, {"datastore": datastore})
        found += [configure(info.name, **knobs) for knobs in variants]
    return list(dict.fromkeys(found))
