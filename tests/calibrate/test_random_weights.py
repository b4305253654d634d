"""An architecture without trained weights: its latencies are measured, its acceptance is nobody's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from small_calibration import PLAN, small_job
from transformers import AutoConfig, AutoModelForCausalLM

import calibrate.job
import calibrate.machine
from calibrate.calibration import RANDOM, random_requests
from calibrate.calibration import calibrate as calibrate_pair
from calibrate.cli import main
from calibrate.journal import fingerprint
from calibrate.live.errors import ModelError
from calibrate.live.loading import load_model
from calibrate.live.placement import has_random_weights, is_local_model, local_vocabulary
from calibrate.machine import Machine
from calibrate.models import MisfitError, model_size, resolve_shape
from calibrate.plan import LivePart
from hardware_profiles.profile import load_profile
from hardware_profiles.shapes import CONFIGS, ShapeError
from policies.ar import ArConfig
from policies.sd import SdConfig
from policies.ssd import SaguaroConfig
from simulator.cli import main as simulate

TINY = (
    "shape:llama-3.2-1b,hidden_size=32,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,"
    "intermediate_size=64,vocab_size=64"
)
OTHER = "shape:qwen2.5-0.5b,hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


# -- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CONFIGS if not name.startswith("pair:")])
def test_published_architectures_are_known_to_transformers(name: str) -> None:
    """Their weights are counted from the names and numbers of the configuration; transformers agrees."""
    path = resolve_shape(f"shape:{name}")
    assert is_local_model(str(path)) and has_random_weights(str(path))
    config = AutoConfig.from_pretrained(path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    size = model_size(str(path))
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert local_vocabulary(str(path)) == config.vocab_size
    assert size.layers == len(model.model.layers) and size.positions == 8192


def test_entries_can_be_replaced(cache: Path) -> None:
    path = resolve_shape("shape:Llama-3.2-1B,num_hidden_layers=3")
    assert json.loads(path.read_text()) == {
        "max_position_embeddings": 8192,
        **CONFIGS["llama-3.2-1b"][0],
        "num_hidden_layers": 3,
    }
    assert path.parent.name == "llama-3.2-1b-num_hidden_layers-3" and cache in path.parents
    assert path != resolve_shape("shape:llama-3.2-1b")


def test_a_folder_stands_for_its_architecture(pair: tuple[str, str], tmp_path: Path) -> None:
    """Also one with weights, which are left alone."""
    path = resolve_shape(f"shape:{pair[0]}")
    assert resolve_shape(f"shape:{path}") == path
    assert path.parent == Path(pair[0])
    assert json.loads(resolve_shape(f"shape:{path},vocab_size=80").read_text())["vocab_size"] == 80
    assert model_size(str(path)).parameters == model_size(pair[0]).parameters
    assert fingerprint(str(path)) == [each for each in fingerprint(pair[0]) if each[0] == "config.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shape:gpt-9", "no architecture 'gpt-9'.*llama-3.1-8b"),
        ("shape:llama-3.2-1b,layers=2", "no entry 'layers'.*num_hidden_layers"),
        ("shape:llama-3.2-1b,num_hidden_layers", "'num_hidden_layers' is no entry"),
        ("shape:llama-3.2-1b,num_hidden_layers=few", "no entry of a configuration"),
    ],
)
def test_bad_names_are_refused(text: str, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        resolve_shape(text)


def test_a_folder_whose_weights_are_missing_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=f"no safetensors.*shape:{tmp_path} times"):
        is_local_model(str(tmp_path))


# -- weights ----------------------------------------------------------------------------------------------


def test_weights_are_random_equal_each_time_and_leave_the_callers_luck_alone() -> None:
    path = str(resolve_shape(TINY))
    torch.manual_seed(5)
    one = load_model(path, "bf16")
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), drawn)
    two = load_model(path, "bf16")
    pairs = list(zip(one.parameters(), two.parameters(), strict=True))
    assert all(torch.equal(a, b) and a.dtype == torch.bfloat16 for a, b in pairs)
    assert float(one.model.layers[1].mlp.up_proj.weight.detach().float().std()) > 0.0
    assert not one.training


def test_requests_of_random_tokens(pair: tuple[str, str]) -> None:
    job = replace(small_job(*pair), target=str(resolve_shape(TINY)))
    assert job.random and not small_job(*pair).random
    requests = random_requests(job, 6)
    assert requests == random_requests(job, 6)
    assert {r.limit for r in requests} == {job.max_tokens} and len({r.prompt for r in requests}) == 6
    assert all(r.prompt is not None and min(r.prompt) > 0 and max(r.prompt) < 64 for r in requests)
    with pytest.raises(MisfitError, match="no acceptance"):
        calibrate_pair(job, lambda *_: None)


# -- the command ------------------------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, and a plan of seconds."""
    configs = (ArConfig(), SdConfig(lookahead=2), SaguaroConfig.of(lookahead=2))
    least = replace(PLAN, repeats=1, overlap_repeats=1, live=(LivePart(configs, prompts=2, repeats=1),))
    monkeypatch.setattr(calibrate.job, "plan", lambda **_: least)
    monkeypatch.setattr(calibrate.machine, "find_machine", lambda: Machine("Some CPU", (0, 1), ()))


def arguments(out: Path, **more: str) -> list[str]:
    options: dict[str, Any] = {
        "target": TINY,
        "draft": f"{OTHER},vocab_size=64",
        "placement": "shared:0",
        "max-tokens": "8",
        "out": str(out),
        "precision": "bf16",
    }
    return [part for key, value in (options | more).items() for part in (f"--{key}", value)]


@pytest.mark.usefixtures("seconds")
def test_a_profile_is_written_and_no_acceptance_is_claimed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(*arguments(out, name="mine"))
    assert result.exit_code == 0, result.output
    assert [path.name for path in out.iterdir()] == ["mine.json"]
    assert "random weights: latencies only, no acceptance was measured" in result.stdout
    assert "accepted " not in result.stdout and "cached " not in result.stdout
    profile = load_profile(out / "mine.json")
    assert profile.measured_runs == () and profile.model_error is None
    assert RANDOM in profile.description and profile.provenance.note.startswith(RANDOM)
    assert set(profile.operations) == {grid.operation for grid in PLAN.grids}
    assert {"decode", "verify", "draft", "prespeculate"} <= set(profile.host.operations)
    target, draft = profile.roles.target, profile.roles.draft
    assert (target.layers, target.precision, draft.layers) == (2, "bf16", 1)
    assert target.model.startswith("llama-3.2-1b-hidden_size-32")

    # The command that it ends with.
    advised = result.stdout.strip().splitlines()[-1].partition("simulate ")[2].split()
    assert advised == ["--hw", str(out / "mine.json"), "--acceptance", "0.8"]
    simulated = CliRunner().invoke(simulate, [*advised, "--policy", "sd", "--lookahead", "4", "--json"])
    assert simulated.exit_code == 0, simulated.output
    again = run(*arguments(out, name="json"), "--json")
    found = json.loads(again.stdout)
    assert (found["trace"], found["traces"], found["acceptance"], found["curves"]) == (None, {}, {}, None)


@pytest.mark.usefixtures("seconds")
def test_one_random_model_is_enough_to_have_no_acceptance(pair: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(*arguments(out, target=pair[0], name="mine", precision="fp32"))
    assert result.exit_code == 0, result.output
    assert [path.name for path in out.iterdir()] == ["mine.json"]


@pytest.mark.usefixtures("seconds")
def test_pairs_of_architectures_must_share_their_tokens(tmp_path: Path) -> None:
    result = run(*arguments(tmp_path / "out", draft=OTHER))
    assert result.exit_code == 2
    assert "vocabularies differ" in result.stderr and "Traceback" not in result.output
