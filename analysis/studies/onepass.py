"""Does SSD's speculation cache pay beside one-pass block drafts and EAGLE heads, and per GPU?

Three drafts of one target: a model of its own, an EAGLE-3 head, a DFlash block in one pass, each alone on the
target's GPUs, and with SSD's cache on one GPU more.  Forwards are composed of measured kernels; acceptances
are those that others published, of the targets that they had, or one for all (`--acceptance`).  A head gets
the target's states of the round under way too late for the cache: what then is left of its acceptance
(`--ahead`) nobody has published.  The law takes the first token's acceptance for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from analysis.execute import Bench
from analysis.results import Results, Row
from analysis.show import Column, finish, table
from analysis.stats import grouped
from analysis.study import Picture, Plan, Study, option
from hardware_profiles.pairs import Pair, pair_profile
from hardware_profiles.profile import Profile
from hardware_profiles.store import find_acceptance
from policies.commandline import about, split_counts
from policies.registry import configure
from simulator.law import law_inputs, law_prediction
from simulator.run import Scenario, Simulated, simulate
from simulator.tokens import mixed
from simulator.tokens.acceptance import load_acceptance

PAIRS = {"70b": ("llama-3.1-70b", 4), "8b": ("llama-3.1-8b", 1)}
"""Targets and their GPUs."""


class DraftKind(NamedTuple):
    """A way to draft.

    Attributes:
        network: Its name, with `{}` for the target's.
        acceptance: Shipped file with a published one.
        alone: Policy without a cache, which takes turns on the target's GPUs.
        cached: Policy with SSD's cache, and its knobs.
        late: Whether it reads the target's states.
    """

    network: str
    acceptance: str
    alone: str
    cached: tuple[str, Mapping[str, Any]]
    late: bool


DRAFTS = {
    "model": DraftKind("llama-3.2-1b", "llama-3.1-70b+llama-3.2-1b", "sd", ("saguaro", {}), False),
    "eagle3": DraftKind(
        "eagle3:{}", "llama-3.1-8b-eagle3-mt-bench", "sd", ("saguaro-block", {"passes": "each"}), True
    ),
    "dflash": DraftKind("dflash:{}", "dflash-k7", "block", ("saguaro-block", {}), True),
}
CURVE = (1.0, 0.36)
"""Exponent and scale of the hit curve, for every draft: of the one published log of SSD's engine."""
FANOUTS = (1, 3)
TOKENS, PROMPT = 192, 512


@dataclass(frozen=True)
class OnePassPlan(Plan):
    """Which cells."""

    hw: tuple[str, ...] = option(("h100",), "GPUs with kernel tables.")
    batch: tuple[int, ...] = option((1, 4, 16, 64), "Requests per group; a list.", callback=split_counts)
    pairs: tuple[str, ...] = option(tuple(PAIRS), "Targets.", names=tuple(PAIRS))
    lookahead: tuple[int, ...] = option((2, 4, 7), "K, of which the fastest is shown.", callback=split_counts)
    acceptance: float | None = option(
        None, "Of every drafted token of every draft.  [default: as published]", type=click.FloatRange(0, 1)
    )
    ahead: float = option(
        0.9, "Share of a head's acceptance that is left in the cache.", type=click.FloatRange(0, 1)
    )
    tables: Path | None = field(
        default=None,
        metadata=about("Unpacked wheel.  [default: the installed package]", type=click.Path(path_type=Path)),
    )


def answer(bench: Bench) -> list[Row]:
    """A row per target, batch and draft on one GPU."""
    plan = bench.plan_as(OnePassPlan)
    rows: list[Row] = []
    cells = list(product(plan.pairs, plan.batch, DRAFTS))
    for done, (name, batch, draft) in enumerate(cells):
        at = {"gpu": bench.hw, "pair": name, "batch": batch, "draft": draft}
        rows.append({**at, **cell(plan, bench.hw, name, draft, batch)})
        bench.progress(f"cells on {bench.hw}", done + 1, len(cells))
    return rows


def cell(plan: OnePassPlan, hw: str, name: str, draft: str, batch: int) -> Row:
    """The fastest setting of a draft alone and with the cache, over plain decoding on the target's GPUs."""
    (target, gpus), kind = PAIRS[name], DRAFTS[draft]
    pair = Pair(hw=hw, target=target, draft=kind.network.format(target), tp=gpus, tables=plan.tables)
    profiles = [pair_profile(replace(pair, draft_tp=spread))[0] for spread in sorted({1, gpus})]
    if plan.acceptance is None:
        accepted = tuple(load_acceptance(find_acceptance(kind.acceptance)).acceptance_at_position)
    else:
        accepted = (plan.acceptance,)
    worlds = [scenario(profile, accepted, batch) for profile in profiles]
    plain = simulate(worlds[0], configure("ar")).summary.tokens_per_second
    alone = best((each, configure(kind.alone, lookahead=k)) for each in worlds for k in plan.lookahead)
    policy, knobs = kind.cached
    wide: list[dict[str, Any]] = [{"outcomes": f} if kind.late else {"fanout": (f,)} for f in FANOUTS]
    settings = [configure(policy, lookahead=k, **knobs, **own) for k in plan.lookahead for own in wide]
    cached = best((worlds[0], each) for each in settings)
    late = (
        best((worlds[0], each.but(ahead_acceptance=plan.ahead)) for each in settings) if kind.late else cached
    )
    speeds = {
        world: found.run.summary.tokens_per_second / plain
        for world, found in {"alone": alone, "cached": cached, "late": late}.items()
    }
    share = gpus / (gpus + 1)
    after_hit, after_miss = accepted_after(late.run)
    return {
        "setting": alone.run.settings.label,
        "cached_setting": cached.run.settings.label,
        **speeds,
        "alone_law": alone.law,
        "cached_law": cached.law,
        "late_law": late.law,
        "cache_hit_rate": late.run.summary.cache_hit_rate,
        "after_hit": after_hit,
        "after_miss": after_miss,
        "gpus": gpus,
        **{f"{name}_per_gpu": share * speeds[name] / speeds["alone"] for name in ("cached", "late")},
    }


def scenario(profile: Profile, accepted: Sequence[float], batch: int) -> Scenario:
    """Coins of an acceptance by position, on a profile."""
    count = max(32, 2 * batch)
    shape = {"requests": count, "length": TOKENS, "prompt_length": PROMPT, "seed": 0}
    tokens = mixed(tuple(accepted), exponent=CURVE[0], scale=CURVE[1], **shape)
    return Scenario(tokens=tokens, profile=profile, batch=batch)


class Found(NamedTuple):
    """The fastest run of several, and the law's speedup of its setting."""

    run: Simulated
    law: float | None


def best(tried: Any) -> Found:
    """The fastest of (scenario, settings)."""
    runs = [(world, simulate(world, settings)) for world, settings in tried]
    world, run = max(runs, key=lambda each: each[1].summary.tokens_per_second)
    law = law_prediction(run.settings, law_inputs(world, run.settings), batch=world.batch)
    return Found(run, law.speedup_vs_ar)


def accepted_after(run: Simulated) -> tuple[float | None, float | None]:
    """Drafted tokens accepted per round after a hit, and after a miss, of the rounds but the first ones."""
    table = run.rows.log.table()
    order = np.argsort(table["request"], kind="stable")
    request, hit, accepted = (table[name][order] for name in ("request", "hit", "accepted"))
    again = request[1:] == request[:-1]
    means = [accepted[1:][again & (hit[:-1] == outcome)] for outcome in (1, 0)]
    return tuple(float(each.mean()) if len(each) else None for each in means)  # type: ignore[return-value]


def show(results: Results) -> Iterator[Any]:
    """A row per target, batch and draft."""
    ahead = results.asked["ahead"]

    def of(*names: str) -> Callable[[Row], str | None]:
        return lambda row: " / ".join("-" if row[n] is None else f"{row[n]:.2f}" for n in names)

    yield table(
        "Speedup over plain decoding on the target's GPUs; with SSD's cache on one GPU more",
        (
            Column("target", "pair"),
            Column("batch", "batch"),
            Column("draft", "draft"),
            Column("alone", "alone", "{:.2f}"),
            Column("cache", "cached", "{:.2f}"),
            Column("late", "late", "{:.2f}"),
            Column("laws", of("alone_law", "cached_law", "late_law")),
            Column("per GPU: cache / late", of("cached_per_gpu", "late_per_gpu")),
            Column("hits", "cache_hit_rate", "{:.0%}"),
            Column("accepted after hit / miss", of("after_hit", "after_miss")),
        ),
        results.rows,
        left=("draft",),
        drop=("hits",),
    )
    yield (
        f"late: with {ahead:g} of a head's acceptance in the cache, as are hits and what is accepted; per "
        "GPU: tokens/s of each GPU over those of the same draft alone: above 1 the cache pays"
    )


def pictures(results: Results) -> dict[str, Picture]:
    """Speedup over the batch, a panel per target: each draft alone, with the cache, with features late."""

    def draw(figure: Any) -> None:
        panels = grouped(results.rows, lambda row: (row["gpu"], row["pair"]))
        for axes, ((gpu, pair), rows) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            for colour, (draft, mine) in enumerate(grouped(rows, lambda row: row["draft"]).items()):
                batches = [row["batch"] for row in mine]
                for world, line in {"alone": "-", "cached": "--", "late": ":"}.items():
                    if world == "late" and not DRAFTS[draft].late:
                        continue
                    said = {"alone": "", "cached": " + cache", "late": " + cache, late"}[world]
                    axes.plot(
                        batches,
                        [row[world] for row in mine],
                        line,
                        color=f"C{colour}",
                        label=f"{draft}{said}",
                    )
            axes.set_title(f"{PAIRS[pair][0]}, {PAIRS[pair][1]} {gpu}", fontsize=9)
            finish(axes, x="batch", y="speedup over plain decoding", powers=batches)

    return {"": Picture(draw)}


STUDY = Study(
    name="onepass",
    question="Does SSD's cache pay beside one-pass block drafts and EAGLE heads, and per GPU?",
    plan=OnePassPlan,
    answer=answer,
    show=show,
    pictures=pictures,
    examples=("--tables DIR --plot", "--pairs 70b --acceptance 0.8 --ahead 0.9 --json"),
)
