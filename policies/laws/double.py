"""Laws of DOUBLE and PEARL: runs up to a rejection, rates of pipelines, what guidance commits.

g (`lookahead`) is the drafted tokens per round, a the iid acceptance, C (`speed_ratio`) the target step over
the draft step.  A *run* is the rounds from just after a rejection up to and including the next round that
rejects; a *pipeline* drafts the next block while it verifies this one.

The paper's theorem 2 counts the last round of a run like any other, although it is known to reject;
everything built on it promises too much.  The forms as printed end in `_printed`.  Drafting by retrieval is
in `policies.laws.retrieval`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from policies.laws.law import FloatArray, law, peak
from policies.laws.retrieval import Tokens, common_prefix
from policies.laws.sampling import draw, reject, token_probs
from policies.laws.ssd import expected_tokens

# Runs of rounds


@law()
def rounds_per_run(acceptance: float, lookahead: float) -> float:
    """Mean rounds up to and including the first that rejects: k = 1/(1 - a^g)  (`double.eq8`).

    Infinite at a = 1, and at g = 0, where nothing is drafted and nothing can be rejected.
    """
    if lookahead == 0.0 or acceptance == 1.0:
        return math.inf
    # Without the cancellation near a = 1.
    return -1.0 / math.expm1(lookahead * math.log(acceptance)) if acceptance > 0.0 else 1.0


def _tokens(a: float, g: float) -> float:
    """E(a, g) = (1 - a^(g+1))/(1 - a), g + 1 at a = 1; `expected_tokens` is for whole g only."""
    if a in (0.0, 1.0):
        return 1.0 if a == 0.0 else g + 1.0
    return -math.expm1((g + 1.0) * math.log(a)) / (1.0 - a)


@law()
def run_tokens(acceptance: float, lookahead: float) -> float:
    """Mean tokens of a run of plain speculative decoding: k E(a, g)  (`double.thm2`, corrected).

    Wald's identity: k rounds of E(a, g) tokens each, since whether a run ends is decided round by round.
    The printed form counts the last round as one that need not reject.  Infinite where k is.
    """
    return rounds_per_run(acceptance, lookahead) * _tokens(acceptance, lookahead)


@law()
def run_tokens_printed(acceptance: float, lookahead: float) -> float:
    """E[L_k] = (k - 1)(g + 1) + E(a, g) as printed (`double.thm2`, eq. 3, 9 and 10); too high.

    a = .8, g = 4: 6.830 where runs have 5.694 tokens.  The excess is a^g ((g + 1) - E[L | rejected]),
    up to 17 % at g = 1 and 21 % at g = 12; none at a = 0, nor in the limit a = 1.
    """
    k = rounds_per_run(acceptance, lookahead)
    return (k - 1.0) * (lookahead + 1.0) + _tokens(acceptance, lookahead)


@law()
def sd_run_speedup(acceptance: float, lookahead: float, speed_ratio: float) -> float:
    """Speedup of plain speculative decoding over AR: E(a, g) C/(g + C)  (`double.eq11`, corrected).

    The `sd_speedup` of `policies.laws.ssd` at t_draft = 1/C, verification of g + 1 tokens costing one target
    step.  g = 0 gives 1, a = 1 (g + 1) C/(g + C).
    """
    return _tokens(acceptance, lookahead) * speed_ratio / (lookahead + speed_ratio)


@law()
def sd_run_speedup_printed(acceptance: float, lookahead: float, speed_ratio: float) -> float:
    """S_SD = E[L_k] C/(k (g + C)) as printed (`double.eq11`); too high by the factor of theorem 2.

    a = .8, g = C = 4: 2.016, exact 1.681.
    """
    rejects = 1.0 / rounds_per_run(acceptance, lookahead)
    # Divided by k, so that infinite runs have their limit.
    tokens = (1.0 - rejects) * (lookahead + 1.0) + rejects * _tokens(acceptance, lookahead)
    return tokens * speed_ratio / (lookahead + speed_ratio)


@law(lookahead="at least 1")
def pipeline_run_tokens(acceptance: float, lookahead: float) -> float:
    """Mean tokens of a run of a pipeline, which has no bonus token: 1/(1 - a)  (`double.eq12`, corrected).

    Equation 12, E[L_p] = E[L_k] - (k - 1), is right, and exact once E[L_k] is: every round that does not
    reject gives up its bonus token.  What is left does not depend on g: a run's accepted tokens and
    the target's one at its end.  Infinite at a = 1, where no run ends.
    """
    return 1.0 / (1.0 - acceptance) if acceptance < 1.0 else math.inf


@law(lookahead="at least 1")
def pipeline_run_tokens_printed(acceptance: float, lookahead: float) -> float:
    """E[L_p] = (k - 1) g + E(a, g): equation 12 with the printed E[L_k]  (`double.eq12`).

    Too high by the excess of `run_tokens_printed`.  Infinite at a = 1.
    """
    return (rounds_per_run(acceptance, lookahead) - 1.0) * lookahead + _tokens(acceptance, lookahead)


@law(lookahead="at least 1")
def pearl_run_length(acceptance: float, lookahead: int) -> float:
    """Accepted drafted tokens between two rejections (`run_length`; PEARL's and DOUBLE's M): a/(1 - a).

    With iid acceptance it is the same for every lookahead: a run goes on over the ends of blocks, and
    each of its tokens is accepted with a.  The target's own token that ends the run is not counted;
    with it there are 1/(1 - a).  Infinite at a = 1, where only the end of the text ends a run.
    """
    return acceptance * pipeline_run_tokens(acceptance, lookahead)


# Rates of pipelines


@law(lookahead="at least 1")
def pearl_speedup(acceptance: float, lookahead: int, speed_ratio: float) -> float:
    """Speedup over AR of a pre/post-verifying pipeline: the exact rate S_PEARL under `double.thm3`.

    (1 - a^g) / ((1 - a)(1 - a^g + a)) * C / max(g, C), and g C / max(g, C) at a = 1.  The printed
    S_PSD is another form, off by +19 % to -50 % for such a pipeline.
    """
    rate = speed_ratio / max(float(lookahead), speed_ratio)
    if acceptance == 1.0:
        return lookahead * rate
    full = acceptance**lookahead
    return (1.0 - full) / ((1.0 - acceptance) * (1.0 - full + acceptance)) * rate


@law(lookahead="at least 1")
def plain_pipeline_speedup(acceptance: float, lookahead: int, speed_ratio: float) -> float:
    """Speedup over AR of a pipeline without pre-verification: S_plain under `double.thm3`.

    Between two rejections it emits 1/(1 - a) tokens in k = 1/(1 - a^g) rounds of max(g, C) draft steps
    and one bubble, in which a block is drafted while the target waits:
    1/(1 - a) / (g/C + k max(g, C)/C); g C / max(g, C) at a = 1.
    """
    round_time = max(float(lookahead), speed_ratio) / speed_ratio
    if acceptance == 1.0:
        return lookahead / round_time
    rounds = 1.0 / (1.0 - acceptance**lookahead)
    return 1.0 / (1.0 - acceptance) / (lookahead / speed_ratio + rounds * round_time)


@law(lookahead="at least 1")
def psd_speedup_printed(acceptance: float, lookahead: int, speed_ratio: float) -> float:
    """S_PSD as printed (`double.thm3`), for comparison only: E[L_p] C / (k g + C).

    k = 1/(1 - a^g) rounds and E[L_p] = (k - 1) g + E(a, g) tokens per run.  It overcounts tokens (the
    last round of a run is conditioned on its rejection) and, for g < C, forgets that a round lasts at
    least a target step.  Use `plain_pipeline_speedup` or `pearl_speedup`.
    """
    if acceptance == 1.0:
        return speed_ratio
    rounds = 1.0 / (1.0 - acceptance**lookahead)
    tokens = (rounds - 1.0) * lookahead + expected_tokens(acceptance, lookahead)
    return tokens * speed_ratio / (rounds * lookahead + speed_ratio)


@law()
def psd_ceiling(speed_ratio: float) -> float:
    """Ceiling C of the speedup of a draft/verify pipeline without retrieval (`double.thm3`).

    However good the draft is, a token costs a draft step.  It binds `pearl_speedup` and
    `plain_pipeline_speedup` everywhere; `psd_speedup_printed` exceeds it for C < 1.
    """
    return speed_ratio


@law(lookahead="at least 1")
def psd_middle_bound(acceptance: float, lookahead: float, speed_ratio: float) -> float:
    """Bound k g C/(k g + C), which `double.thm3` puts between S_PSD and C; the first half is wrong.

    S_PSD as printed passes it whenever E(a, g) > g, e.g. a = .95, g = 2, C = 3: 2.726 > 2.617.  The bound
    never passes C.  C at a = 1.
    """
    return lookahead * speed_ratio / (lookahead + speed_ratio / rounds_per_run(acceptance, lookahead))


@law()
def balanced_lookahead(speed_ratio: float) -> int:
    """Lookahead at which drafting a block takes as long as verifying one: ceil(C)  (`double.gamma`).

    PEARL's and DOUBLE's choice.  DuoDecoding's is C itself (`duo.budget`).  By `pearl_speedup` the best
    is floor(C) or ceil(C): where C is not whole, floor unless the acceptance is high; `best_lookahead`
    decides.  Rounding up keeps the draft busy at the price of a target that waits for it.  At least 1, also
    where the draft is the slower model.
    """
    return max(1, math.ceil(speed_ratio * (1.0 - 1e-9)))  # 2.1 / .3 is a little above 7


@law()
def best_lookahead(
    acceptance: float,
    speed_ratio: float,
    rate_function: Callable[[float, int, float], float] = pearl_speedup,
    *,
    longest: int | None = None,
) -> int:
    """The lookahead of the highest rate, the smallest of equals.

    For `pearl_speedup` it is floor(C) or ceil(C) (at least 1): its tokens per round rise with g and are
    concave, so that up to C a longer block is better and beyond C a shorter one.  (Where a^g is lost in
    rounding, longer blocks gain nothing and a shorter one is returned.)

    Args:
        acceptance: iid acceptance a.
        speed_ratio: C.
        rate_function: Rate by (acceptance, lookahead, speed_ratio).
        longest: Largest lookahead tried, at least 1; 2 ceil(C) by default.
    """
    most = 2 * math.ceil(speed_ratio) if longest is None else longest

    def rate(lookahead: int) -> float:
        return rate_function(acceptance, lookahead, speed_ratio)

    return peak(rate, range(1, max(1, most) + 1), single=False)


# DOUBLE's own speed


@law(lookahead="at least 1")
def double_speedup(
    run_drafted: float, run_bonus: float, run_rounds: float, lookahead: float, speed_ratio: float
) -> float:
    """Speedup of DOUBLE over AR: (L_d + L_b) C / (k max(f, C) + f)  (`double.eq7`, corrected).

    A run is k rounds, each as long as the slower of f draft forwards (`lookahead`) and one target step, and
    one bubble in which a block is drafted while the target waits.  Matched tokens enter through L_d and L_b
    only: a retrieval forward takes the time of a plain one and yields more tokens.  With f = C it is the
    printed form with its gamma read as tokens, f (1 + AMT).  Infinite k needs infinite tokens and has no
    value.
    """
    time = run_rounds * max(lookahead, speed_ratio) + lookahead
    return (run_drafted + run_bonus) * speed_ratio / time


@law(lookahead="at least 1")
def double_speedup_printed(
    run_drafted: float,
    run_bonus: float,
    run_rounds: float,
    lookahead: float,
    speed_ratio: float,
    *,
    matched: float = 0.0,
) -> float:
    """(L_d + L_b) C'/(k g + C'), C' = C (1 + AMT), as printed (`double.eq7`).

    The paper calls both the retrieval forwards and the drafted tokens gamma.  The units fit only with g in
    tokens: for 4 forwards, AMT = 1, a = .95 and C = 4 the exact rate is 5.04; g = 8 tokens gives 5.83,
    g = 4 forwards 9.32.  The claimed ceiling C' needs L_d + L_b <= k g + C' (see `double_ceiling_binds`).
    """
    fast = speed_ratio * (1.0 + matched)
    return (run_drafted + run_bonus) * fast / (run_rounds * lookahead + fast)


@law()
def double_ceiling_binds(
    run_drafted: float,
    run_bonus: float,
    run_rounds: float,
    lookahead: float,
    speed_ratio: float,
    *,
    matched: float = 0.0,
) -> bool:
    """Whether the ceiling C (1 + AMT) of `double.eq7` holds: L_d + L_b <= k g + C (1 + AMT).

    Tokens that the target retrieves for itself cost no draft time, so that nothing bounds L_b:
    L_d = 1, L_b = 10, k = 1, g = C = 2, AMT = 0 gives 5.5 > 2.
    """
    return run_drafted + run_bonus <= run_rounds * lookahead + speed_ratio * (1.0 + matched)


@law()
def draft_length(lookahead: float, matched: float) -> float:
    """Mean tokens of f retrieval forwards with AMT matched tokens each: f (1 + AMT)  (`double.eq5`).

    The paper takes f = C.  The 1 is the model's own token, which equation 5 as printed leaves out.
    """
    return lookahead * (1.0 + matched)


# Guidance.  X_q (`draft_tokens`) is what the draft proposes after the text, Y_p (`target_tokens`) what the
# target's own retrieval forward yields there: matched tokens and one of its own.  Greedy throughout, but for
# `guide_sampled`.


@dataclass(frozen=True, slots=True)
class Guided:
    """Outcome of comparing a draft with the target's guidance.

    Attributes:
        committed: Tokens that are now part of the text.
        accepted: How many of them were drafted.
        pending: Drafted tokens after them that nothing has judged yet.
        outcome: `correction`: a drafted token was replaced; `extension`: all were right, and the
            guidance reached beyond them; `pending`: the guidance ended first.
    """

    committed: tuple[int, ...]
    accepted: int
    pending: tuple[int, ...]
    outcome: Literal["correction", "extension", "pending"]


def _accepted(draft_tokens: Tokens, target_tokens: Tokens) -> int:
    if len(target_tokens) == 0:
        raise ValueError("target_tokens is empty: a retrieval forward always yields the target's own token")
    return common_prefix(draft_tokens, target_tokens)


def guide(draft_tokens: Tokens, target_tokens: Tokens) -> Guided:
    """x_1 ... x_(i-1) and then y_i ... y_(s+1), i the first mismatch (`double.eq6`); greedy decoding.

    Lossless, since every y is the target's greedy token after the ones before it: what is committed is a
    beginning of the target's own path, and at least one token of it.  An empty Y_p is an error.
    """
    accepted = _accepted(draft_tokens, target_tokens)
    if accepted == len(target_tokens) < len(draft_tokens):
        return Guided(tuple(draft_tokens[:accepted]), accepted, tuple(draft_tokens[accepted:]), "pending")
    committed = (*draft_tokens[:accepted], *target_tokens[accepted:])
    return Guided(committed, accepted, (), "extension" if accepted == len(draft_tokens) else "correction")


def guide_sampled(
    draft_tokens: Tokens,
    target_tokens: Tokens,
    target_rows: Sequence[FloatArray],
    draft_rows: Sequence[FloatArray],
    uniforms: Sequence[float],
) -> Guided:
    """Guidance with sampling (`double.eq19`): after a rejection the rest of the guidance is dropped.

    Each drafted token is accepted with min(1, p/q); a rejected one is replaced by a token of the residual
    norm(max(p - q, 0)), by which y_(i+1) ... lose their condition.  The target knows p only along its own
    tokens, so that an accepted token beside them leaves the rest of the draft pending.  Where all drafted
    tokens are accepted and lie on the guidance, its remainder is committed too.  Lossless if each
    y_i was drawn from target_rows[i] and not from the coins used here.

    Args:
        draft_tokens: X_q, L tokens.
        target_tokens: Y_p, s + 1 tokens, at least one.
        target_rows: [s + 1, V] target's distribution of each token of the guidance.
        draft_rows: [L, V] distribution that each drafted token was drawn from.
        uniforms: [L + 1] coins in [0, 1): one per drafted token, the last for the residual.

    Raises:
        ValueError: Shapes or tokens that do not fit.
    """
    judged = _first_rejected(draft_tokens, target_tokens, target_rows, draft_rows, uniforms)
    i = judged.accepted
    if judged.outcome != "correction":
        return judged
    token = draw(reject(target_rows[i], draft_rows[i]), uniforms[-1])
    return Guided((*judged.committed, token), i, (), "correction")


def guide_sampled_printed(
    draft_tokens: Tokens,
    target_tokens: Tokens,
    target_rows: Sequence[FloatArray],
    draft_rows: Sequence[FloatArray],
    uniforms: Sequence[float],
) -> Guided:
    """Equation 6 taken literally with sampling: a rejected x_i makes way for y_i ... y_(s+1); biased.

    y_i comes from the target's distribution and not from the residual: p = (.9, .1) and q = (.5, .5) emit the
    first token with min(p, q) + (1 - .6) p = .86 instead of .9.  Arguments and errors are those of
    `guide_sampled`; the last coin is not used.
    """
    judged = _first_rejected(draft_tokens, target_tokens, target_rows, draft_rows, uniforms)
    if judged.outcome != "correction":
        return judged
    committed = (*judged.committed, *target_tokens[judged.accepted :])
    return Guided(committed, judged.accepted, (), "correction")


def _first_rejected(
    draft_tokens: Tokens,
    target_tokens: Tokens,
    target_rows: Sequence[FloatArray],
    draft_rows: Sequence[FloatArray],
    uniforms: Sequence[float],
) -> Guided:
    """What coins accept; a `correction` still lacks the token that replaces the rejected one."""
    if not 0 < len(target_tokens) == len(target_rows):
        raise ValueError(
            "needs a distribution for each of at least one target token: "
            f"{len(target_tokens)}, {len(target_rows)}"
        )
    if len(draft_tokens) != len(draft_rows) or len(uniforms) != len(draft_tokens) + 1:
        raise ValueError(
            f"{len(draft_tokens)} drafted tokens need as many distributions and one coin more: "
            f"{len(draft_rows)}, {len(uniforms)}"
        )
    sizes = {len(token_probs("a row", row)) for row in (*target_rows, *draft_rows)}
    if len(sizes) != 1 or not all(0 <= token < min(sizes) for token in (*draft_tokens, *target_tokens)):
        raise ValueError(f"tokens and distributions need one vocabulary, got some of {sorted(sizes)} tokens")
    done = tuple(draft_tokens)
    for i, token in enumerate(done):
        if i == len(target_tokens):
            return Guided(done[:i], i, done[i:], "pending")
        if uniforms[i] * draft_rows[i][token] >= target_rows[i][token]:  # strict: probability 0 never passes
            return Guided(done[:i], i, (), "correction")
        if token != target_tokens[i] and i + 1 < len(done):
            return Guided(done[: i + 1], i + 1, done[i + 1 :], "pending")
    on_path = done == tuple(target_tokens[: len(done)])
    rest = tuple(target_tokens[len(done) :]) if on_path else ()
    return Guided((*done, *rest), len(done), (), "extension")


def step(
    pending: Tokens, answers: Tokens, draft_tokens: Tokens, target_tokens: Tokens
) -> tuple[Guided, Literal["pre-verify", "post-verify"]]:
    """One step of DOUBLE, greedy, and the mode of the next (`double.alg1` and `double.alg2`, corrected).

    Pre-verify is the case with nothing pending.  Pending tokens are judged first, by the target's answers;
    all right, the new draft is compared with the guidance as in `guide`.  Every step commits at
    least one token, and only tokens of the target's path.

    Args:
        pending: Drafted tokens of the last step that were not judged, which the draft continued.
        answers: The target's greedy token at each of their positions, given the pending ones before it.
        draft_tokens: X_q, what the draft proposes after the pending tokens.
        target_tokens: Y_p, what the target yields after the pending tokens; worth nothing if one is wrong.

    Raises:
        ValueError: As many answers as pending tokens are needed; `target_tokens` empty.
    """
    if len(answers) != len(pending):
        raise ValueError(f"{len(pending)} pending tokens need as many answers, got {len(answers)}")
    right = common_prefix(pending, answers)
    if right < len(pending):
        return Guided((*pending[:right], answers[right]), right, (), "correction"), "pre-verify"
    guided = guide(draft_tokens, target_tokens)
    committed = (*pending, *guided.committed)
    result = Guided(committed, right + guided.accepted, guided.pending, guided.outcome)
    return result, "post-verify" if guided.pending else "pre-verify"


def preverify(draft_tokens: Tokens, target_tokens: Tokens) -> Guided:
    """A step with nothing pending (`double.alg1`, corrected): `step`."""
    return step((), (), draft_tokens, target_tokens)[0]


def postverify(pending: Tokens, answers: Tokens, draft_tokens: Tokens, target_tokens: Tokens) -> Guided:
    """A step that judges pending tokens first (`double.alg2`, corrected): `step`."""
    return step(pending, answers, draft_tokens, target_tokens)[0]


def preverify_printed(draft_tokens: Tokens, target_tokens: Tokens) -> tuple[int, ...]:
    """Tokens appended in pre-verify mode as printed (`double.alg1`, lines 13 to 20): X_q or Y_p[:n].

    n is the number of drafted tokens accepted, which makes the test n = n_p for "all accepted" come out.
    But Y_p[:n] then holds accepted tokens only: with the first token wrong nothing is committed, and
    greedy decoding stands still for ever.  X_q is appended whole although only n_p of its tokens
    were judged: the rest is pending.  An empty Y_p is an error.
    """
    accepted = _accepted(draft_tokens, target_tokens)
    return tuple(draft_tokens) if accepted == len(target_tokens) else tuple(target_tokens[:accepted])


def postverify_printed(
    pending: Tokens, answers: Tokens, draft_tokens: Tokens, target_tokens: Tokens
) -> tuple[int, ...]:
    """Text after the last judged token in post-verify mode as printed (`double.alg2`).

    All pending tokens but the first are judged (`prev_tokens - 1`), since pre-verification appends the
    n_p >= 1 tokens it has judged together with the rest.  So it is right on what the printed pre-verification
    leaves, and judges n_p - 1 tokens twice; of tokens that nothing has judged a wrong first one would stay.
    Given are the pending tokens kept and what follows them; a tail of drafted tokens may still be unjudged.
    No pending token, or not as many answers, is an error.
    """
    if not pending or len(answers) != len(pending):
        raise ValueError(f"needs a pending token and as many answers: {len(pending)}, {len(answers)}")
    right = common_prefix(pending[1:], answers[1:])
    if right < len(pending) - 1:
        return (*pending[: right + 1], answers[right + 1])
    if len(target_tokens) == common_prefix(draft_tokens, target_tokens) < len(draft_tokens):
        return (*pending, *draft_tokens)
    return (*pending, *target_tokens)
