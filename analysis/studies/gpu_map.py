"""Which policy is fastest on equal GPUs, by pair, GPU, batch, context and acceptance: is SSD worth a GPU of
its own?

A group of SSD or PEARL is t GPUs of the target and one of the draft; AR and SD take the target's alone. On t
(t + 1) GPUs each of them leaves none idle: t groups of one kind stand against t + 1 of the other. `batch`
counts requests per group of the first kind, so that a cell serves t times as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from analysis.execute import Bench
from analysis.recommend.given import given_sources
from analysis.recommend.search import SettingSearch, Tried
from analysis.results import Results, Row
from analysis.show import Column, table
from analysis.stats import grouped
from analysis.study import Plan, Study, option
from hardware_profiles.kernels import TablesError
from hardware_profiles.pairs import Pair, pair_profile
from hardware_profiles.profile import Profile
from policies.commandline import about, split_counts, split_numbers
from policies.registry import Settings, configure

PAIRS = {
    "8b+1b": ("llama-3.1-8b", "llama-3.2-1b", 1),
    "8b+0.6b": ("qwen3-8b", "qwen3-0.6b", 1),
    "30b-a3b+0.6b": ("qwen3-30b-a3b", "qwen3-0.6b", 2),
    "32b+0.6b": ("qwen3-32b", "qwen3-0.6b", 2),
    "70b+1b": ("llama-3.1-70b", "llama-3.2-1b", 4),
    "70b+8b": ("llama-3.1-70b", "llama-3.1-8b", 4),
}
"""Target, draft and the GPUs that a target is spread over, by name."""
POLICIES = ("ar", "sd", "pearl", "saguaro")
LOOKAHEADS = (2, 4, 7)
FANOUTS = (2, 4)
TOKENS = 32
"""Of each request; the prompt has the context asked for."""


@dataclass(frozen=True)
class MapPlan(Plan):
    """Which cells of the map."""

    hw: tuple[str, ...] = option(("a100", "h100", "b200", "l40s"), "GPUs with kernel tables.")
    batch: tuple[int, ...] = option((1, 4, 16, 64, 256), "Requests per group.", callback=split_counts)
    pairs: tuple[str, ...] = option(tuple(PAIRS), "Of target and draft.", names=tuple(PAIRS))
    contexts: tuple[int, ...] = option((512, 8192, 32_768), "Prompt tokens.", callback=split_counts)
    acceptances: tuple[float, ...] = option(
        (0.6, 0.7, 0.8, 0.9), "Of drafted tokens.", callback=split_numbers
    )
    tables: Path | None = field(
        default=None,
        metadata=about("Unpacked wheel.  [default: the installed package]", type=click.Path(path_type=Path)),
    )


def settings() -> list[Settings]:
    """What is compared in each cell."""
    choices = [configure("ar")]
    for lookahead in LOOKAHEADS:
        choices += [configure(name, lookahead=lookahead) for name in ("sd", "pearl")]
        choices += [configure("saguaro", lookahead=lookahead, fanout=(f,) * (lookahead + 1)) for f in FANOUTS]
    return choices


def cell(own_gpu: Profile, together: Profile, *, batch: int, context: int, acceptance: float) -> Row | None:
    """The fastest setting of each policy at equal GPUs; None where plain decoding does not fit.

    `own_gpu` has the draft on a GPU of its own, `together` spread over the target's, for AR and SD.
    """
    spread = own_gpu.roles.target.tensor_parallel
    devices = spread * (spread + 1)
    searches = {}
    for profile in (own_gpu, together):
        sources = given_sources(profile, "", acceptance, length=TOKENS, prompt_length=context)
        searches[profile.name] = SettingSearch(sources.scenario(0.0), devices, batch * spread)
    tried = []
    for each in settings():
        search = searches[(together if each.policy in ("ar", "sd") else own_gpu).name]
        if (attempt := search.try_out(each, max(6, 2 * batch))) is not None:
            tried.append(attempt)
    best: dict[str, Tried] = {}
    for attempt in sorted(tried, key=lambda each: -each.tokens_per_second):
        best.setdefault(attempt.settings.policy, attempt)
    if "ar" not in best:
        return None
    plain = best["ar"].tokens_per_second
    winner = max(best.values(), key=lambda each: each.tokens_per_second)
    speeds = {name: best[name].tokens_per_second / plain if name in best else None for name in POLICIES}
    collocated = max(best[name].tokens_per_second for name in ("ar", "sd") if name in best)
    own = [best[name].tokens_per_second for name in ("saguaro", "pearl") if name in best]
    return {
        "devices": devices,
        "winner": winner.settings.policy,
        "setting": winner.settings.label,
        "speedup_vs_ar": winner.tokens_per_second / plain,
        **{f"{name}_vs_ar": speed for name, speed in speeds.items() if name != "ar"},
        "own_gpu_gain": max(own) / collocated - 1.0 if own else None,
    }


def answer(bench: Bench) -> list[Row]:
    """Every cell of one GPU."""
    plan = bench.plan_as(MapPlan)
    rows: list[Row] = []
    for done, name in enumerate(plan.pairs):
        target, draft, spread = PAIRS[name]
        try:
            pair = Pair(hw=bench.hw, target=target, draft=draft, tp=spread, tables=plan.tables)
            own_gpu, together = (pair_profile(replace(pair, draft_tp=count))[0] for count in (1, spread))
        except TablesError as error:
            bench.notes.setdefault("refused", {})[f"{bench.hw} {name}"] = str(error)
            continue
        for batch in plan.batch:
            for context in plan.contexts:
                for acceptance in plan.acceptances:
                    row = cell(own_gpu, together, batch=batch, context=context, acceptance=acceptance)
                    at = {"gpu": bench.hw, "pair": name, "batch": batch, "context": context}
                    if row is not None:
                        rows.append({**at, "acceptance": acceptance, **row})
        bench.progress(f"pairs on {bench.hw}", done + 1, len(plan.pairs))
    return rows


def worth(rows: Sequence[Row]) -> list[Row]:
    """Per GPU and pair, how often a GPU for the draft pays, and what it brings where it does and at most."""
    summary = []
    for (gpu, pair), mine in grouped(rows, lambda row: (row["gpu"], row["pair"])).items():
        gains = sorted(row["own_gpu_gain"] for row in mine if row["own_gpu_gain"] is not None)
        won = [gain for gain in gains if gain > 0.0]
        summary.append(
            {
                "gpu": gpu,
                "pair": pair,
                "cells": len(mine),
                "share": len(won) / len(mine),
                "median": won[len(won) // 2] if won else None,
                "largest": gains[-1] if gains else None,
                "batches": sorted({row["batch"] for row in mine if (row["own_gpu_gain"] or 0.0) > 0.0}),
            }
        )
    return summary


def about_map(results: Results) -> Row:
    """The table of what a GPU for the draft is worth."""
    return {"worth": worth(results.rows)}


def show(results: Results) -> Iterator[Any]:
    """The winner by context and acceptance, a line per GPU, pair and batch; then what a GPU is worth."""
    places = sorted({(row["context"], row["acceptance"]) for row in results.rows})
    lines = grouped(results.rows, lambda row: (row["gpu"], row["pair"], row["batch"]))
    rows = []
    for (gpu, pair, batch), mine in lines.items():
        won = {(r["context"], r["acceptance"]): f"{r['winner']} {r['speedup_vs_ar']:.2f}" for r in mine}
        rows.append(
            {"place": f"{gpu}, {pair}, batch {batch}", **{f"{c} {a}": won.get((c, a)) for c, a in places}}
        )
    heads = [Column(f"{c}\n{a:g}", f"{c} {a}") for c, a in places]
    yield table(
        "Fastest on equal GPUs and its speedup over AR, by context and acceptance",
        (Column("", "place"), *heads),
        rows,
    )
    yield table(
        "Is a GPU of its own for the draft (SSD, PEARL) worth it, against AR and SD on as many GPUs?",
        (
            Column("GPU and pair", lambda row: f"{row['gpu']}, {row['pair']}"),
            Column("cells", "cells"),
            Column("it pays in", "share", "{:.0%}"),
            Column("median gain there", "median", "{:+.0%}"),
            Column("largest", "largest", "{:+.0%}"),
            Column("at batches", "batches", lambda batches: ", ".join(map(str, batches)) or "-"),
        ),
        results.about["worth"],
    )
    for name, why in results.asked.get("refused", {}).items():
        yield f"{name}: {why}"


STUDY = Study(
    name="gpu-map",
    question="Which policy wins on equal GPUs, and is SSD worth a GPU of its own for the draft?",
    plan=MapPlan,
    answer=answer,
    about=about_map,
    show=show,
    examples=("--tables DIR", "--hw h100 --pairs 8b+1b,70b+1b --acceptances 0.8 --out map"),
)
