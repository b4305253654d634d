"""What studies of open questions have in common: the calibration's own prompts, and a title that answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.execute import Bench
from analysis.results import Results, Row
from analysis.show import BATCH, OPINIONS, SETTING, table, used
from analysis.study import POSITIVE, RECORDED, Picture, Plan, Study, option

FIGURE = (11.0, 4.6)


@dataclass(frozen=True)
class Recorded(Plan):
    """On the prompts that the profile was calibrated on: no model runs unless it is asked for."""

    prompts: str = option(RECORDED, "Shipped set, Spec-Bench JSONL, or `recorded`: the calibration's own.")
    count: int | None = option(None, "Prompts.  [default: all; live 6 or the widest batch]", type=POSITIVE)
    max_tokens: int | None = option(None, "Most tokens per prompt.  [default: all; live 64]", type=POSITIVE)
    repeats: int = option(2, "Live repetitions.", type=POSITIVE)
    batch: tuple[int, ...] = (1,)
    temperature: tuple[float, ...] = (0.0,)


def question(
    name: str,
    asks: str,
    rows: Callable[[Bench], Sequence[Row]],
    title: Callable[[Sequence[Row]], str],
    draw: Callable[[Any, Sequence[Row]], None],
    *,
    widest: int = 1,
    count: int | None = None,
    plan: type[Recorded] = Recorded,
) -> Study[Recorded]:
    """A study of the calibration's prompts whose picture bears what is seen as its title.

    Args:
        name: Of the study.
        asks: The question, one line.
        rows: What it finds on a profile.
        title: What is seen in the rows.
        draw: Draws the rows on a figure.
        widest: Largest batch that runs.
        count: Prompts that are simulated unless more are asked for.
        plan: Its options.
    """

    def answer(bench: Bench) -> Sequence[Row]:
        given = bench.plan
        if given.live:
            bench.plan = replace(
                given, count=given.count or max(6, widest), max_tokens=given.max_tokens or 64
            )
        else:
            bench.plan = replace(given, count=given.count or count)
        return rows(bench)

    def pictures(results: Results) -> dict[str, Picture]:
        kind = "law, simulated, live" if results.live else "law and simulated"
        profiles = ", ".join(dict.fromkeys(row["profile"] for row in results.rows))

        def drawn(figure: Any) -> None:
            draw(figure, compared(results.rows))
            figure.suptitle(f"{results.about['title']}\n{profiles}: {kind}", fontsize=10)

        return {"": Picture(drawn, FIGURE)}

    def show(results: Results) -> Iterator[Any]:
        yield results.about["title"]
        yield table("", used((SETTING, BATCH, *OPINIONS), results.rows), results.rows)

    return Study(
        name,
        asks,
        plan,
        answer=answer,
        about=lambda results: {"title": title(compared(results.rows))},
        show=show,
        pictures=pictures,
        examples=("", "--live", "--hw cpu2-x20 --json"),
    )


def compared(rows: Sequence[Row]) -> list[Row]:
    """The rows without the baselines that nobody asked for."""
    return [row for row in rows if not row.get("baseline")]
