"""What engines return with an answer: vLLM's per-request metrics, SGLang's `meta_info`, AIPerf's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from hardware_profiles.jsonfile import parse_json, to_json
from simulator.imports.derive import from_histogram, pool
from simulator.imports.measured import Imported, ImportRefused, at_line, believable, count, optional
from simulator.imports.text import json_lines

_SGLANG_NAMES = {
    "accepted": ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
    "drafted": ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
    "histogram": ("spec_correct_drafts_histogram", "spec_accept_histogram"),
    "rounds": ("spec_verify_ct",),
}
"""Every name that SGLang has given a count, the newest first; several stand side by side during a change."""


def parse_vllm(text: str) -> tuple[Imported, ...]:
    """VLLM's `metrics.speculative_decoding` of one answer, summary or detailed."""
    return (_of_vllm(parse_json(text)),)


def _of_vllm(answer: Mapping[str, Any]) -> Imported:
    found = answer["metrics"]["speculative_decoding"]
    delivered = optional(answer.get("usage", {}), "completion_tokens")
    return _vllm(found, "vllm-request", delivered)


def parse_aiperf(text: str) -> tuple[Imported, ...]:
    """AIPerf's record of one request, or its pooled histogram: sparse, keys are strings."""
    holder = parse_json(text)
    if "spec_decode_acceptance" in holder:
        found = dict(holder["spec_decode_acceptance"])
        found["acceptance_histogram"] = _dense(found.get("acceptance_histogram"))
        measured = _vllm(found, "aiperf", None)
        return (replace(measured, engine=str(found.get("engine", "aiperf"))),)
    histogram = _dense(holder["pooled_spec_decode_acceptance_histogram"])
    return (from_histogram(histogram, engine="aiperf", source="aiperf"),)


def parse_sglang(text: str) -> tuple[Imported, ...]:
    """SGLang's counts of one answer: `meta_info` or `sglext.spec_tokens_details`, under any of their names.

    `spec_accept_length` is left alone: it divides by rounds the tokens of the whole answer, the prefill's
    first one included.
    """
    return (_of_sglang(parse_json(text)),)


def _of_sglang(answer: Mapping[str, Any]) -> Imported:
    found = answer.get("meta_info") or answer["sglext"]["spec_tokens_details"]
    rounds = _first(found, "rounds")
    if not rounds:
        raise ImportRefused("expected spec_verify_ct above 0: this answer was not speculated for")
    accepted, drafted = _first(found, "accepted"), _first(found, "drafted")
    tokens = found.get("completion_tokens", answer.get("usage", {}).get("completion_tokens"))
    known: dict[str, Any] = {
        "engine": "sglang",
        "source": "sglang-meta-info",
        "drafted": drafted,
        "overshoot_tokens": _overshoot(rounds, accepted, tokens),
    }
    if drafted and drafted % rounds == 0:
        known["lookahead"] = drafted // rounds
    histogram = _first(found, "histogram")
    if histogram is not None:
        counts = _counts(histogram, "histogram")
        return from_histogram(counts, rounds=rounds, accepted=accepted, batch=None, **known)
    length = None if accepted is None else 1.0 + accepted / rounds
    return Imported(rounds=rounds, accepted=accepted, tokens_per_round=length, **known)


def parse_sglang_stats(text: str) -> tuple[Imported, ...]:
    """SGLang's `sglext.speculative_decoding_stats`: lists per round, both with one token too many.

    A verification's length counts the root, an accepted length the bonus token.
    """
    found = []
    for entry in parse_json(text)["sglext"]["speculative_decoding_stats"]:
        verified = _counts(entry.get("verify_lengths"), "verify_lengths")
        accepted = _counts(entry.get("accept_lengths"), "accept_lengths")
        drafted, kept = [n - 1 for n in verified], [n - 1 for n in accepted]
        found.append(from_rounds(kept, drafted, engine="sglang", source="sglang-stats"))
    return (pool(found),)


def parse_answers(text: str) -> tuple[Imported, ...]:
    """A run's answers with SGLang's or vLLM's counts, one JSON object per line."""
    found: list[Imported] = []
    for at, answer in json_lines(text):
        try:
            with at_line(at):
                found.append(_of_vllm(answer) if "metrics" in answer else _of_sglang(answer))
        except (LookupError, TypeError, AttributeError) as error:
            raise ImportRefused(f"expected counts of speculative decoding, got {error!r}", at) from error
    return tuple(replace(part, label=f"answer {i}") for i, part in enumerate(found, 1))


def from_rounds(accepted: Sequence[int], drafted: Sequence[int], **known: Any) -> Imported:
    """A measurement of single rounds, whose draft length may vary.

    Position i was tried only in rounds that drafted so far and accepted all before it: dividing by all
    rounds would count a short draft as a rejection.

    Args:
        accepted: Accepted tokens of each round.
        drafted: Drafted tokens of each round.
        known: Further attributes of `Imported`.

    Raises:
        ImportRefused: Lists that do not belong together.
    """
    if len(accepted) != len(drafted) or any(a > d for a, d in zip(accepted, drafted, strict=True)):
        raise ImportRefused("expected as many accepted as drafted counts, none of them larger")
    if not drafted or max(drafted) == 0:
        raise ImportRefused("expected rounds that drafted something")
    deepest, rounds = believable(max(drafted)), list(zip(accepted, drafted, strict=True))
    conditional = []
    for i in range(1, deepest + 1):
        tried = sum(d >= i and a >= i - 1 for a, d in rounds)
        conditional.append(sum(a >= i for a, _ in rounds) / tried if tried else 0.0)
    varies = min(drafted) < deepest
    return Imported(
        lookahead=deepest,
        rounds=len(rounds),
        drafted=sum(drafted),
        accepted=sum(accepted),
        tokens_per_round=1.0 + sum(accepted) / len(rounds),
        acceptance_at_position=tuple(conditional),
        joint_acceptance_at_position=tuple(accumulate(conditional, lambda a, b: a * b)),
        histogram=None if varies else tuple(accepted.count(j) for j in range(deepest + 1)),
        notes=("the draft length varies: a position's rate is over the rounds that drafted so far",) * varies,
        **known,
    )


def _vllm(found: Mapping[str, Any], source: str, delivered: float | None) -> Imported:
    rounds = count(found.get("num_spec_steps"), "num_spec_steps")
    accepted = count(found.get("num_accepted_draft_tokens"), "num_accepted_draft_tokens")
    drafted = count(found.get("num_draft_tokens"), "num_draft_tokens")
    known: dict[str, Any] = {
        "engine": "vllm",
        "source": source,
        "overshoot_tokens": _overshoot(rounds, accepted, delivered),
    }
    if "per_step_accepted" in found:
        per_round = [_counts(found.get(f"per_step_{name}"), name) for name in ("accepted", "drafted")]
        return from_rounds(per_round[0], per_round[1], **known)
    histogram = _counts(found.get("acceptance_histogram"), "acceptance_histogram")
    known["drafted"] = drafted
    if drafted != rounds * (len(histogram) - 1):
        known["notes"] = ("the draft length varies: joint rates count short rounds as rejections",)
    return from_histogram(histogram, rounds=rounds, accepted=accepted, **known)


def _overshoot(rounds: int, accepted: int | None, delivered: object) -> int | None:
    """Tokens of the rounds and of the prefill beyond those delivered."""
    if accepted is None or delivered is None:
        return None
    return 1 + rounds + accepted - count(delivered, "completion_tokens")


def _dense(sparse: object) -> list[int]:
    """`{"0": 34, "2": 19}` as [34, 0, 19]."""
    if not isinstance(sparse, dict) or not all(str(key).isdigit() for key in sparse):
        raise ImportRefused(f"expected a histogram of whole numbers, got {sparse!r}")
    keys = [int(key) for key in sparse]
    deepest = believable(max(keys, default=-1))
    return [count(sparse.get(str(j), 0), f"histogram[{j}]") for j in range(deepest + 1)]


def _counts(values: object, name: str) -> list[int]:
    if not isinstance(values, list):
        raise ImportRefused(f"{name}: expected a list of whole numbers, got {values!r}")
    return [count(value, f"{name}[{i}]") for i, value in enumerate(values)]


def _first(found: Mapping[str, Any], what: str) -> Any:
    """The value under the newest of the names that are there; aliases must agree."""
    values = {name: found[name] for name in _SGLANG_NAMES[what] if found.get(name) is not None}
    if len({to_json(value) for value in values.values()}) > 1:
        raise ImportRefused(f"names of the same count disagree: {values}")
    value = next(iter(values.values()), None)
    return value if value is None or isinstance(value, list) else count(value, next(iter(values)))
