"""The study of live serving runs, on a run that the simulator itself wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_layers import write_layers

from analysis.__main__ import main
from analysis.studies.serving import Unmixed, read_run
from hardware_profiles.mixed import MixedLayers
from hardware_profiles.networks import find_network
from policies.registry import configure
from serving.loop import serve
from serving.scheduler import EngineOptions
from serving.traffic import ServedRequest, Traffic
from simulator.tokens import coin
from simulator.traffic import LayerTimes, SimulatedEngine

NAME = "gpu"
REQUESTS = [ServedRequest(0.004 * i, 20 + 7 * (i % 5), 3 + i % 4, (1,) if i % 3 else ()) for i in range(30)]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A run of an engine that takes 1 % longer than its layers say, and the layers."""
    runs, layers = tmp_path / "runs" / NAME, tmp_path / "layers" / NAME
    runs.mkdir(parents=True)
    write_layers(layers)
    options = EngineOptions(max_num_seqs=4, max_num_batched_tokens=64, num_gpu_blocks=12)
    tokens = coin(0.5, exponent=1.0, scale=1.0, requests=1, length=1, prompt_length=1, seed=0)
    times = Slower(MixedLayers(layers, find_network("qwen3-0.6b")))
    served = serve(Traffic(tuple(REQUESTS), "x"), options, SimulatedEngine.of(times, tokens, configure("ar")))
    rows = [
        {
            "request_id": f"r{i}",
            "input_toks": request.prompt,
            "output_toks": request.output,
            "queued_ts": 1000.0 + served.arrival_s[i],
            "first_token_ts": 1000.0 + served.first_s[i],
            "last_token_ts": 1000.0 + served.last_s[i],
        }
        for i, request in enumerate(REQUESTS)
    ]
    blocks = [{"request_id": f"r{i}", "blocks": list(r.blocks)} for i, r in enumerate(REQUESTS) if r.blocks]
    (runs / "requests.jsonl").write_text("\n".join(map(json.dumps, reversed(rows))))
    (runs / "prompt_blocks.jsonl").write_text("\n".join(map(json.dumps, blocks)))
    kwargs = {
        "model": "Qwen/Qwen3-0.6B",
        "tensor_parallel_size": 1,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
    }
    cache = {"num_gpu_blocks": 12, "block_size": 16}
    (runs / "meta.json").write_text(json.dumps({"engine_kwargs": kwargs, "kv_cache": cache}))
    return runs.parent, layers.parent


class Slower(LayerTimes):
    """An engine slower than its kernels."""

    def target_s(self, step: object) -> float:
        return 1.01 * super().target_s(step)  # type: ignore[arg-type]


def test_a_run_is_read(folders: tuple[Path, Path]) -> None:
    run = read_run(folders[0] / NAME)
    assert run.options == EngineOptions(max_num_seqs=4, max_num_batched_tokens=64, num_gpu_blocks=12)
    assert [r.prompt for r in run.traffic.requests] == [r.prompt for r in REQUESTS]
    assert run.traffic.requests[1].blocks == (1,) and run.model == "qwen3-0.6b"


def test_errors_are_those_of_the_engine(folders: tuple[Path, Path], tmp_path: Path) -> None:
    command = ["run", "serving", "--runs", str(folders[0]), "--layers", str(folders[1]), "--json"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    rows = {row["metric"]: row for row in found["rows"]}
    assert len(rows) == 17
    # All of an overloaded run's seconds are 1 % too few, as far as arrivals do not move.
    assert rows["mean_tpot_ms"]["layers_error"] == pytest.approx(1 / 1.01 - 1, abs=2e-3)
    assert found["runs"][NAME]["largest_error_layers"] < 0.03


def test_parts_of_a_step_alone(tmp_path: Path) -> None:
    """A chunk beside rows takes what each takes alone, less a launch, whatever the longest row."""
    write_layers(tmp_path)
    layers = Unmixed(tmp_path, find_network("qwen3-0.6b"))
    together = layers._attended(4, 100.0, 900.0, [(64, 0)])
    parts = layers._attended(4, 100.0, 100.0, []) + layers._attended(0, 0.0, 0.0, [(64, 0)])
    assert together == pytest.approx(parts - layers._smallest)
    mixed = MixedLayers(tmp_path, find_network("qwen3-0.6b"))
    assert layers._attended(4, 100.0, 100.0, []) == pytest.approx(mixed._attended(4, 100.0, 100.0, []))


def test_what_is_missing_is_said(folders: tuple[Path, Path], tmp_path: Path) -> None:
    def error(*options: str) -> str:
        result = CliRunner().invoke(main, ["run", "serving", *options])
        assert result.exit_code == 2
        return result.output

    assert "--runs and --layers" in error()
    assert "requests.jsonl" in error("--runs", str(tmp_path), "--layers", str(tmp_path))
    (folders[0] / NAME / "requests.jsonl").write_text('{"queued_ts": 1}\n')
    assert "no live run" in error("--runs", str(folders[0]), "--layers", str(folders[1]))
