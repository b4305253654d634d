"""The `simulate` command: answers, refusals, and that no option is silently ignored."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from simulate_command import answer, simulated

from hardware_profiles.profile import load_profile, save_profile
from hardware_profiles.store import find_profile, find_trace, user_profile, user_trace
from policies.registry import KNOBS, POLICIES, configure, find_policy
from simulator.cli import main

COIN = ["--target-time", "1", "--draft-time", "0.1", "--acceptance", "0.8", "--hit-exponent", "1"]
FEW = ["--requests", "6", "--max-tokens", "48"]


KEYS = {
    # the setting
    "policy", "batch", "requests", "prompt_length", "temperature", "top_p", "seed", "engine", "knobs",
    # metrics
    "tokens", "rounds", "batch_rounds", "seconds", "prefill_s", "tokens_per_second", "tokens_per_round",
    "accepted_per_round", "acceptance_rate", "cache_hit_rate", "hit_rate_after_primary",
    "hit_rate_after_backup", "run_length", "time_to_first_token_s", "utilization", "stalled_s", "overlap_s",
    "speedup_vs_ar", "speedup_vs_sd", "speedup_vs_ar_per_device", "devices",
    # what it rests on
    "law", "choices", "memory", "extrapolated", "hit_rate_tail_error", "sources", "warnings",
}  # fmt: skip
LAW_KEYS = {
    "statement", "speedup_vs_ar", "tokens_per_second", "tokens_per_round", "cache_hit_rate", "assumptions",
    "reason", "ceiling", "waterfall",
}  # fmt: skip


def test_json_has_the_documented_keys() -> None:
    found = answer(*COIN)
    assert set(found) == KEYS
    law = found["law"]
    assert isinstance(law, dict) and set(law) == LAW_KEYS
    assert set(law["assumptions"]) == {"acceptance", "exponent", "scale", "target_s", "draft_s"}


@pytest.mark.parametrize("policy", ["ar", "sd", "pearl", "saguaro", "duo", "mirror", "tree"])
def test_knobs_are_the_policys_own(policy: str) -> None:
    found = answer(
        "--target-time", "1", "--draft-time", "0.1", "--acceptance", "0.8", "--policy", policy, *FEW
    )
    assert set(found) == KEYS
    assert set(found["knobs"]) <= set(POLICIES[policy].knobs) and None not in found["knobs"].values()
    assert found["knobs"] == json.loads(json.dumps(configure(policy).knobs))


def test_every_key_is_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
    words = set(re.findall(r"\w+", page.read_text()))
    assert sorted((KEYS | LAW_KEYS) - words) == []


def test_same_seed_same_bytes() -> None:
    first, second = (simulated(*FEW, "--batch", "4", "--json").stdout for _ in range(2))
    assert first == second


@lru_cache
def _base() -> dict[str, Any]:
    return answer(*FEW)


@pytest.mark.parametrize(
    "extra",
    [
        ["--policy", "sd"],
        ["--policy", "pearl"],
        ["--batch", "3"],
        ["--lookahead", "6"],
        ["--fanout", "1"],
        ["--fanout", "1,2,3,4,5"],
        ["--backup", "plain"],
        ["--backup", "random"],
        ["--backup", "ngram"],
        ["--backup", "auto"],
        ["--lookahead", "auto"],
        ["--shape", "uniform"],
        ["--shape", "geometric", "--budget", "7"],
        ["--budget", "9"],
        ["--budget", "auto", "--backup", "plain"],
        ["--cache-set", "top"],
        ["--draft-devices", "2"],
        ["--requests", "9"],
        ["--max-tokens", "32"],
        ["--prompt-length", "400"],
        ["--prompt-category", "code"],
        ["--no-jitter"],
        ["--seed", "5"],
        ["--hw", "textbook"],
        ["--acceptance", "0.5"],
        ["--acceptance", "0.5", "--hit-exponent", "0.3"],
        ["--acceptance", "0.5", "--hit-exponent", "0.3", "--hit-scale", "0.2"],
        ["--target-time", "1", "--draft-time", "0.1"],
        ["--target-time", "1", "--draft-time", "0.3"],
    ],
    ids=" ".join,
)
def test_every_option_changes_the_answer(extra: list[str]) -> None:
    base = _base()
    if "--hw" in extra:
        extra = [*extra, "--trace", "cpu2-x5"]
    changed = answer(*FEW, *extra)
    assert {k: v for k, v in changed.items() if k != "seed"} != {k: v for k, v in base.items() if k != "seed"}


@pytest.mark.parametrize(
    ("base", "extra"),
    [
        (["--backup", "plain"], ["--fanout-backup", "9,0,0,0,0"]),
        (["--backup", "plain"], ["--first", "backup"]),
        (["--batch", "4"], ["--stall", "rows"]),
        (["--batch", "4"], ["--backup", "primary-all"]),
        (["--backup", "auto"], ["--find-switch"]),
    ],
    ids=" ".join,
)
def test_options_that_need_another(base: list[str], extra: list[str]) -> None:
    assert answer(*FEW, *base) != answer(*FEW, *base, *extra)


def test_context_is_another_name_of_the_prompt_length() -> None:
    assert answer(*FEW, "--context", "300") == answer(*FEW, "--prompt-length", "300")


def test_a_longer_prompt_takes_longer_to_prefill_and_to_read() -> None:
    short, long = (answer(*FEW, "--no-jitter", "--prompt-length", str(n)) for n in (32, 256))
    for key in ("prefill_s", "time_to_first_token_s", "seconds"):
        assert float(str(long[key])) > float(str(short[key]))


def test_the_file_that_answered_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = [*FEW, "--policy", "rasd"]
    plain = answer(*asked)
    assert "measured, shipped:cpu2-x5)" in plain["sources"]["latency"]
    assert "(shipped:cpu2-x5)" in plain["sources"]["tokens"]
    assert "(shipped:cpu2-x5-rasd)" in plain["sources"]["decisions"]
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    decoy = user_profile("cpu2-x5")
    quick = load_profile(find_profile("textbook")).but(name="cpu2-x5")
    save_profile(quick, decoy)
    other = user_trace("cpu2-x5")
    other.parent.mkdir(parents=True)
    other.write_bytes(find_trace("cpu2-x20").read_bytes())
    assert caplog.messages == []
    hidden = answer(*FEW)["sources"]
    assert str(decoy) in hidden["latency"] and str(other) in hidden["tokens"]
    assert [message.rpartition(" ")[2] for message in caplog.messages] == ["shipped:cpu2-x5"] * 2
    assert str(decoy) in simulated(*FEW).output.replace("\n", "")
    assert answer(*asked, "--hw", "shipped:cpu2-x5") == plain


@pytest.mark.parametrize("world", [["--hw", "cpu2-x5"], list(COIN)], ids=["replayed", "tossed"])
def test_the_batch_is_of_the_rows_that_ran(world: list[str]) -> None:
    wide = answer(*world, "--policy", "sd", "--requests", "3", "--batch", "8")
    assert wide["batch"] == 3 and wide["sources"].pop("batch") == "3 of 8 rows run: there are 3 requests"
    assert wide == answer(*world, "--policy", "sd", "--requests", "3", "--batch", "3")


def test_what_auto_chose_is_reported() -> None:
    found = answer(*FEW, "--lookahead", "auto", "--shape", "exact", "--backup", "auto", "--batch", "4")
    choices = found["choices"]
    assert isinstance(choices, list)
    assert [c["knob"] for c in choices] == ["lookahead", "backup", "fanout"]
    assert [c["value"] for c in choices] == [
        found["knobs"][name] for name in ("lookahead", "backup", "fanout")
    ]
    assert {"b_printed", "b_corrected", "tokens_per_second"} <= set(choices[1]["numbers"])
    assert {"budget", "bound", "verify_s", "prepare_s"} <= set(choices[2]["numbers"])
    printed = simulated(*FEW, "--lookahead", "auto", "--budget", "auto").stdout
    assert "the fastest of" in printed and "exact shape of a budget of" in printed


def test_extrapolation_is_told_by_how_much() -> None:
    found = answer(*FEW, "--batch", "64", "--requests", "64")
    extrapolated = found["extrapolated"]
    assert isinstance(extrapolated, list)
    target = [e for e in extrapolated if (e["operation"], e["axis"]) == ("target.forward", "batch")]
    assert [e["value"] for e in target] == [64] and target[0]["measured_to"] < 64
    printed = simulated(*FEW, "--batch", "64", "--requests", "64").stdout
    assert "target.forward at batch 64 (measured up to" in printed
    assert answer(*COIN)["extrapolated"] == []


def test_pearl_has_a_ceiling() -> None:
    law = answer(*COIN, "--policy", "pearl")["law"]
    assert isinstance(law, dict) and law["ceiling"] == pytest.approx(10.0)
    assert "ceiling C" in simulated(*COIN, "--policy", "pearl").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "sagauro"], "Did you mean 'saguaro'"),
        (["--lookahead", "0"], "use policy 'ar'"),
        (["--policy", "sd", "--fanout", "3"], "has no fanout"),
        (["--policy", "ar", "--lookahead", "3"], "has no lookahead"),
        (["--fanout", "3,2"], "lookahead + 1 = 5"),
        (["--fanout", "three"], "not a number"),
        (["--fanout", "40"], "more than this trace can decide"),
        (["--backup", "hope"], "is not one of"),
        (["--batch", "0"], "batch must be at least 1"),
        (["--requests", "0"], "requests must be at least 1"),
        (["--hw", "cpu3"], "cpu2-x20"),
        (
            ["--hw", "a100x9"],
            "what runs on it, or name one of its profiles: a100x1,",
        ),
        (["--trace", "nothing.parquet"], "nothing.parquet"),
        (["--hw", ""], "no profile ''"),
        (["--trace", ""], "no trace ''"),
        (["--policy", "rasd", "--decisions", ""], "no decision trace ''"),
        (["--prompt-category", "poems"], "categories: code"),
        ([*COIN, "--prompt-category", "code"], "chooses among recorded prompts"),
        (["--target-time", "1"], "go together"),
        (["--target-time", "-1", "--draft-time", "1"], "above 0"),
        (["--hit-exponent", "1"], "--acceptance"),
        (["--acceptance", "1.5"], "between 0 and 1"),
        (["--acceptance", "0.5", "--trace", "cpu2-x20"], "not both"),
        (["--max-tokens", "100000"], "needs a longer recording"),
        (["--temperature", "0.3"], "every temperature needs a recording of its own"),
        (["--temperature", "0.3", "--trace", "cpu2-x5"], "recorded at temperature 0"),
        (["--temperature", "-1"], "at least 0"),
        (["--temperature", "1", "--acceptance", "0.5"], "not both"),
        (["--top-p", "0.9"], "temperature 0"),
        (["--scale", "0.5"], "temperature 0"),
        (["--draft-sampling", "greedy"], "temperature 0"),
        (["--policy", "sd", "--scale", "0.5", "--temperature", "1"], "has no scale"),
        (["--lookahead", "many"], "neither a number nor 'auto'"),
        (["--budget", "0"], "at least 1"),
        (["--budget", "4", "--fanout", "2"], "not both"),
        (["--policy", "sd", "--budget", "4"], "has no fan-out"),
        (["--policy", "ar", "--lookahead", "auto"], "has no lookahead"),
        (["--fanout-backup", "2"], "changes nothing"),
        (["--first", "backup"], "changes nothing"),
        (["--stall", "rows"], "at batch 1"),
        (["--stall", "rows", "--backup", "plain", "--batch", "2"], "changes nothing"),
        (["--find-switch"], "backup 'auto' only"),
        (["--draft-devices", "0"], "at least 1"),
        ([*COIN, "--draft-devices", "2"], "constant times"),
        ([*COIN, "--backup", "ngram"], "recorded trace"),
        ([*COIN, "--cache-set", "top"], "changes nothing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_in_one_line(arguments: list[str], message: str) -> None:
    result = simulated(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("acceptance", ["0", "1"])
@pytest.mark.parametrize("policy", ["sd", "pearl", "saguaro"])
def test_extreme_acceptance(policy: str, acceptance: str) -> None:
    found = answer(
        "--policy", policy, "--target-time", "1", "--draft-time", "0.1", "--acceptance", acceptance, *FEW
    )  # fmt: skip
    # At acceptance 0 PEARL never has a block to verify: there is no rate, rather than a made-up one.
    nothing_verified = policy == "pearl" and acceptance == "0"
    assert found["acceptance_rate"] == (None if nothing_verified else float(acceptance))


def test_malformed_profile_names_the_field(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema": "spectwin/profile/1", "name": "bad"}')
    result = simulated("--hw", str(bad))
    assert result.exit_code == 2
    assert "bad.json" in result.stderr and "operations" in result.stderr


def test_timeline_is_a_chrome_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert simulated(*COIN, "--timeline", str(path), "--json").exit_code == 0
    events = json.loads(path.read_text())["traceEvents"]
    assert {e["name"] for e in events if e["ph"] == "M"} == {"process_name", "thread_name"}
    assert {e["cat"] for e in events if e["ph"] == "X"} == {"target", "draft"}
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")


def test_plot_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    assert simulated(*FEW, "--plot", str(path), "--json", "--draft-devices", "2").exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_tables_for_people() -> None:
    printed = simulated(*FEW, "--policy", "saguaro", "--batch", "4").stdout
    for expected in (
        "time to first token",
        "law",
        "simulated",
        "measured",
        "where the time goes",
        "why law and simulation differ",
    ):
        assert expected in printed


def test_list_policies() -> None:
    names = [row["name"] for row in json.loads(simulated("--list-policies", "--json").stdout)]
    assert {"ar", "sd", "pld", "pearl", "saguaro", "tree", "heads"} <= set(names)
    assert "PEARL" in simulated("--list-policies").stdout


def test_cold_start_imports_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys; from simulator.cli import main\n"
        "try: main(['--policy', 'saguaro', '--batch', '16', '--json'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'transformers', 'matplotlib', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("width", [60, 80, 112])
def test_tables_have_fewer_columns_rather_than_shorter_values(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    world = ["--hw", "a100x8", "--acceptance", "0.8", "--policy", "saguaro"]
    printed = simulated(*world, "--requests", "2", "--max-tokens", "8").stdout
    lines = [line for line in printed.splitlines() if line[:1] in "┃│┏└"]
    assert max(map(len, lines)) <= width
    assert "…" not in printed and "measured: `validate`" in printed
    assert ("no room for" in printed) == (width < 112)
    assert "tokens/s" in lines[2] and "vs AR" in lines[2], "speeds stay at any width"


def test_help_lists_first_what_most_want_and_a_policys_knobs_apart() -> None:
    text = simulated("--help").stdout
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings[:3] == ["What runs:", "On what:", "What is accepted:"]
    assert "  --fanout " not in text
    listed = {word for line in text.splitlines() for word in re.findall(r"--[a-z][a-z-]+", line[:40])}
    options = {o for param in main.params if param.name not in KNOBS for o in param.opts if o[:2] == "--"}
    assert options <= listed  # no option is in no list


def test_help_of_a_policy_has_its_own_knobs() -> None:
    text = simulated("--help-policy", "ssd").stdout
    assert all(f"--{knob.replace('_', '-')} " in text for knob in find_policy("saguaro").knobs)
    assert "--kappa" not in text
    assert "none" in simulated("--help-policy", "ar").stdout
    refused = simulated("--help-policy", "sssd")
    assert refused.exit_code == 2 and "unknown policy 'sssd'" in refused.stderr
