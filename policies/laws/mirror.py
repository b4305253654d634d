"""Laws of Mirror-SD: drafting beside the target's later layers, what can be reused, streaming drafts.

The target's step is split at an early exit: T_prefix before it, Delta = T_suffix after it.  From the exit's
candidates the draft prepares the next window, of g (`lookahead`) tokens, in T_window while the suffix runs
(`mirror.eq10`).  Times are in any unit, the same for all of them.

Two operators of acceptance: token matching, which the paper's equations say, accepts a sampled token with
probability sum p q; speculative sampling, which its text says, with sum min(p, q), never less.

Two readings of where the candidates stand, by name:

- `first`: at the first position only, with the draft's continuation below each (the paper's formal text).
  A correction after an accepted token then lies below the root that is the accepted token, where the
  tree repeats the window that was just rejected: a greedy draft never finds it.
- `each`: at every position, below the drafted tokens before it (its Figure 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from policies.laws.law import FloatArray, law
from policies.laws.retrieval import Tokens, common_prefix
from policies.laws.sampling import pair, top_tokens

Path: TypeAlias = tuple[int, ...]
Source: TypeAlias = Literal["branch", "continuation", "fresh"]

DRAFT_COLLECTIVES = 2
TARGET_COLLECTIVES = 2
"""All-reduces per layer of a target with tensor parallelism: attention and MLP."""

_SCHEDULE = {1: (8, 2), 8: (8, 2), 16: (4, 1), 32: (2, 1)}
_WIDE_BATCH = 64

# Acceptance of a window


@law()
def sequence_probability(probabilities: Sequence[float]) -> float:
    """Probability of a sequence: the product of its tokens' conditional ones (`mirror.eq1-2`).

    `probabilities` are p(y_t | before); 1 for an empty sequence.
    """
    return float(np.prod(np.asarray(probabilities, dtype=np.float64)))


@law()
def accepted_tokens(acceptance: float, lookahead: int) -> float:
    """E[A_t] with iid acceptance: a + a^2 + ... + a^g, without the correction (`mirror.eq4`)."""
    return float(np.power(acceptance, np.arange(1, lookahead + 1)).sum())


@law()
def window_acceptance(acceptance: float, lookahead: int) -> float:
    """The rate rho = E[A_t] / g, accepted share of a window; not the acceptance of a token (`mirror.eq4`).

    It falls with g: a at g = 1, 0 for long windows, 1 for all of them at a = 1.  A window of no tokens is
    given the value of the shortest one.
    """
    return accepted_tokens(acceptance, max(1, lookahead)) / max(1, lookahead)


def matched_prefix(draft_tokens: Tokens, target_tokens: Tokens) -> int:
    """A_t, length of the longest prefix on which both agree (`mirror.eq3`, `mirror.eq11`).

    Token j of the target is the one it gives after the accepted tokens before it, y_(<t+j) (the paper's
    index, t + j - 1, leaves the last of them out).  The target's tokens must reach the first disagreement, or
    the window's end.
    """
    count = common_prefix(draft_tokens, target_tokens)
    if count == len(target_tokens) < len(draft_tokens):
        raise ValueError("target_tokens end before the first disagreement and before the window")
    return count


def matching_acceptance(target_probs: ArrayLike, draft_probs: ArrayLike) -> float:
    """P(both sample the same token) = sum p q: acceptance of token matching (`mirror.eq3`).

    At most sum min(p, q), that of speculative sampling; equal iff both distributions are one-hot or share
    nothing.
    """
    p, q = pair(target_probs, draft_probs)
    return float((p * q).sum())


def match_probability(joint: ArrayLike) -> float:
    """P(A >= 1) of a first token from the joint distribution of both: its diagonal (`mirror.eq12-13`).

    `joint` is [V, V], draft by row, and sums to 1.
    """
    return min(1.0, float(np.trace(_joint(joint))))


def match_probability_printed(joint: ArrayLike) -> float:
    """Probability of a match from the marginals alone, which is all that eq. 12 asks to be equal: sum p q.

    Right only where draft and target tokens are independent given the context.
    """
    table = _joint(joint)
    return float(table.sum(axis=1) @ table.sum(axis=0))


def _joint(joint: ArrayLike) -> FloatArray:
    table = np.asarray(joint, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ValueError(f"joint must be a square table, got shape {table.shape}")
    if not ((table >= 0.0).all() and abs(float(table.sum()) - 1.0) <= 1e-6):
        raise ValueError(f"joint must be probabilities that sum to 1, got sum {table.sum():g}")
    return table


# Time of a step


@law(t_target="at least 0")
def sd_step_time(t_window: float, t_target: float) -> float:
    """T_SD = T_draft(g) + T_target: the serial step of vanilla speculative decoding (`mirror.eq5`)."""
    return t_window + t_target


@law()
def mirror_step_time(
    t_prefix: float, t_suffix: float, t_window: float, t_rendezvous: float, fallback: float = 0.0
) -> float:
    """Mean step of Mirror-SD: T_prefix + T_rv + max(Delta, T_draft) + FF T_draft (corrected `mirror.eq10`).

    The last term is missing in the paper: where nothing can be reused (probability FF) the next window is
    drafted anew, and that is serial.  T_draft includes the rollout of all candidates.
    """
    return mirror_step_time_printed(t_prefix, t_suffix, t_window, t_rendezvous) + fallback * t_window


@law()
def mirror_step_time_printed(t_prefix: float, t_suffix: float, t_window: float, t_rendezvous: float) -> float:
    """Step of Mirror-SD as printed (`mirror.eq10`, `mirror.eq14`): every window can be reused."""
    return t_prefix + t_rendezvous + max(t_suffix, t_window)


def mirror_speedup(
    t_prefix: float, t_suffix: float, t_window: float, t_rendezvous: float, fallback: float = 0.0
) -> float:
    """Speed of a step of Mirror-SD over one of SD with the same draft: T_SD / T (`mirror.eq14`).

    At equal acceptance never above 2, and at an exit in the middle never above 1.5.  The paper has FF = 0.  A
    target that takes no time is an error.
    """
    if not t_prefix + t_suffix > 0.0:
        raise ValueError("the target takes time: t_prefix + t_suffix must be above 0")
    serial = sd_step_time(t_window, t_prefix + t_suffix)
    return serial / mirror_step_time(t_prefix, t_suffix, t_window, t_rendezvous, fallback)


@law()
def mirror_saving(t_suffix: float, t_window: float, t_rendezvous: float, fallback: float = 0.0) -> float:
    """Time saved per step against SD: min(Delta, T_draft) - T_rv - FF T_draft; FF = 0 in the paper."""
    return min(t_suffix, t_window) - t_rendezvous - fallback * t_window


def break_even_fallback(t_suffix: float, t_window: float, t_rendezvous: float) -> float:
    """FF below which Mirror-SD beats SD: (min(Delta, T_draft) - T_rv) / T_draft; at or below 0: never.

    A draft that takes no time has nothing to hide: -inf, or 0 without a rendezvous, where both are equal.
    """
    saved = mirror_saving(t_suffix, t_window, t_rendezvous)
    if t_window == 0.0:
        return 0.0 if saved == 0.0 else -math.inf
    return saved / t_window


@law()
def exposed_draft_share(t_suffix: float, t_window: float) -> float:
    """Share of the draft time left exposed: max(0, T_draft - Delta) / T_draft (`mirror.reloverhead`).

    0 where the draft takes no time.
    """
    return max(0.0, t_window - t_suffix) / t_window if t_window > 0.0 else 0.0


@law(message="at least 0", hop_time="at least 0", word_time="at least 0")
def allreduce_time(message: float, devices: int, hop_time: float, word_time: float) -> float:
    """All-reduce of M words per rank (`message`): alpha log G + beta M, natural logarithm (`mirror.comm`).

    A single device sends nothing over a hop, though beta M stays as printed.
    """
    return hop_time * math.log(devices) + word_time * message


@law(layers="at least 0")
def target_communication(
    message: float, layers: int, devices: int, hop_time: float, word_time: float
) -> float:
    """Time of the target's collectives per pass: 2 N all-reduces of `message` words (`mirror.comm`).

    A rank carries b S H words in Megatron's tensor parallelism.
    """
    return TARGET_COLLECTIVES * layers * allreduce_time(message, devices, hop_time, word_time)


@law()
def tensor_parallel_time(
    *, batch: int, tokens: int, hidden: int, layers: int, devices: int, hop_time: float, word_time: float
) -> float:
    """2 N all-reduces of b S H words, what a rank carries (`mirror.comm`): `target_communication`."""
    return target_communication(batch * tokens * hidden, layers, devices, hop_time, word_time)


@law()
def tensor_parallel_time_printed(
    *, batch: int, tokens: int, hidden: int, layers: int, devices: int, hop_time: float, word_time: float
) -> float:
    """2 N all-reduces of b S H / G words, as printed (`mirror.comm`): `target_communication`."""
    return target_communication(batch * tokens * hidden / devices, layers, devices, hop_time, word_time)


def draft_communication(
    message: float, internal_steps: int, devices: int, hop_time: float, word_time: float
) -> float:
    """Time of the draft's collectives per window: 2 J all-reduces, whatever its depth (`mirror.comm`)."""
    return draft_collectives(internal_steps) * allreduce_time(message, devices, hop_time, word_time)


@law()
def draft_collectives(internal_steps: int, segments: int = DRAFT_COLLECTIVES) -> int:
    """Synchronisations of the sharded draft per window: one at the end of each segment (`mirror.shard`).

    Two segments: 2 J.  Tensor parallelism would need 2 per layer and internal step.
    """
    return internal_steps * segments


def batch_schedule(batch: int) -> tuple[int, int]:
    """(kappa, streams) that the paper uses at a batch size (`mirror.sched`, D.1).

    Refuses what the paper does not define: batches other than 1, 8, 16, 32 and from 64 on.
    """
    if batch >= _WIDE_BATCH:
        return 1, 1
    if batch not in _SCHEDULE:
        raise ValueError(f"the schedule is defined for batch 1, 8, 16, 32 and from 64 on, not for {batch}")
    return _SCHEDULE[batch]


@law()
def exit_loss(probabilities: Sequence[float]) -> float:
    """Mean cross-entropy over the exits: -mean log p^(l)(true token) (`mirror.eq15`); inf for a p of 0.

    `probabilities` are those of the true token at each of the exits, which are trained together; at least
    one.
    """
    if len(probabilities) == 0:
        raise ValueError("the loss is a mean over exits: needs at least one")
    if min(probabilities) == 0.0:
        return math.inf
    return max(0.0, -float(np.mean(np.log(probabilities))))


@law(parameters="above 0", heads="at least 0")
def adapter_share(hidden: int, parameters: float, heads: int = 3) -> float:
    """Parameters of the exits' adapters (H -> H/2 -> H each, H^2 in all) over those of the target.

    The paper's 0.18 % (14B) and 0.08 % (32B) are of one head (exit trained); it trains three.
    """
    return heads * hidden * hidden / parameters


# Candidates, and what they let reuse


def candidates(exit_probs: ArrayLike, width: int) -> tuple[tuple[int, float], ...]:
    """M_t: the exit's `width` likeliest tokens and their log-probabilities (`mirror.eq6-8`).

    Of equally likely ones the lower id; -inf for a token of probability 0.  None at width 0.
    """
    values = np.asarray(exit_probs, dtype=np.float64)
    chosen = top_tokens(exit_probs, width)
    return tuple((int(t), math.log(values[t]) if values[t] > 0.0 else -math.inf) for t in chosen)


@law()
def rollout_tokens(width: int, lookahead: int) -> int:
    """Tokens of the branch-complete rollout: kappa g; prefixes of a branch are shared (`mirror.eq6-8`)."""
    return width * lookahead


@law()
def rollout_tokens_printed(width: int, lookahead: int) -> int:
    """Tokens of rollouts, one for every prefix length r = 1 ... g, as eq. 8 is written."""
    return width * lookahead * (lookahead + 1) // 2


def first_paths(branches: Sequence[Tokens]) -> frozenset[Path]:
    """Prefixes of a tree of the `first` reading: each branch a candidate and the draft's tokens after it."""
    return frozenset(tuple(branch[:depth]) for branch in branches for depth in range(1, len(branch) + 1))


def each_paths(draft_tokens: Tokens, candidates: Sequence[Tokens]) -> frozenset[Path]:
    """Prefixes of a tree of the `each` reading: the window's first tokens, then a candidate.

    `candidates` are lists by position, [g] or [g + 1] of them; the last of g + 1 is for a window accepted in
    full.
    """
    if len(candidates) > len(draft_tokens) + 1:
        most = len(draft_tokens) + 1
        raise ValueError(f"{len(draft_tokens)} drafted tokens have at most {most} candidates lists")
    return frozenset(
        (*draft_tokens[:position], token) for position, row in enumerate(candidates) for token in row
    )


def can_reuse(draft_tokens: Tokens, target_tokens: Tokens, paths: frozenset[Path]) -> bool:
    """Whether the accepted prefix with its correction is a path of the tree (`mirror.reuse`).

    Where the whole window is accepted there is no correction, and the paper has no rule; with the
    target's next token given it is treated as one would be, without it this is an error.

    Args:
        draft_tokens: The window.
        target_tokens: The target's tokens, up to its correction or beyond.
        paths: Prefixes of the tree (`first_paths`, `each_paths`).
    """
    count = matched_prefix(draft_tokens, target_tokens)
    if len(target_tokens) <= count:
        raise ValueError("the window is accepted in full, for which reuse has no rule without the next token")
    return tuple(target_tokens[: count + 1]) in paths


def reusable(draft_tokens: Tokens, target_tokens: Tokens, candidates: Sequence[Tokens]) -> bool:
    """Whether the next window is prepared, candidates at each position (`mirror.reuse`): `can_reuse`."""
    return can_reuse(draft_tokens, target_tokens, each_paths(draft_tokens, candidates))


def reusable_printed(draft_tokens: Tokens, target_tokens: Tokens, candidates: Sequence[Tokens]) -> bool:
    """Whether the next window is prepared, candidates at the first position alone, greedy drafts below them.

    Below the root that is the drafted token lies the window itself; what lies below the other roots is
    never asked for, since an accepted prefix begins with the drafted token.
    """
    roots = candidates[0] if candidates else ()
    begun = [draft_tokens if root == draft_tokens[0] else (root,) for root in roots]
    return can_reuse(draft_tokens, target_tokens, first_paths(begun))


def next_window_source(draft_tokens: Tokens, target_tokens: Tokens, paths: frozenset[Path]) -> Source:
    """Where the next window comes from: the paper's three cases (`mirror.reuse`).

    `branch` where the first token is corrected by a candidate, `continuation` where a later one is,
    `fresh` where it has to be drafted anew.  Arguments and errors are those of `can_reuse`.
    """
    if not can_reuse(draft_tokens, target_tokens, paths):
        return "fresh"
    return "branch" if matched_prefix(draft_tokens, target_tokens) == 0 else "continuation"


def overlap_mass(target_probs: ArrayLike, exit_probs: ArrayLike, width: int) -> float:
    """Omega_kappa, the target's mass on the exit's `width` likeliest tokens (`mirror.eq9`).

    Never falls as `width` grows; 0 at 0, 1 at V.
    """
    target, proxy = pair(target_probs, exit_probs)
    return min(1.0, float(target[top_tokens(proxy, width)].sum()))


def overlap_floor(target_probs: ArrayLike, exit_probs: ArrayLike, width: int) -> float:
    """max(0, q(S*) - 2 kappa eps), which Omega never falls below (`mirror.prop2`).

    S* are the target's own `width` likeliest tokens, eps the largest difference of both distributions.  Omega
    itself need not rise as eps falls.
    """
    target, proxy = pair(target_probs, exit_probs)
    best = overlap_mass(target, target, width)
    return max(0.0, best - 2.0 * width * float(np.abs(target - proxy).max()))


def overlap_limit(target_probs: ArrayLike, width: int) -> float:
    """q(S*), which Omega reaches at a perfect exit; the printed `mirror.prop2` has it rise to that."""
    return overlap_mass(target_probs, target_probs, width)


def top_set_is_fixed(target_probs: ArrayLike, exit_probs: ArrayLike, width: int) -> bool:
    """Whether eps < gap/2, by which both have the same `width` likeliest tokens (`mirror.prop2`).

    The gap is between the target's kappa-th and next probability; with none next the set is the vocabulary.
    """
    target, proxy = pair(target_probs, exit_probs)
    ranked = np.sort(target)[::-1]
    if width <= 0 or width >= len(ranked):
        return True
    return bool(np.abs(target - proxy).max() < (ranked[width - 1] - ranked[width]) / 2.0)


@law()
def fallback(acceptance: float, overlap: float, lookahead: int) -> float:
    """FF per step with candidates at each position: (1 - Omega)(1 + a + ... + a^(g-1)) (`mirror.prop1`).

    iid positions: the drafted token is right with a, at most Omega, as it is one of the candidates; one
    outside them is right with 1 - Omega.  A window accepted in full counts as no fallback.  The corollary FF
    <= 1 - Omega holds for g = 1 only.
    """
    _check_overlap(acceptance, overlap)
    return min(1.0, (1.0 - overlap) * float(np.power(acceptance, np.arange(lookahead)).sum()))


@law()
def fallback_first(acceptance: float, overlap: float, lookahead: int) -> float:
    """FF per step with candidates at the first position only: 1 - Omega + a - a^g (`mirror.prop1`).

    Every correction after an accepted token falls back, so that FF does not vanish as kappa grows to V.
    g = 0 and 1 leave no later correction.
    """
    _check_overlap(acceptance, overlap)
    if lookahead == 0:
        return 0.0
    return min(1.0, 1.0 - overlap + acceptance - acceptance**lookahead)


@law()
def fallback_given_correction(acceptance: float, overlap: float) -> float:
    """FF of steps that have a correction, candidates at each position: (1 - Omega)/(1 - a) (`mirror.prop1`).

    At a = 1 there are no corrections; 0.
    """
    _check_overlap(acceptance, overlap)
    return min(1.0, (1.0 - overlap) / (1.0 - acceptance)) if acceptance < 1.0 else 0.0


@law()
def fallback_bound_printed(overlap: float) -> float:
    """1 - Omega, the printed corollary's bound of FF (`mirror.prop1`); true for windows of one token only."""
    return 1.0 - overlap


def _check_overlap(acceptance: float, overlap: float) -> None:
    if acceptance > overlap + 1e-12:
        raise ValueError(
            f"a drafted token is one of the candidates: acceptance {acceptance:g} exceeds overlap {overlap:g}"
        )


# Streaming drafts


@law()
def streaming_steps(lookahead: int, emissions: Sequence[int]) -> int:
    """J, internal steps until g tokens have been emitted (`mirror.ss`); 0 for no tokens.

    `emissions` are eta_j >= 1, at least as many as needed.
    """
    if lookahead == 0:
        return 0
    reached = np.cumsum(np.asarray(emissions, dtype=np.int64))
    if len(reached) == 0 or reached[-1] < lookahead:
        raise ValueError(f"the emissions sum to less than the window of {lookahead} tokens")
    return int(np.searchsorted(reached, lookahead)) + 1


def streaming_bound(lookahead: int, emissions: Sequence[int]) -> int:
    """Largest J can be: ceil(g / min eta) <= g (corrected `mirror.J`), over the steps that were needed."""
    steps = streaming_steps(lookahead, emissions)
    return math.ceil(lookahead / min(emissions[:steps])) if steps else 0


def streaming_bound_printed(lookahead: int, emissions: Sequence[int]) -> int:
    """ceil(g / mean eta), the printed bound of J (`mirror.J`): in truth J >= g / mean eta."""
    steps = streaming_steps(lookahead, emissions)
    return -(-lookahead * steps // sum(emissions[:steps])) if steps else 0


@law(lookahead="at least 1", streams="at least 0")
def passes_probs(lookahead: int, streams: int, acceptance: float) -> FloatArray:
    """[g + 1] P(J = j), passes for a window of g tokens, j = 0 ... g (`mirror.ss` with random emissions).

    Proposals are right independently with a.  In each pass the draft writes one token, and as many of the
    proposals of the pass before as are right before the first wrong one.  S `streams` propose at most S
    tokens (with 0 every pass writes one token), and never the last one of the window, since that would save
    no pass; nothing is proposed for the first pass.
    """
    # [left][j] probability of j further passes for so many tokens left, none of which was proposed yet.
    passes = [np.eye(1, lookahead + 1)[0]]
    for left in range(1, lookahead):
        most = min(streams, left - 1)
        further = np.zeros(lookahead + 1)
        for right in range(most + 1):
            chance = acceptance**right * (1.0 if right == most else 1.0 - acceptance)
            further[1:] += chance * passes[left - 1 - right][:-1]
        passes.append(further)
    return np.asarray(np.roll(passes[lookahead - 1], 1), dtype=np.float64)


@law(windows="at least 1")
def mean_passes(lookahead: int, streams: int, acceptance: float, windows: int = 1) -> float:
    """E[J] of the slowest of some independent windows, which are written side by side (`mirror.ss`)."""
    below = np.cumsum(passes_probs(lookahead, streams, acceptance))
    return float((1.0 - np.minimum(below, 1.0) ** windows).sum())
