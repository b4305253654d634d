"""`simulate --target-shape`, `--draft-shape`, `--placement`: flagged, never silent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from simulator.cli import main

QUICK = ("--policy", "sd", "--acceptance", "0.8", "--requests", "2", "--max-tokens", "16")


def simulated(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*QUICK, *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_other_models_are_flagged_as_extrapolated() -> None:
    own = simulated("--hw", "a100x8")
    other = simulated("--hw", "a100x8", "--target-shape", "qwen3-14b", "--draft-shape", "qwen3-0.6b")
    assert "models" not in own["sources"]
    assert "qwen3-14b" in other["sources"]["models"] and "extrapolated" in other["sources"]["models"]
    assert "carried to qwen3-14b" in other["sources"]["target.forward, target.prefill"]
    assert other["tokens_per_second"] > own["tokens_per_second"]  # 14 billion weights, not 70
    assert other["memory"][0]["weight_bytes"] == 2 * 14_768_307_200


def test_another_placement_is_flagged_and_its_memory_is_one() -> None:
    found = simulated("--hw", "h100x4+1", "--placement", "shared")
    assert "assumed" in found["sources"]["placement"]
    assert [need["device"] for need in found["memory"]] == ["target and draft"]
    assert "placement" not in simulated("--hw", "h100x4+1", "--placement", "split")["sources"]


@pytest.mark.parametrize("option", [("--target-shape", "qwen3-14b"), ("--placement", "shared")])
def test_constants_have_no_models(option: tuple[str, str]) -> None:
    result = CliRunner().invoke(main, [*QUICK, "--target-time", "1", "--draft-time", "0.1", *option])
    assert result.exit_code == 2
    assert "changes a profile" in result.output


def test_a_profile_without_a_recording_says_what_to_give() -> None:
    result = CliRunner().invoke(main, ["--hw", "a100x8"])
    assert result.exit_code == 2
    assert "give --acceptance" in result.output
