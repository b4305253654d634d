"""The figures of Mirror-SD: what each compares, and pictures of rows made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from analysis.__main__ import main
from analysis.results import EVERY, Results, Row, describe
from analysis.show import save
from analysis.studies.mirror_figures import FIGURES, FiguresPlan, name_of, pictures, show
from analysis.study import SHARED, SPLIT, Entry

PLAN = FiguresPlan(lookaheads=(1, 3), kappas=(1, 2), exits=("1/4", "1/2"), batch=(1, 4))
RIVALS = ["SD", "PEARL", "SSD", "Mirror-SD, token by token", "Mirror-SD, streaming"]


def row(entry: Entry, category: str) -> Row:
    """A speed that tells the entries apart."""
    settings = entry.settings
    speed = 1.0 + 0.1 * (settings.lookahead or 0) + 0.01 * len(settings.label)
    where = {"batch": entry.batch, "place": entry.place, "category": category}
    figures: dict[str, Any] = {
        "speedup_vs_ar": speed,
        "tokens_per_round": 2.0,
        "exposed_s": 0.01,
        "draft_s": 0.02,
        "fallback": 0.5 if settings.policy == "mirror" else None,
    }
    return {**describe(settings), **where, **{f"measured_{name}": value for name, value in figures.items()}}


@pytest.fixture(scope="module")
def results() -> Results:
    rows = [
        row(e, name)
        for e in PLAN.entries(FIGURES, 0.0)
        for name in ((EVERY, "code", "prose") if e.batch == 1 else (EVERY,))
    ]
    return Results("mirror-figures", tuple(rows), PLAN.asked)


def test_each_figure_compares_what_the_papers_does() -> None:
    entries = {f: PLAN.entries([f], 0.0) for f in FIGURES}
    names = {f: [name_of(row(entry, EVERY)) for entry in own] for f, own in entries.items()}
    turns = [f"{name}, in turns" for name in RIVALS[3:]]
    assert names["3a"] == RIVALS * 2 and [e.settings.lookahead for e in entries["3a"][::5]] == [1, 3]
    assert names["4"] == RIVALS + turns and names["6b"] == turns
    assert names["5"] == RIVALS * 2 and [e.batch for e in entries["5"][::5]] == [1, 4]
    assert len(entries["7"]) == 4 and {e.settings.knobs["exit"] for e in entries["7"]} == {"1/4", "1/2"}
    assert [e.place for e in entries["8"]] == [SPLIT] * 5 + [SHARED] * 5
    everything = PLAN.entries(FIGURES, 0.0)  # each runs once
    assert len(everything) == len(set(everything)) == len({e for own in entries.values() for e in own})


def test_every_figure_is_drawn(results: Results, tmp_path: Path) -> None:
    drawn = pictures(results)
    assert list(drawn) == [f"-{figure}" for figure in FIGURES]
    for ending, picture in drawn.items():
        assert save(picture, tmp_path / f"mirror{ending}.png").stat().st_size > 10_000


def test_the_table_sets_simulated_beside_live(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    live = results.rows[0]
    both = {**live, "simulated_speedup_vs_ar": 1.1 * live["measured_speedup_vs_ar"], "simulated_error": 0.1}
    for part in show(Results("mirror-figures", (both,))):
        Console(width=140).print(part)
    assert "+10.0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--figure", "9"], "there is no '9'; choices: 3a,"),
        (["--figure", "5", "--count", "4"], "do not fill a batch of 8"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["run", "mirror-figures", *arguments])
    assert done.exit_code == 2 and message in done.output
