"""Latency laws of Mirror-SD: what is gained by drafting beside the target's later layers, and what is not.

The target's step is split at an early exit: T_prefix before it, Delta = T_suffix after it.  From the exit's
candidates the draft prepares the next window in T_window while the suffix runs (`mirror.eq10`).  The laws
of what can be reused are in `policies.laws.reuse`.  Any unit of time, the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from policies.laws.ssd import _check_probability, _check_times

DRAFT_COLLECTIVES = 2
TARGET_COLLECTIVES = 2
"""All-reduces per layer of a target with tensor parallelism: attention and MLP."""

_SCHEDULE = {1: (8, 2), 8: (8, 2), 16: (4, 1), 32: (2, 1)}
_WIDE_BATCH = 64


def sequence_probability(probabilities: Sequence[float]) -> float:
    """Probability of a sequence: the product of its tokens' conditional ones (`mirror.eq1-2`).

    1 for an empty sequence.

    Args:
        probabilities: p(y_t | before) of each token.

    Raises:
        ValueError: A probability outside 0..1.
    """
    for value in probabilities:
        _check_probability(probabilities=value)
    return float(np.prod(np.asarray(probabilities, dtype=np.float64)))


def accepted_tokens(acceptance: float, lookahead: int) -> float:
    """E[A_t] with iid acceptance: a + a^2 + ... + a^g, without the correction (`mirror.eq4`).

    Args:
        acceptance: a.
        lookahead: g, tokens of a window; 0 accepts none.

    Raises:
        ValueError: Outside the domain.
    """
    _check_probability(acceptance=acceptance)
    if lookahead < 0:
        raise ValueError(f"lookahead must be at least 0, got {lookahead}")
    return float(np.power(acceptance, np.arange(1, lookahead + 1)).sum())


def window_acceptance(acceptance: float, lookahead: int) -> float:
    """The rate rho = E[A_t] / g, accepted share of a window; not the acceptance of a token (`mirror.eq4`).

    It falls with g: a at g = 1, 0 for long windows, 1 for all of them at a = 1.  A window of no tokens is
    given the value of the shortest one.

    Args:
        acceptance: iid acceptance a.
        lookahead: g.

    Raises:
        ValueError: Outside the domain.
    """
    g = max(1, lookahead) if lookahead >= 0 else lookahead
    return accepted_tokens(acceptance, g) / g


def sd_step_time(t_window: float, t_target: float) -> float:
    """T_SD = T_draft(g) + T_target: the serial step of vanilla speculative decoding (`mirror.eq5`).

    Raises:
        ValueError: A time that is negative or infinite.
    """
    _check_times(t_window=t_window, t_target=t_target)
    return t_window + t_target


def mirror_step_time(
    t_prefix: float, t_suffix: float, t_window: float, t_rendezvous: float, fallback: float = 0.0
) -> float:
    """Mean step of Mirror-SD: T_prefix + T_rv + max(Delta, T_draft) + FF T_draft (corrected `mirror.eq10`).

    The last term is missing in the paper: where nothing can be reused (probability FF) the next window is
    drafted anew, and that is serial.  T_draft includes the rollout of all candidates.

    Args:
        t_prefix: Target's layers up to the exit.
        t_suffix: Delta, target's layers after it.
        t_window: T_draft(g).
        t_rendezvous: T_rv, both exchanges.
        fallback: FF.

    Raises:
        ValueError: Outside the domain.
    """
    _check_probability(fallback=fallback)
    return mirror_step_time_printed(t_prefix, t_suffix, t_window, t_rendezvous) + fallback * t_window


def mirror_step_time_printed(t_prefix: float, t_suffix: float, t_window: float, t_rendezvous: float) -> float:
    """Step of Mirror-SD as printed (`mirror.eq10`, `mirror.eq14`): every window can be reused.

    Raises:
        ValueError: A time that is negative or infinite.
    """
    _check_times(t_prefix=t_prefix, t_suffix=t_suffix, t_window=t_window, t_rendezvous=t_rendezvous)
    return t_prefix + t_rendezvous + max(t_suffix, t_window)


def mirror_speedup(
    t_prefix: float, t_suffix: float, t_window: float, t_rendezvous: float, fallback: float = 0.0
) -> float:
    """Speed of a step of Mirror-SD over one of SD with the same draft: T_SD / T (`mirror.eq14`).

    At equal acceptance never above 2, and at an exit in the middle never above 1.5.

    Args:
        t_prefix: As in `mirror_step_time`.
        t_suffix: As in `mirror_step_time`.
        t_window: As in `mirror_step_time`.
        t_rendezvous: As in `mirror_step_time`.
        fallback: FF; 0 in the paper.

    Raises:
        ValueError: Outside the domain, or a target that takes no time.
    """
    if not t_prefix + t_suffix > 0.0:
        raise ValueError("the target takes time: t_prefix + t_suffix must be above 0")
    serial = sd_step_time(t_window, t_prefix + t_suffix)
    return serial / mirror_step_time(t_prefix, t_suffix, t_window, t_rendezvous, fallback)


def mirror_saving(t_suffix: float, t_window: float, t_rendezvous: float, fallback: float = 0.0) -> float:
    """Time saved per step against SD: min(Delta, T_draft) - T_rv - FF T_draft; FF = 0 in the paper.

    Raises:
        ValueError: Outside the domain.
    """
    _check_probability(fallback=fallback)
    _check_times(t_suffix=t_suffix, t_window=t_window, t_rendezvous=t_rendezvous)
    return min(t_suffix, t_window) - t_rendezvous - fallback * t_window


def break_even_fallback(t_suffix: float, t_window: float, t_rendezvous: float) -> float:
    """FF below which Mirror-SD beats SD: (min(Delta, T_draft) - T_rv) / T_draft; at or below 0: never.

    A draft that takes no time has nothing to hide: -inf, or 0 without a rendezvous, where both are equal.

    Raises:
        ValueError: A time that is negative or infinite.
    """
    saved = mirror_saving(t_suffix, t_window, t_rendezvous)
    if t_window == 0.0:
        return 0.0 if saved == 0.0 else -math.inf
    return saved / t_window


def exposed_draft_share(t_suffix: float, t_window: float) -> float:
    """Share of the draft time left exposed: max(0, T_draft - Delta) / T_draft (`mirror.reloverhead`).

    0 where the draft takes no time.

    Raises:
        ValueError: A time that is negative or infinite.
    """
    _check_times(t_suffix=t_suffix, t_window=t_window)
    return max(0.0, t_window - t_suffix) / t_window if t_window > 0.0 else 0.0


def allreduce_time(message: float, devices: int, hop_time: float, word_time: float) -> float:
    """All-reduce: alpha log G + beta M, natural logarithm (`mirror.comm`).

    Args:
        message: M, words per rank.
        devices: G; a single one sends nothing over a hop, though beta M stays as printed.
        hop_time: alpha.
        word_time: beta.

    Raises:
        ValueError: Outside the domain.
    """
    _check_times(message=message, hop_time=hop_time, word_time=word_time)
    if devices < 1:
        raise ValueError(f"devices must be at least 1, got {devices}")
    return hop_time * math.log(devices) + word_time * message


def target_communication(
    message: float, layers: int, devices: int, hop_time: float, word_time: float
) -> float:
    """Time of the target's collectives per pass: 2 N all-reduces of `message` words (`mirror.comm`).

    Args:
        message: M, words per rank: b S H in Megatron's tensor parallelism.
        layers: N.
        devices: G.
        hop_time: alpha.
        word_time: beta.

    Raises:
        ValueError: Outside the domain.
    """
    if layers < 0:
        raise ValueError(f"layers must be at least 0, got {layers}")
    return TARGET_COLLECTIVES * layers * allreduce_time(message, devices, hop_time, word_time)


def draft_communication(
    message: float, internal_steps: int, devices: int, hop_time: float, word_time: float
) -> float:
    """Time of the draft's collectives per window: 2 J all-reduces, whatever its depth (`mirror.comm`).

    Args:
        message: M, words per rank.
        internal_steps: J.
        devices: G.
        hop_time: alpha.
        word_time: beta.

    Raises:
        ValueError: Outside the domain.
    """
    collectives = draft_collectives(internal_steps)
    return collectives * allreduce_time(message, devices, hop_time, word_time)


def draft_collectives(internal_steps: int, segments: int = DRAFT_COLLECTIVES) -> int:
    """Synchronisations of the sharded draft per window: one at the end of each segment (`mirror.shard`).

    Two segments: 2 J.  Tensor parallelism would need 2 per layer and internal step.

    Args:
        internal_steps: J.
        segments: Runs of layers that need no synchronisation.

    Raises:
        ValueError: Outside the domain.
    """
    if internal_steps < 0 or segments < 1:
        raise ValueError(f"needs internal_steps >= 0 and segments >= 1, got {internal_steps}, {segments}")
    return internal_steps * segments


def batch_schedule(batch: int) -> tuple[int, int]:
    """(kappa, streams) that the paper uses at a batch size (`mirror.sched`, D.1).

    Args:
        batch: b: 1, 8, 16, 32, or 64 and more.

    Raises:
        ValueError: A batch size that the paper does not define.
    """
    if batch >= _WIDE_BATCH:
        return 1, 1
    if batch not in _SCHEDULE:
        raise ValueError(f"the schedule is defined for batch 1, 8, 16, 32 and from 64 on, not for {batch}")
    return _SCHEDULE[batch]


def exit_loss(probabilities: Sequence[float]) -> float:
    """Mean cross-entropy over the exits: -mean log p^(l)(true token) (`mirror.eq15`); inf for a p of 0.

    Args:
        probabilities: Probability of the true token at each of the exits, which are trained together.

    Raises:
        ValueError: No exit, or a probability outside 0..1.
    """
    if len(probabilities) == 0:
        raise ValueError("the loss is a mean over exits: needs at least one")
    for value in probabilities:
        _check_probability(probabilities=value)
    if min(probabilities) == 0.0:
        return math.inf
    return max(0.0, -float(np.mean(np.log(probabilities))))


def adapter_share(hidden: int, parameters: float, heads: int = 3) -> float:
    """Parameters of the exits' adapters (H -> H/2 -> H each, H^2 in all) over those of the target.

    The paper's 0.18 % (14B) and 0.08 % (32B) are of one head; it trains three.

    Args:
        hidden: H.
        parameters: Of the target.
        heads: Exits trained.

    Raises:
        ValueError: Outside the domain.
    """
    if hidden < 1 or not parameters > 0 or heads < 0:
        raise ValueError("needs hidden >= 1, parameters > 0 and heads >= 0")
    return heads * hidden * hidden / parameters
