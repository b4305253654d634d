"""What is refused before anything runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small_calibration import PLAN, small_job
from small_models import VOCABULARY, save_tokenizer

from calibrate import job as job_module
from calibrate import machine, models
from calibrate.job import check, recorders
from calibrate.journal import fingerprint
from calibrate.live.errors import ModelError
from calibrate.models import MisfitError, ModelSize, check_memory, check_tokenizers, memory_need, model_size
from calibrate.shipped import DATA

GIB = 2**30
ADDED = {"content": "b", "id": 1}


def test_sizes_come_from_the_files(pair: tuple[str, str]) -> None:
    size = model_size(pair[0])
    # 64 words x 32, twice (embedding and head), 2 layers of (q o: 32 x 32, k v: 32 x 16, three 32 x 64 and
    # two norms of 32) and a last norm
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32
    assert size.parameters == 2 * 64 * 32 + 2 * layer + 32
    # keys and values of 2 heads x 8 in 2 layers, 4 bytes each
    assert size.kv_bytes_per_token("fp32") == 2 * 2 * 2 * 8 * 4
    assert (size.layers, size.positions) == (2, 512)
    assert model_size("organisation/model") == ModelSize(None, None, None, None)


def test_a_broken_model_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\x00\x01")
    with pytest.raises(ModelError, match=r"model\.safetensors is no safetensors file"):
        model_size(str(tmp_path))


def test_the_shipped_pair_fits_together() -> None:
    check_tokenizers(str(DATA / "target"), str(DATA / "draft"))


def test_another_tokenizer_of_the_same_size_is_refused(pair: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    save_tokenizer(tmp_path / "draft", swapped=(5, 9))
    with pytest.raises(MisfitError) as refused:
        check_tokenizers(pair[0], str(tmp_path / "draft"))
    message = str(refused.value)
    assert "id 5 is 'w5' in the target" in message and "'w9' in the draft" in message
    assert f"2 of {VOCABULARY} ids differ" in message
    assert "give --draft a model of the target's own family" in message


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", json.dumps({"model": {"vocab": [["a", 0.0], ["b", -1.0]]}})),
        (
            "tokenizer.json",
            json.dumps({"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "b", "id": 1}]}),
        ),
        ("vocab.json", json.dumps({"a": 0, "b": 1})),
        ("vocab.txt", "a\nb\n"),
    ],
)
def test_all_kinds_of_vocabularies_are_read(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert models.token_ids(str(tmp_path)) == {"a": 0, "b": 1}


def test_a_folder_without_a_tokenizer_is_believed(pair: tuple[str, str], tmp_path: Path) -> None:
    check_tokenizers(pair[0], str(tmp_path))


def test_memory_is_weights_caches_and_processes() -> None:
    target = ModelSize(parameters=GIB, layers=1, kv_per_token=2**20, positions=None)
    draft = ModelSize(parameters=GIB // 4, layers=1, kv_per_token=0, positions=None)
    need = memory_need(target, draft, batch=4, length=256)
    # 4 + 1 GiB of weights; 4 rows x 256 tokens x 4 MiB = 4 GiB; two processes of half a GiB
    assert (need.weight_bytes, need.kv_bytes, need.spare_bytes) == (5 * GIB, 4 * GIB, GIB)
    check_memory(need, 10 * GIB, batch=4, length=256)
    check_memory(need, None, batch=4, length=256)
    with pytest.raises(
        MisfitError, match=r"needs about 10\.0 GiB.*8\.5 GiB are available.*--batches up to 2"
    ):
        check_memory(need, int(8.5 * GIB), batch=4, length=256)
    with pytest.raises(MisfitError, match=r"weights 5\.0 GiB.*smaller models"):
        check_memory(need, 5 * GIB, batch=4, length=256)


def test_available_memory_respects_a_container(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "cgroup"
    group.mkdir()
    meminfo.write_text("MemTotal: 4096 kB\nMemFree: 1 kB\nMemAvailable: 2048 kB\n")
    assert machine.available_memory(meminfo, group) == 2048 * 1024
    assert machine.total_memory(meminfo) == 4096 * 1024
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    assert machine.available_memory(meminfo, group) == 2048 * 1024
    (group / "memory.max").write_text("5000\n")
    assert machine.available_memory(meminfo, group) == 4000
    (group / "memory.stat").write_text("anon 1\ninactive_file 500\n")
    assert machine.available_memory(meminfo, group) == 4500
    assert machine.available_memory(tmp_path / "none", tmp_path / "none") is None


def test_a_job_is_checked_before_anything_starts(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(*pair)
    check(job, PLAN)
    with pytest.raises(MisfitError, match="--max-tokens 510 does not fit: the target has 512 positions"):
        check(replace(job, max_tokens=510), PLAN)
    long = replace(PLAN.grids[0], values=((1,), (100,), (500,)), held_out=())
    with pytest.raises(MisfitError, match="measures texts of 600 tokens"):
        check(job, replace(PLAN, grids=(long,)))
    monkeypatch.setattr(job_module, "available_memory", lambda: GIB)
    with pytest.raises(MisfitError, match=r"needs about 1\.0 GiB of memory"):
        check(job, PLAN)
    assert recorders(job) == 1


def test_a_changed_model_is_another_one(pair: tuple[str, str], tmp_path: Path) -> None:
    before = fingerprint(pair[0])
    assert before == fingerprint(pair[0]) != fingerprint(pair[1])
    assert {entry[0] for entry in before} >= {"config.json", "model.safetensors", "tokenizer.json"}
    (tmp_path / "large").write_bytes(b"a" * (5 << 20))
    whole = fingerprint(str(tmp_path))
    (tmp_path / "large").write_bytes(b"a" * ((5 << 20) - 1) + b"b")
    assert fingerprint(str(tmp_path)) != whole
    assert fingerprint("organisation/model") == [["organisation/model", 0, ""]]
