"""What a figure of Mirror-SD is drawn from: speeds, drafting in the open and fallbacks of one setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from analysis.family_orders import EVERY
from analysis.mirror_account import fallback_rate
from calibrate.live_runs import LiveRun
from policies.registry import Settings
from policies.summary import Summary


@dataclass(frozen=True)
class Point:
    """One setting on the prompts of one category, in one world.

    Attributes:
        place: Which cores the models have.
        settings: The policy and its knobs.
        batch: Rows served at once.
        category: Of the prompts; `EVERY` for all of them.
        world: `live` or `simulated`.
        tokens_per_second: Ratio of sums.
        speedup_vs_ar: Over plain decoding in the same world, place, batch and category; ratio of sums.
        by_repeat: The same of each repetition.
        tokens_per_round: With the bonus token.
        exposed_s: Seconds per round of the batch without the target at work: drafting, host, exchanges.
        draft_s: Seconds per round of the batch in which the draft works.
        fallback: Rounds with a correction that was not prepared for, of all looked up; None without a cache.
    """

    place: str
    settings: Settings
    batch: int
    category: str
    world: str
    tokens_per_second: float
    speedup_vs_ar: float
    by_repeat: tuple[float, ...]
    tokens_per_round: float
    exposed_s: float
    draft_s: float
    fallback: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        told = asdict(self)
        told["settings"] = {"policy": self.settings.policy, "knobs": self.settings.knobs}
        return {"setting": self.settings.label, "temperature": self.settings.temperature, **told}

    def option(self, name: str) -> Any:
        """A knob's value; None where the policy does not have it."""
        return self.settings.knobs.get(name)


def speed_of(summaries: Sequence[Summary]) -> float:
    """Tokens per second, a ratio of sums."""
    return sum(s.tokens for s in summaries) / sum(s.seconds for s in summaries)


def live_point(mine: Sequence[LiveRun], plain: Sequence[LiveRun], category: str) -> Point:
    """What live runs of a setting say.

    Args:
        mine: Its runs on the prompts of a category.
        plain: Plain decoding's on the same prompts, in the same place and batch.
        category: Of the prompts.
    """
    cell = mine[0].cell
    speeds = [
        speed_of([r.summary for r in mine if r.repeat == n])
        / speed_of([r.summary for r in plain if r.repeat == n])
        for n in sorted({run.repeat for run in mine})
    ]
    rounds = [each for run in mine for own in run.rounds.values() for each in own]
    table = {name: np.array([getattr(r, name) for r in rounds]) for name in ("accepted", "length", "hit")}
    summaries = [run.summary for run in mine]
    return Point(
        place=cell.place,
        settings=cell.settings,
        batch=cell.batch,
        category=category,
        world="live",
        tokens_per_second=speed_of(summaries),
        speedup_vs_ar=speed_of(summaries) / speed_of([run.summary for run in plain]),
        by_repeat=tuple(speeds),
        **_counts(summaries),
        fallback=fallback_rate(table),
    )


def simulated_point(
    where: tuple[str, Settings, int], category: str, summaries: Sequence[Summary], plain: float, table: Any
) -> Point:
    """What a simulation says.

    Args:
        where: Place, setting and batch.
        category: Of the prompts.
        summaries: Of its runs.
        plain: Tokens per second of plain decoding.
        table: `RoundLog.table` of a run.
    """
    place, settings, batch = where
    speedup = speed_of(summaries) / plain
    return Point(
        place=place,
        settings=settings,
        batch=batch,
        category=category,
        world="simulated",
        tokens_per_second=speed_of(summaries),
        speedup_vs_ar=speedup,
        by_repeat=(speedup,),
        **_counts(summaries),
        fallback=fallback_rate(table),
    )


def _counts(summaries: Sequence[Summary]) -> dict[str, float]:
    rounds = sum(s.batch_rounds for s in summaries)
    return {
        "tokens_per_round": sum(s.tokens for s in summaries) / sum(s.rounds for s in summaries),
        "exposed_s": sum(s.stalled_s["target"] for s in summaries) / rounds,
        "draft_s": sum(s.seconds - s.stalled_s.get("draft", s.seconds) for s in summaries) / rounds,
    }


def select(points: Sequence[Point], **wanted: Any) -> list[Point]:
    """The points with these attributes or knobs; `category` is `EVERY` unless it is given."""
    wanted = {"category": EVERY, **wanted}
    return [p for p in points if all(_value(p, name) == value for name, value in wanted.items())]


def _value(point: Point, name: str) -> Any:
    if name in {"policy", "temperature"}:
        return getattr(point.settings, name)
    return getattr(point, name) if hasattr(point, name) else point.option(name)
