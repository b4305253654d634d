"""docs/reference/formats.md: its examples run as printed, and it names every field that the readers know."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from analysis.recommend.__main__ import main as recommend
from hardware_profiles.optime import Host, OperationHost
from hardware_profiles.profile import DeviceInfo, MeasuredRun, Overlap, Profile, Role
from hardware_profiles.surface import GridCost, InterpolationError, Point, Provenance
from hardware_profiles.trace import COLUMNS, TraceMeta, TraceRequest
from simulator.cli import main as simulate
from simulator.tokens.acceptance import AcceptanceFile

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "formats.md").read_text()
COMMANDS = {"simulate": simulate, "recommend": recommend}
PARTS = (
    Profile, Role, DeviceInfo, Host, OperationHost, Overlap, MeasuredRun, GridCost, Point, InterpolationError,
    Provenance, TraceMeta, TraceRequest, AcceptanceFile,
)  # fmt: skip


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """What a fence says of its block, and the block."""
    for fence in re.finditer(r"```(\S+(?: \S+)?)\n(.*?)```", text, re.DOTALL):
        yield fence[1], fence[2]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every file of the page's examples."""
    monkeypatch.chdir(tmp_path)
    for what, text in blocks(PAGE):
        kind, _, name = what.partition(" ")
        if kind == "json":
            Path(name).write_text(text)
        elif kind == "python":
            exec(compile(text, "docs/reference/formats.md", "exec"), {})
    return tmp_path


def test_every_command_of_the_page_runs_on_the_files_of_the_page(written: Path) -> None:
    ran = 0
    for what, text in blocks(PAGE):
        for line in text.splitlines() if what == "sh" else ():
            name, *arguments = shlex.split(line)
            done = CliRunner().invoke(COMMANDS[name], arguments)
            assert done.exit_code == 0, (line, done.output)
            ran += 1
    assert ran == 5
    assert (written / "run.json").is_file()


def test_the_prompts_of_the_page_are_prompts(written: Path) -> None:
    from calibrate.prompts import load_prompts

    assert [prompt.category for prompt in load_prompts(written / "my-prompts.jsonl")] == ["code", "prose"]


def test_a_trace_takes_twenty_lines_of_pyarrow() -> None:
    code = next(text for what, text in blocks(section("Trace")) if what == "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_field_is_on_the_page(part: type) -> None:
    names = set(part.__struct_encode_fields__)  # type: ignore[attr-defined]
    assert sorted(names - set(re.findall(r"\w+", PAGE))) == []


def test_the_columns_of_a_trace_are_those_of_the_reader() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", section("Trace"), re.MULTILINE)
    assert [name for name, _ in rows] == list(COLUMNS)
    for name, kind in rows:
        column = COLUMNS[name]
        assert column.dtype in kind and (column.width or "") in kind


@pytest.mark.parametrize("policy", ["ar", "sd", "pld", "pearl", "saguaro", "tree"])
def test_four_columns_are_enough_for_a_greedy_run(written: Path, policy: str) -> None:
    done = CliRunner().invoke(
        simulate, ["--hw", "my-machine.json", "--trace", "my.parquet", "--policy", policy, "--json"]
    )
    assert done.exit_code == 0, done.output


def test_a_backup_is_chosen_among_those_that_four_columns_decide(written: Path) -> None:
    trace = ["--hw", "my-machine.json", "--trace", "my.parquet"]
    done = CliRunner().invoke(simulate, [*trace, "--backup", "auto", "--json"])
    assert done.exit_code == 0, done.output
    refused = CliRunner().invoke(simulate, [*trace, "--backup", "ngram"])
    assert refused.exit_code == 2
    assert "draft_top_ids" in refused.stderr and "backup 'primary'" in refused.stderr


def test_a_greedy_trace_says_that_it_is_greedy_and_what_to_record(written: Path) -> None:
    done = CliRunner().invoke(
        simulate, ["--hw", "my-machine.json", "--trace", "my.parquet", "--temperature", "1"]
    )
    assert done.exit_code == 2
    assert "my.parquet" in done.stderr and "recorded at temperature 0 (greedily)" in done.stderr
    assert "calibrate --temperature 1" in done.stderr and "column" not in done.stderr
