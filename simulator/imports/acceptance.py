"""The acceptance file: what an import knows, for `simulate --acceptance FILE` (docs/how-to/import.md)."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hardware_profiles.jsonfile import FileRefused, parse_json, read_json, to_json, write_json
from policies.registry import SettingError, find_policy
from simulator.imports.derive import iid_acceptance, joint_of
from simulator.imports.measured import Imported, ImportRefused
from simulator.tokens import TokenModel, histogram
from simulator.tokens.histogram import power_law_curve

KIND = "spectwin-acceptance"
Share = Annotated[float, Field(ge=0.0, le=1.0)]
CLOSE = 1e-6


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Provenance(_Part):
    """Where the numbers come from.

    Attributes:
        file: Name of the file that was read, without its folder.
        format: What it was read as.
        engine: That measured.
        version: Of the engine; None if not said.
        label: Which measurement of the file.
        imported_at: Time of the import, ISO 8601, UTC.
    """

    file: str
    format: str
    engine: str
    version: str | None = None
    label: str = ""
    imported_at: datetime


class AcceptanceFile(_Part):
    """An acceptance file.

    Attributes:
        kind: Always `spectwin-acceptance`.
        schema_version: Of this layout.
        source: Provenance.
        lookahead: K of the measurement.
        acceptance_at_position: [K] conditional acceptance.
        joint_acceptance_at_position: [K] its running product, the engines' per-position metric.
        tokens_per_round: As measured, bonus token counted; None if not said.
        rounds: How many rounds it rests on; None if not said.
        histogram: [K + 1] rounds by accepted tokens; None if not said.
        speeds: Times and throughputs, for people; the simulation takes its times from a hardware profile.
        assumed: What was assumed on top of the source.
        missing: What the source does not say.
        notes: Biases and contradictions of the source.
    """

    kind: Literal["spectwin-acceptance"] = "spectwin-acceptance"
    schema_version: Literal[1] = 1
    source: Provenance
    lookahead: int = Field(ge=1)
    acceptance_at_position: tuple[Share, ...]
    joint_acceptance_at_position: tuple[Share, ...]
    tokens_per_round: float | None = Field(default=None, ge=1.0)
    rounds: int | None = Field(default=None, ge=1)
    histogram: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    speeds: dict[str, Any] = Field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> AcceptanceFile:
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
        return self

    @property
    def words(self) -> str:
        """One line on where the numbers come from."""
        by = f"{self.source.engine} {self.source.version or ''}".strip()
        which = f" [{self.source.label}]" if self.source.label else ""
        over = f", {self.rounds} rounds" if self.rounds else ""
        depth = len(self.acceptance_at_position)
        return f"acceptance at {depth} positions measured by {by} ({self.source.file}{which}{over})"


def acceptance_of(
    measured: Imported, file: str, *, assume_iid: bool = False, lookahead: int | None = None
) -> AcceptanceFile:
    """The acceptance file of a measurement.

    Args:
        measured: What was imported.
        file: Name of the file that it comes from.
        assume_iid: Whether a mean may stand for every position, where there is only a mean.
        lookahead: K, where the source does not state it.

    Raises:
        ImportRefused: What is needed is missing, or `lookahead` contradicts the source.
    """
    if lookahead is not None and measured.lookahead not in (None, lookahead):
        raise ImportRefused(
            f"--lookahead {lookahead} contradicts the source, which says {measured.lookahead}"
        )
    conditional, assumed = measured.acceptance_at_position, list[str]()
    if conditional is None:
        conditional, why = _from_mean(measured, assume_iid, lookahead)
        assumed.append(why)
    elif measured.lookahead is None:
        assumed.append(
            f"lookahead {len(conditional)}, the deepest position seen: the source does not state it"
        )
    source = Provenance(
        file=Path(file).name,
        format=measured.source,
        engine=measured.engine,
        version=measured.version,
        label=measured.label,
        imported_at=datetime.now(UTC).replace(microsecond=0),
    )
    return AcceptanceFile(
        source=source,
        lookahead=measured.lookahead or lookahead or len(conditional),
        acceptance_at_position=conditional,
        joint_acceptance_at_position=joint_of(conditional),
        tokens_per_round=measured.tokens_per_round,
        rounds=measured.rounds,
        histogram=measured.histogram,
        speeds=parse_json(to_json(measured.speeds.stated())),  # tuples as the lists that will be read
        assumed=tuple(assumed),
        missing=measured.missing,
        notes=measured.notes,
    )


def _from_mean(measured: Imported, assume_iid: bool, lookahead: int | None) -> tuple[tuple[float, ...], str]:
    length = measured.tokens_per_round or measured.tokens_per_target_forward
    if length is None:
        raise ImportRefused(
            "nothing to simulate from: neither acceptance per position nor tokens per round is stated "
            f"(missing: {', '.join(measured.missing)})"
        )
    if not assume_iid:
        raise ImportRefused(
            f"the source states a mean ({length:.4g} tokens per round) but no acceptance per position; "
            "--assume-iid takes it to be the same at each position"
        )
    depth = measured.lookahead or lookahead
    if depth is None:
        raise ImportRefused(
            "the source does not state the lookahead that its mean belongs to: give --lookahead"
        )
    level = iid_acceptance(length, depth)
    per = "round" if measured.tokens_per_round else "target forward"
    why = f"acceptance {level:.4f} at each of {depth} positions, from {length:.4g} tokens per {per} alone"
    return (level,) * depth, why


def write_acceptance(path: Path, acceptance: AcceptanceFile) -> None:
    """Write the file, whole or not at all."""
    write_json(path, acceptance.model_dump(mode="json"))


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
        raise ImportRefused(f"{path}: {way_out}")
    try:
        return AcceptanceFile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ImportRefused(f"{path}: {where + ': ' if where else ''}{first['msg']}") from error


def token_model(
    acceptance: AcceptanceFile,
    policy: str,
    *,
    hit_curve: tuple[float, float] | None,
    requests: int,
    length: int,
    prompt_length: int,
    seed: int,
) -> TokenModel:
    """The histogram token model of an acceptance file, for a policy.

    Args:
        acceptance: The file.
        policy: That will run; one with a speculation cache needs a hit curve, which no engine measures.
        hit_curve: (exponent r, scale c) of an assumed hit probability 1 - c F^-r; None for none.
        requests: Number of requests.
        length: Tokens emitted by each.
        prompt_length: Prompt tokens of each.
        seed: Keys the luck.

    Raises:
        SettingError: The policy needs what is missing, or has no use for what is given.
    """
    cached = "fanout" in find_policy(policy).knobs
    if cached and hit_curve is None:
        raise SettingError(
            f"policy {policy!r} needs the hit curve of a speculation cache, which {acceptance.source.file} "
            f"({acceptance.source.engine}) does not say; assume one with --hit-curve R,C, or record a "
            "trace with `calibrate`"
        )
    if hit_curve is not None and not cached:
        raise SettingError(f"--hit-curve changes nothing: policy {policy!r} has no speculation cache")
    curve = (0.0,) if hit_curve is None else power_law_curve(*_checked(hit_curve))
    return histogram(
        acceptance.acceptance_at_position,
        rejected=[curve],
        free=curve,
        requests=requests,
        length=length,
        prompt_length=prompt_length,
        seed=seed,
    )


def _checked(hit_curve: tuple[float, float]) -> tuple[float, float]:
    exponent, scale = hit_curve
    if exponent <= 0.0 or not 0.0 <= scale <= 1.0:
        raise SettingError(
            f"the hit curve needs an exponent above 0 and a scale in 0..1, got {exponent:g}, {scale:g}"
        )
    return hit_curve
