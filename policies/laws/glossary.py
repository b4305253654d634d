"""One name per quantity, the same in every law: what it means, its unit and its domain.

A law's parameters are all named here (a test sees to it), so that a value found once can be given to
every law that asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "integer", "vector", "matrix"]


@dataclass(frozen=True, slots=True)
class Term:
    """One parameter of the laws.

    Attributes:
        name: As typed at `laws eval`.
        meaning: What it is.
        unit: Of its value; empty for a pure number.
        domain: Values that make sense.
        kind: How it is typed: a number, `4,4,3`, or rows of a table separated by `;`.
        formerly: Its old name, which is still understood where it is typed.
    """

    name: str
    meaning: str
    unit: str = ""
    domain: str = ""
    kind: Kind = "number"
    formerly: str = ""


_STEP = "target steps"
_PROBS = "at least 0, sum 1"

_TERMS = (
    # acceptance and the shape of a round
    Term(
        "acceptance", "a, probability that a drafted token is accepted if the earlier ones were", "", "0..1"
    ),
    Term(
        "lookahead", "K (gamma elsewhere), drafted tokens per round", "tokens", "whole, at least 0", "integer"
    ),
    Term(
        "batch",
        "b, sequences that one target step serves",
        "sequences",
        "whole, at least 1, or inf",
        "integer",
    ),
    Term("vocabulary", "V, size of the vocabulary", "tokens", "whole, at least 1", "integer"),
    Term("rounds", "rounds since the first one, inf for the long run", "rounds", "whole, at least 0, or inf"),
    # the speculation cache
    Term(
        "fanout", "F_0,...,F_K, cached outcomes by accepted tokens", "outcomes", "whole, at least 0", "vector"
    ),
    Term("budget", "B, cached outcomes in all", "outcomes", "whole, at least 0", "integer"),
    Term("exponent", "r of the hit curve 1 - c F^-r", "", "above 0"),
    Term("scale", "c of the hit curve 1 - c F^-r; the paper has 1", "", "0..1"),
    Term("hit_curve", "hit probability of F = 0, 1, ... guesses, beginning with 0", "", "0..1", "vector"),
    Term("prefix", "verified tokens before the speculation", "tokens", "whole, at least 0", "integer"),
    Term("depth", "tokens drafted after a branch's start", "tokens", "whole, at least 1", "integer"),
    Term("p_hit", "probability that a round hits", "", "0..1"),
    Term("p_hit_primary", "p_hit,p, hit rate of rounds that verify the primary's tokens", "", "0..1"),
    Term("p_hit_backup", "p_hit,b, hit rate of rounds that verify the backup's tokens", "", "0..1"),
    Term("saguaro_scale", "C, factor on the probability of the draft's F likeliest tokens", "", "0..1"),
    Term(
        "top", "F, cached tokens per position, those that C scales", "tokens", "whole, at least 0", "integer"
    ),
    # tokens of a round
    Term("e_hit", "E_hit, mean tokens of a round after a hit", "tokens", "at least 1"),
    Term("e_miss", "E_miss, mean tokens of a round after a miss", "tokens", "at least 1"),
    Term("e_sd", "E_SD, mean tokens of a round of vanilla speculative decoding", "tokens", "at least 1"),
    # times
    Term("t_primary", "T_p, time of the primary's pre-speculation", _STEP, "at least 0"),
    Term("t_backup", "T_b, time of the backup's speculation", _STEP, "at least 0"),
    Term("t_sd", "T_SD, time of the whole speculation of vanilla speculative decoding", _STEP, "at least 0"),
    Term("t_draft", "time of one draft step", _STEP, "at least 0"),
    Term("t_target", "time of the target's whole pass", _STEP, "above 0"),
    Term("t_prefix", "time of the target's layers up to the early exit", _STEP, "at least 0"),
    Term("t_suffix", "Delta, time of the target's layers after the early exit", _STEP, "at least 0"),
    Term("t_window", "T_draft(gamma), time to draft a window, all candidates included", _STEP, "at least 0"),
    Term("t_rendezvous", "T_rv, both token exchanges of a step", _STEP, "at least 0"),
    Term("branch_cost", "time of drafting all branches over time of drafting one", "", "at least 1"),
    Term("speed_ratio", "C of DOUBLE, c of DuoDecoding: target step over draft step", "", "above 0"),
    Term("flops_ratio", "c^, work of a draft forward over that of a target forward", "", "above 0"),
    # distributions over the vocabulary, by token id
    Term("target_probs", "the target's distribution at a position", "", _PROBS, "vector", "target_law"),
    Term("draft_probs", "the draft's distribution at a position", "", _PROBS, "vector", "draft_law"),
    Term("exit_probs", "the early exit's distribution at a position", "", _PROBS, "vector", "proxy_law"),
    Term(
        "joint",
        "joint distribution of the draft's token (row) and the target's (column)",
        "",
        _PROBS,
        "matrix",
    ),
    Term("probabilities", "probabilities of single tokens, one after another", "", "0..1", "vector"),
    # tokens
    Term("draft_tokens", "ids of the drafted window", "", "whole, at least 0", "vector"),
    Term(
        "target_tokens",
        "ids of the target's own tokens, the first after the window's start first",
        "",
        "whole, at least 0",
        "vector",
    ),
    Term(
        "candidates", "ids of the early exit's candidates, row by position", "", "whole, at least 0", "matrix"
    ),
    # Mirror
    Term("width", "kappa, candidates that the early exit sends", "tokens", "whole, at least 0", "integer"),
    Term("overlap", "Omega, the target's mass on the early exit's candidates", "", "0..1"),
    Term("fallback", "FF, probability that nothing can be reused and the window is drafted anew", "", "0..1"),
    Term(
        "emissions",
        "eta_j, tokens of the draft's internal steps, one after another",
        "tokens",
        "whole, at least 1",
        "vector",
    ),
    Term(
        "internal_steps", "J, the draft's internal steps per window", "steps", "whole, at least 0", "integer"
    ),
    Term(
        "segments",
        "runs of layers between two synchronisations of the draft",
        "",
        "whole, at least 1",
        "integer",
    ),
    Term("layers", "N, layers of the target", "", "whole, at least 1", "integer"),
    Term("devices", "G, devices that share a model", "", "whole, at least 1", "integer"),
    Term("tokens", "S, tokens per sequence in a collective", "tokens", "whole, at least 1", "integer"),
    Term("hidden", "H, width of the hidden state", "words", "whole, at least 1", "integer"),
    Term("hop_time", "alpha of an all-reduce: latency of a hop", "any time", "at least 0"),
    Term("word_time", "beta of an all-reduce: time per word", "as hop_time", "at least 0"),
    # retrieval, guidance and trees
    Term("text", "tokens so far", "", "whole, at least 0", "vector"),
    Term("path", "the model's own greedy continuation of the text", "", "whole, at least 0", "vector"),
    Term("datastore", "texts that are searched, a row each", "", "whole, at least 0", "matrix"),
    Term("warm_up", "warm-up texts of the cache, a row each", "", "whole, at least 0", "matrix"),
    Term("span", "d (l, K), tokens retrieved at a time", "tokens", "whole, at least 0", "integer"),
    Term("dynamic", "texts accepted in this request, a row each", "", "whole, at least 0", "matrix"),
    Term("rejected", "rejected tokens after the words before them", "", "whole, at least 0", "matrix"),
    Term(
        "longest",
        "n_max (n, N), longest ending of the text looked up",
        "tokens",
        "whole, at least 1",
        "integer",
    ),
    Term(
        "shortest", "n_min, shortest ending of the text looked up", "tokens", "whole, at least 1", "integer"
    ),
    Term("count", "n, retrieved candidates at most", "", "whole, at least 0", "integer"),
    Term(
        "attempts",
        "draft tokens appended at most until something is found",
        "",
        "whole, at least 0",
        "integer",
    ),
    Term("top_k", "k, likeliest tokens of the draft", "tokens", "whole, at least 0", "integer"),
    Term("pending", "drafted tokens that were not judged yet", "", "whole, at least 0", "vector"),
    Term("answers", "the target's tokens at the pending positions", "", "whole, at least 0", "vector"),
    Term("root", "y_0, the token that the target emitted last", "", "whole, at least 0", "integer"),
    Term("retrieved", "retrieved candidates, a row each", "", "whole, at least 0", "matrix"),
    Term("draft_paths", "paths of the draft's tree, a row each", "", "whole, at least 0", "matrix"),
    Term("first_tokens", "first token of each drafted sequence", "", "whole, at least 0", "vector"),
    Term(
        "target_rows",
        "the target's distribution at each position, a row each",
        "",
        _PROBS,
        "matrix",
        "target_laws",
    ),
    Term(
        "draft_rows",
        "the distribution that each drafted token was drawn from, a row each",
        "",
        _PROBS,
        "matrix",
        "draft_laws",
    ),
    Term("target_table", "the target's distribution after each token, a row each", "", _PROBS, "matrix"),
    Term("draft_table", "the draft's distribution after each token, a row each", "", _PROBS, "matrix"),
    Term("uniforms", "coins that decide, one after another", "", "0..1, without 1", "vector"),
    Term("next_top", "p(1,2), the draft's highest probability after its likeliest first token", "", "0..1"),
    # runs up to a rejection, DuoDecoding's times, published pairs
    Term(
        "run_drafted",
        "L_d, drafted tokens of a run, the target's at its end included",
        "tokens",
        "at least 0",
    ),
    Term("run_bonus", "L_b, tokens of a run from the target's own retrieval", "tokens", "at least 0"),
    Term("run_rounds", "k, rounds of a run up to and including its rejection", "rounds", "at least 1"),
    Term("matched", "AMT, mean matched tokens of a retrieval forward", "tokens", "at least 0"),
    Term("t_verify", "time of a verification", _STEP, "above 0"),
    Term("t_communication", "time of the exchange between the devices", _STEP, "at least 0"),
    Term("verify_growth", "what a drafted token adds to a verification", _STEP, "at least 0"),
    Term("jitter_target", "coefficient of variation of a verification's time", "", "at least 0"),
    Term("jitter_draft", "coefficient of variation of a whole draft's time", "", "at least 0"),
    Term("largest", "largest value tried", "", "whole, at least 1", "integer"),
    Term("ttft_duo", "DuoDecoding's time to first token", "any time", "above 0"),
    Term("ttft_sd", "time to first token of vanilla speculative decoding", "as ttft_duo", "above 0"),
    Term("speedup", "SR, wall time of plain decoding over that of the method", "", "above 0"),
    Term("accepted_per_round", "tau, drafted tokens accepted per round", "tokens", "at least 0"),
)

GLOSSARY: dict[str, Term] = {term.name: term for term in _TERMS}
FORMERLY: dict[str, str] = {term.formerly: term.name for term in _TERMS if term.formerly}
"""Old names of terms."""
