"""RASD's tables on the shipped pair: retrieval alone, a drafted tree alone, both fused.

tau (accepted tokens per target forward) and SR (speed over plain decoding) by prompt category, the ablation
of pruning and fusion, candidate lengths and datastore sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from analysis.execute import Bench, View
from analysis.papers.rasd import fused_tau
from analysis.results import EVERY, Results, Row
from analysis.show import Column, bars, best_world, table, used
from analysis.study import Entry, Picture, Plan, Study, option
from hardware_profiles.datastore import Datastore, datastore_path
from policies.registry import SettingError, Settings, configure
from policies.retrieval import PROMPT, RetrieveTree

PARTS = ("methods", "ablation", "length", "size")
"""What is compared: tables 1 and 2, table 3, figure 3, table 4."""
TITLES = {
    "methods": "Retrieval, drafted tree, both (RASD tables 1 and 2 in kind)",
    "ablation": "Pruning and fusion (table 3 in kind)",
    "length": "Candidate length l (figure 3 in kind)",
    "size": "Datastore size (table 4 in kind)",
}
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
        ("methods", "ablation", "length"), "Tables: methods, ablation, length, size."
    )
    lengths: tuple[int, ...] = option((2, 4, 8, 16), "Values of l.")
    repeats: int = option(2, "Live repetitions.")


def entries_for(
    parts: Sequence[str], datastores: Sequence[str], *, lengths: Sequence[int] = (2, 4, 8, 16), **target: Any
) -> list[Entry]:
    """The rows of the tables asked for.

    Args:
        parts: Of `PARTS`.
        datastores: The one to retrieve from; several, smallest first, for the table of sizes.
        lengths: Candidate lengths.
        target: Temperature and seed.
    """
    places = [PROMPT, *datastores[-1:]]

    def of(policy: str, place: str = PROMPT, **knobs: Any) -> Settings:
        store = None if place == PROMPT else place
        return configure(policy, datastore=store, **target, **knobs)

    def entry(part: str, name: str, settings: Settings, length: int | None = None) -> Entry:
        return Entry(settings, tags=(("part", part), ("name", name), ("length", length)))

    found: list[Entry] = []
    if "methods" in parts:
        found.append(entry("methods", "prompt lookup", configure("pld", **target)))
        found += [entry("methods", f"rest, {_place(p)}", of("rest", p)) for p in places]
        found.append(entry("methods", "drafted tree", configure("tree", tree_plan="dynamic", **target)))
        found += [entry("methods", f"rasd, {_place(p)}", of("rasd", p)) for p in places]
    if "ablation" in parts:
        found.append(entry("ablation", "drafted tree", configure("tree", tree_plan="dynamic", **target)))
        found += [
            entry("ablation", f"rasd, {_place(p)}{name}", of("rasd", p, **knobs))
            for p in places
            for name, knobs in ABLATIONS.items()
        ]
    if "length" in parts:
        found += [
            entry("length", f"{policy}, {_place(p)}", of(policy, p, retrieval_length=length), length)
            for policy in ("rest", "rasd")
            for p in places
            for length in lengths
        ]
    if "size" in parts:
        found += [
            entry("size", f"{policy}, datastore {store}", of(policy, store))
            for policy in ("rest", "rasd")
            for store in datastores
        ]
    return found


def _place(name: str) -> str:
    return "text" if name == PROMPT else "datastore"


def settings(bench: Bench) -> list[Entry]:
    """What the tables asked for compare.

    Raises:
        SettingError: No such part.
        DatastoreError: No such datastore.
    """
    plan = bench.plan_as(RetrievalPlan)
    if unknown := [part for part in plan.parts if part not in PARTS]:
        raise SettingError(f"unknown part {unknown[0]!r}; parts: {', '.join(PARTS)}")
    for name in plan.datastore:
        Datastore.open(datastore_path(name))  # refuse before anything is run
    # A worker looks for a folder from where it was started.
    stores = [str(Path(name).resolve()) if Path(name).name != name else name for name in plan.datastore]
    target = [{"temperature": t, "seed": plan.seed} for t in plan.temperature]
    return [e for each in target for e in entries_for(plan.parts, stores, lengths=plan.lengths, **each)]


def columns(view: View) -> Row:
    """tau, candidates per forward, and what was searched."""
    rounds = view.rounds()
    forwards = len(rounds["accepted"])
    found, seconds = searches(view)
    store = view.settings.knobs.get("datastore")
    return {
        "tau": float(rounds["accepted"].sum() / forwards),
        "candidates": candidates_verified(view, rounds) / forwards,
        "searches_that_found": found,
        "search_s": seconds,
        "datastore_tokens": None if store is None else len(Datastore.open(datastore_path(store))),
    }


def searches(view: View) -> tuple[float | None, float | None]:
    """(share of searches that found something, median seconds of a search step); None without any."""
    replies = [
        reply for d in view.decisions for key, reply in d.replies.items() if key[0] == RetrieveTree.kind
    ]
    seconds = [d.seconds["retrieve"] for d in view.decisions if "retrieve" in d.seconds]
    # A reply is a `Retrieved`: its first field is the tree, whose first one are the tokens.
    share = sum(bool(reply[0][0]) for reply in replies) / len(replies) if replies else None
    return share, median(seconds) if seconds else None


def candidates_verified(view: View, rounds: Mapping[str, Any]) -> float:
    """Candidate tokens that went through the target: nodes of trees, or tokens of chains."""
    ids = {request.id for request in view.trace.requests}
    trees = [
        reply
        for d in view.decisions
        for key, reply in d.replies.items()
        if key[0] == "verifytree" and key[2] in ids
    ]
    if not trees:
        return float(rounds["length"].sum())
    verified = float(sum(tokens - 1 for _, _, work in trees for _, tokens in work))
    return verified if view.live else verified * len(view.own.runs) / len(view.decisions)


def by_part(results: Results) -> dict[str, list[Row]]:
    """The rows of each table, all categories."""
    found: dict[str, list[Row]] = {}
    for row in results.where():
        if row.get("part"):
            found.setdefault(row["part"], []).append(row)
    return found


def categories(results: Results) -> list[str]:
    """Of the prompts."""
    return [c for c in dict.fromkeys(row["category"] for row in results.rows) if c != EVERY]


def show(results: Results) -> Iterator[Any]:
    """A table per part: tau and SR of all prompts and of each category."""
    world = best_world(results.rows)
    of = {(row["setting"], row["category"]): row for row in results.rows}

    def category(name: str) -> Column:
        def cell(row: Row) -> str | None:
            own = of.get((row["setting"], name))
            if own is None:
                return None
            return f"{own[f'{world}_tau']:.2f} / {own[f'{world}_speedup_vs_ar']:.2f}"

        return Column(name, cell)

    for part, rows in by_part(results).items():
        shown = (
            Column("setting", "name"),
            Column("l", "length"),
            Column("tokens", f"{world}_datastore_tokens", lambda n: f"{n / 1e6:.1f} M"),
            Column("tau", f"{world}_tau", "{:.2f}"),
            Column("nodes", f"{world}_candidates", "{:.1f}"),
            Column("found", f"{world}_searches_that_found", "{:.0%}"),
            Column("search", f"{world}_search_s", lambda s: f"{1e6 * s:.0f} us"),
            Column("SR sim.", "simulated_speedup_vs_ar", "{:.2f}"),
            Column("live", "measured_speedup_vs_ar", "{:.2f}"),
            Column("error", "simulated_error", "{:+.1%}"),
            *map(category, categories(results)),
        )
        yield table(TITLES[part], used(shown, rows), rows)
    yield (
        "tau: accepted tokens per target forward without the target's own; nodes: verified per forward; "
        f"SR: tokens/s over plain decoding, ratio of sums; by category: tau / SR {world}"
    )
    if any(row["identical"] is False for row in results.rows):
        yield "[bold red]a greedy text differs from plain decoding[/]"


def pictures(results: Results) -> dict[str, Picture]:
    """Tau and SR of the methods by category, or against the candidate length where that was swept."""
    world, parts = best_world(results.rows), by_part(results)

    def draw(figure: Any) -> None:
        for axes, title in zip(figure.subplots(1, 2), ("tau", "speedup over plain decoding"), strict=True):
            column = f"{world}_{'tau' if title == 'tau' else 'speedup_vs_ar'}"
            if "length" in parts:
                draw_lengths(axes, parts, column)
            else:
                draw_methods(axes, results, column)
            axes.set_ylabel(title)
            axes.grid(alpha=0.3)

    return {"": Picture(draw, (11.0, 4.2))}


def draw_lengths(axes: Any, parts: Mapping[str, Sequence[Row]], column: str) -> None:
    """Against the candidate length, the drafted tree as a line."""
    for name in dict.fromkeys(row["name"] for row in parts["length"]):
        mine = [row for row in parts["length"] if row["name"] == name]
        style = "-o" if name.startswith("rasd") else "--s"
        axes.plot([row["length"] for row in mine], [row[column] for row in mine], style, label=name)
    trees = [row for rows in parts.values() for row in rows if row["policy"] == "tree"]
    if trees:
        axes.axhline(trees[0][column], color="black", linewidth=0.8, label="drafted tree")
    axes.set_xlabel("candidate length l")
    axes.legend(fontsize=8)


def draw_methods(axes: Any, results: Results, column: str) -> None:
    """Bars by category, of the first table."""
    first = next(iter(by_part(results)))
    rows = [row for row in results.rows if row.get("part") == first]
    bars(axes, {c: {r["name"]: r[column] for r in rows if r["category"] == c} for c in categories(results)})


def draw_tau(axes: Any, rows: Sequence[Row]) -> None:
    """Tokens that trees yield: both halves, RASD's fused tree, and independent halves' by law."""
    world = best_world(rows)
    taus = {r["name"]: r[f"{world}_tau"] for r in rows if (r["part"], r["category"]) == ("methods", EVERY)}
    drafted = taus.get("drafted tree")
    colours = ["#c44e52" if name.startswith("rasd") else "#4c72b0" for name in taus]
    axes.barh(range(len(taus)), list(taus.values()), 0.6, color=colours)
    marked = False
    for at, name in enumerate(taus):
        half = taus.get(name.replace("rasd", "rest"))
        if name.startswith("rasd") and half is not None and drafted is not None:
            law = fused_tau(drafted, half)
            label = None if marked else "independent halves"
            axes.plot([law, law], [at - 0.38, at + 0.38], color="black", linewidth=1.6, label=label)
            marked = True
    axes.set_yticks(range(len(taus)), list(taus), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("tau, tokens of a tree accepted per forward")
    axes.grid(axis="x", alpha=0.3)
    if marked:
        axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), frameon=False)


METHODS = (
    Column("", "name"),
    Column("tau", "simulated_tau", "{:.2f}"),
    Column("candidates per forward", "simulated_candidates", "{:.2f}"),
    Column("simulated", "simulated_speedup_vs_ar", "{:.2f}"),
    Column("measured", "measured_speedup_vs_ar", "{:.2f}"),
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
