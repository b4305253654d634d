"""What is known of each formal statement of DuoDecoding.

The functions here only lead arguments as one types them to the laws.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.laws import candidates, duo
from policies.laws.ssd import FloatArray
from policies.laws.statement import Statement

_DUO = "tests/policies/test_laws_duo.py::"
_CANDIDATES = "tests/policies/test_laws_candidates.py::"


def first_token_law_printed(
    target_law: Sequence[float], draft_law: Sequence[float], first_tokens: Sequence[int]
) -> FloatArray:
    """[V] law of the first token without updates in between: `candidates.candidates_law_printed`."""
    return candidates.candidates_law_printed(target_law, draft_law, first_tokens)


STATEMENTS: tuple[Statement, ...] = (
    Statement(
        id="duo.alg1",
        title="Time of an iteration with the draft on a device of its own",
        source="DuoDecoding, section 3.1 and algorithm 1",
        verdict="holds",
        corrected=duo.iteration_time,
        assumptions=("both devices start together", "neither slows the other", "times do not vary"),
        domain="lookahead >= 0, times >= 0",
        check=_DUO + "test_iterations_on_two_clocks",
        example="lookahead=24 t_draft=0.05 t_communication=0.02",
    ),
    Statement(
        id="duo.budget",
        title="The best drafting budget is the cost ratio",
        source="DuoDecoding, section 3.1",
        verdict="caveat",
        corrected=duo.best_budget,
        printed=duo.budget_printed,
        assumptions=(
            "iid acceptance, one sequence, pre- and post-verification",
            "printed: whole c, a verification that does not grow with the draft, no jitter",
            "jitter: normal times, independent of each other",
        ),
        domain="c > 0; 1 for c < 1; where nothing is ever rejected the largest tried may be the answer",
        counterexample="c = 24, a = .8, verification .5 % dearer per token: best 14, 2.7 % faster than 24",
        check=_DUO + "TestBudget::test_ours_is_what_trying_finds",
        example="acceptance=0.8 speed_ratio=24 verify_growth=0.005",
    ),
    Statement(
        id="duo.theta",
        title="First tokens likelier than the two best in a row open their own sequence",
        source="DuoDecoding, section 3.2",
        verdict="caveat",
        corrected=duo.draft_sequences,
        printed=duo.draft_sequences_printed,
        assumptions=("the draft's probability stands for the acceptance", "the sequences share one budget"),
        domain="a law and a probability; equally likely tokens by id",
        counterexample="p(1,2) = 1 or a one-hot law: the strict test turns even the likeliest token away",
        check=_DUO + "TestTheta::test_against_counting",
        example="draft_law=0.3,0.5,0.2 next_top=1",
    ),
    Statement(
        id="duo.verify",
        title="Verification of the first tokens of several sequences",
        source="DuoDecoding, section 3.3",
        verdict="caveat",
        corrected=duo.first_token_law,
        printed=first_token_law_printed,
        assumptions=(
            "the first tokens are chosen, not drawn: each is accepted with its probability",
            "a token that failed is taken out of the target's law before the next is tried",
        ),
        domain="laws over one vocabulary, distinct tokens",
        counterexample="p = q, one residual at the end: the first token is always accepted, off by 1 - p(x)",
        check=_CANDIDATES + "TestVerify::test_chosen_candidates_leave_the_targets_law",
        example="target_law=0.5,0.3,0.2 draft_law=0.4,0.4,0.2 first_tokens=0,1",
    ),
    Statement(
        id="duo.ttft",
        title="Time to first token against vanilla speculative decoding",
        source="DuoDecoding, section 4",
        verdict="holds",
        corrected=duo.ttft_ratio,
        assumptions=("both times in one unit, or both relative to plain decoding",),
        domain="times > 0",
        check=_DUO + "test_ttft",
        example="ttft_duo=1.35 ttft_sd=1.6",
    ),
)
