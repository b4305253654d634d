"""Recording, against laws computed by hand from the models' own logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_calibration import small_job
from small_models import VOCABULARY, prompts
from transformers import AutoModelForCausalLM, AutoTokenizer

from calibrate.job import Job
from calibrate.journal import Journal
from calibrate.record import Recording, Share, draw, record, record_trace, token_logprobs
from hardware_profiles.trace import Trace, read_trace, write_trace

CUT: dict[str, Any] = {"temperature": (0.8,), "top_p": 0.6, "ranks": 20}


def job_of(pair: tuple[str, str], **changes: Any) -> Job:
    """Four prompts, of 20 tokens each."""
    return replace(small_job(*pair), **{"names": ("t", "d"), "max_tokens": 20, "seed": 0, **changes})


def begun() -> Journal:
    """A journal that tells when."""
    journal = Journal()
    journal.put("now", "started")
    return journal


@pytest.fixture(scope="module", params=[(0.0, 1.0), (1.0, 1.0), (0.8, 0.9)], ids=str)
def recorded(request: pytest.FixtureRequest, pair: tuple[str, str]) -> tuple[Share, list[Recording]]:
    """Recordings made in this process."""
    temperature, top_p = request.param
    share = Share(job_of(pair, temperature=(temperature,), top_p=top_p), temperature, (0, 1, 2))
    found: list[object] = []
    record(share, found.append)
    return share, [r for r in found if isinstance(r, Recording)]


def brute_law(logits: np.ndarray, temperature: float, top_p: float) -> tuple[np.ndarray, list[int]]:
    """Probabilities [V] and ranking, by sorting in plain Python."""
    logits = logits.astype(np.float64)
    ranking = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    weights = np.exp((logits - logits.max()) / (temperature or 1.0))
    law = weights / weights.sum()
    kept, mass = [], 0.0
    for token in ranking:
        if mass >= top_p:
            break
        kept.append(token)
        mass += law[token]
    cut = np.zeros_like(law)
    cut[kept] = law[kept] / law[kept].sum()
    return cut, ranking


def logits_along(model: object, ids: tuple[int, ...]) -> np.ndarray:
    """[n, V] logits after every token of a text, in one forward."""
    with torch.inference_mode():
        found: np.ndarray = model(torch.tensor([ids])).logits[0].double().numpy()  # type: ignore[operator]
        return found


def test_every_column_is_what_the_laws_say(
    recorded: tuple[Share, list[Recording]], pair: tuple[str, str]
) -> None:
    job, recordings = recorded
    target, draft = (AutoModelForCausalLM.from_pretrained(f).eval() for f in pair)
    for recording in recordings:
        columns = recording.columns
        text = (*recording.prompt, *columns["token"].tolist())
        here = slice(len(recording.prompt) - 1, len(text) - 1)
        rows = zip(logits_along(target, text)[here], logits_along(draft, text)[here], strict=True)
        for i, (target_logits, draft_logits) in enumerate(rows):
            p, best = brute_law(target_logits, job.temperature, job.top_p)
            q, ranking = brute_law(draft_logits, job.temperature, job.top_p)
            token = int(columns["token"][i])
            ranks = min(job.kept_ranks, VOCABULARY)
            assert p[token] > 0.0
            assert columns["draft_rank"][i] == ranking.index(token)
            assert columns["draft_top_ids"][i].tolist() == ranking[:ranks]
            assert columns["target_top_ids"][i].tolist() == best[:ranks]
            assert columns["accept_mass"][i] == pytest.approx(np.minimum(p, q).sum(), abs=2e-5)
            with np.errstate(divide="ignore"):
                close(columns["target_logprob"][i], np.log(p[token]))
                close(columns["draft_logprob"][i], np.log(q[token]))
                close(columns["draft_top_logprobs"][i], np.log(q[ranking[:ranks]]))
                close(columns["target_at_draft_top_logprobs"][i], np.log(p[ranking[:ranks]]))
                close(columns["target_top_logprobs"][i], np.log(p[best[:ranks]]))
            after = logits_along(draft, (*text[: here.start + i + 1], ranking[0]))[-1]
            expected = np.log(brute_law(after, job.temperature, job.top_p)[0].max())
            close(columns["draft_next_top1_logprob"][i], expected)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal up to single precision, minus infinity included."""
    assert np.allclose(found, expected, rtol=1e-4, atol=2e-4)


def test_a_greedy_text_is_the_best_token_everywhere_and_needs_fewer_ranks(
    recorded: tuple[Share, list[Recording]],
) -> None:
    job, recordings = recorded
    width = recordings[0].columns["draft_top_ids"].shape[1]
    if job.temperature > 0.0:
        assert width == 32
        return
    assert width == 16
    for recording in recordings:
        assert (recording.columns["token"] == recording.columns["target_top_ids"][:, 0]).all()


def test_top_p_keeps_the_smallest_set_and_the_lower_id_among_equals() -> None:
    # e^0, e^0, e^0, e^-20 at temperature 1: a third each, the last next to nothing
    logits = torch.tensor([-20.0, 0.0, 0.0, 0.0])
    logprobs, order = token_logprobs(logits, 1.0, 0.5)
    assert order.tolist() == [1, 2, 3, 0]
    assert logprobs.exp().tolist() == pytest.approx([0.0, 0.5, 0.5, 0.0])
    alone, _ = token_logprobs(logits, 1.0, 0.3)
    assert alone.exp().tolist() == pytest.approx([0.0, 1.0, 0.0, 0.0])


def test_a_cut_token_is_never_drawn() -> None:
    law = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    assert [draw(law, u) for u in (0.0, 0.2499, 0.25, np.nextafter(1.0, 0.0))] == [1, 1, 3, 3]


def test_draws_follow_the_law() -> None:
    law = np.array([0.5, 0.0, 0.3, 0.2])
    drawn = [draw(law, u) for u in np.random.default_rng(0).random(20_000)]
    # A standard error is at most sqrt(.25 / 20000) = 0.0035; five of them.
    assert np.abs(np.bincount(drawn, minlength=4) / 20_000 - law).max() < 0.018


@pytest.fixture(scope="module")
def sampled(pair: tuple[str, str]) -> Trace:
    """A sampled trace with cut tokens, made by two recorders side by side."""
    return record_trace(job_of(pair, **CUT), 0.8, journal=begun(), processes=2)


def test_a_file_keeps_what_was_cut(sampled: Trace, tmp_path: Path) -> None:
    write_trace(sampled, tmp_path / "t.parquet")
    again = read_trace(tmp_path / "t.parquet")
    assert np.isneginf(again.column("draft_top_logprobs")).any()
    for name, values in sampled.columns.items():
        assert np.array_equal(again.column(name), values), name
    assert again.meta.sampling == {"temperature": 0.8, "seed": 0, "top_p": 0.6}
    assert again.meta.draft_top == 20


def test_one_recorder_or_two_write_the_same(sampled: Trace, pair: tuple[str, str]) -> None:
    journal = begun()
    seen: list[tuple[str, int, int]] = []
    progress = lambda *at: seen.append(at)  # noqa: E731
    alone = record_trace(job_of(pair, **CUT), 0.8, progress, journal, processes=1)
    assert same(alone, sampled) and seen == [("trace at T=0.8", i, 4) for i in range(5)]
    # From the journal alone: nothing is recorded, the paths need not even exist.
    assert same(record_trace(job_of(("/no", "/where"), **CUT), 0.8, journal=journal), sampled)


def same(a: Trace, b: Trace) -> bool:
    columns = all(np.array_equal(v, b.columns[n]) for n, v in a.columns.items())
    return columns and a.requests == b.requests and a.meta == b.meta


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": (0.0,), "top_p": 0.9}, "--top-p changes nothing at temperature 0"),
        ({"temperature": (-1.0,)}, "temperature"),
        ({"temperature": (1.0,), "top_p": 0.0}, "top_p"),
        ({"ranks": 0}, "ranks"),
    ],
)
def test_settings_out_of_their_domain_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        job_of(("t", "d"), **options)


def test_a_prompt_that_outgrows_the_model_is_named(pair: tuple[str, str]) -> None:
    job = job_of(pair, prompts=(replace(prompts(1)[0], text="w3 w4"),) * 8, max_tokens=511)
    with pytest.raises(ValueError, match=r"prompt 7 has 2 tokens.*512 positions"):
        record(Share(job, 0.0, (7,)), lambda _: None)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_tokenizer_of_these_tests_reads_words(pair: tuple[str, str]) -> None:
    assert AutoTokenizer.from_pretrained(pair[0])("w3 w4 nonsense")["input_ids"] == [3, 4, 1]
