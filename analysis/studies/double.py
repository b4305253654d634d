"""Does DOUBLE pass the ceiling C of a draft/verify pipeline, and what makes it?

Against plain decoding, prompt lookup, SD and PEARL; without the draft's retrieval, without the target's,
without the rejected cache, in turns on one device, by retrieval length and by prior.  And how long a lookup
takes by the size of the datastore.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from analysis.execute import Bench, View, pooled_figure
from analysis.results import Results, Row
from analysis.show import Column, factor, table, used, yes
from analysis.study import POSITIVE, Entry, Picture, Plan, Study, option
from hardware_profiles.datastore import Datastore, datastore_path
from hardware_profiles.reply_trace import Decisions
from hardware_profiles.trace import Trace
from policies.laws.double import double_speedup_printed
from policies.registry import SettingError, Settings, configure
from policies.retrieval import Hierarchy

METHODS, ABLATION, DEPTH, PRIOR = PARTS = ("methods", "ablation", "depth", "prior")
"""What is compared: tables 1 and 12, figure 5 with the rejected cache, figure 6, table 3."""
LOOKUPS = 400
"""Most lookups that a retrieval time is the median of."""


@dataclass(frozen=True)
class DoublePlan(Plan):
    """Which tables, and which priors."""

    datastore: tuple[str, ...] = option((), "Priors by name or folder, smallest first.  [default: none]")
    parts: tuple[str, ...] = option(PARTS, "Tables.")
    lookahead: int = option(4, "K of all.", type=POSITIVE)
    depths: tuple[int, ...] = option((1, 5, 20), "Retrieval lengths.")
    count: int | None = option(4, "Prompts to use.", type=POSITIVE)
    max_tokens: int | None = option(48, "Most tokens per prompt.", type=POSITIVE)
    repeats: int = option(2, "Live repetitions.", type=POSITIVE)


def entries_for(plan: DoublePlan, **target: Any) -> list[Entry]:
    """Plain decoding, the baselines, DOUBLE, and DOUBLE with one thing changed each.

    Args:
        plan: What is varied.
        target: Temperature and seed.
    """
    k = {"lookahead": plan.lookahead, **target}

    def double(part: str, name: str, **knobs: Any) -> tuple[str, str, Settings]:
        return part, name, configure("double", **k, **knobs)

    found = [
        (METHODS, "plain decoding", configure("ar", **target)),
        (METHODS, "prompt lookup", configure("pld", **k)),
        (METHODS, "SD", configure("sd", **k)),
        (METHODS, "PEARL", configure("pearl", **k)),
        double(METHODS, "DOUBLE"),
        double(METHODS, "DOUBLE, in turns", overlap="off"),
        double(ABLATION, "without draft retrieval", draft_retrieval="off"),
        double(ABLATION, "without target retrieval", target_retrieval="off"),
        double(ABLATION, "without rejected cache", rejected_cache="off"),
    ]
    found += [double(DEPTH, f"d = {depth}", retrieval_length=depth) for depth in plan.depths]
    found += [double(PRIOR, "no prior")] if plan.datastore else []
    found += [double(PRIOR, f"prior {name}", datastore=name) for name in plan.datastore]
    # The methods are what everything else is compared with.
    wanted = {METHODS, *plan.parts}
    return [Entry(s, tags=(("part", part), ("name", name))) for part, name, s in found if part in wanted]


@dataclass(frozen=True, slots=True)
class Account:
    """What retrieval did.

    Attributes:
        draft_matched: AMT of the draft: retrieved tokens confirmed, per forward.
        target_matched: The same of the target; after a rejected pending token it confirms none.
        drafted: Drafted tokens per round.
        retrieve_s: Median seconds of a lookup step, for all rows.
    """

    draft_matched: float
    target_matched: float
    drafted: float
    retrieve_s: float

    @classmethod
    def of(cls, decisions: Decisions) -> Account:
        """From the replies of a run."""
        by_kind: dict[str, list[Any]] = {"retrievingdraft": [], "retrievingverify": [], "guide": []}
        for (kind, *_), reply in decisions.replies.items():
            by_kind[kind].append(reply)
        matched = [count for reply in by_kind["retrievingdraft"] for count in reply[2]]
        # The last emitted token is the target's own, or the draft's, and not a retrieved one.
        behind = [
            max(0, len(reply[0][1]) - reply[0][0] - 1)
            for kind in ("retrievingverify", "guide")
            for reply in by_kind[kind]
        ]
        return cls(
            draft_matched=float(np.mean(matched)) if matched else 0.0,
            target_matched=sum(behind) / len(by_kind["retrievingverify"]),
            drafted=float(np.mean([len(reply[0]) for reply in by_kind["retrievingdraft"]])),
            retrieve_s=decisions.seconds.get("retrieve", 0.0),
        )


def law_of(settings: Settings, tokens_per_round: float, ratio: float) -> float:
    """DOUBLE's speedup if a round lasted as long as the slower of f draft forwards and one target step.

    (tokens per round) C / max(f, C), or C / (f + C) in turns: equation 7 corrected (`double_speedup`) for
    a pipeline that pre-verifies while it drafts, and so has no bubble.  The tokens are counted, not
    predicted: no law gives them from an acceptance.

    Args:
        settings: Of DOUBLE.
        tokens_per_round: Of its run.
        ratio: C.
    """
    forwards = float(settings.lookahead or 1)
    turns = settings.knobs["overlap"] == "off"
    return tokens_per_round * ratio / (forwards + ratio if turns else max(forwards, ratio))


@dataclass(frozen=True, slots=True)
class RetrievalTime:
    """How long looking words up takes.

    Attributes:
        datastore: The prior; empty for none.
        tokens: Its tokens.
        median_s: Seconds of a lookup, over all layers.
        most_s: The longest one.
        found: Share of lookups that retrieved something.
        longest: Longest ending looked up.
    """

    datastore: str
    tokens: int
    median_s: float
    most_s: float
    found: float
    longest: int


def retrieval_time(
    name: str, trace: Trace, *, longest: int = 3, span: int = 10, lookups: int = LOOKUPS
) -> RetrievalTime:
    """Time lookups after the words of recorded texts, as a request that emits them would do them.

    Args:
        name: Of the prior; empty for none.
        trace: Recorded texts.
        longest: Longest ending.
        span: Tokens retrieved.
        lookups: Most lookups.
    """
    prior = Datastore.open(datastore_path(name)) if name else None
    seconds: list[float] = []
    found = 0
    for request, a, b in zip(trace.requests, trace.offsets, trace.offsets[1:], strict=False):
        layers = Hierarchy(longest, prior=prior)
        layers.accept(request.prompt)
        for token in trace.token[a:b].tolist():
            start = time.perf_counter()
            retrieved = layers.retrieve((), span)
            seconds.append(time.perf_counter() - start)
            found += bool(retrieved)
            layers.accept((token,))
            if len(seconds) == lookups:
                break
        if len(seconds) == lookups:
            break
    tokens = 0 if prior is None else len(prior)
    median, most = float(np.median(seconds)), max(seconds)
    return RetrievalTime(name, tokens, median, most, found / len(seconds), longest)


def columns(view: View) -> Row:
    """Rounds of every setting; of DOUBLE what retrieval did, and its law as printed."""
    row: Row = {
        "run_length": pooled_figure(view.own.summaries, "run_length"),
        "stretch": view.total("seconds") / view.total("batch_rounds") * view.unit.speed,
    }
    if view.settings.policy != "double" or not view.decisions:
        return row
    account = Account.of(view.decisions[0])
    ratio = view.told.target_s / view.told.draft_s
    return {**row, **asdict(account), "law_printed": printed_law_of(view, account, ratio)}


def printed_law_of(view: View, account: Account, ratio: float) -> float:
    """Equation 7 as printed, its gamma in tokens, from the counts of a run.

    A run of the paper ends where nothing is pending any more; L_b are the target's retrieved tokens.
    """
    rounds = view.rounds()
    runs = max(1, int((rounds["hit"] != 1).sum()))
    bonus = account.target_matched * len(rounds["hit"])
    return float(
        double_speedup_printed(
            max(0.0, float(rounds["emitted"].sum()) - bonus) / runs,
            bonus / runs,
            len(rounds["hit"]) / runs,
            (view.settings.lookahead or 1) * (1.0 + account.draft_matched),
            ratio,
            matched=account.draft_matched,
        )
    )


def answer(bench: Bench) -> list[Row]:
    """Every setting beside the ceiling, and the lookups of every prior (part `lookup`).

    Raises:
        SettingError: A part that does not exist, or priors without a datastore.
    """
    plan = bench.plan_as(DoublePlan)
    if unknown := sorted(set(plan.parts) - set(PARTS)):
        raise SettingError(f"there is no part {unknown[0]!r}; parts: {', '.join(PARTS)}")
    for name in plan.datastore:
        Datastore.open(datastore_path(name))  # refuse before anything is run
    entries = [e for t in plan.temperature for e in entries_for(plan, temperature=t, seed=plan.seed)]
    rows = bench.compare(entries)
    for row, entry in zip(rows, entries, strict=True):
        told = bench.told(entry)
        row["ceiling"] = told.target_s / told.draft_s
        if row["policy"] == "double":
            tokens = row["simulated_tokens_per_round"]
            row["law_speedup_vs_ar"] = law_of(entry.settings, tokens, row["ceiling"])
    trace = bench.trace(plan.temperature[0])
    times = [retrieval_time(name, trace) for name in ("", *plan.datastore)]
    lookups = [{"part": "lookup", "policy": None, "profile": rows[0]["profile"], **asdict(t)} for t in times]
    return [*rows, *lookups]


def settings_rows(results: Results) -> list[Row]:
    """All but the times of lookups."""
    return [row for row in results.rows if row["part"] != "lookup"]


def passes_ceiling(row: Row) -> bool:
    """Whether its speed, measured if it was, is above C."""
    measured = row.get("measured_speedup_vs_ar")
    return bool((row["simulated_speedup_vs_ar"] if measured is None else measured) > row["ceiling"])


def verdict(rows: Sequence[Row]) -> str:
    """Whether the fastest DOUBLE passes the ceiling, and what it would take."""
    doubles = [row for row in rows if row["policy"] == "double"]
    best = max(doubles, key=lambda r: r["measured_speedup_vs_ar"] or r["simulated_speedup_vs_ar"])
    stretch = best["simulated_stretch"]
    return (
        f"C = {best['ceiling']:.2f} (target step over draft step) is the ceiling of a pipeline without "
        f"retrieval.  The fastest DOUBLE ({best['name']}) "
        f"{'passes' if passes_ceiling(best) else 'does not pass'} it: its round takes {stretch:.2f} "
        f"plain steps, so that it would need more than {best['ceiling'] * stretch:.2f} tokens per round, and "
        f"emits {best['simulated_tokens_per_round']:.2f}."
    )


SPEEDS = (
    Column("setting", "name"),
    factor("law", "law"),
    Column("eq. 7", "simulated_law_printed", "{:.2f}"),
    factor("simulated", "simulated"),
    factor("live", "measured"),
    Column("error", "simulated_error", "{:+.1%}"),
    Column("> C", passes_ceiling, lambda over: "yes" if over else "no"),
    Column("same", "identical", yes),
)
COUNTS = (
    Column("setting", "name"),
    Column("tokens", "simulated_tokens_per_round", "{:.2f}"),
    Column("length", "simulated_stretch", "{:.2f}"),
    Column("M", "simulated_run_length", "{:.2f}"),
    Column("AMT q", "simulated_draft_matched", "{:.2f}"),
    Column("AMT p", "simulated_target_matched", "{:.2f}"),
    Column("lookup", "simulated_retrieve_s", lambda s: f"{1e6 * s:.0f} us"),
)
LEGEND = (
    "Law: tokens counted; eq. 7 as printed; error: simulated over live, less 1; same: live texts are plain "
    "decoding's.  Tokens per round; length: a round over a plain target step; M: accepted tokens between "
    "rejections; AMT q, p: matched tokens per forward of draft and target; lookup: median of a lookup step."
)
LOOKUP_TIMES = (
    Column("prior", lambda row: row["datastore"] or "none"),
    Column("tokens", "tokens", "{:,}"),
    Column("median", "median_s", lambda s: f"{1e6 * s:.0f} us"),
    Column("longest", "most_s", lambda s: f"{1e6 * s:.0f} us"),
    Column("retrieved something", "found", "{:.0%}"),
)


def show(results: Results) -> Iterator[Any]:
    """Speedups beside the ceiling, what was counted, the verdict, then lookup times."""
    rows = settings_rows(results)
    yield table("speedup over plain decoding", used(SPEEDS, rows), rows)
    yield table("rounds and retrieval", COUNTS, rows)
    yield LEGEND
    if any(row["policy"] == "double" for row in rows):
        yield verdict(rows)
    lookups = [row for row in results.rows if row["part"] == "lookup"]
    yield table("seconds of a lookup, on this machine now", LOOKUP_TIMES, lookups)


def pictures(results: Results) -> dict[str, Picture]:
    """Speedups as bars beside the ceiling C, and a lookup's time by the size of the prior."""
    rows = settings_rows(results)
    times = [row for row in results.rows if row["part"] == "lookup"]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(2, 1))
        for shift, world in ((-0.2, "simulated"), (0.2, "measured")):
            known = [(i, v) for i, r in enumerate(rows) if (v := r.get(f"{world}_speedup_vs_ar")) is not None]
            if known:
                left.barh([i + shift for i, _ in known], [v for _, v in known], 0.38, label=world)
        left.axvline(rows[0]["ceiling"], color="black", linestyle="--", label="ceiling C")
        left.set_yticks(range(len(rows)), [row["name"] for row in rows])
        left.invert_yaxis()
        left.set_xlabel("speedup over plain decoding")
        left.legend(fontsize=8)
        right.plot([max(1, t["tokens"]) for t in times], [1e6 * t["median_s"] for t in times], "o-")
        right.set_xscale("log")
        right.set_xlabel("tokens of the prior (1: none)")
        right.set_ylabel("median lookup, microseconds")
        right.set_ylim(bottom=0)

    return {"": Picture(draw, (12.0, 4.5))}


def draw_ceiling(axes: Any, rows: Sequence[Row]) -> None:
    """Tokens of a round over its duration in plain steps: speed is the slope, C the steepest there can be."""
    outcomes = [row for row in rows if row["part"] not in {"depth", "lookup"}]
    ceiling = outcomes[0]["ceiling"]
    x = [o["simulated_stretch"] for o in outcomes]
    y = [o["simulated_tokens_per_round"] for o in outcomes]
    widest, highest = 1.15 * max(x), 1.15 * max(y)
    for slope, style in ((1.0, ":"), (1.25, "-"), (1.5, "-"), (ceiling, "--")):
        axes.plot([0, widest], [0, slope * widest], style, color="#bbbbbb", linewidth=1, zorder=0)
    for outcome, at, tokens in zip(outcomes, x, y, strict=True):
        ours = outcome["setting"].startswith("double")
        axes.plot(at, tokens, "o", color="#c44e52" if ours else "#4c72b0", markersize=5)
    _name_points(axes, [(o["name"], at, tokens) for o, at, tokens in zip(outcomes, x, y, strict=True)])
    axes.set_xlim(0.9, widest)
    axes.set_ylim(0.9, highest)
    for slope in (1.0, 1.25, 1.5):
        leaves = min(widest, highest / slope)
        axes.annotate(f"{slope:g}x", (leaves, slope * leaves), fontsize=8, color="#666666", xytext=(3, 3),
                      textcoords="offset points", annotation_clip=False)  # fmt: skip
    axes.set_xlabel("duration of a round, in plain steps")
    axes.set_ylabel("tokens of a round")
    if ceiling * 0.9 > highest:
        axes.set_title(
            f"the ceiling, {ceiling:.3g}x, is too steep for this frame", fontsize=10, loc="right", pad=14
        )


def _name_points(axes: Any, points: Sequence[tuple[str, float, float]]) -> None:
    """Names beside points; those of points that lie together below each other."""
    taken: list[tuple[float, float]] = []
    for name, x, y in sorted(points, key=lambda point: (-point[2], point[1])):
        near = sum(abs(x - a) < 0.35 and abs(y - b) < 0.1 for a, b in taken)
        axes.annotate(
            name, (x, y), fontsize=7, xytext=(6, -3 - 9 * near), textcoords="offset points", va="center"
        )
        taken.append((x, y))


STUDY = Study(
    "double",
    "Does DOUBLE pass the ceiling of a draft/verify pipeline, and what makes it?",
    DoublePlan,
    columns=columns,
    answer=answer,
    show=show,
    pictures=pictures,
    examples=(
        "--count 4 --max-tokens 48",
        "--datastore stdlib --live --repeats 3 --out my-double       # calibrate datastore build",
        "--parts ablation --lookahead 2 --temperature 1",
    ),
)
