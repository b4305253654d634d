"""What `recommend` prints: JSON for machines, an answer with its reasons for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from analysis.intervals import Interval
from analysis.recommend.answer import Optimum, Ranked, Recommendation, crossovers, time_per_token
from analysis.recommend.search import Tried, requests_served
from analysis.results import Row
from analysis.show import Column, table
from analysis.sources import Sources
from hardware_profiles.files import to_json
from policies.commandline import wide_console
from policies.config import shown
from policies.registry import Settings, find_policy
from simulator.imports.export import METHOD_OF, engine_lines, engines_load

METHOD = (
    "tokens/s = emitted tokens / decode seconds (prefill left out), ratio of sums over the recorded prompts, "
    "all groups of devices together; policies far behind on fewer prompts, beside plain decoding's. "
    "Intervals: prompts, sampling luck and latency blocks resampled, model error from the calibration's live "
    "settings."
)
THINNED = {
    True: "the recorded trace thinned: the draft's first choice made wrong (or right) at random positions",
    False: "coin tosses with the recorded hit curve (a sampled trace cannot be thinned)",
}


def as_json(answer: Recommendation) -> str:
    """The documented JSON object, as text."""
    query, sources, search = answer.query, answer.sources, answer.search
    found = {
        "profile": sources.profile.name,
        "files": {
            "profile": sources.origins.get("profile"),
            "trace": sources.origins.get(query.temperature),
        },
        "warnings": answer.warnings,
        "trace": {
            "prompts": answer.trace.meta.prompt_set,
            "category": sources.category,
            "requests": len(answer.trace.requests),
            "acceptance": answer.acceptance,
        },
        "batch": query.batch,
        "temperature": query.temperature,
        "devices": search.devices,
        "level": query.level,
        "model_error": sources.model_error,
        "winner": as_row(answer.winner),
        "margin_vs_ar": asdict(answer.winner.over_ar),
        "margin_vs_sd": asdict(answer.over_sd),
        "runner_up": as_row(answer.runner_up),
        "distinguishable": answer.runner_up.distinguishable,
        "best_of_each_policy": [as_row(row) for row in answer.best.values()],
        "why": list(reasons(answer)),
        "flips": {
            "over_batch": [point_row(point) for point in answer.by_batch],
            "over_acceptance": [point_row(point) for point in answer.by_acceptance],
            "acceptance_made_by": THINNED[query.temperature == 0.0],
            "not_tried_at_other_acceptances": without_acceptance_sweep(answer),
        },
        "paste": snippets(answer),
        "engines": engines(answer)[1],
        "extrapolated": answer.extrapolated,
        "settings_tried": search.simulated,
        "seconds": answer.seconds,
        "cpu_seconds": answer.cpu_seconds,
        "cpu_seconds_per_1000_settings": 1e3 * answer.cpu_seconds / search.simulated,
        "policies_without_decisions": dict(answer.undecided),
        "settings_refused": {s.label: why for s, why in search.refused.items()},
        "method": METHOD,
    }
    return to_json(found, indent=2)


def as_row(row: Ranked) -> Row:
    """A ranked choice as plain values, ready for JSON."""
    settings, summary = row.settings, row.summary
    return {
        "setting": settings.label,
        "policy": settings.policy,
        "lookahead": settings.lookahead,
        "fanout": settings.fanout,
        "fanout_backup": settings.fanout_backup,
        "backup": settings.backup,
        **settings.unusual,
        "deployment": row.words,
        "requests": row.requests,
        "tokens_per_second": row.tokens_per_second,
        "tokens_per_second_interval": asdict(row.speed),
        "tokens_per_second_per_device": row.per_device,
        "tokens_per_second_per_busy_device": row.per_busy_device,
        "tokens_per_second_per_request": row.per_request,
        "speedup_vs_ar": asdict(row.over_ar),
        "winner_over": asdict(row.winner_over),
        "told_apart_from_winner": row.distinguishable,
        "ms_per_token": time_per_token(summary),
        "tokens_per_round": summary.tokens_per_round,
        "acceptance_rate": summary.acceptance_rate,
        "cache_hit_rate": summary.cache_hit_rate,
        "extrapolated": row.extrapolated,
    }


def point_row(point: Optimum) -> Row:
    """The best at another batch or acceptance, ready for JSON."""
    return {**asdict(point), "best": point.best.label, "policy": point.best.policy}


# What it is worth


def without_acceptance_sweep(answer: Recommendation) -> list[str]:
    """Policies in the answer whose decisions belong to the recorded acceptance, so to no other one."""
    return [policy for policy in answer.best if find_policy(policy).needs_decisions]


def reasons(answer: Recommendation) -> Iterator[str]:
    """Why the winner wins, in sentences with numbers."""
    winner, policy = answer.winner, answer.winner.settings.policy
    step = sum(time_per_token(answer.best["ar"].summary).values())
    yield f"plain decoding takes {step:.3g} ms per token and group"
    yield _where_time_goes(answer.best["sd"])
    if policy == "ar":
        yield "which costs more than the accepted tokens save"
    elif policy != "sd":
        yield _where_time_goes(winner)
    elif rivals := [row for name, row in answer.best.items() if name not in {"ar", "sd"}]:
        best = min(rivals, key=lambda row: row.winner_over.middle)
        yield (
            f"a device for the draft is better used by another replica: {best.settings.label} makes "
            f"{best.per_busy_device:.3g} tokens/s per busy device against "
            f"{winner.per_busy_device:.3g}"
        )


def _where_time_goes(row: Ranked) -> str:
    """What a setting does in a token's milliseconds: overlapped, or one after the other."""
    summary, label = row.summary, row.settings.label
    parts, hits = time_per_token(summary), summary.cache_hit_rate
    per_round = f"{summary.tokens_per_round:.2f} tokens"
    verifying, drafting = f"{parts['target_alone']:.3g} ms", f"{parts['draft_alone']:.3g} ms"
    if row.settings.policy == "sd":
        return (
            f"{label} verifies in {verifying} per token ({per_round} per round), but {drafting} of drafting "
            "per token come on top, one after the other"
        )
    if parts["both"] == 0.0:
        return (
            f"{label} gets {per_round} out of a round: {verifying} per token of verification, and {drafting} "
            "of drafting and retrieval before it"
        )
    return (
        f"{label} drafts {parts['both']:.3g} ms per token while the target verifies and {drafting} while it "
        f"waits ({per_round}/round{'' if hits is None else f', {hits:.0%} of outcomes prepared for'})"
    )


def describe(points: Sequence[Optimum], unit: str) -> str:
    """`saguaro up to batch 4 (1.3x AR), sd from batch 8 ...`: one entry per stretch of the same policy."""
    starts = [points[0], *(later for _, later in crossovers(points))]
    parts = []
    for start in starts:
        guess = ", extrapolated" if start.extrapolated else ""
        parts.append(
            f"{start.best.label} from {unit.format(start.at)} ({start.speedup_vs_ar:.2f}x AR{guess})"
        )
    seen = f"from {unit.format(points[0].at)} to {points[-1].at:g}"
    return "; ".join(parts) + (f" (no crossover {seen})" if len(parts) == 1 else f" (looked at {seen})")


# Commands to paste


def snippets(answer: Recommendation) -> dict[str, str]:
    """Commands by what they are for."""
    trace, query = answer.trace, answer.query
    width, models = max(answer.winner.widths), (trace.meta.target_model, trace.meta.draft_model)
    own = commands(
        answer.winner.settings,
        answer.sources,
        batch=width,
        requests=requests_served(len(trace.requests), width),
        limit=query.max_tokens,
        seed=query.seed,
        pair=models if models[0].startswith("pair:") and not answer.warnings else None,
    )
    return own | engines(answer)[0]


def engines(answer: Recommendation) -> tuple[dict[str, str], str | None]:
    """Command lines of engines, and why there is none, or none of the winner.

    Where vLLM and SGLang do not have the winner's policy, they are offered the best SD; plain decoding they
    have without a flag.
    """
    models = (answer.trace.meta.target_model, answer.trace.meta.draft_model)
    if answer.warnings:
        return {}, "no lines for engines: the recording is of another pair than the profile"
    if unknown := [name for name in models if not engines_load(name)]:
        return {}, f"no lines for engines, which cannot load {' and '.join(unknown)}"
    policy = answer.winner.settings.policy
    if policy in METHOD_OF:
        return engine_lines(answer.winner.settings, *models) | forced(answer.winner, models[1]), None
    best = answer.best["sd"]
    lines = engine_lines(best.settings, *models)
    note = f"neither vLLM nor SGLang has {policy!r}; their lines are of the best SD"
    if policy == "ar":
        note = "engines decode plainly unless told otherwise; the lines are of the best SD"
    named = {f"{engine} (best SD)": line for engine, line in lines.items()}
    return named | (forced(best, models[1]) if lines else {}), note


def forced(tried: Tried, draft: str) -> dict[str, str]:
    """What prints how to make engines run at the acceptance predicted, so that times alone are tested."""
    settings, rounds = tried.settings, tried.summary.tokens_per_round
    if METHOD_OF.get(settings.policy) != "draft_model" or not rounds:
        return {}
    words = ("python", "-m", "simulator.imports", "export")
    line = _line(*words, lookahead=settings.lookahead, draft=draft, tokens_per_round=f"{rounds:.4g}")
    return {"acceptance forced": line}


def commands(
    settings: Settings,
    sources: Sources,
    *,
    batch: int = 1,
    requests: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    pair: tuple[str, str] | None = None,
) -> dict[str, str]:
    """`simulate` of a setting, with every option that changes its answer, and what would check it live.

    `validate` has not every knob.  Where it does not reach, the study `family` runs requests one by one.

    Args:
        settings: The setting.
        sources: Profile, traces and category of prompts.
        batch: Rows served at once.
        requests: How many are served; None: as many as `simulate` serves by default.
        limit: Most tokens of a request; None: as recorded.
        seed: Keys latency noise and luck.
        pair: Target and draft that can run live.
    """
    info, hw = find_policy(settings.policy), sources.hw or sources.profile.name
    uneven = settings.fanout_backup is not None or len(set(settings.fanout or (1,))) > 1
    knobs, heat = _knobs(settings), f"{settings.temperature:g}"
    known: Row = {**knobs, "temperature": heat if settings.temperature else None, "batch": batch}
    served: Row = {"prompt_category": sources.category, "requests": requests, "max_tokens": limit}
    served |= {"seed": seed or None}
    trace = sources.files.get(settings.temperature)
    if sources.given:
        length = len(next(iter(sources.traces.values())).requests[0].prompt)
        served |= {**sources.given, "prompt_length": length}
        if settings.fanout is None:  # no cache to hit
            served |= dict.fromkeys(("hit_curve", "hit_rate"))
    lines = {"simulate": _line("simulate", hw=hw, trace=trace, policy=settings.policy, **known, **served)}
    if pair and not (uneven or settings.unusual or info.needs_decisions):
        asked: Row = {"target": pair[0], "draft": pair[1], "policies": settings.policy}
        lines["validate"] = _line("validate", **asked, **known, count=max(6, 2 * batch), max_tokens=limit)
    elif pair and batch == 1 and "live" in info.worlds:
        study = ("python", "-m", "analysis", "run", "family", "--live")
        lines["validate"] = _line(*study, hw=hw, setting=setting_text(settings), temperature=heat)
    return lines


def _line(*words: str, **options: Any) -> str:
    """A command line; options that are None stay out of it."""
    given = [(f"--{n.replace('_', '-')}", value) for n, value in options.items() if value is not None]
    flags = ((name,) if value is True else (name, str(value)) for name, value in given)
    return shlex.join([*words, *(word for flag in flags for word in flag)])


def setting_text(settings: Settings) -> str:
    """A setting as `--setting` takes it, e.g. `mirror lookahead=3 kappa=1`."""
    return " ".join([settings.policy, *(f"{name}={text}" for name, text in _knobs(settings).items())])


def _knobs(settings: Settings) -> dict[str, str]:
    """Its knobs as the command line takes them; equal fan-outs are one number."""
    values = {name: getattr(settings, name) for name in ("lookahead", "fanout", "fanout_backup", "backup")}
    for name in ("fanout", "fanout_backup"):
        if len(set(values[name] or ())) == 1:
            values[name] = values[name][0]
    return {n: shown(v) for n, v in (values | settings.unusual).items() if v is not None}


# For people


def print_recommendation(answer: Recommendation) -> None:
    """The answer for people."""
    from rich.markup import escape

    console = wide_console()
    say = partial(console.print, highlight=False)
    query, winner, devices = answer.query, answer.winner, answer.search.devices
    for warning in answer.warnings:
        say(f"[bold yellow]warning: {warning}[/bold yellow]")
    say(
        f"[bold]{winner.settings.label}[/bold]: {winner.tokens_per_second:.4g} tokens/s on "
        f"{devices} device{'s' * (devices > 1)} at batch {query.batch} ({winner.words}), "
        f"{answer.sources.category or 'all'} prompts, temperature {query.temperature:g}"
    )
    if files := answer.sources.origins:
        said = escape(f"profile {files['profile']}, trace {files[query.temperature]}")
        say(f"[dim]{said}[/dim]")
    say(_margin("over plain decoding", winner.over_ar))
    if winner.settings.policy != "sd":
        say(_margin(f"over the best SD ({answer.best['sd'].settings.label})", answer.over_sd))
    say(_apart(answer.runner_up))
    say(best_table(answer.best.values()))
    for reason in reasons(answer):
        say(f"why: {reason}")
    for sentence in _said_of_crossovers(answer):
        say(sentence)
    if (note := engines(answer)[1]) is not None:
        say(note)
    for purpose, line in snippets(answer).items():
        say(f"[bold]{purpose}[/bold]: {line}", soft_wrap=True)
    if answer.extrapolated:
        outside = "; ".join(answer.extrapolated)
        say(f"[yellow]outside the measured grid, extrapolated: {outside}[/yellow]")
    for policy, why in answer.undecided.items():
        say(f"[yellow]not tried: {policy}: {why}[/yellow]")
    say(f"[dim]{METHOD} {answer.search.simulated} settings tried in {answer.seconds:.1f} s.[/dim]")


def _margin(what: str, margin: Interval) -> str:
    interval = f"{margin.level:.0%} interval {margin.low:.2f} to {margin.high:.2f}"
    return f"{margin.middle:.2f}x {what} ({interval})"


def _apart(runner_up: Ranked) -> str:
    rival, over = runner_up.settings.label, runner_up.winner_over
    if runner_up.distinguishable:
        return f"faster than the runner-up {rival} by {over.low:.2f}x to {over.high:.2f}x"
    return (
        f"not distinguishable from the runner-up {rival} ({over.low:.2f}x to {over.high:.2f}x): take "
        "whichever is simpler"
    )


def _said_of_crossovers(answer: Recommendation) -> Iterator[str]:
    if answer.by_batch:
        yield f"over the batch: {describe(answer.by_batch, 'batch {:g}')}"
    if answer.by_acceptance:
        yield f"over the acceptance: {describe(answer.by_acceptance, 'acceptance {:.2f}')}"
        how = THINNED[answer.query.temperature == 0.0]
        yield f"[dim]acceptance here is {answer.acceptance:.2f}; others are {how}[/dim]"
        if names := without_acceptance_sweep(answer):
            yield (
                "[dim]not tried at other acceptances, since what they decide was recorded at this one: "
                f"{', '.join(names)}[/dim]"
            )


TIMES = {"target\nalone": "target_alone", "both": "both", "draft\nalone": "draft_alone", "nobody": "nobody"}
"""Milliseconds per token of one group, by who works meanwhile."""
COLUMNS = (
    Column("best of each policy", "setting"),
    Column("groups x\ndevices", "groups"),
    Column("tok/s", "tokens_per_second", "{:.0f}"),
    Column("per busy\ndevice", "tokens_per_second_per_busy_device", "{:.0f}"),
    Column("vs AR", "speedup_vs_ar", "{0[middle]:.2f} ({0[low]:.2f}-{0[high]:.2f})"),
    *(Column(title, name, "{:.2f}") for title, name in TIMES.items()),
)


def best_table(ranked: Iterable[Ranked]) -> Any:
    """The best of each policy."""
    rows = []
    for each in ranked:
        row = as_row(each)
        rows.append({**row, **row["ms_per_token"], "groups": f"{each.groups} x {each.group_devices}"})
    first, *_ = TIMES
    return table(
        "",
        COLUMNS,
        rows,
        drop=(tuple(TIMES), "per busy\ndevice", "groups x\ndevices"),
        notes={first: "last four: ms per token of one group, by who works meanwhile"},
    )
