"""What a streaming draft is worth to Mirror-SD, beside its laws.

The four variants of the paper's ablation (Figure 4), draft autoregressive or streaming, overlap on or off,
with SD beside them; and how many tokens a pass of the draft writes, as a distribution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from analysis.results import Results, Row, value_of
from analysis.show import BATCH, SETTING, Column, table
from analysis.studies.mirror import CoinsPlan, answer, columns, worlds_of
from analysis.study import Study, option
from policies.mirror import ACCEPTANCE, STREAMS
from policies.registry import Settings, configure


@dataclass(frozen=True)
class StreamsPlan(CoinsPlan):
    """Which windows, and how many streams."""

    stream_acceptance: float = option(ACCEPTANCE, "Of proposals; coins.")
    lookahead: tuple[int, ...] = option((3, 5, 7), "List of gamma.")
    kappa: int = option(4, "Candidates per position.")
    streams: str = option("3", "S.", type=click.Choice(STREAMS[1:]))

    def settings(self, temperature: float) -> list[Settings]:
        """Plain decoding; then per gamma SD, and Mirror-SD in its four variants."""
        target: Row = {"temperature": temperature, "seed": self.seed}
        streaming: Row = {"streams": self.streams}
        streaming |= {"stream_acceptance": self.stream_acceptance} if self.coins else {}
        found = [configure("ar", **target)]
        for k in self.lookahead:
            found.append(configure("sd", lookahead=k, **target))
            found += [
                configure("mirror", lookahead=k, kappa=self.kappa, overlap=overlap, **draft, **target)
                for overlap in ("off", "on")
                for draft in ({}, streaming)
            ]
        return found


def draft_of(row: Row) -> str:
    """How its draft writes."""
    streams = value_of(row, "streams") or "0"
    return "autoregressive" if streams == "0" else f"{streams} streams"


def show(results: Results) -> Iterator[Any]:
    """The variants, then tokens per pass and passes per window of those that stream, law beside counted."""
    rows = [row for row in results.where() if row["policy"] != "ar"]
    for world in worlds_of(results):
        yield table(
            f"speedup over plain decoding, {world}",
            (
                Column("gamma", "lookahead"),
                Column("draft", draft_of),
                Column("overlap", lambda row: value_of(row, "overlap") or f"none ({row['policy']})"),
                BATCH,
                Column("speedup", f"{world}_speedup_vs_ar", "{:.2f}"),
                Column("tokens/round", f"{world}_tokens_per_round", "{:.2f}"),
            ),
            rows,
        )
        passes = f"{world}_passes_"
        if streaming := [row for row in rows if row.get(f"{passes}windows")]:
            yield table(
                f"passes of the streaming draft, {world}: counted, and by the law of coins",
                (
                    SETTING,
                    BATCH,
                    Column("tokens/pass", f"{passes}tokens_per_pass", "{:.2f}"),
                    Column("as shares of 1, 2, ...", f"{passes}shares", shares),
                    Column("right", f"{passes}acceptance", "{:.3f}"),
                    Column("J", f"{passes}passes", "{:.2f}"),
                    Column("by law", f"{passes}law_passes", "{:.2f}"),
                    Column("slowest J", f"{passes}slowest", "{:.2f}"),
                    Column("slowest by law", f"{passes}law_slowest", "{:.2f}"),
                ),
                streaming,
            )


def shares(found: list[float]) -> str:
    """Of passes, one after the other."""
    return " ".join(f"{each:.3f}" for each in found)


STUDY = Study(
    "mirror-streams",
    "What is a streaming draft worth to Mirror-SD, beside its laws?",
    StreamsPlan,
    columns=columns,
    timeline=True,
    answer=answer,
    show=show,
    examples=("--coins --draft-time 0.2", "--hw cpu2-x5 --count 8", "--hw cpu2-x5 --live --out my-streams"),
)
