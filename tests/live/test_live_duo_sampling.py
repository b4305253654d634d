"""DuoDecoding sampled: lossless by the G-test of `test_live_sampling`; planted bugs are caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from live_support import InlineWorld
from sampling_support import BATCH, LENGTH, PROMPTS, VOCABULARY, TableRunner, fit, tables
from torch import Tensor

from calibrate.live.engine import verification
from calibrate.live.engine.executor import _HANDLED, Handled
from calibrate.live.engine.sampling import ACCEPTED, BONUS, draw, token_probs
from calibrate.live.handlers import duo as handler
from policies.duo import NO_SEQUENCE, SettleSequences
from policies.registry import Settings, configure, start
from policies.rows import Rows
from policies.sampling import Sampling, keyed_uniforms
from policies.values import Request

ALPHA, HOPELESS = 1e-3, 1e-12
REQUESTS = 4_000


def sampled_texts(settings: Settings, requests: int = REQUESTS) -> tuple[Rows, InlineWorld]:
    """Many requests on models that are tables (see `sampling_support`)."""
    target, draft = tables()
    runners: list[Any] = [TableRunner(target), TableRunner(draft)]
    world = InlineWorld(*runners, vocabulary=VOCABULARY, ring_bytes=1 << 26)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(requests)]
    rows = Rows([Request(i, len(p), LENGTH, p) for i, p in enumerate(prompts)], BATCH, keep_tokens=True)
    world.run(start(world, rows, settings))
    return rows, world


SAMPLED = [
    {"lookahead": 1},
    {"lookahead": 3, "sequences": "1"},
    {"lookahead": 4, "sequences": "2"},
    {"lookahead": 7, "sequences": "3", "top_p": 0.8},
    {"lookahead": 7},
    {"lookahead": 7, "draft_sampling": "greedy"},
    {"lookahead": 5, "sequences": "3", "draft_sampling": "greedy", "top_p": 0.8},
]


def settings_of(case: dict[str, Any]) -> Settings:
    return configure("duo", **{"temperature": 0.9, "seed": 1, **case})


@pytest.mark.parametrize("case", SAMPLED, ids=lambda case: settings_of(case).label)
def test_sampled_texts_have_the_targets_law(case: dict[str, Any]) -> None:
    """All four tokens jointly: a G-test against the exact law (see `test_live_sampling`)."""
    settings = settings_of(case)
    rows, _ = sampled_texts(settings)
    found = fit(rows, settings.sampling)
    assert found.impossible == 0
    assert found.p_value > ALPHA, str(found)
    table = rows.log.table()
    assert min((table["hit"] == hit).sum() for hit in (0, 1)) > 100
    if case["lookahead"] > 1:
        assert (table["accepted"] > 0).sum() > 100
        assert (table["accepted"] < table["length"]).sum() > 100


def test_every_candidate_is_accepted_as_often_as_the_law_says() -> None:
    """Shares of the sequences that go on, against `policies.laws` at one position, the first of all texts."""
    settings = settings_of({"lookahead": 4, "sequences": "3"})
    rows, world = sampled_texts(settings)
    target, draft = (token_probs(table[1, 2], settings.sampling).numpy() for table in tables())
    seen = [
        reply.sequence
        for operation, answer in world.target.served
        if isinstance(operation, SettleSequences)
        for slot, at in zip(operation.view.slots, operation.view.positions, strict=True)
        if at == 0
        for reply in [answer[slot]]
    ]
    # First a token s of q, accepted with min(1, p / q); then the two likeliest others, by what is left of p.
    ranked = np.argsort(-draft)
    expected = np.zeros(4)
    expected[0] = np.minimum(target, draft).sum()
    left = np.maximum(target - draft, 0.0)
    rejected = np.maximum(draft - target, 0.0)
    for s in range(VOCABULARY):
        others = [token for token in ranked if token != s][:2]
        # Given a rejection, which token was rejected says nothing of the residual.
        expected[1:3] += rejected[s] / rejected.sum() * left[others]
    expected[3] = 1.0 - expected.sum()
    counts = np.bincount(np.where(np.array(seen) == NO_SEQUENCE, 3, seen), minlength=4)
    assert len(seen) == counts.sum() == len(rows.texts)
    error = np.sqrt(len(seen) * expected * (1.0 - expected))
    assert np.abs(counts - len(seen) * expected).max() < 4.0 * error.max()
    assert counts.min() > 20


def test_one_sequence_is_pearl_token_by_token() -> None:
    """The one candidate meets the luck that PEARL's next block meets."""
    settings = settings_of({"lookahead": 3, "sequences": "1"})
    pearl = configure("pearl", temperature=0.9, seed=1, lookahead=3)
    assert sampled_texts(settings, 200)[0].texts == sampled_texts(pearl, 200)[0].texts


def final_residual(
    executor: Any, p: Tensor, rows: Any, asks: Any, sampling: Sampling
) -> tuple[list[int], list[int]]:
    """Every candidate by the target's own p; one residual, of the last candidate, at the end."""
    numbers, tokens = [], []
    for i, (row, ask) in enumerate(zip(rows, asks, strict=True)):
        chosen, last = NO_SEQUENCE, p[i]
        for number, token in enumerate(ask.tokens):
            sigma = np.eye(p.shape[-1])[token]
            if number == 0 and ask.handle >= 0:
                sigma = executor.reader.probs(np.array([ask.handle]), p.shape[-1])[0]
            more = (number,) if number else ()
            uniform = keyed_uniforms(sampling.seed, ACCEPTED, row.request, row.position, *more)
            if uniform * sigma[token] < float(p[i, token]):
                chosen = number
                break
            last = (p[i] - torch.from_numpy(sigma)).clamp(min=0.0)
        uniform = keyed_uniforms(sampling.seed, BONUS, np.array([row.request]), np.array([row.position]))
        numbers.append(chosen)
        tokens.append(ask.tokens[chosen] if chosen != NO_SEQUENCE else int(draw(last[None], uniform)[0]))
    return numbers, tokens


def decided_twice(
    executor: Any, p: Tensor, rows: Any, asks: Any, sampling: Sampling
) -> tuple[list[int], list[int]]:
    """Where no candidate passes, the position is decided again, by p."""
    numbers, tokens = handler.try_candidates(executor, p.clone(), rows, asks, sampling)
    requests = np.array([row.request for row in rows])
    positions = np.array([row.position for row in rows])
    anew = draw(p, keyed_uniforms(sampling.seed, "again", requests, positions)).tolist()
    return numbers, [t if n != NO_SEQUENCE else a for n, t, a in zip(numbers, tokens, anew, strict=True)]


def no_residual(p: Tensor, sigma: Tensor) -> Tensor:
    return p


def shared_luck(seed: int, stream: str, *key: Any) -> Any:
    """All candidates of a position meet one uniform."""
    return keyed_uniforms(seed, stream, *key[:2])


@pytest.fixture
def planted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    original = handler.try_candidates
    if name in {"single final residual", "decided twice"}:
        wrong = final_residual if name == "single final residual" else decided_twice

        def settle(executor: Any, message: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(handler, "try_candidates", _inside(wrong, original, patch))
                return handler.settle_sequences(executor, message)

        monkeypatch.setitem(_HANDLED, SettleSequences.kind, Handled(SettleSequences, settle))
    elif name == "no residual":
        monkeypatch.setattr(verification, "residual", no_residual)
    else:
        assert name == "one luck for all candidates"
        monkeypatch.setattr(verification, "keyed_uniforms", shared_luck)
    return name


def _inside(wrong: Any, original: Any, patch: pytest.MonkeyPatch) -> Any:
    """`wrong` with the correct function in its place while it runs, since it may call it."""

    def call(*args: Any) -> Any:
        patch.setattr(handler, "try_candidates", original)
        return wrong(*args)

    return call


CASE = {"lookahead": 4, "sequences": "2", "seed": 2}


@pytest.mark.parametrize(
    "planted",
    [
        "single final residual",
        "decided twice",
        "no residual",
        "one luck for all candidates",
    ],
    indirect=True,
)
def test_a_planted_bug_is_caught(planted: str) -> None:
    settings = settings_of(CASE)
    rows, _ = sampled_texts(settings)
    found = fit(rows, settings.sampling)
    assert found.p_value < HOPELESS, f"{planted}: {found}"


def test_without_a_bug_the_same_run_passes() -> None:
    settings = settings_of(CASE)
    rows, _ = sampled_texts(settings)
    assert fit(rows, settings.sampling).p_value > ALPHA
