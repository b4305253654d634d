"""SpecBranch (Shen et al. 2025): the block ends where the draft is in doubt, and branches begin there.

While the target verifies a block, the draft puts several tokens forward for the position behind it, more of
them the less it is sure of its own, and continues each of them to K tokens.  If the block is accepted, the
branch whose first token the target takes becomes the next block, but only up to the first token that is
likely to be rejected: what lies behind a rejection is drafted in vain, and with it the whole round
(*rollback*).  So blocks are as long as they are good, and doubt is met by branches.

Lossless as `policies.duo`, whose rounds these are: where a block ends depends on the text before that token,
and on what became of earlier blocks.

Where it differs from the authors' code: there a network trained on the target's hidden states and the newest
token (H-RAD) says whether all, none or the confident part of a branch is kept.  Nothing is trained here:
`lengths="history"` corrects the confidences by how many of the request's tokens were accepted for each one
that they promised; `confidence` takes them as they are, and `whole` keeps everything.  As in PEARL, the
target decodes plainly while the draft begins anew after a rollback.  Keys and values of the branch that goes
on are computed again with the next step, in one forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from policies.config import (
    DECISIONS,
    MAX_LOOKAHEAD,
    DraftSampling,
    Knob,
    LawInputs,
    LawValue,
    LookaheadConfig,
    LookaheadRule,
    PolicyConfig,
    PolicyInfo,
)
from policies.duo import Drafting, pending_rounds
from policies.gated import LeastConfidence
from policies.operation import RowOperation, Work
from policies.pearl import PearlConfig
from policies.protocols import Steps, World
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling
from policies.values import Drafted, View

Lengths: TypeAlias = Literal["history", "confidence", "whole"]
SURE = 1000
"""Confidences are told in thousandths: replies are recorded as integers."""


@dataclass(frozen=True, slots=True)
class SpecBranchConfig(LookaheadConfig):
    """Knobs of `specbranch`; every branch has K tokens, the first one included."""

    policy: ClassVar[str] = "specbranch"
    lookahead_rule: ClassVar[LookaheadRule] = "balanced"
    draft_sampling: DraftSampling = "sampled"
    branches: Annotated[int, Knob("Most tokens tried behind a block.", least=1, most=16)] = 4
    lengths: Annotated[
        Lengths, Knob("How much of a branch is kept: by confidence corrected by history, as it is, or all.")
    ] = "history"
    least_confidence: LeastConfidence = 0.1

    @property
    def longest_run(self) -> int:
        """Runs go on from block to block."""
        return MAX_LOOKAHEAD

    @property
    def draft_ahead(self) -> int:
        """A block, and a branch behind it."""
        return 2 * self.lookahead

    @property
    def cached_tokens(self) -> int:
        """K tokens of each branch."""
        return self.branches * self.lookahead

    @property
    def content_ignored(self) -> PolicyConfig:
        """PEARL."""
        return PearlConfig(self.lookahead, self.draft_sampling)

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """PEARL's where it is PEARL: the paper's Theorem 1 knows neither branches nor lengths."""
        if self.branches > 1 or self.lengths != "whole":
            return LawValue("none", reason="the paper gives no law for branches and adaptive lengths")
        return self.content_ignored.law(inputs, batch)


class Branches(NamedTuple):
    """Reply of `DraftBranches`; the first four fields are as of `policies.duo.Sequences`.

    Attributes:
        tokens: Of each branch, its first token included.
        opening: Handle of the first branch's first token; all others are chosen.
        handles: Of the distributions of each branch's other tokens.
        work: One step `feed`, then a step `tree` per token.
        sure: How sure the draft was of each of a branch's other tokens, in thousandths: the largest
            probability of its distribution.
    """

    tokens: tuple[tuple[int, ...], ...]
    opening: int
    handles: tuple[int, ...]
    work: Work
    sure: tuple[tuple[int, ...], ...]

    @property
    def first_tokens(self) -> tuple[int, ...]:
        """Candidates for the token behind the block, in the order in which they are tried."""
        return tuple(tokens[0] for tokens in self.tokens)


@dataclass(frozen=True, slots=True)
class DraftBranches(RowOperation, cost_class="continue", reply=Branches):
    """Write on past each row's block in branches.  `inputs`: its tokens.

    One forward over what the draft has not seen says how sure it is of the first token; then `lookahead` - 1
    steps grow all branches of all rows.
    """

    inputs: tuple[tuple[int, ...], ...]
    lookahead: int = 4
    branches: int = 4


def branch_count(most: int, sure: float) -> int:
    """Branches from a token that the draft gives the probability `sure`: max(1, floor(most (1 - sure)))."""
    return max(1, int(most * (1.0 - sure) + 1e-9))


def kept_length(sure: Sequence[float], least: float) -> int:
    """How many of a branch's tokens are kept, given how sure the draft was of each: up to the first doubt."""
    return next((n for n, each in enumerate(sure) if each < least), len(sure))


class _Branching(Drafting):
    """Branches, and lengths by request."""

    config: SpecBranchConfig

    def __init__(self, config: SpecBranchConfig, sampling: Sampling) -> None:
        super().__init__(config, sampling)
        self._pending: dict[int, tuple[float, ...]] = {}  # confidences of the block under verification
        self._record: dict[int, tuple[float, float]] = {}  # tokens accepted, and promised

    def ask(self, view: View, width: int, blocks: tuple[tuple[int, ...], ...]) -> RowOperation:
        """Branches behind each block."""
        how: dict[str, Any] = {"lookahead": self.config.lookahead, "branches": self.config.branches}
        return DraftBranches(view, width, blocks, self.sampling, **how)

    def judged(self, request: int, accepted: int) -> None:
        """Only what was judged counts: the accepted tokens and the one that was not."""
        sure = self._pending.pop(request, ())[: accepted + 1]
        kept, promised = self._record.get(request, (1.0, 1.0))
        self._record[request] = kept + min(accepted, len(sure)), promised + sum(sure)

    def rest(self, request: int, drafted: Any, number: int) -> Drafted:
        """The part of a branch that is likely to be accepted."""
        tokens, handle = drafted.tokens[number][1:], drafted.handles[number]
        sure = tuple(each / SURE for each in drafted.sure[number])
        if self.config.lengths == "whole":
            count = len(tokens)
        else:
            kept, promised = self._record.get(request, (1.0, 1.0))
            worth = kept / promised if self.config.lengths == "history" else 1.0
            count = kept_length([worth * each for each in sure], self.config.least_confidence)
        self._pending[request] = sure[:count]
        return Drafted(tokens[:count], handle)


def specbranch(world: World, rows: Rows, config: SpecBranchConfig, sampling: Sampling = GREEDY) -> Steps:
    """Verify the pending block while drafting branches behind it; keep of a branch what is likely."""
    return pending_rounds(world, rows, _Branching(config, sampling))


INFO = PolicyInfo(
    config=SpecBranchConfig,
    run=specbranch,
    paper="Shen et al. 2025 (SpecBranch)",
    predicts="all accepted, then one of the draft's first tokens",
    drafts="branches behind the block, as many as the draft is in doubt",
    on_miss="plain decode",
    verifies="chain up to the first doubt, then the first token of each branch",
    order=8.5,
    replay=DECISIONS,
    colour="#b3589a",
    variants=({}, {"lookahead": 6, "lengths": "confidence", "least_confidence": 0.3}, {"lengths": "whole"}),
)
