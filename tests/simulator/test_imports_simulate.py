"""`simulate --acceptance FILE`, with a file that an import wrote or a hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from import_samples import DFLASH, TEXTBOOK
from simulate_command import simulated


def test_simulate_reads_the_file(acceptance: str) -> None:
    result = simulated("--acceptance", acceptance, "--policy", "sd", "--lookahead", "7", *TEXTBOOK, "--json")
    found = json.loads(result.stdout)
    # The limit of 128 tokens cuts a last round of each request: a little below 2.61.
    assert found["tokens_per_round"] == pytest.approx(2.6146, abs=0.12)
    assert "measured by vllm (prometheus_delta_K7_dflash.json, 6274 rounds)" in found["sources"]["tokens"]
    assert "assumed" not in found["sources"]["tokens"]


def test_the_position_counts(acceptance: str) -> None:
    # K = 1: 1 + .6717; K = 2: 1 + .6717 + .4036
    for depth, length in ((1, 1.6717), (2, 2.0753)):
        result = simulated(
            "--acceptance", acceptance, "--policy", "sd", "--lookahead", str(depth), *TEXTBOOK, "--json"
        )
        assert json.loads(result.stdout)["tokens_per_round"] == pytest.approx(length, abs=0.05)


def test_past_the_last_position_is_assumed_and_said(acceptance: str) -> None:
    for more in (["--policy", "sd", "--lookahead", "9"], ["--policy", "pearl", "--lookahead", "4"]):
        result = simulated("--acceptance", acceptance, *more, *TEXTBOOK, "--json")
        assert "assumed: positions past 7 like that one" in json.loads(result.stdout)["sources"]["tokens"]


def test_a_speculation_cache_needs_a_hit_curve(acceptance: str) -> None:
    refused = simulated("--acceptance", acceptance, "--policy", "saguaro", *TEXTBOOK)
    assert refused.exit_code == 2
    assert "needs the hit curve of a speculation cache" in refused.output and "--hit-curve" in refused.output
    given = simulated(
        "--acceptance", acceptance, "--policy", "saguaro", "--hit-curve", "1,0.5", *TEXTBOOK, "--json"
    )
    found = json.loads(given.stdout)
    assert found["sources"]["tokens"].endswith("assumed: hit curve 1 - 0.5 F^-1")
    assert found["cache_hit_rate"] == pytest.approx(1 - 0.5 / 3, abs=0.03)  # F = 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "sd", "--hit-curve", "1,0.5"], "changes nothing: policy 'sd'"),
        (["--policy", "saguaro", "--hit-curve", "0,0.5"], "exponent above 0"),
        (["--policy", "saguaro", "--hit-curve", "nan"], "is not an exponent and a scale"),
        (["--policy", "saguaro", "--hit-exponent", "1"], "in place of --hit-exponent"),
        (["--policy", "saguaro", "--hit-curve", "1,0.5", "--backup", "ngram"], "looks words up in the text"),
        (["--policy", "sd", "--temperature", "1"], "--acceptance or --temperature"),
    ],
)
def test_what_a_file_cannot_give_is_refused(arguments: list[str], said: str, acceptance: str) -> None:
    result = simulated("--acceptance", acceptance, *arguments, *TEXTBOOK)
    assert result.exit_code == 2 and said in result.output.replace("\n", " "), result.output


def test_other_files_are_refused(tmp_path: Path, acceptance: str) -> None:
    assert "python -m simulator.imports read" in simulated("--acceptance", DFLASH, "--policy", "sd").output
    assert "neither a number nor a file" in simulated("--acceptance", "nowhere.json").output
    assert (
        "--hit-curve goes with --acceptance FILE"
        in simulated("--acceptance", "0.8", "--hit-curve", "1,1").output
    )
    content = json.loads(Path(acceptance).read_text())
    joint = content["joint_acceptance_at_position"]
    for change, said in (
        ({"schema_version": 2}, "schema_version"),
        ({"acceptance_at_position": joint}, "running product"),
        ({"lookahead": 0}, "lookahead"),
        ({"histogram": [1, 2]}, "expected 8 entries"),
        ({"colour": "red"}, "colour"),
    ):
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(content | change))
        result = simulated("--acceptance", str(path), "--policy", "sd")
        assert result.exit_code == 2 and said in result.output


def test_a_file_by_hand_needs_little(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text()
    (tmp_path / "hand.json").write_text(text[text.index('{"kind": "spectwin') :].partition("```")[0])
    found = simulated(
        "--acceptance", str(tmp_path / "hand.json"), "--policy", "sd", "--lookahead", "2", *TEXTBOOK
    )
    assert found.exit_code == 0, found.output
