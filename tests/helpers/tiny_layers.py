"""A folder of layer times whose attention is linear in all that it depends on."""

from __future__ import annotations

from itertools import product
from pathlib import Path


def attention_us(chunk: float, history: float, rows: float, context: float) -> float:
    """Linear in each, so that what is looked up between and beyond the cells is exact."""
    return chunk * (5 + history / 16) + rows * (1 + context) + chunk * rows


def write_layers(folder: Path, *more: str) -> None:
    """10 us a token and layer, 100 us a sequence, attention as above, and more lines of that."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("embedding", "layernorm", "qkv_proj", "o_proj", "gate_up_proj", "down_proj", "final_layernorm")
    dense = [f"{name},{n},{10 * n}" for name in names for n in (1, 128)]
    (folder / "dense.csv").write_text("\n".join(["layer,tokens,time_us", *dense]))
    head = [f"lm_head,{n},{100 * n}" for n in (1, 8)]
    (folder / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *head]))
    cells = [(0, 0, n, kv) for n, kv in product((1, 2, 4), (16, 32))]
    cells += [(c, kp, 0, 0) for c, kp in product((16, 64), (0, 16, 32))]
    cells += [(c, kp, n, kv) for c, kp, n, kv in product((16, 64), (0, 16, 32), (1, 2), (16, 32))]
    lines = [f"{c},{kp},{n},{kv},{attention_us(c, kp, n, kv)}" for c, kp, n, kv in cells]
    header = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
    (folder / "attention.csv").write_text("\n".join([header, *lines, *more]))
