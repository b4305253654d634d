"""What Mirror-SD's overlap hides and its fallbacks cost, and what a streaming draft is worth to it.

Beside its laws, on coins or on a pair: a grid of windows, candidates and exits (`mirror`); and the variants
of the paper's ablation (Figure 4), draft autoregressive or streaming, overlap on or off, with how many
tokens a pass of the draft writes (`mirror-streams`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from analysis.execute import Bench, with_baselines
from analysis.outcomes import Performance, WorldView
from analysis.results import EVERY, Results, Row, describe, in_world, value_of, where
from analysis.show import (
    BATCH,
    SETTING,
    Column,
    best_world,
    factor,
    frame,
    name_rows,
    opinions,
    parity,
    table,
    used,
    values,
)
from analysis.studies.mirror_account import columns
from analysis.study import Entry, Picture, Plan, Study, option
from policies.laws import mirror as laws
from policies.mirror import ACCEPTANCE, DEFAULT_EXIT, EXITS
from policies.mirror import STREAMS as STREAM_COUNTS
from policies.registry import SettingError, Settings, configure, find_policy
from simulator.costs import TextbookCosts
from simulator.law import law_inputs
from simulator.run import Scenario, simulate
from simulator.tokens import coin


@dataclass(frozen=True)
class CoinsPlan(Plan):
    """A pair, or coins and constant times in place of it."""

    coins: bool = option(False, "Coins and constant times in place of a pair; runs no model.")
    acceptance: float = option(0.8, "Of the draft's tokens; coins.")
    hit_exponent: float = option(1.0, "r: kappa candidates miss kappa^-r; coins.")
    target_time: float = option(1.0, "Seconds of a target step; coins.")
    draft_time: float = option(0.1, "Seconds of a draft step; coins.")

    def settings(self, temperature: float) -> list[Settings]:
        """What is compared at a temperature."""
        raise NotImplementedError

    @property
    def costs(self) -> TextbookCosts:
        """Of the coins' world."""
        return TextbookCosts(self.target_time, self.draft_time)


@dataclass(frozen=True)
class MirrorPlan(CoinsPlan):
    """Grid of lookaheads, candidates and exits; devices that share a model of the coins."""

    devices: int = option(1, "G that share a model; coins.", type=click.IntRange(min=1))
    layers: int = option(64, "N of the target, for its collectives; coins.")
    message: float = option(0.0, "M, words per all-reduce and rank; coins.")
    hop_time: float = option(0.0, "alpha of an all-reduce, seconds; coins.")
    word_time: float = option(0.0, "beta of an all-reduce, seconds; coins.")
    lookahead: tuple[int, ...] = option((3, 5), "List of gamma.")
    kappa: tuple[int, ...] = option((1, 4, 8), "List of candidates per position.")
    exits: tuple[str, ...] = option(tuple(EXITS), "List.")

    def settings(self, temperature: float) -> list[Settings]:
        """The rivals and Mirror-SD: exits and kappas, and its other readings once each."""
        target: Row = {"temperature": temperature, "seed": self.seed}
        middle = DEFAULT_EXIT if DEFAULT_EXIT in self.exits else self.exits[len(self.exits) // 2]
        usual: Row = {"kappa": max(self.kappa), "exit": middle}
        mirrors: list[Row] = [{"kappa": kappa, "exit": exit_} for exit_ in self.exits for kappa in self.kappa]
        mirrors += [usual | {"overlap": "off"}, usual | {"candidates": "first"}]
        mirrors += [usual | {"acceptance_rule": "matching"}] if temperature > 0.0 else []
        settings = [configure("ar", **target)]
        for k in self.lookahead:
            settings += rivals(k, **target)
            settings += [configure("mirror", lookahead=k, **target, **knobs) for knobs in mirrors]
        return settings

    @property
    def costs(self) -> TextbookCosts:
        """Of a target and a draft sharded over G devices, the draft in two segments (the paper's SPD).

        Compute is divided evenly and collectives are added (`mirror.comm`): the target pays two all-reduces
        per layer, the draft two per step, whatever its depth.
        """
        alone = TextbookCosts(self.target_time, self.draft_time)
        if self.devices == 1:
            return alone
        shared = (self.devices, self.hop_time, self.word_time)
        return TextbookCosts(
            alone.target_s / self.devices + laws.target_communication(self.message, self.layers, *shared),
            alone.draft_s / self.devices + laws.draft_communication(self.message, 1, *shared),
        )


@dataclass(frozen=True)
class StreamsPlan(CoinsPlan):
    """Which windows, and how many streams."""

    stream_acceptance: float = option(ACCEPTANCE, "Of proposals; coins.")
    lookahead: tuple[int, ...] = option((3, 5, 7), "List of gamma.")
    kappa: int = option(4, "Candidates per position.")
    streams: str = option("3", "S.", type=click.Choice(STREAM_COUNTS[1:]))

    def settings(self, temperature: float) -> list[Settings]:
        """Plain decoding; then per gamma SD, and Mirror-SD in its four variants."""
        target: Row = {"temperature": temperature, "seed": self.seed}
        streaming: Row = {"streams": self.streams}
        streaming |= {"stream_acceptance": self.stream_acceptance} if self.coins else {}
        settings = [configure("ar", **target)]
        for k in self.lookahead:
            settings.append(configure("sd", lookahead=k, **target))
            settings += [
                configure("mirror", lookahead=k, kappa=self.kappa, overlap=overlap, **draft, **target)
                for overlap in ("off", "on")
                for draft in ({}, streaming)
            ]
        return settings


def rivals(lookahead: int, **target: Any) -> list[Settings]:
    """SD, PEARL and Saguaro."""
    return [
        configure("sd", lookahead=lookahead, **target),
        configure("pearl", lookahead=lookahead, **target),
        configure("saguaro", lookahead=lookahead, fanout=(3,), backup="primary", **target),
    ]


def answer(bench: Bench) -> list[Row]:
    """Every setting at every batch, on coins or on the pair.

    Raises:
        SettingError: Coins are to run live, or the pair's models to be sharded.
    """
    plan = bench.plan_as(CoinsPlan)
    if plan.coins and plan.live:
        raise SettingError("coins have no models to run live: leave out --coins or --live")
    if isinstance(plan, MirrorPlan) and plan.devices > 1 and not plan.coins:
        raise SettingError("no pair here is sharded: --devices is for --coins")
    settings = [each for t in plan.temperature for each in plan.settings(t)]
    entries = [Entry(each, batch) for batch in plan.batch for each in settings]
    return on_coins(plan, entries) if plan.coins else bench.compare(entries)


def on_coins(plan: CoinsPlan, entries: Sequence[Entry]) -> list[Row]:
    """Every setting simulated on coins and constant times, plain decoding first at each batch."""
    tokens = coin(
        plan.acceptance,
        exponent=plan.hit_exponent,
        requests=plan.count or 1,
        length=plan.max_tokens or 1,
        prompt_length=64,
        seed=plan.seed,
    )
    rows: list[Row] = []
    unit = Performance(0.0, 1.0)
    for entry in with_baselines(entries):
        here = Scenario(tokens, textbook=plan.costs, seed=plan.seed, batch=entry.batch)
        own = Performance.simulated([simulate(here, entry.settings, timeline=True)])
        unit = own if entry.settings.policy == "ar" else unit
        inputs = law_inputs(here, entry.settings)
        view = WorldView(entry, "simulated", own, unit, None, inputs, (), here)  # type: ignore[arg-type]  # no recording
        figures = {
            "tokens_per_second": own.speed,
            "speedup_vs_ar": own.speed / unit.speed,
            "tokens_per_round": own.summaries[0].tokens_per_round,
            **columns(view),
        }
        asked = {"profile": "coins", **describe(entry.settings), "batch": entry.batch, "category": EVERY}
        rows.append({**asked, **{f"simulated_{name}": value for name, value in figures.items()}})
    return rows


# Tables and pictures


def worlds_of(results: Results) -> dict[str, list[Row]]:
    """What ran in each world that anything ran in."""
    by_world = {world: in_world(results.where(), world) for world in ("simulated", "measured")}
    return {world: rows for world, rows in by_world.items() if rows}


ACCOUNT = (
    SETTING,
    BATCH,
    Column("step", "step_s", "{:.3g}"),
    Column("by law", "law_step_s", "{:.3g}"),
    Column("as printed", "law_step_printed_s", "{:.3g}"),
    Column("hidden", "hidden_s", "{:.3g}"),
    Column("hidden by law", "law_hidden_s", "{:.3g}"),
    Column("FF", "fallback", "{:.3f}"),
    Column("FF by law", "law_fallback", "{:.3f}"),
    Column("1-Omega", "bound_printed", "{:.3f}"),
    Column("counted", "bound_counted", "{:.3f}"),
)


PASSES = (
    SETTING,
    BATCH,
    Column("tokens/pass", "passes_tokens_per_pass", "{:.2f}"),
    Column("as shares of 1, 2, ...", "passes_shares", lambda shares: " ".join(f"{s:.3f}" for s in shares)),
    Column("right", "passes_acceptance", "{:.3f}"),
    Column("J", "passes_passes", "{:.2f}"),
    Column("by law", "passes_law_passes", "{:.2f}"),
    Column("slowest J", "passes_slowest", "{:.2f}"),
    Column("slowest by law", "passes_law_slowest", "{:.2f}"),
)


def show(results: Results) -> Iterator[Any]:
    """Speeds of all, where Mirror-SD's steps go, how often it falls back, in how many passes it drafts."""
    rows, worlds = results.where(), worlds_of(results)
    tokens = (Column(f"tokens/round,\n{world}", f"{world}_tokens_per_round", "{:.2f}") for world in worlds)
    speeds = (SETTING, BATCH, *(factor(world, world) for world in worlds), *tokens)
    yield table("speedup over plain decoding", used(speeds, rows), rows)
    for world, mine in worlds.items():
        title = f"Mirror-SD, {world}: seconds per round, fallbacks (FF) and their bounds"
        yield table(title, ACCOUNT, where(mine, policy="mirror"))
        if streaming := [row for row in mine if row.get("passes_windows")]:
            title = f"passes of the streaming draft, {world}: counted, and by the law of coins"
            yield table(title, PASSES, streaming)


def pictures(results: Results) -> dict[str, Picture]:
    """Four pictures, after the paper's Figures 3a, 5, 7 and 8 in kind, of the live world if there is one."""
    world, rows = list(worlds_of(results).items())[-1]
    alone = where(rows, batch=min(row["batch"] for row in rows))
    usual = where(alone, policy="mirror", overlap="on", candidates="each")
    longest = max(row["lookahead"] or 0 for row in rows)

    def draw(figure: Any) -> None:
        exposed, fallbacks, batches, speeds = figure.subplots(2, 2).flat
        draw_exposed(exposed, usual)
        draw_fallbacks(fallbacks, where(usual, lookahead=longest), bounds=True)
        frame(fallbacks, x=KAPPA, y=f"fallbacks per round at K={longest}; dashed: 1 - Omega")
        draw_batches(batches, rows)
        fastest = sorted(alone, key=lambda row: -float(row["speedup_vs_ar"]))[:16]
        opinions(speeds, fastest, [row["setting"] for row in fastest])
        figure.suptitle(f"Mirror-SD, {world}")

    return {"": Picture(draw, (11.0, 8.0))}


EXIT_COLOURS = {"1/4": "#8172b3", "1/2": "#dd8452", "3/4": "#55a868"}
KAPPA = "candidates per position (kappa)"


def draw_exposed(axes: Any, rows: Sequence[Row]) -> None:
    """Drafting on the critical path per round against accepted tokens, by window and exit (Figure 3a)."""
    for exit_, colour in EXIT_COLOURS.items():
        if mine := where(rows, exit=exit_):
            step, before, after = (values(mine, f"{name}_s") for name in ("step", "prefix", "suffix"))
            accepted = values(mine, "tokens_per_round") - 1.0
            axes.scatter(accepted, step - before - after, color=colour, label=f"exit {exit_}")
    frame(axes, x="drafted tokens accepted per round", y="seconds per round beyond the target's own")


def draw_fallbacks(axes: Any, rows: Sequence[Row], *, bounds: bool = False) -> None:
    """Fallback frequency against kappa by exit, with the printed bound dashed or without (Figure 7)."""
    for exit_, colour in EXIT_COLOURS.items():
        if mine := sorted(where(rows, exit=exit_), key=lambda row: int(value_of(row, "kappa"))):
            kappas = [value_of(row, "kappa") for row in mine]
            axes.plot(kappas, values(mine, "fallback"), "-o", color=colour, label=f"exit {exit_}")
            if bounds:
                axes.plot(kappas, values(mine, "bound_printed"), "--", color=colour, linewidth=1)
    axes.set_ylim(bottom=0.0)


def draw_batches(axes: Any, rows: Sequence[Row]) -> None:
    """The best setting of each policy against the batch (Figure 5)."""
    batches = sorted({row["batch"] for row in rows})
    for policy in ("sd", "pearl", "saguaro", "mirror"):
        best = [values(where(rows, policy=policy, batch=b), "speedup_vs_ar").max() for b in batches]
        axes.plot(batches, best, "-o", color=find_policy(policy).colour, label=policy)
    parity(axes)
    frame(axes, x="batch", y="best speedup over plain decoding")


PIECES = (
    ("prefix_s", -0.19, "#4c72b0", "layers up to the exit"),
    ("suffix_s", -0.19, "#a6bbdb", "layers after it"),
    ("rollout_s", 0.19, "#55a868", "rollout"),
    ("redraft_s", 0.19, "#c44e52", "drafted anew (mean)"),
)
"""Column of the account, place (the target's above the draft's), colour and name."""


def mirrors(rows: Sequence[Row], world: str) -> list[Row]:
    """Mirror-SD in a world at batch 1, by label."""
    return sorted(where(in_world(rows, world), batch=1, policy="mirror"), key=lambda r: str(r["setting"]))


def draw_step(axes: Any, rows: Sequence[Row], world: str) -> None:
    """The mean step of each Mirror setting: the target's two parts above what the draft does."""
    mine = mirrors(rows, world)
    for at, row in enumerate(mine):
        prefix, suffix, rollout, _ = lasts = [1e3 * row[name] for name, *_ in PIECES]
        rolls = prefix + suffix if value_of(row, "overlap") == "off" else prefix
        begins = (0.0, prefix, rolls, max(prefix + suffix, rolls + rollout))
        for (_, place, colour, _), begin, last in zip(PIECES, begins, lasts, strict=True):
            axes.barh(at + place, last, 0.34, left=begin, color=colour)
        axes.plot([1e3 * row["step_s"]] * 2, [at - 0.42, at + 0.42], color="black", linewidth=1.2)
    name_rows(axes, [row["setting"].removeprefix("mirror ") for row in mine])
    axes.set_xlabel("ms of a mean step")
    axes.set_title(world, fontsize=10, loc="left")


def draw_step_legend(figure: Any) -> None:
    """What the colours of `draw_step` are, below all panels."""
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for _, _, colour, name in PIECES]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)


def draw_hidden(axes: Any, rows: Sequence[Row]) -> None:
    """Draft time that the target's later layers hide: by the law of the best world, simulated and live."""
    mine = mirrors(rows, best_world(rows))
    names = [row["setting"].removeprefix("mirror ") for row in mine]
    opinions(axes, mine, names, figure="hidden_s", label="ms of drafting hidden per step", scale=1e3)


MIRROR = Study(
    "mirror",
    "What does Mirror-SD's overlap hide, and what do its fallbacks cost, beside its laws?",
    MirrorPlan,
    columns=columns,
    timeline=True,
    answer=answer,
    show=show,
    pictures=pictures,
    examples=(
        "--coins --acceptance 0.8 --draft-time 0.05",
        "--coins --devices 8 --layers 64 --hop-time 1e-4",
        "--hw cpu2-x5 --count 8",
        "--hw cpu2-x5 --live --repeats 3 --out my-mirror",
    ),
)
STREAMS = Study(
    "mirror-streams",
    "What is a streaming draft worth to Mirror-SD, beside its laws?",
    StreamsPlan,
    columns=columns,
    timeline=True,
    answer=answer,
    show=show,
    examples=("--coins --draft-time 0.2", "--hw cpu2-x5 --count 8", "--hw cpu2-x5 --live --out my-streams"),
)
STUDIES = (MIRROR, STREAMS)
