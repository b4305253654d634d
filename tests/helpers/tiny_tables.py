"""Kernel tables of a made-up GPU, small enough to be worked out by hand, laid out as in the wheel."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

GPU = "h100_sxm"
YAML = """data_dir: data/h100_sxm
gpu:
  mem_bw: 1000000000 # 1 GB/s, so that a byte takes a nanosecond
  mem_bw_empirical_scaling_factor: 0.5
  mem_empirical_constant_latency: 0.000001 # 1 us
  mem_capacity: 1000000000
  bfloat16_tc_flops: 1000000000000 # 1 TFLOPS
node:
  intra_node_bw: 1000000
"""
VERSIONS = """schema_version: 1
defaults:
  vllm: {current: "0.24.0", previous: null}
  sglang: {current: "0.5.14", previous: null}
overrides:
  a100_sxm:
    vllm: {current: "0.14.0", previous: null}
"""
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 256,
    "tie_word_embeddings": True,
}


def write_table(root: Path, place: str, rows: list[dict[str, Any]]) -> Path:
    """One table, at `op/engine/version/name` of the GPU."""
    path = root / "aiconfigurator_core/systems/data" / GPU / f"{place}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def gemm_ms(m: int, n: int, k: int) -> float:
    """2 us and a nanosecond per byte of weights, in ms: twice as long past 64 tokens."""
    return (2.0 + 2e-3 * n * k) * 1e-3 * (2.0 if m > 64 else 1.0)


def write_tables(root: Path, version: str = "0.12.0") -> Path:
    """An unpacked wheel of tiny tables; its folder."""
    systems = root / "aiconfigurator_core/systems"
    systems.mkdir(parents=True)
    (root / f"aiconfigurator_core-{version}.dist-info").mkdir()
    (systems / f"{GPU}.yaml").write_text(YAML)
    (systems / "query_versions.yaml").write_text(VERSIONS)
    sizes = (16, 64, 128, 256)
    write_table(
        root,
        "gemm/vllm/0.24.0/gemm_perf",
        [
            {
                "gemm_dtype": "bfloat16",
                "m": m,
                "n": n,
                "k": k,
                "latency": slow * gemm_ms(m, n, k),
            }
            for m, n, k in product((1, 2, 8, 16, 64, 65, 128, 1024), sizes, sizes)
            for slow in (1.0, 3.0)  # two kernels
        ],
    )
    heads = [{"num_heads": h, "num_key_value_heads": kv, "head_dim": 16} for h, kv in ((4, 2), (2, 1))]
    shared = {"kv_cache_dtype": "bfloat16", "window_size": 0}
    # 10 us and a nanosecond per byte of keys and values (2 heads: 128 bytes a token); short ones are free.
    decode = [
        {**each, **shared, "batch_size": b, "step": s,
         "latency": 0.010 + (b * (s + 1) * 64 * each["num_key_value_heads"] * 1e-6 if s > 100 else 0.0)}
        for each, b, s in product(heads, (1, 8), (1, 99, 9999))
    ]  # fmt: skip
    write_table(root, "attention/vllm/0.24.0/generation_attention_perf", decode)
    # FLOP/s of the largest: 2 B n^2 H d / t = 2 * 8 * 100^2 * 64 / 0.1 ms = 102.4 GFLOP/s at 4 heads.
    prompt = [
        {**each, **shared, "batch_size": b, "isl": n, "latency": 0.010 if n < 100 else b / 80}
        for each, b, n in product(heads, (1, 8), (1, 8, 100))
    ]
    write_table(root, "attention/vllm/0.24.0/context_attention_perf", prompt)
    for old, latency in (("0.9.0", 5.0), ("0.24.0", 0.004)):
        rows = [
            {
                "num_gpus": 2,
                "allreduce_dtype": "bfloat16",
                "backend": f"vllm_{way}",
                "message_size": size,
                "latency": latency * slow,
            }
            for way, slow in (("graph", 1.0), ("eager", 5.0))
            for size in (64, 128)
        ]
        write_table(root, f"comm/vllm/{old}/custom_allreduce_perf", rows)
    gather = {
        "num_gpus": 2,
        "op_name": "all_gather",
        "nccl_dtype": "half",
        "message_size": 1,
        "latency": 1e-5,
    }
    write_table(root, "comm/nccl/2.29.2/nccl_perf", [gather])
    experts = {"moe_dtype": "bfloat16", "hidden_size": 64, "inter_size": 16, "topk": 2, "num_experts": 8,
               "moe_tp_size": 1, "moe_ep_size": 1, "distribution": "power_law_1.01"}  # fmt: skip
    write_table(
        root, "moe/vllm/0.24.0/moe_perf", [{**experts, "num_tokens": n, "latency": n * 1e-3} for n in (1, 4)]
    )
    return root


def write_layers(folder: Path) -> Path:
    """Layers' times as LLMServingSim writes them: 10 us a token; attention by rows, chunk and context."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("embedding", "layernorm", "qkv_proj", "o_proj", "gate_up_proj", "down_proj", "final_layernorm")
    dense = [f"{name},{n},{10 * n}" for name in names for n in (1, 3)]
    (folder / "dense.csv").write_text("\n".join(["layer,tokens,time_us", *dense]))
    head = [f"lm_head,{n},{100 * n}" for n in (1, 2)]
    (folder / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *head]))
    decode = [f"0,0,{b},{kv},{b + kv}" for b, kv in product((1, 2), (16, 32))]
    chunks = [f"{c},{kv},0,0,{1000 * c + kv}" for c, kv in ((16, 0), (16, 16), (16, 32), (64, 0), (64, 32))]
    header = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
    (folder / "attention.csv").write_text("\n".join([header, *decode, *chunks]))
    (folder / "meta.yaml").write_text("gpu: Some GPU\n")
    return folder
