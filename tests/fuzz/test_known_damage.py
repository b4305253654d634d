"""Files that once ended in a traceback, and names that once left their folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrate.live.errors import ModelError
from calibrate.models import model_size
from calibrate.prompts import PromptError, load_prompts
from hardware_profiles.profile import ProfileError, load_profile
from hardware_profiles.reply_trace import read_decisions
from hardware_profiles.shapes import ShapeError, find_shape
from hardware_profiles.store import find_profile, user_decisions, user_profile, user_trace
from hardware_profiles.trace import TraceError, read_trace
from simulator.imports.formats import read_file
from simulator.imports.measured import ImportRefused
from simulator.tokens.acceptance import load_acceptance

DATA = Path(__file__).parents[2] / "hardware_profiles" / "data"
SAMPLES = Path(__file__).parents[1] / "data" / "imports"
DEEP = "[" * 5000 + "]" * 5000


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", ["[]", '{"text_config": []}', '{"hidden_size": "many"}', DEEP, '{"a": NaN}'])
def test_configs(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "config.json", text)
    with pytest.raises(ShapeError, match=r"(config|hidden_size|no num_hidden_layers)"):
        find_shape(str(path))
    if text != '{"hidden_size": "many"}':
        with pytest.raises(ModelError, match="config"):
            model_size(str(path))


@pytest.mark.parametrize("number", ["Infinity", "NaN", "1e999", "9" * 5000])
def test_prompts(tmp_path: Path, number: str) -> None:
    row = f'{{"question_id": {number}, "category": "c", "turns": ["a"]}}'
    with pytest.raises(PromptError, match=r"p\.jsonl:1: "):
        load_prompts(written(tmp_path / "p.jsonl", row))


def test_deeply_nested_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.json: is not JSON: nested too deeply"):
        load_acceptance(written(tmp_path / "a.json", DEEP))


def rewritten(source: Path, path: Path, change: Callable[[pa.Table, dict[bytes, bytes]], pa.Table]) -> Path:
    file = pq.ParquetFile(source)
    texts = {k: v for k, v in file.metadata.metadata.items() if k != b"ARROW:schema"}
    table = change(file.read().replace_schema_metadata(), texts)
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(texts)
    return path


def test_traces_with_columns_of_another_kind(tmp_path: Path) -> None:
    source = DATA / "traces" / "cpu2-x20.parquet"

    def of_text(table: pa.Table, _: Any) -> pa.Table:
        at = table.column_names.index("draft_top_ids")
        return table.set_column(at, "draft_top_ids", pa.array(["x"] * len(table)))

    def twice(table: pa.Table, _: Any) -> pa.Table:
        return table.append_column("token", table.column("token"))

    with pytest.raises(TraceError, match=r"t\.parquet: column 'draft_top_ids' holds string, must hold lists"):
        read_trace(rewritten(source, tmp_path / "t.parquet", of_text))
    with pytest.raises(TraceError, match=r"t\.parquet: column 'token' is there twice"):
        read_trace(rewritten(source, tmp_path / "t.parquet", twice))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('"x"', "must be an object"),
        ('{"a": "x"}', "a"),
        ('{"a": {"seconds": {"b": NaN}}}', "a.seconds.b: must be a finite number"),
        (DEEP, "nested too deeply"),
    ],
)
def test_decision_traces_with_other_settings(tmp_path: Path, settings: str, problem: str) -> None:
    def change(table: pa.Table, texts: dict[bytes, bytes]) -> pa.Table:
        texts[b"spectwin.settings"] = settings.encode()
        return table

    path = rewritten(DATA / "decisions" / "cpu2-x5-t1-rest.parquet", tmp_path / "d.parquet", change)
    with pytest.raises(TraceError, match=rf"d\.parquet: .*{problem}") as caught:
        read_decisions(path)
    assert "\n" not in str(caught.value)


def test_decision_traces_with_a_timing_of_nothing(tmp_path: Path) -> None:
    def change(table: pa.Table, _: Any) -> pa.Table:
        timed = pa.array(["[]", *[None] * (len(table) - 1)])
        return table.set_column(table.column_names.index("timing"), "timing", timed)

    path = rewritten(DATA / "decisions" / "cpu2-x5-t1-rest.parquet", tmp_path / "d.parquet", change)
    with pytest.raises(TraceError, match=r"d\.parquet: .*timing: expected a list"):
        read_decisions(path)


def test_a_line_too_long_for_csv(tmp_path: Path) -> None:
    text = (SAMPLES / "trainers" / "speculators_acceptance_constructed.csv").read_text() + "x" * 140_000
    with pytest.raises(ImportRefused, match=r"a\.csv: not what speculators looks like .*field larger"):
        read_file(written(tmp_path / "a.csv", text), name="speculators")


def test_a_table_without_rows(tmp_path: Path) -> None:
    header = (SAMPLES / "trainers" / "speculators_acceptance_constructed.csv").read_text().splitlines()[0]
    with pytest.raises(ImportRefused, match=r"a\.csv: holds no measurement"):
        read_file(written(tmp_path / "a.csv", header), name="speculators")


def test_a_gauge_that_is_not_finite(tmp_path: Path) -> None:
    text = "# gauges\nsglang:spec_accept_length 2.5\nsglang:gen_throughput NaN\n"
    with pytest.raises(ImportRefused, match=r"m\.prom: tokens_per_second: expected a finite number"):
        read_file(written(tmp_path / "m.prom", text))


@pytest.mark.parametrize("name", ["../../x", "a/b", ".hidden", "", "a" * 200])
def test_names_that_leave_their_folder(tmp_path: Path, name: str) -> None:
    profile = json.loads((DATA / "profiles" / "textbook.json").read_text())
    with pytest.raises(ProfileError, match=r"p\.json: name: .* is no name"):
        load_profile(written(tmp_path / "p.json", json.dumps(profile | {"name": name})))
    for path_of in (user_profile, user_trace, user_decisions):
        with pytest.raises(ValueError, match="is no name"):
            path_of(name)


def test_a_name_of_thousands_of_characters() -> None:
    with pytest.raises(ProfileError, match="too long for the name of a file") as caught:
        find_profile("a" * 5000)
    assert len(str(caught.value)) < 200
