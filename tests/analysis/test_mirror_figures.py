"""The figures of Mirror-SD: what each compares, and pictures of points made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_profiles import profile, trace

from analysis.family_orders import EVERY
from analysis.mirror_drawings import draw, name_of
from analysis.mirror_figures import main, print_points
from analysis.mirror_points import Point, select
from analysis.mirror_runs import FIGURES, SHARED, SPLIT, Sweep, live_points, simulated_points
from analysis.sources import Sources
from calibrate.live_runs import Cell, LiveRun
from hardware_profiles.decisions import Decisions, DecisionTrace
from hardware_profiles.trace import Trace
from policies.registry import configure
from simulator.run import Scenario, simulate
from simulator.tokens import replay

SWEEP = Sweep(lookaheads=(1, 3), lookahead=3, kappas=(1, 2), kappa=2, exits=("1/4", "1/2"), batches=(1, 4))
RIVALS = ["SD", "PEARL", "SSD", "Mirror-SD, token by token", "Mirror-SD, streaming"]


def point(cell: Cell, category: str) -> Point:
    """A speed that tells the cells apart."""
    speed = 1.0 + 0.1 * (cell.settings.lookahead or 0) + 0.01 * len(cell.settings.label)
    fallback = 0.5 if cell.settings.policy == "mirror" else None
    return Point(
        cell.place,
        cell.settings,
        cell.batch,
        category,
        "live",
        9.0,
        speed,
        (speed,),
        2.0,
        0.01,
        0.02,
        fallback,
    )


@pytest.fixture(scope="module")
def points() -> list[Point]:
    cells = SWEEP.cells(FIGURES, temperature=0.0, seed=0)
    return [
        point(c, name) for c in cells for name in ((EVERY, "code", "prose") if c.batch == 1 else (EVERY,))
    ]


def test_each_figure_compares_what_the_papers_does(points: list[Point]) -> None:
    cells = {f: SWEEP.cells([f], temperature=0.0, seed=0) for f in FIGURES}
    names = {f: [name_of(point(cell, EVERY)) for cell in own] for f, own in cells.items()}
    turns = [f"{name}, in turns" for name in RIVALS[3:]]
    assert names["3a"] == RIVALS * 2 and [c.settings.lookahead for c in cells["3a"][::5]] == [1, 3]
    assert names["4"] == RIVALS + turns and names["6b"] == turns
    assert names["5"] == RIVALS * 2 and [c.batch for c in cells["5"][::5]] == [1, 4]
    assert len(cells["7"]) == 4 and {c.settings.knobs["exit"] for c in cells["7"]} == {"1/4", "1/2"}
    assert [c.place for c in cells["8"]] == [SPLIT] * 5 + [SHARED] * 5
    assert len(select(points)) == len({cell for own in cells.values() for cell in own})  # each runs once


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_drawn(figure: str, points: list[Point], tmp_path: Path) -> None:
    draw(figure, points, SWEEP, tmp_path / "mirror.png")
    assert (tmp_path / f"mirror-{figure}.png").stat().st_size > 10_000


def test_the_table_sets_simulated_beside_live(
    points: list[Point], capsys: pytest.CaptureFixture[str]
) -> None:
    live = points[0]
    print_points([live, replace(live, world="simulated", speedup_vs_ar=1.1 * live.speedup_vs_ar)])
    assert "+10.0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--figure", "9"], "no figure '9'"), (["--figure", "5", "--count", "4"], "do not fill a batch of 8")],
)
def test_bad_input_is_refused_before_anything_runs(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2 and message in done.output


def simulated_run(cell: Cell, texts: Trace, ids: list[int], repeat: int) -> LiveRun:
    """What a live run would keep, from a simulated one."""
    found = simulate(Scenario(replay(texts.slice(ids)), profile=PROFILE, batch=cell.batch), cell.settings)
    return LiveRun(
        place=cell.place,
        settings=cell.settings,
        batch=cell.batch,
        requests=tuple(ids),
        repeat=repeat,
        seed=0,
        summary=found.summary,
        rounds={request: found.rows.log.rounds(request) for request in ids},
        texts={},
        spans=[],
        timings=[],
        decisions=Decisions(cell.settings.label, {}),
    )


PROFILE = profile()


def test_live_and_simulated_points_of_the_same_runs_agree() -> None:
    """Request by request at batch 1, all together in a batch, which has no categories."""
    texts = trace([[0, 0, 1, 0] * 4, [1, 0] * 8, [0] * 16, [2, 0, 0, 0] * 4], categories=["a", "b", "a", "b"])
    sd, plain = configure("sd", lookahead=2), configure("ar")
    cells = [Cell(SPLIT, settings, batch) for batch in (1, 2) for settings in (sd, plain)]
    groups = {1: [[0], [1], [2], [3]], 2: [[0, 1, 2, 3]]}
    runs = [
        simulated_run(cell, texts, ids, repeat)
        for cell in cells
        for ids in groups[cell.batch]
        for repeat in (0, 1)
    ]
    live = live_points(runs, texts, plain)
    assert [(p.batch, p.category) for p in live] == [(1, EVERY), (1, "a"), (1, "b"), (2, EVERY)]
    sources = Sources(PROFILE, {0.0: texts}, 0.0)
    nothing = DecisionTrace(texts.requests, texts.meta, {}, 16)
    simulated = [p for c in cells[::2] for p in simulated_points(sources, texts, nothing, c, plain, seed=0)]
    for one, other in zip(live, simulated, strict=True):
        assert (one.batch, one.category) == (other.batch, other.category)
        assert one.speedup_vs_ar == pytest.approx(other.speedup_vs_ar)
        assert one.by_repeat == pytest.approx([one.speedup_vs_ar] * 2)
        assert one.tokens_per_round == pytest.approx(other.tokens_per_round)
        assert one.exposed_s == pytest.approx(other.exposed_s)
        # Two draft steps of a quarter; SD has nothing that could fall back.
        assert one.draft_s == pytest.approx(other.draft_s) and one.fallback is None
    assert live[0].draft_s == pytest.approx(0.5, abs=0.05)
