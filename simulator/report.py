"""What `simulate` prints: JSON for machines, tables for people, a picture for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardware_profiles.files import atomic_write
from policies.commandline import fitted_table
from policies.summary import Summary
from policies.timeline import chrome_trace
from policies.values import Request
from simulator.auto import Choice, resolve
from simulator.law import LawPrediction, Stage, draft_rule, law_inputs, law_prediction, waterfall
from simulator.needs import DeviceCount, count_devices
from simulator.request import WARNING, SimulationRequest, build_scenario
from simulator.run import Scenario, Simulated, baselines, simulate

if TYPE_CHECKING:
    from rich.console import Console

METHOD = (
    "tokens/s = emitted tokens / decode seconds (prefill left out), ratio of sums; "
    "AR: plain decoding; SD: plain speculation at the same lookahead, on the same devices"
)

FIRST = ("hardware", "latency", "tokens")
"""Sources that are named before the answer; the others follow it."""


@dataclass(frozen=True)
class Report:
    """A simulated setting beside its law and its baselines.

    Attributes:
        sd: Vanilla speculation at the same lookahead; None for policies without one.
        sources: Where the numbers come from, by what they are, for people.
    """

    scenario: Scenario
    run: Simulated
    ar: Simulated
    sd: Simulated | None
    law: LawPrediction
    waterfall: list[Stage]
    sources: dict[str, str]
    choices: tuple[Choice, ...] = ()

    @cached_property
    def requests(self) -> list[Request]:
        """The requests served."""
        return self.scenario.serving()[1]

    @property
    def prompt_length(self) -> float:
        """Mean prompt tokens of the requests served."""
        return float(np.mean([r.prompt_length for r in self.requests]))

    @property
    def speedup_vs_ar(self) -> float:
        """Tokens per second over those of plain decoding."""
        return self.run.summary.tokens_per_second / self.ar.summary.tokens_per_second

    @property
    def speedup_vs_sd(self) -> float | None:
        """Tokens per second over those of vanilla speculation at the same lookahead."""
        if self.sd is None:
            return None
        return self.run.summary.tokens_per_second / self.sd.summary.tokens_per_second

    @cached_property
    def devices(self) -> dict[str, DeviceCount]:
        """Devices of the policy, of plain decoding and of vanilla speculation; empty without a profile."""
        runs = {"policy": self.run, "ar": self.ar, "sd": self.sd}
        profile = self.scenario.profile
        if profile is None:
            return {}
        return {n: count_devices(run.settings, profile) for n, run in runs.items() if run is not None}

    def per_device(self, speedup: float | None) -> float | None:
        """A speedup over plain decoding as if plain decoding had as many devices; None without a profile."""
        found = self.devices
        return speedup * found["ar"].total / found["policy"].total if found and speedup is not None else None

    @property
    def warnings(self) -> dict[str, str]:
        """What to know before believing anything else, by what it is about."""
        return {kind: text for kind, text in self.sources.items() if kind.startswith(WARNING)}

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON object (docs/reference/json.md)."""
        settings, summary = self.run.settings, self.run.summary
        return {
            "policy": settings.policy,
            "batch": self.scenario.batch,
            "requests": len(self.requests),
            "prompt_length": self.prompt_length,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": settings.seed,
            "engine": self.run.engine,
            "knobs": {n: list(v) if isinstance(v, tuple) else v for n, v in settings.knobs.items()},
            "speedup_vs_ar": self.speedup_vs_ar,
            "speedup_vs_sd": self.speedup_vs_sd,
            "speedup_vs_ar_per_device": self.per_device(self.speedup_vs_ar),
            "devices": {name: count.total for name, count in self.devices.items()},
            **summary.as_dict(),
            "law": {**asdict(self.law), "waterfall": [asdict(stage) for stage in self.waterfall]},
            "choices": [choice.as_dict() for choice in self.choices],
            "memory": [need.as_dict() for need in self.run.memory],
            "extrapolated": [asdict(entry) for entry in self.run.extrapolated],
            "hit_rate_tail_error": None
            if settings.fanout is None
            else self.scenario.tokens.tail_error(settings.sampling, draft_rule(settings).shape),
            "sources": self.sources,
            "warnings": list(self.warnings.values()),
        }


def report_of(request: SimulationRequest, *, timeline: bool = False) -> Report:
    """Simulate what is asked, beside its law and its baselines; `timeline` keeps the spans of the run.

    Raises:
        SettingError: Options contradict each other, or change nothing here.
    """
    scenario, sources = build_scenario(request)
    found = resolve(scenario, request.query)
    settings = found.settings
    law = law_prediction(settings, law_inputs(scenario, settings), batch=scenario.batch)
    run = simulate(scenario, settings, timeline=timeline)
    ar, sd = baselines(scenario, settings)
    why = waterfall(scenario, settings, law, (run, ar))
    return Report(scenario, run, ar, sd, law, why, sources, found.choices)


def print_report(report: Report, console: Console) -> None:
    """Tables for people."""
    from rich.markup import escape

    run, unequal = report.run, _unequal(report)

    def say(text: str) -> None:
        console.print(text, highlight=False)

    console.print(
        f"[bold]{run.settings.label}[/bold] · batch {report.scenario.batch} · {run.summary.tokens} tokens of "
        f"{len(report.requests)} requests, prompts of {report.prompt_length:.0f}"
    )
    for kind, text in report.warnings.items():
        say(f"[bold yellow]{kind}: {escape(text)}[/bold yellow]")
    said = {kind: text for kind, text in report.sources.items() if kind not in report.warnings}
    for kind in [kind for kind in said if kind in FIRST]:
        say(f"[dim]{kind}: {escape(said.pop(kind))}[/dim]")
    for choice in report.choices:
        value = ",".join(map(str, choice.value)) if isinstance(choice.value, tuple) else choice.value
        say(f"[cyan]{choice.knob} {value}[/cyan]: {choice.why}")
    console.print(_law_and_simulated(report, console.width, per_device=unequal is not None))
    say("[dim]measured: `validate` runs it live[/dim]")
    if unequal is not None:
        say(unequal)
    console.print(_time(report, console.width))
    first = run.summary.time_to_first_token_s
    say(
        f"time to first token {'-' if first is None else f'{first:.4g} s'} on average, prefill included; "
        f"prefills held the batch up for {run.summary.prefill_s:.4g} s"
    )
    if len(report.waterfall) > 1:
        console.print(waterfall_table(report.waterfall, "why law and simulation differ", console.width))
    if report.law.reason:
        console.print(f"no law: {report.law.reason}")
    for entry in run.extrapolated:
        say(f"[yellow]extrapolated: {entry}[/yellow]")
    for kind, source in said.items():
        say(f"[dim]{kind}: {escape(source)}[/dim]")
    console.print(f"[dim]{METHOD}[/dim]")


def _law_and_simulated(report: Report, width: int, *, per_device: bool) -> Any:
    titles = ["", "tokens/s", "vs AR", "vs AR,\nper device", "vs SD", "tokens/\nround", "hit rate"]
    law, summary = report.law, report.run.summary

    def row(name: str, speedup: float | None, vs_sd: str, numbers: Any) -> list[str]:
        factors = [_factor(speedup), _factor(report.per_device(speedup)), vs_sd]
        shown = [_number(numbers.tokens_per_second), *factors, _number(numbers.tokens_per_round)]
        return [name, *shown, _share(numbers.cache_hit_rate)]

    rows = [
        row(f"law ({law.statement})", law.speedup_vs_ar, "", law),
        row("simulated", report.speedup_vs_ar, _factor(report.speedup_vs_sd), summary),
    ]
    if law.ceiling is not None:
        rows.append(["ceiling C", "", _factor(law.ceiling), "", "", "", ""])
    if not per_device:
        for cells in (titles, *rows):
            del cells[3]
    return fitted_table(titles, rows, width, drop=("hit rate", "tokens/\nround", "vs SD"))


def _unequal(report: Report) -> str | None:
    """That the policy takes other devices than plain decoding, and what the columns make of it."""
    found = report.devices
    if not found or found["policy"].total == found["ar"].total:
        return None
    return (
        f"devices: {found['policy']} (target + draft) against plain decoding's and SD's {found['ar']}; "
        "per device: tokens/s over devices"
    )


def _time(report: Report, width: int) -> Any:
    summary = report.run.summary
    rows = [
        (
            device,
            _share(share),
            _share(summary.stalled_s[device] / summary.seconds),
            _share(min(share, summary.overlap_s / summary.seconds)),
        )
        for device, share in summary.utilization.items()
    ]
    return fitted_table(("where the time goes", "busy", "stalled", "both busy"), rows, width)


def waterfall_table(stages: Sequence[Stage], title: str, width: int) -> Any:
    """Stages with the change that each makes; `title` heads their names."""
    rows = [(stages[0].effect, _factor(stages[0].speedup_vs_ar), "")]
    for before, stage in pairwise(stages):
        change = f"{(stage.speedup_vs_ar / before.speedup_vs_ar - 1.0) * 100:+.1f} %"
        plus = "" if stage.effect.startswith(("sim", "seen")) else "+ "
        rows.append((plus + stage.effect, _factor(stage.speedup_vs_ar), change))
    return fitted_table((title, "speedup vs AR", "change"), rows, width)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}x"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{round(value * 100, 1) + 0.0:.1f} %"


def write_timeline(report: Report, path: Path) -> None:
    """Chrome-trace JSON of the run, for Perfetto."""
    text = chrome_trace(report.run.spans, title=f"simulated {report.run.settings.label}")
    with atomic_write(path) as file:
        file.write(text)


def plot(report: Report, path: Path) -> None:
    """Picture of the waterfall and of where the time goes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    draw_waterfall(left, report.waterfall or [Stage("simulated", report.speedup_vs_ar)])
    left.set_title("from the law to the simulation, effect by effect", fontsize=10)
    draw_time(right, report.run.summary)
    right.set_title(f"{report.run.settings.label}, batch {report.scenario.batch}", fontsize=10)
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, dpi=130, format=path.suffix.lstrip(".") or "png")
    pyplot.close(figure)


def draw_waterfall(axes: Any, stages: Sequence[Stage]) -> None:
    """Speedup from the law to the full simulation, one effect at a time."""
    values = [stage.speedup_vs_ar for stage in stages]
    colours = ["#4c72b0", *["#9aa5b8"] * max(0, len(stages) - 2), "#dd8452"]
    axes.barh(range(len(stages)), values, color=colours[: len(stages)])
    axes.set_yticks(range(len(stages)), [stage.effect for stage in stages], fontsize=9)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, max(values) * 1.15)
    for y, value in enumerate(values):
        axes.text(value, y, f" {value:.2f}", va="center", fontsize=9)
    axes.set_xlabel("speedup over plain decoding")


def draw_time(axes: Any, summary: Summary) -> None:
    """Share of decode time in which each device works, alone or together, or waits."""
    devices = list(summary.utilization)
    # Of several drafts each is busy beside the target for at most as long as any of them is.
    both = [min(summary.utilization[d], summary.overlap_s / summary.seconds) for d in devices]
    alone = [summary.utilization[d] - b for d, b in zip(devices, both, strict=True)]
    axes.barh(devices, both, color="#55a868", label="busy, other busy too")
    axes.barh(devices, alone, left=both, color="#4c72b0", label="busy alone")
    busy = [summary.utilization[d] for d in devices]
    axes.barh(devices, [1.0 - b for b in busy], left=busy, color="#dddddd", label="stalled")
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of decode time")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, fontsize=8, frameon=False)
