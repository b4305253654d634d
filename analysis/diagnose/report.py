"""What `diagnose` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from analysis.diagnose.account import (
    Change,
    Prices,
    Seen,
    best_lookahead,
    by_batch,
    changes,
    seen_speedup,
    waterfall,
)
from analysis.diagnose.server import Server
from policies.commandline import fitted_table
from simulator.imports.export import SGLANG, Speculation, schedule
from simulator.imports.measured import ImportRefused
from simulator.imports.serve import Serve
from simulator.law import Stage
from simulator.report import waterfall_table
from simulator.tokens.acceptance import joint_of

if TYPE_CHECKING:
    from rich.console import Console

MOST_CHANGES = 3


@dataclass(frozen=True)
class Diagnosis:
    """A server, what it was seen to do, and what that costs.

    Attributes:
        serve: Its command line; None if not given.
        sources: Where costs and acceptance come from, for people.
    """

    server: Server
    seen: Seen
    prices: Prices | None
    serve: Serve | None
    sources: Mapping[str, str]

    @cached_property
    def stages(self) -> list[Stage]:
        """From what is hoped for to what is seen."""
        return waterfall(self.seen, self.prices)

    @cached_property
    def changes(self) -> list[Change]:
        """Those that would help most."""
        return changes(self.seen, self.prices)[:MOST_CHANGES]

    @property
    def speedup(self) -> float | None:
        """As seen over plain decoding at the same load; None where that is not known."""
        return seen_speedup(self.seen, self.prices)

    @cached_property
    def schedule(self) -> dict[int, int]:
        """The best lookahead by batch; empty where one load is known alone."""
        return {} if self.prices is None else by_batch(self.seen, self.prices)

    @property
    def paste(self) -> dict[str, str]:
        """Settings of the best lookahead, by engine; empty where none is better or no method is known."""
        serve, change = self.serve, next((c for c in self.changes if c.lookahead), None)
        if serve is None or change is None or serve.method not in SGLANG:
            return {}
        table = self.schedule if len(set(self.schedule.values())) > 1 else None
        depth = max([change.lookahead or 1, *(table or {}).values()])
        try:
            flags = Speculation(depth, serve.method, serve.draft, by_batch=table).flags
        except ImportRefused:  # e.g. a head whose name the line does not say
            return {}
        return {engine: line for engine, line in flags.items() if engine == serve.engine}

    @property
    def positions(self) -> list[dict[str, float]]:
        """Per drafted token: acceptance, and what it brings and costs."""
        rows, prices = [], self.prices
        for i, (own, joint) in enumerate(
            zip(self.seen.acceptance, joint_of(self.seen.acceptance), strict=True), 1
        ):
            row: dict[str, float] = {"position": i, "acceptance": own, "joint": joint}
            if prices is not None:
                before = prices.at(i - 1, self.seen.load) if i > 1 else None
                whole = prices.at(i, self.seen.load)
                cost = whole.round_s - (before.round_s if before else whole.plain_s + whole.plain_gap_s)
                row |= {"seconds": cost, "pays": float(joint * whole.token_s(self.seen.tokens_at(i)) > cost)}
            rows.append(row)
        return rows

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON object (docs/reference/json.md)."""
        seen, server = self.seen, self.server
        cost = None
        if self.prices is not None and seen.lookahead is not None:
            cost = asdict(self.prices.at(seen.lookahead, seen.load))
        return {
            "engine": server.measured.engine,
            "serve": None if self.serve is None else asdict(self.serve),
            "lookahead": seen.lookahead,
            "tokens_per_round": seen.tokens_per_round,
            "positions": self.positions,
            "load": asdict(seen.load),
            "round_s": seen.round_s,
            "plain_s": seen.plain_s,
            "cost": cost,
            "speedup_vs_ar": self.speedup,
            "waterfall": [asdict(stage) for stage in self.stages],
            "best_lookahead": None if self.prices is None else best_lookahead(seen, self.prices),
            "changes": [asdict(change) for change in self.changes],
            "lookahead_by_batch": {str(batch): depth for batch, depth in self.schedule.items()},
            "engines": self.paste,
            "sources": dict(self.sources),
        }


def print_diagnosis(found: Diagnosis, console: Console) -> None:
    """Tables for people."""
    from rich.markup import escape

    def say(text: str, *, whole: bool = False) -> None:
        console.print(escape(text), highlight=False, soft_wrap=whole)

    seen = found.seen
    depth = "K unknown" if seen.lookahead is None else f"K = {seen.lookahead}"
    what = f"{found.server.measured.engine}: {depth}, {seen.tokens_per_round:.3f} tokens a round"
    say(f"{what}; {_load(found.server, seen)}")
    for kind, source in found.sources.items():
        console.print(f"[dim]{kind}: {escape(source)}[/dim]", highlight=False)
    console.print(_verdict(found), highlight=False)
    console.print(waterfall_table(found.stages, "from what is hoped for to what is seen", console.width))
    if found.positions:
        console.print(_positions(found, console.width))
    if found.changes:
        rows = [(change.what, f"{100 * change.gain:+.0f} %") for change in found.changes]
        console.print(fitted_table(("what would help most", "tokens/s"), rows, console.width))
    elif found.prices is not None:
        say("nothing tried here would bring 2 % or more")
    for engine, line in found.paste.items():
        say(f"{engine}: {line}", whole=True)  # to paste
    if len(set(found.schedule.values())) > 1:
        *ranges, (last, _, most) = schedule(found.schedule)
        said = [
            *(f"batch {a} to {b}: {k or 'none'}" for a, b, k in ranges),
            f"from {last} on: {most or 'none'}",
        ]
        say(f"fastest K by batch: {'; '.join(said)}")


def _load(server: Server, seen: Seen) -> str:
    load = seen.load
    said = [f"batch {load.batch:.3g}", f"context {load.context:.0f}" if load.context else "context not said"]
    if server.waiting:
        said.append(f"{server.waiting:.0f} requests wait")
    if server.preemptions:
        said.append(f"{server.preemptions:.0f} preemptions")
    if server.kv_usage is not None:
        said.append(f"KV cache {100 * server.kv_usage:.0f} % full")
    if seen.round_s is not None:
        said.append(f"round {1e3 * seen.round_s:.4g} ms")
    return ", ".join(said)


def _verdict(found: Diagnosis) -> str:
    if found.prices is None:
        return "what a round costs is not known: give the GPU and models (--hw, --serve), or --plain"
    if found.seen.lookahead is None:
        return "the lookahead is not known: give --lookahead"
    speedup, last = found.speedup, found.stages[-1].speedup_vs_ar
    how = "seen" if speedup is not None else "expected; no round was timed"
    speed = f"[bold]{last:.2f}x plain decoding[/bold] ({how})"
    if last >= 1.0:
        return speed
    return f"{speed}: speculation slows this server down"


def _positions(found: Diagnosis, width: int) -> Any:
    rows = []
    for row in found.positions[:16]:
        cost = "" if "seconds" not in row else f"{1e3 * row['seconds']:.3g}"
        pays = "" if "pays" not in row else "yes" if row["pays"] else "no"
        rows.append((f"{row['position']:.0f}", f"{row['acceptance']:.3f}", f"{row['joint']:.3f}", cost, pays))
    titles = ("drafted token", "accepted if reached", "brings tokens", "costs ms", "pays")
    return fitted_table(titles, rows, width)
