"""Lookahead decoding (Fu et al. 2024): the target guesses n-grams and verifies them, in the same forward.

A window of W columns and N - 1 levels holds what the target made of earlier guesses (Jacobi iterations).
One forward feeds the window and up to G n-grams of a pool that begin with the last committed token.  After
the window's last level it says one token more per column, so that each column is an n-gram for the pool,
and moves on by a level; the n-grams are verified as a tree.  A column sees the first level up to itself,
and itself:

    level 0   t  a  b      t: the last committed token
    level 1   c  d  e      d sees the text, t, a
    level 2   f  g  h      g sees the text, t, a, d

Where it differs from the authors' code: n-grams with a common beginning are one branch (a trie, not G
chains); each request has a pool of its own, which its prompt fills first (`prompt_pool`), so that none
reads what another one said; the window begins with tokens of the prompt by a keyed draw.  As there, the
window moves by one column a round however many tokens were accepted, and holds first choices at every
temperature: n-grams are chosen, not drawn, so that their distribution is one-hot (`TokenTree`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from policies.ar import ArConfig
from policies.config import DECISIONS, Knob, OnOff, PolicyConfig, PolicyInfo
from policies.operation import RowOperation
from policies.protocols import Steps, World
from policies.retrieval import check_text
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling, keyed_uniforms
from policies.tokentree import ROOT, Path, TokenTree, TreeRound, target_rounds
from policies.values import NO_HANDLE, Source, View


@dataclass(frozen=True, slots=True)
class LookaheadDecodingConfig(PolicyConfig):
    """Knobs of `lookahead`; a forward feeds (N - 1)(W + G) tokens at most."""

    policy: ClassVar[str] = "lookahead"
    window: Annotated[int, Knob("W, columns of the lookahead window.", least=1, most=64)] = 3
    ngram: Annotated[int, Knob("N, tokens of an n-gram.", least=2, most=16)] = 3
    guesses: Annotated[int, Knob("G, n-grams kept and tried per first token.", least=1, most=64)] = 3
    prompt_pool: Annotated[OnOff, Knob("Fill the pool with the prompt's n-grams first.")] = "on"

    @property
    def ahead(self) -> int:
        """Nodes of a forward."""
        return (self.ngram - 1) * (self.window + self.guesses)

    @property
    def content_ignored(self) -> PolicyConfig:
        """Plain decoding."""
        return ArConfig()


@dataclass(frozen=True, slots=True)
class LookAhead(RowOperation, cost_class="verify", reply=TreeRound):
    """Verify n-grams of the pool, move the window on.  `inputs`: the prompt of a row that begins, else ()."""

    inputs: tuple[Path, ...]
    config: LookaheadDecodingConfig = LookaheadDecodingConfig()


class NGrams:
    """N-grams of a request by first token.

    Args:
        length: N.
        most: Kept per first token.
        text: Where the first ones come from.

    Attributes:
        pool: What followed each token, the latest last.
    """

    def __init__(self, length: int, most: int, text: Path = ()) -> None:
        self.length = length
        self.most = most
        self.pool: dict[int, dict[Path, None]] = {}
        for start in range(len(text) - length + 1):
            self.learn(text[start : start + length])

    def learn(self, gram: Sequence[int]) -> None:
        """Keep an n-gram; the oldest of its first token makes room."""
        known = self.pool.setdefault(gram[0], {})
        known.pop(tuple(gram[1:]), None)
        known[tuple(gram[1:])] = None
        if len(known) > self.most:
            del known[next(iter(known))]

    def guesses(self, last: int) -> TokenTree:
        """What may follow a token, the latest first."""
        return TokenTree.of_paths([*reversed(self.pool.get(last, {}))], Source.NGRAM)


class LookaheadState(NGrams):
    """Window and pool of a request.

    Args:
        config: W, N and G.
        prompt: The text that is there.
        key: (seed, request) of the draw that the window begins with.

    Attributes:
        levels: Tokens of the window, at first one level alone; level 0 has W - 1 of them, since its first one
            is the last committed token.
    """

    def __init__(self, config: LookaheadDecodingConfig, prompt: Path, key: tuple[int, int]) -> None:
        super().__init__(config.ngram, config.guesses, prompt if config.prompt_pool == "on" else ())
        self.config = config
        drawn = keyed_uniforms(key[0], "lookahead-window", key[1], np.arange(config.window - 1))
        self.levels = [[prompt[int(place)] for place in (drawn * len(prompt)).tolist()]]

    def window(self) -> TokenTree:
        """The window as a tree below the last committed token, level by level."""
        tokens = [token for level in self.levels for token in level]
        first = self.config.window - 1
        # Level 0 is a chain; below it every token hangs on the one above, and the first column on the root.
        parents = [*range(ROOT, first - 1)]
        for depth in range(1, len(self.levels)):
            above = range(len(parents) - self.config.window, len(parents))
            parents += [ROOT, *range(first)] if depth == 1 else above
        count = len(tokens)
        return TokenTree(tuple(tokens), tuple(parents), (int(Source.NGRAM),) * count, (NO_HANDLE,) * count)

    def advance(self, last: int, best: Sequence[int]) -> None:
        """Move the window on: `best` [W] is the target's choice after each column, the first of `last`."""
        if len(self.levels) == self.config.ngram - 1:
            columns = zip([last, *self.levels[0]], *self.levels[1:], best, strict=True)
            for gram in columns:
                self.learn(gram)
            self.levels = [*self.levels[1:], [*best]]
            self.levels[0] = self.levels[0][1:]
        else:
            self.levels.append([*best])


def lookahead_decoding(
    world: World, rows: Rows, config: LookaheadDecodingConfig, sampling: Sampling = GREEDY
) -> Steps:
    """Guess and verify in one forward of the target, repeat; there is no draft."""
    check_text(rows, config.policy)

    def operation(view: View, prompts: tuple[Path, ...]) -> LookAhead:
        return LookAhead(view, rows.width, prompts, sampling, config=config)

    return target_rounds(world, rows, operation)


INFO = PolicyInfo(
    config=LookaheadDecodingConfig,
    run=lookahead_decoding,
    paper="Fu et al. 2024 (Lookahead decoding); baseline of DOUBLE, DuoDecoding",
    predicts="nobody",
    drafts="n-grams that the target itself guessed before",
    on_miss="-",
    verifies="tree",
    order=4.2,
    replay=DECISIONS,
    needs_draft=False,
    collocated=True,
    colour="#b5893c",
    variants=({"window": 5, "ngram": 4, "guesses": 5}, {"prompt_pool": "off"}),
)
