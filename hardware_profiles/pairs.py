"""A pair of models on GPUs that nobody calibrated: found among the shipped profiles, in the cache, or
composed now.

`h100` with `--tp 4`, or `h100x4`, are four of them.  A composed profile is kept in the user's data folder
under a name that has the digest of everything it was made of.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Literal

from hardware_profiles.composed import CAPTURE_LIMIT, HOST_GAP_S, TICKS, Composer, Placement, composed_profile
from hardware_profiles.kernels import PACKAGE, SPREAD, SYSTEMS, VERSION, Tables, TablesError, find_tables
from hardware_profiles.networks import Network, find_network
from hardware_profiles.predicted import replaced
from hardware_profiles.profile import Profile, ProfileError, load_profile, save_profile
from hardware_profiles.store import SHIPPED, find_profile, shipped_profiles, user_directory
from hardware_profiles.surface import Axis

GPUS = (*SYSTEMS, "l40s", "gb200", "gb300", "b60")
"""Short names of the GPUs with kernel tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two models and where they run.

    Attributes:
        hw: GPU, with or without a number: `h100`, `h100x4`, `h100_sxm`.
        target: A name, a `config.json` or a folder with one (`networks.find_network`).
        draft: As `target`.
        tp: GPUs of the target; None: as `hw` says, else 1.
        draft_tp: GPUs of the draft.
        placement: `own`: the draft has GPUs for itself; `shared`: both take turns on the target's.
        engine: Whose kernels.
        eager: Launched one by one.
        host_gap_s: Between two forwards of the target.
        capture_limit: Tokens of the largest captured graph.
        expert_correlation: Of the experts of one row's tokens (`Composer.correlation`).
        expert_distribution: How tokens spread over experts (`Composer.distribution`).
        tables: Unpacked wheel; None: the installed package.
    """

    hw: str
    target: str
    draft: str
    tp: int | None = None
    draft_tp: int = 1
    placement: Placement = "own"
    engine: str = "vllm"
    precision: str | None = None
    eager: bool = False
    host_gap_s: float = HOST_GAP_S
    capture_limit: int = CAPTURE_LIMIT
    expert_correlation: float = 0.0
    expert_distribution: str = SPREAD
    tables: Path | None = None

    @property
    def gpu(self) -> str:
        """The GPU without its number."""
        return self._parts[0]

    @property
    def devices(self) -> int:
        """GPUs of the target.

        Raises:
            TablesError: `hw` and `tp` differ.
        """
        said = self._parts[1]
        if said is not None and self.tp not in (None, said):
            raise TablesError(f"{self.hw} are {said} GPUs, and --tp says {self.tp}: give one of them")
        return said or self.tp or 1

    @property
    def _parts(self) -> tuple[str, int | None]:
        """GPU and number; `rtx4090` has none."""
        parts = re.fullmatch(r"(.+)x(\d{1,3})", self.hw.lower())
        return (parts[1], int(parts[2])) if parts else (self.hw.lower(), None)

    def name(self, target: Network, draft: Network) -> str:
        """Of the profile; what is usual is not in it."""
        beside = f"{draft.shape.name}" + (f"-tp{self.draft_tp}" if self.draft_tp > 1 else "")
        unusual = [self.engine] if self.engine != "vllm" else []
        unusual += [target.dtype] if target.dtype != "bfloat16" else []
        unusual += [
            word for word, there in (("eager", self.eager), ("shared", self.placement == "shared")) if there
        ]
        text = "-".join([f"{self.gpu}x{self.devices}", f"{target.shape.name}+{beside}", *unusual])
        return "".join(c if c.isalnum() or c in "._+-" else "-" for c in text)[:100]


def is_gpu(hw: str) -> bool:
    """Whether a name is that of a GPU with kernel tables, with or without a number."""
    return Pair(hw=hw, target="", draft="").gpu in {*GPUS, *SYSTEMS.values()}


def pair_profile(pair: Pair) -> tuple[Profile, str]:
    """The profile of a pair, and where it comes from: `shipped:NAME`, `cached` or `composed now`.

    Raises:
        ValueError: The models or tables cannot be found, or the tables are not of them; the message says what
            is shipped where there are no tables.
    """
    target = find_network(pair.target, tables=pair.tables, precision=pair.precision)
    draft = find_network(pair.draft, tables=pair.tables)
    assumed = pair.expert_correlation or pair.expert_distribution != SPREAD
    if assumed and target.experts is None and draft.experts is None:
        raise TablesError(
            "--expert-correlation and --expert-distribution change nothing: neither network has experts"
        )
    name = pair.name(target, draft)
    usual = (pair.host_gap_s, pair.capture_limit) == (HOST_GAP_S, CAPTURE_LIMIT) and not assumed
    if pair.tables is None and usual:
        with suppress(ProfileError):
            own = SHIPPED + replace(pair, placement="own").name(target, draft)
            return replaced(load_profile(find_profile(own)), PLACEMENTS[pair.placement]), own
    try:
        systems = find_tables(pair.tables)
    except TablesError as error:
        there = [name for name in shipped_profiles() if name.startswith(pair.gpu + "x")]
        raise TablesError(f"{error}; shipped for {pair.gpu}: {', '.join(there) or 'none'}") from None
    made_of = repr((astuple(pair), target, draft, str(systems), PACKAGE, VERSION, RECIPE))
    kept = user_directory() / "composed" / f"{name}-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}.json"
    if kept.is_file():
        with suppress(ProfileError):
            return load_profile(kept), f"cached: {kept}"
    profile = compose(pair, systems, TICKS)
    with suppress(OSError):  # a folder that cannot be written only costs the time again
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_profile(profile, kept)
    return profile, "composed now"


def compose(pair: Pair, systems: Path, ticks: Mapping[str, Mapping[Axis, tuple[int, ...]]]) -> Profile:
    """The profile of a pair, from tables, with its forwards at these coordinates.

    Raises:
        ValueError: As `pair_profile`.
    """
    target = find_network(pair.target, tables=systems, precision=pair.precision)
    draft = find_network(pair.draft, tables=systems)
    tables = Tables(systems, pair.gpu, pair.engine)
    composers = [
        Composer(
            tables,
            network,
            spread,
            eager=pair.eager,
            capture_limit=pair.capture_limit,
            correlation=pair.expert_correlation,
            distribution=pair.expert_distribution,
        )
        for network, spread in ((target, pair.devices), (draft, pair.draft_tp))
    ]
    return composed_profile(
        *composers,
        name=pair.name(target, draft),
        placement=pair.placement,
        host_gap_s=pair.host_gap_s,
        ticks=ticks,
    )


PLACEMENTS: Mapping[Placement, Literal["split", "shared"]] = {"own": "split", "shared": "shared"}
"""As profiles call them."""
USUAL = tuple(
    Pair(hw=hw, target=target, draft=draft)
    for hw, target, draft in (
        ("a100x1", "llama-3.1-8b", "llama-3.2-1b"),
        ("a100x2", "llama-3.3-70b", "llama-3.1-8b"),
        ("a100x8", "llama-3.1-70b", "llama-3.2-1b"),
        ("h100x1", "llama-3.1-8b", "llama-3.2-1b"),
        ("h100x1", "qwen3-8b", "eagle3:qwen3-8b"),
        ("h100x2", "qwen3-30b-a3b", "eagle3:qwen3-30b-a3b"),
        ("h100x2", "qwen3-32b", "qwen3-0.6b"),
        ("h100x4", "llama-3.1-70b", "llama-3.2-1b"),
        ("h200x1", "llama-3.1-8b", "eagle3:llama-3.1-8b"),
        ("h200x2", "llama-3.1-70b", "llama-3.2-1b"),
        ("b200x1", "llama-3.1-70b", "llama-3.2-1b"),
        ("l40sx1", "llama-3.1-8b", "llama-3.2-1b"),
        ("rtxpro6000x2", "qwen3-32b", "qwen3-0.6b"),
    )
)
"""Pairs that are shipped, so that the main install answers without tables."""
RECIPE = 4
"""Of how forwards are put together; another one makes what is kept useless."""
