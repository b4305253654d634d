"""Ouroboros (Zhao et al. 2024): drafts made longer, phrase by phrase, at no step of the draft.

The draft writes K tokens.  Phrases from a pool that begin with the last of them are hung below it, P
tokens each, and all is verified as one tree.  The pool is fed by the request's own text, and by what the
target says of drafted tokens that it discards: where it agrees with some of them in a row, these are a
phrase.

Where it differs from the authors' code: the draft does not use the phrases itself (there it drafts by
Lookahead decoding); phrases with a common beginning are one branch; the pool is one request's, not the
history's. Phrases are chosen, not drawn (`TokenTree`), below drafted tokens that may be.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from policies.config import DECISIONS, DraftSampling, Knob, LookaheadConfig, PolicyConfig, PolicyInfo
from policies.lookahead import NGrams
from policies.operation import RowOperation
from policies.protocols import Event, Steps, World
from policies.retrieval import check_text
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling
from policies.sd import SdConfig
from policies.tokentree import (
    ROOT,
    DraftTree,
    Path,
    TokenTree,
    TreePlan,
    TreeRound,
    own_rounds,
    tree_of,
)
from policies.values import View


@dataclass(frozen=True, slots=True)
class OuroborosConfig(LookaheadConfig):
    """Knobs of `ouroboros`; a round verifies K + phrases * (phrase_length - 1) tokens at most."""

    policy: ClassVar[str] = "ouroboros"
    draft_sampling: DraftSampling = "sampled"
    phrases: Annotated[int, Knob("Phrases kept and tried per first token.", least=1, most=64)] = 3
    phrase_length: Annotated[int, Knob("Tokens of a phrase, the drafted one included.", least=2, most=16)] = 4

    @property
    def ahead(self) -> int:
        """The nodes of a tree."""
        return self.lookahead + self.phrases * (self.phrase_length - 1)

    @property
    def longest_run(self) -> int:
        """A draft and a phrase."""
        return self.lookahead + self.phrase_length - 1

    @property
    def content_ignored(self) -> PolicyConfig:
        """Vanilla speculation."""
        return SdConfig(self.lookahead)


class Phrased(NamedTuple):
    """What a row's phrases are looked up by: its prompt if it begins, else (); and what was drafted."""

    prompt: Path
    tree: TokenTree


@dataclass(frozen=True, slots=True)
class VerifyPhrases(RowOperation, cost_class="verify", reply=TreeRound):
    """Hang phrases below each row's draft, verify both, keep what the target says.  `inputs`: `Phrased`."""

    inputs: tuple[Phrased, ...]
    phrases: int = 3
    length: int = 4


class PhrasePool(NGrams):
    """Phrases of a request by first token, the latest last."""

    def __init__(self, length: int, most: int, text: Path) -> None:
        super().__init__(length, most, text)
        self._end = text[1 - length :]

    def said(self, tokens: Sequence[int]) -> None:
        """Go on with the text, whose phrases count too."""
        for token in tokens:
            self._end = (*self._end, token)[-self.length :]
            if len(self._end) == self.length:
                self.learn(self._end)

    def lengthened(self, draft: TokenTree) -> TokenTree:
        """A drafted chain with the phrases below its last token."""
        if not draft.tokens:
            return draft
        more, count = self.guesses(draft.tokens[-1]), len(draft.tokens)
        parents = (count - 1 if parent == ROOT else count + parent for parent in more.parents)
        below = more._replace(parents=tuple(parents))
        return TokenTree(*(ours + theirs for ours, theirs in zip(draft, below, strict=True)))

    def agree(self, chain: Sequence[int], best: Sequence[int]) -> None:
        """Keep runs of tokens of a chain [n] that the target's choices [n] after each of them go on with."""
        run = list(chain[:1])
        for token, choice in zip(chain[1:], best, strict=False):
            run = [*run, token] if token == choice else [token]
            if len(run) >= self.length:
                self.learn(run[-self.length :])


def ouroboros(world: World, rows: Rows, config: OuroborosConfig, sampling: Sampling = GREEDY) -> Steps:
    """Draft a chain, lengthen it by phrases, verify, repeat; the devices take turns."""
    check_text(rows, config.policy)
    plan = TreePlan(widths=(1,) * config.lookahead)

    def ask(
        view: View, prompts: tuple[Path, ...], unseen: tuple[Path, ...]
    ) -> Generator[Event, Any, VerifyPhrases]:
        drafted = yield world.draft.submit(DraftTree(view, rows.width, unseen, sampling, plan=plan))
        trees = (tree_of(drafted[slot]) for slot in view.slots)
        inputs = tuple(Phrased(prompt, tree) for prompt, tree in zip(prompts, trees, strict=True))
        length = config.phrase_length
        return VerifyPhrases(view, rows.width, inputs, sampling, phrases=config.phrases, length=length)

    return own_rounds(world, rows, ask, drafts=True)


INFO = PolicyInfo(
    config=OuroborosConfig,
    run=ouroboros,
    paper="Zhao et al. 2024 (Ouroboros)",
    predicts="nobody",
    drafts="autoregressive, lengthened by phrases",
    on_miss="-",
    verifies="tree",
    order=10.5,
    replay=DECISIONS,
    collocated=True,
    colour="#a8655a",
    variants=({"lookahead": 2}, {"phrases": 1, "phrase_length": 3}),
)
