"""`python -m simulator.imports export`: a setting in the engines' own terms."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest
from import_samples import SAMPLES, TEXTBOOK, run
from simulate_command import simulated

from simulator.imports.export import NEEDS_MODEL, SGLANG, Speculation, schedule
from simulator.imports.measured import ImportRefused


@pytest.mark.parametrize("answer", [{"knobs": {"lookahead": 4}}, {"lookahead": 4}])
def test_older_answers_have_their_knobs_beside_the_policy(tmp_path: Path, answer: dict[str, object]) -> None:
    (tmp_path / "answer.json").write_text(json.dumps({"policy": "sd", **answer}))
    assert (
        "num_speculative_tokens"
        in run("export", "--simulated", str(tmp_path / "answer.json"), "--draft", "d").stdout
    )


def test_export_of_a_simulated_answer(tmp_path: Path, acceptance: str) -> None:
    answer = simulated(
        "--acceptance", acceptance, "--policy", "sd", "--lookahead", "5", *TEXTBOOK, "--json"
    ).stdout
    (tmp_path / "answer.json").write_text(answer)
    lines = json.loads(
        run("export", "--simulated", str(tmp_path / "answer.json"), "--draft", "d", "--json").stdout
    )
    config = '{"method": "draft_model", "model": "d", "num_speculative_tokens": 5}'
    assert lines == {
        "vllm": f"--speculative-config '{config}'",
        "sglang": "--speculative-algorithm STANDALONE --speculative-draft-model-path d "
        "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6",
        "tensorrt-llm": """--config <(echo '{"speculative_config": {"decoding_type": "DraftTarget", """
        """"max_draft_len": 5, "speculative_model": "d"}, "disable_overlap_scheduler": true}')""",
        "llama.cpp": "--model-draft d --spec-type draft-simple --spec-draft-n-max 5 "
        "--spec-draft-n-min 5 --spec-draft-p-min 0",
    }


def test_export_of_methods_without_a_model() -> None:
    setting = Speculation(3, "ngram")
    assert json.loads(setting.vllm_config) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }
    sglang = "--speculative-algorithm NGRAM --speculative-num-draft-tokens 4"
    assert setting.flags["sglang"] == sglang and "llama.cpp" not in setting.flags
    for arguments, said in (
        (["--lookahead", "3"], "needs a draft model"),
        (["--lookahead", "3", "--method", "ngram", "--draft", "d"], "has no draft model"),
        (["--draft", "d"], "give --lookahead"),
        (["--lookahead", "3", "--draft", "d", "--method", "magic"], "unknown method"),
        (["--lookahead", "3", "--draft", "d", "--by-batch", "1-4"], "expected B:K"),
        (["--lookahead", "3", "--draft", "d", "--by-batch", "1:4"], "exceeds the 3"),
        (["--lookahead", "3", "--draft", "d", "--by-batch", "1:3", "--engine", "sglang"], "only vLLM"),
        (["--lookahead", "3", "--draft", "d", "--largest-batch", "9"], "changes nothing"),
    ):
        result = run("export", *arguments)
        assert result.exit_code == 2 and said in result.output


def test_schedule() -> None:
    # 4 from 1 to 7, 2 from 8 to 31, plain decoding from 32 to 64; equal neighbours are one range
    assert schedule({1: 4, 4: 4, 8: 2, 32: 0}, 64) == [[1, 7, 4], [8, 31, 2], [32, 64, 0]]
    assert schedule({2: 3}) == [[1, 2, 3]]
    with pytest.raises(ImportRefused, match="below 8"):
        schedule({8: 1}, 4)


def test_lookahead_by_batch_of_timed_rounds() -> None:
    timed = str(SAMPLES / "vllm/dynamic_speculative_config_eagle1.json")
    line = run("export", "--measured", timed, "--method", "eagle", "--draft", "e", "--engine", "vllm").output
    assert '"num_speculative_tokens_per_batch_size": [[1, 63, 3], [64, 64, 2]]' in line


def test_acceptance_that_engines_are_made_to_have() -> None:
    asked = Speculation(4, "draft_model", "d", forced=3.5)
    assert '"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.5' in asked.flags["vllm"]
    assert asked.environment["sglang"].startswith("SGLANG_SIMULATE_ACC_LEN=3.5 ")
    # TensorRT-LLM counts the drafts accepted: one token fewer.
    assert asked.environment["tensorrt-llm"] == "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS=2.5"
    assert Speculation(4, "draft_model", "d").environment == {}
    with pytest.raises(ImportRefused, match="4 drafted tokens make no rounds of 6 tokens"):
        Speculation(4, "draft_model", "d", forced=6.0)


def test_the_command_forces_acceptance() -> None:
    asked = ["export", "--lookahead", "4", "--draft", "d", "--tokens-per-round", "3.5"]
    lines = run(*asked).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "vllm",
        "sglang",
        "tensorrt-llm",
        "sglang, before the command",
        "tensorrt-llm, before the command",
    ]
    assert len(run(*asked, "--engine", "sglang").stdout.splitlines()) == 2


DOCUMENTED = tomllib.loads((Path(__file__).parents[1] / "data/engine_options.toml").read_text())


def check_documented(engine: str, line: str) -> None:
    """Every option, key and choice of a printed line is one that the engine documents."""
    known = DOCUMENTED[engine]
    words = shlex.split(line.replace("<(", " ").removesuffix(")") if "<(" in line else line)
    if "option" in known:
        assert words[0] == known["option"]
        content = json.loads(next(word for word in words if word.startswith("{")))
        assert set(content) <= set(known["keys"])
        pairs = content.get("speculative_config", content)
        assert set(pairs) <= set(known.get("speculative_keys", known["keys"]))
    else:
        pairs = dict(zip(words[::2], words[1::2], strict=True))
        assert set(pairs) <= set(known["options"])
    for name, choices in known["choices"].items():
        assert pairs.get(name, choices[0]) in choices


@pytest.mark.parametrize("method", SGLANG)
def test_printed_lines_are_made_of_documented_options(method: str) -> None:
    draft = "org/draft" if method in NEEDS_MODEL else None
    for more in ({}, {"forced": 3.2}, {"by_batch": {1: 4, 8: 2, 32: 0}}):
        asked = Speculation(4, method, draft, draft_sampled=draft is not None, **more)
        assert set(asked.flags) <= set(DOCUMENTED) and {"vllm", "sglang"} <= set(asked.flags)
        for engine, line in asked.flags.items():
            check_documented(engine, line)
        for line in asked.environment.values():
            assert {word.partition("=")[0] for word in line.split()} <= set(
                DOCUMENTED["environment"]["names"]
            )


def test_an_option_that_an_engine_dropped_is_caught() -> None:
    for engine, line in (("llama.cpp", "--draft-max 4"), ("vllm", """--speculative-config '{"k": 4}'""")):
        with pytest.raises(AssertionError):
            check_documented(engine, line)


def test_every_engine_is_offered_by_export_and_named_with_its_version() -> None:
    assert all(known["version"] for engine, known in DOCUMENTED.items() if engine != "environment")
    shown = run("export", "--lookahead", "3", "--draft", "d", "--json").stdout
    assert set(json.loads(shown)) == set(DOCUMENTED) - {"environment"}


def _predicted(folder: Path, **changes: object) -> str:
    """A batch of 2 in 3 s of which 1 is prefill: 20 rounds of 0.1 s, 100 tokens, so 40 ms of a request's."""
    answer = {
        "seconds": 3.0,
        "prefill_s": 1.0,
        "batch": 2,
        "batch_rounds": 20,
        "tokens": 100,
        "tokens_per_round": 3.0,
    }
    path = folder / "predicted.json"
    path.write_text(json.dumps({**answer, **changes}))
    return str(path)


def test_a_live_run_is_held_against_what_was_predicted(tmp_path: Path) -> None:
    # 3.1611 tokens per round, rounds of 45.705 ms (samples/README).
    bench = str(SAMPLES / "vllm/bench_serve_spec_v0.25.1.json")
    found = run("compare", bench, "--simulated", _predicted(tmp_path), "--json").stdout
    rows = {row["what"]: row for row in json.loads(found)["compared"]}
    assert rows["tokens per round"]["error"] == pytest.approx(3.0 / 3.16111111 - 1)
    assert rows["ms of a round"]["predicted"] == 100.0
    assert rows["ms of a round"]["read"] == pytest.approx(45.7047651)
    assert rows["ms of a request's token"]["predicted"] == 40.0
    said = run("compare", bench, "--simulated", _predicted(tmp_path)).stdout
    assert "tokens per round are -5.1% off: force them" in said
    close = run("compare", bench, "--simulated", _predicted(tmp_path, tokens_per_round=3.15)).stdout
    assert "force them" not in close


@pytest.mark.parametrize("changes", [{"seconds": "3"}, {"batch_rounds": 0}])
def test_what_was_not_predicted_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    bench = str(SAMPLES / "vllm/bench_serve_spec_v0.25.1.json")
    result = run("compare", bench, "--simulated", _predicted(tmp_path, **changes))
    assert result.exit_code == 2 and "expected the JSON that `simulate --json` prints" in result.output
