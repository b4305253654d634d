"""Forwards and speculation composed from kernel times (`hardware_profiles.composed`) against published
numbers.

`analysis/papers/data/published.csv` holds figures that others printed of real GPUs.  Nothing is fitted to
the cells predicted; two numbers are taken from cells that are not: the host's gap (`HOST_GAP_S`, printed by
SpecDecode-Bench) and what a draft's step takes beyond its forward (`DRAFT_GAPS`).  A round of speculation is

    verify(B, n) + draft phase + gaps,   draft phase of a head: head(B, n) + (K - 1) head(B, topk)
                                         of a model of its own: K forwards of one token

and a step of plain decoding is a forward, with a gap where the engine does not schedule ahead (`GAPS`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import numpy as np

from analysis.execute import Bench
from analysis.papers.cells import DATA
from analysis.results import Results, Row
from analysis.show import Column, table
from analysis.stats import grouped
from analysis.studies.gpu_serving import serving_rows
from analysis.study import Plan, Study
from hardware_profiles.composed import EAGER_LAYER_S, HOST_GAP_S, Composer
from hardware_profiles.files import read_text
from hardware_profiles.kernels import Tables, TablesError, find_tables
from hardware_profiles.networks import find_network
from hardware_profiles.roofline import DEVICES, ENGINES, PRECISIONS, Setting
from policies.commandline import about as about_option

GPUS: Mapping[str, str] = {
    "A100": "a100", "A800": "a800", "H100": "h100", "H200": "h200", "Hopper": "h100", "L40S": "l40s",
    "RTX PRO 6000": "rtxpro6000", "not stated (H200": "h200",
}  # fmt: skip
"""The tables of a GPU, by how its published name begins."""
KERNELS: Mapping[str, str] = {"sglang": "sglang", "TensorRT-LLM": "trtllm"}
"""Whose kernels an engine's are taken to be; vLLM's where it is not here."""
GAPS: Mapping[str, float] = {"sglang": 0.0, "TensorRT-LLM": 0.0, "ssd": 0.0}
"""Between steps of plain decoding: these schedule the next step while the GPU works, but not with
speculation."""
DRAFT_GAPS: Mapping[str, float] = {"vllm": 0.66e-3, "ssd": 0.66e-3}
"""Host time of each of the draft's steps, where every step is sampled and launched by itself: the SSD engine
prints 2.04 ms a drafted token, of which the composed forward is 1.38.  vLLM's drafts were launched so in
2025; SGLang captures the whole draft phase."""
CONTEXT = 500
"""Tokens cached where a source does not say: MT-Bench's and GSM8K's prompts and answers are of that size."""
FIT_HOLDS = 64
"""Tokens up to which SpecDecode-Bench's linear fit stands for its measurements."""
LEAST_ERROR = 0.08
"""From here on an error has to have a cause."""


@dataclass(frozen=True)
class OraclePlan(Plan):
    """Where the kernel tables are."""

    hw: tuple[str, ...] = ()
    tables: Path | None = field(
        default=None,
        metadata=about_option(
            "Unpacked wheel.  [default: the installed package]", type=click.Path(path_type=Path)
        ),
    )


@dataclass(frozen=True)
class Cell:
    """One published figure; `row` is its line of the CSV."""

    row: Mapping[str, str]

    def number(self, name: str) -> float | None:
        """A column as a number; None where it is empty."""
        return float(self.row[name]) if self.row[name] else None

    def count(self, name: str, default: int = 1) -> int:
        """A column as a count."""
        return int(self.row[name] or default)

    @property
    def gpu(self) -> str | None:
        """Short name of the GPU with tables; None: there are none, or none is stated."""
        return next((gpu for name, gpu in GPUS.items() if self.row["gpu"].startswith(name)), None)

    @property
    def model(self) -> str:
        """Name of the target, for `find_network`."""
        return self.row["model"].rsplit("/", 1)[-1].lower()

    @property
    def draft(self) -> str:
        """Name of the draft."""
        name = self.row["draft"].rsplit("/", 1)[-1].lower()
        return f"eagle3:{self.model}" if "eagle" in name else name

    @property
    def group(self) -> tuple[str, str, str, str]:
        """What a speedup and its plain rate have in common; a source's benchmarks stand first in notes."""
        bench = self.row["note"].partition(",")[0] if "spec_bundle" in self.row["source"] else ""
        return self.row["source"], self.model, self.row["batch"], bench

    @property
    def seconds(self) -> float:
        """Printed seconds of a step, or of a token of each row."""
        value = float(self.row["value"])
        return self.count("batch") / value if "per_s" in self.row["metric"] else 1e-3 * value

    @property
    def kind(self) -> str | None:
        """What is compared; None: nothing here says it."""
        given, plain = self.row["kind"], self.row["K"] == "0"
        if self.row["metric"] == "C":
            return "C"
        if given in ("forward", "verify", "prefill") and "tok" not in self.row["metric"]:
            return "plain" if "tpot" in self.row["metric"] else given
        if given == "forward":
            return "forward" if self.row["graph"] == "1" else "plain"
        if given == "e2e" and plain:
            return "plain"
        return (
            "speedup" if given == "e2e" and self.row["accept_length"] and self.row["tokens_per_row"] else None
        )


@dataclass(frozen=True)
class Oracle:
    """What the tables and the roofline say of published cells."""

    systems: Path
    cells: tuple[Cell, ...]

    @cached_property
    def plain(self) -> dict[tuple[str, str, str, str], Cell]:
        """Plain decoding by what it is the baseline of."""
        return {cell.group: cell for cell in self.cells if cell.kind == "plain"}

    @cached_property
    def _tables(self) -> dict[tuple[str, str], Tables]:
        return {}

    def composer(self, cell: Cell, name: str, tensor_parallel: int) -> Composer:
        """A network on the cell's GPUs.

        Raises:
            ValueError: No table is of it.
        """
        key = (str(cell.gpu), KERNELS.get(cell.row["engine"], "vllm"))
        if key not in self._tables:
            self._tables[key] = Tables(self.systems, *key)
        network = find_network(name, tables=self.systems)
        return Composer(self._tables[key], network, tensor_parallel, eager=cell.row["graph"] == "0")

    def step(self, composer: Composer, at: Sequence[int]) -> tuple[float, float | None]:
        """Seconds of a forward, composed and by the roofline; None where it does not know network or GPU."""
        rows, new, cached = at
        return composer.forward(rows, new, cached).seconds, roofline_s(composer, rows, new, cached)

    def answer(self, cell: Cell) -> Row | None:
        """A row of the page; None where the source does not say enough."""
        kind = cell.kind
        if kind is None or cell.gpu is None or not cell.row["tp"] or not cell.row["batch"]:
            return None
        try:
            how = {"speedup": self._speedup_cell, "C": self._c_cell}.get(kind, self._step_cell)
            printed, composed, roofline = how(cell)
        except (KeyError, TablesError):
            return None
        row = {
            name: cell.row[name] for name in ("source", "gpu", "engine", "model", "tp", "batch", "K", "note")
        }
        if kind == "C":
            row["note"] = self.ratios(cell)
        return {
            **row,
            "kind": kind,
            "tokens_per_row": cell.row["tokens_per_row"],
            "context": cell.row["context"],
            "captured": {"1": "yes", "0": "no"}.get(cell.row["graph"], "not stated"),
            "printed": printed,
            "composed": composed,
            "error": composed / printed - 1.0,
            "roofline": roofline,
            "roofline_error": None if roofline is None else roofline / printed - 1.0,
            "cause": cause(cell, abs(composed / printed - 1.0)),
        }

    def _at(self, cell: Cell, new: int) -> tuple[int, int, int]:
        return cell.count("batch"), new, cell.count("context", CONTEXT)

    def _step_cell(self, cell: Cell) -> tuple[float, float, float | None]:
        composer = self.composer(cell, cell.model, cell.count("tp"))
        composed, roofline = self.step(composer, self._at(cell, cell.count("tokens_per_row")))
        gap = GAPS.get(cell.row["engine"], HOST_GAP_S) if cell.kind == "plain" else 0.0
        return cell.seconds, composed + gap, roofline

    def _speedup_cell(self, cell: Cell) -> tuple[float, float, float | None]:
        before = self.plain[cell.group]
        accepted, new, drafted = (
            float(cell.row["accept_length"]),
            cell.count("tokens_per_row"),
            cell.count("K"),
        )
        target = self.composer(cell, cell.model, cell.count("tp"))
        head = cell.draft.startswith("eagle3:")
        draft = self.composer(cell, cell.draft, cell.count("tp") if head else 1)
        calls = [(target, new), (draft, new if head else 1)]
        calls += [(draft, cell.count("topk") if head else 1)] * (drafted - 1)
        steps = [self.step(composer, self._at(cell, width)) for composer, width in calls]
        plain = self._step_cell(before)
        gaps = HOST_GAP_S + drafted * DRAFT_GAPS.get(cell.row["engine"], 0.0)
        composed = plain[1] / (sum(step[0] for step in steps) + gaps) * accepted
        # The roofline was fitted to whole steps: host time is in it.
        parts = [step[1] for step in steps]
        known = [part for part in parts if part is not None]
        roofline = plain[2] / sum(known) * accepted if plain[2] and len(known) == len(parts) else None
        return before.seconds / cell.seconds, composed, roofline

    def _c_cell(self, cell: Cell) -> tuple[float, float, float | None]:
        """Target step over draft step where a library launches every kernel from Python."""
        found = [self.composer(cell, cell.model, cell.count("tp")), self.composer(cell, cell.draft, 1)]
        first, second = (self.step(each, self._at(cell, 1))[1] for each in found)
        composed = self._ratio(cell, ENGINES["transformers"].layer_s)
        return float(cell.row["value"]), composed, first / second if first and second else None

    def _ratio(self, cell: Cell, layer_s: float) -> float:
        """Target step over draft step where launching a layer takes `layer_s` at least."""
        seconds = []
        for name, spread in ((cell.model, cell.count("tp")), (cell.draft, 1)):
            composer = self.composer(cell, name, spread)
            composer.eager = layer_s > 0.0
            rows, new, cached = self._at(cell, 1)
            kernels = sum(part.seconds for part in composer.forward(rows, new, cached).parts)
            seconds.append(max(kernels, layer_s * composer.network.shape.layers))
        return seconds[0] / seconds[1]

    def ratios(self, cell: Cell) -> str:
        """C of a pair by how its kernels are launched: what an engine makes of one pair of models."""
        ways = {"captured": 0.0, "eager vLLM": EAGER_LAYER_S, "transformers": ENGINES["transformers"].layer_s}
        said = ", ".join(f"{self._ratio(cell, layer_s):.1f} {way}" for way, layer_s in ways.items())
        return f"{cell.model} with {cell.draft}: C = {cell.row['value']} printed; {said}"


STEPS = ("forward", "verify", "prefill", "plain")
"""Kinds that are one forward."""
BEYOND = "a linear fit beyond the tokens it holds for"


def roofline_s(composer: Composer, rows: int, new: int, cached: int) -> float | None:
    """What the roofline of plain decoding on H100 (`roofline.ENGINES`) says of a forward."""
    gpu, network = composer.tables.gpu.name, composer.network
    device = DEVICES.get(gpu.removesuffix("_sxm"))
    if device is None or network.experts is not None:
        return None
    setting = Setting(network.shape, device, PRECISIONS["bf16"], composer.tensor_parallel)
    at = {"batch": rows, "new_tokens": new, "context": cached}
    return setting.seconds("target.forward", at, ENGINES["ssd"].efficiency)


def cause(cell: Cell, error: float) -> str | None:
    """Why a cell is off; None where it is not."""
    row, tokens = cell.row, cell.count("batch") * cell.count("tokens_per_row")
    if row["metric"] == "fitted_forward_ms" and tokens > FIT_HOLDS:
        return BEYOND
    if error < LEAST_ERROR:
        return None
    for words, why in CAUSES.items():
        if row["source"].startswith(words):
            return why
    return "not known"


_EXPERTS = "SGLang of 2025, expert kernels of 0.5.14"
CAUSES: Mapping[str, str] = {
    "vllm-project/vllm issue #20780": "steps of EAGLE-3 took longer than EAGLE's there: why is not known",
    "vllm-project/vllm PR #24343": "an A100 of 40 GB has three quarters of the bandwidth that was timed",
    "sgl-project/SpecForge issue": f"{_EXPERTS}; 20 questions, the last ones alone",
    "Tencent/AngelSlim": f"{_EXPERTS}; whole runs, whose last questions are alone",
    "SafeAILab/EAGLE": _EXPERTS,
    "mirage-project/mirage": "engines of 2025, expert kernels of 2026; the GPU is not stated",
    "NVIDIA/TensorRT-LLM PR": "whole runs, prefill included",
    "sgl-project/SpecForge spec_bundle": "the GPU is not stated; trees of topk > 1 gather on the host",
    "DOUBLE": "transformers: how a model is spread over GPUs is not stated",
}
"""By how a source's name begins."""


def read_cells(path: Path = DATA / "published.csv") -> tuple[Cell, ...]:
    """The published figures."""
    import csv

    return tuple(Cell(row) for row in csv.DictReader(read_text(path).splitlines()))


def answer(bench: Bench) -> list[Row]:
    """Every cell that can be predicted."""
    plan = bench.plan_as(OraclePlan)
    oracle = Oracle(find_tables(plan.tables), read_cells())
    found = []
    for done, cell in enumerate(oracle.cells):
        if (row := oracle.answer(cell)) is not None:
            found.append(row)
        bench.progress("published cells", done + 1, len(oracle.cells))
    return [*found, *serving_rows(oracle.systems, roofline_s)]


def summary(rows: Sequence[Row]) -> list[Row]:
    """Errors by kind and by whether graphs were captured; a fit beyond its range is counted apart."""
    kept = [row for row in rows if row["cause"] != BEYOND]
    found = []
    for (kind, captured), mine in sorted(grouped(kept, lambda row: (row["kind"], row["captured"])).items()):
        errors = np.abs([row["error"] for row in mine])
        rooflines = np.abs([row["roofline_error"] for row in mine if row["roofline_error"] is not None])
        found.append(
            {
                "kind": kind,
                "captured": captured,
                "cells": len(mine),
                "sources": len({row["source"] for row in mine}),
                "median": float(np.median(errors)),
                "largest": float(errors.max()),
                "roofline_median": float(np.median(rooflines)) if len(rooflines) else None,
                "roofline_largest": float(rooflines.max()) if len(rooflines) else None,
                "sign_right": signs(mine) if kind == "speedup" else None,
            }
        )
    return found


def signs(rows: Sequence[Row]) -> float:
    """Share of speedups whose side of 1 is the printed one."""
    return float(np.mean([(row["composed"] > 1.0) == (row["printed"] > 1.0) for row in rows]))


def about(results: Results) -> Row:
    """The summary, and how many cells of how many sources there are."""
    rows = results.rows
    return {
        "cells": len(rows),
        "sources": len({row["source"] for row in rows}),
        "published": len(read_cells()),
        "by_kind": summary(rows),
    }


def show(results: Results) -> Iterator[Any]:
    """A line per cell, and the summary."""
    percent = "{:+.1%}"
    yield table(
        "Printed and predicted: milliseconds of a step, or a speedup or ratio",
        (
            Column(
                "source",
                lambda row: (
                    f"{row['source'][:38]}: {row['gpu'][:12]}, {row['model'].rsplit('/', 1)[-1][:22]}"
                ),
            ),
            Column("kind", "kind"),
            Column("TP", "tp"),
            Column("rows x new", lambda row: f"{row['batch']} x {row['tokens_per_row'] or 1}"),
            Column("printed", _shown("printed"), "{:.3g}"),
            Column("composed", _shown("composed"), "{:.3g}"),
            Column("error", "error", percent),
            Column("roofline", "roofline_error", percent),
        ),
        [row for row in results.rows if not row["kind"].startswith("serving")],
    )
    yield table(
        "Errors by kind",
        (
            Column("kind", "kind"),
            Column("captured", "captured"),
            Column("cells", "cells"),
            Column("sources", "sources"),
            Column("median", "median", "{:.1%}"),
            Column("largest", "largest", "{:.0%}"),
            Column("roofline:\nmedian", "roofline_median", "{:.1%}"),
            Column("roofline:\nlargest", "roofline_largest", "{:.0%}"),
            Column("sign right", "sign_right", "{:.0%}"),
        ),
        results.about["by_kind"],
    )
    for why, rows in grouped([r for r in results.rows if r["cause"]], lambda row: row["cause"]).items():
        yield f"{len(rows)} cells: {why}"
    for row in results.rows:
        if row["kind"] == "C":
            yield row["note"]
    served = sum(row["kind"].startswith("serving") for row in results.rows)
    left = results.about["published"] - results.about["cells"] + served
    yield f"{left} figures say too little (GPU, tensor parallelism, acceptance), or no table is of their GPU"


def _shown(name: str) -> Any:
    return lambda row: row[name] * (1e3 if row["kind"] in STEPS else 1.0)


STUDY = Study(
    name="gpu-oracle",
    question="What do forwards composed from kernel times make of every published number of a GPU?",
    plan=OraclePlan,
    answer=answer,
    about=about,
    show=show,
    examples=("--tables DIR", "--json"),
)
