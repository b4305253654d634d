"""The papers' machines: what is printed comes back, the rest is labelled, and simulate says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from analysis.papers.cells import Paper
from analysis.papers.profiles import (
    PROFILES,
    STEP,
    load_papers,
    main,
    place,
    printed,
    ssd_engine,
    transformers_engine,
)
from calibrate.machine import Machine, WrongMachine, require
from hardware_profiles.profile import Profile, load_profile, unmeasured
from hardware_profiles.roofline import ENGINES
from hardware_profiles.store import find_profile
from hardware_profiles.surface import LatencySurface, OperationName
from simulator.cli import main as simulate


@pytest.fixture(scope="module")
def cells() -> dict[str, Paper]:
    return load_papers()


def shipped(name: str) -> Profile:
    return load_profile(find_profile(name))


def step_s(profile: Profile, operation: OperationName) -> float:
    """One token at the context where printed numbers are taken to hold."""
    return LatencySurface(profile.operations[operation]).seconds(**STEP)


def test_the_shipped_files_are_what_the_command_writes(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == sorted(f"{name}.json" for name in PROFILES)
    for name in PROFILES:
        assert (tmp_path / f"{name}.json").read_text() == find_profile(name).read_text(), name


def test_the_engines_are_what_the_tables_say(cells: dict[str, Paper]) -> None:
    for found in (ssd_engine(cells["ssd"]), transformers_engine(cells["duodecoding"])):
        known = ENGINES[found.name]
        assert known.layer_s == pytest.approx(found.layer_s, rel=2e-3)
        assert known.residual == pytest.approx(found.residual, abs=1e-3)


def test_ssd_s_plain_rate_comes_back() -> None:
    profile = shipped("h100x4+1")
    assert 1.0 / step_s(profile, "target.forward") == pytest.approx(54.7, rel=1e-3)
    # SD at K = 5 is printed with 188 tokens/s on GSM8k: at most 6 tokens a round leave
    # (6 / (188 / 54.7) - 1) / 5 = 0.149 target steps, 2.73 ms, for a draft step.  The roofline is below.
    assert 0.0 < step_s(profile, "draft.forward") < 0.00273
    assert profile.provenance_of("draft.forward").kind == "roofline"


def test_double_s_ratio_comes_back() -> None:
    profile = shipped("a100x8")
    assert step_s(profile, "target.forward") / step_s(profile, "draft.forward") == pytest.approx(
        4.7, rel=1e-3
    )
    assert profile.roles.target.tensor_parallel == 2
    assert "ratios" in profile.description


def test_duodecoding_s_rate_and_budget_come_back() -> None:
    profile = shipped("a800+xeon16")
    # Plain tokens/s by task: 101.67 / 2.29 = 44.4, 139.08 / 3.15 = 44.2, ...; the median of six is near 44.3.
    assert 1.0 / step_s(profile, "target.forward") == pytest.approx(44.3, abs=0.3)
    assert step_s(profile, "target.forward") / step_s(profile, "draft.forward") == pytest.approx(24, rel=1e-3)


def test_rasd_s_round_comes_back() -> None:
    profile = shipped("a100x1")
    # (tau + 1) / SR by task: 1.44, 1.53, 1.65, 1.91, 1.51; the median is 1.53.
    extra = 6 * step_s(profile, "draft.forward") / step_s(profile, "target.forward")
    assert 1.0 + extra == pytest.approx(3.41 / 2.23, rel=1e-3)
    assert profile.placement == "shared" and profile.overlap


def test_mirror_s_draft_lies_in_its_band() -> None:
    profile = shipped("m2ultra-x8+npu")
    window = 7 * step_s(profile, "draft.forward") / step_s(profile, "target.forward")
    assert 0.1 < window < 1.0
    assert "band" in profile.description


@pytest.mark.parametrize("name", PROFILES)
def test_every_operation_says_what_it_rests_on(name: str) -> None:
    profile = shipped(name)
    for operation in profile.operations:
        origin = profile.provenance_of(operation)
        assert origin.kind in ("paper", "roofline") and origin.note
    assert set(", ".join(unmeasured(profile)).split(", ")) == set(profile.operations)
    assert profile.roles.target.weight_bytes and profile.roles.draft.kv_bytes_per_token
    assert profile.placement_note


@pytest.mark.parametrize("name", PROFILES)
def test_simulate_runs_and_says_where_its_numbers_come_from(name: str) -> None:
    arguments = ["--hw", name, "--acceptance", "0.8", "--requests", "4", "--max-tokens", "32", "--json"]
    result = CliRunner().invoke(simulate, [*arguments, "--policy", "saguaro"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert "(paper, shipped:" in found["sources"]["latency"]
    told = [text for key, text in found["sources"].items() if "forward" in key]
    assert told and all(text.startswith(("paper: ", "roofline: ")) for text in told)
    assert found["speedup_vs_ar"] > 0.5
    assert found["memory"]


def test_a_faster_step_than_the_peaks_allow_scales_everything() -> None:
    setting = place("llama-3.1-8b", "a100")
    quick = printed(setting, 1e-3, "made up", backend="none")  # 16 GB in 1 ms would be 16 TB/s
    assert quick.forward.efficiency.layer_s == 0.0
    assert quick.forward.factor < 0.2
    assert quick.step_s == pytest.approx(1e-3)


def test_calibrate_says_that_this_is_not_the_machine() -> None:
    with pytest.raises(WrongMachine, match=r"not 'a100x8'.*simulate --hw a100x8"):
        require("a100x8", Machine("Some CPU", (0, 1), ()))
    with pytest.raises(WrongMachine, match="not 'z9'") as refused:
        require("z9", Machine("Some CPU", (0, 1), ()))
    assert "simulate --hw z9" not in str(refused.value)
