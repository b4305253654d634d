"""Tiny profiles and traces by hand: constant latencies, ranks written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardware_profiles.profile import DeviceInfo, MeasuredRun, Profile, Role, Roles
from hardware_profiles.surface import ConstantCost, GridCost, Point, Provenance
from hardware_profiles.trace import Trace, TraceMeta, TraceRequest


def profile(
    *,
    target_s: float = 1.0,
    draft_s: float = 0.25,
    tree_s: float | None = None,
    blocks: Mapping[str, Sequence[float]] | None = None,
    runs: Sequence[MeasuredRun] = (),
    model_error: float | None = None,
    linear: bool = False,
    kind: str = "synthetic",
    **fields: Any,
) -> Profile:
    """Constant costs; an operation named in `blocks` gets these block factors.

    `linear`: costs grow in proportion to the batch (a tree's to its branches), as where compute binds.
    """
    device = Role(device=DeviceInfo(kind="cpu"), model="made up")
    operations: dict[Any, Any] = {}
    costs = {"target.forward": target_s, "draft.forward": draft_s, "draft.tree": tree_s or draft_s}
    for name, seconds in costs.items():
        operations[name] = ConstantCost(seconds=seconds)
        factors = tuple((blocks or {}).get(name, ()))
        if factors or linear:
            axis: Any = "branches" if name == "draft.tree" else "batch"
            points = tuple(Point(at=(at,), mean_s=seconds * (at if linear else 1)) for at in (1, 640))
            operations[name] = GridCost(axes=(axis,), points=points, block_factors=factors)
    for name in ("target.prefill", "draft.prefill"):
        operations[name] = ConstantCost(seconds=0.5)
    return Profile(
        name="tiny",
        roles=Roles(target=device, draft=device),
        operations=operations,
        measured_runs=tuple(runs),
        model_error=model_error,
        provenance=Provenance(kind=kind),  # type: ignore[arg-type]
        **fields,
    )


def trace(ranks: Sequence[Sequence[int]], *, categories: Sequence[str] = (), listed: int = 8) -> Trace:
    """One greedy request per list of ranks that the target's tokens have under the draft."""
    ids = np.concatenate([np.full(len(r), i) for i, r in enumerate(ranks)])
    n = len(ids)
    names = categories or ["a"] * len(ranks)
    rank = np.concatenate([np.array(r, dtype=np.int64) for r in ranks])
    token = listed + 3 + np.arange(n)  # no word twice: there is nothing to look up in the text
    top = np.tile(np.arange(1, listed + 1, dtype=np.int32), (n, 1))
    top[np.flatnonzero(rank < listed), rank[rank < listed]] = token[rank < listed]
    return Trace.of(
        requests=tuple(
            TraceRequest(id=i, question_id=i, category=names[i], prompt=(1, 2), ended="limit")
            for i in range(len(ranks))
        ),
        meta=TraceMeta(
            target_model="pair:x5", draft_model="pair:draft", tokenizer="x", vocabulary=10_000,
            sampling={"temperature": 0.0}, prompt_set="made up", draft_top=listed,
        ),
        request=ids,
        position=np.concatenate([np.arange(len(r)) for r in ranks]),
        token=token,
        draft_rank=rank,
        draft_top_ids=top,
    )  # fmt: skip
