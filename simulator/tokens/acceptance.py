"""Acceptance files: measured acceptance by position, as a token model (docs/how-to/import.md has the format).

`python -m simulator.imports` writes them, or people by hand; `simulate --acceptance` reads them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from hardware_profiles.files import FileRefused, read_json
from hardware_profiles.records import Count, Frozen, Natural, Positive, RecordError, Share, field, record
from policies.registry import MAX_LOOKAHEAD, SettingError, Settings, find_policy
from simulator.tokens.coins import check_power_law, histogram, power_law_curve
from simulator.tokens.model import TokenModel

KIND = "spectwin-acceptance"
CLOSE = 1e-6


def joint_of(conditional: Sequence[float]) -> tuple[float, ...]:
    """Joint acceptance at each position from the conditional one: a running product."""
    return tuple(accumulate(conditional, lambda a, b: a * b))


class Provenance(Frozen, frozen=True, kw_only=True):
    """Where the numbers come from.

    Attributes:
        label: Which measurement of the file.
        imported_at: Time of the import, ISO 8601, UTC.
    """

    file: str
    format: str
    engine: str
    version: str | None = None
    label: str = ""
    imported_at: datetime


class AcceptanceFile(Frozen, frozen=True, kw_only=True):
    """An acceptance file.

    Attributes:
        lookahead: K of the measurement.
        acceptance_at_position: [K] conditional acceptance.
        joint_acceptance_at_position: [K] its running product, the engines' per-position metric.
        tokens_per_round: As measured, bonus token counted; None if not said.
        rounds: How many rounds it rests on; None if not said.
        histogram: [K + 1] rounds by accepted tokens; None if not said.
        hit_curve: (r, c) of a speculation cache's hit probability 1 - c F^-r; None if not said.
        speeds: Times and throughputs, for people; the simulation takes its times from a hardware profile.
        assumed: What was assumed on top of the source.
        missing: What the source does not say.
        notes: Biases and contradictions of the source.
    """

    kind: Literal["spectwin-acceptance"] = "spectwin-acceptance"
    schema_version: Literal[1] = 1
    source: Provenance
    lookahead: Count
    acceptance_at_position: tuple[Share, ...]
    joint_acceptance_at_position: tuple[Share, ...]
    tokens_per_round: Annotated[float, Meta(ge=1)] | None = None
    rounds: Count | None = None
    histogram: tuple[Natural, ...] | None = None
    hit_curve: tuple[Positive, Share] | None = None
    speeds: dict[str, Any] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """A joint list in the place of the conditional one would be believed and be wrong: both are kept."""
        own, joint = self.acceptance_at_position, self.joint_acceptance_at_position
        if not own or len(own) != len(joint):
            raise ValueError("expected one entry per position, in both lists of acceptance")
        if any(abs(a - b) > CLOSE for a, b in zip(joint_of(own), joint, strict=True)):
            raise ValueError(
                "joint_acceptance_at_position must be the running product of acceptance_at_position (was a "
                "joint list written in the place of the conditional one?)"
            )
        if self.histogram is not None and len(self.histogram) != len(own) + 1:
            raise ValueError(f"histogram: expected {len(own) + 1} entries, 0 to {len(own)} accepted tokens")

    @property
    def words(self) -> str:
        """One line on where the numbers come from."""
        by = f"{self.source.engine} {self.source.version or ''}".strip()
        which = f" [{self.source.label}]" if self.source.label else ""
        over = f", {self.rounds} rounds" if self.rounds else ""
        depth = len(self.acceptance_at_position)
        return f"acceptance at {depth} positions measured by {by} ({self.source.file}{which}{over})"


def load_acceptance(path: Path) -> AcceptanceFile:
    """Read a file.

    Raises:
        FileRefused: It cannot be read, or is none; the message has the path of the bad field.
    """
    way_out = (
        f"expected an acceptance file; make one of an engine's output with "
        f"`python -m simulator.imports read {shlex.quote(str(path))} --out acceptance.json`"
    )
    try:
        content = read_json(path)
    except FileRefused as error:
        raise FileRefused(f"{error}; {way_out}") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise FileRefused(f"{path}: {way_out}")
    try:
        return record(AcceptanceFile, content)
    except RecordError as error:
        raise FileRefused(f"{path}: {error}") from error


def acceptance_tokens(
    path: Path,
    settings: Settings,
    *,
    open_lookahead: bool,
    hit_curve: tuple[float, float] | None,
    requests: int,
    length: int,
    prompt_length: int,
    make: Callable[..., TokenModel] = histogram,
) -> tuple[TokenModel, str]:
    """The histogram token model of an acceptance file, and its provenance with everything that was assumed.

    Args:
        path: Of the file.
        settings: What is to run; a speculation cache needs a hit curve, which no engine measures.
        open_lookahead: Whether any lookahead may run.
        hit_curve: (exponent r, scale c) of an assumed hit probability 1 - c F^-r; None: the file's, if any.
        requests: How many.
        length: Tokens of each.
        prompt_length: Tokens of its prompt.
        make: `histogram`, or what answers in its place.

    Raises:
        FileRefused: The file is none.
        SettingError: The policy needs what the file does not say, or has no use for what is given.
    """
    acceptance = load_acceptance(path)
    policy, cached = settings.policy, "fanout" in find_policy(settings.policy).knobs
    if cached and hit_curve is None and acceptance.hit_curve is None:
        raise SettingError(
            f"policy {policy!r} needs the hit curve of a speculation cache, which {acceptance.source.file} "
            f"({acceptance.source.engine}) does not say; assume one with --hit-curve R,C, or record a "
            "trace with `calibrate`"
        )
    if hit_curve is not None and not cached:
        raise SettingError(f"--hit-curve changes nothing: policy {policy!r} has no speculation cache")
    assumed = list(acceptance.assumed)
    curve: tuple[float, ...] = (0.0,)
    known = len(acceptance.acceptance_at_position)
    if (MAX_LOOKAHEAD if open_lookahead else settings.config.longest_run) > known:
        assumed.append(f"positions past {known} like that one")
    if hit_curve is not None:
        assumed.append(f"hit curve 1 - {hit_curve[1]:g} F^-{hit_curve[0]:g}")
    elif acceptance.hit_curve is not None:  # of trees, too: what a node's further children are worth
        hit_curve = acceptance.hit_curve
    if hit_curve is not None:
        check_power_law(*hit_curve)
        curve = power_law_curve(*hit_curve)
    model = make(
        acceptance.acceptance_at_position,
        rejected=[curve],
        free=curve,
        requests=requests,
        length=length,
        prompt_length=prompt_length,
        seed=settings.seed,
    )
    words = acceptance.words
    return model, f"{words}; assumed: {'; '.join(assumed)}" if assumed else words
