"""Which policy is fastest on equal GPUs, by pair, GPU, batch, context and acceptance: is SSD worth a GPU of
its own?

A group of SSD or PEARL is t GPUs of the target and one of the draft; AR and SD take the target's alone. On t
(t + 1) GPUs each of them leaves none idle: t groups of one kind stand against t + 1 of the other. `batch`
counts requests per group of the first kind, so that a cell serves t times as many.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from analysis.execute import Bench
from analysis.recommend.given import given_sources
from analysis.recommend.search import SettingSearch, Tried
from analysis.results import Results, Row
from analysis.show import Column, table
from analysis.stats import grouped
from analysis.study import Picture, Plan, Study, option
from hardware_profiles.kernels import TablesError
from hardware_profiles.pairs import Pair, pair_profile
from hardware_profiles.profile import Profile
from policies.commandline import about, split_counts, split_numbers
from policies.registry import Settings, configure, find_policy

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
        (0.3, 0.5, 0.7, 0.8, 0.9), "Of drafted tokens.", callback=split_numbers
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
    return {
        "devices": devices,
        "winner": winner.settings.policy,
        "setting": winner.settings.label,
        "speedup_vs_ar": winner.tokens_per_second / plain,
        **{f"{name}_vs_ar": speed for name, speed in speeds.items() if name != "ar"},
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


def envelope(rows: Sequence[Row]) -> list[tuple[str, float]]:
    """(policy, acceptance from which it is the fastest), by acceptance, of the rows of one place.

    Between two acceptances the logarithm of every policy's speed is taken to be a straight line.
    """
    rows = sorted(rows, key=lambda row: row["acceptance"])
    if not rows:
        return []
    found = [(rows[0]["winner"], rows[0]["acceptance"])]
    for low, high in pairwise(rows):
        at, end = low["acceptance"], high["acceptance"]
        while (now := found[-1][0]) != high["winner"]:
            # The first line that crosses the winner's from below, after where the winner was left.
            crossings = [
                (crossing, name)
                for name in POLICIES
                if (crossing := _crossing(low, high, now, name)) is not None and crossing >= at - 1e-9
            ]
            at, name = min(crossings, default=(end, high["winner"]))
            found.append((name, at))
    return found


def _crossing(low: Row, high: Row, now: str, other: str) -> float | None:
    """Acceptance between two rows from which on one policy is faster than another; None: nowhere."""
    before, after = (speed(row, other) - speed(row, now) for row in (low, high))
    if not before <= 0.0 < after or not math.isfinite(before):
        return None if not before <= 0.0 < after else float(high["acceptance"])
    share = before / (before - after)
    return float(low["acceptance"] + share * (high["acceptance"] - low["acceptance"]))


def speed(row: Row, policy: str) -> float:
    """Logarithm of a policy's speed over AR; minus infinity where it does not run."""
    value = 1.0 if policy == "ar" else row[f"{policy}_vs_ar"]
    return math.log(value) if value else -math.inf


def ssd_gain(row: Row) -> float:
    """Logarithm of SSD's speed over the best of AR and SD on as many GPUs."""
    return speed(row, "saguaro") - max(speed(row, "ar"), speed(row, "sd"))


def worth(rows: Sequence[Row]) -> list[Row]:
    """Per GPU, pair, context and batch: between which acceptances SSD with a GPU of its own beats the best of
    AR and SD on as many GPUs (None: at none that was tried), and its gain at each acceptance.
    """
    found = []
    for (gpu, pair, context, batch), here in grouped(rows, place_of).items():
        mine = sorted(here, key=lambda row: row["acceptance"])
        gains = [ssd_gain(row) for row in mine]
        inside = [row["acceptance"] for row, gain in zip(mine, gains, strict=True) if gain > 0.0]
        for (low, before), (high, after) in pairwise(zip(mine, gains, strict=True)):
            if (before > 0.0) != (after > 0.0) and math.isfinite(before) and math.isfinite(after):
                share = before / (before - after)
                inside.append(low["acceptance"] + share * (high["acceptance"] - low["acceptance"]))
        found.append(
            {
                "gpu": gpu,
                "pair": pair,
                "context": context,
                "batch": batch,
                "pays": (min(inside), max(inside)) if inside else None,
                "gains": {
                    f"{row['acceptance']:g}": math.expm1(gain) for row, gain in zip(mine, gains, strict=True)
                },
            }
        )
    return found


def place_of(row: Row) -> tuple[str, str, int, int]:
    """GPU, pair, context and batch."""
    return row["gpu"], row["pair"], row["context"], row["batch"]


def about_map(results: Results) -> Row:
    """Where the winner changes, and what a GPU for the draft is worth."""
    places = grouped(results.rows, place_of)
    return {
        "flips": [
            {"gpu": gpu, "pair": pair, "context": context, "batch": batch, "fastest_from": envelope(mine)}
            for (gpu, pair, context, batch), mine in places.items()
        ],
        "worth": worth(results.rows),
    }


def show(results: Results) -> Iterator[Any]:
    """The winners by acceptance, a line per GPU, pair and batch; then what a GPU is worth."""
    contexts = sorted({row["context"] for row in results.rows})
    lines = grouped(results.about["flips"], lambda row: (row["gpu"], row["pair"], row["batch"]))
    yield table(
        "Fastest on equal GPUs, and the acceptance from which on, by context",
        (Column("", "place"), *(Column(f"{context}", f"{context}") for context in contexts)),
        [
            {
                "place": f"{gpu}, {pair}, batch {batch}",
                **{f"{row['context']}": in_words(row["fastest_from"]) for row in mine},
            }
            for (gpu, pair, batch), mine in lines.items()
        ],
    )
    for context in contexts:
        here = [row for row in results.about["worth"] if row["context"] == context]
        batches = sorted({row["batch"] for row in here})
        yield table(
            f"Is SSD worth a GPU of its own for the draft, at context {context}? The acceptances at which it "
            "beats AR and SD on as many GPUs, and its largest gain",
            (Column("GPU and pair", "place"), *(Column(f"batch {batch}", f"{batch}") for batch in batches)),
            [
                {"place": f"{gpu}, {pair}", **{f"{row['batch']}": _worth(row) for row in mine}}
                for (gpu, pair), mine in grouped(here, lambda row: (row["gpu"], row["pair"])).items()
            ],
        )
    for name, why in results.asked.get("refused", {}).items():
        yield f"{name}: {why}"


def in_words(fastest_from: Sequence[tuple[str, float]]) -> str:
    """`ar, sd 0.43, saguaro 0.81`: each from its acceptance on."""
    (first, _), *others = fastest_from
    return ", ".join([first, *(f"{policy} {at:.2f}" for policy, at in others)])


def _worth(row: Row) -> str:
    if row["pays"] is None:
        return "no"
    low, high = row["pays"]
    return f"{low:.2f}-{high:.2f}: {max(row['gains'].values()):+.0%}"


def pictures(results: Results) -> Mapping[str, Picture]:
    """The winner over batch and acceptance: a panel per GPU and pair, a bar per batch and context."""

    def draw(figure: Any) -> None:
        from matplotlib.patches import Patch

        rows = results.rows
        gpus, pairs = (
            list(dict.fromkeys(r["gpu"] for r in rows)),
            list(dict.fromkeys(r["pair"] for r in rows)),
        )
        batches, contexts = sorted({r["batch"] for r in rows}), sorted({r["context"] for r in rows})
        top = max(r["acceptance"] for r in rows)
        panels = figure.subplots(len(gpus), len(pairs), sharex=True, sharey=True, squeeze=False)
        width = 0.86 / len(contexts)
        for place in results.about["flips"]:
            axes = panels[gpus.index(place["gpu"])][pairs.index(place["pair"])]
            at = (
                batches.index(place["batch"])
                + (contexts.index(place["context"]) - (len(contexts) - 1) / 2) * width
            )
            ends = [low for _, low in place["fastest_from"][1:]] + [top]
            for (policy, low), high in zip(place["fastest_from"], ends, strict=True):
                axes.bar(at, high - low, width * 0.92, bottom=low, color=find_policy(policy).colour)
        for row, gpu in zip(panels, gpus, strict=True):
            row[0].set_ylabel(f"{gpu}\nacceptance", fontsize=8)
            for axes in row:
                axes.set_xticks(range(len(batches)), [str(batch) for batch in batches], fontsize=7)
        for axes, pair in zip(panels[0], pairs, strict=True):
            axes.set_title(pair, fontsize=9)
        for axes in panels[-1]:
            axes.set_xlabel("batch", fontsize=8)
        patches = [Patch(color=find_policy(name).colour, label=name) for name in POLICIES]
        said = ", ".join(map(str, contexts))
        figure.legend(
            handles=patches,
            loc="outside lower center",
            ncols=len(patches),
            fontsize=8,
            frameon=False,
            title=f"bars of a batch: contexts {said}",
            title_fontsize=8,
        )

    return {"": Picture(draw, (13.0, 8.0))}


STUDY = Study(
    name="gpu-map",
    question="Which policy wins on equal GPUs, and is SSD worth a GPU of its own for the draft?",
    plan=MapPlan,
    answer=answer,
    about=about_map,
    show=show,
    pictures=pictures,
    examples=("--tables DIR --plot", "--hw h100 --pairs 8b+1b,70b+1b --acceptances 0.8 --out map"),
)
