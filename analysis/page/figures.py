"""The pictures of a page, in plotly; colours of policies are those of all pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from analysis.page.answers import best
from hardware_profiles.tables import Row
from policies.registry import find_policy
from policies.timeline import Span
from simulator.law import Stage

CLEAR = "rgba(0,0,0,0)"
"""Behind pictures: the page's own colour, light or dark."""
KINDS = {"verify": "#4c72b0", "decode": "#4c72b0", "draft": "#55a868", "prespeculate": "#c44e52"}


def speedups(rows: Sequence[Row]) -> Any:
    """Speedup over plain decoding by batch, the fastest lookahead of each policy."""
    from plotly import graph_objects as go

    figure = go.Figure()
    for policy in dict.fromkeys(row["policy"] for row in rows):
        mine = sorted((row for row in best(rows) if row["policy"] == policy), key=lambda row: row["batch"])
        figure.add_scatter(
            x=[row["batch"] for row in mine],
            y=[row["speedup_vs_ar"] for row in mine],
            name=policy,
            mode="lines+markers",
            line={"color": find_policy(policy).colour},
            customdata=[[row["setting"], row["tokens_per_second"], row["devices"]] for row in mine],
            hovertemplate="%{customdata[0]}<br>batch %{x}: %{y:.3f}x plain decoding<br>"
            "%{customdata[1]:.4g} tokens/s on %{customdata[2]} devices<extra></extra>",
        )
    figure.update_xaxes(title="batch", type="log", tickvals=sorted({row["batch"] for row in rows}))
    figure.update_yaxes(title="speedup over plain decoding", rangemode="tozero")
    return laid_out(figure, "Which policy, by batch")


def bars(rows: Sequence[Row], says: str) -> Any:
    """`speedup_vs_ar` of each setting, at one load; `says` what of it."""
    from plotly import graph_objects as go

    figure = go.Figure(
        go.Bar(
            x=[row["setting"] for row in rows],
            y=[row["speedup_vs_ar"] for row in rows],
            marker={"color": [find_policy(row["policy"]).colour for row in rows]},
            text=[f"{row['speedup_vs_ar']:.2f}x" for row in rows],
            hovertemplate="%{x}: %{text}<extra></extra>",
        )
    )
    figure.update_yaxes(title=says, rangemode="tozero")
    return laid_out(figure, "Fastest lookahead of each policy")


def winners(cells: Sequence[Row]) -> Any:
    """The fastest policy by batch and acceptance."""
    from plotly import graph_objects as go

    found = best(cells)
    names = list(dict.fromkeys(row["policy"] for row in cells))
    batches, levels = sorted({r["batch"] for r in found}), sorted({r["at"] for r in found})
    top = {
        (a, b): max(
            (r for r in found if (r["at"], r["batch"]) == (a, b)), key=lambda r: r["tokens_per_second"]
        )
        for a in levels
        for b in batches
    }
    count = len(names)
    scale = [
        [share, find_policy(name).colour]
        for i, name in enumerate(names)
        for share in (i / count, (i + 1) / count)
    ]
    said = [[f"{top[a, b]['setting']}<br>{top[a, b]['speedup_vs_ar']:.2f}x" for b in batches] for a in levels]
    figure = go.Figure(
        go.Heatmap(
            x=list(map(str, batches)),
            y=[f"{a:g}" for a in levels],
            z=[[names.index(top[a, b]["policy"]) for b in batches] for a in levels],
            zmin=-0.5,
            zmax=count - 0.5,
            colorscale=scale,
            showscale=False,
            text=said,
            texttemplate="%{text}",
            textfont={"color": "white"},
            hovertemplate="batch %{x}, acceptance %{y}: %{text}<extra></extra>",
            xgap=2,
            ygap=2,
        )
    )
    figure.update_xaxes(title="batch")
    figure.update_yaxes(title="acceptance")
    return laid_out(figure, "Where each is fastest, and by how much over plain decoding")


def causes(stages: Sequence[Stage], setting: str) -> Any:
    """A waterfall of speedups."""
    from plotly import graph_objects as go

    values = [stage.speedup_vs_ar for stage in stages]
    changes = [values[0], *(b - a for a, b in pairwise(values)), values[-1]]
    figure = go.Figure(
        go.Waterfall(
            x=[*(stage.effect for stage in stages), "simulated"],
            y=[*changes[:-1], 0.0],
            measure=["absolute", *["relative"] * (len(values) - 1), "total"],
            text=[f"{value:.2f}x" for value in (*values, values[-1])],
            increasing={"marker": {"color": "#55a868"}},
            decreasing={"marker": {"color": "#c44e52"}},
            totals={"marker": {"color": "#4c72b0"}},
            hovertemplate="%{x}: %{text}<extra></extra>",
        )
    )
    figure.update_yaxes(title="speedup over plain decoding", range=[0.0, 1.15 * max(values)])
    return laid_out(figure, f"From the law to the simulation: {setting}")


def timelines(rounds: Mapping[str, Sequence[Span]]) -> Any:
    """Who works when, policy by policy, from the same start."""
    from plotly import graph_objects as go

    figure, shown = go.Figure(), set[str]()
    for setting, spans in rounds.items():
        for device in sorted({span.device for span in spans}):
            for name in dict.fromkeys(span.name for span in spans if span.device == device):
                mine = [span for span in spans if (span.device, span.name) == (device, name)]
                figure.add_bar(
                    y=[f"{setting}: {device}"] * len(mine),
                    x=[1e3 * (span.end_s - span.start_s) for span in mine],
                    base=[1e3 * span.start_s for span in mine],
                    orientation="h",
                    name=name,
                    legendgroup=name,
                    showlegend=name not in shown,
                    marker={"color": KINDS.get(name, "#8172b3"), "line": {"width": 1, "color": "white"}},
                    hovertemplate=f"{name}: %{{x:.3f}} ms from %{{base:.3f}} ms<extra></extra>",
                )
                shown.add(name)
    figure.update_xaxes(title="ms from the first verification on")
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(barmode="overlay")
    return laid_out(figure, "The first rounds of each", height=140 + 60 * len(rounds) * 2)


def laid_out(figure: Any, title: str, *, height: int = 420) -> Any:
    """As all pictures: on the page's own background."""
    figure.update_layout(
        title=title,
        height=height,
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
        font={"family": "system-ui, sans-serif"},
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    return figure
