"""Published cases of speculation under load: on which side of plain decoding is the prediction?

Each case is served in a closed loop of as many users as printed, on a shipped profile of its models (or of
the nearest ones), with coins of the acceptance that gives its printed tokens a round.  What is printed are
speedups over plain decoding; nothing is fitted to them.  `gpu-oracle` composes published cases with their
engine's kernels and host time; here they are served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.execute import Bench
from analysis.results import Results, Row
from analysis.show import Column, table
from analysis.studies.load import TEXTS, TOKENS
from analysis.study import POSITIVE, Plan, Study, option
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from policies.registry import configure
from serving.lookahead import LookaheadByBatch
from serving.metrics import metrics
from serving.scheduler import EngineOptions
from serving.traffic import generated
from simulator.flat_traffic import serve_traffic
from simulator.scenario import Scenario
from simulator.tokens import coin

LLAMA = "h100x4-llama-3.1-70b+llama-3.2-1b"
MOE = "h100x2-qwen3-30b-a3b+eagle3-qwen3-30b-a3b"
EAGLE = "h100x1-qwen3-8b+eagle3-qwen3-8b"
HOST = (
    "the engine's host time in a round of trees, which the profile lacks; gpu-oracle, which has it, is right"
)


@dataclass(frozen=True)
class Case:
    """A published case.

    Attributes:
        source: Where.
        hw: Profile that stands for it.
        lookahead: K.
        accepted: Of these in a round, by users.
        printed: Speedup over plain decoding, by users.
        cause: Of what the prediction misses.
        off: Whether nothing is drafted, though the draft is there (K = 0).
    """

    source: str
    hw: str
    lookahead: int
    accepted: tuple[float, ...]
    printed: dict[int, float]
    cause: str
    off: bool = False


CASES = (
    Case(
        "sglang PR#22520, Llama-3.3-70B + 1B, overlapped drafts",
        LLAMA,
        5,
        (1.621, 1.392, 1.536, 1.569, 1.468, 1.516),
        {1: 1.806, 4: 1.831, 8: 1.914, 16: 1.813, 32: 1.555, 64: 1.209},
        "drafts that overlap with verification on GPUs of their own; here they take turns",
    ),
    Case(
        "SpecForge#339, Qwen3-30B-A3B + EAGLE-3 on SGLang",
        MOE,
        3,
        (0.86, 0.86),
        {1: 0.718, 4: 0.791},
        HOST,
    ),
    Case(
        "vllm#49548, an MoE target: K = 0 against plain decoding",
        MOE,
        2,
        (1.0, 1.0),
        {2: 1 / 1.066, 189: 1 / 1.216},
        "piecewise graphs and K that flips at its threshold (vllm#49986), beside the draft's own step",
        off=True,
    ),
    Case(
        "the same, a dense target",
        EAGLE,
        2,
        (1.0, 1.0),
        {2: 1 / 1.066, 189: 1 / 1.216},
        "piecewise graphs and K that flips at its threshold (vllm#49986), beside the draft's own step",
        off=True,
    ),
)


@dataclass(frozen=True)
class SignsPlan(Plan):
    """How long texts are."""

    hw: tuple[str, ...] = ()
    prompt: int = option(250, "Tokens of every prompt.", type=POSITIVE)
    output: int = option(250, "Tokens of every reply.", type=POSITIVE)


def acceptance_of(accepted: float, lookahead: int) -> float:
    """Of a coin that accepts so many of K drafted tokens in the mean: the a with a + ... + a^K = accepted."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2.0
        total = sum(middle**j for j in range(1, lookahead + 1))
        low, high = (middle, high) if total < accepted else (low, middle)
    return low


def answer(bench: Bench) -> Iterator[Row]:
    """A row per case and number of users."""
    plan = bench.plan_as(SignsPlan)
    for done, case in enumerate(CASES):
        profile = load_profile(find_profile(case.hw))
        for (users, printed), accepted in zip(case.printed.items(), case.accepted, strict=True):
            tokens = coin(
                acceptance_of(accepted, case.lookahead),
                exponent=1.0,
                scale=1.0,
                requests=TEXTS,
                length=TOKENS,
                prompt_length=1,
                seed=plan.seed,
            )
            scenario = Scenario(tokens, profile=profile, seed=plan.seed)
            count = max(40, 4 * users)
            traffic = generated(count, plan.prompt, plan.output, np.zeros(count))
            off = LookaheadByBatch((1,), (0,)) if case.off else None
            spent = [
                metrics(
                    serve_traffic(
                        scenario, settings, traffic, EngineOptions(), by_load, max_concurrency=users
                    )[0]
                )
                for settings, by_load in (
                    (configure("ar"), None),
                    (configure("sd", lookahead=case.lookahead), off),
                )
            ]
            predicted = spent[0]["mean_tpot_ms"] / spent[1]["mean_tpot_ms"]
            right = (predicted > 1.0) == (printed > 1.0)
            yield {
                "source": case.source,
                "hw": case.hw,
                "lookahead": 0 if case.off else case.lookahead,
                "users": users,
                "printed": printed,
                "predicted": predicted,
                "sign_right": right,
                "cause": case.cause if abs(predicted / printed - 1.0) > 0.1 or not right else None,
            }
        bench.progress("published cases", done + 1, len(CASES))


def show(results: Results) -> Iterator[Any]:
    """A line per case and number of users."""
    right = sum(row["sign_right"] for row in results.rows)
    yield table(
        f"Speedup over plain decoding, TPOT: {right} of {len(results.rows)} on the right side of 1",
        (
            Column("case", "source"),
            Column("K", "lookahead"),
            Column("users", "users"),
            Column("printed", "printed", "{:.2f}"),
            Column("predicted", "predicted", "{:.2f}"),
            Column("sign", lambda row: "right" if row["sign_right"] else "wrong"),
        ),
        results.rows,
    )
    causes = {row["source"]: row["cause"] for row in results.rows if row["cause"]}
    for source, why in causes.items():
        yield f"off by more than 10 %: {source}: {why}"


STUDY = Study(
    name="signs",
    question="Does speculation pay under load where published runs say so?",
    plan=SignsPlan,
    answer=lambda bench: list(answer(bench)),
    show=show,
    examples=("", "--json"),
)
