"""What is known of each formal statement of DOUBLE.

The functions here only lead arguments as one types them to the laws.
"""

from __future__ import annotations

from policies.laws import double, guidance, retrieval, runs, ssd
from policies.laws.retrieval import Tokens
from policies.laws.statement import Statement

_DOUBLE = "tests/policies/test_laws_double.py::"
_RUNS = "tests/policies/test_laws_runs.py::"
_RETRIEVAL = "tests/policies/test_laws_retrieval.py::"


def balanced(speed_ratio: float) -> int:
    """ceil(C), at least 1: `double.balanced_lookahead`."""
    return double.balanced_lookahead(speed_ratio, 1.0)


def pre_verify(draft_tokens: Tokens, target_tokens: Tokens) -> guidance.Guided:
    """A step with nothing pending: `guidance.step`."""
    return guidance.step((), (), draft_tokens, target_tokens)[0]


def post_verify(
    pending: Tokens, answers: Tokens, draft_tokens: Tokens, target_tokens: Tokens
) -> guidance.Guided:
    """A step that judges pending tokens first: `guidance.step`."""
    return guidance.step(pending, answers, draft_tokens, target_tokens)[0]


STATEMENTS: tuple[Statement, ...] = (
    Statement(
        id="double.thm1",
        title="Mean tokens of a round of speculative decoding",
        source="DOUBLE, theorem 1 and equation 1 (Leviathan et al.)",
        verdict="holds",
        corrected=ssd.expected_tokens,
        assumptions=("iid acceptance",),
        domain="a in 0..1, gamma >= 0; gamma + 1 at a = 1",
        check=_RUNS + "test_tokens_of_a_round_by_exact_enumeration",
        example="acceptance=0.8 lookahead=4",
        aliases=("double.eq1",),
    ),
    Statement(
        id="double.eq8",
        title="Mean rounds up to and including the first that rejects",
        source="DOUBLE, equation 8",
        verdict="holds",
        corrected=runs.rounds_per_run,
        assumptions=("iid acceptance",),
        domain="a in 0..1, gamma >= 0; infinite at a = 1 and, where nothing is drafted, at gamma = 0",
        check=_RUNS + "test_a_run_by_exact_enumeration",
        example="acceptance=0.8 lookahead=4",
    ),
    Statement(
        id="double.eq2",
        title="Retrieval forward: matched tokens and one of the model's own",
        source="DOUBLE, section 2.2, equation 2",
        verdict="holds",
        corrected=retrieval.retrieval_forward,
        assumptions=("greedy decoding",),
        domain="no match is a plain step; equation 5 passes d where equation 2 passes n",
        check=_RETRIEVAL + "TestRetrievalForward::test_output_is_that_of_plain_decoding",
        example="text=1,2,3,4,1,2 path=3,4,9,9 longest=2 span=3",
    ),
    Statement(
        id="double.thm2",
        title="Mean tokens of a run of rounds up to a rejection",
        source="DOUBLE, theorem 2, equations 3, 9 and 10",
        verdict="wrong",
        corrected=runs.run_tokens,
        printed=runs.run_tokens_printed,
        assumptions=("iid acceptance",),
        domain="a in 0..1, gamma >= 0; infinite where k is; exact at a = 0 only",
        counterexample="a = .8, gamma = 4: 5.694 tokens, printed 6.830: the last round is known to reject",
        check=_RUNS + "test_a_run_by_exact_enumeration",
        example="acceptance=0.8 lookahead=4",
        aliases=("double.eq3", "double.eq9", "double.eq10"),
    ),
    Statement(
        id="double.eq11",
        title="Speedup of speculative decoding over plain decoding",
        source="DOUBLE, equation 11",
        verdict="wrong",
        corrected=runs.sd_run_speedup,
        printed=runs.sd_run_speedup_printed,
        assumptions=("iid acceptance", "verification costs one plain step"),
        domain="a in 0..1, gamma >= 0, C > 0; 1 at gamma = 0",
        counterexample="a = .8, gamma = C = 4: 1.681, printed 2.016, by theorem 2",
        check=_RUNS + "test_sd_is_the_law_of_ssd",
        example="acceptance=0.8 lookahead=4 speed_ratio=4",
    ),
    Statement(
        id="double.eq12",
        title="A pipeline's run has a bonus token less for each round that does not reject",
        source="DOUBLE, equation 12",
        verdict="caveat",
        corrected=runs.pipeline_run_tokens,
        printed=runs.pipeline_run_tokens_printed,
        assumptions=("iid acceptance", "E[L_k] is the exact one; it is printed with theorem 2's"),
        domain="a in 0..1, gamma >= 1; 1/(1 - a) for every gamma, infinite at a = 1",
        counterexample="a = .8, gamma = 4: 5 tokens, printed 6.137",
        check=_RUNS + "test_eq12_is_exact_once_the_run_is",
        example="acceptance=0.8 lookahead=4",
    ),
    Statement(
        id="double.thm3",
        title="Speedup of a draft/verify pipeline, between speculative decoding and C",
        source="DOUBLE, theorem 3, equations 4 and 13 to 18",
        verdict="wrong",
        corrected=double.plain_pipeline_speedup,
        printed=double.psd_speedup_printed,
        assumptions=(
            "iid acceptance",
            "no pre-verification, one bubble per rejection; with it see duo.budget",
            "S_SD <= S_PSD needs S_SD >= 1",
            "the middle bound needs E(a, gamma) <= gamma",
            "S_PSD <= C needs C >= 1; the corrected form never passes C",
            "printed: gamma >= C",
        ),
        domain="a in 0..1, gamma >= 1, C > 0; C at a = 1 and gamma >= C",
        counterexample="a = .8, gamma = C = 4: 1.856, printed 2.278; a = .95, gamma 2, C = 3: 2.726 > 2.617",
        check=_DOUBLE + "test_against_tossed_coins",
        example="acceptance=0.8 lookahead=4 speed_ratio=4",
        aliases=("double.eq4", *(f"double.eq{number}" for number in range(13, 19))),
    ),
    Statement(
        id="double.eq5",
        title="Iterative retrieval drafting: each phrase is appended before the next",
        source="DOUBLE, section 4.1, equation 5",
        verdict="caveat",
        corrected=retrieval.retrieval_draft,
        printed=retrieval.retrieval_draft_printed,
        assumptions=("greedy drafting", "printed: every forward has a match"),
        domain="lookahead >= 0 forwards; about lookahead (1 + AMT) tokens",
        counterexample="text 1 2 3 has no match: as printed, without the own token, nothing is ever drafted",
        check=_RETRIEVAL + "TestRetrievalForward::test_the_printed_form_stands_still",
        example="text=1,2,3 path=4,5,6,7 longest=3 span=2 lookahead=3",
    ),
    Statement(
        id="double.eq6",
        title="Forward guidance: the accepted draft, then the target's own tokens",
        source="DOUBLE, section 4.2, equation 6",
        verdict="caveat",
        corrected=guidance.guide,
        assumptions=("greedy decoding: sampling needs double.eq19",),
        domain="at least one target token; a draft that goes beyond the guidance stays pending",
        counterexample="sampled, p = (.9, .1), q = (.5, .5): the first token is emitted with .86, not .9",
        check=_RETRIEVAL + "TestGuidance::test_only_the_targets_path_is_committed",
        example="draft_tokens=6,7,8 target_tokens=6,17,18,19",
    ),
    Statement(
        id="double.eq19",
        title="Guidance when sampling: a rejected token from the residual, the rest dropped",
        source="DOUBLE, appendix D.4.1, equation 19",
        verdict="holds",
        corrected=guidance.guide_sampled,
        printed=guidance.guide_sampled_printed,
        assumptions=(
            "the coins are not those that drew the guidance",
            "an accepted token beside the guidance leaves the rest of the draft pending",
            "printed: equation 6 taken literally with sampling, which the appendix rules out",
        ),
        domain="a law for each target token and each drafted one, a coin for each drafted one and one more",
        counterexample="equation 6 literally, p = (.9, .1), q = (.5, .5): first token 0 with .86, not .9",
        check=_RETRIEVAL + "test_sampled_guidance_has_exactly_the_targets_law",
        example="draft_tokens=1 target_tokens=0,1 target_laws=0.9,0.1;0.5,0.5 "
        "draft_laws=0.5,0.5 uniforms=0.5,0.2",
    ),
    Statement(
        id="double.eq7",
        title="Speedup of DOUBLE",
        source="DOUBLE, section 4.4, equation 7",
        verdict="wrong",
        corrected=runs.double_speedup,
        printed=runs.double_speedup_printed,
        assumptions=(
            "lookahead counts retrieval forwards in the corrected form; printed: it must count tokens",
            "printed: C >= 1, and the ceiling C (1 + AMT) needs L_d + L_b <= k gamma + C (1 + AMT)",
            "L_d is exact: 1/(1 - a) per run with iid acceptance, not theorem 2's",
        ),
        domain="L >= 0, k >= 1, lookahead >= 1, C > 0, AMT >= 0",
        counterexample="L_d = 1, L_b = 10, k = 1, gamma = C = 2, AMT = 0: 5.5 > 2",
        check=_RUNS + "TestEq7::test_against_a_pipeline_with_phrases",
        example="run_drafted=20 run_bonus=0 run_rounds=2.97 lookahead=4 speed_ratio=4 matched=1",
    ),
    Statement(
        id="double.gamma",
        title="Draft length that takes as long as a target step",
        source="DOUBLE, section 5.1 and appendix C.1",
        verdict="caveat",
        corrected=balanced,
        assumptions=("pre-verification; otherwise shorter is better", "floor(C) is often better: duo.budget"),
        domain="C > 0; 1 for C <= 1",
        counterexample="C = 8.4: 8 is better for every acceptance up to .95",
        check=_DOUBLE + "test_best_lookahead_is_next_to_the_ratio",
        example="speed_ratio=4.7",
    ),
    Statement(
        id="double.alg1",
        title="A step in pre-verify mode",
        source="DOUBLE, algorithm 1",
        verdict="caveat",
        corrected=pre_verify,
        printed=guidance.preverify_printed,
        assumptions=("greedy decoding", "a pass that ends pre-verification does not begin post-verification"),
        domain="at least one target token",
        counterexample="a wrong first token: X_p[:n] with n = 0 commits nothing, at every step again",
        check=_RETRIEVAL + "TestGuidance::test_steps_emit_the_plain_text",
        example="draft_tokens=5,6 target_tokens=7,8,9",
    ),
    Statement(
        id="double.alg2",
        title="A step in post-verify mode",
        source="DOUBLE, algorithm 2",
        verdict="caveat",
        corrected=post_verify,
        printed=guidance.postverify_printed,
        assumptions=("greedy decoding", "printed: the first pending token was judged before"),
        domain="as many answers as pending tokens, at least one target token",
        counterexample="a first pending token that nothing has judged stays in the text",
        check=_RETRIEVAL + "TestGuidance::test_the_printed_post_verification_trusts_the_first_token",
        example="pending=1,2 answers=9,2 draft_tokens=4 target_tokens=7",
    ),
    Statement(
        id="double.alg3",
        title="Retrieval cache: longest ending first; warm-up, accepted, rejected, then the text",
        source="DOUBLE, appendix D.5, algorithm 3",
        verdict="holds",
        corrected=retrieval.retrieve,
        assumptions=("the last of several occurrences counts", "all but the warm-up is flushed per request"),
        domain="longest >= 1, span >= 0",
        check=_RETRIEVAL + "TestCache::test_against_string_search",
        example="text=0,1,2 longest=2 span=2 warm_up=5,6 dynamic=1,2,20,21 rejected=0,1,2,30",
    ),
)
