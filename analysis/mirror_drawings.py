"""Pictures of Mirror-SD after the paper's figures 3a, 4, 5, 6b, 7 and 8; live where that was run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.mirror_picture import COLOURS, EXIT_COLOURS
from analysis.mirror_points import Point, select
from analysis.mirror_runs import SHARED, SPLIT, Sweep
from hardware_profiles.atomic import atomic_write

NAMES = {"sd": "SD", "pearl": "PEARL", "saguaro": "SSD", "mirror": "Mirror-SD"}
WIDTH = 0.8
"""Of the bars of a category together."""


def draw(figure: str, points: Sequence[Point], sweep: Sweep, path: Path) -> None:
    """Write one figure per temperature: `mirror.png` becomes `mirror-3a.png`, above temperature 0 `-3a-t1`.

    Args:
        figure: Of `analysis.mirror_runs.FIGURES`.
        points: What was run.
        sweep: What was varied.
        path: Its suffix says the format.
    """
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    for temperature in dict.fromkeys(p.settings.temperature for p in points):
        mine = [p for p in points if p.settings.temperature == temperature]
        world = "live" if any(p.world == "live" for p in mine) else "simulated"
        panels, size = _PANELS[figure](mine)
        plotted, axes = plt.subplots(1, len(panels), figsize=size, constrained_layout=True, squeeze=False)
        for panel, axis in zip(panels, axes[0], strict=True):
            panel(axis, [p for p in mine if p.world == world], sweep)
            axis.grid(alpha=0.3)
        plotted.suptitle(f"Mirror-SD, figure {figure} in kind, T={temperature:g}, {world}")
        stem = f"{path.stem}-{figure}" + (f"-t{temperature:g}" if temperature > 0.0 else "")
        with atomic_write(path.with_stem(stem), binary=True) as file:
            plotted.savefig(file, format=path.suffix.lstrip(".") or "png", dpi=130)
        plt.close(plotted)


def name_of(point: Point) -> str:
    """The policy, and Mirror-SD's draft and overlap."""
    name = NAMES[point.settings.policy]
    if point.settings.policy != "mirror":
        return name
    streaming = "streaming" if point.option("streams") != "0" else "token by token"
    return f"{name}, {streaming}" + (", in turns" if point.option("overlap") == "off" else "")


def style_of(name: str) -> dict[str, Any]:
    """Colour by policy; dashes, or hatching of bars, tell Mirror-SD's variants apart."""
    policy = next(key for key, value in NAMES.items() if name.startswith(value))
    return {"color": COLOURS[policy], "alpha": 0.55 if "in turns" in name else 1.0}


def _lines(axes: Any, points: Sequence[Point], along: str, height: Callable[[Point], float]) -> None:
    for name in dict.fromkeys(map(name_of, points)):
        mine = sorted((p for p in points if name_of(p) == name), key=lambda p: _along(p, along))
        dash = "--s" if "streaming" in name else "-o"
        axes.plot(
            [_along(p, along) for p in mine], [height(p) for p in mine], dash, label=name, **style_of(name)
        )


def _along(point: Point, name: str) -> float:
    return float(point.batch if name == "batch" else point.option(name))


def _speed(point: Point) -> float:
    return point.speedup_vs_ar


def _compared(points: Sequence[Point], sweep: Sweep, **wanted: Any) -> list[Point]:
    """SD, PEARL, SSD, and Mirror-SD with overlap at the sweep's kappa and the middle exit, on own cores."""
    chosen = select(points, place=SPLIT, **wanted)
    return [
        p
        for p in chosen
        if p.settings.policy != "mirror"
        or (p.option("overlap"), p.option("kappa"), p.option("exit")) == ("on", sweep.kappa, "1/2")
    ]


def _speed_by_lookahead(axes: Any, points: Sequence[Point], sweep: Sweep) -> None:
    _lines(axes, _compared(points, sweep, batch=1), "lookahead", _speed)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel("lookahead gamma")
    axes.set_ylabel("speedup over plain decoding")
    axes.legend(fontsize=8)


def _exposed_by_accepted(axes: Any, points: Sequence[Point], sweep: Sweep) -> None:
    chosen = _compared(points, sweep, batch=1)
    for name in dict.fromkeys(map(name_of, chosen)):
        mine = sorted((p for p in chosen if name_of(p) == name), key=lambda p: _along(p, "lookahead"))
        dash = "--s" if "streaming" in name else "-o"
        x, y = [p.tokens_per_round - 1.0 for p in mine], [1e3 * p.exposed_s for p in mine]
        axes.plot(x, y, dash, label=name, **style_of(name))
        for p, a, b in zip(mine, x, y, strict=True):
            axes.annotate(
                f"{p.settings.lookahead}", (a, b), fontsize=7, xytext=(3, 3), textcoords="offset points"
            )
    axes.set_xlabel("drafted tokens accepted per round; numbers: gamma")
    axes.set_ylabel("milliseconds per round without the target at work")
    axes.set_ylim(bottom=0.0)


def _speed_by_batch(axes: Any, points: Sequence[Point], sweep: Sweep) -> None:
    _lines(axes, _compared(points, sweep, lookahead=sweep.lookahead), "batch", _speed)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel("batch")
    axes.set_ylabel("speedup over plain decoding")
    axes.legend(fontsize=8)


def _overhead_by_batch(axes: Any, points: Sequence[Point], sweep: Sweep) -> None:
    """Drafting in the open over that of SD at the same batch ("relative draft overhead")."""
    chosen = _compared(points, sweep, lookahead=sweep.lookahead)
    sd = {p.batch: p.exposed_s for p in chosen if p.settings.policy == "sd"}
    _lines(axes, chosen, "batch", lambda p: p.exposed_s / sd[p.batch])
    axes.set_xlabel("batch")
    axes.set_ylabel("seconds without the target at work, over SD's")
    axes.set_ylim(bottom=0.0)


def _bars(axes: Any, groups: dict[str, dict[str, float]]) -> None:
    """Bars side by side: {category: {name: height}}."""
    names = list(dict.fromkeys(name for heights in groups.values() for name in heights))
    width = WIDTH / len(names)
    for i, name in enumerate(names):
        places = [j + i * width for j, heights in enumerate(groups.values()) if name in heights]
        heights = [own[name] for own in groups.values() if name in own]
        hatch = "//" if "streaming" in name else None
        axes.bar(places, heights, width, label=name, hatch=hatch, edgecolor="white", **style_of(name))
    axes.set_xticks([j + (WIDTH - width) / 2 for j in range(len(groups))], list(groups))
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylim(top=1.3 * max(max(own.values()) for own in groups.values()))  # room for the names
    axes.legend(fontsize=7, ncols=2, loc="upper right")


def _categories(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(p.category for p in points))


def _variants(axes: Any, points: Sequence[Point], sweep: Sweep) -> None:
    found = {}
    for category in _categories(points):
        chosen = select(points, place=SPLIT, batch=1, lookahead=sweep.lookahead, category=category)
        usual = [p for p in chosen if p.settings.policy != "mirror" or _usual(p, sweep)]
        found[category] = {name_of(p): _speed(p) for p in usual}
    _bars(axes, found)
    axes.set_ylabel("speedup over plain decoding")


def _usual(point: Point, sweep: Sweep) -> bool:
    return (point.option("kappa"), point.option("exit")) == (sweep.kappa, "1/2")


def _draft_alone(axes: Any, points: Sequence[Point], sweep: Sweep) -> None:
    turns = {"place": SPLIT, "batch": 1, "lookahead": sweep.lookahead, "policy": "mirror", "overlap": "off"}
    found = {}
    for category in _categories(points):
        written = {p.option("streams"): p.draft_s for p in select(points, category=category, **turns)}
        found[category] = {"Mirror-SD, streaming": written["0"] / written[sweep.streams]}
    _bars(axes, found)
    axes.set_ylabel("draft's seconds per round, token by token over streaming")


def _fallbacks(category: str) -> Callable[[Any, Sequence[Point], Sweep], None]:
    def panel(axes: Any, points: Sequence[Point], sweep: Sweep) -> None:
        usual = {"place": SPLIT, "batch": 1, "policy": "mirror", "overlap": "on", "streams": "0"}
        chosen = select(points, category=category, lookahead=sweep.lookahead, candidates="each", **usual)
        for exit_ in sweep.exits:
            mine = sorted((p.option("kappa"), p.fallback) for p in chosen if p.option("exit") == exit_)
            axes.plot(*zip(*mine, strict=True), "-o", color=EXIT_COLOURS[exit_], label=f"exit {exit_}")
        axes.set(xlabel="kappa", ylabel="fallbacks per round", title=category, ylim=(0.0, None))
        axes.legend(fontsize=8)

    return panel


def _placements(place: str) -> Callable[[Any, Sequence[Point], Sweep], None]:
    def panel(axes: Any, points: Sequence[Point], sweep: Sweep) -> None:
        moved = [p for p in points if p.place == place]
        found = {}
        for category in _categories(moved):
            chosen = select(moved, batch=1, lookahead=sweep.lookahead, category=category)
            found[category] = {
                name_of(p): _speed(p)
                for p in chosen
                if p.settings.policy != "mirror" or (_usual(p, sweep) and p.option("overlap") == "on")
            }
        _bars(axes, found)
        axes.set(title="a core for each model" if place == SPLIT else "both models on both cores")
        axes.set_ylabel("speedup over plain decoding there")

    return panel


_PANELS: dict[str, Callable[[Sequence[Point]], tuple[Sequence[Any], tuple[float, float]]]] = {
    "3a": lambda _: ((_speed_by_lookahead, _exposed_by_accepted), (11.0, 4.5)),
    "4": lambda _: ((_variants,), (11.0, 4.5)),
    "5": lambda _: ((_speed_by_batch, _overhead_by_batch), (11.0, 4.5)),
    "6b": lambda _: ((_draft_alone,), (6.5, 4.5)),
    "7": lambda points: (
        [_fallbacks(category) for category in _categories([p for p in points if p.batch == 1])],
        (16.0, 3.6),
    ),
    "8": lambda points: (
        [_placements(place) for place in (SPLIT, SHARED) if any(p.place == place for p in points)],
        (13.0, 4.5),
    ),
}
"""By figure: its panels, and its size in inches."""
