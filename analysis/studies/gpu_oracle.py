"""Forwards and speculation composed from kernel times (`hardware_profiles.composed`) against published
numbers.

`analysis/papers/data/published.csv` holds figures that others printed of real GPUs.  Nothing is fitted to
the cells predicted; two numbers are taken from cells that are not: the host's gap (`HOST_GAP_S`, printed by
SpecDecode-Bench) and what a draft's step takes beyond its forward (`DRAFT_GAPS`).  A round of speculation is

    verify(B, n) + draft phase + gaps,   draft phase of a head: head(B, n) + (K - 1) head(B, topk)
                                         of a model of its own: K forwards of one token

SSD's round is max(verify, head(B, K + 1) + K tree(B F (K + 1))), and a miss drafts K tokens more.  A step of
plain decoding is a forward, with a gap where the engine does not schedule ahead (`GAPS`).
Three sources ran one script on SGLang of late 2025 (`SCRIPT`).  What its steps and rounds on several GPUs
take beyond their kernels is taken from the other two sources, never from the one predicted (`ALIKE`: from all
three); where a run ends with few requests, a share of its tokens is decoded alone, and that share is taken
from the source's other concurrencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from hardware_profiles.networks import Network, find_network
from hardware_profiles.roofline import DEVICES, ENGINES, PRECISIONS, Setting
from policies.commandline import about as about_option

GPUS: Mapping[str, str] = {
    "A100": "a100", "A800": "a800", "H100": "h100", "H200": "h200", "Hopper": "h100", "L40S": "l40s",
    "RTX PRO 6000": "rtxpro6000", "not stated (H200": "h200", "not stated (A100": "a100",
    "not stated (H100": "h100",
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
LAUNCHES: Mapping[str, float] = {"qwen3": 60 / 44}
"""Kernels that a layer launches in transformers, over Llama's 44: a norm is eight, and Qwen3 has two more."""
BLOCK_LAYERS = 5
"""Of DFlash's published drafts, which draft a block in one pass."""
SCRIPT: Mapping[str, int | None] = {
    "sgl-project/SpecForge spec_bundle": None,
    "sgl-project/SpecForge issue #339": 20,
    "Tencent/AngelSlim issue #163": None,
}
"""Sources that ran SpecForge's `bench_eagle3.py`, and a run's questions, where they are said to be few."""
ALIKE = ("sgl-project/sglang PR #4716", "sgl-project/SpecForge issue #164")
"""Further sources of SGLang of 2025 on several GPUs: they have the host time of `SCRIPT`'s."""
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
        kind = next((kind for kind in ("eagle3", "dflash") if kind.rstrip("3") in name), None)
        return f"{kind}:{self.model}" if kind else name

    @property
    def group(self) -> tuple[str, str, str, str]:
        """What a speedup and its plain rate have in common; a source's benchmarks stand first in notes."""
        bench = self.row["note"].partition(",")[0] if "spec_bundle" in self.row["source"] else ""
        return self.row["source"], self.model, self.row["batch"], bench

    @property
    def seconds(self) -> float:
        """Printed seconds of a step, or of a token of each row."""
        value = float(self.row["value"])
        if "per_s" not in self.row["metric"]:
            return 1e-3 * value
        return (1 if "per_request" in self.row["metric"] else self.count("batch")) / value

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
    """What the tables and the roofline say of published cells.

    Attributes:
        correlation: Of the experts of one row's tokens, see `Composer`.
    """

    systems: Path
    cells: tuple[Cell, ...]
    correlation: float = 0.0
    _tables: dict[tuple[str, str], Tables] = field(default_factory=dict)

    @cached_property
    def correlated(self) -> Oracle:
        """The same where all tokens of a row go to the same experts."""
        return replace(self, correlation=1.0)

    @cached_property
    def plain(self) -> dict[tuple[str, str, str, str], Cell]:
        """Plain decoding by what it is the baseline of."""
        plain = [cell for cell in self.cells if cell.kind in ("plain", "forward") and cell.row["K"] == "0"]
        return {cell.group: cell for cell in plain}

    def baseline(self, cell: Cell) -> Cell:
        """What a speedup is over: plain decoding, or the row that the source itself compares with.

        Raises:
            KeyError: The source has none.
        """
        if not (against := cell.row["against"]):
            return self.plain[cell.group]
        named = [other for other in self.cells if other.row["source"] == cell.row["source"]]
        return {other.row["value"]: other for other in named}[against]

    def composer(self, cell: Cell, name: str, tensor_parallel: int) -> Composer:
        """A network on the cell's GPUs.

        Raises:
            ValueError: No table is of it.
        """
        key = (str(cell.gpu), KERNELS.get(cell.row["engine"], "vllm"))
        if key not in self._tables:
            self._tables[key] = Tables(self.systems, *key)
        kind, _, target = name.rpartition(":")
        network = find_network(target if kind == "dflash" else name, tables=self.systems)
        if kind == "dflash":
            network = Network(replace(network.shape, layers=BLOCK_LAYERS))
        eager = cell.row["graph"] == "0"
        return Composer(
            self._tables[key], network, tensor_parallel, eager=eager, correlation=self.correlation
        )

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
            experts = kind == "speedup" and self.composer(cell, cell.model, 1).network.experts
            correlated = self.correlated._speedup_cell(cell)[1] if experts else None
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
            "correlated_experts": correlated,
            "roofline": roofline,
            "roofline_error": None if roofline is None else roofline / printed - 1.0,
            "cause": cause(cell, abs(composed / printed - 1.0)),
        }

    def _at(self, cell: Cell, new: int) -> tuple[int, int, int]:
        return cell.count("batch"), new, cell.count("context", CONTEXT)

    def _step_cell(self, cell: Cell) -> tuple[float, float, float | None]:
        composed, roofline = self._token(cell) if cell.kind == "plain" else self._kernels(cell)
        return cell.seconds, composed, roofline

    def _speedup_cell(self, cell: Cell) -> tuple[float, float, float | None]:
        before = self.baseline(cell)
        plain, spent = (self._token(each) for each in (before, cell))
        roofline = plain[1] / spent[1] if plain[1] and spent[1] else None
        return before.seconds / cell.seconds, plain[0] / spent[0], roofline

    def _token(self, cell: Cell) -> tuple[float, float | None]:
        """Seconds of a token of each row, host time included; the roofline's was fitted to whole steps."""
        accepted = float(cell.row["accept_length"] or 1.0)
        if cell.row["fanout"]:
            return self._overlapped(cell) / accepted, None
        composed, roofline = self._kernels(cell)
        host, rows = self._host_s(cell, self._gaps(cell)), cell.count("batch")
        seconds = (composed + host) / accepted
        if cell.row["source"] in SCRIPT and rows > 1:
            share, each = self._alone(cell), (self._kernels(cell, 1)[0] + host) / accepted
            seconds = share * rows * each + (1.0 - share) * rows / self._rows(cell) * seconds
        return seconds, None if roofline is None else roofline / accepted

    def _overlapped(self, cell: Cell) -> float:
        """Seconds of a round of SSD, whose misses are drafted by the primary after the verification."""
        rows, new, drafted = cell.count("batch"), cell.count("tokens_per_row"), cell.count("K")
        branches, cached = cell.count("fanout") * new, cell.count("context", CONTEXT)
        target = self.composer(cell, cell.model, cell.count("tp"))
        draft = self.composer(cell, cell.draft, 1)
        gap = DRAFT_GAPS[cell.row["engine"]]
        ahead = draft.forward(rows, new, cached).seconds + gap
        ahead += drafted * (draft.forward(rows, branches, cached).seconds + gap)
        again = drafted * (draft.forward(rows, 1, cached).seconds + gap)
        verified = target.forward(rows, new, cached).seconds + HOST_GAP_S
        return max(verified, ahead) + (1.0 - float(cell.row["hit_rate"])) * again

    def _rows(self, cell: Cell) -> int:
        """Rows of a step: no more than a run has questions."""
        return min(cell.count("batch"), SCRIPT.get(cell.row["source"]) or cell.count("batch"))

    def _kernels(self, cell: Cell, rows: int | None = None) -> tuple[float, float | None]:
        """Seconds of a step, or of a round of speculation, in kernels; and by the roofline."""
        new, drafted, head = cell.count("tokens_per_row"), cell.count("K", 0), ":" in cell.draft
        calls = [(self.composer(cell, cell.model, cell.count("tp")), new)]
        if cell.kind == "speedup":
            draft = self.composer(cell, cell.draft, cell.count("tp") if head else 1)
            calls.append((draft, new if head else 1))
            if not cell.draft.startswith("dflash:"):
                calls += [(draft, cell.count("topk") if head else 1)] * (drafted - 1)
        at = [(rows or self._rows(cell), width, cell.count("context", CONTEXT)) for _, width in calls]
        steps = [self.step(composer, where) for (composer, _), where in zip(calls, at, strict=True)]
        known = [step[1] for step in steps if step[1] is not None]
        return sum(step[0] for step in steps), sum(known) if len(known) == len(steps) else None

    def _gaps(self, cell: Cell) -> float:
        """Host time of a step or a round where nobody prints another one."""
        if cell.kind != "speedup":
            return GAPS.get(cell.row["engine"], HOST_GAP_S) if cell.kind == "plain" else 0.0
        return HOST_GAP_S + cell.count("K") * DRAFT_GAPS.get(cell.row["engine"], 0.0)

    def _host_s(self, cell: Cell, usual: float) -> float:
        """Host time of a step or a round: of `SCRIPT` on several GPUs, whose processes agree on every step,
        what the *other* sources' single requests take beyond their kernels, the median by tensor
        parallelism, on a line over its logarithm.
        """
        if cell.row["source"] not in (*SCRIPT, *ALIKE) or cell.row["tp"] == "1":
            return usual
        beyond: dict[int, list[float]] = {}
        for kind, source, spread, seconds in self._beyond:
            if (kind == cell.kind) and source != cell.row["source"]:
                beyond.setdefault(spread, []).append(seconds)
        if not beyond:
            return usual
        at, median = np.log2(list(beyond)), [float(np.median(found)) for found in beyond.values()]
        line = np.polyfit(at, median, 1) if len(beyond) > 1 else np.array([0.0, median[0]])
        return max(0.0, float(np.polyval(line, np.log2(cell.count("tp")))))

    @cached_property
    def _beyond(self) -> list[tuple[str, str, int, float]]:
        """(kind, source, tensor parallelism, seconds beyond the kernels) of `SCRIPT`'s single requests."""
        found = []
        for cell in self.cells:
            if (
                cell.row["source"] in SCRIPT
                and cell.kind in ("plain", "speedup")
                and cell.row["batch"] == "1"
            ):
                round_s = cell.seconds * float(cell.row["accept_length"] or 1.0)
                beyond = round_s - self._kernels(cell)[0]
                found.append((str(cell.kind), cell.row["source"], cell.count("tp"), beyond))
        return found

    def _alone(self, cell: Cell) -> float:
        """Share of a run's tokens that its last answers take alone: what the plain runs of the source's
        *other* concurrencies show, in the median.
        """
        shares = []
        for other in self.plain.values():
            rows = other.count("batch")
            if other.row["source"] != cell.row["source"] or rows in (1, cell.count("batch")):
                continue
            host = self._host_s(other, 0.0)
            alone, full = (self._kernels(other, each)[0] + host for each in (1, None))
            full /= self._rows(other)
            shares.append((other.seconds / rows - full) / (alone - full))
        return float(np.clip(np.median(shares), 0.0, 1.0)) if shares else 0.0

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
            launched = layer_s
            if layer_s == ENGINES["transformers"].layer_s:
                launched *= next((more for kind, more in LAUNCHES.items() if kind in name), 1.0)
            seconds.append(max(kernels, launched * composer.network.shape.layers))
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
_EAGLE3 = "steps of EAGLE-3 took longer than EAGLE's there: why is not known"
_LAST = "whole runs: their last, longest answers are decoded alone, and others in each run"
CAUSES: Mapping[str, str] = {
    "vllm-project/vllm issue #20780": _EAGLE3,
    "vllm-project/vllm PR #16937": _EAGLE3,
    "vllm-project/vllm dynamic-spec": "model and GPU are not stated; host time of drafts hides in wide steps",
    "vllm-project/vllm PR #24343": "an A100 of 40 GB has three quarters of the bandwidth that was timed",
    "sgl-project/SpecForge issue #339": _LAST,
    "sgl-project/SpecForge issue #164": f"{_EXPERTS}; expert parallel",
    "Tencent/AngelSlim": _LAST,
    "sgl-project/sglang issue #29244": "rounded rates and acceptance; its drafts' layers are not stated",
    "sgl-project/sglang PR #4247": "the tree is not stated; eager draft steps beyond their layers' launches",
    "sgl-project/sglang PR #22520": "the GPU is not stated; requests end, and the batch with them",
    "SafeAILab/EAGLE": _EXPERTS,
    "mirage-project/mirage": "engines of 2025, expert kernels of 2026; the GPU is not stated",
    "NVIDIA/TensorRT-LLM PR": "whole runs, prefill included",
    "sgl-project/SpecForge spec_bundle": "the GPU is not stated; trees of topk > 1 gather on the host",
    "SSD (Saguaro)": "sampled, and 18 % slower than the same engine's greedy log; why is not said",
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
                "sign_right": signs(mine) if kind.startswith("speedup") else None,
            }
        )
    return found


OVERALL: Mapping[str, tuple[str, ...]] = {
    "forwards and verifications": ("forward", "verify", "prefill"),
    "plain rates": ("plain",),
    "speedups": ("speedup",),
}
"""Kinds that are said together, captured or not."""


def overall(rows: Sequence[Row]) -> list[Row]:
    """The summary of each of `OVERALL`, and for experts that a row's tokens share (`Oracle.correlated`)."""
    found = []
    for name, kinds in OVERALL.items():
        mine = [{**row, "kind": name, "captured": ""} for row in rows if row["kind"] in kinds]
        found += summary(mine)
    shared = [{**row, "composed": row["correlated_experts"]} for row in rows if row.get("correlated_experts")]
    if shared:
        for name, mine in (
            ("speedups of MoE", [r for r in rows if r.get("correlated_experts")]),
            ("the same, experts shared by a row's tokens", shared),
        ):
            kept = [
                {**row, "kind": name, "captured": "", "error": row["composed"] / row["printed"] - 1.0}
                for row in mine
            ]
            found += [{**each, "sign_right": signs(kept)} for each in summary(kept)]
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
        "by_kind": summary(rows) + overall(rows),
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
