"""What users say of a pair that nobody calibrated: its models and GPUs, and how much is accepted.

`simulate` and `recommend` share these options.  M accepted tokens between two rejections are an acceptance of
M / (1 + M) (`double.pearl_run_length`); a measured hit rate is a hit curve that does not depend on the
fan-out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import click

from hardware_profiles.profile import Profile
from policies.commandline import POSITIVE, about, option
from policies.registry import SettingError

FLAT = 1e-3
"""Exponent of a hit curve that does not depend on the fan-out: F^-r is 0.995 at 128."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """Two models on GPUs whose kernels others measured (`hardware_profiles.pairs`), and measured rates."""

    target: str | None = option(
        None,
        "Target on GPUs whose kernels others measured (--hw h100, a100x8, ...): name, config.json or folder.",
    )
    draft: str | None = option(None, "Draft, given in the same way; eagle3:TARGET is that target's head.")
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
            self.tables,
        )
        if any(value is not None for value in given) or self.eager:
            raise SettingError(
                "--target, --draft and --hw (a GPU: h100, a100x8, ...) go together; --tp, --draft-tp, "
                "--draft-placement, --kernels, --eager, --capture-limit, --expert-correlation and --tables "
                "say more of such a pair"
            )
        return None

    def verified(self, profile: Profile) -> Profile:
        """The profile with verifications padded or packed as is asked."""
        return (
            profile
            if self.verification is None
            else profile.model_copy(update={"verification": self.verification})
        )


def acceptance_of_run(run_length: float) -> float:
    """The iid acceptance under which runs of accepted tokens have this mean."""
    return run_length / (1.0 + run_length)
