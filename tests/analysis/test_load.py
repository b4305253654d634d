"""The load at which speculation stops paying."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from analysis.__main__ import main
from analysis.studies.load import crossings, stops_at
from analysis.studies.signs import CASES, acceptance_of


@pytest.mark.parametrize(
    ("speedups", "at"),
    [
        ([1.5, 1.2, 0.9], 0.5 + 0.3 * 0.2 / 0.3),  # on the line from 1.2 at 0.5 to 0.9 at 0.8
        ([1.5, 1.2, 1.1], None),
        ([0.9, 0.8, 0.7], 0.2),
        ([0.9, 1.1, 0.9], 0.65),  # of several crossings the last one
    ],
)
def test_where_a_line_crosses(speedups: list[float], at: float | None) -> None:
    assert stops_at([0.2, 0.5, 0.8], speedups) == pytest.approx(at)


def test_ranges_over_repetitions() -> None:
    rows = [
        {"hw": "x", "lookahead": 2, "load": load, "rate": 10 * load, "repeat": repeat, "speedup": speedup,
         "plain_rows": 100 * load}
        for load, each in ((0.2, (1.4, 1.4)), (0.6, (0.8, 1.2))) for repeat, speedup in enumerate(each)
    ]  # fmt: skip
    (found,) = crossings(rows)
    # Means 1.4 and 1.0: never above 1 again at 0.6.  The first repetition crosses two thirds of the way; the
    # second pays throughout.
    assert found["stops_at"] == pytest.approx(0.6) and found["rate"] == pytest.approx(6.0)
    assert found["low"] == pytest.approx(0.2 + 0.4 * 2 / 3) and found["high"] is None
    assert found["rows"] == pytest.approx(60.0)


def test_the_command() -> None:
    command = ["run", "load", "--hw", "h100x1-llama-3.1-8b+llama-3.2-1b", "--acceptance", "0.5", "--json"]
    command += ["--count", "60", "--loads", "0.1,1.2", "--lookahead", "4", "--repeats", "1", "--output", "40"]
    found = json.loads(CliRunner().invoke(main, command).stdout)
    assert [row["load"] for row in found["rows"]] == [0.1, 1.2]
    (crossing,) = found["crossings"]
    assert crossing["lightest"] > crossing["heaviest"]  # speculation pays less under load


def test_published_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.5 + 0.25 + 0.125 accepted; a draft that is kept though nothing is drafted costs something."""
    assert acceptance_of(0.875, 3) == pytest.approx(0.5)
    monkeypatch.setattr("analysis.studies.signs.CASES", CASES[-1:])
    found = json.loads(
        CliRunner().invoke(main, ["run", "signs", "--prompt", "8", "--output", "12", "--json"]).stdout
    )
    assert [row["users"] for row in found["rows"]] == [2, 189]
    assert all(0.8 < row["predicted"] < 1.0 and row["sign_right"] for row in found["rows"])
