"""What Mirror-SD's overlap hides and what its fallbacks cost, beside its laws, on coins or on a pair.

Times are means per round of the batch.  The laws are fed with the means of the pieces of that very run, so
that what is left between law and run is what the law does not know: host time, exchanges, contention, and
that the longer of two random times is longer than the longer mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from analysis.execute import Bench, Outcome, View, with_baselines
from analysis.results import EVERY, Results, Row, describe, value_of, where
from analysis.show import (
    BATCH,
    SETTING,
    Column,
    factor,
    frame,
    legend_above,
    name_rows,
    parity,
    table,
    used,
    values,
)
from analysis.study import Entry, Picture, Plan, Study, option
from calibrate.live_runs import LiveRun
from hardware_profiles.reply_trace import Decisions
from policies.laws import mirror as laws
from policies.laws.ssd import power_law_hit
from policies.mirror import DEFAULT_EXIT, EXITS, STREAMS_BY_BATCH, MirrorConfig, scheduled_streams
from policies.registry import SettingError, Settings, configure, find_policy
from policies.rows import NO_CACHE
from policies.timeline import Span
from policies.values import IntArray
from simulator.costs import TextbookCosts
from simulator.law import law_inputs
from simulator.run import Scenario, Simulated, simulate
from simulator.tokens import coin

# The account of a run


def columns(view: View) -> Row:
    """Columns of a study of Mirror-SD: drafting in the open, fallbacks, and its account."""
    summaries, rounds = view.own.summaries, view.total("batch_rounds")
    row: Row = {
        "exposed_s": sum(s.stalled_s["target"] for s in summaries) / rounds,
        "draft_s": sum(s.seconds - s.stalled_s.get("draft", s.seconds) for s in summaries) / rounds,
        "fallback": fallback_rate(view.rounds()),
    }
    return row | (account(view) if view.settings.policy == "mirror" else {})


def account(view: View) -> Row:
    """Where a step of Mirror-SD goes and how often it falls back; of simulated draws the first has times.

    Returns:
        Columns, of which those in seconds are means per round of the batch:

        - `step_s`: decode time; `prefix_s`, `suffix_s`: the target before and after its early result (the
          latter is Delta); `rollout_s`: of all candidates; `redraft_s`: drafting anew, mean per draft times
          drafts per round, first windows included; `hidden_s`: both devices at work;
        - `law_step_s`: `mirror.eq10` with the fallback term; `law_step_printed_s`: without it, as printed;
          `law_hidden_s`: min(Delta, rollout);
        - `fallback` (FF): rounds with a correction that was not prepared for, of all that were looked up;
          `fallback_whole`: rounds that accepted the whole window and whose next token was not prepared for,
          for which the paper has no rule; `fallback_given_correction`: FF over rounds with a correction;
        - `acceptance`: accepted over verified positions; `omega`: share of emitted tokens that were among the
          candidates of their position, of those at the first one where only that has candidates, and for
          coins, which count the drafted token among the candidates, what acceptance and hit curve make it;
        - `bound_printed`: 1 - Omega; `bound_counted`: (1 - Omega) times the tokens per round, as no run can
          have more fallbacks than tokens outside the candidates (candidates at each position);
          `law_fallback`: corrected `mirror.prop1` for iid positions; None where its premise fails, that a
          drafted token is a candidate (acceptance at most Omega);
        - `passes_...`: those of a streaming draft (`passes_of`).
    """
    config = view.settings.config
    assert isinstance(config, MirrorConfig)
    runs = view.own.runs if view.live else view.own.runs[:1]
    seconds, overlap_s, rounds = (
        sum(getattr(run.summary, name) for run in runs) for name in ("seconds", "overlap_s", "batch_rounds")
    )
    pieces = [piece for run in runs for piece in pieces_of(run)]
    suffix_s = _mean(late_s for name, _, late_s in pieces if name == "earlyverify")
    prefix_s = _mean(s for name, s, _ in pieces if name == "earlyverify") - suffix_s
    rollout_s = _mean(s for name, s, _ in pieces if name in {"rollout", "streamrollout"})
    redraft_s = sum(s for name, s, _ in pieces if name in {"draft", "streamdraft"}) / rounds
    overlaps, each = config.overlap == "on", config.candidates == "each"
    printed = prefix_s + suffix_s + rollout_s
    if overlaps:
        printed = laws.mirror_step_time_printed(prefix_s, suffix_s, rollout_s, 0.0)

    rows = view.rounds()
    looked, missed, whole = _looked_up(rows)
    accepted, verified = rows["accepted"], np.minimum(rows["accepted"] + 1, rows["length"])
    acceptance = _ratio(accepted.sum(), verified.sum())
    omega = overlap_counted(view.decisions)
    curve = None if view.decisions else view.scenario.tokens.power_law
    if curve is not None:
        hit = float(power_law_hit((config.kappa,), curve.exponent, curve.scale)[0])
        omega = acceptance + (1.0 - acceptance) * hit
    law = None
    if omega is not None and acceptance <= omega:
        law = (laws.fallback if each else laws.fallback_first)(acceptance, omega, config.lookahead)
    tokens = float(rows["emitted"].sum() / len(rows["emitted"]))
    streaming = passes_of(view.decisions, config.streams)
    return {
        "step_s": seconds / rounds,
        "prefix_s": prefix_s,
        "suffix_s": suffix_s,
        "rollout_s": rollout_s,
        "redraft_s": redraft_s,
        "hidden_s": overlap_s / rounds,
        "law_step_s": printed + redraft_s,
        "law_step_printed_s": printed,
        "law_hidden_s": min(suffix_s, rollout_s) if overlaps else 0.0,
        "fallback": _ratio((missed & ~whole).sum(), looked.sum()),
        "fallback_whole": _ratio((missed & whole).sum(), looked.sum()),
        "fallback_given_correction": _ratio((missed & ~whole).sum(), (looked & ~whole).sum()),
        "acceptance": acceptance,
        "omega": omega,
        "bound_printed": None if omega is None else laws.fallback_bound_printed(omega),
        "bound_counted": None if omega is None or not each else (1.0 - omega) * tokens,
        "law_fallback": law,
        **{f"passes_{name}": value for name, value in streaming.items()},
    }


def pieces_of(run: LiveRun | Simulated) -> list[tuple[str, float, float]]:
    """(name, seconds, of these after the early result) of each operation of a run.

    Live, the time of the early result itself belongs to the part before it.
    """
    if isinstance(run, LiveRun):
        steps = [[(step.name, step.end_s - step.start_s) for step in timing.steps] for timing in run.timings]
        timed = zip(run.timings, steps, strict=True)
        return [(t.operation, t.end_s - t.start_s, _late(own)) for t, own in timed]
    return [stretched(span) for span in run.spans]


def stretched(span: Span) -> tuple[str, float, float]:
    """A simulated operation as `pieces_of` tells it: contention stretches all its steps alike."""
    seconds, steps = span.end_s - span.start_s, span.details["steps"]
    total = sum(s for _, s in steps)
    return span.name, seconds, seconds * _late(steps) / total if total > 0.0 else 0.0


def _late(steps: Iterable[tuple[str, float]]) -> float:
    return sum(seconds for name, seconds in steps if name.startswith("late"))


def _mean(found: Iterable[float]) -> float:
    known = list(found)
    return float(np.mean(known)) if known else 0.0


def _ratio(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else 0.0


def _looked_up(rows: Mapping[str, IntArray]) -> tuple[Any, Any, Any]:
    """Of each round whether it was looked up, whether in vain, and whether the whole window was accepted."""
    looked = rows["hit"] != NO_CACHE
    return looked, looked & (rows["hit"] == 0), rows["accepted"] == rows["length"]


def fallback_rate(rows: Mapping[str, IntArray]) -> float | None:
    """FF: rounds with a correction not prepared for, of all that were looked up; None without any."""
    looked, missed, whole = _looked_up(rows)
    return _ratio((missed & ~whole).sum(), looked.sum()) if looked.any() else None


def overlap_counted(decisions: Sequence[Decisions], kappa: int | None = None) -> float | None:
    """Share of emitted tokens that were among the exit's candidates at their position (Omega, `mirror.eq9`).

    Every emitted token has one position, at which the exit saw the true text before it, so that this is the
    mean of the target's mass on the candidates, exactly for greedy decoding and in expectation for sampled.

    Args:
        decisions: What runs decided.
        kappa: Count the first so many candidates of each position; None: all.

    Returns:
        None where no candidates were recorded.
    """
    inside = [
        token in candidates[:kappa]
        for run in decisions
        for key, mark in run.marks.items()
        if key[0] == "earlyverify"
        for token, candidates in zip(run.replies[key][0][1], mark[0], strict=False)
    ]
    return sum(inside) / len(inside) if inside else None


def passes_of(decisions: Sequence[Decisions], streams: str) -> Row:
    """The passes of all windows that runs wrote, rollouts that nobody took among them; none: empty.

    Args:
        decisions: Of one setting.
        streams: Value of the knob; with `batch`, decisions of several batches count as of the narrowest.

    Returns:
        `windows`: how many; `shares` of passes that wrote 1, 2, ... tokens (eta_j of `mirror.ss`), and
        `tokens_per_pass`; `acceptance`: right over verified proposals, 0 where none was verified; `passes`:
        J, mean passes per window, and `law_passes`, where proposals are right independently with that
        acceptance; `slowest`: mean passes per operation and row, those of its slowest window, since branches
        are written side by side, and `law_slowest` of as many independent windows.
    """
    groups = [group for group in _windows(decisions) if group]
    windows = [window for group in groups for window in group]
    if not windows:
        return {}
    most = most_streams(streams)
    counts = Counter(tokens for window in windows for tokens in window)
    total, written = sum(counts.values()), sum(map(sum, windows))
    acceptance = _acceptance(windows, most)
    gamma = sum(windows[0])
    law = {n: laws.mean_passes(gamma, most, acceptance, n) for n in {1, *map(len, groups)}}
    return {
        "windows": len(windows),
        "shares": [counts[n] / total for n in range(1, max(counts) + 1)],
        "tokens_per_pass": written / total,
        "acceptance": acceptance,
        "passes": total / len(windows),
        "law_passes": law[1],
        "slowest": float(np.mean([max(map(len, group)) for group in groups])),
        "law_slowest": float(np.mean([law[len(group)] for group in groups])),
    }


def most_streams(streams: str) -> int:
    """S, the most that a value of the knob `streams` means."""
    return scheduled_streams(1) if streams == STREAMS_BY_BATCH else int(streams)


def _windows(decisions: Sequence[Decisions]) -> Iterator[list[list[int]]]:
    """Tokens per pass of the windows of each operation and row."""
    for run in decisions:
        for (kind, *_), reply in run.replies.items():
            if kind == "streamdraft":
                yield [reply[2]]
            elif kind == "streamrollout":
                yield reply[1]


def _acceptance(windows: Sequence[Sequence[int]], streams: int) -> float:
    """Right over verified proposals: after the first wrong one of a pass none is verified."""
    right = verified = 0
    for window in windows:
        left = sum(window) - window[0]
        for tokens in window[1:]:
            right += tokens - 1
            verified += min(tokens, streams, left - 1)
            left -= tokens
    return _ratio(right, verified)


# The comparison


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
        found = [configure("ar", **target)]
        for k in self.lookahead:
            found += rivals(k, **target)
            found += [configure("mirror", lookahead=k, **target, **knobs) for knobs in mirrors]
        return found

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
    unit = Outcome(0.0, 1.0)
    for entry in with_baselines(entries):
        here = Scenario(tokens, textbook=plan.costs, seed=plan.seed, batch=entry.batch)
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
        asked = {"profile": "coins", **describe(entry.settings), "batch": entry.batch, "category": EVERY}
        rows.append({**asked, **{f"simulated_{name}": value for name, value in figures.items()}})
    return rows


# Tables and pictures


def worlds_of(results: Results) -> list[str]:
    """The worlds that something ran in."""
    return [w for w in ("simulated", "measured") if any(r.get(f"{w}_speedup_vs_ar") for r in results.rows)]


def show(results: Results) -> Iterator[Any]:
    """Speeds of all, then where Mirror-SD's steps go and how often it falls back."""
    rows, worlds = results.where(), worlds_of(results)
    tokens = Column("tokens/round", "simulated_tokens_per_round", "{:.2f}")
    speeds = (SETTING, BATCH, *(factor(world, world) for world in worlds), tokens)
    yield table("speedup over plain decoding", used(speeds, rows), rows)
    for world in worlds:
        columns = (SETTING, BATCH, *(Column(title, f"{world}_{name}", form) for title, name, form in ACCOUNT))
        title = f"Mirror-SD, {world}: seconds per round, fallbacks (FF) and their bounds"
        yield table(title, columns, [row for row in rows if row.get(f"{world}_step_s") is not None])


ACCOUNT = (
    ("step", "step_s", "{:.3g}"),
    ("by law", "law_step_s", "{:.3g}"),
    ("as printed", "law_step_printed_s", "{:.3g}"),
    ("hidden", "hidden_s", "{:.3g}"),
    ("hidden by law", "law_hidden_s", "{:.3g}"),
    ("FF", "fallback", "{:.3f}"),
    ("FF by law", "law_fallback", "{:.3f}"),
    ("1-Omega", "bound_printed", "{:.3f}"),
    ("counted", "bound_counted", "{:.3f}"),
)
"""Title, column of the account and form of what is shown of it."""


def pictures(results: Results) -> dict[str, Picture]:
    """Four pictures, after the paper's Figures 3a, 5, 7 and 8 in kind, of the live world if there is one."""
    world, rows = worlds_of(results)[-1], results.where()
    alone = where(rows, batch=min(row["batch"] for row in rows))
    usual = where(alone, policy="mirror", overlap="on", candidates="each")
    longest = max(row["lookahead"] or 0 for row in rows)

    def draw(figure: Any) -> None:
        exposed, fallbacks, batches, speeds = figure.subplots(2, 2).flat
        draw_exposed(exposed, usual, world)
        draw_fallbacks(fallbacks, where(usual, lookahead=longest), world, bounds=True)
        frame(fallbacks, x=KAPPA, y=f"fallbacks per round at K={longest}; dashed: 1 - Omega")
        draw_batches(batches, rows, world)
        draw_speeds(speeds, alone, world)
        figure.suptitle(f"Mirror-SD, {world}")

    return {"": Picture(draw, (11.0, 8.0))}


EXIT_COLOURS = {"1/4": "#8172b3", "1/2": "#dd8452", "3/4": "#55a868"}
KAPPA = "candidates per position (kappa)"


def draw_exposed(axes: Any, rows: Sequence[Row], world: str) -> None:
    """Drafting on the critical path per round against accepted tokens, by window and exit (Figure 3a)."""
    for exit_, colour in EXIT_COLOURS.items():
        if mine := where(rows, exit=exit_):
            step, before, after = (values(mine, f"{world}_{n}_s") for n in ("step", "prefix", "suffix"))
            x = values(mine, f"{world}_tokens_per_round") - 1.0
            axes.scatter(x, step - before - after, color=colour, label=f"exit {exit_}")
    frame(axes, x="drafted tokens accepted per round", y="seconds per round beyond the target's own")


def draw_fallbacks(axes: Any, rows: Sequence[Row], world: str, *, bounds: bool = False) -> None:
    """Fallback frequency against kappa by exit, with the printed bound dashed (Figure 7)."""
    for exit_, colour in EXIT_COLOURS.items():
        if mine := sorted(where(rows, exit=exit_), key=lambda row: int(value_of(row, "kappa"))):
            kappas = [value_of(row, "kappa") for row in mine]
            label = f"exit {exit_}"
            axes.plot(kappas, values(mine, f"{world}_fallback"), "-o", color=colour, label=label)
            if bounds:
                axes.plot(kappas, values(mine, f"{world}_bound_printed"), "--", color=colour, linewidth=1)
    axes.set_ylim(bottom=0.0)


def draw_batches(axes: Any, rows: Sequence[Row], world: str) -> None:
    """The best setting of each policy against the batch (Figure 5)."""
    batches = sorted({row["batch"] for row in rows})
    for policy in ("sd", "pearl", "saguaro", "mirror"):
        known = [values(where(rows, policy=policy, batch=b), f"{world}_speedup_vs_ar") for b in batches]
        best = [speeds.max() for speeds in known]
        axes.plot(batches, best, "-o", color=find_policy(policy).colour, label=policy)
    parity(axes)
    frame(axes, x="batch", y="best speedup over plain decoding")


def draw_speeds(axes: Any, rows: Sequence[Row], world: str) -> None:
    """The sixteen fastest settings (Figure 8: all on one kind of device)."""
    speed = f"{world}_speedup_vs_ar"
    mine = sorted((row for row in rows if row["policy"] != "ar"), key=lambda row: float(row[speed]))[-16:]
    colours = [find_policy(row["policy"]).colour for row in mine]
    axes.barh([row["setting"] for row in mine], [row[speed] for row in mine], color=colours)
    parity(axes, upright=True)
    axes.set_xlabel("speedup over plain decoding")
    axes.tick_params(axis="y", labelsize=7)


PIECES = (
    ("prefix_s", -0.19, "#4c72b0", "layers up to the exit"),
    ("suffix_s", -0.19, "#a6bbdb", "layers after it"),
    ("rollout_s", 0.19, "#55a868", "rollout"),
    ("redraft_s", 0.19, "#c44e52", "drafted anew (mean)"),
)
"""Column of the account, place (the target's above the draft's), colour and name."""


def mirrors(rows: Sequence[Row], world: str) -> list[Row]:
    """Mirror-SD in a world at batch 1, by label."""
    mine = [row for row in where(rows, batch=1) if row.get(f"{world}_step_s") is not None]
    return sorted(mine, key=lambda row: str(row["setting"]))


def draw_step(axes: Any, rows: Sequence[Row], world: str) -> None:
    """The mean step of each Mirror setting: the target's two parts above what the draft does."""
    mine = mirrors(rows, world)
    for at, row in enumerate(mine):
        prefix, suffix, rollout, redraft = (1e3 * row[f"{world}_{name}"] for name, *_ in PIECES)
        rolls = prefix + suffix if value_of(row, "overlap") == "off" else prefix
        begins = (0.0, prefix, rolls, max(prefix + suffix, rolls + rollout))
        lasts = (prefix, suffix, rollout, redraft)
        for (_, place, colour, _), begin, last in zip(PIECES, begins, lasts, strict=True):
            axes.barh(at + place, last, 0.34, left=begin, color=colour)
        axes.plot([1e3 * row[f"{world}_step_s"]] * 2, [at - 0.42, at + 0.42], color="black", linewidth=1.2)
    name_rows(axes, [row["setting"].removeprefix("mirror ") for row in mine])
    axes.set_xlabel("ms of a mean step")
    axes.set_title(world, fontsize=10, loc="left")


def draw_step_legend(figure: Any) -> None:
    """What the colours of `draw_step` are, below all panels."""
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for _, _, colour, name in PIECES]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)


def draw_hidden(axes: Any, rows: Sequence[Row]) -> None:
    """Draft time that the target's later layers hide: by law, simulated and live."""
    told = "measured" if mirrors(rows, "measured") else "simulated"
    mine = mirrors(rows, told)
    names = {
        "law": f"{told}_law_hidden_s",
        "simulated": "simulated_hidden_s",
        "measured": "measured_hidden_s",
    }
    for number, (name, column) in enumerate(names.items()):
        at = [y + 0.26 * (number - 1) for y in range(len(mine))]
        axes.barh(at, [1e3 * (row.get(column) or 0.0) for row in mine], 0.24, color=f"C{number}", label=name)
    name_rows(axes, [row["setting"].removeprefix("mirror ") for row in mine])
    axes.set_xlabel("ms of drafting hidden per step")
    axes.grid(axis="x", alpha=0.3)
    legend_above(axes)


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
