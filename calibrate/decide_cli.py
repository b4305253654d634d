"""`calibrate decide`: record what policies decide on the real pair, and what that takes, for their replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calibrate.options import taking_turns, trust_option, turns_option
from policies.commandline import (
    HELP,
    checked_command,
    knob_options,
    parse_setting,
    refusals,
    split_integers,
    split_list,
    typed,
)
from policies.registry import KNOBS

if TYPE_CHECKING:
    from calibrate.reply_recorder import Asked
    from policies.config import Settings

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


@checked_command(epilog=EXAMPLES, context_settings=HELP)
@click.option(
    "--policy",
    "policies",
    default="",
    callback=split_list,
    help="Policies, a list; `all`: every one that a decision trace replays, in its default setting.",
)
@click.option(
    "--setting",
    "texts",
    multiple=True,
    help='Besides, a policy with knobs, e.g. "mirror lookahead=3 kappa=1"; may be repeated.',
)
@click.option(
    "--hw", default="cpu2-x5", show_default=True, help="Profile whose pair is run; names the file, too."
)
@click.option(
    "--prompts", default="calibration", show_default=True, help="Shipped set or a Spec-Bench JSONL file."
)
@click.option("--count", type=click.IntRange(min=1), help="Use this many of the prompts, of all categories.")
@click.option("--max-tokens", default=128, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--lookaheads", callback=split_integers, help="Several settings at once, in place of --lookahead."
)
@knob_options()
@click.option("--temperature", type=float, default=0.0, show_default=True, help="Of both models.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Mass of the laws that is kept.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--batches",
    callback=split_integers,
    default="1",
    show_default=True,
    help="Rows served at once: operations are timed at each, decisions kept of the first.",
)
@click.option(
    "--draft-backend",
    help="What runs the draft, as of calibrate.  [default: what ran it when the profile was measured]",
)
@trust_option
@click.option("--untimed", is_flag=True, help="Decisions alone: for a machine that is busy, or another one.")
@turns_option
@click.option("--fresh", is_flag=True, help="Record anew what the file holds.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File, or folder (one file per policy).  [default: the user's, by the names of profile and policy]",
)
def decide(**options: Any) -> None:
    """Record decision traces: one run of each setting on the real pair, and what its operations take.

    Policies fed by tokens off the recorded path (trees, retrieval, streaming drafts) are replayed from it;
    `simulate --decisions FILE` uses it.  The times are those at which their operations are simulated;
    they want an idle machine, the one that the profile was measured on.
    """
    with refusals("calibrate needs torch: pip install 'spectwin[live]'"):
        settings = settings_of(**options)
        run(typed(RecordingRequest, options, settings=tuple(settings)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRequest:
    """What `calibrate decide` is asked; every field but the settings is the option of its name."""

    settings: tuple[Settings, ...]
    hw: str
    prompts: str
    count: int | None
    max_tokens: int
    batches: tuple[int, ...]
    draft_backend: str | None
    trust_remote_code: bool
    untimed: bool
    turns: Path | None
    fresh: bool
    out: Path | None


def run(request: RecordingRequest) -> None:
    """Record the decisions of the settings, each into its policy's file."""
    from dataclasses import replace

    from calibrate.display import show_progress
    from calibrate.reply_recorder import DecisionFiles, record_decisions

    asked = asked_of(request)
    if asked.timed and (why := _why_untimed(asked)):
        click.echo(f"decisions alone are recorded: {why}", err=True)
        asked = replace(asked, timed=False, batches=asked.batches[:1])
    files = DecisionFiles(asked, request.out)
    missing = [s for s in asked.settings if request.fresh or not files.holds(s)]
    for settings in asked.settings:
        if settings not in missing:
            click.echo(f"kept {settings.label}: {files.path(settings)} has it (--fresh records it anew)")
    failed: dict[str, str] = {}
    if missing:
        with show_progress() as bars, taking_turns(request.turns, bars) as progress:
            failed = record_decisions(replace(asked, settings=missing), files.keep, progress)
    recorded = [settings for settings in missing if settings.label not in failed]
    for settings in recorded:
        click.echo(f"recorded {settings.label}")
    for path in dict.fromkeys(map(files.path, asked.settings)):
        click.echo(f"wrote {path}" if path in map(files.path, recorded) else f"left {path} as it was")
        for line in files.report(path) if asked.timed else ():
            click.echo(f"  {line}")
    if failed:
        raise RuntimeError("not recorded: " + "; ".join(f"{label}: {why}" for label, why in failed.items()))


def asked_of(request: RecordingRequest) -> Asked:
    """What the command line asks to record.

    Raises:
        ValueError: A setting that a policy does not have, or options that contradict each other.
    """
    from calibrate.prompts import choose_prompts
    from calibrate.reply_recorder import Asked
    from hardware_profiles.profile import load_profile
    from hardware_profiles.store import find_profile

    profile = load_profile(find_profile(request.hw))
    return Asked(
        profile=profile,
        settings=request.settings,
        prompts=choose_prompts(request.prompts, request.count),
        prompt_set=request.prompts,
        limit=request.max_tokens,
        batches=request.batches,
        timed=not request.untimed,
        draft_backend=request.draft_backend,
        trust_remote_code=request.trust_remote_code,
    )


def settings_of(
    *,
    policies: Sequence[str],
    texts: Sequence[str],
    lookaheads: Sequence[int] | None,
    temperature: float,
    top_p: float,
    seed: int,
    **others: Any,
) -> list[Settings]:
    """The settings asked for, each once.

    Args:
        policies: By name; `all`: all that a decision trace replays.
        texts: Besides, policies with knobs.
        lookaheads: Of each of the former; None: the one among the knobs.
        temperature: Of both models.
        top_p: Mass of their distributions that is kept.
        seed: Of the runs.
        others: The knobs; whatever else a command has is left aside.

    Raises:
        ValueError: None are, or a policy refuses one.
    """
    from policies.registry import POLICIES, configure

    names = list(policies)
    if ALL in names:
        names = [n for n, info in POLICIES.items() if info.needs_decisions and "live" in info.worlds]
    knobs = {name: others[name] for name in KNOBS}
    lookaheads = lookaheads or (others["lookahead"],)
    asked = [(name, {**knobs, "lookahead": lookahead}) for name in names for lookahead in lookaheads]
    asked += [parse_setting(text) for text in texts]
    if not asked:
        raise ValueError("nothing to record: give --policy or --setting")
    return list(
        dict.fromkeys(
            configure(name, temperature=temperature, top_p=top_p, seed=seed, **own) for name, own in asked
        )
    )


def _why_untimed(asked: Asked) -> str:
    """Why times of this machine would say nothing beside a profile; empty if they do."""
    from calibrate.machine import find_machine

    if asked.backend != asked.profiled_backend:
        return (
            f"profile {asked.profile.name!r} is of a draft by {asked.profiled_backend}, not {asked.backend}"
        )
    other = find_machine().differs_from(asked.profile.provenance.machine or "")
    return other and f"profile {asked.profile.name!r} {other}"
