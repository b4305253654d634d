"""SSD / Saguaro (`ssd` in the docs): while the target verifies, draft for the likely outcomes.

Rounds, caches and misses follow Algorithm 1 and section 4 of the paper.  Where the paper, its proofs and
its code read differently, each reading has a name (design.md, section 7):

| option | here by default | the other reading |
|---|---|---|
| `backup` | `primary`: the missing rows are redrafted (Corollary 16) | `primary-all`: the code redrafts every row, though it counts the hits |
| `first` | `primary`: a request's first speculation is drafted before its first round (Algorithm 1) | `backup`: it counts as a miss (the code) |
| `cache_set` | `others`: the rejected token is left out (A.3.1) | `top`: the draft's top F_k as it stands (proof of Theorem 15) |
| `stall` | `batch`: every row waits while missing rows are redrafted (Corollary 16) | `rows`: the missing rows alone sit out |
| `tree` | `whole`: hit or miss, the target waits for the tree pass (the code) | `abort`: a pass that no row hits is stopped at its next step (Theorem 7 as printed) |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from policies.config import (
    DEFAULT_LOOKAHEAD,
    DraftSampling,
    Knob,
    LawInputs,
    LawValue,
    LookaheadConfig,
    PolicyInfo,
    SettingError,
)
from policies.laws.ssd import (
    expected_tokens,
    hit_rate,
    hit_rate_primary,
    power_law_hit,
    ssd_speedup,
    ssd_speedup_printed,
)
from policies.operation import Draft, Prespeculate, Verify
from policies.pld import guess, guess_from_text
from policies.protocols import Cache, Event, Steps, Task, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling, random_tokens
from policies.values import NO_SLOTS, Slots, Source, Speculation, Verdict

Backup: TypeAlias = Literal["primary", "primary-all", "plain", "random", "ngram"]
AnyBackup: TypeAlias = Literal[Backup, "auto"]
DEFAULT_FANOUT = 3
FAST: tuple[Backup, ...] = ("plain", "random", "ngram")
"""Backups that cost the draft nothing."""
Stall: TypeAlias = Literal["batch", "rows"]
First: TypeAlias = Literal["primary", "backup"]
CacheSet: TypeAlias = Literal["others", "top"]
Tree: TypeAlias = Literal["whole", "abort"]


@dataclass(frozen=True, slots=True)
class SaguaroConfig(LookaheadConfig):
    """Knobs of `saguaro`.

    A missing row verifies next, by `backup`: `primary`, K tokens drafted by the draft model; `primary-all`,
    the same for all rows as soon as one missed; `plain`, nothing, so that its next round is a plain decode;
    `random`, K uniform tokens; `ngram`, what followed the same words earlier in the text (nothing if there is
    no such place); `auto` is for a profile to decide.  `fanout` has F_0 ... F_K, outcomes cached per number
    of accepted tokens (definition 10).
    """

    policy: ClassVar[str] = "saguaro"
    fanout: Annotated[tuple[int, ...], Knob("F, or F_0,...,F_K.", rare=False)] = (DEFAULT_FANOUT,)
    fanout_backup: Annotated[
        tuple[int, ...] | None, Knob("The same in rounds that verify a backup's tokens or none.", rare=False)
    ] = None
    backup: Annotated[AnyBackup, Knob("What a miss does.", rare=False)] = "primary"
    stall: Annotated[Stall, Knob("Who waits for a redraft.")] = "batch"
    first: Annotated[First, Knob("Where a first speculation comes from.")] = "primary"
    cache_set: Annotated[
        CacheSet, Knob("Cache the draft's top outcomes, or those other than the rejected token.")
    ] = "others"
    tree: Annotated[Tree, Knob("Carry a pre-speculation that no row hits through, or abort it.")] = "whole"
    draft_devices: Annotated[int, Knob("Devices that share the pre-speculation.", least=1)] = 1
    draft_sampling: DraftSampling = "sampled"
    scale: Annotated[
        float,
        Knob("Saguaro's C: cached tokens are drafted C times as often.", least=0.0, most=1.0, sampled=True),
    ] = 1.0

    def __post_init__(self) -> None:
        if len(self.fanout) != self.lookahead + 1:
            raise SettingError(
                f"{self.lookahead + 1} fan-outs go with a lookahead of {self.lookahead}, got "
                f"{len(self.fanout)}; `SaguaroConfig.of` writes a single one out"
            )

    @classmethod
    def of(cls, **values: Any) -> Self:
        """The configuration with these knobs; a single fan-out means the same at every position."""
        positions = values.get("lookahead", DEFAULT_LOOKAHEAD) + 1
        spread = {
            n: _spread(values[n], positions) for n in ("fanout", "fanout_backup") if values.get(n) is not None
        }
        return cls(**{"fanout": (DEFAULT_FANOUT,) * positions, **values, **spread})

    def deeper(self, lookahead: int) -> Self:
        """The same with another K; fan-outs that are the same at every position stay so."""
        spread = {
            name: fanout[:1] * (lookahead + 1)
            for name in ("fanout", "fanout_backup")
            if (fanout := getattr(self, name)) is not None and len(set(fanout)) == 1
        }
        return replace(self, lookahead=lookahead, **spread)

    def check(self, sampling: Sampling) -> None:
        """Refuse knobs that change nothing with the others."""
        if sampling.draft == "greedy" and sampling.scale != 1.0:
            raise SettingError("scale changes nothing with a greedy draft; use draft_sampling 'sampled'")
        if self.stall == "rows" and self.backup not in {"primary", "auto"}:
            raise SettingError(
                f"stall 'rows' changes nothing with backup {self.backup!r}, which makes no row wait"
                if self.backup != "primary-all"
                else "stall 'rows' contradicts backup 'primary-all', which redrafts every row"
            )

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """Theorem 7, or Corollary 16 in batches, with the hit rates of equation 1."""
        statement = "ssd.thm7 + ssd.eq1" if batch == 1 else "ssd.cor16 + ssd.eq1"
        if inputs.exponent is None:
            return LawValue(statement, reason="no power law could be fitted to the hit curve")
        if self.stall == "rows" and batch > 1:
            reason = "the papers give no law for a batch that goes on without the misses"
            return LawValue(statement, reason=reason)
        k, t_draft = self.lookahead, inputs.t_draft
        p_primary = hit_rate_primary(inputs.acceptance, self.fanout, inputs.exponent, inputs.scale)
        e_hit = expected_tokens(inputs.acceptance, k)
        if self.backup in {"primary", "primary-all"}:
            p_backup, e_miss, t_backup = p_primary, e_hit, k * t_draft
        else:  # a plain decode, or guesses that are taken never to be accepted: position 0 alone can hit
            first = (self.fanout_backup or self.fanout)[0]
            p_backup = float(power_law_hit([first], inputs.exponent, inputs.scale)[0])
            e_miss, t_backup = 1.0, 0.0
        try:
            hits = hit_rate(p_primary, p_backup)
        except ValueError as error:
            return LawValue(statement, reason=str(error))
        # As printed a miss waits for no tree, which is what aborting it does.
        law = ssd_speedup_printed if self.tree == "abort" and batch == 1 else ssd_speedup
        speedup = law(hits, e_hit, e_miss, k * t_draft, t_backup, batch=batch)
        return LawValue(statement, speedup, hits * e_hit + (1.0 - hits) * e_miss, hits)

    @property
    def reads_text(self) -> bool:
        """Whether a backup is looked up in the text."""
        return self.backup == "ngram"

    @property
    def cached_tokens(self) -> int:
        """K tokens of each outcome of a device's share."""
        outcomes = max(sum(self.fanout), sum(self.fanout_backup or ()))
        return -(-outcomes // self.draft_devices) * self.lookahead

    def shape(self, sampling: Sampling) -> tuple[int, ...] | None:
        """F_0 ... F_(K-1) that rescale drafted distributions; None where nothing is rescaled."""
        rescaled = sampling.draft_sampled and sampling.scale < 1.0
        return self.fanout[: self.lookahead] if rescaled else None


def _spread(given: tuple[int, ...] | int, positions: int) -> tuple[int, ...]:
    fanout = (given,) if isinstance(given, int) else given
    if len(fanout) == 1:
        fanout = fanout * positions
    if len(fanout) != positions:
        raise SettingError(
            f"fanout needs 1 number or lookahead + 1 = {positions} of them (F_0 ... F_K), got {len(fanout)}"
        )
    if min(fanout) < 0 or sum(fanout) == 0:
        raise SettingError(f"fanout must be non-negative and not all zero, got {','.join(map(str, fanout))}")
    return fanout


def saguaro(world: World, rows: Rows, config: SaguaroConfig, sampling: Sampling = GREEDY) -> Steps:
    """Verify and pre-speculate at the same time; on a miss fall back.

    Raises:
        SettingError: The backup is still `auto`: which one is best depends on a profile.
    """
    if config.backup == "auto":
        raise SettingError("backup 'auto' has to be resolved against a profile before a run")
    speculation = Speculation.empty(rows.width)
    redrafting: Task | None = None  # of the rows that sit this round out
    absent = NO_SLOTS
    waits_for_glue, keep = config.tree == "abort", config.cache_set == "top"
    knobs = config.lookahead, config.fanout, config.fanout_backup, sampling, config.shape(sampling), keep
    count = config.draft_devices
    shares = [(device.submit, (i, count)) for i, device in enumerate(world.drafts[:count])]
    while rows.active:
        fresh = yield from admit(world, rows)
        if fresh:
            backup: Backup = "primary" if config.first == "primary" else config.backup
            # Who sat there before may have been preempted.
            speculation = speculation.merge(Speculation.empty(rows.width), fresh)
            speculation = yield from fall_back(
                world, rows, speculation, fresh, config, sampling=sampling, backup=backup
            )
        view = rows.view(rows.alive - absent if absent else None)
        verify = world.target.submit(Verify(view, speculation, sampling))
        prepares = [
            submit(Prespeculate(view, speculation, *knobs, share, waits_for_glue)) for submit, share in shares
        ]
        verdict = yield verify
        if waits_for_glue:
            outcomes = yield from join([share.early for share in prepares])
            if not outcomes.lookup(verdict):
                for share in prepares:
                    share.stop()
        cache = (yield prepares[0]) if len(prepares) == 1 else (yield from join(prepares))
        hits = cache.lookup(verdict)
        rows.commit(view, speculation, verdict, hits=hits, now=world.now)
        speculation = cache.take(verdict, hits)
        misses = rows.alive - hits - absent
        if redrafting is not None:  # served before the pre-speculation, so it has fired
            speculation = speculation.merge((yield redrafting), absent)
            redrafting, absent = None, NO_SLOTS
        if misses:
            if config.backup == "primary" and config.stall == "rows" and rows.alive - misses:
                redrafting, absent = redraft(world, rows, misses, config, sampling), misses
            else:
                speculation = yield from fall_back(
                    world, rows, speculation, misses, config, sampling=sampling, backup=config.backup
                )


def join(parts: Sequence[Event]) -> Generator[Event, Any, Cache]:
    """Waits for the caches of all parts; returns them as one."""
    caches: list[Cache] = []
    for part in parts:
        caches.append((yield part))  # noqa: PERF401 - a comprehension cannot yield
    return caches[0] if len(caches) == 1 else JoinedCache(caches)


def fall_back(
    world: World,
    rows: Rows,
    speculation: Speculation,
    chosen: Slots,
    config: SaguaroConfig,
    *,
    sampling: Sampling,
    backup: Backup,
) -> Steps:
    """Returns `speculation` with the rows in `chosen` filled in by `backup`."""
    if backup == "plain":
        return speculation
    if backup in {"primary", "primary-all"}:
        redrafted = rows.alive if backup == "primary-all" else chosen
        drafted = yield redraft(world, rows, redrafted, config, sampling)
        return speculation.merge(drafted, redrafted)
    if backup == "ngram":
        guessed = guess_from_text(rows, chosen, config.lookahead)
    else:
        guessed = guess_at_random(world, rows, chosen, config.lookahead, sampling.seed)
    return speculation.merge(guessed, chosen)


def guess_at_random(world: World, rows: Rows, chosen: Slots, lookahead: int, seed: int) -> Speculation:
    """Uniform tokens, those of a position the same in both worlds; never accepted in one without ids."""
    if world.vocabulary == 0:
        slots = range(rows.width)
        return Speculation(
            tuple([lookahead if slot in chosen else 0 for slot in slots]),
            tuple([int(Source.RANDOM if slot in chosen else Source.NONE) for slot in slots]),
            has_guesses=True,
        )

    def propose(request: int, position: int) -> tuple[int, ...]:
        return random_tokens(seed, request, position, lookahead, world.vocabulary)

    return guess(rows, chosen, lookahead, Source.RANDOM, propose)


def redraft(world: World, rows: Rows, chosen: Slots, config: SaguaroConfig, sampling: Sampling) -> Task:
    """Submit a primary draft of the rows in `chosen`."""
    unseen = (1,) * rows.width
    return world.draft.submit(
        Draft(rows.view(chosen), config.lookahead, unseen, sampling, config.shape(sampling))
    )


class JoinedCache:
    """The union of caches that share no outcome (see `policies.protocols.Cache`).

    Args:
        parts: One cache per draft device, at least one.
    """

    def __init__(self, parts: Sequence[Cache]) -> None:
        self.parts = tuple(parts)

    def lookup(self, verdict: Verdict) -> Slots:
        """The rows whose outcome any part holds."""
        return NO_SLOTS.union(*[part.lookup(verdict) for part in self.parts])

    def take(self, verdict: Verdict, hits: Slots) -> Speculation:
        """The prepared speculation of the rows in `hits`, each from the part that holds it."""
        taken = Speculation.empty(len(verdict.accepted))
        for part in self.parts:
            held = hits & part.lookup(verdict)
            taken = taken.merge(part.take(verdict, held), held)
        return taken

    def opening(self) -> Speculation:
        """The opening of the first part."""
        return self.parts[0].opening()


INFO = PolicyInfo(
    config=SaguaroConfig,
    run=saguaro,
    paper="SSD / Saguaro",
    predicts="draft's top F_k after k accepted",
    drafts="autoregressive, all branches at once",
    on_miss="redraft missing or all rows, n-gram, random tokens, plain decode",
    verifies="chain",
    order=6,
    aliases=("ssd",),
    colour="#c44e52",
    variants=(
        *({"lookahead": 4, "fanout": (3,), "backup": b} for b in ("primary", "primary-all", "plain")),
        *({"lookahead": 3, "fanout": (2,), "backup": b, "first": "backup"} for b in ("random", "ngram")),
        {"lookahead": 4, "fanout": (2,), "stall": "rows"},
        {"lookahead": 3, "fanout": (3,), "cache_set": "top", "tree": "abort"},
        {"lookahead": 3, "fanout": (3,), "draft_devices": 2},
    ),
)
