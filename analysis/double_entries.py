"""What `analysis.double` compares: the settings of DOUBLE's tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from policies.registry import Settings, configure

DEPTHS = (1, 5, 20)
"""Retrieval lengths d beside the default (the paper's figure 6)."""
METHODS, ABLATION, DEPTH, PRIOR = PARTS = ("methods", "ablation", "depth", "prior")
"""What is compared: tables 1 and 12, figure 5 with the rejected cache, figure 6, table 3."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a table: of which part, its name for people, and what runs."""

    part: str
    name: str
    settings: Settings


def entries_of(
    lookahead: int, depths: Sequence[int], datastores: Sequence[str], **target: Any
) -> list[Entry]:
    """Plain decoding, the baselines, DOUBLE, and DOUBLE with one thing changed each.

    Args:
        lookahead: K of all; DOUBLE's retrieval forwards.
        depths: Retrieval lengths.
        datastores: Priors, by name or folder.
        target: Temperature and seed.
    """

    def double(part: str, name: str, **knobs: Any) -> Entry:
        return Entry(part, name, configure("double", lookahead=lookahead, **knobs, **target))

    found = [
        Entry(METHODS, "plain decoding", configure("ar", **target)),
        Entry(METHODS, "prompt lookup", configure("pld", lookahead=lookahead, **target)),
        Entry(METHODS, "SD", configure("sd", lookahead=lookahead, **target)),
        Entry(METHODS, "PEARL", configure("pearl", lookahead=lookahead, **target)),
        double(METHODS, "DOUBLE"),
        double(METHODS, "DOUBLE, in turns", overlap="off"),
        double(ABLATION, "without draft retrieval", draft_retrieval="off"),
        double(ABLATION, "without target retrieval", target_retrieval="off"),
        double(ABLATION, "without rejected cache", rejected_cache="off"),
    ]
    found += [double(DEPTH, f"d = {depth}", retrieval_length=depth) for depth in depths]
    found += [double(PRIOR, "no prior")] if datastores else []
    return found + [double(PRIOR, f"prior {name}", datastore=name) for name in datastores]
