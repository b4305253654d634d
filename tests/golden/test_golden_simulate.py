"""What `simulate --json` says of every policy, on every shipped profile, at both temperatures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulate_command import answer

SMALL = "--requests 6 --max-tokens 32"
POLICIES = ("ar", "sd", "pld", "pearl", "saguaro", "duo", "double", "mirror", "tree", "rest", "rasd")
MEASURED = ("cpu2-x5", "cpu2-x5-wide", "cpu2-x20")
PAPERS = ("a100x1", "a100x8", "a100x8-mirror", "a800+xeon16", "h100x4+1", "m2ultra-x8+npu", "textbook")
TOSSED = ("ar", "sd", "pearl", "saguaro", "duo", "double --matched-length 3", "mirror", "tree", "heads")
SAGUARO = (
    "--backup primary-all",
    "--backup random",
    "--backup ngram",
    "--backup plain",
    "--stall rows --batch 4",
    "--first backup --backup ngram",
    "--cache-set top",
    "--tree abort",
    "--draft-devices 2",
    "--lookahead 7 --fanout 3 --fanout-backup 12,0,0,0,0,0,0,0 --backup plain",
    "--temperature 1 --scale 0.7",
    "--temperature 1 --draft-sampling greedy",
    "--shape geometric --budget 12",
    "--lookahead auto --shape exact --backup auto --batch 8",
    "--prompt-length 300 --batch 4",
    "--seed 3 --no-jitter",
)
OTHERS = (
    "sd --lookahead auto",
    "sd --lookahead 7 --placement shared",
    "pearl --lookahead auto --batch 2",
    "pld --longest-suffix 2",
    "pearl --temperature 1 --draft-sampling greedy",
    "sd --target-time 1 --draft-time 0.1 --acceptance 0.8",
    "saguaro --target-time 1 --draft-time 0.1 --acceptance 0.8 --hit-exponent 1 --batch 4",
    "heads --target-time 1 --draft-time 0.1 --acceptance 0.8 --head-cost 0.1",
    "mirror --acceptance 0.7 --kappa 8 --overlap off",
    "tree --tree-plan dynamic --batch 2",
    "sd --hw a100x8 --acceptance 0.8 --target-shape deepseek-coder-33b --draft-shape deepseek-coder-1.3b",
    "ar --hw h100x4+1 --acceptance 0.8 --batch 16",
)
CASES = {
    **{f"{policy}-b{batch}": f"{policy} --batch {batch}" for policy in POLICIES for batch in (1, 4)},
    **{f"{policy}-t1": f"{policy} --batch 2 --temperature 1" for policy in POLICIES},
    **{f"{hw}-{p}": f"{p} --hw {hw}" for hw in MEASURED[1:] for p in ("ar", "sd", "saguaro", "pearl")},
    **{f"{hw}-{p}": f"{p} --hw {hw} --acceptance 0.8" for hw in PAPERS for p in ("sd", "saguaro")},
    **{f"coins-{policy.split()[0]}": f"{policy} --acceptance 0.7 --batch 2" for policy in TOSSED},
    **{f"saguaro-{index}": f"saguaro {knobs}" for index, knobs in enumerate(SAGUARO)},
    **{f"other-{index}": line for index, line in enumerate(OTHERS)},
}
OUTCOMES = [
    "policy",
    "requests",
    "prompt_length",
    "speedup_vs_ar",
    "speedup_vs_sd",
    "tokens",
    "rounds",
    "batch_rounds",
    "seconds",
    "prefill_s",
    "tokens_per_second",
    "tokens_per_round",
    "accepted_per_round",
    "acceptance_rate",
    "cache_hit_rate",
    "hit_rate_after_primary",
    "hit_rate_after_backup",
    "run_length",
    "time_to_first_token_s",
    "utilization",
    "stalled_s",
    "overlap_s",
    "memory",
    "hit_rate_tail_error",
]
OF_THE_LAW = [
    "statement",
    "speedup_vs_ar",
    "tokens_per_second",
    "tokens_per_round",
    "cache_hit_rate",
    "ceiling",
    "waterfall",
]


@pytest.fixture(autouse=True)
def _a_short_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waterfall's first simulation shows a long-run rate: its first tokens pin it as well."""
    monkeypatch.setattr("simulator.law.LONG", 1500)


@pytest.mark.parametrize("case", CASES)
def test_an_answer_of_simulate(case: str, golden: Callable[..., None]) -> None:
    said = answer("--policy", *CASES[case].split(), *SMALL.split())
    law = {name: said["law"][name] for name in OF_THE_LAW}
    golden("simulate", {name: said[name] for name in OUTCOMES} | {"law": law}, part=case)
