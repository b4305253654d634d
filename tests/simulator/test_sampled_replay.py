"""Replay of sampled decoding is exact: it agrees in law with decoding done directly.

On one side a policy runs in the simulated world, on texts sampled from the target by plain decoding.  On
the other side speculative decoding is done with all its drafts, rejections and residuals
(`chains.Direct`), which shares no code with replay.  Requests are independent on both sides, so that the
mean number per request of any event has a plain standard error; `LEVEL` 4.5 of them is exceeded once in
150 000 events by chance.  Seeds are fixed.  Planted bugs show that the comparison bites.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from chains import Chain, Outcome, replayed, sampled_trace
from direct import Direct, directly, disagreement
from msgspec.structs import replace

from hardware_profiles.trace import Trace
from policies.laws.sampling import hit_rate_sampled
from policies.registry import Settings, configure
from simulator.tokens import TokenModel, replay, sampled
from simulator.tokens.sampled import DRAFT, Chances, Recorded

LEVEL = 4.5
REQUESTS = 1600
LENGTH = 12

PLAIN = Chain.drawn(1)
WIDE = Chain.drawn(2, 6, likeness=0.7)
NARROW = Chain.drawn(3, 6, likeness=1.0, top_p=0.8)
# A rejected token comes from the unlisted tail with probability .45/.47, and y is always the third choice.
TAILED = Chain(
    *(np.tile(law, (8, 1)) for law in ([0.19, 0.17, 0.64] + [0.0] * 5, [0.2, 0.18, 0.17] + [0.09] * 5))
)


def setting(policy: str, **knobs: Any) -> Settings:
    return configure(policy, temperature=1.0, **{"lookahead": 3} | knobs)


def ssd(**knobs: Any) -> Settings:
    return setting("saguaro", **{"fanout": (2, 1, 2, 1)} | knobs)


# (chain, M, settings): M below the vocabulary leaves a tail to `accept_mass`.
CASES = {
    "sd": (PLAIN, 3, setting("sd")),
    "sd greedy draft": (PLAIN, 3, setting("sd", draft_sampling="greedy")),
    "sd top-p": (NARROW, 3, setting("sd", top_p=0.8)),
    "pearl": (PLAIN, 3, setting("pearl")),
    "pearl greedy draft": (PLAIN, 3, setting("pearl", draft_sampling="greedy")),
    "pearl top-p": (NARROW, 3, setting("pearl", top_p=0.8, lookahead=2)),
    "ssd": (PLAIN, 3, ssd()),
    "ssd with a tail": (WIDE, 4, ssd(fanout=(3, 2, 2, 1))),
    "ssd with a heavy tail": (TAILED, 3, ssd(fanout=(2,))),
    "ssd plain backup": (WIDE, 4, ssd(backup="plain", fanout_backup=(3,))),
    "ssd random backup": (WIDE, 6, ssd(backup="random", fanout_backup=(1, 2, 3, 1))),
    "ssd random backup first": (PLAIN, 5, ssd(backup="random", first="backup")),
    "ssd n-gram backup": (WIDE, 4, ssd(backup="ngram", fanout_backup=(2, 3, 1, 2))),
    "ssd greedy draft": (WIDE, 4, ssd(draft_sampling="greedy")),
    "ssd two devices": (WIDE, 4, ssd(draft_devices=2, fanout=(3, 1, 2, 2))),
    "ssd C = 0.3": (WIDE, 6, ssd(scale=0.3)),
    "ssd C = 0.3, one F": (WIDE, 6, ssd(scale=0.3, fanout=(2,))),
    "ssd C = 0": (WIDE, 6, ssd(scale=0.0, fanout=(1, 2, 0, 3), backup="plain")),
    "ssd kept rejected": (WIDE, 4, ssd(cache_set="top")),
    "ssd kept rejected, random": (WIDE, 4, ssd(cache_set="top", backup="random")),
    "ssd kept rejected, C = 0.3": (WIDE, 6, ssd(cache_set="top", scale=0.3)),
    "prompt lookup": (WIDE, 4, configure("pld", lookahead=3, temperature=1.0)),
    "prompt lookup, short": (
        NARROW,
        4,
        configure("pld", lookahead=2, longest_suffix=1, temperature=1.0, top_p=0.8),
    ),
    "ssd aborting": (WIDE, 4, ssd(tree="abort", backup="random")),
    "ssd top-p": (NARROW, 4, ssd(top_p=0.8)),
    "ssd top-p, C = 0": (NARROW, 6, ssd(top_p=0.8, scale=0.0, fanout=(3, 2, 1, 2))),
}


def recorded(chain: Chain, ranks: int) -> Trace:
    return sampled_trace(chain, requests=REQUESTS, length=LENGTH, ranks=ranks, seed=11)


@cache
def trace_of_case(name: str) -> Trace:
    chain, ranks, _ = CASES[name]
    return recorded(chain, ranks)


@cache
def truth(name: str) -> list[list[Outcome]]:
    chain, _, settings = CASES[name]
    return directly(chain, settings, requests=REQUESTS, length=LENGTH, seed=12)


def compared(name: str) -> tuple[float, str]:
    return disagreement(replayed(replay(trace_of_case(name)), CASES[name][2]), truth(name))


@pytest.mark.parametrize("name", CASES)
def test_replay_agrees_in_law_with_direct_decoding(name: str) -> None:
    z, where = compared(name)
    assert z < LEVEL, where


@pytest.mark.parametrize("name", ["sd", "pearl top-p", "ssd random backup", "ssd C = 0"])
def test_the_reference_emits_the_targets_law(name: str) -> None:
    """Else it would be no reference: tokens after each token are distributed as p has it."""
    chain, _, settings = CASES[name]
    engine = Direct(chain, settings, LENGTH, random.Random(5))
    for _ in range(REQUESTS):
        engine.request()
    for last, law in enumerate(chain.target):
        counts = np.array([engine.emitted[last, token] for token in range(chain.vocabulary)])
        expected = counts.sum() * np.array(law)
        error = np.sqrt(expected * (1.0 - np.array(law))) + 1e-9
        assert (np.abs(counts - expected) <= LEVEL * error).all()


def no_token_is_ever_freed(patch: pytest.MonkeyPatch) -> None:
    chances = sampled.chances
    patch.setattr(sampled, "chances", lambda *a: chances(*a)._replace(freed=np.zeros(len(a[0].rank))))


def the_first_choice_is_always_freed(patch: pytest.MonkeyPatch) -> None:
    chances = sampled.chances
    patch.setattr(sampled, "chances", lambda *a: chances(*a)._replace(freed=np.ones(len(a[0].rank))))


def the_tail_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recorded, "unlisted", lambda self, listed, own: np.zeros(len(own)))


def q_in_place_of_sigma(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sampled, "proposals_of", lambda *_: (DRAFT,))


def one_fanout_for_all_depths(patch: pytest.MonkeyPatch) -> None:
    proposals_of = sampled.proposals_of
    patch.setattr(sampled, "proposals_of", lambda *a: proposals_of(*a)[:1])


def the_ratio_upside_down(patch: pytest.MonkeyPatch) -> None:
    def wrong(recorded: Recorded, proposal: sampled.Proposal) -> Chances:
        right = chances(recorded, proposal)
        return right._replace(accepted=np.minimum(1.0, recorded.target / recorded.draft))

    chances = sampled.chances
    patch.setattr(sampled, "chances", wrong)


def acceptance_and_rank_share_their_luck(patch: pytest.MonkeyPatch) -> None:
    keyed = sampled.keyed_uniforms
    patch.setattr(sampled, "keyed_uniforms", lambda seed, _, *key: keyed(seed, "acceptance", *key))


def random_tokens_are_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TokenModel, "_by_distribution", lambda *_: False)


def backups_get_the_primary_fanout(patch: pytest.MonkeyPatch) -> None:
    hits = TokenModel.hits
    patch.setattr(TokenModel, "hits", lambda self, v, o, w: hits(self, v, replace(o, fanout_backup=None), w))


def the_rejected_token_is_kept(patch: pytest.MonkeyPatch) -> None:
    hits = TokenModel.hits
    patch.setattr(TokenModel, "hits", lambda self, v, o, w: hits(self, v, replace(o, keep_rejected=True), w))


def the_rejected_token_is_never_kept(patch: pytest.MonkeyPatch) -> None:
    hits = TokenModel.hits
    patch.setattr(TokenModel, "hits", lambda self, v, o, w: hits(self, v, replace(o, keep_rejected=False), w))


def runs_end_with_the_block(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: TokenModel, view: Any, operation: Any, verdict: Any) -> Any:
        going_on = continues(self, view, operation, verdict)
        return frozenset(slot for slot in going_on if verdict.accepted[slot] == 0)

    continues = TokenModel.continues
    patch.setattr(TokenModel, "continues", wrong)


MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (no_token_is_ever_freed, "ssd"),
    (no_token_is_ever_freed, "ssd greedy draft"),
    (no_token_is_ever_freed, "ssd random backup"),
    (the_first_choice_is_always_freed, "ssd C = 0.3"),
    (the_tail_is_forgotten, "ssd with a heavy tail"),
    (q_in_place_of_sigma, "ssd C = 0.3"),
    (q_in_place_of_sigma, "ssd random backup"),
    (q_in_place_of_sigma, "sd greedy draft"),
    (one_fanout_for_all_depths, "ssd C = 0"),
    (the_ratio_upside_down, "sd"),
    (the_ratio_upside_down, "pearl"),
    (acceptance_and_rank_share_their_luck, "ssd C = 0.3"),
    (random_tokens_are_compared, "ssd random backup"),
    (backups_get_the_primary_fanout, "ssd plain backup"),
    (the_rejected_token_is_kept, "ssd"),
    (the_rejected_token_is_never_kept, "ssd kept rejected"),
    (runs_end_with_the_block, "pearl"),
]


@pytest.mark.parametrize(("bug", "name"), MUTANTS, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None], name: str
) -> None:
    bug(monkeypatch)
    z, _ = compared(name)
    assert z > LEVEL


@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_hit_rates_are_those_of_the_law(scale: float) -> None:
    """`hit_rate_sampled` gives p_hit,p where all positions have the same laws."""
    chain = Chain.drawn(7, 6, likeness=1.0, iid=True)
    settings = ssd(scale=scale, fanout=(2, 1, 3, 2))
    rounds = replayed(replay(recorded(chain, 6)), settings)
    # A first round never ends the request (4 of 12 tokens at most), so that its outcome is looked up.
    hits = np.array([r[0][-1] for r in rounds])
    law = hit_rate_sampled(chain.p[0], chain.q[0], (2, 1, 3, 2), scale)
    assert abs(hits.mean() - law) <= LEVEL * np.sqrt(law * (1.0 - law) / REQUESTS)
