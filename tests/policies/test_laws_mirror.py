"""Mirror-SD's laws of time against schedules, and its counts against adding up."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_laws import SIGMAS

from policies.laws.mirror import (
    accepted_tokens,
    adapter_share,
    allreduce_time,
    batch_schedule,
    break_even_fallback,
    draft_collectives,
    draft_communication,
    exit_loss,
    exposed_draft_share,
    mirror_saving,
    mirror_speedup,
    mirror_step_time,
    mirror_step_time_printed,
    sd_step_time,
    sequence_probability,
    target_communication,
    window_acceptance,
)

probability = st.floats(0.0, 1.0)
time = st.floats(0.0, 3.0)


@settings(deadline=None)
@given(data=st.data(), size=st.integers(1, 3), length=st.integers(0, 3))
def test_sequences_sum_to_one(data: st.DataObject, size: int, length: int) -> None:
    """`mirror.eq1-2`: the products over all sequences of a random model."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    laws = {
        before: rng.dirichlet(np.ones(size))
        for depth in range(length)
        for before in itertools.product(range(size), repeat=depth)
    }
    total = 0.0
    for path in itertools.product(range(size), repeat=length):
        total += sequence_probability([laws[path[:at]][token] for at, token in enumerate(path)])
    assert total == pytest.approx(1.0)
    assert sequence_probability([]) == 1.0
    with pytest.raises(ValueError, match="probabilities"):
        sequence_probability([0.5, 1.2])


@settings(deadline=None)
@given(a=probability, g=st.integers(1, 8))
def test_window_acceptance_by_enumeration(a: float, g: int) -> None:
    """`mirror.eq4`: every pattern of right and wrong tokens, its probability and its prefix."""
    mean = 0.0
    for pattern in itertools.product((True, False), repeat=g):
        chance = math.prod(a if right else 1 - a for right in pattern)
        mean += chance * (pattern.index(False) if False in pattern else g)
    assert accepted_tokens(a, g) == pytest.approx(mean)
    assert window_acceptance(a, g) == pytest.approx(mean / g)


def test_edges_of_window_acceptance() -> None:
    assert accepted_tokens(0.8, 0) == 0.0 and window_acceptance(0.8, 0) == 0.8
    assert window_acceptance(1.0, 7) == 1.0 and window_acceptance(0.0, 7) == 0.0
    for law in (accepted_tokens, window_acceptance):
        with pytest.raises(ValueError, match="lookahead"):
            law(0.5, -1)


def schedule(t_prefix: float, t_suffix: float, t_window: float, t_rv: float, *, fresh: bool) -> float:
    """End of a step of Mirror-SD, device by device; half of the rendezvous at the exit, half at the end."""
    exit_at = t_prefix + t_rv / 2
    target_done, draft_done = exit_at + t_suffix, exit_at + t_window
    verified = max(target_done, draft_done) + t_rv / 2
    return verified + t_window if fresh else verified


@settings(deadline=None)
@given(pre=time, suffix=time, window=time, rv=st.floats(0.0, 0.2), ff=probability)
def test_step_times_against_a_schedule(
    pre: float, suffix: float, window: float, rv: float, ff: float
) -> None:
    """`mirror.eq10` and `mirror.eq14`, piecewise forms and savings over `mirror.eq5` included."""
    kept, fresh = (schedule(pre, suffix, window, rv, fresh=again) for again in (False, True))
    assert mirror_step_time_printed(pre, suffix, window, rv) == pytest.approx(kept)
    step = mirror_step_time(pre, suffix, window, rv, ff)
    assert step == pytest.approx((1 - ff) * kept + ff * fresh)
    serial = sd_step_time(window, pre + suffix)
    assert serial == pytest.approx(pre + suffix + window)
    assert mirror_saving(suffix, window, rv, ff) == pytest.approx(serial - step, abs=1e-9)
    printed = pre + suffix + rv if window <= suffix else pre + window + rv
    assert mirror_step_time(pre, suffix, window, rv) == pytest.approx(printed)


@settings(deadline=None)
@given(pre=time, suffix=st.floats(0.01, 3.0), window=st.floats(0.01, 3.0), ff=probability)
def test_mirror_wins_below_the_break_even_fallback(
    pre: float, suffix: float, window: float, ff: float
) -> None:
    limit = break_even_fallback(suffix, window, 0.01)
    speedup = mirror_speedup(pre, suffix, window, 0.01, ff)
    if abs(limit - ff) > 1e-9:
        assert (speedup > 1.0) == (ff < limit)
    # Never above 2; above 1.5 only where the exit lies before the middle.
    assert speedup <= 2.0 + 1e-12
    if suffix <= pre:
        assert speedup <= 1.5 + 1e-12


def test_golden_of_the_fallback() -> None:
    """T_draft = 2 Delta, T_rv = .01: FF < .49; at .6 slower than SD (2 / 2.11) though T_rv < Delta."""
    assert break_even_fallback(0.5, 1.0, 0.01) == pytest.approx(0.49)
    assert mirror_speedup(0.5, 0.5, 1.0, 0.01, 0.6) == pytest.approx(2.0 / 2.11)
    assert mirror_speedup(0.5, 0.5, 1.0, 0.01) > 1.0


def test_fallbacks_tossed() -> None:
    """20 000 steps, each drafted anew with FF = .3."""
    fresh = np.random.default_rng(4).random(20_000) < 0.3
    steps = np.where(fresh, *(schedule(0.5, 0.5, 0.8, 0.02, fresh=again) for again in (True, False)))
    error = steps.std(ddof=1) / math.sqrt(len(steps))
    assert steps.mean() == pytest.approx(mirror_step_time(0.5, 0.5, 0.8, 0.02, 0.3), abs=SIGMAS * error)


def test_edges_of_the_step() -> None:
    # An exit at the last layer hides nothing: SD's step and the rendezvous.
    assert mirror_step_time(1.0, 0.0, 0.4, 0.02) == pytest.approx(1.42)
    # One at the first hides all that fits.
    assert mirror_step_time(0.0, 1.0, 1.0, 0.0) == 1.0 and mirror_speedup(0.0, 1.0, 1.0, 0.0) == 2.0
    assert break_even_fallback(0.5, 0.0, 0.0) == 0.0 and break_even_fallback(0.5, 0.0, 0.1) == -math.inf
    with pytest.raises(ValueError, match="takes time"):
        mirror_speedup(0.0, 0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="t_window"):
        mirror_step_time(1.0, 1.0, -0.1, 0.0)
    with pytest.raises(ValueError, match="fallback"):
        mirror_saving(1.0, 1.0, 0.0, 1.5)


@settings(deadline=None)
@given(suffix=time, window=time)
def test_exposed_share_against_a_schedule(suffix: float, window: float) -> None:
    """Waiting of a target that has done its suffix, over what SD would wait."""
    waited = schedule(0.0, suffix, window, 0.0, fresh=False) - suffix
    share = exposed_draft_share(suffix, window)
    assert share * window == pytest.approx(waited, abs=1e-12)
    assert 0.0 <= share <= 1.0
    assert exposed_draft_share(suffix, 0.0) == 0.0


@settings(deadline=None)
@given(
    layers=st.integers(0, 6), steps=st.integers(0, 6), devices=st.integers(1, 16), words=st.integers(0, 1000)
)
def test_communication_by_adding_collectives(layers: int, steps: int, devices: int, words: int) -> None:
    one = 5e-6 * math.log(devices) + 1e-9 * words
    assert allreduce_time(words, devices, 5e-6, 1e-9) == pytest.approx(one)
    per_target = sum(one for _ in range(layers) for _ in ("attention", "mlp"))
    assert target_communication(words, layers, devices, 5e-6, 1e-9) == pytest.approx(per_target)
    syncs = [(step, segment) for step in range(steps) for segment in range(2)]
    assert draft_collectives(steps) == len(syncs)
    assert draft_communication(words, steps, devices, 5e-6, 1e-9) == pytest.approx(len(syncs) * one)


def test_a_draft_of_one_segment() -> None:
    assert draft_collectives(3, 1) == 3 and draft_collectives(0) == 0
    assert adapter_share(1, 1.0, 0) == 0.0 and adapter_share(1, 4.0, 1) == 0.25


def test_communication_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="devices"):
        allreduce_time(1.0, 0, 1.0, 1.0)
    with pytest.raises(ValueError, match="layers"):
        target_communication(1.0, -1, 1, 1.0, 1.0)
    with pytest.raises(ValueError, match="segments"):
        draft_collectives(1, 0)
    with pytest.raises(ValueError, match="message"):
        allreduce_time(-1.0, 1, 1.0, 1.0)


def test_schedule() -> None:
    found = {batch: batch_schedule(batch) for batch in (1, 8, 16, 32, 64, 1000)}
    assert found == {1: (8, 2), 8: (8, 2), 16: (4, 1), 32: (2, 1), 64: (1, 1), 1000: (1, 1)}
    for batch in (0, 2, 4, 63):
        with pytest.raises(ValueError, match="defined for batch"):
            batch_schedule(batch)


@settings(deadline=None)
@given(values=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5))
def test_exit_loss_and_adapter_size(values: list[float]) -> None:
    """The loss is the log of the geometric mean; adapters count their two weight matrices."""
    assert math.exp(-exit_loss(values)) == pytest.approx(math.prod(values) ** (1 / len(values)))
    assert exit_loss([0.5, 0.0]) == math.inf and exit_loss([1.0]) == 0.0
    down, up = np.empty((5120, 2560)), np.empty((2560, 5120))
    assert adapter_share(5120, 14.8e9, 1) == pytest.approx((down.size + up.size) / 14.8e9)
    shares = [adapter_share(5120, total, heads) for heads in (1, 3) for total in (14.8e9, 32.8e9)]
    assert shares == pytest.approx([0.00177, 0.00080, 0.00531, 0.00240], abs=5e-6)
    for bad in ([], [1.5]):
        with pytest.raises(ValueError, match=r"at least one|0\.\.1"):
            exit_loss(bad)
    with pytest.raises(ValueError, match="parameters"):
        adapter_share(5120, 0)
