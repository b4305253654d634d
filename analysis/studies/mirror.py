"""What Mirror-SD's overlap hides and what its fallbacks cost, beside its laws, on coins or on a pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from analysis.execute import Bench, Outcome, View, with_baselines
from analysis.results import EVERY, Results, Row, describe
from analysis.show import BATCH, SETTING, Column, factor, parity, table, used
from analysis.studies.mirrorsd import columns
from analysis.study import Entry, Picture, Plan, Study, option
from hardware_profiles.files import parse_json
from policies.laws.mirror import draft_communication, target_communication
from policies.mirror import DEFAULT_EXIT, EXITS
from policies.registry import SettingError, Settings, configure, find_policy
from simulator.costs import TextbookCosts
from simulator.law import law_inputs
from simulator.run import Scenario, simulate
from simulator.tokens import coin

EXIT_COLOURS = {"1/4": "#8172b3", "1/2": "#dd8452", "3/4": "#55a868"}
POLICIES = ("sd", "pearl", "saguaro", "mirror")


@dataclass(frozen=True)
class CoinsPlan(Plan):
    """A pair, or coins and constant times in place of it."""

    coins: bool = option(False, "Coins and constant times in place of a pair; runs no model.")
    acceptance: float = option(0.8, "Of the draft's tokens; coins.")
    hit_exponent: float = option(1.0, "r: kappa candidates miss kappa^-r; coins.")
    target_time: float = option(1.0, "Seconds of a target step; coins.")
    draft_time: float = option(0.1, "Seconds of a draft step; coins.")


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


@dataclass(frozen=True, slots=True)
class Shards:
    """A target of N layers on G devices, and a draft sharded in segments (the paper's SPD); no pair here is.

    Attributes:
        devices: G.
        layers: N.
        message: M, words per rank and all-reduce, of both.
        hop_s: alpha.
        word_s: beta.
    """

    devices: int
    layers: int
    message: float
    hop_s: float
    word_s: float

    def costs(self, alone: TextbookCosts) -> TextbookCosts:
        """Costs of a step where compute is divided evenly and collectives are added (`mirror.comm`).

        The target pays two all-reduces per layer; the draft two per step, whatever its depth (two segments).

        Args:
            alone: Compute of one device, without communication.
        """
        shared = (self.devices, self.hop_s, self.word_s)
        target = target_communication(self.message, self.layers, *shared)
        draft = draft_communication(self.message, 1, *shared)
        return TextbookCosts(alone.target_s / self.devices + target, alone.draft_s / self.devices + draft)


def settings_grid(
    lookaheads: Sequence[int], kappas: Sequence[int], exits: Sequence[str], **target: Any
) -> list[Settings]:
    """Plain decoding, SD, PEARL, Saguaro and Mirror-SD: exits and kappas, and its other readings once each.

    Args:
        lookaheads: K of all.
        kappas: Candidates per position.
        exits: Early exits.
        target: Temperature and seed.
    """
    found = [configure("ar", **target)]
    for k in lookaheads:
        found += [
            configure("sd", lookahead=k, **target),
            configure("pearl", lookahead=k, **target),
            configure("saguaro", lookahead=k, fanout=(3,), backup="primary", **target),
        ]
        found += [
            configure("mirror", lookahead=k, kappa=kappa, exit=exit_, **target)
            for exit_ in exits
            for kappa in kappas
        ]
        middle = exits[len(exits) // 2] if DEFAULT_EXIT not in exits else DEFAULT_EXIT
        plain = {"lookahead": k, "kappa": max(kappas), "exit": middle, **target}
        found += [
            configure("mirror", overlap="off", **plain),
            configure("mirror", candidates="first", **plain),
        ]
        if target.get("temperature", 0.0) > 0.0:
            found.append(configure("mirror", acceptance_rule="matching", **plain))
    return found


def tossed(plan: CoinsPlan, costs: TextbookCosts | None = None) -> Scenario:
    """The coins and constant times of a plan.

    Raises:
        SettingError: They are to run live.
    """
    if plan.live:
        raise SettingError("coins have no models to run live: leave out --coins or --live")
    tokens = coin(
        plan.acceptance,
        exponent=plan.hit_exponent,
        requests=plan.count or 1,
        length=plan.max_tokens or 1,
        prompt_length=64,
        seed=plan.seed,
    )
    return Scenario(
        tokens, textbook=costs or TextbookCosts(plan.target_time, plan.draft_time), seed=plan.seed
    )


def on_coins(scenario: Scenario, entries: Sequence[Entry]) -> list[Row]:
    """Every setting simulated on coins, plain decoding first at each batch."""
    rows: list[Row] = []
    unit = Outcome(0.0, 1.0)
    for entry in with_baselines(entries):
        here = Scenario(scenario.tokens, textbook=scenario.textbook, seed=scenario.seed, batch=entry.batch)
        own = Outcome.simulated([simulate(here, entry.settings, timeline=True)])
        unit = own if entry.settings.policy == "ar" else unit
        told = law_inputs(here, entry.settings)
        view = View(entry, "simulated", own, unit, None, told, (), here)  # type: ignore[arg-type]  # no recording
        figures = {
            "tokens_per_second": own.speed,
            "speedup_vs_ar": own.speed / unit.speed,
            "tokens_per_round": own.summaries[0].tokens_per_round,
            **columns(view),
        }
        where = {"profile": "coins", **describe(entry.settings), "batch": entry.batch, "category": EVERY}
        rows.append({**where, **{f"simulated_{name}": value for name, value in figures.items()}})
    return rows


def answer(bench: Bench) -> list[Row]:
    """Every setting at every batch, on coins or on the pair."""
    plan = bench.plan_as(MirrorPlan)
    entries = [
        Entry(settings, batch)
        for batch in plan.batch
        for t in plan.temperature
        for settings in settings_grid(plan.lookahead, plan.kappa, plan.exits, temperature=t, seed=plan.seed)
    ]
    if not plan.coins:
        if plan.devices > 1:
            raise SettingError("no pair here is sharded: --devices is for --coins")
        return bench.compare(entries)
    costs = TextbookCosts(plan.target_time, plan.draft_time)
    shards = Shards(plan.devices, plan.layers, plan.message, plan.hop_time, plan.word_time)
    return on_coins(tossed(plan, costs if plan.devices == 1 else shards.costs(costs)), entries)


def worlds_of(results: Results) -> list[str]:
    """The worlds that something ran in."""
    return [w for w in ("simulated", "measured") if any(r.get(f"{w}_speedup_vs_ar") for r in results.rows)]


def seconds(title: str, name: str) -> Column:
    """A column of seconds."""
    return Column(title, name, "{:.3g}")


def share(title: str, name: str) -> Column:
    """A column of shares of rounds."""
    return Column(title, name, "{:.3f}")


def account_table(results: Results, world: str) -> Any:
    """Where Mirror-SD's steps go and how often it falls back, in a world."""
    shown = (
        SETTING,
        BATCH,
        seconds("step", f"{world}_step_s"),
        seconds("law", f"{world}_law_step_s"),
        seconds("as printed", f"{world}_law_step_printed_s"),
        seconds("hidden", f"{world}_hidden_s"),
        seconds("law", f"{world}_law_hidden_s"),
        share("FF", f"{world}_fallback"),
        share("law", f"{world}_law_fallback"),
        share("1-Omega", f"{world}_bound_printed"),
        share("counted", f"{world}_bound_counted"),
    )
    rows = [row for row in results.where(policy="mirror") if row.get(f"{world}_step_s") is not None]
    return table(f"Mirror-SD, {world}: seconds per round, fallbacks (FF) and their bounds", shown, rows)


def show(results: Results) -> Iterator[Any]:
    """Speeds of all, then where Mirror-SD's steps go and how often it falls back."""
    rows = results.where()
    tokens = Column("tokens/round", "simulated_tokens_per_round", "{:.2f}")
    speeds = (SETTING, BATCH, *(factor(world, world) for world in worlds_of(results)), tokens)
    yield table("speedup over plain decoding", used(speeds, rows), rows)
    for world in worlds_of(results):
        yield account_table(results, world)


def pictures(results: Results) -> dict[str, Picture]:
    """Four pictures, after the paper's Figures 3a, 5, 7 and 8 in kind, of the live world if there is one."""
    world, rows = worlds_of(results)[-1], results.where()

    def draw(figure: Any) -> None:
        axes = figure.subplots(2, 2)
        draw_exposed(axes[0, 0], rows, world)
        draw_fallbacks(axes[0, 1], rows, world)
        draw_batches(axes[1, 0], rows, world)
        draw_speeds(axes[1, 1], rows, world)
        figure.suptitle(f"Mirror-SD, {world}")

    return {"": Picture(draw, (11.0, 8.0))}


def knob(row: Row, name: str) -> Any:
    """A knob of a row's setting; None where its policy does not have it."""
    return parse_json(row["knobs"]).get(name)


def plain_mirror(rows: Sequence[Row], batch: int) -> list[Row]:
    """Mirror-SD in its usual reading, with overlap, at one batch."""
    mine = [row for row in rows if row["policy"] == "mirror" and row["batch"] == batch]
    return [row for row in mine if (knob(row, "overlap"), knob(row, "candidates")) == ("on", "each")]


def _smallest(rows: Sequence[Row]) -> int:
    return int(min(row["batch"] for row in rows))


def draw_exposed(axes: Any, rows: Sequence[Row], world: str) -> None:
    """Drafting on the critical path per round against accepted tokens, by window and exit (Figure 3a)."""
    for exit_, colour in EXIT_COLOURS.items():
        mine = [row for row in plain_mirror(rows, _smallest(rows)) if knob(row, "exit") == exit_]
        x = [row[f"{world}_tokens_per_round"] - 1.0 for row in mine]
        y = [row[f"{world}_step_s"] - row[f"{world}_prefix_s"] - row[f"{world}_suffix_s"] for row in mine]
        if mine:
            axes.scatter(x, y, color=colour, label=f"exit {exit_}")
    axes.set_xlabel("drafted tokens accepted per round")
    axes.set_ylabel("seconds per round beyond the target's own")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def draw_fallbacks(axes: Any, rows: Sequence[Row], world: str) -> None:
    """Fallback frequency against kappa by exit, with the printed bound dashed (Figure 7)."""
    longest = max(row["lookahead"] or 0 for row in rows)
    for exit_, colour in EXIT_COLOURS.items():
        mine = [r for r in plain_mirror(rows, _smallest(rows)) if knob(r, "exit") == exit_]
        mine = sorted((r for r in mine if r["lookahead"] == longest), key=lambda r: int(knob(r, "kappa")))
        kappas = [knob(row, "kappa") for row in mine]
        if mine:
            look = {"color": colour, "label": f"exit {exit_}"}
            axes.plot(kappas, [row[f"{world}_fallback"] for row in mine], "-o", **look)
            bounds = [row[f"{world}_bound_printed"] for row in mine]
            if all(bound is not None for bound in bounds):
                axes.plot(kappas, bounds, "--", color=colour, linewidth=1)
    axes.set_xlabel("candidates per position (kappa)")
    axes.set_ylabel(f"fallbacks per round at K={longest}; dashed: 1 - Omega")
    axes.set_ylim(bottom=0.0)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def draw_batches(axes: Any, rows: Sequence[Row], world: str) -> None:
    """The best setting of each policy against the batch (Figure 5)."""
    batches = sorted({row["batch"] for row in rows})
    for policy in POLICIES:
        best = [
            max(r[f"{world}_speedup_vs_ar"] for r in rows if (r["batch"], r["policy"]) == (batch, policy))
            for batch in batches
        ]
        axes.plot(batches, best, "-o", color=find_policy(policy).colour, label=policy)
    parity(axes)
    axes.set_xlabel("batch")
    axes.set_ylabel("best speedup over plain decoding")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def draw_speeds(axes: Any, rows: Sequence[Row], world: str) -> None:
    """Every setting at the smallest batch (Figure 8: all on one kind of device)."""
    speed = f"{world}_speedup_vs_ar"
    mine = [row for row in rows if row["batch"] == _smallest(rows) and row["policy"] != "ar"]
    mine = sorted(mine, key=lambda row: float(row[speed]))[-16:]
    colours = [find_policy(row["policy"]).colour for row in mine]
    axes.barh([row["setting"] for row in mine], [row[speed] for row in mine], color=colours)
    parity(axes, upright=True)
    axes.set_xlabel("speedup over plain decoding")
    axes.tick_params(axis="y", labelsize=7)


PIECES = (
    ("prefix_s", "target", "#4c72b0", "layers up to the exit"),
    ("suffix_s", "target", "#a6bbdb", "layers after it"),
    ("rollout_s", "draft", "#55a868", "rollout"),
    ("redraft_s", "draft", "#c44e52", "drafted anew (mean)"),
)
"""Column of the account, device, colour and name."""


def mirrors(rows: Sequence[Row], world: str) -> list[Row]:
    """Mirror-SD in a world at batch 1, by label."""
    mine = [r for r in rows if r["batch"] == 1 and r.get(f"{world}_step_s") is not None]
    return sorted(mine, key=lambda row: str(row["setting"]))


def draw_step(axes: Any, rows: Sequence[Row], world: str) -> None:
    """The mean step of each Mirror setting: the target's two parts above what the draft does."""
    mine = mirrors(rows, world)
    for at, row in enumerate(mine):
        own = {name: row[f"{world}_{name}"] for name in ("step_s", *(piece[0] for piece in PIECES))}
        alone, after = knob(row, "overlap") == "off", own["prefix_s"] + own["suffix_s"]
        begins = {
            "prefix_s": 0.0,
            "suffix_s": own["prefix_s"],
            "rollout_s": after if alone else own["prefix_s"],
        }
        begins["redraft_s"] = max(after, begins["rollout_s"] + own["rollout_s"])
        for name, device, colour, _ in PIECES:
            y = at - 0.19 if device == "target" else at + 0.19
            axes.barh(y, 1e3 * own[name], 0.34, left=1e3 * begins[name], color=colour)
        axes.plot([1e3 * own["step_s"]] * 2, [at - 0.42, at + 0.42], color="black", linewidth=1.2)
    axes.set_yticks(range(len(mine)), [row["setting"].removeprefix("mirror ") for row in mine], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms of a mean step")
    axes.set_title(world, fontsize=10, loc="left")


def draw_step_legend(figure: Any) -> None:
    """What the colours of `draw_step` are, below all panels."""
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for _, _, colour, name in PIECES]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)


def draw_hidden(axes: Any, rows: Sequence[Row]) -> None:
    """Draft time that the target's later layers hide: by law, simulated and live."""
    mine = mirrors(rows, "measured") or mirrors(rows, "simulated")
    told = "measured" if mirrors(rows, "measured") else "simulated"
    worlds = (
        ("law", f"{told}_law_hidden_s"),
        ("simulated", "simulated_hidden_s"),
        ("measured", "measured_hidden_s"),
    )
    for number, (name, column) in enumerate(worlds):
        at = [y + 0.26 * (number - 1) for y in range(len(mine))]
        axes.barh(at, [1e3 * (row.get(column) or 0.0) for row in mine], 0.24, color=f"C{number}", label=name)
    axes.set_yticks(range(len(mine)), [row["setting"].removeprefix("mirror ") for row in mine], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms of drafting hidden per step")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)


STUDY = Study(
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
