"""What a streaming draft is worth to Mirror-SD, beside its laws.

The four variants of the paper's ablation (Figure 4), draft autoregressive or streaming, overlap on or off,
with SD beside them; and how many tokens a pass of the draft writes, as a distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from analysis.execute import Bench
from analysis.results import Results, Row, settings_of
from analysis.show import BATCH, SETTING, Column, table
from analysis.studies.mirror import CoinsPlan, on_coins, tossed, worlds_of
from analysis.studies.mirrorsd import columns
from analysis.study import Entry, Study, option
from policies.mirror import ACCEPTANCE, STREAMS
from policies.registry import Settings, configure


@dataclass(frozen=True)
class StreamsPlan(CoinsPlan):
    """Which windows, and how many streams."""

    stream_acceptance: float = option(ACCEPTANCE, "Of proposals; coins.")
    lookahead: tuple[int, ...] = option((3, 5, 7), "List of gamma.")
    kappa: int = option(4, "Candidates per position.")
    streams: str = option("3", "S.", type=click.Choice(STREAMS[1:]))


def variants(
    lookaheads: Sequence[int],
    *,
    kappa: int,
    streams: str,
    stream_acceptance: float | None = None,
    **target: Any,
) -> list[Settings]:
    """Plain decoding; then per gamma SD, and Mirror-SD in its four variants.

    Args:
        lookaheads: gamma.
        kappa: Candidates per position.
        streams: Value of the knob.
        stream_acceptance: In worlds of coin tosses.
        target: Temperature and seed.
    """
    found = [configure("ar", **target)]
    streaming: Row = {"streams": streams, "stream_acceptance": stream_acceptance}
    for lookahead in lookaheads:
        found.append(configure("sd", lookahead=lookahead, **target))
        found += [
            configure("mirror", lookahead=lookahead, kappa=kappa, overlap=overlap, **draft, **target)
            for overlap in ("off", "on")
            for draft in ({}, streaming)
        ]
    return found


def answer(bench: Bench) -> list[Row]:
    """Every variant at every batch, on coins or on the pair."""
    plan = bench.plan_as(StreamsPlan)
    entries = [
        Entry(settings, batch)
        for batch in plan.batch
        for t in plan.temperature
        for settings in variants(
            plan.lookahead,
            kappa=plan.kappa,
            streams=plan.streams,
            stream_acceptance=plan.stream_acceptance if plan.coins else None,
            temperature=t,
            seed=plan.seed,
        )
    ]
    return on_coins(tossed(plan), entries) if plan.coins else bench.compare(entries)


def variant(settings: Settings) -> tuple[str, str]:
    """(draft, overlap) of a setting, as in the paper's ablation."""
    if settings.policy != "mirror":
        return "autoregressive", f"none ({settings.policy})"
    streams = settings.knobs["streams"]
    draft = "autoregressive" if streams == "0" else f"{streams} streams"
    return draft, str(settings.knobs["overlap"])


def show(results: Results) -> Iterator[Any]:
    """The variants, then the passes of those that stream."""
    rows = [row for row in results.where() if row["policy"] != "ar"]
    for world in worlds_of(results):
        yield table(
            f"speedup over plain decoding, {world}",
            (
                Column("gamma", "lookahead"),
                Column("draft", lambda row: variant(settings_of(row))[0]),
                Column("overlap", lambda row: variant(settings_of(row))[1]),
                BATCH,
                Column("speedup", f"{world}_speedup_vs_ar", "{:.2f}"),
                Column("tokens/round", f"{world}_tokens_per_round", "{:.2f}"),
            ),
            rows,
        )
        yield passes_table(rows, world)


def passes_table(rows: Sequence[Row], world: str) -> Any:
    """Tokens per pass and passes per window of the settings that stream, law beside counted."""
    start = f"{world}_passes_"

    def shares(row: Row) -> str:
        return " ".join(f"{each:.3f}" for each in row[f"{start}shares"])

    return table(
        f"passes of the streaming draft, {world}: counted, and by the law of coins",
        (
            SETTING,
            BATCH,
            Column("tokens/pass", f"{start}tokens_per_pass", "{:.2f}"),
            Column("as shares of 1, 2, ...", shares),
            Column("right", f"{start}acceptance", "{:.3f}"),
            Column("J", f"{start}passes", "{:.2f}"),
            Column("law", f"{start}law_passes", "{:.2f}"),
            Column("slowest J", f"{start}slowest", "{:.2f}"),
            Column("law", f"{start}law_slowest", "{:.2f}"),
        ),
        [row for row in rows if row.get(f"{start}windows")],
    )


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
