"""vLLM's start-up cost curves (adaptive verification, vLLM PR #47808), in and out.

    verify: [[tokens of a step, ms], ...]     a forward of the target over so many tokens
    draft:  [[requests of a step, ms], ...]   all that is drafted for so many

vLLM times both at one context when it starts.  It takes verification for a step function up to its largest
captured graph, since a batch is filled up to the next captured size, and for straight lines beyond; so does
what is read here.  They are read from JSON (`{"verify": ..., "draft": ...}`) or from a log line
`draft=[(1, 2.1), ...] verify=[(8, 6.0), ...]`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from hardware_profiles.composed import CAPTURE_LIMIT, TICKS, captured_size
from hardware_profiles.files import FileRefused, parse_json, read_text
from hardware_profiles.profile import DeviceInfo, Profile, Role, Roles
from hardware_profiles.store import ANY
from hardware_profiles.surface import GridCost, LatencySurface, Point, Provenance

Curve: TypeAlias = tuple[tuple[int, float], ...]
"""(tokens or requests, seconds), rising in the first."""
LOGGED = re.compile(r"draft=(\[.*?\])\s+verify=(\[.*?\])")


class CostCurves(NamedTuple):
    """Seconds of a verification by its tokens, and of drafting by the requests drafted for."""

    verify: Curve
    draft: Curve

    def as_dict(self) -> dict[str, list[tuple[int, float]]]:
        """Milliseconds, as vLLM has them."""
        return {
            name: [(at, round(1e3 * seconds, 4)) for at, seconds in curve]
            for name, curve in (("draft", self.draft), ("verify", self.verify))
        }

    def verified_s(self, tokens: int, capture_limit: int = CAPTURE_LIMIT) -> float:
        """Seconds of a verification of so many tokens."""
        ticks, seconds = zip(*self.verify, strict=True)
        if tokens <= min(capture_limit, ticks[-1]):
            return float(seconds[int(np.searchsorted(ticks, tokens))])
        return _line(ticks, seconds, tokens)


def _line(ticks: Sequence[int], seconds: Sequence[float], at: float) -> float:
    """Straight between points and beyond the last one."""
    if at <= ticks[-1] or len(ticks) == 1:
        return float(np.interp(at, ticks, seconds))
    slope = (seconds[-1] - seconds[-2]) / (ticks[-1] - ticks[-2])
    return seconds[-1] + max(0.0, slope) * (at - ticks[-1])


def read_curves(path: Path) -> CostCurves:
    """The curves of a file.

    Raises:
        FileRefused: It cannot be read, or holds none; the message names the file.
    """
    text = read_text(path)
    try:
        if match := LOGGED.search(text):
            content: Any = {"draft": ast.literal_eval(match[1]), "verify": ast.literal_eval(match[2])}
        else:
            content = parse_json(text)
        return CostCurves(_curve(content["verify"]), _curve(content["draft"]))
    except (FileRefused, KeyError, TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise FileRefused(
            f'{path}: expected cost curves, {{"verify": [[tokens, ms], ...], "draft": [[requests, ms], ...]}}'
        ) from error


def _curve(points: Any) -> Curve:
    found = tuple((int(at), 1e-3 * float(ms)) for at, ms in points)
    rising = all(low < high for (low, _), (high, _) in zip(((0, 0.0), *found), found, strict=False))
    if not found or not rising or not all(0.0 < seconds < 1e3 for _, seconds in found):
        raise ValueError
    return found


def curves_profile(
    curves: CostCurves, *, name: str, machine: str, lookahead: int, capture_limit: int = CAPTURE_LIMIT
) -> Profile:
    """A profile of the curves: a forward of B rows of n tokens is one of B n, at the context they were timed.

    Args:
        curves: As vLLM timed them.
        name: Of the profile.
        machine: What they were timed on.
        lookahead: Tokens that drafting drafts: a step of the draft takes as much less.
        capture_limit: Tokens of the largest captured graph.
    """
    most = curves.verify[-1][0]
    batches = [batch for batch in TICKS["forward"]["batch"] if batch <= most]
    grid = list(product(batches, TICKS["forward"]["new_tokens"]))
    drafted, seconds = zip(*curves.draft, strict=True)
    target = [Point(at=(b, n), mean_s=curves.verified_s(b * n, capture_limit)) for b, n in grid]
    draft = [Point(at=(b,), mean_s=_line(drafted, seconds, b) / lookahead) for b in batches]
    role = Role(device=DeviceInfo(kind="cuda", name=machine), model=ANY, backend="vllm", mode="captured")
    return Profile(
        name=name,
        description=f"vLLM's start-up cost curves on {machine}",
        roles=Roles(target=role, draft=role),
        placement="shared",
        verification="packed",
        operations={
            "target.forward": GridCost(axes=("batch", "new_tokens"), points=tuple(target)),
            "draft.forward": GridCost(axes=("batch",), points=tuple(draft)),
        },
        provenance=Provenance(
            kind="measured",
            machine=machine,
            note=f"timed at one context by vLLM; a draft's step is 1/{lookahead} of its pass",
        ),
    )


def curves_of(profile: Profile, *, lookahead: int, context: int, most: int = 256) -> CostCurves:
    """What vLLM would time of a profile's pair: batches of 1 + K tokens a request, filled up as captured.

    Args:
        profile: With both models' forwards.
        lookahead: K.
        context: At which all are timed.
        most: Requests of the largest batch.

    Raises:
        ProfileError: It lacks an operation.
    """
    target, draft = (LatencySurface(profile.operation(name)) for name in ("target.forward", "draft.forward"))
    requests = [rows for rows in TICKS["forward"]["batch"] if rows <= most]
    verify = {
        captured_size(rows * (1 + lookahead)): target.seconds(
            batch=rows, new_tokens=1 + lookahead, context=context
        )
        for rows in requests
    }
    drafting = (
        (rows, lookahead * draft.seconds(batch=rows, new_tokens=1, context=context)) for rows in requests
    )
    return CostCurves(tuple(verify.items()), tuple(drafting))
