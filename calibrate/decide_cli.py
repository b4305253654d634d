"""`calibrate decide`: record what policies decide on the real pair, and what that takes, for their replay."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calibrate.live.placement import TORCH
from calibrate.options import TRUST, CalibrationRequest
from policies.commandline import (
    HELP,
    POSITIVE,
    about,
    checked_command,
    click_options,
    knob_options,
    option,
    parse_setting,
    refusals,
    typed,
    with_options,
)
from policies.registry import KNOBS, POLICIES, Settings, configure

if TYPE_CHECKING:
    from calibrate.reply_recorder import Asked

EXAMPLES = """
\b
Examples:
  calibrate decide --policy all --batches 1,4
  calibrate decide --policy all --setting "duo lookahead=6" --setting "tree tree_plan=dynamic"
  calibrate decide --policy duo --hw cpu2-x5-wide --lookaheads 4,6
  calibrate decide --policy tree --tree-plan dynamic --tree-depth 5
  calibrate decide --policy rasd,rest --temperature 1 --untimed --out folder/
\b
Settings that a file already holds stay in it, so that it grows call by call.  What was recorded beside the
same profile is not recorded again (--fresh does): after an interruption give the same command.
"""
ALL = "all"


@dataclass(frozen=True, kw_only=True)
class RecordingRequest:
    """What `calibrate decide` is asked, beside the knobs of its policies."""

    policies: tuple[str, ...] = option(
        (),
        "Policies, a list; `all`: every one that a decision trace replays, in its default setting.",
        spelled=("--policy",),
    )
    texts: tuple[str, ...] = option(
        (),
        'Besides, a policy with knobs, e.g. "mirror lookahead=3 kappa=1"; may be repeated.',
        spelled=("--setting",),
        multiple=True,
    )
    hw: str = option("cpu2-x5", "Profile whose pair is run; names the file, too.")
    prompts: str = option("calibration", "Shipped set, or a file as `calibrate` takes it.")
    count: int | None = option(None, "Use this many of the prompts, of all categories.", type=POSITIVE)
    max_tokens: int = option(128, "Most tokens of a reply.", type=POSITIVE)
    lookaheads: tuple[int, ...] = option((), "Several settings at once, in place of --lookahead.")
    temperature: float = option(0.0, "Of both models.")
    top_p: float = option(1.0, "Mass of the distributions that is kept.")
    seed: int = option(0, "Same seed, same decisions.")
    batches: tuple[int, ...] = option(
        (1,), "Rows served at once: operations are timed at each, decisions kept of the first."
    )
    draft_backend: str | None = option(
        None,
        "What runs the draft, as of calibrate.  [default: what ran it when the profile was measured]",
    )
    trust_remote_code: bool = field(default=False, metadata=TRUST)
    untimed: bool = option(False, "Decisions alone: for a machine that is busy, or another one.")
    fresh: bool = option(False, "Record anew what the file holds.")
    out: Path | None = field(
        default=None,
        metadata=about(
            "File, or folder (one file per policy).  "
            "[default: the user's, by the names of profile and policy]",
            type=click.Path(path_type=Path),
        ),
    )


HEADINGS = {
    "What is recorded": ("policies", "texts", "help_policy", "lookaheads", "batches", "temperature", "top_p"),
    "On what": ("hw", "prompts", "count", "max_tokens", "draft_backend", "untimed"),
    "Output": ("out", "fresh"),
}
"""What `calibrate decide --help` lists, most wanted first; knobs are listed by --help-policy alone."""


@checked_command(epilog=EXAMPLES, context_settings=HELP, headings=lambda: HEADINGS)
@with_options(click_options(RecordingRequest))
@with_options(knob_options())
def decide(**options: Any) -> None:
    """Record decision traces: one run of each setting on the real pair, and what its operations take.

    Policies fed by tokens off the recorded path (trees, retrieval, streaming drafts) are replayed from it;
    `simulate --decisions FILE` uses it.  The times are those at which their operations are simulated;
    they want an idle machine, the one that the profile was measured on.
    """
    with refusals("calibrate needs torch: pip install 'spectwin[live]'"):
        request = typed(RecordingRequest, options)
        run(request, settings_of(request, {name: options[name] for name in KNOBS}))


def run(request: RecordingRequest, settings: list[Settings]) -> None:
    """Record the decisions of the settings, each into its policy's file.

    Raises:
        ValueError: Options that contradict each other.
        RuntimeError: A setting could not be recorded.
    """
    from calibrate.display import show_progress
    from calibrate.reply_recorder import DecisionFiles, record_decisions

    asked = _asked(request, settings)
    files = DecisionFiles(asked, request.out)
    missing = [s for s in settings if request.fresh or not files.holds(s)]
    for each in settings:
        if each not in missing:
            click.echo(f"kept {each.label}: {files.path(each)} has it (--fresh records it anew)")
    failed: dict[str, str] = {}
    if missing:
        with show_progress() as progress:
            failed = record_decisions(replace(asked, settings=missing), files.keep, progress)
    recorded = [each for each in missing if each.label not in failed]
    for each in recorded:
        click.echo(f"recorded {each.label}")
    for path in dict.fromkeys(map(files.path, settings)):
        click.echo(f"wrote {path}" if path in map(files.path, recorded) else f"left {path} as it was")
        for line in files.report(path) if asked.timed else ():
            click.echo(f"  {line}")
    if failed:
        raise RuntimeError("not recorded: " + "; ".join(f"{label}: {why}" for label, why in failed.items()))


def _asked(request: RecordingRequest, settings: list[Settings]) -> Asked:
    """What to record of a profile's pair; says why where its operations cannot be timed."""
    from calibrate.job import like_profile, make_job
    from calibrate.reply_recorder import Asked
    from calibrate.shipped import profiled_model
    from hardware_profiles.profile import load_profile
    from hardware_profiles.store import find_profile

    profile = load_profile(find_profile(request.hw))
    target, draft = (str(profiled_model(role.model)) for role in (profile.roles.target, profile.roles.draft))
    temperature, backend = (request.temperature,), request.draft_backend or TORCH
    pair = {"target": target, "draft": draft, "temperature": temperature, "draft_backend": backend}
    job = like_profile(make_job(typed(CalibrationRequest, vars(request), hw="auto", **pair)), profile)
    if request.draft_backend is not None:
        job = replace(job, draft_backend=request.draft_backend)
    asked = Asked(job, profile, settings, request.batches, timed=not request.untimed)
    if asked.timed and (why := _why_untimed(asked)):
        click.echo(f"decisions alone are recorded: {why}", err=True)
        return asked.untimed
    return asked if asked.timed else asked.untimed


def settings_of(request: RecordingRequest, knobs: dict[str, Any]) -> list[Settings]:
    """The settings asked for, each once; `all` stands for every policy that a decision trace replays.

    Raises:
        ValueError: None are, or a policy refuses one.
    """
    names = list(request.policies)
    if ALL in names:
        names = [n for n, info in POLICIES.items() if info.needs_decisions and "live" in info.worlds]
    lookaheads = request.lookaheads or (knobs["lookahead"],)
    asked = [(name, {**knobs, "lookahead": lookahead}) for name in names for lookahead in lookaheads]
    asked += [parse_setting(text) for text in request.texts]
    if not asked:
        raise ValueError("nothing to record: give --policy or --setting")
    sampling: dict[str, Any] = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": request.seed,
    }
    return list(dict.fromkeys(configure(name, **sampling, **own) for name, own in asked))


def _why_untimed(asked: Asked) -> str:
    """Why times of this machine would say nothing beside a profile; empty if they do."""
    from calibrate.job import like_profile

    profile, backend = asked.profile, asked.job.draft_backend
    profiled = like_profile(asked.job, profile).draft_backend
    if backend != profiled:
        return f"profile {profile.name!r} is of a draft by {profiled}, not {backend}"
    other = asked.job.machine.differs_from(profile.provenance.machine or "")
    return other and f"profile {profile.name!r} {other}"
