"""Prompt lookup decoding (Saxena 2023): guess what followed the same words earlier, verify, repeat.

There is no draft model; a round whose last words are new to the text is a plain decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.ar import ArConfig
from policies.config import LawInputs, LawValue, LookaheadConfig, PolicyConfig, PolicyInfo
from policies.guesses import LONGEST, LongestSuffix, from_text, guess
from policies.operation import Verify
from policies.protocols import Steps, World
from policies.rows import Rows, admit_target
from policies.sampling import GREEDY, Sampling


@dataclass(frozen=True, slots=True)
class PldConfig(LookaheadConfig):
    """Knobs of `pld`.

    Attributes:
        lookahead: K, most tokens of a guess.
        longest_suffix: Longest ending that is searched for, in tokens.
    """

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


def prompt_lookup(world: World, rows: Rows, config: PldConfig, sampling: Sampling = GREEDY) -> Steps:
    """Verify up to K tokens that followed the text's ending where it last occurred.

    The draft devices stay idle; the rows keep their tokens.
    """
    propose = from_text(config.longest_suffix)
    while rows.active:
        yield from admit_target(world, rows)
        view = rows.view()
        speculation = guess(rows, rows.alive, config.lookahead, propose)
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
    needs_draft=False,
    collocated=True,
    aliases=("prompt-lookup", "ngram"),
    colour="#64b5cd",
    variants=({"lookahead": 5},),
)
