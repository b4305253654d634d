"""Traffic whose acceptance is given: a made-up recording, so that it is searched like a recorded one.

At each position the draft's first choice is the target's token with probability a, by a coin keyed to the
position; else its rank is F where F guesses, and no fewer, hit: P(rank > F) = c F^-r.  No token comes twice,
so that nothing can be looked up in the text.  Acceptance by position makes coins of its own (`histogram`);
the recording beside them has as many tokens a round, and stands for them where another acceptance is looked
at.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.sources import Sources
from hardware_profiles.profile import Profile
from hardware_profiles.trace import Trace, TraceMeta, TraceRequest
from policies.laws.inverse import acceptance_from_tokens
from policies.registry import SettingError, configure
from policies.sampling import keyed_generator
from simulator.given import FLAT, Acceptance
from simulator.tokens import mixed
from simulator.tokens.acceptance import joint_of, load_acceptance
from simulator.tokens.accepted import SUFFIX, accepted_tokens

REQUESTS = 48
"""Requests of made-up traffic."""
LENGTH = 128
"""Tokens of a prompt, and of its continuation, where nothing else is asked for."""
DEEPEST = 1_000_000
"""Rank of a token that no fan-out reaches."""


def made_up(
    profile: Profile,
    acceptance: float,
    *,
    curve: tuple[float, float] = (1.0, 1.0),
    length: int = LENGTH,
    prompt_length: int = LENGTH,
    seed: int = 0,
) -> Trace:
    """A recording of greedy decoding with an iid acceptance and a power-law hit curve.

    Args:
        profile: Whose models it is called after.
        acceptance: Share of positions where the draft's first choice is right.
        curve: (exponent r, scale c) of P(more than F guesses are needed) after a rejection.
        length: Tokens of each request.
        prompt_length: Of its prompt.
        seed: Keys the coins.

    Raises:
        SettingError: A number outside its domain.
    """
    exponent, scale = curve
    if not 0.0 <= acceptance <= 1.0 or exponent <= 0.0 or not 0.0 <= scale <= 1.0:
        raise SettingError(
            f"acceptance and the hit curve's scale lie in 0..1, its exponent above 0: got {acceptance:g}, "
            f"{scale:g}, {exponent:g}"
        )
    count = REQUESTS * length
    luck = keyed_generator(seed, "given-acceptance", 0).random((2, count))
    with np.errstate(divide="ignore", over="ignore"):
        needed = np.ceil((scale / np.maximum(luck[1], 1e-300)) ** (1.0 / exponent))
    rank = np.where(luck[0] < acceptance, 0, np.clip(needed, 1, DEEPEST)).astype(np.int64)
    words = np.arange(prompt_length, prompt_length + count, dtype=np.int64)
    prompt = tuple(range(prompt_length))
    requests = [
        TraceRequest(id=i, question_id=i, category="given", prompt=prompt, ended="limit")
        for i in range(REQUESTS)
    ]
    meta = TraceMeta(
        target_model=profile.roles.target.model,
        draft_model=profile.roles.draft.model,
        tokenizer="none",
        vocabulary=prompt_length + count,
        sampling={"temperature": 0.0},
        prompt_set=f"made-up prompts of {prompt_length} tokens, acceptance {acceptance:g}",
    )
    return Trace.of(
        requests,
        meta,
        request=np.repeat(np.arange(REQUESTS), length),
        position=np.tile(np.arange(length), REQUESTS),
        token=words,
        draft_rank=rank,
    )


def given_sources(
    profile: Profile, origin: str, acceptance: Acceptance, *, hit_rate: float | None = None, **more: Any
) -> Sources:
    """Sources of a profile and made-up traffic; `more` are arguments of `made_up`.

    `hit_rate` is that of any fan-out; without it a file's hit curve counts, or else 1 - F^-1.

    Raises:
        FileRefused: A file is no acceptance file.
        SettingError: A number outside its domain.
    """
    curve, tokens = (1.0, 1.0), None
    said = f"acceptance {acceptance:g}" if isinstance(acceptance, float) else "acceptance by position"
    if isinstance(acceptance, Path) and acceptance.suffix == SUFFIX:
        tokens, said = accepted_tokens(acceptance, configure("sd"), limit=more.get("length"))
        sources = given_sources(profile, origin, float(np.mean(tokens.run > 0)), hit_rate=hit_rate, **more)
        return replace(sources, tokens=tokens, origins={"profile": origin, 0.0: said})
    if isinstance(acceptance, Path):
        known = load_acceptance(acceptance)
        curve, said = known.hit_curve or curve, f"{known.words}, as by `simulate --acceptance`"
        acceptance = known.acceptance_at_position
    if hit_rate is not None:
        curve = (FLAT, 1.0 - hit_rate)
    if isinstance(acceptance, tuple):
        shape = {"length": LENGTH, "prompt_length": LENGTH, "seed": 0, **more}
        tokens = mixed(acceptance, exponent=curve[0], scale=curve[1], requests=REQUESTS, **shape)
        acceptance = acceptance_from_tokens(1.0 + sum(joint_of(acceptance)), len(acceptance))
    trace = made_up(profile, acceptance, curve=curve, **more)
    said += f", hit 1 - {curve[1]:g} F^-{curve[0]:g}" if hit_rate is None else f", hit rate {hit_rate:g}"
    origins: dict[str | float, str] = {"profile": origin, 0.0: f"made up: {said}"}
    return Sources(profile, {0.0: trace}, 0.0, origins=origins, tokens=tokens)
