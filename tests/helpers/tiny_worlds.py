"""Tiny worlds: token outcomes written out by hand, constant latencies."""

from __future__ import annotations

import numpy as np

from policies.registry import Settings, configure
from policies.rows import Round, Rows
from policies.values import Request
from simulator.costs import TextbookCosts
from simulator.tokens import NEVER, TokenModel, accepted_runs
from simulator.world import SimulatedWorld


def tokens_by_hand(*paths: tuple[str, list[int]]) -> TokenModel:
    """One request per (accepted, ranks): `accepted` has a `+` where the draft's first choice is right.

    `ranks` gives the target token's rank under the draft per position; it is 0 exactly at a `+`.
    """
    runs, ranks, starts, lengths = [], [], [], []
    at = 0
    for accepted, rank in paths:
        right = np.array([mark == "+" for mark in accepted])
        assert len(rank) == len(right) and all((r == 0) == ok for r, ok in zip(rank, right, strict=True))
        runs.append(accepted_runs(right))
        ranks.append(np.array(rank, dtype=np.int64))
        starts.append(at)
        lengths.append(len(right))
        at += len(right)
    rank_of = np.concatenate(ranks)
    return TokenModel(
        starts=np.array(starts),
        lengths=np.array(lengths),
        run=np.concatenate(runs),
        need_rejected=np.where(rank_of > 0, rank_of, NEVER),
        need_free=rank_of + 1,
        tokens=None,
        ranked=None,
        max_fanout=NEVER,
        vocabulary=0,
        requests=tuple(Request(i, 1, n) for i, n in enumerate(lengths)),
    )


def run(
    tokens: TokenModel,
    policy: str,
    *,
    batch: int = 1,
    target_s: float = 1.0,
    draft_s: float = 0.25,
    **knobs: object,
) -> tuple[SimulatedWorld, Rows]:
    """Run a policy in a textbook world, with its timeline."""
    settings: Settings = configure(policy, **knobs)  # type: ignore[arg-type]
    costs, servers = TextbookCosts(target_s, draft_s), settings.target_devices or 1
    world = SimulatedWorld(tokens, costs, timeline=True, target_devices=servers)
    rows = Rows(tokens.requests, batch)
    from policies.registry import start

    world.run(start(world, rows, settings))
    return world, rows


def events(world: SimulatedWorld) -> list[tuple[str, str, float, float]]:
    """(device, operation, start, end) in order of start; prefills, which cost nothing here, left out."""
    spans = [s for s in world.spans if s.name != "prefill"]
    return [
        (s.device, s.name, s.start_s, s.end_s) for s in sorted(spans, key=lambda s: (s.start_s, s.device))
    ]


def outcomes(rounds: list[Round]) -> list[tuple[int, int, int]]:
    """(accepted, emitted, hit) of each round."""
    return [(r.accepted, r.emitted, r.hit) for r in rounds]
