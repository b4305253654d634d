"""What becomes of a verified token, by hand: each number worked out in a comment; and bounds of tails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chains import Chain, sampled_trace, trace_of
from hypothesis import given
from hypothesis import strategies as st
from text_by_hand import BY_HAND, TEXT, near

from hardware_profiles.trace import Trace
from simulator.tokens.sampled import (
    DRAFT,
    FIRST,
    UNIFORM,
    Chances,
    Proposal,
    Recorded,
    _rescaled,
    _uniform,
    chances,
)


def by_hand(proposal: Proposal, trace: Trace = TEXT) -> Chances:
    return chances(Recorded.of(trace, slice(None)), proposal)


def test_chances_of_a_sampled_draft() -> None:
    found = by_hand(DRAFT)
    # q(y)/p(y) = .3/.4, .2/.5, .1/.7
    assert found.accepted == near([0.75, 0.4, 1 / 7])
    # (q - p)+ is .3 0 0 | 0 of .3: the first choice, which outranks rank 1.
    # Then .1 .15 0 | .05 of .3: the first two outrank rank 2 with .25/.3.  Rank 3 is out of reach.
    assert found.freed == near([1.0, 5 / 6, 0.0])
    assert found.slack == near([0.0, 0.0, 0.0])


def test_chances_of_saguaro_sampling() -> None:
    # C = .5 on the first choice: after 1, Z = .5 x .4 + .6 = .8 and sigma = .25 .375 .25 .125.
    found = by_hand(Proposal("draft", 0.5, 1))
    # after 0: Z = .75, sigma(y) = .3/.75 = .4 = p(y); after 2: Z = .65, sigma(y) = .1/.65.
    assert found.accepted == near([1.0, 0.25 / 0.5, 0.1 / 0.65 / 0.7])
    # after 1: (sigma - p)+ = 0 .225 0 | .075 of .3
    assert found.freed[1] == pytest.approx(0.225 / 0.3, abs=1e-6)
    # F = 2 instead: Z = .35 + .3 = .65, sigma = .2/.65 .15/.65 .2/.65 .1/.65 = .308 .231 .308 .154, and
    # (sigma - p)+ = .0077 .0808 0 | .1038, in all .1923
    found = by_hand(Proposal("draft", 0.5, 2))
    assert found.accepted[1] == pytest.approx(0.2 / 0.65 / 0.5, abs=1e-6)
    above = (0.2 / 0.65 - 0.3) + (0.15 / 0.65 - 0.15)
    assert found.freed[1] == pytest.approx(above / (above + 0.1 / 0.65 - 0.05), abs=1e-6)


def test_chances_of_random_tokens() -> None:
    # sigma = 1/4: .25/.4, .25/.5, .25/.7 of y; after 1 (sigma - p)+ = 0 .1 0 | .2
    found = by_hand(UNIFORM)
    assert found.accepted == near([0.25 / 0.4, 0.25 / 0.5, 0.25 / 0.7])
    assert found.freed == near([0.05 / (0.05 + 0.15), 0.1 / 0.3, 0.0])
    assert found.slack == near([0.0, 0.0, 0.0])  # a single unlisted token is known by its mass


def test_chances_of_a_greedy_draft() -> None:
    # Its token is the first choice, never the text's here, and outranks whatever is.
    assert by_hand(FIRST).accepted.tolist() == [0.0, 0.0, 0.0]
    assert by_hand(FIRST).freed.tolist() == [1.0, 1.0, 1.0]


def test_where_c_0_leaves_nothing_the_law_stays_as_it_is() -> None:
    # top-p .6 keeps two tokens of q after 0 (.5 .3), renormalised to 5/8 3/8, and p's .4 .3 as 4/7 3/7.
    narrow = replace(BY_HAND, top_p=0.6)
    trace = trace_of(narrow, np.array([0]), np.array([1]), length=1, ranks=3)
    assert by_hand(Proposal("draft", 0.0, 1), trace).accepted == near([1.0])  # sigma is sure of token 1
    assert by_hand(Proposal("draft", 0.0, 2), trace).accepted == near([(3 / 8) / (4 / 7)])
    assert by_hand(Proposal("draft", 0.0, 3), trace).accepted == near([(3 / 8) / (4 / 7)])


PROPOSALS = [DRAFT, UNIFORM, FIRST, *(Proposal("draft", c, f) for c in (0.0, 0.3, 0.9) for f in (1, 2))]


@given(
    seed=st.integers(0, 10_000),
    likeness=st.sampled_from([0.1, 1.0, 3.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.6]),
    ranks=st.integers(2, 6),
    proposal=st.sampled_from(PROPOSALS),
)
def test_bounds_of_unlisted_tails_hold(
    seed: int, likeness: float, top_p: float, ranks: int, proposal: Proposal
) -> None:
    chain = Chain.drawn(seed, 7, likeness=likeness, top_p=top_p)
    full, cut = (sampled_trace(chain, requests=2, length=5, ranks=m, seed=seed) for m in (7, ranks))
    truth, found = by_hand(proposal, full), by_hand(proposal, cut)
    assert truth.slack == near([0.0] * 10)
    assert found.accepted == near(truth.accepted.tolist())
    # Where next to nothing is rejected, what was rejected is a matter of rounding.
    counts = (
        (full.column("draft_rank") < ranks)
        & (truth.accepted < 1.0 - 1e-4)
        & (residuals(full, proposal) > 1e-3)
    )
    assert (np.abs(found.freed - truth.freed) <= found.slack + 1e-3)[counts].all()
    if proposal == DRAFT:
        assert (found.slack <= 1e-3)[counts].all()


def residuals(trace: Trace, proposal: Proposal) -> np.ndarray:
    """[n] sum of (sigma - p)+, from a trace that lists everything."""
    if proposal == FIRST:
        return np.ones(len(trace))
    recorded = Recorded.of(trace, slice(None))
    listed = (_uniform(recorded) if proposal == UNIFORM else _rescaled(recorded, proposal)).listed
    return np.maximum(listed - recorded.target_listed, 0.0).sum(axis=1)
