"""Mirror-SD: laws of time against schedules; what can be reused, windows gone through one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_laws import SIGMAS, law

from policies.laws.mirror import (
    accepted_tokens,
    adapter_share,
    allreduce_time,
    batch_schedule,
    break_even_fallback,
    can_reuse,
    candidates,
    draft_collectives,
    draft_communication,
    each_paths,
    exit_loss,
    exposed_draft_share,
    fallback,
    fallback_bound_printed,
    fallback_first,
    fallback_given_correction,
    first_paths,
    match_probability,
    match_probability_printed,
    matched_prefix,
    matching_acceptance,
    mirror_saving,
    mirror_speedup,
    mirror_step_time,
    mirror_step_time_printed,
    next_window_source,
    overlap_floor,
    overlap_limit,
    overlap_mass,
    rollout_tokens,
    rollout_tokens_printed,
    sd_step_time,
    sequence_probability,
    streaming_bound,
    streaming_bound_printed,
    streaming_steps,
    target_communication,
    top_set_is_fixed,
    window_acceptance,
)
from policies.laws.sampling import acceptance

probability = st.floats(0.0, 1.0)
time = st.floats(0.0, 3.0)


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
    for share in (accepted_tokens, window_acceptance):
        with pytest.raises(ValueError, match="lookahead"):
            share(0.5, -1)


def schedule(t_prefix: float, t_suffix: float, t_window: float, t_rv: float, *, fresh: bool) -> float:
    """End of a step of Mirror-SD, device by device; half of the rendezvous at the exit, half at the end."""
    exit_at = t_prefix + t_rv / 2
    target_done, draft_done = exit_at + t_suffix, exit_at + t_window
    verified = max(target_done, draft_done) + t_rv / 2
    return verified + t_window if fresh else verified


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


@given(suffix=time, window=time)
def test_exposed_share_against_a_schedule(suffix: float, window: float) -> None:
    """Waiting of a target that has done its suffix, over what SD would wait."""
    waited = schedule(0.0, suffix, window, 0.0, fresh=False) - suffix
    share = exposed_draft_share(suffix, window)
    assert share * window == pytest.approx(waited, abs=1e-12)
    assert 0.0 <= share <= 1.0
    assert exposed_draft_share(suffix, 0.0) == 0.0


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


@given(p=law(), q=law())
def test_matching_against_enumeration(p: np.ndarray, q: np.ndarray) -> None:
    """`mirror.eq3`: both draw, and the window of one token is accepted where they draw the same."""
    pairs = itertools.product(range(5), repeat=2)
    same = sum(q[drafted] * p[wanted] for drafted, wanted in pairs if matched_prefix([drafted], [wanted]))
    assert matching_acceptance(p, q) == pytest.approx(same)
    assert matching_acceptance(p, q) <= acceptance(p, q) + 1e-12


def test_matching_accepts_far_less() -> None:
    """Both uniform over 10 tokens: .1 against 1; one-hot: the same."""
    flat = np.full(10, 0.1)
    assert matching_acceptance(flat, flat) == pytest.approx(0.1) and acceptance(flat, flat) == pytest.approx(
        1.0
    )
    assert matching_acceptance([1, 0], [1, 0]) == acceptance([1, 0], [1, 0]) == 1.0


def test_matched_prefix_by_hand() -> None:
    assert matched_prefix([5, 7, 9], [5, 7, 8]) == 2
    assert matched_prefix([5, 7, 9], [4]) == 0
    assert matched_prefix([5, 7], [5, 7, 1]) == 2
    assert matched_prefix([], []) == 0
    with pytest.raises(ValueError, match="before the first disagreement"):
        matched_prefix([5, 7], [5])


@given(p=law(), width=st.integers(0, 7))
def test_candidates_and_their_rollout(p: np.ndarray, width: int) -> None:
    found = candidates(p, width)
    assert len(found) == min(width, 5)
    best = sorted(range(5), key=lambda token: (-p[token], token))[:width]
    assert [token for token, _ in found] == best
    for token, log_probability in found:
        assert math.exp(log_probability) == pytest.approx(p[token])
    for lookahead in range(4):
        branch = range(lookahead)
        once = {(root, depth) for root in range(width) for depth in branch}
        again = [
            (root, r, depth) for root in range(width) for r in range(1, lookahead + 1) for depth in range(r)
        ]
        assert rollout_tokens(width, lookahead) == len(once)
        assert rollout_tokens_printed(width, lookahead) == len(again)
    with pytest.raises(ValueError, match="at least 0"):
        rollout_tokens(-1, 3)


def test_reuse_in_both_readings() -> None:
    """Figure 1's case: 5 7 drafted, the target wants 5 8; the correction is a second-position candidate."""
    each = each_paths([5, 7], [[5, 6], [7, 8]])
    first = first_paths([[5, 7], [8, 1]])
    assert can_reuse([5, 7], [5, 8], each) and not can_reuse([5, 7], [5, 8], first)
    assert next_window_source([5, 7], [5, 8], each) == "continuation"
    # A first token that is corrected by a candidate is found in both.
    assert can_reuse([5, 7], [6], each) and can_reuse([5, 7], [8], first)
    assert next_window_source([5, 7], [8], first) == "branch"
    assert next_window_source([5, 7], [4], each) == "fresh"
    # No candidates, no reuse.
    assert next_window_source([5, 7], [4], each_paths([5, 7], [])) == "fresh"
    # A window accepted in full: with g + 1 lists and the next token there is a path, else no rule.
    assert can_reuse([5, 7], [5, 7, 3], each_paths([5, 7], [[5], [7], [3]]))
    with pytest.raises(ValueError, match="no rule"):
        can_reuse([5, 7], [5, 7], each)
    with pytest.raises(ValueError, match="at most 2"):
        each_paths([5], [[1], [2], [3]])


@given(data=st.data(), size=st.integers(1, 4), g=st.integers(1, 4))
def test_reuse_against_the_definition(data: st.DataObject, size: int, g: int) -> None:
    """Random windows, targets and candidates, every position looked at."""
    token = st.integers(0, size - 1)
    window = data.draw(st.lists(token, min_size=g, max_size=g))
    target = data.draw(st.lists(token, min_size=g + 1, max_size=g + 1))
    lists = data.draw(st.lists(st.lists(token, max_size=3), min_size=g + 1, max_size=g + 1))
    count = next((j for j in range(g) if window[j] != target[j]), g)
    assert can_reuse(window, target, each_paths(window, lists)) == (target[count] in lists[count])


@given(p=law(), proxy=law())
def test_overlap_rises_with_width(p: np.ndarray, proxy: np.ndarray) -> None:
    masses = [overlap_mass(p, proxy, width) for width in range(6)]
    by_rank = p[np.argsort(-proxy, kind="stable")]
    assert masses == pytest.approx([by_rank[:width].sum() for width in range(6)])
    assert all(after >= before - 1e-12 for before, after in itertools.pairwise(masses))
    assert masses[0] == 0.0 and masses[-1] == pytest.approx(1.0)


@given(p=law(), proxy=law(), width=st.integers(0, 5))
def test_overlap_floor_and_margin(p: np.ndarray, proxy: np.ndarray, width: int) -> None:
    """`mirror.prop2`: its bound and its margin hold; the limit is the best set of that size."""
    subsets = itertools.combinations(range(5), width)
    best = max(sum(p[token] for token in subset) for subset in subsets)
    assert overlap_limit(p, width) == pytest.approx(best)
    assert overlap_floor(p, proxy, width) <= overlap_mass(p, proxy, width) + 1e-9
    if top_set_is_fixed(p, proxy, width):
        assert overlap_mass(p, proxy, width) == pytest.approx(best)


def test_a_closer_exit_may_overlap_less() -> None:
    q, shallow, deep = (0.40, 0.35, 0.25), (0.70, 0.05, 0.25), (0.35, 0.45, 0.20)
    assert np.abs(np.subtract(q, shallow)).max() == pytest.approx(0.30)
    assert np.abs(np.subtract(q, deep)).max() == pytest.approx(0.10)
    assert overlap_mass(q, shallow, 1) == 0.40 and overlap_mass(q, deep, 1) == 0.35
    assert not top_set_is_fixed(q, deep, 1) and top_set_is_fixed(q, (0.42, 0.34, 0.24), 1)


def windows(a: float, overlap: float, g: int) -> list[tuple[float, int, bool]]:
    """Every window: probability, accepted tokens, and whether the correction is a candidate."""
    found = [(a**g, g, True)]
    for count in range(g):
        found += [(a**count * (overlap - a), count, True), (a**count * (1 - overlap), count, False)]
    return found


@given(overlap=st.floats(0.0, 1.0), share=st.floats(0.0, 1.0), g=st.integers(0, 9))
def test_fallback_in_both_readings_against_windows(overlap: float, share: float, g: int) -> None:
    """`mirror.prop1`: FF per step, per step with a correction, and with candidates at the start only."""
    a = overlap * share
    cases = windows(a, overlap, g)
    assert sum(chance for chance, _, _ in cases) == pytest.approx(1.0)
    lost = sum(chance for chance, _, found in cases if not found)
    assert fallback(a, overlap, g) == pytest.approx(lost)
    early = sum(chance for chance, count, found in cases if count < g and not (count == 0 and found))
    assert fallback_first(a, overlap, g) == pytest.approx(early, abs=1e-12)
    assert fallback_first(a, overlap, g) >= fallback(a, overlap, g) - 1e-12
    corrected = sum(chance for chance, count, _ in cases if count < g)
    if corrected > 1e-6:
        assert fallback_given_correction(a, overlap) == pytest.approx(lost / corrected, abs=1e-6)
    if g == 1:
        assert fallback(a, overlap, g) == pytest.approx(fallback_bound_printed(overlap))


def test_goldens_of_prop1() -> None:
    """a = .9, Omega = .95, gamma = 7: .261 > .05; given a correction .5; the limit at Omega = 1 is not 0."""
    assert fallback(0.9, 0.95, 7) == pytest.approx(0.261, abs=5e-4)
    assert fallback_given_correction(0.9, 0.95) == pytest.approx(0.5)
    assert fallback_bound_printed(0.95) == pytest.approx(0.05)
    assert fallback(0.9, 1.0, 7) == fallback(0.5, 0.9, 0) == fallback_first(0.5, 0.9, 0) == 0.0
    assert fallback_first(0.5, 1.0, 3) == pytest.approx(0.375)
    assert fallback(1.0, 1.0, 7) == fallback_given_correction(1.0, 1.0) == fallback_first(1.0, 1.0, 7) == 0.0
    with pytest.raises(ValueError, match="exceeds overlap"):
        fallback(0.9, 0.5, 3)
    with pytest.raises(ValueError, match="lookahead"):
        fallback(0.5, 0.9, -1)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), g=st.integers(1, 3))
def test_fallback_of_a_random_model_never_rises_with_width(seed: int, g: int) -> None:
    """Greedy draft, sampled target, V = 4, context-dependent laws: every path of the target gone through.

    The proxy is another model.  Per position FF falls to 0 at kappa = V; at the first position only it
    falls too, but to the probability of a later correction.
    """
    rng = np.random.default_rng(seed)
    contexts = [path for depth in range(g) for path in itertools.product(range(4), repeat=depth)]
    target = {path: rng.dirichlet(np.ones(4)) for path in contexts}
    proxy = {path: rng.dirichlet(np.ones(4)) for path in contexts}
    draft = rng.integers(4, size=g).tolist()
    rates: dict[str, list[float]] = {"each": [], "first": []}
    for width in range(5):
        tops = [[t for t, _ in candidates(proxy[tuple(draft[:j])], width)] for j in range(g)]
        branches = [draft if root == draft[0] else [root] for root in tops[0]]
        trees = {"each": each_paths(draft, tops), "first": first_paths(branches)}
        for name, tree in trees.items():
            lost = 0.0
            for path in itertools.product(range(4), repeat=g):
                chance = math.prod(target[path[:j]][path[j]] for j in range(g))
                if matched_prefix(draft, path) < g and not can_reuse(draft, path, tree):
                    lost += chance
            rates[name].append(lost)
    for falling in rates.values():
        assert all(after <= before + 1e-12 for before, after in itertools.pairwise(falling))
    assert rates["each"][-1] == pytest.approx(0.0, abs=1e-12)
    later = target[()][draft[0]] - math.prod(target[tuple(draft[:j])][draft[j]] for j in range(g))
    assert rates["first"][-1] == pytest.approx(later, abs=1e-9)


@given(p=law(3), q=law(3))
def test_marginals_do_not_suffice(p: np.ndarray, q: np.ndarray) -> None:
    """Equal marginals, two couplings: independent, where the printed form is right, and the closest."""
    independent = np.outer(q, p)
    assert match_probability(independent) == pytest.approx(match_probability_printed(independent))
    shared = np.minimum(p, q)
    missing = 1.0 - shared.sum()
    over_q, over_p = q - shared, p - shared
    closest = np.diag(shared) + (np.outer(over_q, over_p) / missing if missing > 1e-12 else 0.0)
    assert closest.sum(axis=1) == pytest.approx(q) and closest.sum(axis=0) == pytest.approx(p)
    assert match_probability(closest) == pytest.approx(acceptance(p, q))
    assert match_probability_printed(closest) == pytest.approx(matching_acceptance(p, q))


def test_marginals_golden() -> None:
    assert match_probability([[0.5, 0.0], [0.0, 0.5]]) == 1.0
    assert match_probability_printed([[0.5, 0.0], [0.0, 0.5]]) == 0.5
    for bad in ([[0.5, 0.5]], [[0.5, 0.0], [0.0, 0.4]], [[1.5, -0.5], [0.0, 0.0]]):
        with pytest.raises(ValueError, match="joint"):
            match_probability(bad)


@given(emissions=st.lists(st.integers(1, 5), min_size=1, max_size=12), data=st.data())
def test_streaming_steps_and_their_bounds(emissions: list[int], data: st.DataObject) -> None:
    g = data.draw(st.integers(0, sum(emissions)))
    done, steps = 0, 0
    while done < g:
        done += emissions[steps]
        steps += 1
    assert streaming_steps(g, emissions) == steps
    assert steps <= streaming_bound(g, emissions) <= g
    printed = streaming_bound_printed(g, emissions)
    # In truth the mean bounds J from below.
    assert steps >= g * steps / max(1, sum(emissions[:steps])) - 1e-9
    if steps and sum(emissions[:steps]) == g:
        assert printed == steps


def test_where_the_printed_bound_breaks() -> None:
    assert streaming_steps(2, [1, 4]) == 2 and streaming_bound_printed(2, [1, 4]) == 1
    rng = np.random.default_rng(2)
    broken = 0
    for _ in range(2000):
        emissions = rng.integers(1, 5, size=12).tolist()
        g = int(rng.integers(1, 13))
        broken += streaming_steps(g, emissions) > streaming_bound_printed(g, emissions)
    assert broken == 163
    with pytest.raises(ValueError, match="less than the window"):
        streaming_steps(9, [1, 2])
    with pytest.raises(ValueError, match="at least 1"):
        streaming_steps(2, [0, 2])
