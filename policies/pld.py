"""Prompt lookup decoding (Saxena 2023): guess what followed the same words earlier, verify, repeat.

There is no draft model; a round whose last words are new to the text is a plain decode.
"""

from __future__ import annotations

from policies.guesses import LONGEST, from_text, guess
from policies.operations import Verify
from policies.protocols import Steps, World
from policies.rows import Rows, admit_target
from policies.sampling import GREEDY, Sampling


def prompt_lookup(
    world: World, rows: Rows, *, lookahead: int, longest: int = LONGEST, sampling: Sampling = GREEDY
) -> Steps:
    """Verify up to `lookahead` tokens that followed the text's ending where it last occurred.

    Args:
        world: Where; its draft devices stay idle.
        rows: What to serve, with their tokens kept.
        lookahead: K, most tokens of a guess.
        longest: Longest ending that is searched for, in tokens.
        sampling: How the target chooses.
    """
    propose = from_text(longest)
    while rows.active:
        yield from admit_target(world, rows)
        view = rows.view()
        speculation = guess(rows, rows.alive, lookahead, propose)
        verdict = yield world.target.submit(Verify(view, speculation, sampling))
        rows.commit(view, speculation, verdict, now=world.now)
