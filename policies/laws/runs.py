"""Runs of rounds up to a rejection: DOUBLE's theorem 2 and what its speedups are built from.

A *run* is the rounds from just after a rejection up to and including the next round that rejects.
g (`lookahead`) is the drafted tokens per round, a the iid acceptance, C (`speed_ratio`) the target
step over the draft step.  All functions broadcast: numbers give a float, arrays an array.

The paper's theorem 2 counts the last round of a run like any other, although it is known to reject;
everything built on it promises too much.  The forms as printed end in `_printed`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policies.laws.ssd import FloatArray

Numbers: TypeAlias = float | FloatArray


def rounds_per_run(acceptance: ArrayLike, lookahead: ArrayLike) -> Numbers:
    """Mean rounds up to and including the first that rejects: k = 1/(1 - a^g)  (`double.eq8`).

    Infinite at a = 1, and at g = 0, where nothing is drafted and nothing can be rejected.

    Args:
        acceptance: iid acceptance a.
        lookahead: g >= 0, drafted tokens per round.

    Raises:
        ValueError: Outside the domain.
    """
    a, g = _domain(acceptance, lookahead)
    return _number(_rounds(a, g))


def run_tokens(acceptance: ArrayLike, lookahead: ArrayLike) -> Numbers:
    """Mean tokens of a run of plain speculative decoding: k E(a, g)  (`double.thm2`, corrected).

    Wald's identity: k rounds of E(a, g) tokens each, since whether a run ends is decided round by round.
    The printed form counts the last round as one that need not reject.  Infinite where k is.

    Args:
        acceptance: iid acceptance a.
        lookahead: g >= 0.

    Raises:
        ValueError: Outside the domain.
    """
    a, g = _domain(acceptance, lookahead)
    return _number(_rounds(a, g) * _tokens(a, g))


def run_tokens_printed(acceptance: ArrayLike, lookahead: ArrayLike) -> Numbers:
    """E[L_k] = (k - 1)(g + 1) + E(a, g) as printed (`double.thm2`, eq. 3, 9 and 10); too high.

    a = .8, g = 4: 6.830 where runs have 5.694 tokens.  The excess is a^g ((g + 1) - E[L | rejected]),
    up to 17 % at g = 1 and 21 % at g = 12; none at a = 0, nor in the limit a = 1.

    Args:
        acceptance: iid acceptance a.
        lookahead: g >= 0.

    Raises:
        ValueError: Outside the domain.
    """
    a, g = _domain(acceptance, lookahead)
    return _number((_rounds(a, g) - 1.0) * (g + 1.0) + _tokens(a, g))


def sd_run_speedup(acceptance: ArrayLike, lookahead: ArrayLike, speed_ratio: ArrayLike) -> Numbers:
    """Speedup of plain speculative decoding over AR: E(a, g) C/(g + C)  (`double.eq11`, corrected).

    The `sd_speedup` of `policies.laws.ssd` at t_draft = 1/C.  g = 0 gives 1, a = 1 (g + 1) C/(g + C).

    Args:
        acceptance: iid acceptance a.
        lookahead: g >= 0.
        speed_ratio: C > 0; verification of g + 1 tokens costs one target step.

    Raises:
        ValueError: Outside the domain.
    """
    a, g, c = _domain_ratio(acceptance, lookahead, speed_ratio)
    return _number(_tokens(a, g) * c / (g + c))


def sd_run_speedup_printed(acceptance: ArrayLike, lookahead: ArrayLike, speed_ratio: ArrayLike) -> Numbers:
    """S_SD = E[L_k] C/(k (g + C)) as printed (`double.eq11`); too high by the factor of theorem 2.

    a = .8, g = C = 4: 2.016, exact 1.681.

    Args:
        acceptance: iid acceptance a.
        lookahead: g >= 0.
        speed_ratio: C > 0.

    Raises:
        ValueError: Outside the domain.
    """
    a, g, c = _domain_ratio(acceptance, lookahead, speed_ratio)
    rejects = 1.0 / _rounds(a, g)
    # Divided by k, so that infinite runs have their limit.
    return _number(((1.0 - rejects) * (g + 1.0) + rejects * _tokens(a, g)) * c / (g + c))


def pipeline_run_tokens(acceptance: ArrayLike, lookahead: ArrayLike) -> Numbers:
    """Mean tokens of a run of a pipeline, which has no bonus token: 1/(1 - a)  (`double.eq12`, corrected).

    Equation 12, E[L_p] = E[L_k] - (k - 1), is right, and exact once E[L_k] is: every round that does not
    reject gives up its bonus token.  What is left does not depend on g: a run's accepted tokens and
    the target's one at its end.  Infinite at a = 1, where no run ends.

    Args:
        acceptance: iid acceptance a.
        lookahead: g >= 1; without effect on the value.

    Raises:
        ValueError: Outside the domain.
    """
    a, g = _domain(acceptance, lookahead)
    _need_block(g)
    with np.errstate(divide="ignore"):
        return _number(np.broadcast_to(1.0 / (1.0 - a), np.broadcast_shapes(a.shape, g.shape)))


def pipeline_run_tokens_printed(acceptance: ArrayLike, lookahead: ArrayLike) -> Numbers:
    """E[L_p] = (k - 1) g + E(a, g): equation 12 with the printed E[L_k]  (`double.eq12`).

    Too high by the excess of `run_tokens_printed`.  Infinite at a = 1.

    Args:
        acceptance: iid acceptance a.
        lookahead: g >= 1.

    Raises:
        ValueError: Outside the domain.
    """
    a, g = _domain(acceptance, lookahead)
    _need_block(g)
    return _number((_rounds(a, g) - 1.0) * g + _tokens(a, g))


def psd_middle_bound(acceptance: ArrayLike, lookahead: ArrayLike, speed_ratio: ArrayLike) -> Numbers:
    """Bound k g C/(k g + C), which `double.thm3` puts between S_PSD and C; the first half is wrong.

    S_PSD as printed passes it whenever E(a, g) > g, e.g. a = .95, g = 2, C = 3: 2.726 > 2.617.  The bound
    never passes C.  C at a = 1.

    Args:
        acceptance: iid acceptance a.
        lookahead: g >= 1.
        speed_ratio: C > 0.

    Raises:
        ValueError: Outside the domain.
    """
    a, g, c = _domain_ratio(acceptance, lookahead, speed_ratio)
    _need_block(g)
    return _number(g * c / (g + c / _rounds(a, g)))


def double_speedup(
    run_drafted: ArrayLike,
    run_bonus: ArrayLike,
    run_rounds: ArrayLike,
    lookahead: ArrayLike,
    speed_ratio: ArrayLike,
) -> Numbers:
    """Speedup of DOUBLE over AR: (L_d + L_b) C / (k max(f, C) + f)  (`double.eq7`, corrected).

    A run is k rounds, each as long as the slower of f draft forwards and one target step, and one bubble
    in which a block is drafted while the target waits.  Matched tokens enter through L_d and L_b only:
    a retrieval forward takes the time of a plain one and yields more tokens.  With f = C it is the
    printed form with its gamma read as tokens, f (1 + AMT).

    Args:
        run_drafted: L_d, drafted tokens accepted per run, the target's own at its end included.
        run_bonus: L_b, tokens per run that the target's own retrieval adds.
        run_rounds: k >= 1, rounds per run; infinite k needs infinite tokens and has no value here.
        lookahead: f >= 1, retrieval forwards of the draft per round.
        speed_ratio: C > 0, target step / draft forward.

    Raises:
        ValueError: Outside the domain.
    """
    tokens, k = _run_domain(run_drafted, run_bonus, run_rounds)
    _, f, c = _domain_ratio(0.0, lookahead, speed_ratio)
    _need_block(f)
    return _number(tokens * c / (k * np.maximum(f, c) + f))


def double_speedup_printed(
    run_drafted: ArrayLike,
    run_bonus: ArrayLike,
    run_rounds: ArrayLike,
    lookahead: ArrayLike,
    speed_ratio: ArrayLike,
    *,
    matched: ArrayLike = 0.0,
) -> Numbers:
    """(L_d + L_b) C'/(k g + C'), C' = C (1 + AMT), as printed (`double.eq7`).

    The paper calls both the retrieval forwards and the drafted tokens gamma.  The units fit only with g in
    tokens: for 4 forwards, AMT = 1, a = .95 and C = 4 the exact rate is 5.04; g = 8 tokens gives 5.83,
    g = 4 forwards 9.32.  The claimed ceiling C' needs L_d + L_b <= k g + C' (see
    `double_ceiling_binds`).

    Args:
        run_drafted: L_d, per run.
        run_bonus: L_b, per run.
        run_rounds: k >= 1.
        lookahead: g >= 1, in tokens.
        speed_ratio: C > 0.
        matched: AMT, mean matched tokens per retrieval forward.

    Raises:
        ValueError: Outside the domain.
    """
    tokens, k = _run_domain(run_drafted, run_bonus, run_rounds)
    _, g, c = _domain_ratio(0.0, lookahead, speed_ratio)
    _need_block(g)
    fast = c * (1.0 + _at_least("matched", matched, 0.0))
    return _number(tokens * fast / (k * g + fast))


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

    Raises:
        ValueError: Outside the domain (of `double_speedup_printed`).
    """
    tokens, k = _run_domain(run_drafted, run_bonus, run_rounds)
    _, g, c = _domain_ratio(0.0, lookahead, speed_ratio)
    return bool(tokens <= k * g + c * (1.0 + _at_least("matched", matched, 0.0)))


def draft_length(lookahead: ArrayLike, matched: ArrayLike) -> Numbers:
    """Mean tokens of f retrieval forwards with AMT matched tokens each: f (1 + AMT)  (`double.eq5`).

    The paper takes f = C.  The 1 is the model's own token, which equation 5 as printed leaves out.

    Args:
        lookahead: f >= 0, retrieval forwards.
        matched: AMT >= 0.

    Raises:
        ValueError: Outside the domain.
    """
    return _number(_at_least("lookahead", lookahead, 0.0) * (1.0 + _at_least("matched", matched, 0.0)))


def _rounds(a: FloatArray, g: FloatArray) -> FloatArray:
    """1/(1 - a^g) without the cancellation near a = 1; inf at a = 1 or g = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.where(g == 0.0, 0.0, g * np.log(a))
        return np.where(exponent == 0.0, np.inf, -1.0 / np.expm1(exponent))


def _tokens(a: FloatArray, g: FloatArray) -> FloatArray:
    """E(a, g) = (1 - a^(g+1))/(1 - a), g + 1 at a = 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = -np.expm1((g + 1.0) * np.log(a)) / (1.0 - a)
    return np.where(a == 1.0, g + 1.0, value)


def _domain(acceptance: ArrayLike, lookahead: ArrayLike) -> tuple[FloatArray, FloatArray]:
    a = np.asarray(acceptance, dtype=np.float64)
    if not ((a >= 0.0) & (a <= 1.0)).all():  # false for NaN too
        raise ValueError(f"acceptance must be a probability in 0..1, got {a}")
    return a, _at_least("lookahead", lookahead, 0.0)


def _domain_ratio(
    acceptance: ArrayLike, lookahead: ArrayLike, speed_ratio: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    a, g = _domain(acceptance, lookahead)
    c = np.asarray(speed_ratio, dtype=np.float64)
    if not ((c > 0.0) & np.isfinite(c)).all():
        raise ValueError(f"speed_ratio must be above 0 and finite, got {c}")
    return a, g, c


def _run_domain(
    run_drafted: ArrayLike, run_bonus: ArrayLike, run_rounds: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    drafted = _at_least("run_drafted", run_drafted, 0.0)
    bonus = _at_least("run_bonus", run_bonus, 0.0)
    return np.asarray(drafted + bonus), _at_least("run_rounds", run_rounds, 1.0)


def _need_block(g: FloatArray) -> None:
    if not (g >= 1.0).all():
        raise ValueError("a pipeline drafts a block while it verifies one: lookahead must be at least 1")


def _at_least(name: str, values: ArrayLike, least: float) -> FloatArray:
    array: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    if not ((array >= least) & np.isfinite(array)).all():
        raise ValueError(f"{name} must be finite and at least {least:g}, got {array}")
    return array


def _number(values: FloatArray) -> Numbers:
    array = np.asarray(values, dtype=np.float64)
    return float(array) if array.ndim == 0 else array
