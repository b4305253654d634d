"""Code that comes with a model or tokenizer is not run, whatever stands on standard input."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
import torch
from safetensors.torch import save_file
from transformers import dynamic_module_utils

from analysis.cli import main as validate
from calibrate.cli import main as calibrate
from calibrate.live import loading
from calibrate.live.errors import ModelError

ROOT = Path(__file__).parents[2]
PACKAGES = ("analysis", "calibrate", "hardware_profiles", "policies", "simulator")
LOADER = Path("calibrate/live/loading.py")
CONFIG = {
    "model_type": "planted",
    "architectures": ["Planted"],
    "auto_map": {"AutoConfig": "planted.Planted", "AutoModelForCausalLM": "planted.Planted"},
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
}
TOKENIZER = {"auto_map": {"AutoTokenizer": ["planted.Planted", None]}, "tokenizer_class": "Planted"}


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A model's folder whose code leaves a file behind if it is run."""
    folder = tmp_path / "planted"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    (folder / "planted.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nclass Planted: ...\n"
    )
    save_file({"lm_head.weight": torch.zeros(64, 16)}, folder / "model.safetensors")
    return folder


def say_yes(command: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run one of our commands with a user at the keyboard who answers every question with y."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        input="y\n" * 20,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
        check=False,
    )


def test_a_datastore_is_not_built_with_a_tokenizer_that_needs_code(planted: Path, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("some text\n" * 50)
    command = ["calibrate.cli", "datastore", "build", "--tokenizer", str(planted)]
    command += ["--text", str(tmp_path / "text"), "--tokens", "10", "--out", str(tmp_path / "store")]
    refused = say_yes(command, tmp_path)
    assert not (tmp_path / "ran").exists()
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused.stderr
    assert "--trust-remote-code" in refused.stderr and str(planted) in refused.stderr


def test_asked_for_it_is_run(planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap works: what is not run elsewhere is run here."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    with suppress(AttributeError):  # a tokenizer it is not
        loading.load_tokenizer(planted, trust_remote_code=True)
    assert (tmp_path / "ran").exists()


def test_a_pair_that_needs_code_is_not_calibrated(planted: Path, tmp_path: Path) -> None:
    command = ["calibrate.cli", "--quick", "--target", str(planted), "--draft", str(planted)]
    command += ["--count", "2", "--max-tokens", "8", "--temperature", "0", "--out", str(tmp_path / "out")]
    refused = say_yes(command, tmp_path)
    assert not (tmp_path / "ran").exists()
    assert refused.returncode == 2 and "--trust-remote-code" in refused.stderr, refused.stderr


@pytest.mark.parametrize("load", [loading.load_model, loading.load_config, loading.load_tokenizer])
def test_every_loader_refuses(
    planted: Path, tmp_path: Path, load: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    assert callable(load)
    with pytest.raises(ModelError, match=r"brings code of its own.*--trust-remote-code"):
        load(planted)
    assert not (tmp_path / "ran").exists()


def test_a_configuration_alone_runs_no_code_either(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ModelError, match="--trust-remote-code"):
        loading.load_model(planted / "config.json")
    assert not (tmp_path / "ran").exists()


def calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node


def test_there_is_one_way_in() -> None:
    """No call of transformers' loaders but in one module, and there whether to run code is always said."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            mine = [c for c in calls(path) if c.func.attr in {"from_pretrained", "from_config"}]  # type: ignore[attr-defined]
            if mine:
                found[path.relative_to(ROOT)] = mine
    assert list(found) == [LOADER]
    assert all("trust_remote_code" in {k.arg for k in call.keywords} for call in found[LOADER])


def test_commands_that_load_models_have_the_flag() -> None:
    assert isinstance(calibrate, click.Group)
    datastore, pair = calibrate.commands["datastore"], calibrate.commands["pair"]
    assert isinstance(datastore, click.Group) and isinstance(pair, click.Group)
    commands = [calibrate, calibrate.commands["decide"], datastore.commands["build"], pair.commands["gguf"]]
    for command in (*commands, validate):
        (flag,) = [p for p in command.params if "--trust-remote-code" in p.opts]
        assert isinstance(flag, click.Option) and flag.is_flag and not flag.required, command.name
