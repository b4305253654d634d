"""What can be read in the picture of a recommendation: nothing is cut off, and no text lies on another."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis.recommend.picture import picture
from analysis.show import save
from policies.registry import configure

LONG = configure("rasd", retrieval_nodes=8, tree_depth=3, tree_topk=2, tree_budget=6)
WIDE = configure("saguaro", lookahead=6, fanout=(4, 3, 3, 2, 2, 1, 1), backup="ngram")
DEEPER = configure("sd", lookahead=4)
SETTINGS = [WIDE, LONG, configure("sd", lookahead=3), configure("ar")]


def answer(*, sweeps: bool = True) -> Any:
    """A recommendation of which only the picture's values are there."""
    used = {"target": 0.6, "draft": 0.5}
    summary = SimpleNamespace(tokens=1000, seconds=2.0, overlap_s=0.4, utilization=used)
    rows = [
        SimpleNamespace(
            settings=settings,
            summary=summary,
            over_ar=SimpleNamespace(low=1.9, middle=2.1, high=2.4, level=0.8),
        )
        for settings in SETTINGS
    ]
    points = [
        SimpleNamespace(at=at, best=best, speedup_vs_ar=1.0 + at / 8, speedup_vs_sd=1.1, extrapolated=at > 4)
        for at, best in zip(
            (1, 2, 4, 8, 16), [*SETTINGS[:3], configure("sd", lookahead=4), WIDE], strict=True
        )
    ]
    return SimpleNamespace(
        best={row.settings.policy: row for row in rows},
        winner=rows[0],
        by_batch=points if sweeps else [],
        by_acceptance=points if sweeps else [],
        search=SimpleNamespace(devices=2, batch=1, temperature=0.0),
        sources=SimpleNamespace(profile=SimpleNamespace(name="cpu2-x5")),
    )


def drawn(answer: Any) -> Figure:
    found = picture(answer)
    figure = Figure(figsize=found.size, layout="constrained")
    found.draw(figure)
    return figure


def legends(figure: Any) -> list[list[str]]:
    return [
        [text.get_text() for text in axes.get_legend().get_texts()]
        for axes in figure.get_axes()
        if axes.get_legend()
    ]


@pytest.mark.parametrize("sweeps", [True, False])
def test_every_text_is_whole_and_none_lies_on_another(sweeps: bool) -> None:
    figure = drawn(answer(sweeps=sweeps))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    everything = figure.bbox
    texts = figure.findobj(lambda each: isinstance(each, Text) and each.get_visible())
    # Numbers are left out: matplotlib has some beyond the ends of an axis, which it does not draw.
    words_of = [text for text in texts if re.search("[a-z]", text.get_text())]
    shown = [(text.get_text(), text.get_window_extent()) for text in words_of]
    assert len(shown) > 10
    for words, box in shown:
        assert box.x0 >= everything.x0 and box.x1 <= everything.x1, f"{words!r} is cut off"
        assert box.y0 >= everything.y0 and box.y1 <= everything.y1, f"{words!r} is cut off"
    for (one, first), (other, second) in combinations(shown, 2):
        assert not first.overlaps(second), f"{one!r} lies on {other!r}"
    for axes in figure.get_axes():
        if legend := axes.get_legend():
            assert not legend.get_window_extent().overlaps(axes.get_window_extent()), (
                "it hides bars or points"
            )


def test_legends_name_each_setting_once_in_its_policys_colour_and_a_marker_of_its_own() -> None:
    figure = drawn(answer())
    times, batch, acceptance = legends(figure)
    assert times == ["target alone", "both", "draft alone", "nobody (host, messages)"]
    assert batch == acceptance and len(set(batch)) == 5
    assert [" ".join(name.split()) for name in batch] == [
        *(settings.label.replace(" tree_", " ") for settings in SETTINGS[:3]), "sd K=4", "over best SD",
    ]  # fmt: skip
    lines = {line.get_label(): line for line in figure.get_axes()[2].get_lines()}
    three, four = lines["sd K=3"], lines["sd K=4"]
    assert three.get_color() == four.get_color() and three.get_marker() != four.get_marker()


def test_it_is_written_in_the_format_of_its_name(tmp_path: Path) -> None:
    save(picture(answer(sweeps=False)), tmp_path / "answer.svg")
    assert b"<svg" in (tmp_path / "answer.svg").read_bytes()
