"""Prompt lookup decoding (Saxena 2023): guess what followed the same words earlier, verify, repeat.

There is no draft model; a round whose last words are new to the text is a plain decode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

import numpy as np

from policies.ar import ArConfig
from policies.config import Knob, LawInputs, LawValue, LookaheadConfig, PolicyConfig, PolicyInfo
from policies.operation import Verify
from policies.protocols import Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.values import Ints, Slots, Source, Speculation

_WORD = 4
"""Bytes of a token id."""
LONGEST = 3
"""Longest suffix that is searched for, in tokens."""
LongestSuffix: TypeAlias = Annotated[
    int, Knob("Longest ending that prompt lookup searches for, in tokens.", least=1)
]


@dataclass(frozen=True, slots=True)
class PldConfig(LookaheadConfig):
    """Knobs of `pld`; a guess has K tokens at most."""

    policy: ClassVar[str] = "pld"
    longest_suffix: LongestSuffix = LONGEST

    @property
    def reads_text(self) -> bool:
        """It searches the text."""
        return True

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """None is given."""
        return LawValue("none", reason="the papers give no law for prompt lookup")

    @property
    def content_ignored(self) -> PolicyConfig:
        """Plain decoding."""
        return ArConfig()


def lookup(text: Sequence[int], lookahead: int, *, longest: int = LONGEST) -> tuple[int, ...]:
    """Up to `lookahead` tokens that followed the text's own ending where it last occurred before.

    The longest suffix of at most `longest` tokens that occurs earlier decides; among its occurrences the
    latest one.  Empty if not even the last token occurred before.
    """
    # As bytes, which are searched in C: a round of a live run waits for this.
    words = np.asarray(text, dtype="<u4").tobytes()
    for size in range(min(longest, len(text) - 1), 0, -1):
        suffix = words[-_WORD * size :]
        end = len(words) - 1  # an occurrence before the ending itself
        while (start := words.rfind(suffix, 0, end)) >= 0:
            if start % _WORD == 0:
                follows = start // _WORD + size
                return tuple(text[follows : follows + lookahead])
            end = start + len(suffix) - 1
    return ()


def guess(
    rows: Rows,
    chosen: Slots,
    lookahead: int,
    source: Source,
    propose: Callable[[int, int], Sequence[int]],
) -> Speculation:
    """Guessed tokens for the rows in `chosen`, the same in both worlds.

    Args:
        rows: The batch.
        chosen: Rows to guess for.
        lookahead: Most tokens of a guess.
        source: Where they come from.
        propose: (request, position) to a row's tokens.
    """
    tokens: list[Ints] = [()] * rows.width
    view = rows.view(chosen)
    for slot, request, position in zip(view.slots, view.requests, view.positions, strict=True):
        tokens[slot] = tuple(propose(request, position))
    sources = tuple([int(source) if guessed else int(Source.NONE) for guessed in tokens])
    return Speculation(tuple(map(len, tokens)), sources, tuple(tokens), has_guesses=True)


def guess_from_text(rows: Rows, chosen: Slots, lookahead: int, longest: int = LONGEST) -> Speculation:
    """What followed each text's own last words, at most `longest` of them, earlier in it."""

    def propose(request: int, position: int) -> Sequence[int]:
        return lookup(rows.text(request), lookahead, longest=longest)

    return guess(rows, chosen, lookahead, Source.NGRAM, propose)


def prompt_lookup(world: World, rows: Rows, config: PldConfig, sampling: Sampling = GREEDY) -> Steps:
    """Verify up to K tokens that followed the text's ending where it last occurred.

    The draft devices stay idle; the rows keep their tokens.
    """
    while rows.active:
        yield from admit(world, rows, drafts=False)
        view = rows.view()
        speculation = guess_from_text(rows, rows.alive, config.lookahead, config.longest_suffix)
        verdict = yield world.target.submit(Verify(view, speculation, sampling))
        rows.commit(view, speculation, verdict, now=world.now)


INFO = PolicyInfo(
    config=PldConfig,
    run=prompt_lookup,
    paper="Saxena 2023 (prompt lookup); baseline of DOUBLE, DuoDecoding, RASD",
    predicts="nobody",
    drafts="retrieval from the text itself",
    on_miss="-",
    verifies="chain",
    order=3,
    needs_draft=False,
    collocated=True,
    aliases=("prompt-lookup", "prompt_lookup", "ngram"),
    colour="#64b5cd",
    variants=({"lookahead": 5},),
)
