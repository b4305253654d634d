"""The public Python API and the one command that has all others; files of options."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from commands import programs
from import_samples import SAMPLES
from simulate_command import answer

import spectwin
from simulator.cli import main as simulate
from spectwin.__main__ import PARTS, main


def test_the_api_answers_what_the_commands_answer() -> None:
    said = answer(
        *shlex.split("--policy sd --hw cpu2-x5 --batch 2 --requests 6 --max-tokens 16 --lookahead 3")
    )
    report = spectwin.simulate("draft_model", hw="cpu2-x5", batch=2, requests=6, max_tokens=16, lookahead=3)
    assert report.as_dict() == said
    found = spectwin.diagnose(SAMPLES / "ssd/ssd_engine_llama70b_1b_h100.log", select="line 12")
    assert found.speedup == pytest.approx(2.74, abs=0.005)
    assert spectwin.load_profile("cpu2-x5").name == "cpu2-x5" and len(spectwin.load_trace("cpu2-x5")) > 1000
    assert isinstance(report, spectwin.Report) and isinstance(found, spectwin.Diagnosis)
    assert isinstance(spectwin.study("family"), spectwin.Study)


def test_every_public_name_is_there_and_is_typed() -> None:
    for name in spectwin.__all__:
        assert getattr(spectwin, name) is not None, name
    assert not hasattr(spectwin, "nonesuch")
    assert (Path(spectwin.__file__).parent / "py.typed").is_file()


def test_what_is_no_option_is_said() -> None:
    with pytest.raises(spectwin.SettingError, match="there is no option 'batches'"):
        spectwin.simulate("sd", batches=3)
    with pytest.raises(spectwin.SettingError, match="there is no study"):
        spectwin.study("nonesuch")


def test_importing_it_imports_nothing_else() -> None:
    code = "import sys, spectwin; print([m for m in ('numpy', 'simulator', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_every_program_is_a_part_of_the_one_command() -> None:
    context = click.Context(main)
    parts = [main.get_command(context, name) for name in PARTS]
    # The papers' profiles are written anew by who changes them.
    assert {name for name, command in programs().items() if command not in parts} == {
        "python -m analysis.papers.profiles"
    }


def test_help_and_completion_import_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectwin.__main__.import_module", pytest.fail)
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0 and all(name in shown.stdout for name in PARTS)
    said = main.shell_complete(click.Context(main), "si")
    assert [item.value for item in said] == ["simulate", "silicon"]


FEW = "policy = 'sd'\nhw = 'cpu2-x5'\n[simulate]\nrequests = 4\nmax-tokens = 8\njitter = false\n"


def config(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "options.toml").write_text(text)
    return ["--config", str(tmp_path / "options.toml"), "--json"]


def test_a_file_of_options_is_as_if_they_were_typed(tmp_path: Path) -> None:
    typed = shlex.split("--policy sd --hw cpu2-x5 --requests 4 --max-tokens 8 --no-jitter --json")
    run = CliRunner().invoke
    assert run(simulate, config(tmp_path, FEW)).stdout == run(simulate, typed).stdout
    # What is typed comes first.
    other = run(simulate, [*config(tmp_path, FEW), "--policy", "ar"])
    assert '"policy": "ar"' in other.stdout
    # Lists are lists, and the one command reads the same.
    swept = run(main, ["simulate", *config(tmp_path, FEW + "batch = [1, 2]\n")])
    assert swept.exit_code == 0 and '"batch": 2' in swept.stdout


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[simulate]\nbatches = 3\n", "simulate has no option 'batches'; did you mean 'batch'?"),
        ("policy = ", "options.toml"),
        ("simulate = 3\n", "expected a table [simulate]"),
        ("batch = 'many'\n", "--batch"),
    ],
)
def test_a_file_of_something_else_is_refused_in_a_line(tmp_path: Path, text: str, why: str) -> None:
    refused = CliRunner().invoke(simulate, config(tmp_path, text))
    assert refused.exit_code == 2 and why in refused.stderr


def test_an_option_of_other_commands_is_noted(tmp_path: Path) -> None:
    shown = CliRunner().invoke(simulate, config(tmp_path, "turns = 4\n" + FEW))
    assert shown.exit_code == 0 and "not options of" in shown.stderr and "turns" in shown.stderr
