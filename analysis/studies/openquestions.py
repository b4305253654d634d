"""Studies of open questions, on the calibration's own prompts, each with a title that answers it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from analysis.execute import Bench
from analysis.results import Results, Row, settings_of
from analysis.show import (
    BATCH,
    COLOURS,
    OPINIONS,
    SETTING,
    WORLDS,
    draw_lines,
    draw_worlds,
    finish,
    parity,
    table,
    used,
    values,
)
from analysis.study import POSITIVE, RECORDED, Entry, Picture, Plan, Study, option
from policies.laws.double import pearl_speedup, psd_ceiling
from policies.laws.fanout import expected_hit
from policies.laws.ssd import expected_tokens, sd_speedup, switch_batch, switch_batch_printed
from policies.registry import Settings, configure
from simulator.auto import resolve, settings_query
from simulator.fanout import SHAPES, step_times
from simulator.law import law_inputs
from simulator.needs import count_devices
from simulator.probe import DraftRule, round_statistics
from simulator.run import simulate

LOOKAHEAD = 4
"""Where a question does not vary it."""
BATCHES = (1, 2, 4, 8)
SPEEDUP = "simulated_speedup_vs_ar"
SPEED_LABEL = "speedup over plain decoding"
HIT_AND_SPEED = {"cache_hit_rate": "cache hit rate", "speedup_vs_ar": SPEED_LABEL}


@dataclass(frozen=True)
class RecordedPlan(Plan):
    """On the prompts that the profile was calibrated on: no model runs unless it is asked for."""

    prompts: str = option(RECORDED, "Shipped set, a file, or `recorded`: the calibration's own.")
    count: int | None = option(None, "Prompts.  [default: all; live 6 or the widest batch]", type=POSITIVE)
    max_tokens: int | None = option(None, "Most tokens per prompt.  [default: all; live 64]", type=POSITIVE)
    repeats: int = option(2, "Live repetitions.", type=POSITIVE)
    batch: tuple[int, ...] = (1,)
    temperature: tuple[float, ...] = (0.0,)


class OpenQuestion(ABC):
    """A study of the calibration's prompts whose picture bears what is seen as its title.

    Attributes:
        name: Of the study.
        asks: The question, one line.
        widest: Largest batch that runs.
        count: Prompts that are simulated unless more are asked for.
        plan: Its options.
    """

    name: str
    asks: str
    widest: int = 1
    count: int | None = None
    plan: type[RecordedPlan] = RecordedPlan

    @abstractmethod
    def rows(self, bench: Bench) -> list[Row]:
        """What it finds on a profile."""

    @abstractmethod
    def title(self, rows: Sequence[Row]) -> str:
        """What is seen in the rows."""

    @abstractmethod
    def draw(self, figure: Any, rows: Sequence[Row]) -> None:
        """Draw the rows."""

    def answer(self, bench: Bench) -> list[Row]:
        """The rows, of fewer prompts where they run live."""
        plan, count = bench.plan, bench.plan.count or self.count
        if plan.live:
            plan = replace(plan, max_tokens=plan.max_tokens or 64)
            count = plan.count or max(6, self.widest)
        bench.plan = replace(plan, count=count)
        return self.rows(bench)

    def pictures(self, results: Results) -> dict[str, Picture]:
        """The picture."""
        kind = "law, simulated, live" if results.live else "law and simulated"
        profiles = ", ".join(dict.fromkeys(row["profile"] for row in results.rows))

        def drawn(figure: Any) -> None:
            self.draw(figure, compared(results.rows))
            figure.suptitle(f"{results.about['title']}\n{profiles}: {kind}", fontsize=10)

        return {"": Picture(drawn)}

    def study(self) -> Study[RecordedPlan]:
        """As it is run."""
        return Study(
            self.name,
            self.asks,
            self.plan,
            answer=self.answer,
            about=lambda results: {"title": self.title(compared(results.rows))},
            show=show,
            pictures=self.pictures,
            examples=("", "--live", "--hw cpu2-x20 --json"),
        )


def show(results: Results) -> Iterator[Any]:
    """The title, and a row per setting."""
    yield results.about["title"]
    yield table("", used((SETTING, BATCH, *OPINIONS), results.rows), results.rows)


def compared(rows: Sequence[Row]) -> list[Row]:
    """The rows without the baselines that nobody asked for."""
    return [row for row in rows if not row.get("baseline")]


def fastest(rows: Sequence[Row]) -> Row:
    """The row of the largest simulated speedup."""
    return max(rows, key=lambda row: row[SPEEDUP])


def saguaro(fanout: int, lookahead: int = LOOKAHEAD, backup: str = "plain", **knobs: Any) -> Settings:
    """Saguaro with a uniform fan-out."""
    return configure("saguaro", lookahead=lookahead, fanout=(fanout,), backup=backup, **knobs)


class Budget(OpenQuestion):
    """Hit rate and speed by fan-out budget, for three ways to spread it."""

    name = "budget"
    asks = "How far do hits and speed grow with the fan-out budget?"

    def rows(self, bench: Bench) -> list[Row]:
        """One row per shape and budget, as `simulate --shape --budget` resolves it."""
        entries = []
        for shape, budget in product(SHAPES, (2, 5, 10, 15, 25)):
            query = settings_query("saguaro", LOOKAHEAD, shape, budget, backup="plain")
            settings = resolve(bench.scenario(0.0), query).settings
            entries.append(Entry(settings, tags=(("shape", shape), ("budget", budget))))
        return bench.compare(entries)

    def title(self, rows: Sequence[Row]) -> str:
        """What the exact shape gains, and where it is fastest."""
        hits = {(row["shape"], row["budget"]): row["simulated_cache_hit_rate"] for row in rows}
        gains = {b: hits["exact", b] - hits["uniform", b] for b in sorted({row["budget"] for row in rows})}
        best, fast = max(gains, key=lambda b: gains[b]), fastest(rows)
        return (
            f"The exact shape hits up to {100 * gains[best]:.0f} points more than the uniform (budget "
            f"{best}); fastest at a budget of {fast['budget']} ({fast['shape']})"
        )

    def draw(self, figure: Any, rows: Sequence[Row]) -> None:
        """Hit rate and speed against the budget."""
        label = "cached outcomes per row (budget)"
        _, right = draw_lines(figure, rows, by="shape", x="budget", label=label, panels=HIT_AND_SPEED)
        if np.isfinite(laws := values(rows, "law_speedup_vs_ar")).any():
            right.set_ylim(0, 1.05 * float(np.nanmax(laws)))


BACKUPS = ("primary", "plain", "random")
LARGEST = 16
"""Batch up to which the switch is looked for by simulation."""
SWITCHES = {"b_printed": ":", "b_corrected": "--", "b_simulated": "-"}
"""Columns of switching batches, and the lines that mark them."""


@dataclass(frozen=True)
class BackupPlan(RecordedPlan):
    """On the pair whose target is the slower."""

    hw: tuple[str, ...] = option(("cpu2-x20",), "Profiles that predict; their pairs run live.")


class BackupSwitch(OpenQuestion):
    """b* as printed, corrected, simulated and live."""

    name = "backup"
    asks = "From which batch on does a fast backup beat redrafting?"
    widest = max(BATCHES)
    plan = BackupPlan

    def rows(self, bench: Bench) -> list[Row]:
        """One row per backup and batch; the switching batches stand in every row."""
        rows = bench.compare([Entry(saguaro(1, backup=b), batch) for b in BACKUPS for batch in BATCHES])
        simulated = simulated_switch(bench)
        where = {**switch_laws(bench), "b_simulated": simulated, "b_measured": switch(rows, "measured")}
        return [row | where for row in rows]

    def title(self, rows: Sequence[Row]) -> str:
        """From which batch on a fast backup wins."""

        def say(value: float | None) -> str:
            return "never" if value is None else f"{value:.1f}".removesuffix(".0")

        row = rows[0]
        live = any(each["measured_speedup_vs_ar"] is not None for each in rows)
        measured = f", live {row['b_measured'] or 'beyond 8'}" if live else ""
        return (
            f"A fast backup wins from batch {say(row['b_simulated'])} on (simulated{measured}); "
            f"b* as printed {say(row['b_printed'])}, corrected {say(row['b_corrected'])}"
        )

    def draw(self, figure: Any, rows: Sequence[Row]) -> None:
        """Speed against the batch, a line per backup, and where each b* lies."""
        panels = {"speedup_vs_ar": f"{SPEED_LABEL} at the same batch"}
        (axes,) = draw_lines(
            figure, rows, by="backup", x="batch", label="batch", panels=panels, powers=BATCHES
        )
        for name, style in SWITCHES.items():
            if (at := rows[0][name]) is not None and at >= 1:
                axes.axvline(at, color="#999999", linestyle=style, linewidth=1)
                axes.annotate(name, (at, 0.02), xycoords=("data", "axes fraction"), fontsize=7, rotation=90)


def switch_laws(bench: Bench) -> dict[str, float | None]:
    """b* as printed and corrected, told what the recording and the profile say of one row."""
    scenario = bench.scenario(0.0)
    known = round_statistics(scenario.tokens, LOOKAHEAD, DraftRule())
    p_primary = expected_hit(known.weights, known.after_primary, (1,) * (LOOKAHEAD + 1))
    times = step_times(scenario, saguaro(1, backup="primary"))
    t_primary = times.draft_s / times.verify_s
    e_hit, p_backup = known.tokens_per_round, float(known.after_nothing[1])
    switches = {
        "b_printed": switch_batch_printed(p_primary, e_hit, 1.0, t_primary),
        "b_corrected": switch_batch(p_primary, p_backup, e_hit, 1.0, t_primary),
    }
    return {name: value if math.isfinite(value) else None for name, value in switches.items()}


def simulated_switch(bench: Bench) -> int | None:
    """The smallest batch at which a plain decode after a miss is at least as fast as redrafting."""
    for batch in range(1, LARGEST + 1):
        scenario = replace(bench.scenario(0.0, batch), requests=max(16, 2 * batch))
        slow, fast = (
            simulate(scenario, saguaro(1, backup=name)).summary.tokens_per_second for name in BACKUPS[:2]
        )
        if fast >= slow:
            return batch
    return None


def switch(rows: Sequence[Row], world: str) -> int | None:
    """The smallest batch run at which a fast backup was at least as fast as redrafting; None if none was."""
    name = f"{world}_speedup_vs_ar"
    for batch in sorted({row["batch"] for row in rows}):
        speed = {row["backup"]: row[name] for row in rows if row["batch"] == batch and row[name] is not None}
        fast = [speed[backup] for backup in BACKUPS[1:] if backup in speed]
        if "primary" in speed and fast and max(fast) >= speed["primary"]:
            return int(batch)
    return None


RATIOS = (2.0, 4.0, 8.0, 16.0, 32.0)
RATIO_LOOKAHEADS = (1, 2, 4, 6, 8, 12)
RATIO_CANDIDATES = {
    "sd": [configure("sd", lookahead=k) for k in RATIO_LOOKAHEADS],
    "pearl": [configure("pearl", lookahead=k) for k in RATIO_LOOKAHEADS],
    "saguaro": [saguaro(f, k) for k in RATIO_LOOKAHEADS for f in (1, 3)],
}
"""What the best of a policy is chosen from at every ratio."""


@dataclass(frozen=True)
class RatioPlan(RecordedPlan):
    """On pairs of two ratios."""

    hw: tuple[str, ...] = option(("cpu2-x5", "cpu2-x20"), "Profiles that predict; their pairs run live.")


class Ratio(OpenQuestion):
    """Speed by target/draft ratio, and what bounds it.

    Ratios between and beyond the profiles at hand are made by scaling the draft's costs; host time, the
    target and the text stay.  Live points come from pairs of the same text embedded in larger shapes.
    """

    name = "ratio"
    asks = "How far does the speedup grow with the target/draft ratio, and what bounds it?"
    count = 16  # there are many settings to choose the best from
    plan = RatioPlan

    def rows(self, bench: Bench) -> list[Row]:
        """One row per policy and ratio: the best setting, simulated; the profile's own ratio also live."""
        own = law_inputs(bench.scenario(0.0)).ratio
        live, bench.plan = bench.plan.live, replace(bench.plan, live=False)
        rows: list[Row] = []
        ratios = sorted({*RATIOS, own})
        for done, ratio in enumerate(ratios):
            drift = tuple((name, own / ratio) for name in ("draft.forward", "draft.tree"))
            for policy, candidates in RATIO_CANDIDATES.items():
                best = fastest(compared(bench.compare([Entry(s, drift=drift) for s in candidates])))
                ceiling = ceilings(best["law_acceptance"], ratio)[policy]
                rows.append({"ratio": ratio, "own": ratio == own, **best, "ceiling": ceiling})
            bench.progress("ratios", done + 1, len(ratios))
        if live:
            bench.plan = replace(bench.plan, live=True)
            mine = [row for row in rows if row["own"]]
            measured = compared(bench.compare([Entry(settings_of(row)) for row in mine]))
            for row, again in zip(mine, measured, strict=True):
                row |= {name: value for name, value in again.items() if name.startswith("measured")}
        return rows

    def title(self, rows: Sequence[Row]) -> str:
        """How near every policy comes to its ceiling at the largest ratio."""
        mine = [row for row in rows if row["profile"] == rows[0]["profile"]]  # whose lines are drawn
        last = max(row["ratio"] for row in mine)
        at = {row["policy"]: row for row in mine if row["ratio"] == last}
        shares = (
            f"{name} {at[name][SPEEDUP]:.2f}x of {at[name]['ceiling']:.2f}x" for name in RATIO_CANDIDATES
        )
        return (
            f"A draft {last:g} times as fast as the target, best lookahead, of the papers' ceiling: "
            f"{', '.join(shares)}"
        )

    def draw(self, figure: Any, rows: Sequence[Row]) -> None:
        """Speedup against the ratio, a line per policy, its ceiling dashed."""
        axes = figure.subplots()
        for colour, policy in zip(COLOURS, RATIO_CANDIDATES, strict=False):
            mine = sorted((row for row in rows if row["policy"] == policy), key=lambda row: row["ratio"])
            base = [row for row in mine if row["profile"] == mine[0]["profile"]]
            for part, worlds in ((base, ("law", "simulated")), (mine, ("measured",))):
                draw_worlds(axes, part, "ratio", "speedup_vs_ar", colour=colour, label=policy, worlds=worlds)
            x, y = values(base, "ratio"), values(base, "ceiling")
            axes.plot(x, y, "--", color=colour, linewidth=0.8, label=f"{policy}, ceiling")
        finish(axes, x="target step / draft step", y=f"{SPEED_LABEL}, best lookahead", powers=RATIOS)
        axes.set_yscale("log", base=2)
        axes.set_yticks(ticks := [0.5, 1, 2, 4, 8, 16], [f"{t:g}" for t in ticks])
        axes.set_ylim(0.8 * values(rows, SPEEDUP).min(), 1.2 * float(np.nanmax(values(rows, "ceiling"))))
        parity(axes)


def ceilings(acceptance: float, ratio: float) -> dict[str, float]:
    """What no lookahead gets past, by policy, under the papers' assumptions.

    SD: the best lookahead; PEARL: the best lookahead, and C; Saguaro: the best lookahead, with a cache that
    always hits.
    """
    depths = range(1, 65)
    return {
        "sd": max(sd_speedup(acceptance, k, 1.0 / ratio) for k in depths),
        "pearl": min(psd_ceiling(ratio), max(pearl_speedup(acceptance, k, ratio) for k in depths)),
        "saguaro": max(expected_tokens(acceptance, k) / max(1.0, k / ratio) for k in depths),
    }


class Temperature(OpenQuestion):
    """Acceptance, hits and speed by temperature, over the fan-out."""

    name = "temperature"
    asks = "What does the temperature do to acceptance, hits and speed?"

    def rows(self, bench: Bench) -> list[Row]:
        """One row per recorded temperature and fan-out."""
        asked = [(t, f) for t in sorted(bench.sources.traces) for f in (1, 2, 3, 5)]
        return bench.compare(
            [Entry(saguaro(f, temperature=t), tags=(("uniform_fanout", f),)) for t, f in asked]
        )

    def title(self, rows: Sequence[Row]) -> str:
        """Acceptance and the best fan-out at every temperature."""
        said = []
        for t in sorted({row["temperature"] for row in rows}):
            best = fastest([row for row in rows if row["temperature"] == t])
            said.append(
                f"T={t:g}: acceptance {best['simulated_acceptance_rate']:.2f}, best "
                f"F={best['uniform_fanout']} ({best[SPEEDUP]:.2f}x)"
            )
        return "; ".join(said)

    def draw(self, figure: Any, rows: Sequence[Row]) -> None:
        """Hit rate and speed against the fan-out, a line per temperature."""
        how: Row = {"by": "temperature", "name": "T={:g}", "x": "uniform_fanout", "label": "fan-out F"}
        draw_lines(figure, rows, **how, panels=HIT_AND_SPEED)


SCALE_FANOUTS = (1, 3)


class Scale(OpenQuestion):
    """What drawing cached tokens less often (Saguaro's C) costs in acceptance and brings in hits."""

    name = "scale"
    asks = "What does Saguaro's rescaling of the draft by C cost and bring?"

    def rows(self, bench: Bench) -> list[Row]:
        """One row per fan-out and C."""
        asked = [(f, c) for f in SCALE_FANOUTS for c in (0.0, 0.25, 0.5, 0.75, 1.0)]
        return bench.compare(
            [
                Entry(saguaro(f, scale=c, temperature=1.0), tags=(("uniform_fanout", f), ("scale", c)))
                for f, c in asked
            ]
        )

    def title(self, rows: Sequence[Row]) -> str:
        """The best C of every fan-out."""
        said = []
        for f in SCALE_FANOUTS:
            speed = {row["scale"]: row[SPEEDUP] for row in rows if row["uniform_fanout"] == f}
            best = max(speed, key=lambda c: speed[c])
            said.append(
                f"F={f}: best C = {best:g} ({100 * (speed[best] / speed[1.0] - 1):+.1f} % over C = 1)"
            )
        return "Rescaling the draft, simulated. " + "; ".join(said)

    def draw(self, figure: Any, rows: Sequence[Row]) -> None:
        """Acceptance and hits against C, and the speed that comes of both."""
        panels = {"acceptance_rate": "acceptance rate", **HIT_AND_SPEED}
        how: Row = {"by": "uniform_fanout", "name": "F={}", "x": "scale", "label": "Saguaro's C"}
        left, *_ = draw_lines(figure, rows, **how, panels=panels)
        left.set_ylim(0, max(1.0, float(values(rows, "simulated_acceptance_rate").max())))


PARETO_LOOKAHEADS = (1, 2, 3, 4, 6)
PARETO_CANDIDATES = {
    "ar": [configure("ar")],
    "sd": [configure("sd", lookahead=k) for k in PARETO_LOOKAHEADS],
    "saguaro": [
        saguaro(f, k, backup) for k in PARETO_LOOKAHEADS for f in (1, 3) for backup in ("primary", "plain")
    ],
}
"""What the best of a policy is chosen from, by simulation, at every batch."""
PARETO_NAMES = {"ar": "plain decoding", "sd": "SD", "saguaro": "Saguaro"}


class Pareto(OpenQuestion):
    """Latency against throughput per device, over the batch."""

    name = "pareto"
    asks = "Latency against throughput per device: which policy, over the batch?"
    widest = max(BATCHES)

    def rows(self, bench: Bench) -> list[Row]:
        """One row per policy and batch: the best setting, on its own devices."""
        wanted: list[Entry] = []
        for done, batch in enumerate(BATCHES):
            scenario = bench.scenario(0.0, batch)
            for candidates in PARETO_CANDIDATES.values():
                best = max(candidates, key=lambda s: simulate(scenario, s).summary.tokens_per_second)
                wanted.append(Entry(best, batch))
            bench.progress("best settings", done + 1, len(BATCHES))
        rows = bench.compare(wanted)
        for row in rows:
            devices = row["devices"] = count_devices(settings_of(row), bench.sources.profile).total
            law, step = row["law_speedup_vs_ar"], row["simulated_tokens_per_second"] / row[SPEEDUP]
            speeds = {"law": None if law is None else law * step}
            speeds |= {world: row[f"{world}_tokens_per_second"] for world in ("simulated", "measured")}
            for world, speed in speeds.items():
                row[f"{world}_per_request"] = None if speed is None else speed / row["batch"]
                row[f"{world}_per_device"] = None if speed is None else speed / devices
        return rows

    def title(self, rows: Sequence[Row]) -> str:
        """The ends of the front."""
        fast = max(rows, key=lambda row: row["simulated_per_request"])
        dense = max(rows, key=lambda row: row["simulated_per_device"])
        return (
            f"Fastest for one request: {fast['setting']} at batch {fast['batch']}; most tokens per device: "
            f"{dense['setting']} at batch {dense['batch']} (simulated)"
        )

    def draw(self, figure: Any, rows: Sequence[Row]) -> None:
        """Tokens per second per device against tokens per second per request, a line per policy."""
        axes = figure.subplots()
        for colour, (policy, name) in zip(COLOURS, PARETO_NAMES.items(), strict=False):
            mine = [row for row in rows if row["policy"] == policy]
            for world, style in WORLDS.items():
                x, y = values(mine, f"{world}_per_request"), values(mine, f"{world}_per_device")
                if not np.isnan(x).any():
                    axes.plot(x, y, color=colour, label=name if world == "simulated" else None, **style)
            for row in mine:
                at = (row["simulated_per_request"], row["simulated_per_device"])
                look = {"fontsize": 7, "xytext": (4, 4), "textcoords": "offset points", "color": colour}
                axes.annotate(f"b={row['batch']}", at, **look)
        finish(
            axes, x="tokens/s that a request sees (right is faster)", y="tokens/s per device (up is cheaper)"
        )


DRAFTS_LOOKAHEADS = (4, 6)
DRAFTS_FANOUT = 5
DEVICES = (1, 2, 3)


class Drafts(OpenQuestion):
    """Several draft devices, which share the outcomes to prepare for."""

    name = "drafts"
    asks = "Are several draft devices worth their price?"

    def rows(self, bench: Bench) -> list[Row]:
        """One row per lookahead and number of draft devices."""
        asked = [(k, n) for k in DRAFTS_LOOKAHEADS for n in DEVICES]
        rows = bench.compare([Entry(saguaro(DRAFTS_FANOUT, k, draft_devices=n)) for k, n in asked])
        for row in rows:
            row["per_device_speedup_vs_ar"] = row[SPEEDUP] / (1 + (row["draft_devices"] or 0))
        return rows

    def title(self, rows: Sequence[Row]) -> str:
        """What a second draft device brings."""
        said = []
        for k in DRAFTS_LOOKAHEADS:
            speed = {row["draft_devices"]: row[SPEEDUP] for row in rows if row["lookahead"] == k}
            gain = 100 * (speed[2] / speed[1] - 1)
            said.append(f"K={k} F={DRAFTS_FANOUT}: a second draft device brings {gain:+.0f} %")
        return "; ".join(said) + " (simulated)"

    def draw(self, figure: Any, rows: Sequence[Row]) -> None:
        """Speed, and speed per device, against the number of draft devices."""
        left, right = figure.subplots(1, 2)
        for colour, k in zip(COLOURS, DRAFTS_LOOKAHEADS, strict=False):
            mine, label = [row for row in rows if row["lookahead"] == k], f"K={k} F={DRAFTS_FANOUT}"
            draw_worlds(left, mine, "draft_devices", "speedup_vs_ar", colour=colour, label=label)
            x, y = values(mine, "draft_devices"), values(mine, "per_device_speedup_vs_ar")
            right.plot(x, y, "-D", color=colour, markersize=4, label=label)
        finish(left, x="draft devices", y=f"{SPEED_LABEL} on one device")
        finish(right, x="draft devices", y="the same, per device (target's included)")
        for axes in (left, right):
            axes.set_xticks(list(DEVICES))
        parity(left)


QUESTIONS = (Budget(), BackupSwitch(), Ratio(), Temperature(), Scale(), Pareto(), Drafts())
STUDIES = tuple(question.study() for question in QUESTIONS)
