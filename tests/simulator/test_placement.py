"""Devices are counted: a tensor-parallel model takes as many as it is spread over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from simulate_command import answer, simulated

from analysis.recommend.__main__ import main as recommend_command
from analysis.recommend.answer import Query, recommend, usual_devices
from analysis.recommend.search import deploy
from analysis.sources import load_sources
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from policies.registry import SettingError, configure
from simulator.needs import count_devices

H100 = load_profile(find_profile("h100x4+1"))
FEW = ["--requests", "6", "--max-tokens", "32"]


@pytest.mark.parametrize(
    ("policy", "knobs", "devices"),
    [("ar", {}, "4"), ("sd", {}, "4"), ("pearl", {}, "4 + 1"), ("saguaro", {"draft_devices": 3}, "4 + 3")],
)
def test_a_target_over_four_devices_takes_four(policy: str, knobs: dict[str, int], devices: str) -> None:
    assert str(count_devices(configure(policy, **knobs), H100)) == devices  # type: ignore[arg-type]


def test_forty_devices_are_ten_groups_of_plain_decoding() -> None:
    found = deploy(configure("ar"), H100, devices=40, batch=40)
    assert found is not None and (found.groups, found.group_devices) == (10, 4)
    assert deploy(configure("ar"), H100, devices=3, batch=1) is None
    assert usual_devices(H100) == 5


def test_fewer_devices_than_the_target_takes_are_refused() -> None:
    sources = load_sources("h100x4+1", trace="cpu2-x5")
    with pytest.raises(SettingError, match="--max-devices must be at least 4, got 2"):
        recommend(sources, Query(max_devices=2), lambda stage, done, total: None)


def test_four_and_one_devices_against_four_are_said() -> None:
    profile = ["--hw", "h100x4+1", "--acceptance", "0.8", "--policy", "saguaro", *FEW]
    found = answer(*profile)
    assert found["devices"] == {"policy": 5, "ar": 4, "sd": 4}
    assert found["speedup_vs_ar_per_device"] == pytest.approx(0.8 * found["speedup_vs_ar"])
    printed = simulated(*profile).stdout
    assert "devices: 4 + 1 (target + draft) against plain decoding's and SD's 4" in printed
    assert "per device" in printed
    # With as many devices there is nothing to say.
    assert "per device" not in simulated(*profile[:-4], "--policy", "sd", *FEW).stdout


def test_a_trace_of_another_pair_is_flagged_first() -> None:
    mixed = simulated("--hw", "h100x4+1", "--trace", "cpu2-x5", "--policy", "sd", *FEW).stdout
    assert mixed.splitlines()[1].startswith("warning (trace): profile 'h100x4+1' is of llama-3.1-70b")
    found = answer("--hw", "h100x4+1", "--trace", "cpu2-x5", "--policy", "sd", *FEW)
    assert len(found["warnings"]) == 1 and "acceptance of another" in found["warnings"][0]
    assert answer("--policy", "sd", *FEW)["warnings"] == []


def test_recommend_flags_another_pairs_trace_and_names_no_model_that_nobody_has() -> None:
    arguments = ["--hw", "a100x8", "--trace", "cpu2-x5", "--no-flips", "--max-tokens", "16"]
    found = CliRunner().invoke(recommend_command, [*arguments, "--json"])
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert "acceptance of another" in said["warnings"][0]
    assert set(said["paste"]) == {"simulate"} and "another pair" in said["engines"]
    assert said["devices"] == 3


def test_what_a_roofline_says_was_not_measured(tmp_path: Path) -> None:
    found = simulated("--hw", "a100x8", "--acceptance", "0.8", "--policy", "sd", "--batch", "100", *FEW[2:])
    assert "target.forward at batch 100 (roofline up to 64)" in found.stdout
    assert "measured up to" not in found.stdout


def test_an_engines_own_file_is_sent_to_the_command_that_reads_it(tmp_path: Path) -> None:
    page = tmp_path / "metrics.prom"
    page.write_text("# HELP vllm:spec_decode_num_drafts_total x\nvllm:spec_decode_num_drafts_total 3\n")
    refused = simulated("--acceptance", str(page), "--policy", "sd")
    assert refused.exit_code == 2
    assert f"python -m simulator.imports read {page} --out acceptance.json" in refused.stderr


def test_the_list_of_policies_fits_a_narrow_terminal() -> None:
    lines = simulated("--list-policies").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "saguaro: " in "\n".join(lines) and any("on a miss" in line for line in lines)
