"""RASD's tables on the shipped pair: retrieval alone, a drafted tree alone, both fused.

tau (accepted tokens per target forward) and SR (speed over plain decoding) by prompt category, the ablation
of pruning and fusion, candidate lengths and datastore sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from analysis.execute import Bench
from analysis.outcomes import WorldView
from analysis.papers.rasd import fused_tau
from analysis.results import EVERY, Results, Row, in_world, where
from analysis.show import (
    Column,
    bars,
    best_world,
    by_category,
    factor,
    frame,
    legend_above,
    micro,
    name_rows,
    table,
    used,
    values,
)
from analysis.study import Entry, Picture, Plan, Study, option
from hardware_profiles.datastore import Datastore, datastore_path
from policies.registry import configure
from policies.retrieval import RetrieveTree

PARTS = {
    "methods": "Retrieval, drafted tree, both (RASD tables 1 and 2 in kind)",
    "ablation": "Pruning and fusion (table 3 in kind)",
    "length": "Candidate length l (figure 3 in kind)",
    "size": "Datastore size (table 4 in kind)",
}
"""What is compared, and the titles of its tables."""
ABLATIONS: dict[str, Row] = {
    "": {},
    ", no pruning": {"prune_top": 0},
    ", no fusion": {"fusion": "off"},
    ", neither": {"prune_top": 0, "fusion": "off"},
}
"""What is left out in table 3."""


@dataclass(frozen=True)
class RetrievalPlan(Plan):
    """Which tables, and where to retrieve from."""

    datastore: tuple[str, ...] = option(
        ("stdlib",), "Name or folder; several, smallest first, for part size."
    )
    parts: tuple[str, ...] = option(
        ("methods", "ablation", "length"), "Tables: methods, ablation, length, size.", names=PARTS
    )
    lengths: tuple[int, ...] = option((2, 4, 8, 16), "Values of l.")
    repeats: int = option(2, "Live repetitions.")

    def entries(self, temperature: float) -> list[Entry]:
        """The rows of the tables asked for; all but that of sizes retrieve from the last datastore."""
        places: list[tuple[str, Row]] = [
            ("text", {}),
            ("datastore", {"datastore": _resolved(self.datastore[-1])}),
        ]
        tree: Row = {"tree_plan": "dynamic"}
        compared: list[tuple[str, str, str, Row]] = [
            ("methods", "prompt lookup", "pld", {}),
            *(("methods", f"rest, {name}", "rest", place) for name, place in places),
            ("methods", "drafted tree", "tree", tree),
            *(("methods", f"rasd, {name}", "rasd", place) for name, place in places),
            ("ablation", "drafted tree", "tree", tree),
            *(
                ("ablation", f"rasd, {name}{left_out}", "rasd", place | knobs)
                for name, place in places
                for left_out, knobs in ABLATIONS.items()
            ),
            *(
                ("length", f"{policy}, {name}", policy, place | {"retrieval_length": length})
                for policy in ("rest", "rasd")
                for name, place in places
                for length in self.lengths
            ),
            *(
                ("size", f"{policy}, datastore {store}", policy, {"datastore": _resolved(store)})
                for policy in ("rest", "rasd")
                for store in self.datastore
            ),
        ]
        target: Row = {"temperature": temperature, "seed": self.seed}
        return [
            Entry(
                configure(policy, **target, **knobs),
                tags=(("part", part), ("name", name), ("length", knobs.get("retrieval_length"))),
            )
            for part, name, policy, knobs in compared
            if part in self.parts
        ]


def _resolved(store: str) -> str:
    """A datastore as a worker finds it, which looks for a folder from where it was started."""
    return str(Path(store).resolve()) if Path(store).name != store else store


def settings(bench: Bench) -> list[Entry]:
    """What the tables asked for compare.

    Raises:
        DatastoreError: No such datastore.
    """
    plan = bench.plan_as(RetrievalPlan)
    for name in plan.datastore:
        Datastore.open(datastore_path(name))  # refuse before anything is run
    return [entry for t in plan.temperature for entry in plan.entries(t)]


def columns(view: WorldView) -> Row:
    """Of a setting in one world.

    Returns:
        `tau`; `candidates`: tokens per forward that went through the target, nodes of trees or tokens of
        chains; `searches_that_found` something, a share, and `search_s`, median seconds of a search step;
        `datastore_tokens`: what was searched.  None where nothing was.
    """
    rounds = view.rounds()
    forwards = len(rounds["accepted"])
    searches = _replies(view, RetrieveTree.kind)
    seconds = [d.seconds["retrieve"] for d in view.decisions if "retrieve" in d.seconds]
    ids = {request.id for request in view.trace.requests}
    trees = _replies(view, "verifytree", ids)
    verified = float(rounds["length"].sum())
    if trees:
        verified = float(sum(tokens - 1 for _, _, work in trees for _, tokens in work))
        verified *= 1.0 if view.live else len(view.own.runs) / len(view.decisions)
    store = view.settings.knobs.get("datastore")
    return {
        "tau": float(rounds["accepted"].sum() / forwards),
        "candidates": verified / forwards,
        # A reply is a `Retrieved`: its first field is the tree, whose first one are the tokens.
        "searches_that_found": sum(bool(r[0][0]) for r in searches) / len(searches) if searches else None,
        "search_s": median(seconds) if seconds else None,
        "datastore_tokens": None if store is None else len(Datastore.open(datastore_path(store))),
    }


def _replies(view: WorldView, kind: str, requests: Collection[int] | None = None) -> list[Any]:
    """What was answered to a kind of operation, of some requests or of all."""
    return [
        reply
        for decisions in view.decisions
        for key, reply in decisions.replies.items()
        if key[0] == kind and (requests is None or key[2] in requests)
    ]


def parts_of(results: Results) -> dict[str, list[Row]]:
    """The rows of each table in the best world, all categories."""
    rows = in_world(results.rows, best_world(results.rows))
    names = dict.fromkeys(row["part"] for row in rows if row.get("part"))
    return {name: where(rows, part=name) for name in names}


COLUMNS = (
    Column("setting", "name"),
    Column("l", "length"),
    Column("tokens", "datastore_tokens", lambda n: f"{n / 1e6:.1f} M"),
    Column("tau", "tau", "{:.2f}"),
    Column("nodes", "candidates", "{:.1f}"),
    Column("found", "searches_that_found", "{:.0%}"),
    Column("search", "search_s", micro),
    factor("SR sim.", "simulated"),
    factor("live", "measured"),
    Column("error", "simulated_error", "{:+.1%}"),
)


def show(results: Results) -> Iterator[Any]:
    """A table per part: tau and SR of all prompts and of each category."""
    for part, rows in parts_of(results).items():
        every = where(rows, category=EVERY)
        categories = by_category(rows, lambda row: f"{row['tau']:.2f} / {row['speedup_vs_ar']:.2f}")
        yield table(PARTS[part], used((*COLUMNS, *categories), every), every)
    yield (
        "tau: accepted tokens per target forward without the target's own; nodes: verified per forward; SR: "
        f"tokens/s over plain decoding, ratio of sums; by category: tau / SR {best_world(results.rows)}"
    )
    if any(row["identical"] is False for row in results.rows):
        yield "[bold red]a greedy text differs from plain decoding[/]"


def pictures(results: Results) -> dict[str, Picture]:
    """Tau and SR of the methods by category, or against the candidate length where that was swept."""
    parts = parts_of(results)

    def draw(figure: Any) -> None:
        titles = {"tau": "tau", "speedup_vs_ar": "speedup over plain decoding"}
        for axes, (column, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
            if "length" in parts:
                every = where((row for rows in parts.values() for row in rows), category=EVERY)
                draw_lengths(axes, every, column)
                frame(axes, x="candidate length l", y=title, legend=0)
                legend_above(axes)
            else:
                rows = next(iter(parts.values()))
                names = dict.fromkeys(row["category"] for row in rows if row["category"] != EVERY)
                own = {name: where(rows, category=name) for name in names}
                bars(axes, {c: {row["name"]: row[column] for row in mine} for c, mine in own.items()})
                frame(axes, x="", y=title, legend=0)

    return {"": Picture(draw, (11.0, 4.2))}


def draw_lengths(axes: Any, rows: Sequence[Row], column: str) -> None:
    """Against the candidate length, the drafted tree as a line."""
    swept = where(rows, part="length")
    for name in dict.fromkeys(row["name"] for row in swept):
        mine = where(swept, name=name)
        style = "-o" if name.startswith("rasd") else "--s"
        axes.plot(values(mine, "length"), values(mine, column), style, label=name)
    for tree in where(rows, policy="tree")[:1]:
        axes.axhline(tree[column], color="black", linewidth=0.8, label="drafted tree")


def draw_tau(axes: Any, rows: Sequence[Row]) -> None:
    """Tokens that trees yield: drafted, retrieved, fused by RASD, and by law if the two were independent."""
    world = best_world(rows)
    taus = {r["name"]: r[f"{world}_tau"] for r in where(rows, part="methods", category=EVERY)}
    colours = ["#c44e52" if name.startswith("rasd") else "#4c72b0" for name in taus]
    axes.barh(range(len(taus)), list(taus.values()), 0.6, color=colours)
    halves = {at: taus.get(name.replace("rasd", "rest")) for at, name in enumerate(taus) if "rasd" in name}
    if "drafted tree" in taus:
        laws = {at: fused_tau(taus["drafted tree"], half) for at, half in halves.items() if half is not None}
        low, high = ([at + side for at in laws] for side in (-0.38, 0.38))
        label = "if both trees were independent"
        axes.vlines(list(laws.values()), low, high, color="black", linewidth=1.6, label=label)
        legend_above(axes)
    name_rows(axes, list(taus))
    axes.set_xlabel("tau, tokens of a tree accepted per forward")
    axes.grid(axis="x", alpha=0.3)


METHODS = (
    Column("", "name"),
    Column("tau", "simulated_tau", "{:.2f}"),
    Column("candidates per forward", "simulated_candidates", "{:.2f}"),
    factor("simulated", "simulated"),
    factor("measured", "measured"),
)
"""What the notebook of the systems shows of a table."""


STUDY = Study(
    "retrieval",
    "RASD and its parts: retrieval alone, a drafted tree alone, both fused (tables 1 to 4, figure 3).",
    RetrievalPlan,
    settings=settings,
    columns=columns,
    by_category=True,
    show=show,
    pictures=pictures,
    examples=(
        "--live --count 4 --repeats 2                       # calibrate datastore build",
        "--parts ablation --datastore ./my-store --json",
        "--parts size --datastore small,medium,stdlib",
    ),
)
