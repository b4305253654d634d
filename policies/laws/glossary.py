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


def _probs(name: str, meaning: str, *, kind: Kind = "vector", formerly: str = "") -> Term:
    """One distribution over the vocabulary, by token id, or a row each."""
    return Term(name, meaning, "", "at least 0, sum 1", kind, formerly)


def _ids(name: str, meaning: str, *, kind: Kind = "vector") -> Term:
    """One text of token ids, or a row each."""
    return Term(name, meaning, "", "whole, at least 0", kind)


def _count(name: str, meaning: str, unit: str = "", *, least: int = 0) -> Term:
    return Term(name, meaning, unit, f"whole, at least {least}", "integer")


def _share(name: str, meaning: str, *, kind: Kind = "number") -> Term:
    return Term(name, meaning, "", "0..1", kind)


def _time(name: str, meaning: str, domain: str = "at least 0") -> Term:
    return Term(name, meaning, "target steps", domain)


_TERMS = (
    # acceptance and the shape of a round
    _share("acceptance", "a, probability that a drafted token is accepted if the earlier ones were"),
    _count("lookahead", "K (gamma elsewhere), drafted tokens per round", "tokens"),
    Term(
        "batch",
        "b, sequences that one target step serves",
        "sequences",
        "whole, at least 1, or inf",
        "integer",
    ),
    _count("vocabulary", "V, size of the vocabulary", "tokens", least=1),
    Term("rounds", "rounds since the first one, inf for the long run", "rounds", "whole, at least 0, or inf"),
    # the speculation cache
    Term(
        "fanout", "F_0,...,F_K, cached outcomes by accepted tokens", "outcomes", "whole, at least 0", "vector"
    ),
    _count("budget", "B, cached outcomes in all", "outcomes"),
    Term("exponent", "r of the hit curve 1 - c F^-r", "", "above 0"),
    _share("scale", "c of the hit curve 1 - c F^-r; the paper has 1"),
    _share("hit_curve", "hit probability of F = 0, 1, ... guesses, beginning with 0", kind="vector"),
    _count("prefix", "verified tokens before the speculation", "tokens"),
    _count("depth", "tokens drafted after a branch's start", "tokens", least=1),
    _share("p_hit", "probability that a round hits"),
    _share("p_hit_primary", "p_hit,p, hit rate of rounds that verify the primary's tokens"),
    _share("p_hit_backup", "p_hit,b, hit rate of rounds that verify the backup's tokens"),
    _share("saguaro_scale", "C, factor on the probability of the draft's F likeliest tokens"),
    _count("top", "F, cached tokens per position, those that C scales", "tokens"),
    # tokens of a round
    Term("e_hit", "E_hit, mean tokens of a round after a hit", "tokens", "at least 1"),
    Term("e_miss", "E_miss, mean tokens of a round after a miss", "tokens", "at least 1"),
    Term("e_sd", "E_SD, mean tokens of a round of vanilla speculative decoding", "tokens", "at least 1"),
    # times
    _time("t_primary", "T_p, time of the primary's pre-speculation"),
    _time("t_backup", "T_b, time of the backup's speculation"),
    _time("t_sd", "T_SD, time of the whole speculation of vanilla speculative decoding"),
    _time("t_draft", "time of one draft step"),
    _time("t_target", "time of the target's whole pass", "above 0"),
    _time("t_prefix", "time of the target's layers up to the early exit"),
    _time("t_suffix", "Delta, time of the target's layers after the early exit"),
    _time("t_window", "T_draft(gamma), time to draft a window, all candidates included"),
    _time("t_rendezvous", "T_rv, both token exchanges of a step"),
    Term("branch_cost", "time of drafting all branches over time of drafting one", "", "at least 1"),
    Term("speed_ratio", "C of DOUBLE, c of DuoDecoding: target step over draft step", "", "above 0"),
    Term("flops_ratio", "c^, work of a draft forward over that of a target forward", "", "above 0"),
    # distributions over the vocabulary, by token id
    _probs("target_probs", "the target's distribution at a position", formerly="target_law"),
    _probs("draft_probs", "the draft's distribution at a position", formerly="draft_law"),
    _probs("exit_probs", "the early exit's distribution at a position", formerly="proxy_law"),
    _probs("joint", "joint distribution of the draft's token (row) and the target's (column)", kind="matrix"),
    _share("probabilities", "probabilities of single tokens, one after another", kind="vector"),
    # tokens
    _ids("draft_tokens", "ids of the drafted window"),
    _ids("target_tokens", "ids of the target's own tokens, the first after the window's start first"),
    _ids("candidates", "ids of the early exit's candidates, row by position", kind="matrix"),
    # Mirror
    _count("width", "kappa, candidates that the early exit sends", "tokens"),
    _share("overlap", "Omega, the target's mass on the early exit's candidates"),
    _share("fallback", "FF, probability that nothing can be reused and the window is drafted anew"),
    Term(
        "emissions",
        "eta_j, tokens of the draft's internal steps, one after another",
        "tokens",
        "whole, at least 1",
        "vector",
    ),
    _count("internal_steps", "J, the draft's internal steps per window", "steps"),
    _count("segments", "runs of layers between two synchronisations of the draft", least=1),
    _count("layers", "N, layers of the target", least=1),
    _count("devices", "G, devices that share a model", least=1),
    _count("tokens", "S, tokens per sequence in a collective", "tokens", least=1),
    _count("hidden", "H, width of the hidden state", "words", least=1),
    Term("hop_time", "alpha of an all-reduce: latency of a hop", "any time", "at least 0"),
    Term("word_time", "beta of an all-reduce: time per word", "as hop_time", "at least 0"),
    # retrieval, guidance and trees
    _ids("text", "tokens so far"),
    _ids("path", "the model's own greedy continuation of the text"),
    _ids("datastore", "texts that are searched, a row each", kind="matrix"),
    _ids("warm_up", "warm-up texts of the cache, a row each", kind="matrix"),
    _count("span", "d (l, K), tokens retrieved at a time", "tokens"),
    _ids("dynamic", "texts accepted in this request, a row each", kind="matrix"),
    _ids("rejected", "rejected tokens after the words before them", kind="matrix"),
    _count("longest", "n_max (n, N), longest ending of the text looked up", "tokens", least=1),
    _count("shortest", "n_min, shortest ending of the text looked up", "tokens", least=1),
    _count("count", "n, retrieved candidates at most"),
    _count("attempts", "draft tokens appended at most until something is found"),
    _count("top_k", "k, likeliest tokens of the draft", "tokens"),
    _ids("pending", "drafted tokens that were not judged yet"),
    _ids("answers", "the target's tokens at the pending positions"),
    _count("root", "y_0, the token that the target emitted last"),
    _ids("retrieved", "retrieved candidates, a row each", kind="matrix"),
    _ids("draft_paths", "paths of the draft's tree, a row each", kind="matrix"),
    _ids("first_tokens", "first token of each drafted sequence"),
    _probs(
        "target_rows",
        "the target's distribution at each position, a row each",
        kind="matrix",
        formerly="target_laws",
    ),
    _probs(
        "draft_rows",
        "the distribution that each drafted token was drawn from, a row each",
        kind="matrix",
        formerly="draft_laws",
    ),
    _probs("target_table", "the target's distribution after each token, a row each", kind="matrix"),
    _probs("draft_table", "the draft's distribution after each token, a row each", kind="matrix"),
    Term("uniforms", "coins that decide, one after another", "", "0..1, without 1", "vector"),
    _share("next_top", "p(1,2), the draft's highest probability after its likeliest first token"),
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
    _time("t_verify", "time of a verification", "above 0"),
    _time("t_communication", "time of the exchange between the devices"),
    _time("verify_growth", "what a drafted token adds to a verification"),
    Term("jitter_target", "coefficient of variation of a verification's time", "", "at least 0"),
    Term("jitter_draft", "coefficient of variation of a whole draft's time", "", "at least 0"),
    _count("largest", "largest value tried", least=1),
    Term("ttft_duo", "DuoDecoding's time to first token", "any time", "above 0"),
    Term("ttft_sd", "time to first token of vanilla speculative decoding", "as ttft_duo", "above 0"),
    Term("speedup", "SR, wall time of plain decoding over that of the method", "", "above 0"),
    Term("accepted_per_round", "tau, drafted tokens accepted per round", "tokens", "at least 0"),
)

GLOSSARY: dict[str, Term] = {term.name: term for term in _TERMS}
FORMERLY: dict[str, str] = {term.formerly: term.name for term in _TERMS if term.formerly}
"""Old names of terms."""
