"""What users say of a pair that nobody calibrated: its models and GPUs, and how much is accepted.

`simulate` and `recommend` share these options.  M accepted tokens between two rejections are an acceptance of
M / (1 + M) (`double.pearl_run_length`); a measured hit rate is a hit curve that does not depend on the
fan-out.  Acceptances after a hit and after a miss are mixed by the hit rate (`after_hits_and_misses`).
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import click
import numpy as np

from hardware_profiles.profile import Profile, ProfileError
from hardware_profiles.store import find_acceptance, shipped_acceptances
from policies.commandline import POSITIVE, Finite, about, option
from policies.registry import MAX_LOOKAHEAD, SettingError

FLAT = 1e-3
"""Exponent of a hit curve that does not depend on the fan-out: F^-r is 0.995 at 128."""


Acceptance: TypeAlias = float | Path | tuple[float, ...]
"""Of every drafted token; a file's (`simulator.tokens.acceptance`); or conditional, by position."""


class AcceptanceType(click.ParamType):  # type: ignore[type-arg]  # see `policies.commandline.Name`
    """`0.8` as a number, a file, or a shipped one's name as its path."""

    name = "A|FILE|NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | Path:
        """As every click type."""
        if isinstance(value, float | Path):
            return value
        try:
            found = float(value)
        except ValueError:
            with suppress(OSError):  # too long for the name of one
                if Path(value).is_file():
                    return Path(value)
            with suppress(ProfileError):
                return find_acceptance(value)
            names = ", ".join(shipped_acceptances())
            self.fail(f"{value[:80]!r} is neither a number nor a file, nor a name among {names}", param, ctx)
        return float(Finite().convert(found, param, ctx))


class ByContext(NamedTuple):
    """Acceptance at contexts, which rise."""

    contexts: tuple[int, ...]
    rates: tuple[float, ...]

    def at(self, context: float) -> float:
        """On a line over the logarithm of the context; beyond the ends as there."""
        return float(np.interp(math.log(context), np.log(self.contexts), self.rates))


class ByContextType(click.ParamType):  # type: ignore[type-arg]
    """`2000:0.6,20000:0.1` as acceptance by context."""

    name = "C:A,C:A"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ByContext:
        """As every click type."""
        if isinstance(value, ByContext):
            return value
        try:
            parts = [part.split(":") for part in value.split(",")]
            found = ByContext(tuple(int(c) for c, _ in parts), tuple(float(a) for _, a in parts))
        except ValueError:
            self.fail(f"{value[:80]!r} is no list of contexts and acceptances, like 2000:0.6,20000:0.1")
        rising = all(low < high for low, high in pairwise((0, *found.contexts)))
        if not rising or not all(0.0 <= rate <= 1.0 for rate in found.rates):
            self.fail("contexts rise from 1 on, and acceptances lie in 0..1", param, ctx)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """Two models on GPUs whose kernels others measured (`hardware_profiles.pairs`), and measured rates."""

    target: str | None = option(
        None,
        "Target on GPUs whose kernels others measured (--hw h100, a100x8, ...): name, config.json or folder.",
    )
    draft: str | None = option(
        None, "Draft, given in the same way; eagle3:TARGET, eagle:TARGET, mtp:TARGET: that target's head."
    )
    tp: int | None = option(None, "GPUs of the target.  [default: as --hw says, else 1]", type=POSITIVE)
    draft_tp: int | None = option(None, "GPUs of the draft.  [default: 1]", type=POSITIVE)
    draft_placement: Literal["own", "shared"] | None = option(
        None, "GPUs of its own for the draft, or the target's in turns.  [default: own]"
    )
    kernels: Literal["vllm", "sglang", "trtllm"] | None = option(None, "Whose kernels.  [default: vllm]")
    eager: bool = option(False, "Kernels launched one by one, not as captured graphs.")
    capture_limit: int | None = option(
        None,
        "Tokens of the largest captured graph; more are launched one by one.  [default: 512]",
        type=POSITIVE,
    )
    expert_correlation: float | None = option(
        None,
        "Of the experts of one row's tokens, in a mixture: 0 independent, 1 all the same.  [default: 0]",
        type=click.FloatRange(0, 1),
    )
    expert_distribution: Literal["balanced", "power_law_1.01", "power_law_1.2"] | None = option(
        None, "How tokens spread over experts.  [default: power_law_1.01]"
    )
    verification: Literal["padded", "packed"] | None = option(
        None,
        "Rows of unequal drafts: each computes as many tokens as the widest, or only its own.  "
        "[default: packed where kernels were composed, else padded]",
    )
    tables: Path | None = field(
        default=None,
        metadata=about(
            "Unpacked wheel with the kernel tables.  [default: the installed package]",
            type=click.Path(path_type=Path),
        ),
    )
    run_length: float | None = option(
        None,
        "Accepted tokens between two rejections (PEARL's MAT) in place of --acceptance.",
        type=click.FloatRange(0, min_open=True),
    )
    acceptance_by_context: ByContext | None = field(
        default=None,
        metadata=about(
            "Acceptance at contexts, in place of --acceptance: that at the middle of the text is taken, on a "
            "line over the logarithm of the context.",
            type=ByContextType(),
        ),
    )
    miss_acceptance: float | Path | None = field(
        default=None,
        metadata=about(
            "Acceptance in rounds after a miss of the speculation cache, where --acceptance is that after a "
            "hit; needs --hit-rate.",
            type=AcceptanceType(),
        ),
    )
    hit_rate: float | None = option(
        None,
        "Hit rate of the speculation cache as measured, whatever the fan-out, in place of a curve.",
        type=click.FloatRange(0, 1),
    )

    def composed(self, hw: str | None) -> tuple[Profile, str] | None:
        """The profile of the pair, and where it comes from; None where no models are named.

        Raises:
            SettingError: Options of a pair without its two models.
            ValueError: As `pair_profile`.
        """
        if self.target is not None and self.draft is not None and hw is not None:
            # Here and not at the top: most runs name no models.
            from hardware_profiles.composed import CAPTURE_LIMIT
            from hardware_profiles.kernels import SPREAD
            from hardware_profiles.pairs import Pair, pair_profile

            return pair_profile(
                Pair(
                    hw=hw,
                    target=self.target,
                    draft=self.draft,
                    tp=self.tp,
                    draft_tp=self.draft_tp or 1,
                    placement=self.draft_placement or "own",
                    engine=self.kernels or "vllm",
                    eager=self.eager,
                    capture_limit=self.capture_limit or CAPTURE_LIMIT,
                    expert_correlation=self.expert_correlation or 0.0,
                    expert_distribution=self.expert_distribution or SPREAD,
                    tables=self.tables,
                )
            )
        given = (
            self.target,
            self.draft,
            self.tp,
            self.draft_tp,
            self.draft_placement,
            self.kernels,
            self.capture_limit,
            self.expert_correlation,
            self.expert_distribution,
            self.tables,
        )
        if any(value is not None for value in given) or self.eager:
            raise SettingError(
                "--target, --draft and --hw (a GPU: h100, a100x8, ...) go together; --tp, --draft-tp, "
                "--draft-placement, --kernels, --eager, --capture-limit, --expert-correlation, "
                "--expert-distribution and --tables say more of such a pair"
            )
        return None

    def verified(self, profile: Profile) -> Profile:
        """The profile with verifications padded or packed as is asked."""
        return profile if self.verification is None else profile.but(verification=self.verification)

    def says_acceptance(self, acceptance: Acceptance | None) -> bool:
        """Whether something says how much is accepted."""
        return (acceptance, self.run_length, self.acceptance_by_context) != (None, None, None)

    def accepted(self, acceptance: float | Path | None, context: float) -> Acceptance | None:
        """What all that is said of acceptance comes to; None: nothing is.

        Args:
            acceptance: Of `--acceptance`.
            context: In the middle of the text.

        Raises:
            SettingError: Options that stand for each other, or lack their partner.
        """
        said = {
            "--acceptance": acceptance,
            "--run-length": self.run_length,
            "--acceptance-by-context": self.acceptance_by_context,
        }
        given = [name for name, value in said.items() if value is not None]
        if len(given) > 1:
            raise SettingError(f"give either {given[0]} or {given[1]}, not both")
        if self.run_length is not None:
            acceptance = acceptance_of_run(self.run_length)
        elif self.acceptance_by_context is not None:
            acceptance = self.acceptance_by_context.at(context)
        if self.miss_acceptance is None:
            return acceptance
        if acceptance is None or self.hit_rate is None:
            raise SettingError("--miss-acceptance goes with --acceptance, that after a hit, and --hit-rate")
        return after_hits_and_misses(acceptance, self.miss_acceptance, self.hit_rate)


def after_hits_and_misses(hit: float | Path, miss: float | Path, rate: float) -> tuple[float, ...]:
    """[positions] conditional acceptance of rounds that follow a hit with a probability, and else a miss.

    Joint acceptance mixes: J = h J_hit + (1 - h) J_miss, so that a round accepts as many tokens as
    h E_hit + (1 - h) E_miss (`ssd.eq1`).  That a miss also costs time is told apart from what it accepts,
    which leaves the speed of long runs as it is: tokens and seconds are added up over all rounds.

    Raises:
        FileRefused: A file is none, or holds no acceptance by position.
        SettingError: A number outside 0..1.
    """
    from simulator.tokens.coins import conditional_acceptance

    hits, misses = (np.cumprod(_by_position(each)) for each in (hit, miss))
    return conditional_acceptance((rate * hits + (1.0 - rate) * misses).tolist())


def _by_position(acceptance: float | Path) -> list[float]:
    """[MAX_LOOKAHEAD] conditional acceptances; positions past a file's like its last."""
    if isinstance(acceptance, Path):
        from simulator.tokens.acceptance import load_acceptance

        known = list(load_acceptance(acceptance).acceptance_at_position)[:MAX_LOOKAHEAD]
        return known + known[-1:] * (MAX_LOOKAHEAD - len(known))
    if not 0.0 <= acceptance <= 1.0:
        raise SettingError(f"acceptance must be between 0 and 1, got {acceptance:g}")
    return [acceptance] * MAX_LOOKAHEAD


def acceptance_of_run(run_length: float) -> float:
    """The iid acceptance under which runs of accepted tokens have this mean."""
    return run_length / (1.0 + run_length)
