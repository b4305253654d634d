"""DuoDecoding's tables and figures in kind: budget, sequences, the threshold, and the first token.

How many tokens to draft: the printed budget is the cost ratio c (`duo.budget`), which is right where a target
step takes the same time whatever it verifies and every time.  Here verification grows with the budget and
both devices jitter, by as much as one likes; and on a profile, effect after effect of the hardware it was
measured on (Table 3).  With `--live` also one to four sequences against the threshold (Table 2), what the
threshold predicts (Table 4, Figure 5), the time to the first token (Figure 3) and what a mean round is
(Figure 4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import click
import numpy as np

from analysis.execute import Bench
from analysis.outcomes import WorldView
from analysis.results import EVERY, Results, Row, value_of, where
from analysis.show import SETTING, Column, by_category, factor, frame, table, yes
from analysis.study import Entry, Picture, Plan, Study, option
from hardware_profiles.reply_trace import Decisions
from policies.duo import DraftSequences, SettleSequences, VerifyPending
from policies.laws.duo import best_budget, duo_speedup, ttft_ratio
from policies.operation import Work
from policies.registry import MAX_LOOKAHEAD, Settings, configure
from policies.sampling import keyed_generator
from policies.values import UNKNOWN, View
from simulator.costs import Effects, TextbookCosts
from simulator.law import NO_EFFECT, law_inputs
from simulator.run import Scenario, simulate
from simulator.tokens import coin

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


# Budgets


@dataclass(frozen=True, slots=True)
class UnevenWorld:
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

    @property
    def uneven(self) -> Row:
        """What the law is told beyond acceptance and ratio."""
        return {"verify_growth": self.growth, "jitter_target": self.jitter, "jitter_draft": self.jitter}


PAPERS_WORLDS = (
    UnevenWorld("even"),
    UnevenWorld("verification grows by 0.5 % per token", growth=0.005),
    UnevenWorld("jitter of 10 %", jitter=0.1),
    UnevenWorld("both", growth=0.005, jitter=0.1),
)
"""The paper's budget of 24 tokens, even and uneven."""


@dataclass(frozen=True)
class JitteringCosts(TextbookCosts):
    """Constant latencies times a factor per operation.

    Attributes:
        jitter: Coefficient of variation of the factors.
        seed: Keys them, by device and ordinal number of the operation.
    """

    jitter: float = 0.0
    seed: int = 0
    _done: dict[str, int] = field(default_factory=dict)

    def row_steps(
        self, device: str, view: View, work: Sequence[Work], seconds: Mapping[str, float]
    ) -> list[tuple[str, float]]:
        """See `Costs`."""
        number = self._done[device] = self._done.get(device, -1) + 1
        factor = 1.0
        if self.jitter:
            draw = keyed_generator(self.seed, f"uneven-{device}", number).standard_normal()
            factor = max(LEAST_FACTOR, 1.0 + self.jitter * float(draw))
        return [(name, s * factor) for name, s in super().row_steps(device, view, work, seconds)]


def uneven_budget(world: UnevenWorld, budgets: Sequence[int], *, tokens: int, seed: int) -> list[Row]:
    """Law and simulation of a world at several budgets, with one sequence.

    Each is simulated on so many tokens, all on the same coins; the seed keys these and the jitter.
    """
    requests = max(1, tokens // LENGTH)
    coins = coin(world.acceptance, exponent=1.0, requests=requests, length=LENGTH, prompt_length=1, seed=seed)
    speedups = {}
    for k in budgets:
        costs = JitteringCosts(1.0 + world.growth * k, 1.0 / world.ratio, world.jitter, seed)
        run = simulate(Scenario(coins, textbook=costs), configure("duo", lookahead=k, sequences="1"))
        speedups[k] = run.summary.tokens_per_second  # plain decoding emits one token per step
    laws = {k: duo_speedup(world.acceptance, k, world.ratio, **world.uneven) for k in budgets}
    best = best_budget(world.acceptance, world.ratio, **world.uneven)
    common = {"part": "uneven", "world": world.name, "ratio": world.ratio, "best_by_law": best}
    return budget_rows(common, speedups, laws)


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
    """
    inputs = law_inputs(scenario)
    ratio = inputs.ratio
    laws = {k: duo_speedup(inputs.acceptance, k, ratio) for k in budgets}
    pearl = {k: configure("pearl", lookahead=k) for k in budgets}
    rows: list[Row] = []
    for name, effects in STAGES:
        stage = replace(scenario, effects=effects)
        plain = simulate(stage, configure("ar")).summary.tokens_per_second
        speedups = {k: simulate(stage, s).summary.tokens_per_second / plain for k, s in pearl.items()}
        known = best_budget(inputs.acceptance, ratio) if effects == NO_EFFECT else None
        world = {"part": "profile", "world": name, "ratio": ratio, "best_by_law": known}
        rows += budget_rows(world, speedups, laws)
    return rows


def budget_rows(world: Row, speedups: Mapping[int, float], laws: Mapping[int, float]) -> list[Row]:
    """A row per budget of a world, with the best simulated one and what the printed one, c, loses against it.

    Args:
        world: Its columns: `part` (`uneven` or `profile`), `world`, `ratio` (c) and `best_by_law`, None where
            the law knows nothing of the world's effects.
        speedups: Simulated, over plain decoding, by budget.
        laws: The law's.
    """
    best = max(speedups, key=lambda k: speedups[k])
    printed = min(speedups, key=lambda k: abs(k - world["ratio"]))
    lost = 1.0 - speedups[printed] / speedups[best]
    common = {**world, "best_simulated": best, "policy": "duo", "loss_of_printed": lost}
    return [
        {**common, "lookahead": k, "simulated_speedup_vs_ar": v, "law_speedup_vs_ar": laws[k]}
        for k, v in speedups.items()
    ]


def around(ratio: float, most: int) -> tuple[int, ...]:
    """Budgets to try: 1 to c + 2, in steps that leave about a dozen, and each of c - 2 to c + 2."""
    middle = max(1, round(ratio))
    near = range(max(1, middle - 2), middle + 3)
    return tuple(sorted({k for k in (*range(1, middle + 2, max(1, middle // 8)), *near) if k <= most}))


# What runs live


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


def confidence_of(decisions: Decisions, requests: Collection[int] | None = None) -> Row:
    """What the threshold of a setting predicts, by the rounds that reached the position past the block.

    Args:
        decisions: Of DuoDecoding.
        requests: Count these only; None: all.

    Returns:
        `rounds`; by number of `sequences` the `rounds_by_sequences` and those in which the first token of the
        leading sequence (`leading_went_on`) or of any (`any_went_on`) was the target's; `drafted_per_round`,
        mean tokens of all rounds; `went_on`, share of rounds; and the shares of the paper's Table 4, e.g.
        `actual_one_predicted_several`: the leading one was enough, and several were drafted.

    Raises:
        ValueError: They are of another policy, or the position past a block was never reached.
    """
    drafted: list[int] = []
    tried: list[tuple[int, bool, bool]] = []
    for (kind, part, request, position), reply in decisions.replies.items():
        if kind != DraftSequences.kind or (requests is not None and request not in requests):
            continue
        drafted.append(sum(map(len, reply[0])))
        chosen = _chosen(decisions, part, request, position)
        if chosen is not None:
            first_tokens = [sequence[0] for sequence in reply[0]]
            tried.append((len(first_tokens), first_tokens[0] == chosen, chosen in first_tokens))
    if not tried:
        raise ValueError(f"{decisions.label!r} has no round in which a sequence was tried")
    count, led, went_on = np.array(tried).T
    sequences = np.unique(count)
    names = ("one", "several")
    return {
        "rounds": len(count),
        "sequences": sequences.tolist(),
        "rounds_by_sequences": [int((count == n).sum()) for n in sequences],
        "leading_went_on": [int(led[count == n].sum()) for n in sequences],
        "any_went_on": [int(went_on[count == n].sum()) for n in sequences],
        "drafted_per_round": sum(drafted) / len(drafted),
        "went_on": float(np.mean(went_on)),
        **{
            f"actual_{names[needed]}_predicted_{names[several]}": float(
                np.mean(((count > 1) == several) & (led != needed))
            )
            for several in (0, 1)
            for needed in (0, 1)
        },
    }


def _chosen(decisions: Decisions, part: int, request: int, position: int) -> int | None:
    """The target's token past the block; None where the block was not accepted as a whole, or cut."""
    (accepted, _, _, bonus), work = decisions.replies[VerifyPending.kind, part, request, position]
    settled = decisions.replies.get((SettleSequences.kind, part, request, position))
    if settled is not None:
        last: int = settled[0][3]
        return last
    whole = accepted == work[0][1] - 1 and bonus != UNKNOWN
    return int(bonus) if whole else None


def columns(view: WorldView) -> Row:
    """What a mean round is, and what the threshold of a setting predicts."""
    rounds, summaries = view.total("batch_rounds"), view.own.summaries
    first = [s.time_to_first_token_s for s in summaries if s.time_to_first_token_s is not None]
    row: Row = {"round_s": view.total("seconds") / rounds}
    for device in ("target", "draft"):
        busy_s = sum(s.seconds * s.utilization.get(device, 0.0) for s in summaries)
        row[f"{device}_s"] = float(busy_s / rounds)
    row["first_token_s"] = float(np.mean(first)) if first else None
    if view.settings.policy == "duo" and view.decisions and not view.live:
        with suppress(ValueError):  # too few tokens for a single round that got so far
            confidence = confidence_of(view.decisions[0], {request.id for request in view.trace.requests})
            row |= {f"doubt_{name}": value for name, value in confidence.items()}
    return row


def answer(bench: Bench) -> list[Row]:
    """Budgets of uneven worlds and of the profile, and with `--live` the settings of the tables."""
    plan = bench.plan_as(DuoPlan)
    rows: list[Row] = []
    for done, world in enumerate(PAPERS_WORLDS):
        rows += uneven_budget(world, UNEVEN_BUDGETS, tokens=plan.tokens, seed=plan.seed)
        bench.progress("uneven worlds", done + 1, len(PAPERS_WORLDS))
    scenario = bench.sources.scenario(0.0, seed=plan.seed)
    ratio = law_inputs(scenario).ratio
    rows += profile_budgets(scenario, around(ratio, MAX_LOOKAHEAD))
    if plan.live or bench.stored is not None:
        compared = bench.compare([Entry(settings) for settings in settings_for(ratio)])
        rows += [{"part": "setting", **row} for row in compared]
    return [{"profile": bench.sources.profile.name, **row} for row in rows]


# Tables and pictures


def settings_rows(results: Results) -> list[Row]:
    """The settings that ran live, plain decoding among them, all categories."""
    return where(results.rows, part="setting")


def about(results: Results) -> Row:
    """Times to the first token over plain decoding's, by setting; and DuoDecoding's over SD's."""
    rows = where(settings_rows(results), category=EVERY)
    return {"first_token": {w: first_token(rows, w) for w in ("simulated", "measured")}} if rows else {}


def first_token(rows: Sequence[Row], world: str) -> dict[str, float]:
    """Times to the first token over plain decoding's in one world."""
    times = {row["setting"]: row[f"{world}_first_token_s"] for row in rows}
    ratios = {label: seconds / times["ar"] for label, seconds in times.items()}
    sd, duo = where(rows, policy="sd"), where(rows, policy="duo")
    if sd and duo:
        ratios["duo over sd"] = ttft_ratio(times[duo[0]["setting"]], times[sd[0]["setting"]])
    return ratios


BUDGETS = (
    Column("world", "world"),
    Column("c", "ratio", "{:.2f}"),
    Column("best by law", "best_by_law"),
    Column("best simulated", "best_simulated"),
    Column("speedup there", "simulated_speedup_vs_ar", "{:.3f}x"),
    Column("printed budget loses", "loss_of_printed", "{:.1%}"),
)


def budget_table(results: Results, part: str, title: str) -> Any:
    """The best budget of each world by each opinion."""
    return table(title, BUDGETS, best_budgets(where(results.rows, part=part)))


def best_budgets(rows: Sequence[Row]) -> list[Row]:
    """The rows of each world's best simulated budget."""
    return [row for row in rows if row["lookahead"] == row["best_simulated"]]


def show(results: Results) -> Iterator[Any]:
    """Budgets, then the settings by category, what the threshold predicts, and mean rounds."""
    yield budget_table(results, "uneven", "budget at the paper's cost ratio")
    profile = results.rows[0]["profile"]
    yield budget_table(results, "profile", f"budget on {profile}, recorded texts, one sequence")
    rows = settings_rows(results)
    if not rows:
        return
    every = where(rows, category=EVERY)

    def speedups(row: Row) -> str:
        return f"{row['simulated_speedup_vs_ar']:.2f} / {row['measured_speedup_vs_ar']:.2f}"

    lossless = Column("lossless", "identical", yes)
    yield table(
        "speedup over plain decoding: law, then simulated / measured by category",
        (SETTING, factor("law", "law"), *by_category(rows, speedups, every=True), lossless),
        every,
    )
    yield table(
        "what the threshold predicts (rounds that reached the position past the block)",
        DOUBTS,
        where(rows, policy="duo", sequences="dynamic"),
    )
    yield round_table(every, results.about["first_token"])


DOUBTS = (
    Column("prompts", "category"),
    Column("rounds", "simulated_doubt_rounds"),
    Column("one, one needed", "simulated_doubt_actual_one_predicted_one", "{:.1%}"),
    Column("several, one needed", "simulated_doubt_actual_one_predicted_several", "{:.1%}"),
    Column("one, several needed", "simulated_doubt_actual_several_predicted_one", "{:.1%}"),
    Column("several, several needed", "simulated_doubt_actual_several_predicted_several", "{:.1%}"),
    Column("went on", "simulated_doubt_went_on", "{:.1%}"),
)
"""Table 4 and Figure 5."""


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
        rows,
    )


def pictures(results: Results) -> dict[str, Picture]:
    """Speedup over the budget, in the uneven worlds and on the profile; and by number of sequences."""
    rows = where(settings_rows(results), category=EVERY)
    width = 3 if rows else 2

    def draw(figure: Any) -> None:
        uneven, profile, *rest = figure.subplots(1, width)
        draw_budgets(uneven, where(results.rows, part="uneven"), "cost ratio of the paper")
        mine = where(results.rows, part="profile")
        draw_budgets(profile, mine, mine[0]["profile"])
        for axes in rest:
            draw_sequences(axes, rows)

    return {"": Picture(draw, (4.6 * width, 3.6))}


def draw_budgets(axes: Any, rows: Sequence[Row], title: str) -> None:
    """Speed by drafting budget, a line per world, its best budget marked; the law dotted, c dashed."""
    for i, best in enumerate(best_budgets(rows)):
        mine = sorted(where(rows, world=best["world"]), key=lambda row: int(row["lookahead"]))
        x = [row["lookahead"] for row in mine]
        axes.plot(x, [row["simulated_speedup_vs_ar"] for row in mine], f"C{i}-", label=best["world"])
        if best["best_by_law"] is not None:
            axes.plot(x, [row["law_speedup_vs_ar"] for row in mine], f"C{i}:", linewidth=1)
        axes.plot(best["lookahead"], best["simulated_speedup_vs_ar"], f"C{i}D", markersize=5)
    axes.axvline(rows[0]["ratio"], color="#999999", linewidth=0.8, linestyle="--")
    axes.set_title(f"{title}; dotted: law, dashed: c", fontsize=9)
    frame(axes, x="drafting budget K", y="speedup over AR", legend=7)


def draw_sequences(axes: Any, rows: Sequence[Row]) -> None:
    """Speed by number of sequences at the budget of the threshold."""
    budget = where(rows, policy="duo", sequences="dynamic")[0]["lookahead"]
    mine = where(rows, policy="duo", lookahead=budget)
    names = [value_of(row, "sequences") for row in mine]
    axes.plot(names, [row["simulated_speedup_vs_ar"] for row in mine], "C0D", label="simulated")
    measured = [row["measured_speedup_vs_ar"] for row in mine]
    axes.plot(names, measured, "C1o", fillstyle="none", label="measured")
    axes.set_title(f"sequences, budget {budget}", fontsize=9)
    frame(axes, x="sequences", y="speedup over AR", legend=7)


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
