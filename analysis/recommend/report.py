"""What `recommend` prints: JSON for machines, an answer with its reasons for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.intervals import Interval
from analysis.recommend.answer import Point, Ranked, Recommendation, as_row, changes, time_per_token
from analysis.recommend.search import requests_served
from analysis.sources import Sources
from hardware_profiles.files import to_json
from hardware_profiles.store import other_pair
from policies.commandline import fitted_table, wide_console
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


def as_dict(found: Recommendation) -> dict[str, Any]:
    """The documented JSON object."""
    wanted, sources = found.wanted, found.sources
    trace = sources.trace(wanted.temperature)
    return {
        "profile": sources.profile.name,
        "files": {
            "profile": sources.origins.get("profile"),
            "trace": sources.origins.get(wanted.temperature),
        },
        "warnings": warnings(found),
        "trace": {
            "prompts": trace.meta.prompt_set,
            "category": sources.category,
            "requests": len(trace.requests),
            "acceptance": found.acceptance,
        },
        "batch": wanted.batch,
        "temperature": wanted.temperature,
        "devices": wanted.devices,
        "level": wanted.level,
        "model_error": sources.model_error,
        "winner": as_row(found.winner),
        "margin_vs_ar": found.winner.over_ar.as_dict(),
        "margin_vs_sd": found.over_sd.as_dict(),
        "runner_up": as_row(found.runner_up),
        "distinguishable": found.runner_up.told_apart,
        "best_of_each_policy": [as_row(row) for row in found.best.values()],
        "why": reasons(found),
        "flips": {
            "over_batch": [point.as_dict() for point in found.by_batch],
            "over_acceptance": [point.as_dict() for point in found.by_acceptance],
            "acceptance_made_by": THINNED[wanted.temperature == 0.0],
            "not_tried_at_other_acceptances": undecided(found),
        },
        "paste": pasted(found),
        "engines": unservable(found) or engine_note(found),
        "extrapolated": found.extrapolated,
        "settings_tried": found.tried,
        "policies_without_decisions": dict(without_decisions(found)),
        "settings_refused": {s.label: why for s, why in found.refused.items()},
        "method": METHOD,
    }


def as_json(found: Recommendation) -> str:
    """`as_dict` as text."""
    return to_json(as_dict(found), indent=2)


def pasted(found: Recommendation) -> dict[str, str]:
    """Commands by what they are for."""
    winner, sd = found.winner.choice, found.best["sd"].choice
    width = max(winner.deployment.widths)
    trace = found.sources.trace(found.wanted.temperature)
    lines = {
        "simulate": simulate_line(
            winner.settings,
            found.sources,
            batch=width,
            requests=requests_served(len(trace.requests), width),
            limit=found.wanted.limit,
            seed=found.wanted.seed,
        )
    }
    meta = trace.meta
    if meta.target_model.startswith("pair:") and not warnings(found):
        line = validate_line(
            winner.settings,
            found.sources,
            target=meta.target_model,
            draft=meta.draft_model,
            batch=width,
            limit=found.wanted.limit,
        )
        if line is not None:
            lines["validate"] = line
    if unservable(found):
        return lines
    theirs = winner if engines_have(winner.settings.policy) else sd
    for engine, line in engine_lines(theirs.settings, meta.target_model, meta.draft_model).items():
        lines[engine if theirs is winner else f"{engine} (best SD)"] = line
    return lines


def warnings(found: Recommendation) -> list[str]:
    """What to know before believing anything else: that times and acceptance are of different pairs."""
    trace = found.sources.trace(found.wanted.temperature)
    mixed = other_pair(found.sources.profile, trace.meta)
    return [] if mixed is None else [mixed]


def unservable(found: Recommendation) -> str | None:
    """Why no engine's command line is offered; None where one is."""
    meta = found.sources.trace(found.wanted.temperature).meta
    if warnings(found):
        return "no lines for engines: the recording is of another pair than the profile"
    names = [name for name in (meta.target_model, meta.draft_model) if not engines_load(name)]
    return f"no lines for engines, which cannot load {' and '.join(names)}" if names else None


def engines_have(policy: str) -> bool:
    """Whether vLLM and SGLang have a policy."""
    return policy in METHOD_OF


def engine_note(found: Recommendation) -> str | None:
    """That no engine has the winner, and what it is offered in its place; None where they have it.

    Plain decoding they have without a flag.
    """
    policy = found.winner.choice.settings.policy
    if engines_have(policy):
        return None
    if policy == "ar":
        return "engines decode plainly unless told otherwise; the lines are of the best SD"
    return f"neither vLLM nor SGLang has {policy!r}; their lines are of the best SD"


def undecided(found: Recommendation) -> list[str]:
    """Policies in the answer whose decisions belong to the recorded acceptance, so to no other one."""
    return [policy for policy in found.best if find_policy(policy).needs_decisions]


def without_decisions(found: Recommendation) -> Mapping[str, str]:
    """Policies that could not be tried since what they decide is not recorded, and why it is not."""
    return found.sources.undecided.get(found.wanted.temperature, {})


def reasons(found: Recommendation) -> list[str]:
    """Why the winner wins, in sentences with numbers."""
    ar, sd, winner = found.best["ar"], found.best["sd"], found.winner
    step = sum(time_per_token(ar.choice.summary).values())
    said = [f"plain decoding takes {step:.3g} ms per token and group"]
    if winner.choice.settings.policy != "sd":
        said.append(_sequential(sd))
    if winner.choice.settings.policy == "ar":
        said.append("which costs more than the accepted tokens save")
    elif winner.choice.settings.policy == "sd":
        said.append(_sequential(winner))
        rivals = [row for name, row in found.best.items() if name not in {"ar", "sd"}]
        if rivals:
            best = min(rivals, key=lambda row: row.winner_over.middle)
            said.append(
                f"a device for the draft is better used by another replica: {best.choice.settings.label} "
                f"makes {best.choice.per_busy_device:.3g} tokens/s per busy device "
                f"against {winner.choice.per_busy_device:.3g}"
            )
    else:
        said.append(_parallel(winner) if _overlaps(winner) else _in_turn(winner))
    return said


def _overlaps(row: Ranked) -> bool:
    """Whether the devices of a setting work at the same time, and not in turn."""
    return time_per_token(row.choice.summary)["both"] > 0.0


def _in_turn(row: Ranked) -> str:
    parts, summary = time_per_token(row.choice.summary), row.choice.summary
    return (
        f"{row.choice.settings.label} gets {summary.tokens_per_round:.2f} tokens out of a round: "
        f"{parts['target_alone']:.3g} ms per token of verification, and {parts['draft_alone']:.3g} ms "
        "of drafting and retrieval before it"
    )


def _sequential(row: Ranked) -> str:
    parts, summary = time_per_token(row.choice.summary), row.choice.summary
    return (
        f"{row.choice.settings.label} verifies in {parts['target_alone']:.3g} ms per token "
        f"({summary.tokens_per_round:.2f} tokens per round), but {parts['draft_alone']:.3g} ms of drafting "
        "per token come on top, one after the other"
    )


def _parallel(row: Ranked) -> str:
    parts, summary = time_per_token(row.choice.summary), row.choice.summary
    hits = (
        "" if summary.cache_hit_rate is None else f", {summary.cache_hit_rate:.0%} of outcomes prepared for"
    )
    return (
        f"{row.choice.settings.label} drafts {parts['both']:.3g} ms per token while the target verifies and "
        f"{parts['draft_alone']:.3g} ms while it waits ({summary.tokens_per_round:.2f} tokens/round{hits})"
    )


def print_recommendation(found: Recommendation) -> None:
    """The answer for people."""
    console = wide_console()
    wanted, winner = found.wanted, found.winner
    level = f"{wanted.level:.0%}"
    prompts = found.sources.category or "all"
    for warning in warnings(found):
        console.print(f"[bold yellow]warning: {warning}[/bold yellow]", highlight=False)
    console.print(
        f"[bold]{winner.choice.settings.label}[/bold]: {winner.choice.tokens_per_second:.4g} tokens/s on "
        f"{wanted.devices} device{'s' * (wanted.devices > 1)} at batch {wanted.batch} "
        f"({winner.choice.deployment.words}), {prompts} prompts, temperature {wanted.temperature:g}",
        highlight=False,
    )
    files = found.sources.origins
    if files:
        answered = f"{files['profile']}, trace {files[wanted.temperature]}"
        console.print(f"[dim]profile {answered}[/dim]", highlight=False)
    console.print(_margin("over plain decoding", winner.over_ar, level), highlight=False)
    if winner.choice.settings.policy != "sd":
        sd = found.best["sd"].choice.settings
        console.print(_margin(f"over the best SD ({sd.label})", found.over_sd, level), highlight=False)
    console.print(_apart(found), highlight=False)
    console.print(_table(found, console.width))
    for sentence in reasons(found):
        console.print(f"why: {sentence}", highlight=False)
    _print_flips(console, found)
    note = unservable(found) or engine_note(found)
    if note is not None:
        console.print(note, highlight=False)
    for purpose, line in pasted(found).items():
        console.print(f"[bold]{purpose}[/bold]: {line}", highlight=False, soft_wrap=True)
    if found.extrapolated:
        outside = "; ".join(found.extrapolated)
        console.print(f"[yellow]outside the measured grid, extrapolated: {outside}[/yellow]", highlight=False)
    for policy, why in without_decisions(found).items():
        console.print(f"[yellow]not tried: {policy}: {why}[/yellow]", highlight=False)
    console.print(f"[dim]{METHOD} {found.tried} settings tried.[/dim]")


def _margin(what: str, margin: Interval, level: str) -> str:
    return f"{margin.middle:.2f}x {what} ({level} interval {margin.low:.2f} to {margin.high:.2f})"


def _apart(found: Recommendation) -> str:
    rival, over = found.runner_up.choice.settings.label, found.runner_up.winner_over
    if found.runner_up.told_apart:
        return f"faster than the runner-up {rival} by {over.low:.2f}x to {over.high:.2f}x"
    return (
        f"not distinguishable from the runner-up {rival} ({over.low:.2f}x to {over.high:.2f}x): take "
        "whichever is simpler"
    )


TIMES = ("target\nalone", "both", "draft\nalone", "nobody")


def _table(found: Recommendation, width: int) -> Any:
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
        for row in found.best.values()
    ]
    return fitted_table(
        ("best of each policy", "groups x\ndevices", "tok/s", "per busy\ndevice", "vs AR", *TIMES),
        rows,
        width,
        drop=(TIMES, "per busy\ndevice", "groups x\ndevices"),
        notes={TIMES[0]: "last four: ms per token of one group, by who works meanwhile"},
    )


def _print_flips(console: Any, found: Recommendation) -> None:
    for name, points, unit in (
        ("batch", found.by_batch, "batch {:g}"),
        ("acceptance", found.by_acceptance, "acceptance {:.2f}"),
    ):
        if points:
            console.print(f"over the {name}: {describe(points, unit)}", highlight=False)
    if found.by_acceptance:
        how = THINNED[found.wanted.temperature == 0.0]
        console.print(
            f"[dim]acceptance here is {found.acceptance:.2f}; others are {how}[/dim]", highlight=False
        )
        if names := undecided(found):
            console.print(
                f"[dim]not tried at other acceptances, since what they decide was recorded at this one: "
                f"{', '.join(names)}[/dim]",
                highlight=False,
            )


def describe(points: Sequence[Point], unit: str) -> str:
    """`saguaro up to batch 4 (1.3x AR), sd from batch 8 ...`: one entry per stretch of the same policy."""
    starts = [points[0], *(later for _, later in changes(points))]
    parts = []
    for start in starts:
        guess = ", extrapolated" if start.extrapolated else ""
        parts.append(f"{start.best.label} from {unit.format(start.at)} ({start.vs_ar:.2f}x AR{guess})")
    return "; ".join(parts) + (" (no flip seen)" if len(parts) == 1 else "")


def simulate_line(
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
    words += ["--policy", settings.policy, *knobs(settings), "--batch", str(batch)]
    traffic = {"--prompt-category": sources.category, "--requests": requests, "--max-tokens": limit}
    traffic["--seed"] = seed or None
    for option, value in traffic.items():
        words += [] if value is None else [option, str(value)]
    return shlex.join(words)


def validate_line(
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
        words += [*knobs(settings), "--batch", str(batch), "--count", str(max(6, 2 * batch))]
        words += [] if limit is None else ["--max-tokens", str(limit)]
        return shlex.join(words)
    if batch > 1 or "live" not in find_policy(settings.policy).worlds:
        return None
    words = [
        "python",
        "-m",
        "analysis",
        "run",
        "family",
        "--live",
        "--hw",
        sources.hw or sources.profile.name,
    ]
    return shlex.join([*words, "--setting", text_of(settings), "--temperature", f"{settings.temperature:g}"])


def _beyond_validate(settings: Settings) -> bool:
    uneven = settings.fanout_backup is not None or len(set(settings.fanout or (1,))) > 1
    return uneven or bool(settings.unusual) or find_policy(settings.policy).needs_decisions


def text_of(settings: Settings) -> str:
    """A setting as `--setting` takes it, e.g. `mirror lookahead=3 kappa=1`."""
    words = knobs(settings)[: -2 if settings.temperature > 0.0 else None]
    names = [word.removeprefix("--").replace("-", "_") for word in words[::2]]
    pairs = (f"{name}={value}" for name, value in zip(names, words[1::2], strict=True))
    return " ".join([settings.policy, *pairs])


def knobs(settings: Settings) -> list[str]:
    """The options of a setting that `simulate` takes."""
    words: list[str] = []
    for name in ("lookahead", "fanout", "fanout_backup", "backup"):
        value = getattr(settings, name)
        if value is None:
            continue
        if isinstance(value, tuple):
            value = value[0] if len(set(value)) == 1 else ",".join(map(str, value))
        words += [f"--{name.replace('_', '-')}", str(value)]
    for name, value in settings.unusual.items():
        words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    if settings.temperature > 0.0:
        words += ["--temperature", f"{settings.temperature:g}"]
    return words
