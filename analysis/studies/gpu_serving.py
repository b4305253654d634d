"""End-to-end serving runs of NVIDIA's own validation (`silicon_sample.csv` of the tables) as cells of the
oracle page.

A token of B requests served at once takes a forward over B rows at the mean context, and its share of the
prefills of the others: (B - 1) prefill / output length.  How engines mix the two is the scheduler's affair;
only runs whose share is small are compared.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from analysis.results import Row
from hardware_profiles.composed import Composer
from hardware_profiles.files import read_text
from hardware_profiles.kernels import Tables, TablesError
from hardware_profiles.networks import find_network

FILE = "silicon_sample.csv"
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "qwen3-8b")
"""Dense networks; the path of a run's model has their name in it."""
CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")
"""Requests at once, where a run says so apart from its batch."""
LARGEST_SHARE = 0.1
"""Of prefills in the time per token."""
MOST_ROWS = 128
CAUSES: Mapping[str, str] = {
    "trtllm": "gaps between kernels, where many GPUs share a step; 4-bit cells hold what quantises",
    "sglang": "an engine a year older than its tables",
    "vllm": "host time of an engine a year older than its tables, most of a step where many GPUs share it",
}


def serving_rows(systems: Path, roofline: Callable[[Composer, int, int, int], float | None]) -> Iterator[Row]:
    """A row per run that can be compared; none where the tables have no such file."""
    path = systems / FILE
    composers: dict[tuple[str, ...], Composer] = {}
    for line in csv.DictReader(read_text(path).splitlines()) if path.is_file() else ():
        model = next((name for name in MODELS if name in line["model_path"].lower()), None)
        alone = line["pp_size"] in ("", "1") and line["attention_dp_size"] in ("", "0", "1")
        if model is None or line["mode"] != "agg" or not alone or float(line["batch_size"]) > MOST_ROWS:
            continue
        asked = CONCURRENCY.search(line["silicon_data_source"])
        if asked is not None and float(asked[1]) != float(line["batch_size"]):
            continue  # more requests than rows: they wait for each other, and a token's time has that in it
        precision = line["gemm_quant_mode"] or line["precision"]
        precision = precision if precision not in ("", "bf16") else "bfloat16"
        key = (line["system"], line["backend"], model, precision, line["tp_size"])
        try:
            if key not in composers:
                network = find_network(model, precision=precision)
                tables = Tables(systems, line["system"], line["backend"])
                narrow = "fp8" if line["backend"] == "trtllm" and precision != "bfloat16" else "bfloat16"
                composers[key] = Composer(tables, network, int(line["tp_size"]), kv_dtype=narrow)
            if (row := _row(line, composers[key], roofline)) is not None:
                yield {**row, "model": model}
        except TablesError:
            continue


def _row(
    line: Mapping[str, str], composer: Composer, roofline: Callable[[Composer, int, int, int], float | None]
) -> Row | None:
    rows, prompt, output = (int(float(line[name])) for name in ("batch_size", "isl", "osl"))
    context = prompt + output // 2
    prefill = (rows - 1) * composer.forward(1, prompt, 0, answers=1).seconds / output
    composed = composer.forward(rows, 1, context).seconds + prefill
    if prefill > LARGEST_SHARE * composed:
        return None
    printed = 1e-3 * float(line["silicon_tpot_ms"])
    flat = roofline(composer, rows, 1, context) if composer.network.dtype == "bfloat16" else None
    return {
        "source": "aiconfigurator silicon_sample",
        "kind": f"serving, {line['backend']}",
        "gpu": line["system"],
        "engine": f"{line['backend']} {line['backend_version']}",
        "tp": line["tp_size"],
        "batch": line["batch_size"],
        "K": "0",
        "note": f"{composer.network.dtype}, {prompt} + {output} tokens",
        "tokens_per_row": "1",
        "context": str(context),
        "captured": "not stated",
        "printed": printed,
        "composed": composed,
        "error": composed / printed - 1.0,
        "roofline": flat,
        "roofline_error": None if flat is None else (flat + prefill) / printed - 1.0,
        "cause": CAUSES[line["backend"]] if abs(composed / printed - 1.0) >= 0.08 else None,
    }
