"""RASD's tables: which settings they hold, and what is made of counts and times."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from analysis.__main__ import main
from analysis.results import EVERY, Results
from analysis.show import save
from analysis.studies.retrieval import PARTS, RetrievalPlan, pictures, show


def test_every_part_compares_what_the_paper_does() -> None:
    entries = RetrievalPlan(datastore=("small", "large"), parts=tuple(PARTS), lengths=(2, 8)).entries(0.0)
    labels = {part: [e.settings.label for e in entries if dict(e.tags)["part"] == part] for part in PARTS}
    assert labels["methods"] == [
        "pld K=4",
        "rest",
        "rest datastore=large",
        "tree tree_plan=dynamic",
        "rasd",
        "rasd datastore=large",
    ]
    assert labels["ablation"] == [
        "tree tree_plan=dynamic",
        *(
            " ".join(["rasd", *place, *left])
            for place in ([], ["datastore=large"])
            for left in ([], ["prune_top=0"], ["fusion=off"], ["prune_top=0", "fusion=off"])
        ),
    ]
    assert len(labels["length"]) == 8
    assert [dict(e.tags)["length"] for e in entries if dict(e.tags)["part"] == "length"][:2] == [2, 8]
    assert labels["size"] == [f"{p} datastore={s}" for p in ("rest", "rasd") for s in ("small", "large")]


def results(*parts: str) -> Results:
    rows = []
    for entry in RetrievalPlan(datastore=("large",), parts=parts).entries(0.0):
        for category, tau in ((EVERY, 0.625), ("code", 2.5), ("prose", 0.0)):
            figures = {"tau": tau, "candidates": 2.0, "searches_that_found": 0.5, "search_s": 1e-5}
            both = {f"{world}_{n}": v for world in ("simulated", "measured") for n, v in figures.items()}
            speeds = {"simulated_speedup_vs_ar": 2.0, "measured_speedup_vs_ar": 2.0, "identical": True}
            where = {"setting": entry.settings.label, "policy": entry.settings.policy, "category": category}
            rows.append({**dict(entry.tags), **where, **both, **speeds, "simulated_error": 0.0})
    return Results("retrieval", tuple(rows))


def test_tables_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in show(results(*PARTS)):
        Console(width=200).print(part)
    shown = capsys.readouterr().out
    assert "2.50 / 2.00" in shown and "differs" not in shown
    for parts in (tuple(PARTS), ("methods",)):
        (picture,) = pictures(results(*parts)).values()
        assert save(picture, tmp_path / f"{len(parts)}.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--parts", "tables"], "there is no 'tables'"),
        (["--datastore", "./nowhere"], "calibrate datastore build"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(options: list[str], message: str) -> None:
    found = CliRunner().invoke(main, ["run", "retrieval", *options])
    assert found.exit_code == 2
    assert message in found.output
