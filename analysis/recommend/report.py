"""What `recommend` prints: JSON for machines, an answer with its reasons for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.intervals import Interval
from analysis.recommend.answer import Point, Ranked, Recommendation, crossovers, time_per_token
from analysis.recommend.search import requests_served
from analysis.sources import Sources
from hardware_profiles.files import to_json
from hardware_profiles.store import other_pair
from policies.commandline import fitted_table, wide_console
from policies.config import shown
from policies.registry import Settings, find_policy
from simulator.imports.export import METHOD_OF, engine_lines, engines_load

METHOD = (
    "tokens/s = emitted tokens / decode seconds (prefill left out), ratio of sums over the recorded prompts, "
    "all groups of devices together. Intervals: prompts, sampling luck and latency blocks resampled, model "
    "error from the calibration's live settings."
)
THINNED = {
    True: "the recorded trace thinned: the draft's first choice made wrong (or right) at random positions",
    False: "coin tosses with the recorded hit curve (a sampled trace cannot be thinned)",
}


def as_dict(answer: Recommendation) -> dict[str, Any]:
    """The documented JSON object."""
    query, sources = answer.query, answer.sources
    trace = sources.trace(query.temperature)
    return {
        "profile": sources.profile.name,
        "files": {
            "profile": sources.origins.get("profile"),
            "trace": sources.origins.get(query.temperature),
        },
        "warnings": warnings(answer),
        "trace": {
            "prompts": trace.meta.prompt_set,
            "category": sources.category,
            "requests": len(trace.requests),
            "acceptance": answer.acceptance,
        },
        "batch": query.batch,
        "temperature": query.temperature,
        "devices": query.devices,
        "level": query.level,
        "model_error": sources.model_error,
        "winner": as_row(answer.winner),
        "margin_vs_ar": answer.winner.over_ar.as_dict(),
        "margin_vs_sd": answer.over_sd.as_dict(),
        "runner_up": as_row(answer.runner_up),
        "distinguishable": answer.runner_up.distinguishable,
        "best_of_each_policy": [as_row(row) for row in answer.best.values()],
        "why": reasons(answer),
        "flips": {
            "over_batch": [point.as_dict() for point in answer.by_batch],
            "over_acceptance": [point.as_dict() for point in answer.by_acceptance],
            "acceptance_made_by": THINNED[query.temperature == 0.0],
            "not_tried_at_other_acceptances": without_acceptance_sweep(answer),
        },
        "paste": snippets(answer),
        "engines": no_engine_lines(answer) or engine_note(answer),
        "extrapolated": answer.extrapolated,
        "settings_tried": answer.tried,
        "policies_without_decisions": dict(without_decisions(answer)),
        "settings_refused": {s.label: why for s, why in answer.refused.items()},
        "method": METHOD,
    }


def as_row(row: Ranked) -> dict[str, Any]:
    """A ranked choice as plain values, ready for JSON."""
    choice, settings = row.choice, row.choice.settings
    return {
        "setting": settings.label,
        "policy": settings.policy,
        "lookahead": settings.lookahead,
        "fanout": None if settings.fanout is None else list(settings.fanout),
        "fanout_backup": None if settings.fanout_backup is None else list(settings.fanout_backup),
        "backup": settings.backup,
        **settings.unusual,
        "deployment": choice.deployment.words,
        "tokens_per_second": choice.tokens_per_second,
        "tokens_per_second_interval": row.speed.as_dict(),
        "tokens_per_second_per_device": choice.per_device,
        "tokens_per_second_per_busy_device": choice.per_busy_device,
        "tokens_per_second_per_request": choice.per_request,
        "speedup_vs_ar": row.over_ar.as_dict(),
        "winner_over": row.winner_over.as_dict(),
        "told_apart_from_winner": row.distinguishable,
        "ms_per_token": time_per_token(choice.summary),
        "tokens_per_round": choice.summary.tokens_per_round,
        "acceptance_rate": choice.summary.acceptance_rate,
        "cache_hit_rate": choice.summary.cache_hit_rate,
        "extrapolated": list(choice.extrapolated),
    }


def as_json(answer: Recommendation) -> str:
    """`as_dict` as text."""
    return to_json(as_dict(answer), indent=2)


def snippets(answer: Recommendation) -> dict[str, str]:
    """Commands by what they are for."""
    winner, sd = answer.winner.choice, answer.best["sd"].choice
    width = max(winner.deployment.widths)
    trace = answer.sources.trace(answer.query.temperature)
    lines = {
        "simulate": simulate_command(
            winner.settings,
            answer.sources,
            batch=width,
            requests=requests_served(len(trace.requests), width),
            limit=answer.query.limit,
            seed=answer.query.seed,
        )
    }
    meta = trace.meta
    if meta.target_model.startswith("pair:") and not warnings(answer):
        line = validate_command(
            winner.settings,
            answer.sources,
            target=meta.target_model,
            draft=meta.draft_model,
            batch=width,
            limit=answer.query.limit,
        )
        if line is not None:
            lines["validate"] = line
    if no_engine_lines(answer):
        return lines
    theirs = winner if engines_have(winner.settings.policy) else sd
    for engine, line in engine_lines(theirs.settings, meta.target_model, meta.draft_model).items():
        lines[engine if theirs is winner else f"{engine} (best SD)"] = line
    return lines


def warnings(answer: Recommendation) -> list[str]:
    """What to know before believing anything else: that times and acceptance are of different pairs."""
    trace = answer.sources.trace(answer.query.temperature)
    mixed = other_pair(answer.sources.profile, trace.meta)
    return [] if mixed is None else [mixed]


def no_engine_lines(answer: Recommendation) -> str | None:
    """Why no engine's command line is offered; None where one is."""
    meta = answer.sources.trace(answer.query.temperature).meta
    if warnings(answer):
        return "no lines for engines: the recording is of another pair than the profile"
    names = [name for name in (meta.target_model, meta.draft_model) if not engines_load(name)]
    return f"no lines for engines, which cannot load {' and '.join(names)}" if names else None


def engines_have(policy: str) -> bool:
    """Whether vLLM and SGLang have a policy."""
    return policy in METHOD_OF


def engine_note(answer: Recommendation) -> str | None:
    """That no engine has the winner, and what it is offered in its place; None where they have it.

    Plain decoding they have without a flag.
    """
    policy = answer.winner.choice.settings.policy
    if engines_have(policy):
        return None
    if policy == "ar":
        return "engines decode plainly unless told otherwise; the lines are of the best SD"
    return f"neither vLLM nor SGLang has {policy!r}; their lines are of the best SD"


def without_acceptance_sweep(answer: Recommendation) -> list[str]:
    """Policies in the answer whose decisions belong to the recorded acceptance, so to no other one."""
    return [policy for policy in answer.best if find_policy(policy).needs_decisions]


def without_decisions(answer: Recommendation) -> Mapping[str, str]:
    """Policies that could not be tried since what they decide is not recorded, and why it is not."""
    return answer.sources.undecided.get(answer.query.temperature, {})


def reasons(answer: Recommendation) -> list[str]:
    """Why the winner wins, in sentences with numbers."""
    ar, sd, winner = answer.best["ar"], answer.best["sd"], answer.winner
    step = sum(time_per_token(ar.choice.summary).values())
    said = [f"plain decoding takes {step:.3g} ms per token and group"]
    if winner.choice.settings.policy != "sd":
        said.append(_where_time_goes(sd))
    if winner.choice.settings.policy == "ar":
        said.append("which costs more than the accepted tokens save")
    elif winner.choice.settings.policy == "sd":
        said.append(_where_time_goes(winner))
        rivals = [row for name, row in answer.best.items() if name not in {"ar", "sd"}]
        if rivals:
            best = min(rivals, key=lambda row: row.winner_over.middle)
            said.append(
                f"a device for the draft is better used by another replica: {best.choice.settings.label} "
                f"makes {best.choice.per_busy_device:.3g} tokens/s per busy device "
                f"against {winner.choice.per_busy_device:.3g}"
            )
    else:
        said.append(_where_time_goes(winner))
    return said


def _where_time_goes(row: Ranked) -> str:
    """What a setting does in a token's milliseconds: overlapped, or one after the other."""
    parts, summary = time_per_token(row.choice.summary), row.choice.summary
    label, per_round = row.choice.settings.label, f"{summary.tokens_per_round:.2f} tokens"
    if row.choice.settings.policy == "sd":
        return (
            f"{label} verifies in {parts['target_alone']:.3g} ms per token ({per_round} per round), but "
            f"{parts['draft_alone']:.3g} ms of drafting per token come on top, one after the other"
        )
    if parts["both"] == 0.0:
        return (
            f"{label} gets {per_round} out of a round: {parts['target_alone']:.3g} ms per token of "
            f"verification, and {parts['draft_alone']:.3g} ms of drafting and retrieval before it"
        )
    hits = summary.cache_hit_rate
    return (
        f"{label} drafts {parts['both']:.3g} ms per token while the target verifies and "
        f"{parts['draft_alone']:.3g} ms while it waits ({per_round}/round"
        f"{'' if hits is None else f', {hits:.0%} of outcomes prepared for'})"
    )


def print_recommendation(answer: Recommendation) -> None:
    """The answer for people."""
    console = wide_console()
    query, winner = answer.query, answer.winner
    level = f"{query.level:.0%}"
    prompts = answer.sources.category or "all"
    for warning in warnings(answer):
        console.print(f"[bold yellow]warning: {warning}[/bold yellow]", highlight=False)
    console.print(
        f"[bold]{winner.choice.settings.label}[/bold]: {winner.choice.tokens_per_second:.4g} tokens/s on "
        f"{query.devices} device{'s' * (query.devices > 1)} at batch {query.batch} "
        f"({winner.choice.deployment.words}), {prompts} prompts, temperature {query.temperature:g}",
        highlight=False,
    )
    files = answer.sources.origins
    if files:
        answered = f"{files['profile']}, trace {files[query.temperature]}"
        console.print(f"[dim]profile {answered}[/dim]", highlight=False)
    console.print(_margin("over plain decoding", winner.over_ar, level), highlight=False)
    if winner.choice.settings.policy != "sd":
        sd = answer.best["sd"].choice.settings
        console.print(_margin(f"over the best SD ({sd.label})", answer.over_sd, level), highlight=False)
    console.print(_apart(answer), highlight=False)
    console.print(_table(answer, console.width))
    for sentence in reasons(answer):
        console.print(f"why: {sentence}", highlight=False)
    _print_crossovers(console, answer)
    note = no_engine_lines(answer) or engine_note(answer)
    if note is not None:
        console.print(note, highlight=False)
    for purpose, line in snippets(answer).items():
        console.print(f"[bold]{purpose}[/bold]: {line}", highlight=False, soft_wrap=True)
    if answer.extrapolated:
        outside = "; ".join(answer.extrapolated)
        console.print(f"[yellow]outside the measured grid, extrapolated: {outside}[/yellow]", highlight=False)
    for policy, why in without_decisions(answer).items():
        console.print(f"[yellow]not tried: {policy}: {why}[/yellow]", highlight=False)
    console.print(f"[dim]{METHOD} {answer.tried} settings tried.[/dim]")


def _margin(what: str, margin: Interval, level: str) -> str:
    return f"{margin.middle:.2f}x {what} ({level} interval {margin.low:.2f} to {margin.high:.2f})"


def _apart(answer: Recommendation) -> str:
    rival, over = answer.runner_up.choice.settings.label, answer.runner_up.winner_over
    if answer.runner_up.distinguishable:
        return f"faster than the runner-up {rival} by {over.low:.2f}x to {over.high:.2f}x"
    return (
        f"not distinguishable from the runner-up {rival} ({over.low:.2f}x to {over.high:.2f}x): take "
        "whichever is simpler"
    )


TIMES = ("target\nalone", "both", "draft\nalone", "nobody")


def _table(answer: Recommendation, width: int) -> Any:
    """The best of each policy."""
    rows = [
        (
            row.choice.settings.label,
            f"{row.choice.deployment.groups} x {row.choice.deployment.group_devices}",
            f"{row.choice.tokens_per_second:.0f}",
            f"{row.choice.per_busy_device:.0f}",
            f"{row.over_ar.middle:.2f} ({row.over_ar.low:.2f}-{row.over_ar.high:.2f})",
            *(f"{part:.2f}" for part in time_per_token(row.choice.summary).values()),
        )
        for row in answer.best.values()
    ]
    return fitted_table(
        ("best of each policy", "groups x\ndevices", "tok/s", "per busy\ndevice", "vs AR", *TIMES),
        rows,
        width,
        drop=(TIMES, "per busy\ndevice", "groups x\ndevices"),
        notes={TIMES[0]: "last four: ms per token of one group, by who works meanwhile"},
    )


def _print_crossovers(console: Any, answer: Recommendation) -> None:
    for name, points, unit in (
        ("batch", answer.by_batch, "batch {:g}"),
        ("acceptance", answer.by_acceptance, "acceptance {:.2f}"),
    ):
        if points:
            console.print(f"over the {name}: {describe(points, unit)}", highlight=False)
    if answer.by_acceptance:
        how = THINNED[answer.query.temperature == 0.0]
        console.print(
            f"[dim]acceptance here is {answer.acceptance:.2f}; others are {how}[/dim]", highlight=False
        )
        if names := without_acceptance_sweep(answer):
            console.print(
                f"[dim]not tried at other acceptances, since what they decide was recorded at this one: "
                f"{', '.join(names)}[/dim]",
                highlight=False,
            )


def describe(points: Sequence[Point], unit: str) -> str:
    """`saguaro up to batch 4 (1.3x AR), sd from batch 8 ...`: one entry per stretch of the same policy."""
    starts = [points[0], *(later for _, later in crossovers(points))]
    parts = []
    for start in starts:
        guess = ", extrapolated" if start.extrapolated else ""
        parts.append(f"{start.best.label} from {unit.format(start.at)} ({start.vs_ar:.2f}x AR{guess})")
    return "; ".join(parts) + (" (no crossover seen)" if len(parts) == 1 else "")


def simulate_command(
    settings: Settings,
    sources: Sources,
    *,
    batch: int = 1,
    requests: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> str:
    """The `simulate` command of a setting, with every option that changes its answer.

    Args:
        settings: The setting.
        sources: Profile, traces and category of prompts.
        batch: Rows served at once.
        requests: How many requests are served; None: as many as `simulate` serves by default.
        limit: Most tokens per request; None: as recorded.
        seed: Keys latency noise and luck.
    """
    words = ["simulate", "--hw", sources.hw or sources.profile.name]
    if settings.temperature in sources.files:
        words += ["--trace", sources.files[settings.temperature]]
    words += ["--policy", settings.policy, *_options(settings), "--batch", str(batch)]
    traffic = {"--prompt-category": sources.category, "--requests": requests, "--max-tokens": limit}
    traffic["--seed"] = seed or None
    for option, value in traffic.items():
        words += [] if value is None else [option, str(value)]
    return shlex.join(words)


def validate_command(
    settings: Settings,
    sources: Sources,
    *,
    target: str,
    draft: str,
    batch: int = 1,
    limit: int | None = None,
) -> str | None:
    """The command that would check a setting live; None where none would.

    `validate` has not every knob.  Where it does not reach, the study `family` runs requests one by one.
    """
    if not _beyond_validate(settings):
        words = ["validate", "--target", target, "--draft", draft, "--policies", settings.policy]
        words += [*_options(settings), "--batch", str(batch), "--count", str(max(6, 2 * batch))]
        words += [] if limit is None else ["--max-tokens", str(limit)]
        return shlex.join(words)
    if batch > 1 or "live" not in find_policy(settings.policy).worlds:
        return None
    words = ["python", "-m", "analysis", "run", "family", "--live", "--hw"]
    words += [sources.hw or sources.profile.name, "--setting", setting_text(settings)]
    return shlex.join([*words, "--temperature", f"{settings.temperature:g}"])


def _beyond_validate(settings: Settings) -> bool:
    uneven = settings.fanout_backup is not None or len(set(settings.fanout or (1,))) > 1
    return uneven or bool(settings.unusual) or find_policy(settings.policy).needs_decisions


def setting_text(settings: Settings) -> str:
    """A setting as `--setting` takes it, e.g. `mirror lookahead=3 kappa=1`."""
    return " ".join([settings.policy, *(f"{name}={text}" for name, text in _knobs(settings).items())])


def _options(settings: Settings) -> list[str]:
    """The options of a setting that `simulate` takes."""
    texts = _knobs(settings)
    if settings.temperature > 0.0:
        texts["temperature"] = f"{settings.temperature:g}"
    return [word for name, text in texts.items() for word in (f"--{name.replace('_', '-')}", text)]


def _knobs(settings: Settings) -> dict[str, str]:
    """Its knobs as the command line takes them; equal fan-outs are one number."""
    values = {name: getattr(settings, name) for name in ("lookahead", "fanout", "fanout_backup", "backup")}
    for name in ("fanout", "fanout_backup"):
        if len(set(values[name] or ())) == 1:
            values[name] = values[name][0]
    return {n: shown(v) for n, v in (values | settings.unusual).items() if v is not None}
