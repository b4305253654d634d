"""What is known of each formal statement of Mirror-SD.

The functions here only lead arguments as one types them to the laws.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.laws import matching, mirror, reuse, sampling
from policies.laws.statement import Statement

Vector = Sequence[float]
Ids = Sequence[int]
_LATENCY = "tests/policies/test_laws_mirror.py::"
_REUSE = "tests/policies/test_laws_mirror_reuse.py::"


def speculative_acceptance(target_law: Vector, draft_law: Vector) -> float:
    """Sum of min(p, q), of "the standard speculative rule" that the text speaks of: `sampling.acceptance`."""
    return sampling.acceptance(target_law, draft_law)


def reusable(draft_tokens: Ids, target_tokens: Ids, candidates: Sequence[Ids]) -> bool:
    """Whether the next window is prepared, candidates at each position: `reuse.can_reuse`."""
    return reuse.can_reuse(draft_tokens, target_tokens, reuse.each_paths(draft_tokens, candidates))


def reusable_printed(draft_tokens: Ids, target_tokens: Ids, candidates: Sequence[Ids]) -> bool:
    """The same with candidates at the first position, a greedy draft's tokens below: `reuse.can_reuse`.

    Below the root that is the drafted token lies the window itself; what lies below the other roots is
    never asked for, since an accepted prefix begins with the drafted token.
    """
    roots = candidates[0] if candidates else ()
    begun = [draft_tokens if root == draft_tokens[0] else (root,) for root in roots]
    return reuse.can_reuse(draft_tokens, target_tokens, reuse.first_paths(begun))


def step_time(
    t_prefix: float, t_suffix: float, t_window: float, t_rendezvous: float, fallback: float
) -> float:
    """T_prefix + T_rv + max(Delta, T_draft) + FF T_draft: `mirror.mirror_step_time`."""
    return mirror.mirror_step_time(t_prefix, t_suffix, t_window, t_rendezvous, fallback)


def target_communication(
    *, batch: int, tokens: int, hidden: int, layers: int, devices: int, hop_time: float, word_time: float
) -> float:
    """2 N all-reduces of b S H words, what tensor parallelism carries: `mirror.target_communication`."""
    return mirror.target_communication(batch * tokens * hidden, layers, devices, hop_time, word_time)


def target_communication_printed(
    *, batch: int, tokens: int, hidden: int, layers: int, devices: int, hop_time: float, word_time: float
) -> float:
    """2 N all-reduces of b S H / G words: `mirror.target_communication`."""
    message = batch * tokens * hidden / max(1, devices)
    return mirror.target_communication(message, layers, devices, hop_time, word_time)


def fallback_bound(acceptance: float, overlap: float, lookahead: int) -> float:
    """1 - Omega, the printed corollary's bound whatever the window: `reuse.fallback_bound_printed`."""
    del acceptance, lookahead
    return reuse.fallback_bound_printed(overlap)


STATEMENTS: tuple[Statement, ...] = (
    Statement(
        id="mirror.eq1-2",
        title="A sequence's probability is the product of its tokens'",
        source="Mirror-SD, equations 1 and 2",
        verdict="holds",
        corrected=mirror.sequence_probability,
        domain="probabilities; 1 for no tokens",
        check=_LATENCY + "test_sequences_sum_to_one",
        example="probabilities=0.5,0.8,0.9",
        aliases=("mirror.eq1", "mirror.eq2"),
    ),
    Statement(
        id="mirror.eq3",
        title="Acceptance by token matching",
        source="Mirror-SD, equations 3 and 11",
        verdict="caveat",
        corrected=matching.matching_acceptance,
        printed=speculative_acceptance,
        assumptions=("sampled decoding: target and draft draw independently",),
        domain="two laws over one vocabulary; greedy decoding is the one-hot case, in which both agree",
        counterexample="both uniform over V tokens: 1/V by the equation, 1 by the rule that the text names; "
        "the index y_<t+j-1 leaves out the last accepted token",
        check=_REUSE + "test_matching_against_enumeration",
        example="target_law=0.6,0.3,0.1 draft_law=0.5,0.4,0.1",
        aliases=("mirror.eq11",),
    ),
    Statement(
        id="mirror.eq4",
        title="Accepted share of a window",
        source="Mirror-SD, equation 4",
        verdict="holds",
        corrected=mirror.window_acceptance,
        assumptions=("iid acceptance",),
        domain="acceptance in 0..1; gamma = 0 is given the value of gamma = 1",
        check=_LATENCY + "test_window_acceptance_by_enumeration",
        example="acceptance=0.8 lookahead=7",
    ),
    Statement(
        id="mirror.eq5",
        title="Serial step of speculative decoding",
        source="Mirror-SD, equation 5",
        verdict="holds",
        corrected=mirror.sd_step_time,
        assumptions=("neither side begins before the other has ended",),
        domain="times >= 0",
        check=_LATENCY + "test_step_times_against_a_schedule",
        example="t_window=0.4 t_target=1",
    ),
    Statement(
        id="mirror.eq6-8",
        title="Candidates of the early exit and their rollout, in tokens",
        source="Mirror-SD, equations 6 to 8",
        verdict="holds",
        corrected=reuse.rollout_tokens,
        printed=reuse.rollout_tokens_printed,
        assumptions=("prefixes of a branch are drafted once; printed: each prefix length is a rollout",),
        domain="kappa, gamma >= 0; kappa = 0 drafts nothing",
        counterexample="kappa = 1, gamma = 2: two tokens give both prefixes, not three",
        check=_REUSE + "test_candidates_and_their_rollout",
        example="width=8 lookahead=7",
        aliases=("mirror.eq6", "mirror.eq7", "mirror.eq8"),
    ),
    Statement(
        id="mirror.reuse",
        title="When the next window is already prepared",
        source="Mirror-SD, section 3.1",
        verdict="caveat",
        corrected=reusable,
        printed=reusable_printed,
        assumptions=(
            "corrected: candidates at each position (figure 1)",
            "printed: at the first position only",
        ),
        domain="a window accepted in full has no correction: it needs the target's next token",
        counterexample="window 5 7, target 5 8: found only if 8 is a candidate at the second position",
        check=_REUSE + "test_reuse_in_both_readings",
        example="draft_tokens=5,7 target_tokens=5,8 candidates=5,6;7,8",
    ),
    Statement(
        id="mirror.eq9",
        title="Overlap mass",
        source="Mirror-SD, equation 9",
        verdict="holds",
        corrected=reuse.overlap_mass,
        domain="two laws over one vocabulary, kappa >= 0; 0 at 0, 1 at V",
        check=_REUSE + "test_overlap_rises_with_width",
        example="target_law=0.40,0.35,0.25 proxy_law=0.70,0.05,0.25 width=1",
    ),
    Statement(
        id="mirror.ss",
        title="Internal steps of a streaming draft",
        source="Mirror-SD, section 3.2",
        verdict="holds",
        corrected=matching.streaming_steps,
        domain="emissions >= 1 that reach gamma; 0 steps for gamma = 0",
        check=_REUSE + "test_streaming_steps_and_their_bounds",
        example="lookahead=7 emissions=2,3,1,4",
    ),
    Statement(
        id="mirror.J",
        title="Bound of the internal steps",
        source="Mirror-SD, section 3.2 and appendix C",
        verdict="wrong",
        corrected=matching.streaming_bound,
        printed=matching.streaming_bound_printed,
        assumptions=("printed: every step emits the same",),
        domain="as mirror.ss",
        counterexample="gamma = 2, eta = (1, 4): J = 2 > ceil(2 / 2.5) = 1",
        check=_REUSE + "test_streaming_steps_and_their_bounds",
        example="lookahead=2 emissions=1,4",
    ),
    Statement(
        id="mirror.eq10",
        title="Step of Mirror-SD",
        source="Mirror-SD, equations 10 and 14",
        verdict="caveat",
        corrected=step_time,
        printed=mirror.mirror_step_time_printed,
        assumptions=(
            "T_draft includes the rollout of all candidates",
            "printed: every window can be reused",
            "corrected: a fresh window is drafted after the step, serially",
        ),
        domain="times >= 0, FF in 0..1; Delta = 0: SD's step and the rendezvous",
        counterexample="T_draft = 2 Delta, T_rv = .01, FF = .6: slower than SD though T_rv < Delta",
        check=_LATENCY + "test_step_times_against_a_schedule",
        example="t_prefix=0.5 t_suffix=0.5 t_window=1 t_rendezvous=0.01 fallback=0.6",
        aliases=("mirror.eq14",),
    ),
    Statement(
        id="mirror.comm",
        title="Communication of the target's tensor parallelism",
        source="Mirror-SD, appendix C",
        verdict="caveat",
        corrected=target_communication,
        printed=target_communication_printed,
        assumptions=("an all-reduce takes alpha log G + beta M", "two of them per layer"),
        domain="counts >= 1, times >= 0",
        counterexample="a rank of Megatron's all-reduce carries b S H words, not b S H / G",
        check=_LATENCY + "test_communication_by_adding_collectives",
        example="batch=1 tokens=8 hidden=5120 layers=64 devices=8 hop_time=5e-6 word_time=1e-11",
    ),
    Statement(
        id="mirror.shard",
        title="Synchronisations of the sharded draft",
        source="Mirror-SD, section 3.3",
        verdict="holds",
        corrected=mirror.draft_collectives,
        assumptions=("no traffic within a segment",),
        domain="J >= 0, segments >= 1",
        check=_LATENCY + "test_communication_by_adding_collectives",
        example="internal_steps=3",
    ),
    Statement(
        id="mirror.sched",
        title="Candidates and streams by batch size",
        source="Mirror-SD, appendix D.1",
        verdict="caveat",
        corrected=mirror.batch_schedule,
        domain="batch 1, 8, 16, 32 and from 64 on",
        counterexample="batch 2 and 4 are not defined; figure 6b has three streams at batch 1, D.1 two",
        check=_LATENCY + "test_schedule",
        example="batch=16",
    ),
    Statement(
        id="mirror.reloverhead",
        title="Share of the draft time that stays exposed",
        source="Mirror-SD, appendix D.1",
        verdict="holds",
        corrected=mirror.exposed_draft_share,
        domain="times >= 0; 0 where the draft takes no time",
        check=_LATENCY + "test_exposed_share_against_a_schedule",
        example="t_suffix=0.5 t_window=0.8",
    ),
    Statement(
        id="mirror.eq12-13",
        title="Equal law of the draft, equal law of the accepted length",
        source="Mirror-SD, equations 12 and 13, appendix B",
        verdict="caveat",
        corrected=matching.match_probability,
        printed=matching.match_probability_printed,
        assumptions=("printed: draft and target tokens are independent given the context",),
        domain="a joint law, draft by row",
        counterexample="target uniform on 2 tokens, draft always equal to it: P(A = 1) = 1, not 1/2",
        check=_REUSE + "test_marginals_do_not_suffice",
        example="joint=0.5,0;0,0.5",
        aliases=("mirror.eq12", "mirror.eq13"),
    ),
    Statement(
        id="mirror.eq15",
        title="Loss of the early exits",
        source="Mirror-SD, equation 15, appendix E.2",
        verdict="caveat",
        corrected=mirror.exit_loss,
        assumptions=(
            "the backbone is frozen",
            "three exits are trained, each with H^2 parameters (`mirror.adapter_share`)",
        ),
        domain="probabilities of the true token; inf where one is 0",
        counterexample="the sizes printed (.18 % of 14B, .08 % of 32B) are of one exit; three: .53 %, .24 %",
        check=_LATENCY + "test_exit_loss_and_adapter_size",
        example="probabilities=0.5,0.7,0.9",
    ),
    Statement(
        id="mirror.prop1",
        title="More candidates, fewer fallbacks, at most 1 - Omega",
        source="Mirror-SD, proposition 1 and its corollary, appendix E.3",
        verdict="wrong",
        corrected=reuse.fallback,
        printed=fallback_bound,
        assumptions=(
            "corrected: iid positions, candidates at each of them",
            "the drafted token is a candidate",
        ),
        domain="acceptance <= overlap <= 1; printed: windows of one token",
        counterexample="a = .9, Omega = .95, gamma = 7: .261 > .05; at the first position only .472, "
        "and it does not vanish as kappa grows to V",
        check=_REUSE + "test_fallback_in_both_readings_against_windows",
        example="acceptance=0.9 overlap=0.95 lookahead=7",
    ),
    Statement(
        id="mirror.prop2",
        title="Deeper exits overlap more",
        source="Mirror-SD, proposition 2, appendix E.4",
        verdict="wrong",
        corrected=reuse.overlap_floor,
        printed=reuse.overlap_limit,
        assumptions=("corrected: a lower bound of Omega", "printed: the proxy has the target's own top set"),
        domain="two laws over one vocabulary, kappa >= 0",
        counterexample="q = (.40 .35 .25), kappa = 1: exit (.70 .05 .25) is off by .30 and has Omega .40, "
        "the better one (.35 .45 .20) is off by .10 and has .35",
        check=_REUSE + "test_overlap_floor_and_margin",
        example="target_law=0.40,0.35,0.25 proxy_law=0.35,0.45,0.20 width=1",
    ),
)
