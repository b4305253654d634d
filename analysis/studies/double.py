"""Does DOUBLE pass the ceiling C of a draft/verify pipeline, and what makes it?

Against plain decoding, prompt lookup, SD and PEARL; without the draft's retrieval, without the target's,
without the rejected cache, in turns on one device, by retrieval length and by prior.  And how long a lookup
takes by the size of the datastore.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from analysis.execute import Bench
from analysis.outcomes import WorldView, pooled_figure
from analysis.results import Results, Row, where
from analysis.show import Column, factor, frame, micro, opinions, table, used, values, yes
from analysis.study import POSITIVE, Entry, Picture, Plan, Study, option
from hardware_profiles.datastore import Datastore, datastore_path
from hardware_profiles.reply_trace import Decisions
from hardware_profiles.trace import Trace
from policies.laws.double import double_speedup_printed
from policies.registry import Settings, configure
from policies.retrieval import Hierarchy

METHODS, ABLATION, DEPTH, PRIOR = PARTS = ("methods", "ablation", "depth", "prior")
"""What is compared: tables 1 and 12, figure 5 with the rejected cache, figure 6, table 3."""
LONGEST, RETRIEVED = 3, 10
"""Tokens of the longest ending that timed lookups look up, and of what they retrieve."""
LOOKUPS = 400
"""Most lookups that a retrieval time is the median of."""


@dataclass(frozen=True)
class DoublePlan(Plan):
    """Which tables, and which priors."""

    datastore: tuple[str, ...] = option((), "Priors by name or folder, smallest first.  [default: none]")
    parts: tuple[str, ...] = option(PARTS, "Tables.", names=PARTS)
    lookahead: int = option(4, "K of all.", type=POSITIVE)
    depths: tuple[int, ...] = option((1, 5, 20), "Retrieval lengths.")
    count: int | None = option(4, "Prompts to use.", type=POSITIVE)
    max_tokens: int | None = option(48, "Most tokens per prompt.", type=POSITIVE)
    repeats: int = option(2, "Live repetitions.", type=POSITIVE)

    def entries(self, temperature: float) -> list[Entry]:
        """Plain decoding, the baselines, DOUBLE, and DOUBLE with one thing changed each."""
        none: Row = {}
        compared: list[tuple[str, str, str, Row]] = [
            (METHODS, "plain decoding", "ar", {"lookahead": None}),
            (METHODS, "prompt lookup", "pld", none),
            (METHODS, "SD", "sd", none),
            (METHODS, "PEARL", "pearl", none),
            (METHODS, "DOUBLE", "double", none),
            (METHODS, "DOUBLE, in turns", "double", {"overlap": "off"}),
            (ABLATION, "without draft retrieval", "double", {"draft_retrieval": "off"}),
            (ABLATION, "without target retrieval", "double", {"target_retrieval": "off"}),
            (ABLATION, "without rejected cache", "double", {"rejected_cache": "off"}),
            *((DEPTH, f"d = {depth}", "double", {"retrieval_length": depth}) for depth in self.depths),
            *([(PRIOR, "no prior", "double", none)] if self.datastore else []),
            *((PRIOR, f"prior {name}", "double", {"datastore": name}) for name in self.datastore),
        ]
        usual: Row = {"lookahead": self.lookahead, "temperature": temperature, "seed": self.seed}
        return [
            Entry(configure(policy, **(usual | knobs)), tags=(("part", part), ("name", name)))
            for part, name, policy, knobs in compared
            if part in {METHODS, *self.parts}  # the methods are what everything else is compared with
        ]


def retrieved(decisions: Decisions) -> Row:
    """What retrieval did in a run, from its replies.

    Returns:
        `draft_matched`: AMT of the draft, retrieved tokens confirmed per forward; `target_matched`: of the
        target, which after a rejected pending token confirms none; `drafted`: tokens per round;
        `retrieve_s`: median seconds of a lookup step, for all rows.
    """
    by_kind: dict[str, list[Any]] = {"retrievingdraft": [], "retrievingverify": [], "guide": []}
    for (kind, *_), reply in decisions.replies.items():
        by_kind[kind].append(reply)
    drafts, verified = by_kind["retrievingdraft"], by_kind["retrievingverify"]
    matched = [count for reply in drafts for count in reply[2]]
    # The last emitted token is the target's own, or the draft's, and not a retrieved one.
    behind = [max(0, len(reply[0][1]) - reply[0][0] - 1) for reply in (*verified, *by_kind["guide"])]
    return {
        "draft_matched": float(np.mean(matched)) if matched else 0.0,
        "target_matched": sum(behind) / len(verified),
        "drafted": float(np.mean([len(reply[0]) for reply in drafts])),
        "retrieve_s": decisions.seconds.get("retrieve", 0.0),
    }


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
    sequential = settings.knobs["overlap"] == "off"
    return tokens_per_round * ratio / (forwards + ratio if sequential else max(forwards, ratio))


def retrieval_time(name: str, trace: Trace, *, lookups: int = LOOKUPS) -> Row:
    """Time lookups after the words of recorded texts, as a request that emits them would do them.

    Args:
        name: Of the prior; empty for none.
        trace: Recorded texts.
        lookups: Most lookups.

    Returns:
        `datastore`, the prior, and its `tokens`; `median_s` and `most_s` of a lookup over all layers;
        `found`: share of lookups that retrieved something; `longest`: tokens of the longest ending looked up.
    """
    prior = Datastore.open(datastore_path(name)) if name else None
    seconds: list[float] = []
    hits = 0
    for layers, token in islice(_emitted(trace, prior), lookups):
        start = time.perf_counter()
        tokens = layers.retrieve((), RETRIEVED)
        seconds.append(time.perf_counter() - start)
        hits += bool(tokens)
        layers.accept((token,))
    return {
        "datastore": name,
        "tokens": 0 if prior is None else len(prior),
        "median_s": float(np.median(seconds)),
        "most_s": max(seconds),
        "found": hits / len(seconds),
        "longest": LONGEST,
    }


def _emitted(trace: Trace, prior: Datastore | None) -> Iterator[tuple[Hierarchy, int]]:
    """Every recorded token, with what its request can look up before it."""
    for request, a, b in zip(trace.requests, trace.offsets, trace.offsets[1:], strict=False):
        layers = Hierarchy(LONGEST, prior=prior)
        layers.accept(request.prompt)
        for token in trace.token[a:b].tolist():
            yield layers, token


def columns(view: WorldView) -> Row:
    """Rounds of every setting; of DOUBLE what retrieval did, and its law as printed."""
    row: Row = {
        "run_length": pooled_figure(view.own.summaries, "run_length"),
        "stretch": view.total("seconds") / view.total("batch_rounds") * view.unit.speed,
    }
    if view.settings.policy != "double" or not view.decisions:
        return row
    did = retrieved(view.decisions[0])
    return {**row, **did, "law_printed": printed_law_of(view, did["draft_matched"], did["target_matched"])}


def printed_law_of(view: WorldView, draft_matched: float, target_matched: float) -> float:
    """Equation 7 as printed, its gamma in tokens, from the counts of a run.

    A run of the paper ends where nothing is pending any more; L_b are the target's retrieved tokens.
    """
    rounds = view.rounds()
    runs = max(1, int((rounds["hit"] != 1).sum()))
    bonus = target_matched * len(rounds["hit"])
    return float(
        double_speedup_printed(
            max(0.0, float(rounds["emitted"].sum()) - bonus) / runs,
            bonus / runs,
            len(rounds["hit"]) / runs,
            (view.settings.lookahead or 1) * (1.0 + draft_matched),
            view.inputs.ratio,
            matched=draft_matched,
        )
    )


def answer(bench: Bench) -> list[Row]:
    """Every setting beside the ceiling, and the lookups of every prior (part `lookup`).

    Raises:
        DatastoreError: No such prior.
    """
    plan = bench.plan_as(DoublePlan)
    for name in plan.datastore:
        Datastore.open(datastore_path(name))  # refuse before anything is run
    entries = [entry for t in plan.temperature for entry in plan.entries(t)]
    rows = bench.compare(entries)
    for row, entry in zip(rows, entries, strict=True):
        row["ceiling"] = bench.law_inputs(entry).ratio
        if row["policy"] == "double":
            tokens = row["simulated_tokens_per_round"]
            row["law_speedup_vs_ar"] = law_of(entry.settings, tokens, row["ceiling"])
    trace = bench.trace(plan.temperature[0])
    lookups = [retrieval_time(name, trace) for name in ("", *plan.datastore)]
    profile = rows[0]["profile"]
    return rows + [{"part": "lookup", "policy": None, "profile": profile, **lookup} for lookup in lookups]


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
    Column("lookup", "simulated_retrieve_s", micro),
)
LEGEND = (
    "Law: tokens counted; eq. 7 as printed; error: simulated over live, less 1; same: live texts are plain "
    "decoding's.  Tokens per round; length: a round over a plain target step; M: accepted tokens between "
    "rejections; AMT q, p: matched tokens per forward of draft and target; lookup: median of a lookup step."
)
LOOKUP_TIMES = (
    Column("prior", lambda row: row["datastore"] or "none"),
    Column("tokens", "tokens", "{:,}"),
    Column("median", "median_s", micro),
    Column("longest", "most_s", micro),
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
    yield table("seconds of a lookup, on this machine now", LOOKUP_TIMES, where(results.rows, part="lookup"))


def pictures(results: Results) -> dict[str, Picture]:
    """Speedups beside the ceiling C, and a lookup's time by the size of the prior."""
    rows = settings_rows(results)
    times = where(results.rows, part="lookup")

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(2, 1))
        opinions(left, rows, [row["name"] for row in rows])
        left.set_title(f"ceiling C: {rows[0]['ceiling']:.3g}", fontsize=10, loc="left")
        right.plot([max(1, t["tokens"]) for t in times], [1e6 * t["median_s"] for t in times], "o-")
        right.set_xscale("log")
        frame(right, x="tokens of the prior (1: none)", y="median lookup, microseconds", legend=0)
        right.set_ylim(bottom=0)

    return {"": Picture(draw, (12.0, 4.5))}


def draw_ceiling(axes: Any, rows: Sequence[Row]) -> None:
    """Tokens of a round over its duration in plain steps: speed is the slope, C the steepest there can be."""
    shown = [row for row in rows if row["part"] not in {"depth", "lookup"}]
    ceiling = shown[0]["ceiling"]
    x, y = values(shown, "simulated_stretch"), values(shown, "simulated_tokens_per_round")
    widest, highest = 1.15 * x.max(), 1.15 * y.max()
    for slope, style in ((1.0, ":"), (1.25, "-"), (1.5, "-"), (ceiling, "--")):
        axes.plot([0, widest], [0, slope * widest], style, color="#bbbbbb", linewidth=1, zorder=0)
    axes.scatter(x, y, s=25, color=["#c44e52" if row["policy"] == "double" else "#4c72b0" for row in shown])
    for at, (a, b) in enumerate(zip(x, y, strict=True), 1):
        twins = sum(abs(a - other) + abs(b - high) < 0.02 for other, high in zip(x[:at], y[:at], strict=True))
        axes.annotate(str(at), (a, b), xytext=(15 * twins - 10, 5), textcoords="offset points", fontsize=8)
    names = "\n".join(f"{at} {row['name']}" for at, row in enumerate(shown, 1))
    axes.text(1.1, 0.5, names, transform=axes.transAxes, va="center", fontsize=8)
    axes.set_xlim(0.9, widest)
    axes.set_ylim(0.9, highest)
    for slope in (1.0, 1.25, 1.5):
        leaves = min(widest, highest / slope)
        look = {"fontsize": 8, "color": "#666666", "textcoords": "offset points", "annotation_clip": False}
        axes.annotate(f"{slope:g}x", (leaves, slope * leaves), xytext=(3, 3), **look)
    axes.set_xlabel("duration of a round, in plain steps")
    axes.set_ylabel("tokens of a round")
    if ceiling * 0.9 > highest:
        title = f"the ceiling, {ceiling:.3g}x, is too steep for this frame"
        axes.set_title(title, fontsize=10, loc="right", pad=14)


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
