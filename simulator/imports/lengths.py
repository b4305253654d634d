"""Acceptance by position from mean acceptance lengths at several K, each a run of its own.

`AL(K) - AL(K - 1)` is only about the joint acceptance at position K: the runs differ, so that the curve need
not rise. The conditional acceptances fitted here fall from position to position, and what the fit leaves is
said.  At K = inf the length is that of a run of accepted tokens, which a rejection ends: 1 + M of PEARL's M,
and the acceptance M / (1 + M) at every position.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import numpy as np

from hardware_profiles.files import FileRefused, read_text
from policies.registry import MAX_LOOKAHEAD
from policies.sampling import FloatArray
from simulator.imports.measured import ImportRefused
from simulator.tokens.acceptance import AcceptanceFile, Provenance, joint_of

COLUMNS = (
    "model",
    "draft",
    "method",
    "mode",
    "category",
    "num_speculative_tokens",
    "acceptance_length",
    "source",
)


POSITIONS = 8
"""That are written of an acceptance which is the same at every one."""


def fitted(lengths: Mapping[int, float]) -> tuple[tuple[float, ...], float]:
    """[K] conditional acceptances that fall, and the largest error of the lengths they imply, in tokens.

    Args:
        lengths: Mean tokens of a round, the target's own token counted, by drafted tokens K.

    Raises:
        ImportRefused: A length is below 1 or above K + 1.
    """
    from scipy.optimize import least_squares

    for count, length in lengths.items():
        if not 1 <= count <= MAX_LOOKAHEAD or not 1.0 <= length <= count + 1.0:
            raise ImportRefused(f"{count} drafted tokens make no rounds of {length:g} tokens")
    depth = max(lengths)
    at = np.array(sorted(lengths))
    want = np.array([lengths[int(count)] for count in at])

    def implied(steps: FloatArray) -> FloatArray:
        return np.asarray(1.0 + np.cumsum(np.cumprod(np.cumprod(steps)))[at - 1])

    # Position i accepts as often as position i - 1 times a step of at most 1; one length tells one
    # acceptance.
    free = len(lengths) if len(lengths) < depth else depth

    def steps(some: FloatArray) -> FloatArray:
        return np.concatenate([some, np.ones(depth - free)])

    found = least_squares(lambda x: implied(steps(x)) - want, np.full(free, 0.9), bounds=(0.0, 1.0))
    conditional = np.cumprod(steps(found.x))
    return tuple(conditional.round(4).tolist()), float(np.abs(implied(steps(found.x)) - want).max())


def read_lengths(path: Path) -> dict[str, AcceptanceFile]:
    """Acceptance files of a table of lengths, by name: model, draft and mode.

    Raises:
        ImportRefused: A column is missing, or a value is none.
    """
    try:
        rows = list(csv.DictReader(read_text(path).splitlines()))
        groups = groupby(rows, key=lambda row: tuple(row[name] for name in (*COLUMNS[:5], COLUMNS[7])))
        tables = [(key, {float(r[COLUMNS[5]]): float(r[COLUMNS[6]]) for r in mine}) for key, mine in groups]
    except (FileRefused, csv.Error, KeyError, TypeError, ValueError) as error:
        raise ImportRefused(f"{path}: expected a table of acceptance lengths: {error!r}") from error
    try:
        return {_name(key): _file(path, key, lengths) for key, lengths in tables}
    except ImportRefused as error:
        raise ImportRefused(f"{path}: {error}") from error


def _name(key: tuple[str, ...]) -> str:
    model, draft, method, mode, *_ = key
    gqa = "-gqa" if draft.lower().endswith("-gqa") else ""
    return (
        f"{model}-{method}{gqa}-{mode}".lower()
        .replace("_", "-")
        .replace("deepseek-v4-pro-dspark-", "deepseek-v4-pro-")
    )


def _whole(count: float) -> int:
    if count != int(count):
        raise ImportRefused(f"{count:g} drafted tokens are no whole number")
    return int(count)


def _engine(source: str) -> str:
    """InferenceX ran vLLM; other sources name what ran in front."""
    known = {"sgl-project": "sglang", "DOUBLE": "transformers"}
    return next((engine for words, engine in known.items() if source.startswith(words)), "vllm")


def _file(path: Path, key: tuple[str, ...], given: Mapping[float, float]) -> AcceptanceFile:
    model, draft, method, mode, category, source = key
    if math.inf in given:
        rate = 1.0 - 1.0 / max(1.0, given[math.inf])
        conditional, lengths = (rate,) * POSITIONS, {POSITIONS: 1.0 + sum(joint_of((rate,) * POSITIONS))}
        assumed = "the same at every position, from the mean run of accepted tokens"
    else:
        lengths = {_whole(count): length for count, length in given.items()}
        conditional, worst = fitted(lengths)
        assumed = f"falls with the position; {len(lengths)} mean lengths fitted to {worst:.2f} tokens"
    return AcceptanceFile(
        source=Provenance(
            file=path.name,
            format="acceptance-lengths",
            engine=_engine(source),
            label=f"{model}, {draft}, {method}, {mode}, {category}: {source}",
            imported_at=datetime.now(UTC),
        ),
        lookahead=max(lengths),
        acceptance_at_position=conditional,
        joint_acceptance_at_position=joint_of(conditional),
        tokens_per_round=lengths[max(lengths)],
        assumed=(assumed,),
        missing=("rounds", "joint acceptance at each position"),
    )
