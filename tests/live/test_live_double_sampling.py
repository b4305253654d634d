"""DOUBLE sampled: the target's law, jointly over four tokens, and what planted bugs do to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sampling_support import VOCABULARY, fit, sampled_texts

from calibrate.live.engine import sampling
from calibrate.live.engine.executor import Executor
from calibrate.live.engine.sampling import DraftSampler
from calibrate.live.errors import AuditError
from calibrate.live.handlers import double
from hardware_profiles.datastore import Datastore
from policies.laws.retrieval import common_prefix
from policies.registry import Settings, configure

Plant = Callable[[pytest.MonkeyPatch], None]

REQUESTS = 2000
CASES = [
    {"lookahead": 2, "retrieval_length": 2},
    {"lookahead": 3, "retrieval_length": 3, "longest_suffix": 1, "top_p": 0.8},
    {"lookahead": 2, "retrieval_length": 2, "overlap": "off"},
    {"lookahead": 2, "retrieval_length": 3, "draft_sampling": "greedy"},
]


def sampled(**knobs: object) -> Settings:
    return configure("double", **{"temperature": 0.9, "seed": 1, **knobs})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def prior(tmp_path_factory: pytest.TempPathFactory) -> str:
    """In which whatever was said occurs, so that something is retrieved in every forward."""
    text = np.random.default_rng(2).integers(VOCABULARY, size=150).tolist()
    folder = tmp_path_factory.mktemp("prior") / "prior"
    Datastore.of_texts([text], VOCABULARY).write(folder)
    return str(folder)


@pytest.mark.parametrize("known", [False, True], ids=["own words", "prior"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: sampled(**case).label)
def test_emitted_texts_have_the_targets_law(case: dict[str, object], known: bool, prior: str) -> None:
    """Four tokens, jointly."""
    settings = sampled(**case, datastore=prior if known else None)
    rows = sampled_texts(settings, requests=REQUESTS)
    found = fit(rows, settings.sampling)
    assert found.impossible == 0
    assert found.p_value > 1e-3, str(found)
    table = rows.log.table()
    rejected = table["accepted"] < table["length"]
    assert min(rejected.sum(), (~rejected).sum(), (table["emitted"] > 1).sum()) > 100
    assert (table["hit"] == 1).sum() > 100 or settings.knobs["overlap"] == "off"


def guidance_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rejection the rest of the guidance is committed behind the correction (equation 6)."""
    correct = double._guidance

    def guidance(executor: Any, message: Any, ends: Any, drafts: Any, lengths: Any) -> Any:
        verdicts = correct(executor, message, ends, drafts, lengths)
        kept = {
            i: _open_after(ends[i], v.accepted + 1)
            for i, v in enumerate(verdicts)
            if v.accepted < min(len(drafts[i].tokens), len(ends[i].retrieved), len(v.emitted)) and not v.ended
        }
        return double._extended(executor, message, verdicts, kept)

    monkeypatch.setattr(double, "_guidance", guidance)


def guidance_stays_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without the audit of what the target holds."""
    guidance_stays(monkeypatch)
    monkeypatch.setattr(Executor, "rewind", lambda self, row: self.runner.rollback(row.slot, row.context - 1))


def _open_after(end: double.OpenEnd, run: int) -> double.OpenEnd:
    return double.OpenEnd.after(run, end.row, end.retrieved[run:], end.probs[run:])


def judged_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the draft's token is rejected, the retrieved one has a go at the same position."""
    correct = double._guidance

    def guidance(executor: Any, message: Any, ends: Any, drafts: Any, lengths: Any) -> Any:
        verdicts = correct(executor, message, ends, drafts, lengths)
        rejected = {
            i: _open_after(ends[i], v.accepted)
            for i, v in enumerate(verdicts)
            if v.accepted < min(len(drafts[i].tokens), len(v.emitted))
        }
        cut = [
            v._replace(emitted=v.emitted[: v.accepted]) if i in rejected else v
            for i, v in enumerate(verdicts)
        ]
        return double._extended(executor, message, cut, rejected)

    monkeypatch.setattr(double, "_guidance", guidance)


def matched_by_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft confirms a retrieved token that is its first choice, and says that it drew it from q."""
    correct, drawing = double._choose, sampling.draw

    def choose(sampler: Any, drafts: Any, going: Any, found: Any, logits: Any) -> Any:
        def draw(weights: Any, uniforms: Any) -> Any:
            drawn, best, at = drawing(weights, uniforms), logits.argmax(dim=-1).tolist(), 0
            for ahead in found:
                matched = common_prefix(ahead, best[at:])
                drawn[at : at + matched] = torch.tensor(ahead[:matched], dtype=drawn.dtype)
                at += len(ahead) + 1
            return drawn

        with monkeypatch.context() as planted:
            planted.setattr(sampling, "draw", draw)
            return correct(sampler, drafts, going, found, logits)

    monkeypatch.setattr(double, "_choose", choose)


def target_likes_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target confirms a retrieved token that is its first choice."""
    correct = double._retrieved

    def retrieved(executor: Any, message: Any, ends: Any) -> Any:
        sure = [
            end._replace(probs=torch.cat([_sharpened(end.probs[:-1], end.retrieved), end.probs[-1:]]))
            for end in ends
        ]
        return correct(executor, message, sure)

    monkeypatch.setattr(double, "_retrieved", retrieved)


def _sharpened(laws: Any, retrieved: Sequence[int]) -> Any:
    laws = laws.clone()
    for i, token in enumerate(retrieved):
        if int(laws[i].argmax()) == token:
            laws[i] = torch.nn.functional.one_hot(torch.tensor(token), laws.shape[-1]).double()
    return laws


MUTANTS: list[tuple[str, int, Plant]] = [
    ("guidance is kept after a rejection", 0, guidance_stays_unnoticed),
    ("a position is judged twice", 0, judged_twice),
    ("the draft matches by argmax", 0, matched_by_the_best),
    ("the target matches by argmax", 2, target_likes_the_best),
]


@pytest.mark.parametrize(("name", "case", "plant"), MUTANTS, ids=[name for name, *_ in MUTANTS])
def test_a_biased_mutant_is_caught(
    name: str, case: int, plant: Plant, prior: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = sampled(**CASES[case], datastore=prior)
    plant(monkeypatch)
    found = fit(sampled_texts(settings, requests=REQUESTS), settings.sampling)
    assert found.p_value < 1e-6, f"{name}: {found}"


def test_kept_guidance_does_not_even_come_so_far(prior: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a statistic: the target holds other tokens than were committed."""
    guidance_stays(monkeypatch)
    with pytest.raises(AuditError, match="tokens of a text of"):
        sampled_texts(sampled(**CASES[0], datastore=prior), requests=500)


def test_a_position_that_is_drafted_again_has_new_luck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected tokens are retrieved: they must not tell what is drafted in their place."""
    seen: dict[tuple[int, int], dict[int, float]] = {}
    correct = DraftSampler._uniforms

    def spy(self: DraftSampler, requests: Any, positions: Any, rounds: Any) -> Any:
        uniforms = correct(self, requests, positions, rounds)
        keys = zip(requests.tolist(), positions.tolist(), rounds.tolist(), uniforms.tolist(), strict=True)
        for request, position, when, uniform in keys:
            seen.setdefault((request, position), {})[when] = uniform
        return uniforms

    monkeypatch.setattr(DraftSampler, "_uniforms", spy)
    sampled_texts(sampled(**CASES[0]), requests=250)
    again = [draws for draws in seen.values() if len(draws) > 1]
    assert len(again) > 100
    assert all(len(set(draws.values())) == len(draws) for draws in again)
