"""The policies by name, with what `simulate --list-policies` says of them and how they are configured."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from policies.ar import autoregressive
from policies.ngram import LONGEST
from policies.pearl import pearl
from policies.pld import prompt_lookup
from policies.protocols import Steps, World
from policies.rows import Rows
from policies.sampling import DRAFT_MODES, DraftMode, Sampling
from policies.sd import speculative
from policies.ssd import (
    BACKUPS,
    CACHE_SETS,
    FIRSTS,
    STALLS,
    TREES,
    Backup,
    CacheSet,
    First,
    SaguaroKnobs,
    Stall,
    Tree,
    saguaro,
)

AnyBackup: TypeAlias = Backup | Literal["auto"]


class SettingError(ValueError):
    """A policy was given a setting that it cannot run with; the message says the way out."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A policy and its knobs; a knob that the policy does not have is left None.

    Attributes:
        policy: Name in the registry.
        lookahead: K, at least 1.
        fanout: F_0 ... F_K.
        fanout_backup: The same in rounds after a backup speculation; None: as `fanout`.
        backup: What happens on a cache miss; `auto` has to be resolved before a run.
        stall: Who waits for a redraft.
        first: Where a request's first speculation comes from.
        cache_set: Whether the cached outcomes leave out the rejected token.
        tree: Whether a pre-speculation that no row hits is carried through.
        draft_devices: Devices that share the pre-speculation.
        longest_suffix: Longest ending of the text that prompt lookup searches for, in tokens.
        temperature: Of both models; 0 is greedy.
        top_p: Mass of both models' laws that is kept.
        draft_sampling: How the draft chooses its tokens at a temperature above 0.
        scale: Saguaro's C.
        seed: Seed of the run.
    """

    policy: str
    lookahead: int | None = None
    fanout: tuple[int, ...] | None = None
    fanout_backup: tuple[int, ...] | None = None
    backup: AnyBackup | None = None
    stall: Stall | None = None
    first: First | None = None
    cache_set: CacheSet | None = None
    tree: Tree | None = None
    draft_devices: int | None = None
    longest_suffix: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    draft_sampling: DraftMode | None = None
    scale: float | None = None
    seed: int = 0

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            draft=self.draft_sampling or "sampled",
            scale=1.0 if self.scale is None else self.scale,
            seed=self.seed,
        )

    @property
    def reads_text(self) -> bool:
        """Whether the policy looks at the tokens themselves, so that a world without ids cannot run it."""
        return self.policy == "pld" or self.backup == "ngram"

    @property
    def label(self) -> str:
        """Short name for tables, e.g. `saguaro K=4 F=3 primary`; only what differs from the default."""
        parts = [self.policy]
        if self.lookahead is not None:
            parts.append(f"K={self.lookahead}")
        if self.fanout is not None:
            parts.append(f"F={_short(self.fanout)}")
        if self.fanout_backup is not None and self.fanout_backup != self.fanout:
            parts.append(f"Fb={_short(self.fanout_backup)}")
        if self.backup is not None:
            parts.append(self.backup)
        parts += [f"{k}={v}" for k, v in self.unusual.items()]
        if self.temperature > 0.0:
            parts.append(f"T={self.temperature:g}")
            if self.top_p < 1.0:
                parts.append(f"top-p={self.top_p:g}")
        return " ".join(parts)

    @property
    def unusual(self) -> dict[str, Any]:
        """Options that differ from their default, by name."""
        given = {name: getattr(self, name) for name in _DEFAULTS}
        return {name: v for name, v in given.items() if v is not None and v != _DEFAULTS[name]}

    def with_sampling(self, temperature: float, top_p: float = 1.0) -> Settings:
        """These settings at another target sampling."""
        return replace(self, temperature=temperature, top_p=top_p)


_DEFAULTS: dict[str, Any] = {
    "stall": "batch",
    "first": "primary",
    "cache_set": "others",
    "tree": "whole",
    "draft_devices": 1,
    "longest_suffix": LONGEST,
    "draft_sampling": "sampled",
    "scale": 1.0,
}
"""Defaults of the options that are rarely changed."""


def _short(fanout: tuple[int, ...]) -> str:
    return str(fanout[0]) if len(set(fanout)) == 1 else ",".join(map(str, fanout))


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy's place in the family (design.md, section 1).

    Attributes:
        name: As on the command line.
        paper: Where it is described.
        predicts: Who predicts the outcome of a verification.
        drafts: How a continuation is drafted.
        on_miss: What happens when the prediction fails.
        verifies: Shape of what is verified.
        replay: Which row of design.md's replay table it is in.
        knobs: Settings it takes.
        run: Starts it: (world, rows, settings) to a generator.
        needs_draft: Whether it uses the draft device.
    """

    name: str
    paper: str
    predicts: str
    drafts: str
    on_miss: str
    verifies: str
    replay: str
    knobs: tuple[str, ...]
    run: Callable[[World, Rows, Settings], Steps]
    needs_draft: bool = True


def _lookahead(settings: Settings) -> int:
    assert settings.lookahead is not None, "checked by `configure`"
    return settings.lookahead


def _run_ar(world: World, rows: Rows, settings: Settings) -> Steps:
    return autoregressive(world, rows, sampling=settings.sampling)


def _run_sd(world: World, rows: Rows, settings: Settings) -> Steps:
    return speculative(world, rows, lookahead=_lookahead(settings), sampling=settings.sampling)


def _run_pld(world: World, rows: Rows, settings: Settings) -> Steps:
    longest = settings.longest_suffix or LONGEST
    return prompt_lookup(
        world, rows, lookahead=_lookahead(settings), longest=longest, sampling=settings.sampling
    )


def _run_pearl(world: World, rows: Rows, settings: Settings) -> Steps:
    return pearl(world, rows, lookahead=_lookahead(settings), sampling=settings.sampling)


def _run_saguaro(world: World, rows: Rows, settings: Settings) -> Steps:
    return saguaro(world, rows, saguaro_knobs(settings))


def saguaro_knobs(settings: Settings) -> SaguaroKnobs:
    """The knobs of a configured Saguaro.

    Raises:
        SettingError: The backup is still `auto`: which one is best depends on a profile.
    """
    assert settings.fanout is not None and settings.backup is not None, "checked by `configure`"
    if settings.backup == "auto":
        raise SettingError("backup 'auto' has to be resolved against a profile before a run")
    return SaguaroKnobs(
        lookahead=_lookahead(settings),
        fanout=settings.fanout,
        fanout_backup=settings.fanout_backup,
        backup=settings.backup,
        stall=settings.stall or "batch",
        first=settings.first or "primary",
        cache_set=settings.cache_set or "others",
        tree=settings.tree or "whole",
        draft_devices=settings.draft_devices or 1,
        sampling=settings.sampling,
    )


_EXACT = partial(PolicyInfo, replay="exact on the on-path trace")

POLICIES: dict[str, PolicyInfo] = {
    info.name: info
    for info in (
        _EXACT(
            name="ar",
            paper="baseline",
            predicts="nobody",
            drafts="-",
            on_miss="-",
            verifies="one token",
            knobs=(),
            run=_run_ar,
            needs_draft=False,
        ),
        _EXACT(
            name="sd",
            paper="Leviathan et al. 2023; SSD sec. 2.1",
            predicts="nobody",
            drafts="autoregressive",
            on_miss="-",
            verifies="chain",
            knobs=("lookahead", "draft_sampling"),
            run=_run_sd,
        ),
        _EXACT(
            name="pld",
            paper="Saxena 2023 (prompt lookup); baseline of DOUBLE, DuoDecoding, RASD",
            predicts="nobody",
            drafts="retrieval from the text itself",
            on_miss="-",
            verifies="chain",
            knobs=("lookahead", "longest_suffix"),
            run=_run_pld,
            needs_draft=False,
        ),
        _EXACT(
            name="pearl",
            paper="Liu et al. 2025 (PEARL)",
            predicts="all accepted",
            drafts="autoregressive, past the block",
            on_miss="plain decode",
            verifies="chain",
            knobs=("lookahead", "draft_sampling"),
            run=_run_pearl,
        ),
        _EXACT(
            name="saguaro",
            paper="SSD / Saguaro",
            predicts="draft's top F_k after k accepted",
            drafts="autoregressive, all branches at once",
            on_miss="redraft missing or all rows, n-gram, random tokens, plain decode",
            verifies="chain",
            knobs=(
                "lookahead",
                "fanout",
                "fanout_backup",
                "backup",
                "stall",
                "first",
                "cache_set",
                "tree",
                "draft_devices",
                "draft_sampling",
                "scale",
            ),
            run=_run_saguaro,
        ),
    )
}
"""Every policy, in the order in which they build on each other."""

ALIASES = {
    "ssd": "saguaro",
    "prompt-lookup": "pld",
    "ngram": "pld",
    "autoregressive": "ar",
    "vanilla": "sd",
    "speculative": "sd",
}
DEFAULT_LOOKAHEAD = 4
DEFAULT_FANOUT = 3
MAX_LOOKAHEAD = 64


def find_policy(name: str) -> PolicyInfo:
    """The policy called `name` (or an alias of it).

    Raises:
        SettingError: No such policy; the message suggests the nearest name.
    """
    key = ALIASES.get(name.lower(), name.lower())
    if key in POLICIES:
        return POLICIES[key]
    near = difflib.get_close_matches(key, [*POLICIES, *ALIASES], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise SettingError(f"unknown policy {name!r}.{hint} Policies: {', '.join(POLICIES)}")


def configure(
    policy: str,
    *,
    lookahead: int | None = None,
    fanout: tuple[int, ...] | None = None,
    fanout_backup: tuple[int, ...] | None = None,
    backup: str | None = None,
    stall: str | None = None,
    first: str | None = None,
    cache_set: str | None = None,
    tree: str | None = None,
    draft_devices: int | None = None,
    longest_suffix: int | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    draft_sampling: str | None = None,
    scale: float | None = None,
    seed: int = 0,
) -> Settings:
    """Checked settings of a policy, defaults filled in.

    A single `fanout` number means the same at every position.  See `Settings` for the rest.

    Raises:
        SettingError: Unknown policy; a knob the policy does not have, or one that changes nothing at
            temperature 0 (none is silently ignored); a value out of its domain.
    """
    info = find_policy(policy)
    given: dict[str, Any] = {
        "lookahead": lookahead,
        "fanout": fanout,
        "fanout_backup": fanout_backup,
        "backup": backup,
        "stall": stall,
        "first": first,
        "cache_set": cache_set,
        "tree": tree,
        "draft_devices": draft_devices,
        "longest_suffix": longest_suffix,
        "draft_sampling": draft_sampling,
        "scale": scale,
    }
    _refuse_strangers(info, given)
    depth = _depth(lookahead) if "lookahead" in info.knobs else None
    chosen: dict[str, Any] = {}
    if "fanout" in info.knobs and depth is not None:
        chosen["fanout"] = _fanout(fanout, depth)
        chosen["fanout_backup"] = None if fanout_backup is None else _fanout(fanout_backup, depth)
        for knob, names in _CHOICES.items():
            chosen[knob] = _one_of(knob, given[knob], names)
        chosen["draft_devices"] = _count("draft_devices", draft_devices)
    if "longest_suffix" in info.knobs:
        chosen["longest_suffix"] = (
            LONGEST if longest_suffix is None else _count("longest_suffix", longest_suffix)
        )
    sampled = _sampling(info, temperature, top_p, draft_sampling, scale)
    settings = Settings(info.name, depth, seed=seed, **chosen, **sampled)
    _refuse_contradictions(settings)
    return settings


_CHOICES: dict[str, tuple[str, ...]] = {
    "backup": (*BACKUPS, "auto"),
    "stall": STALLS,
    "first": FIRSTS,
    "cache_set": CACHE_SETS,
    "tree": TREES,
}
"""Knobs that take a name; the first is the default."""


def _refuse_strangers(info: PolicyInfo, given: dict[str, Any]) -> None:
    for knob, value in given.items():
        if value is not None and knob not in info.knobs:
            having = [p.name for p in POLICIES.values() if knob in p.knobs]
            raise SettingError(
                f"policy {info.name!r} has no {knob} (it would change nothing); "
                f"policies that have: {', '.join(having)}"
            )


def _depth(lookahead: int | None) -> int:
    depth = DEFAULT_LOOKAHEAD if lookahead is None else lookahead
    if not 1 <= depth <= MAX_LOOKAHEAD:
        raise SettingError(
            f"lookahead must be between 1 and {MAX_LOOKAHEAD}, got {depth}"
            + ("; use policy 'ar' for plain decoding" if depth == 0 else "")
        )
    return depth


def _one_of(knob: str, name: str | None, names: tuple[str, ...]) -> str:
    if name is None:
        return names[0]
    if name not in names:
        plural = knob.replace("_", " ")
        raise SettingError(f"unknown {plural} {name!r}; choices: {', '.join(names)}")
    return name


def _count(knob: str, value: int | None) -> int:
    if value is not None and value < 1:
        raise SettingError(f"{knob} must be at least 1, got {value}")
    return value or 1


def _sampling(
    info: PolicyInfo, temperature: float, top_p: float, draft_sampling: str | None, scale: float | None
) -> dict[str, Any]:
    """The sampling fields of `Settings`, checked."""
    for name, value in (("draft_sampling", draft_sampling), ("scale", scale)):
        if value is not None and temperature == 0.0:
            raise SettingError(f"{name} changes nothing at temperature 0; give a temperature, e.g. 1")
    if top_p != 1.0 and temperature == 0.0:
        raise SettingError("top_p changes nothing at temperature 0; give a temperature, e.g. 1")
    mode = None
    if "draft_sampling" in info.knobs and temperature > 0.0:
        mode = _one_of("draft_sampling", draft_sampling, DRAFT_MODES)
        if mode == "greedy" and scale is not None and scale != 1.0:
            raise SettingError("scale changes nothing with a greedy draft; use draft_sampling 'sampled'")
    factor = scale
    if "scale" in info.knobs and temperature > 0.0 and scale is None:
        factor = 1.0
    sampling = {"temperature": temperature, "top_p": top_p, "draft_sampling": mode, "scale": factor}
    try:
        Sampling(temperature, top_p, scale=1.0 if factor is None else factor)
    except ValueError as error:
        raise SettingError(str(error)) from error
    return sampling


def _refuse_contradictions(settings: Settings) -> None:
    if settings.stall == "rows" and settings.backup not in {"primary", "auto"}:
        raise SettingError(
            f"stall 'rows' changes nothing with backup {settings.backup!r}, which makes no row wait"
            if settings.backup != "primary-all"
            else "stall 'rows' contradicts backup 'primary-all', which redrafts every row"
        )


def _fanout(given: tuple[int, ...] | None, lookahead: int) -> tuple[int, ...]:
    fanout = given or (DEFAULT_FANOUT,)
    if len(fanout) == 1:
        fanout = fanout * (lookahead + 1)
    if len(fanout) != lookahead + 1:
        raise SettingError(
            f"fanout needs 1 number or lookahead + 1 = {lookahead + 1} of them (F_0 ... F_K), "
            f"got {len(fanout)}"
        )
    if min(fanout) < 0 or sum(fanout) == 0:
        raise SettingError(f"fanout must be non-negative and not all zero, got {','.join(map(str, fanout))}")
    return fanout


def start(world: World, rows: Rows, settings: Settings) -> Steps:
    """The generator of a configured policy."""
    return find_policy(settings.policy).run(world, rows, settings)
