"""What a speculation cache holds and costs: outcomes, draft work, messages, and the mask of its branches.

`ssd.def2-6`, `ssd.def10`, `ssd.acct` (App. C) and `ssd.mask` (Fig. 8).  An *outcome* of a round is (k, t*):
k accepted tokens and the bonus token; a *branch* is a cached outcome with the K tokens drafted after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def outcome_count(lookahead: int, vocabulary: int) -> int:
    """Possible outcomes of a round: K (V - 1) + V  (`ssd.def2-6`).

    After a rejection at k < K the bonus token is any but the rejected one, whose residual probability is
    0; after K accepted ones it is any of V.  K = 0 has the outcomes of a plain step, V.

    Args:
        lookahead: K.
        vocabulary: V.

    Raises:
        ValueError: Outside the domain.
    """
    _check_counts(lookahead=lookahead, vocabulary=vocabulary - 1)
    return lookahead * (vocabulary - 1) + vocabulary


def outcome_count_printed(lookahead: int, vocabulary: int) -> int:
    """Outcomes of a round as the paper counts them, "approximately" (K + 1) V: rejected tokens included.

    Args:
        lookahead: K.
        vocabulary: V.

    Raises:
        ValueError: Outside the domain.
    """
    _check_counts(lookahead=lookahead, vocabulary=vocabulary - 1)
    return (lookahead + 1) * vocabulary


def cache_entries(fanout: Sequence[int], lookahead: int | None = None, batch: int = 1) -> int:
    """Cached outcomes, b sum_k F_k  (`ssd.def10`); b (K + 1) F for one F at every position.

    Args:
        fanout: F_0 ... F_K; a single one stands for all positions if `lookahead` is given.
        lookahead: K.
        batch: b.

    Raises:
        ValueError: Outside the domain, or fan-outs that do not fit `lookahead`.
    """
    _check_counts(batch=batch - 1)
    return batch * sum(_spread(fanout, lookahead))


def draft_tokens(fanout: Sequence[int], lookahead: int, batch: int = 1) -> int:
    """Tokens that the draft decodes per round of SSD: K for every cached outcome (`ssd.acct`).

    SD's draft decodes b K.

    Args:
        fanout: As in `cache_entries`.
        lookahead: K.
        batch: b.

    Raises:
        ValueError: As in `cache_entries`.
    """
    return lookahead * cache_entries(fanout, lookahead, batch)


def draft_work(fanout: Sequence[int], lookahead: int) -> float:
    """Draft tokens of SSD over those of SD: sum_k F_k, which is (K + 1) F if uniform (`ssd.acct`).

    At K = 0 neither drafts anything; the ratio is that of any K > 0.

    Args:
        fanout: As in `cache_entries`.
        lookahead: K.

    Raises:
        ValueError: As in `cache_entries`.
    """
    return float(cache_entries(fanout, lookahead))


def draft_work_printed(fanout: Sequence[int], lookahead: int, flops_ratio: float) -> float:
    """The factor as printed, c^ (K + 1) F: it is "relative to SD" without c^, and with it in target FLOPs.

    Args:
        fanout: As in `cache_entries`.
        lookahead: K.
        flops_ratio: c^, work of a draft forward over that of a target forward.

    Raises:
        ValueError: Outside the domain.
    """
    if not 0.0 < flops_ratio < math.inf:
        raise ValueError(f"flops_ratio must be above 0, got {flops_ratio:g}")
    return flops_ratio * cache_entries(fanout, lookahead)


def cached_values(fanout: Sequence[int], lookahead: int, vocabulary: int, batch: int = 1) -> int:
    """Values the cache stores: for each drafted token its id and V logits (`ssd.acct`).

    Args:
        fanout: As in `cache_entries`.
        lookahead: K.
        vocabulary: V.
        batch: b.

    Raises:
        ValueError: As in `cache_entries`.
    """
    _check_counts(vocabulary=vocabulary - 1)
    return draft_tokens(fanout, lookahead, batch) * (vocabulary + 1)


def message_values(lookahead: int, vocabulary: int, batch: int = 1) -> tuple[int, int]:
    """Values per round, to the draft and to the target: 2 b, and b K (V + 1)  (`ssd.acct`: O(b), O(b K V)).

    Up go a count and a bonus token per row, down K tokens with the logits the target needs to verify.

    Args:
        lookahead: K.
        vocabulary: V.
        batch: b.

    Raises:
        ValueError: Outside the domain.
    """
    _check_counts(lookahead=lookahead, vocabulary=vocabulary - 1, batch=batch - 1)
    return 2 * batch, batch * lookahead * (vocabulary + 1)


def branch_mask(fanout: Sequence[int], lookahead: int, prefix: int = 0, depth: int = 1) -> NDArray[np.bool_]:
    """[sum F, P + K + depth sum F] which tokens each branch of one row may attend to (`ssd.mask`).

    Columns: the verified prefix [P], the speculation being verified [K], then the tokens of all branches,
    step by step [depth, sum F], a bonus token first.  A branch after k accepted tokens sees the prefix,
    s_1 ... s_k and its own path.

    Args:
        fanout: As in `cache_entries`.
        lookahead: K.
        prefix: P, verified tokens.
        depth: Tokens each branch has by now, its bonus token included.

    Raises:
        ValueError: As in `cache_entries`, or a prefix below 0 or depth below 1.
    """
    widths = _spread(fanout, lookahead)
    _check_counts(prefix=prefix, depth=depth - 1)
    accepted = np.repeat(np.arange(lookahead + 1), widths)
    branches = len(accepted)
    verified = np.ones((branches, prefix), dtype=np.bool_)
    trunk = np.arange(lookahead) < accepted[:, None]
    own = np.tile(np.eye(branches, dtype=np.bool_), (1, depth))
    return np.concatenate([verified, trunk, own], axis=1)


def _spread(fanout: Sequence[int], lookahead: int | None) -> tuple[int, ...]:
    """Fan-out of each position."""
    if lookahead is not None:
        _check_counts(lookahead=lookahead)
        if len(fanout) == 1:
            fanout = tuple(fanout) * (lookahead + 1)
        elif len(fanout) != lookahead + 1:
            raise ValueError(
                f"a lookahead of {lookahead} has {lookahead + 1} positions, got {len(fanout)} fan-outs"
            )
    if any(f < 0 for f in fanout):
        raise ValueError(f"fan-outs are counts, at least 0, got {tuple(fanout)}")
    return tuple(fanout)


def _check_counts(**values: int) -> None:
    for name, value in values.items():
        if value < 0:
            least = "0" if name in ("lookahead", "prefix") else "1"
            raise ValueError(f"{name} must be at least {least}")
