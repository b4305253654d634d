"""DuoDecoding's tables and figures in kind: budget, sequences, the threshold, and the first token.

How many tokens to draft: the printed budget is the cost ratio c (`duo.budget`), which is right where a target
step takes the same time whatever it verifies and every time.  Here verification grows with the budget and
both devices jitter, by as much as one likes; and on a profile, effect after effect of the hardware it was
measured on (Table 3).  With `--live` also one to four sequences against the threshold (Table 2), what the
threshold predicts (Table 4, Figure 5), the time to the first token (Figure 3) and what a mean round is
(Figure 4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np

from analysis.execute import Bench, View
from analysis.results import EVERY, Results, Row, settings_of
from analysis.show import SETTING, Column, factor, table, yes
from analysis.study import Entry, Picture, Plan, Study, option
from hardware_profiles.reply_trace import Decisions
from policies.duo import DraftSequences, DuoConfig, SettleSequences, VerifyPending
from policies.laws.duo import best_budget, duo_speedup, ttft_ratio
from policies.operation import Operation, Prefill, Work
from policies.registry import MAX_LOOKAHEAD, Settings, configure, start
from policies.rows import Rows
from policies.sampling import keyed_generator
from policies.values import UNKNOWN
from policies.values import View as RowView
from simulator.costs import Effects
from simulator.law import law_inputs
from simulator.run import Scenario, simulate
from simulator.synthetic import Synthetic
from simulator.tokens import coin
from simulator.waterfall import NO_EFFECT
from simulator.world import SimulatedWorld

SD_LOOKAHEAD = 4
"""The paper's speculative decoding processes 5 tokens per iteration (Figure 4)."""
STATIC = ("1", "2", "3", "4")
UNEVEN_BUDGETS = (4, 8, 10, 12, 14, 16, 18, 19, 20, 21, 22, 23, 24, 25, 26, 28)
LENGTH = 2_000
"""Tokens per text of the coins' world."""
LEAST_FACTOR = 0.05
"""No operation takes less than this share of its mean, however it jitters."""


@dataclass(frozen=True)
class DuoPlan(Plan):
    """How long the worlds of coins run."""

    tokens: int = option(20_000, "Per simulated budget.", type=click.IntRange(min=100))


@dataclass(frozen=True, slots=True)
class World:
    """A pair of devices by a few numbers, in target steps.

    Attributes:
        name: For tables.
        acceptance: iid acceptance a.
        ratio: c, a target step over a draft step.
        growth: What a drafted token adds to a verification.
        jitter: Coefficient of variation of a verification's time and of that of a whole draft.
    """

    name: str
    acceptance: float = 0.8
    ratio: float = 24.0
    growth: float = 0.0
    jitter: float = 0.0


PAPERS_WORLDS = (
    World("even"),
    World("verification grows by 0.5 % per token", growth=0.005),
    World("jitter of 10 %", jitter=0.1),
    World("both", growth=0.005, jitter=0.1),
)
"""The paper's budget of 24 tokens, even and uneven."""


class UnevenCosts:
    """Textbook costs that grow with what is verified, and jitter (`simulator.costs.Costs`).

    Args:
        world: How much.
        lookahead: K, by which the mean of a verification is that of the law, 1 + growth * K.
        seed: Keys the jitter, by device and ordinal number of the operation.
    """

    def __init__(self, world: World, lookahead: int, seed: int) -> None:
        self.world = world
        self.lookahead = lookahead
        self.seed = seed
        self._done: dict[str, int] = {}

    @property
    def steady(self) -> UnevenCosts:
        """See `Costs`: of operations with a spread of their own, which no world of these has."""
        return self

    def steps(self, device: str, operation: Operation) -> list[tuple[str, float]]:
        """Prefills cost nothing here; DuoDecoding asks for nothing else."""
        assert isinstance(operation, Prefill)
        return [("prefill", 0.0)]

    def row_steps(
        self, device: str, view: RowView, work: Sequence[Work], seconds: Mapping[str, float]
    ) -> list[tuple[str, float]]:
        """See `Costs`."""
        world, steps = self.world, work[0]
        mean = 1.0 + world.growth * self.lookahead if device == "target" else 1.0 / world.ratio
        factor = self._factor(device)
        return [(name, mean * factor) for name, _ in steps]

    def _factor(self, device: str) -> float:
        number = self._done.get(device, 0)
        self._done[device] = number + 1
        if self.world.jitter == 0.0:
            return 1.0
        draw = keyed_generator(self.seed, f"uneven-{device}", number).standard_normal()
        return max(LEAST_FACTOR, 1.0 + self.world.jitter * float(draw))


def budget_rows(
    part: str,
    *,
    world: str,
    ratio: float,
    law: int | None,
    speedups: Mapping[int, float],
    laws: Mapping[int, float],
) -> list[Row]:
    """A row per budget of a world, with the best by each opinion.

    Args:
        part: `uneven` or `profile`.
        world: Its name.
        ratio: c, which is the printed budget.
        law: Best by the law; None where it knows nothing of the world's effects.
        speedups: Simulated speedup over plain decoding by budget.
        laws: The law's.
    """
    best = max(speedups, key=lambda k: speedups[k])
    printed = min(speedups, key=lambda k: abs(k - ratio))
    told = {"part": part, "world": world, "ratio": ratio, "best_by_law": law, "best_simulated": best}
    told |= {"policy": "duo", "loss_of_printed": 1.0 - speedups[printed] / speedups[best]}
    return [
        {**told, "lookahead": k, "simulated_speedup_vs_ar": v, "law_speedup_vs_ar": laws[k]}
        for k, v in speedups.items()
    ]


def uneven_budget(world: World, budgets: Sequence[int], *, tokens: int, seed: int) -> list[Row]:
    """Law and simulation of a world at several budgets, with one sequence.

    Args:
        world: Its numbers.
        budgets: K to try.
        tokens: Tokens to simulate per budget; all budgets meet the same coins.
        seed: Keys the coins and the jitter.
    """
    requests = max(1, tokens // LENGTH)
    coins = coin(world.acceptance, exponent=1.0, requests=requests, length=LENGTH, prompt_length=1, seed=seed)
    speedups = {}
    for lookahead in budgets:
        simulated = SimulatedWorld(coins, UnevenCosts(world, lookahead, seed), rows=Synthetic(coins))
        rows = Rows(coins.requests, 1)
        simulated.run(start(simulated, rows, configure("duo", lookahead=lookahead, sequences="1")))
        speedups[lookahead] = requests * LENGTH / simulated.now  # plain decoding emits one token per step
    best = best_budget(
        world.acceptance,
        world.ratio,
        verify_growth=world.growth,
        jitter_target=world.jitter,
        jitter_draft=world.jitter,
    )
    laws = {k: _law(world, k) for k in budgets}
    return budget_rows("uneven", world=world.name, ratio=world.ratio, law=best, speedups=speedups, laws=laws)


def _law(world: World, lookahead: int) -> float:
    return duo_speedup(
        world.acceptance,
        lookahead,
        world.ratio,
        verify_growth=world.growth,
        jitter_target=world.jitter,
        jitter_draft=world.jitter,
    )


STAGES: tuple[tuple[str, Effects], ...] = (
    ("constant times", NO_EFFECT),
    ("verification grows", replace(NO_EFFECT, verify_width=True)),
    ("jitter", replace(NO_EFFECT, jitter=True)),
    ("everything measured", Effects()),
)
"""Effects of real hardware under which a profile's budget is looked for."""


def profile_budgets(scenario: Scenario, budgets: Sequence[int]) -> list[Row]:
    """The budget of a profile on its recorded texts, under more and more of what was measured.

    With one sequence DuoDecoding is PEARL, decision for decision, and any recording replays that at every
    lookahead: so PEARL is what is simulated here.

    Args:
        scenario: Tokens and profile.
        budgets: K to try.
    """
    told = law_inputs(scenario)
    ratio = told.target_s / told.draft_s
    laws = {k: duo_speedup(told.acceptance, k, ratio) for k in budgets}
    found: list[Row] = []
    for name, effects in STAGES:
        stage = replace(scenario, effects=effects)
        plain = simulate(stage, configure("ar")).summary.tokens_per_second
        pearl = {k: configure("pearl", lookahead=k) for k in budgets}
        speedups = {k: simulate(stage, s).summary.tokens_per_second / plain for k, s in pearl.items()}
        known = best_budget(told.acceptance, ratio) if effects == NO_EFFECT else None
        found += budget_rows("profile", world=name, ratio=ratio, law=known, speedups=speedups, laws=laws)
    return found


def around(ratio: float, most: int) -> tuple[int, ...]:
    """Budgets to try: 1 to c + 2, in steps that leave about a dozen, and each of c - 2 to c + 2."""
    middle = max(1, round(ratio))
    step = max(1, middle // 8)
    near = range(max(1, middle - 2), middle + 3)
    return tuple(sorted({k for k in (*range(1, middle + 2, step), *near) if k <= most}))


@dataclass(frozen=True)
class Doubt:
    """Rounds in which the position past the block was reached.

    Attributes:
        counts: Rounds by number of sequences.
        leading: Of those, rounds in which the leading sequence's first token was the target's.
        going_on: Of those, rounds in which any sequence's was.
        drafted: Mean tokens drafted per round, all rounds.
    """

    counts: dict[int, int]
    leading: dict[int, int]
    going_on: dict[int, int]
    drafted: float

    @property
    def rounds(self) -> int:
        """Rounds counted."""
        return sum(self.counts.values())

    def share(self, *, several: bool, needed: bool) -> float:
        """A cell of the paper's Table 4.

        Args:
            several: Whether more than one sequence was drafted ("Pred > 1").
            needed: Whether the leading one failed, so that one was not enough ("Actual > 1").
        """
        found = 0
        for count, rounds in self.counts.items():
            if (count > 1) == several:
                leading = self.leading.get(count, 0)
                found += rounds - leading if needed else leading
        return found / self.rounds

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        names = {False: "one", True: "several"}
        cells = {
            f"actual_{names[needed]}_predicted_{names[several]}": self.share(several=several, needed=needed)
            for several in (False, True)
            for needed in (False, True)
        }
        return {
            "rounds": self.rounds,
            "sequences": list(self.counts),
            "rounds_by_sequences": list(self.counts.values()),
            "leading_went_on": list(self.leading.values()),
            "any_went_on": list(self.going_on.values()),
            "drafted_per_round": self.drafted,
            "went_on": sum(self.going_on.values()) / self.rounds,
            **cells,
        }


def doubt_of(decisions: Decisions, requests: Collection[int] | None = None) -> Doubt:
    """Count the rounds of a setting.

    Args:
        decisions: Of DuoDecoding.
        requests: Count these only; None: all.

    Raises:
        ValueError: They are of another policy, or the position past a block was never reached.
    """
    counts: Counter[int] = Counter()
    leading: Counter[int] = Counter()
    going_on: Counter[int] = Counter()
    drafted = rounds = 0
    for (kind, part, request, position), reply in decisions.replies.items():
        if kind != DraftSequences.kind or (requests is not None and request not in requests):
            continue
        sequences = reply[0]
        rounds += 1
        drafted += sum(map(len, sequences))
        chosen = _chosen(decisions, part, request, position)
        if chosen is None:
            continue
        first_tokens = [sequence[0] for sequence in sequences]
        counts[len(sequences)] += 1
        leading[len(sequences)] += first_tokens[0] == chosen
        going_on[len(sequences)] += chosen in first_tokens
    if not counts:
        raise ValueError(f"{decisions.label!r} has no round in which a sequence was tried")
    return Doubt(
        dict(sorted(counts.items())),
        {count: leading[count] for count in sorted(leading)},
        {count: going_on[count] for count in sorted(going_on)},
        drafted / rounds,
    )


def _chosen(decisions: Decisions, part: int, request: int, position: int) -> int | None:
    """The target's token past the block; None where the block was not accepted as a whole, or cut."""
    (accepted, _, _, bonus), work = decisions.replies[VerifyPending.kind, part, request, position]
    settled = decisions.replies.get((SettleSequences.kind, part, request, position))
    if settled is not None:
        last: int = settled[0][3]
        return last
    whole = accepted == work[0][1] - 1 and bonus != UNKNOWN
    return int(bonus) if whole else None


def settings_for(ratio: float) -> list[Settings]:
    """What `--live` runs: SD, the threshold, one to four sequences, and one around the cost ratio."""
    middle = min(MAX_LOOKAHEAD, max(1, round(ratio)))
    budgets = [k for k in range(middle - 2, middle + 3) if 1 <= k <= MAX_LOOKAHEAD]
    return [
        configure("sd", lookahead=SD_LOOKAHEAD),
        configure("duo", lookahead=middle),
        *(configure("duo", lookahead=middle, sequences=n) for n in STATIC if n == "1" or int(n) < middle),
        *(configure("duo", lookahead=k, sequences="1") for k in budgets if k != middle),
    ]


def columns(view: View) -> Row:
    """What a mean round is, and what the threshold of a setting predicts."""
    rounds = view.total("batch_rounds")

    def busy(device: str) -> float:
        return float(sum(s.seconds * s.utilization.get(device, 0.0) for s in view.own.summaries) / rounds)

    first = [s.time_to_first_token_s for s in view.own.summaries if s.time_to_first_token_s is not None]
    row: Row = {
        "round_s": view.total("seconds") / rounds,
        "target_s": busy("target"),
        "draft_s": busy("draft"),
        "first_token_s": float(np.mean(first)) if first else None,
    }
    if view.settings.policy == "duo" and view.decisions and not view.live:
        try:
            doubt = doubt_of(view.decisions[0], {request.id for request in view.trace.requests})
        except ValueError:  # too few tokens for a single round that got so far
            return row
        row |= {f"doubt_{name}": value for name, value in doubt.as_dict().items()}
    return row


def answer(bench: Bench) -> list[Row]:
    """Budgets of uneven worlds and of the profile, and with `--live` the settings of the tables."""
    plan = bench.plan_as(DuoPlan)
    rows: list[Row] = []
    for done, world in enumerate(PAPERS_WORLDS):
        rows += uneven_budget(world, UNEVEN_BUDGETS, tokens=plan.tokens, seed=plan.seed)
        bench.progress("uneven worlds", done + 1, len(PAPERS_WORLDS))
    scenario = bench.sources.scenario(0.0, seed=plan.seed)
    told = law_inputs(scenario)
    ratio = told.target_s / told.draft_s
    rows += profile_budgets(scenario, around(ratio, MAX_LOOKAHEAD))
    if plan.live or bench.stored is not None:
        found = bench.compare([Entry(settings) for settings in settings_for(ratio)])
        rows += [{"part": "setting", **row} for row in found]
    return [{"profile": bench.sources.profile.name, **row} for row in rows]


def settings_rows(results: Results) -> list[Row]:
    """The settings that ran live, plain decoding among them, all categories."""
    return [row for row in results.rows if row["part"] == "setting"]


def about(results: Results) -> Row:
    """Times to the first token over plain decoding's, by setting; and DuoDecoding's over SD's."""
    rows = [row for row in settings_rows(results) if row["category"] == EVERY]
    return {"first_token": {w: first_token(rows, w) for w in ("simulated", "measured")}} if rows else {}


def first_token(rows: Sequence[Row], world: str) -> dict[str, float]:
    """Times to the first token over plain decoding's in one world."""
    times = {row["setting"]: row[f"{world}_first_token_s"] for row in rows}
    found = {label: seconds / times["ar"] for label, seconds in times.items()}
    sd, duo = (next((r["setting"] for r in rows if r["policy"] == p), None) for p in ("sd", "duo"))
    if sd is not None and duo is not None:
        found["duo over sd"] = ttft_ratio(times[duo], times[sd])
    return found


def budget_table(results: Results, part: str, title: str) -> Any:
    """The best budget of each world by each opinion."""
    rows = {row["world"]: row for row in results.rows if row["part"] == part}
    best = {
        r["world"]: r["simulated_speedup_vs_ar"]
        for r in results.rows
        if r["part"] == part and r["lookahead"] == r["best_simulated"]
    }
    return table(
        title,
        (
            Column("world", "world"),
            Column("c", "ratio", "{:.2f}"),
            Column("best by law", "best_by_law"),
            Column("best simulated", "best_simulated"),
            Column("speedup there", lambda row: best[row["world"]], "{:.3f}x"),
            Column("printed budget loses", "loss_of_printed", lambda v: f"{100 * v:.1f} %"),
        ),
        rows.values(),
    )


def show(results: Results) -> Iterator[Any]:
    """Budgets, then the settings by category, what the threshold predicts, and mean rounds."""
    yield budget_table(results, "uneven", "budget at the paper's cost ratio")
    profile = results.rows[0]["profile"]
    yield budget_table(results, "profile", f"budget on {profile}, recorded texts, one sequence")
    rows = settings_rows(results)
    if rows:
        yield from (speed_table(rows), doubt_table(rows), round_table(rows, results.about["first_token"]))


def speed_table(rows: Sequence[Row]) -> Any:
    """Speedups of the settings by category."""
    of = {(row["setting"], row["category"]): row for row in rows}

    def category(name: str) -> Column:
        def pair(row: Row) -> str:
            own = of[row["setting"], name]
            return f"{own['simulated_speedup_vs_ar']:.2f} / {own['measured_speedup_vs_ar']:.2f}"

        return Column(name, pair)

    shown = map(category, dict.fromkeys(row["category"] for row in rows))
    return table(
        "speedup over plain decoding: law, then simulated / measured by category",
        (SETTING, factor("law", "law"), *shown, Column("lossless", "identical", yes)),
        [row for row in rows if row["category"] == EVERY],
    )


def doubt_table(rows: Sequence[Row]) -> Any:
    """What the threshold predicts (Table 4, Figure 5)."""

    def share(title: str, name: str) -> Column:
        return Column(title, f"simulated_doubt_{name}", lambda v: f"{100 * v:.1f} %")

    dynamic = [row for row in rows if row["policy"] == "duo" and not _count(row)]
    return table(
        "what the threshold predicts (rounds that reached the position past the block)",
        (
            Column("prompts", "category"),
            Column("rounds", "simulated_doubt_rounds"),
            share("one, one needed", "actual_one_predicted_one"),
            share("several, one needed", "actual_one_predicted_several"),
            share("one, several needed", "actual_several_predicted_one"),
            share("several, several needed", "actual_several_predicted_several"),
            share("went on", "went_on"),
        ),
        dynamic,
    )


def round_table(rows: Sequence[Row], relative: Mapping[str, Mapping[str, float]]) -> Any:
    """A mean round and the first token, simulated and measured (Figures 3 and 4)."""

    def pair(title: str, name: str) -> Column:
        return Column(
            title, lambda r: f"{1e3 * r[f'simulated_{name}']:.2f} / {1e3 * r[f'measured_{name}']:.2f}"
        )

    def over_ar(row: Row) -> str:
        return " / ".join(f"{relative[world][row['setting']]:.2f}" for world in ("simulated", "measured"))

    return table(
        "a mean round and the first token: simulated / measured, milliseconds",
        (
            SETTING,
            pair("ms per round", "round_s"),
            pair("target busy", "target_s"),
            pair("draft busy", "draft_s"),
            Column("drafted", "simulated_doubt_drafted_per_round", "{:.1f}"),
            pair("first token", "first_token_s"),
            Column("over ar", over_ar),
        ),
        [row for row in rows if row["category"] == EVERY],
    )


def _count(row: Row) -> int:
    config = settings_of(row).config
    return config.count if isinstance(config, DuoConfig) else 0


def pictures(results: Results) -> dict[str, Picture]:
    """Speedup over the budget, in the uneven worlds and on the profile; and by number of sequences."""
    rows = [row for row in settings_rows(results) if row["category"] == EVERY]
    width = 3 if rows else 2

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, width)
        draw_budgets(axes[0], [r for r in results.rows if r["part"] == "uneven"], "cost ratio of the paper")
        profile = [row for row in results.rows if row["part"] == "profile"]
        draw_budgets(axes[1], profile, profile[0]["profile"])
        if rows:
            draw_sequences(axes[2], rows)

    return {"": Picture(draw, (4.6 * width, 3.6))}


def draw_budgets(axes: Any, rows: Sequence[Row], title: str) -> None:
    """Speed by drafting budget, a line per world, its best budget marked; the law dotted, c dashed."""
    for i, world in enumerate(dict.fromkeys(row["world"] for row in rows)):
        mine = sorted((row for row in rows if row["world"] == world), key=lambda row: int(row["lookahead"]))
        x = [row["lookahead"] for row in mine]
        axes.plot(x, [row["simulated_speedup_vs_ar"] for row in mine], f"C{i}-", label=world)
        if mine[0]["best_by_law"] is not None:
            axes.plot(x, [row["law_speedup_vs_ar"] for row in mine], f"C{i}:", linewidth=1)
        best = next(row for row in mine if row["lookahead"] == row["best_simulated"])
        axes.plot(best["lookahead"], best["simulated_speedup_vs_ar"], f"C{i}D", markersize=5)
    axes.axvline(rows[0]["ratio"], color="#999999", linewidth=0.8, linestyle="--")
    axes.set_title(f"{title}; dotted: law, dashed: c", fontsize=9)
    axes.set_xlabel("drafting budget K")
    axes.set_ylabel("speedup over AR")
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)


def draw_sequences(axes: Any, rows: Sequence[Row]) -> None:
    """Speed by number of sequences at the budget of the threshold."""
    budget = next(row["lookahead"] for row in rows if row["policy"] == "duo" and not _count(row))
    mine = [row for row in rows if row["policy"] == "duo" and row["lookahead"] == budget]
    names = [str(_count(row) or "dynamic") for row in mine]
    axes.plot(names, [row["simulated_speedup_vs_ar"] for row in mine], "C0D", label="simulated")
    measured = [row["measured_speedup_vs_ar"] for row in mine]
    axes.plot(names, measured, "C1o", fillstyle="none", label="measured")
    axes.set_title(f"sequences, budget {budget}", fontsize=9)
    axes.set_xlabel("sequences")
    axes.set_ylabel("speedup over AR")
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)


STUDY = Study(
    "duodecoding",
    "How many tokens and sequences should DuoDecoding draft, and what does its threshold predict?",
    DuoPlan,
    columns=columns,
    by_category=True,
    answer=answer,
    about=about,
    show=show,
    pictures=pictures,
    examples=("", "--live --repeats 3 --out my-duo"),
)
