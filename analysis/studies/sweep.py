"""Which policy wins over batch, acceptance, context and cost ratio: tens of thousands of settings in a table.

Every row is what `simulate` says of one setting (`simulator.sweep`).  Traffic is coins at the acceptances and
contexts asked for, or what is recorded beside the profiles, at their temperatures.  With coins three planes
are swept through one point, `CENTRE`: batch x acceptance, batch x context, cost ratio x acceptance.

A map compares equal devices under equal load.  A group of SSD or PEARL takes g devices where plain decoding
and SD take t, so that against B rows of the former stand B t / g of the latter: tokens per second and device,
on a line between the two neighbouring whole batches, which is what groups of unequal batches make together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from analysis.execute import Bench
from analysis.recommend.search import recorded_settings
from analysis.results import Results, Row
from analysis.show import Column, table
from analysis.sources import load_sources
from analysis.stats import grouped
from analysis.study import Picture, Plan, Study, option
from hardware_profiles.profile import Profile, load_profile
from hardware_profiles.store import find_profile
from policies.commandline import about, split_counts, split_numbers
from policies.registry import SettingError, configure, find_policy
from simulator.auto import SettingsQuery, settings_query
from simulator.fanout import Shape
from simulator.needs import count_devices
from simulator.request import SimulationRequest
from simulator.sweep import Sweeper, kept_in_parts, row_schema

PROFILES = (
    "h100x1-llama-3.1-8b+llama-3.2-1b",
    "h100x4-llama-3.1-70b+llama-3.2-1b",
    "h100x2-qwen3-32b+qwen3-0.6b",
    "a100x1-llama-3.1-8b+llama-3.2-1b",
    "l40sx1-llama-3.1-8b+llama-3.2-1b",
    "cpu2-x5-wide",
)
CENTRE: Mapping[str, float] = {"batch": 1, "prompt_length": 512, "acceptance": 0.8, "draft_factor": 1.0}
"""Where the planes cross, or the nearest that is asked for."""
PLANES = {
    "batch-acceptance": ("batch", "acceptance"),
    "batch-context": ("batch", "prompt_length"),
    "ratio-acceptance": ("draft_factor", "acceptance"),
}
TOKENS = 48
"""Of each reply that is made up."""
REQUESTS = (32, 3)
"""Least requests of a made-up text, and per row."""
READ = (
    "setting", "policy", "hw", "placement", "temperature", "batch", "acceptance", "prompt_length",
    "draft_factor", "devices", "cost_ratio", "tokens_per_second", "speedup_vs_ar", "speedup_vs_ar_per_device",
    "engine", "refused",
)  # fmt: skip
"""Columns that maps are drawn from."""
CHUNK = 200
"""Settings that are kept, and handed to a process, together."""


Placement: TypeAlias = Literal["split", "shared"] | None


@dataclass(frozen=True)
class SweepPlan(Plan):
    """Axes of a sweep."""

    hw: tuple[str, ...] = option(PROFILES, "Profiles.")
    batch: tuple[int, ...] = option((1, 4, 16, 64, 256), "Rows; a list.", callback=split_counts)
    acceptances: tuple[float, ...] = option(
        (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95), "Of drafted tokens, of coins.", callback=split_numbers
    )
    recorded: bool = option(
        False, "What is recorded beside the profiles in place of coins, at --temperature."
    )
    contexts: tuple[int, ...] = option(
        (128, 512, 2048, 8192, 32_768), "Prompt tokens, of coins.", callback=split_counts
    )
    draft_factors: tuple[float, ...] = option(
        (0.25, 0.5, 1.0, 2.0, 4.0), "On the draft's forwards: other cost ratios.", callback=split_numbers
    )
    placements: tuple[str, ...] = option(
        (), "Other than the profile's: split, shared.", names=("split", "shared")
    )
    policies: tuple[str, ...] = option(("ar", "sd", "pearl", "saguaro"), "Policies.")
    lookaheads: tuple[int, ...] = option((1, 2, 3, 5, 8, 12), "K.", callback=split_counts)
    shapes: tuple[str, ...] = option(("exact",), "Of fan-outs.", names=("uniform", "geometric", "exact"))
    guesses: tuple[int, ...] = option((1, 3), "Budgets of fan-outs, per position.", callback=split_counts)
    backups: tuple[str, ...] = option(("primary", "plain"), "Of saguaro.")
    draft_devices: tuple[int, ...] = option((1,), "Of saguaro.", callback=split_counts)
    jobs: int = field(
        default=1, metadata=about("Processes, or workers of joblib's backend; -1: all of them.", type=int)
    )


def queries(plan: SweepPlan, temperature: float, *, decided: bool = False) -> list[SettingsQuery]:
    """What is tried in each place; `decided`: policies whose settings recordings name have none here."""
    found: list[SettingsQuery] = []
    for policy in plan.policies:
        info = find_policy(policy)
        same: Row = {"temperature": temperature, "seed": plan.seed}
        depths: Sequence[int | None] = plan.lookaheads if "lookahead" in info.knobs else (None,)
        if info.name == "saguaro":
            found += [
                settings_query(
                    policy, depth, shape, guess * (depth + 1), backup=backup, draft_devices=count, **same
                )
                for depth, shape, guess, backup, count in product(
                    plan.lookaheads,
                    cast("tuple[Shape, ...]", plan.shapes),
                    plan.guesses,
                    plan.backups,
                    plan.draft_devices,
                )
            ]
        elif not (decided and info.needs_decisions):
            found += [settings_query(policy, depth, **same) for depth in depths]
    return found


@dataclass(frozen=True)
class Chunk:
    """Settings that are worked on together.

    Attributes:
        text: What they have in common that is laid out.
        requests: The settings, each where and on what it runs.
    """

    text: Hashable
    requests: tuple[SimulationRequest, ...]


def chunks(plan: SweepPlan) -> list[Chunk]:
    """The whole sweep: by text, so that its layouts are shared by settings, profiles and cost ratios."""
    places = recordings(plan) if plan.recorded else coins(plan)
    found = []
    for text, requests in grouped(
        places, lambda each: (each.acceptance, each.prompt_length, each.batch)
    ).items():
        different = list(dict.fromkeys(requests))
        found += [Chunk(text, tuple(different[at : at + CHUNK])) for at in range(0, len(different), CHUNK)]
    return found


def coins(plan: SweepPlan) -> Iterator[SimulationRequest]:
    """Made-up texts on the planes of the maps."""
    profiles = {hw: load_profile(find_profile(hw)) for hw in plan.hw}
    tried = queries(plan, 0.0)
    for at in cells(plan):
        for query in tried:
            for hw, placement in product(plan.hw, placements(plan)):
                for batch in _batches(query, profiles[hw], placement, int(at["batch"])):
                    yield SimulationRequest(
                        query=query,
                        hw=hw,
                        placement=placement,
                        batch=batch,
                        acceptance=at["acceptance"],
                        prompt_length=int(at["prompt_length"]),
                        draft_factor=at["draft_factor"],
                        requests=max(REQUESTS[0], REQUESTS[1] * batch),
                        max_tokens=TOKENS,
                    )


def recordings(plan: SweepPlan) -> Iterator[SimulationRequest]:
    """What is recorded beside the profiles, and all decisions recorded with it."""
    replayed = {find_policy(name).name for name in plan.policies if find_policy(name).needs_decisions}
    for temperature in plan.temperature:
        tried = queries(plan, temperature, decided=True)
        for hw, placement in product(plan.hw, placements(plan)):
            decided = []
            if replayed:
                sources = load_sources(hw, temperatures=(temperature,), decided=(temperature,))
                known = recorded_settings(sources.scenario(temperature), temperature)
                decided = [SettingsQuery(each) for each in known if each.policy in replayed]
            for query, batch in product([*tried, *decided], plan.batch):
                yield SimulationRequest(
                    query=query,
                    hw=hw,
                    placement=placement,
                    batch=batch,
                    max_tokens=plan.max_tokens,
                )


def placements(plan: SweepPlan) -> tuple[Placement, ...]:
    """The placements asked for; None: the profile's own."""
    return cast("tuple[Placement, ...]", plan.placements) or (None,)


def cells(plan: SweepPlan) -> list[dict[str, float]]:
    """The places of all maps, each once."""
    axes: dict[str, Sequence[float]] = {
        "batch": plan.batch,
        "prompt_length": plan.contexts,
        "acceptance": plan.acceptances,
        "draft_factor": plan.draft_factors,
    }
    middle = centre(axes)
    found = [
        {**middle, first: x, second: y}
        for first, second in PLANES.values()
        for x, y in product(axes[first], axes[second])
    ]
    return [dict(each) for each in dict.fromkeys(tuple(sorted(at.items())) for at in found)]


def centre(axes: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Of each axis the value nearest to `CENTRE`."""
    return {name: min(values, key=lambda value: abs(value - CENTRE[name])) for name, values in axes.items()}


def _batches(query: SettingsQuery, profile: Profile, placement: str | None, batch: int) -> list[int]:
    """The batch, and for policies on fewer devices than PEARL the two next to their share of its load."""
    if placement is not None:
        return [batch]
    mine, theirs = (count_devices(each, profile).total for each in (query.settings, configure("pearl")))
    share = batch * mine / theirs
    return sorted({batch, *(int(each) for each in (np.floor(share), np.ceil(share)) if each >= 1)})


_worker: list[tuple[Hashable, Sweeper]] = []
"""What this process has laid out of the text that it works on."""


def work(chunk: Chunk) -> list[Row]:
    """The rows of a chunk."""
    if not _worker or _worker[0][0] != chunk.text:
        before = _worker[0][1] if _worker else Sweeper()
        _worker[:] = [(chunk.text, before.of_other_texts())]
    return _worker[0][1].rows(chunk.requests)


def answer(bench: Bench) -> list[Row]:
    """The places of the maps, once for all profiles; every setting goes to the table in --out."""
    import pyarrow.parquet as pq

    plan = bench.plan_as(SweepPlan)
    if bench.hw != plan.hw[0]:
        return []
    if unknown := set(plan.backups) - {"primary", "primary-all", "plain", "random", "ngram"}:
        raise SettingError(f"saguaro has no backup {unknown.pop()!r}")
    with TemporaryDirectory() as scratch:
        path = (bench.out or Path(scratch)) / "settings.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        asked = {name: value for name, value in plan.asked.items() if name != "jobs"}
        kept_in_parts(
            work, chunks(plan), row_schema(), path, about=asked, jobs=plan.jobs, progress=bench.progress
        )
        rows = pq.read_table(path, columns=list(READ)).to_pylist()
    bench.notes["settings"] = len(rows)
    bench.notes["refused"] = sum(row["refused"] is not None for row in rows)
    ran = [row for row in rows if row["refused"] is None]
    return list(fastest(ran) if plan.recorded else mapped(ran, plan))


def fastest(rows: Sequence[Row]) -> Iterator[Row]:
    """Of recorded texts: the fastest setting of each policy, by place, per device."""
    names = ("hw", "placement", "temperature", "batch")
    for key, mine in grouped(rows, lambda row: tuple(row[name] for name in names)).items():
        for policy, own in grouped(mine, lambda row: row["policy"]).items():
            best = max(own, key=lambda row: row["speedup_vs_ar_per_device"])
            kept = ("setting", "speedup_vs_ar", "speedup_vs_ar_per_device", "engine")
            yield {**dict(zip(names, key, strict=True)), "policy": policy, "tried": len(own)} | {
                name: best[name] for name in kept
            }


def mapped(rows: Sequence[Row], plan: SweepPlan) -> Iterator[Row]:
    """The winner in every cell of every map."""
    middle = centre(
        {
            "batch": plan.batch,
            "prompt_length": plan.contexts,
            "acceptance": plan.acceptances,
            "draft_factor": plan.draft_factors,
        }
    )
    names = ("hw", "placement", "acceptance", "prompt_length", "draft_factor")
    for key, mine in grouped(rows, lambda row: tuple(row[name] for name in names)).items():
        place = dict(zip(names, key, strict=True))
        by_setting = grouped(mine, lambda row: (row["setting"], row["devices"]))
        most = max(row["devices"] for row in mine)
        for batch in plan.batch:
            at = {**place, "batch": batch}
            maps = [
                name
                for name, axes in PLANES.items()
                if all(at[n] == middle[n] for n in middle if n not in axes)
            ]
            if not maps:
                continue
            speeds = {
                label: speed
                for (label, devices), own in by_setting.items()
                if (speed := per_device(own, batch * devices / most, devices)) is not None
            }
            if "ar" in speeds:
                row = winner(speeds) | {"cost_ratio": mine[0]["cost_ratio"]}
                yield from ({"map": name, **at, **row} for name in maps)


def per_device(rows: Sequence[Row], batch: float, devices: int) -> float | None:
    """Tokens per second and device of a setting at a batch, on a line between whole ones; none at 0 rows."""
    known = {row["batch"]: row["tokens_per_second"] for row in rows} | {0: 0.0}
    low, high = int(np.floor(batch)), int(np.ceil(batch))
    if low not in known or high not in known:
        return None
    return float(known[low] + (batch - low) * (known[high] - known[low])) / devices


def winner(speeds: Mapping[str, float]) -> Row:
    """The fastest of settings by label, beside plain decoding and the fastest of each policy."""
    label = max(speeds, key=lambda each: speeds[each])
    best = grouped(speeds, lambda each: each.split()[0])
    of = {policy: max(speeds[each] for each in mine) / speeds["ar"] for policy, mine in best.items()}
    others = {f"{policy}_vs_ar": speed for policy, speed in of.items() if policy != "ar"}
    return {
        "winner": label.split()[0],
        "setting": label,
        "speedup_vs_ar": speeds[label] / speeds["ar"],
        **others,
    }


# What is shown


def show(results: Results) -> Iterator[Any]:
    """How many settings, and where which policy wins."""
    asked = results.asked
    yield f"{asked['settings']:,} settings, {asked['refused']:,} of them refused"
    if "map" not in results.columns:
        yield table(
            "Fastest setting of each policy",
            (
                Column("setting", "setting"),
                *(Column(name, name) for name in ("hw", "placement", "temperature", "batch", "tried")),
                Column("vs AR", "speedup_vs_ar", "{:.2f}"),
                Column("per device", "speedup_vs_ar_per_device", "{:.2f}"),
            ),
            results.rows,
        )
        return
    counts = []
    policies = sorted({row["winner"] for row in results.rows}, key=lambda name: find_policy(name).order)
    for (name, hw), mine in grouped(results.rows, lambda row: (row["map"], row["hw"])).items():
        share = {p: sum(row["winner"] == p for row in mine) / len(mine) for p in policies}
        counts.append({"place": f"{name}, {hw}", "cells": len(mine), **share})
    columns = (Column("map and profile", "place"), Column("cells", "cells"))
    yield table(
        "Share of the cells in which a policy is fastest on equal devices",
        (*columns, *(Column(p, p, "{:.0%}") for p in policies)),
        counts,
    )


LABELS = {
    "batch": "batch of a group with a draft of its own",
    "acceptance": "acceptance",
    "prompt_length": "prompt tokens",
    "draft_factor": "target step / draft step",
}


def pictures(results: Results) -> dict[str, Picture]:
    """A map per plane, a panel per profile."""
    rows = results.rows if "map" in results.columns else ()
    found = {}
    for name, mine in grouped(rows, lambda row: row["map"]).items():
        count = len({row["hw"] for row in mine})
        tall = -(-count // 3)
        found[f"-{name}"] = Picture(partial(draw, name=name, rows=mine), (11.0, 0.7 + 3.0 * tall))
    return found


def draw(figure: Any, *, name: str, rows: Sequence[Row]) -> None:
    """Cells coloured by the policy that is fastest, with its speedup over plain decoding."""
    from matplotlib.patches import Patch

    x, y = PLANES[name]
    panels = grouped(rows, lambda row: row["hw"])
    axes = figure.subplots(-(-len(panels) // 3), min(3, len(panels)), squeeze=False).ravel()
    for panel, (hw, mine) in zip(axes, panels.items(), strict=False):
        columns, lines = (sorted({row[axis] for row in mine}) for axis in (x, y))
        if x == "draft_factor":
            columns.reverse()  # a cheaper draft is a higher ratio
        for row in mine:
            at = (columns.index(row[x]), lines.index(row[y]))
            shade = 0.35 + 0.65 * min(1.0, max(0.0, row["speedup_vs_ar"] - 1.0) / 2.0)
            colour = find_policy(row["winner"]).colour
            panel.add_patch(_square(at, colour, 0.35 if row["winner"] == "ar" else shade))
            panel.text(*at, f"{row['speedup_vs_ar']:.1f}", ha="center", va="center", fontsize=8)
        ratios = {row[x]: row["cost_ratio"] for row in mine}
        ticks = [f"{ratios[c]:.3g}" if x == "draft_factor" else _short(c) for c in columns]
        panel.set_xticks(range(len(columns)), ticks, fontsize=8)
        panel.set_yticks(range(len(lines)), [_short(value) for value in lines], fontsize=8)
        panel.set_xlim(-0.5, len(columns) - 0.5)
        panel.set_ylim(-0.5, len(lines) - 0.5)
        panel.set_title(hw, fontsize=9)
        panel.set_xlabel(LABELS[x], fontsize=8)
        panel.set_ylabel(LABELS[y], fontsize=8)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    won = sorted({row["winner"] for row in rows}, key=lambda each: find_policy(each).order)
    figure.legend(
        handles=[Patch(color=find_policy(each).colour, label=each) for each in won],
        loc="outside lower center",
        ncols=len(won),
        title="fastest on equal devices; numbers: its speedup over plain decoding",
        frameon=False,
    )


def _square(at: tuple[int, int], colour: str, shade: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((at[0] - 0.5, at[1] - 0.5), 1, 1, facecolor=colour, alpha=shade, edgecolor="white")


def _short(value: float) -> str:
    return f"{value / 1024:g}k" if value >= 1024 else f"{value:g}"


STUDY = Study(
    name="sweep",
    question="Which policy wins, over batch, acceptance, context and cost ratio?",
    plan=SweepPlan,
    answer=answer,
    show=show,
    pictures=pictures,
    examples=(
        "--out sweep --jobs 2",
        "--recorded --hw cpu2-x5 --temperature 0,1 --lookaheads 1-16 --guesses 1-8 --out sweep",
    ),
)
