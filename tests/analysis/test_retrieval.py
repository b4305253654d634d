"""RASD's tables: which settings they hold, and what is made of counts and times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from analysis.retrieval import main
from analysis.retrieval_report import as_json, plot, print_comparison
from analysis.retrieval_runs import PARTS, Comparison, Outcome, entries_of
from policies.registry import Settings, configure


def test_every_part_compares_what_the_paper_does() -> None:
    entries = entries_of(PARTS, ["small", "large"], lengths=(2, 8))
    labels = {part: [e.settings.label for e in entries if e.part == part] for part in PARTS}
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
    assert [e.length for e in entries if e.part == "length"][:2] == [2, 8]
    assert labels["size"] == [f"{p} datastore={s}" for p in ("rest", "rasd") for s in ("small", "large")]


def outcome(settings: Settings, accepted: int, seconds: float) -> Outcome:
    times = {"code": (40.0, seconds), "prose": (20.0, seconds)}
    return Outcome(
        settings=settings,
        accepted={"code": accepted, "prose": 0},
        forwards={"code": 10, "prose": 30},
        verified={"code": 70, "prose": 10},
        simulated=times,
        measured=(times, {place: (tokens, seconds * 3.0) for place, (tokens, _) in times.items()}),
        identical=True,
    )


@pytest.fixture
def comparison() -> Comparison:
    plain = configure("ar")
    entries = entries_of(PARTS, ["large"])
    found = {entry.settings: outcome(entry.settings, 25, 2.0) for entry in entries}
    return Comparison(tuple(entries), {plain: outcome(plain, 0, 4.0), **found}, plain, live=True)


def test_tau_and_speedup_are_ratios_of_sums(comparison: Comparison) -> None:
    settings = configure("rasd")
    found = comparison.outcomes[settings]
    assert found.tau("code") == pytest.approx(2.5)  # 25 / 10
    assert found.tau() == pytest.approx(0.625)  # 25 / 40
    assert found.candidates() == pytest.approx(2.0)  # 80 / 40
    assert comparison.simulated_speedup(settings) == pytest.approx(2.0)  # 60 / 4 over 60 / 8
    assert comparison.measured_speedup(settings, "code") == pytest.approx(2.0)  # 80 / 8 over 80 / 16
    untimed = Comparison(comparison.entries, comparison.outcomes, comparison.plain, live=False)
    assert untimed.measured_speedup(settings) is None


def test_tables_json_and_picture(
    comparison: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = json.loads(as_json(comparison, {"hw": "x"}))["entries"][0]
    assert row["setting"] == "pld K=4"
    assert row["by_category"]["code"]["tau"] == pytest.approx(2.5)
    assert row["by_category"]["all"]["measured_speedup_vs_ar"] == pytest.approx(2.0)
    print_comparison(comparison)
    shown = capsys.readouterr().out
    assert "2.50 / 2.00" in shown
    assert "DIFFERS" not in shown.upper()
    plot(comparison, tmp_path / "length.png")
    methods = tuple(entry for entry in comparison.entries if entry.part == "methods")
    plot(Comparison(methods, comparison.outcomes, comparison.plain, live=False), tmp_path / "methods.png")
    assert {path.name for path in tmp_path.iterdir()} == {"length.png", "methods.png"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--parts", "tables"], "unknown part 'tables'"),
        (["--datastore", "./nowhere"], "calibrate datastore build"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(options: list[str], message: str) -> None:
    found = CliRunner().invoke(main, options)
    assert found.exit_code == 2
    assert message in found.output
