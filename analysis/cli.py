"""The `validate` command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from calibrate.options import trust_option
from calibrate.turns import taking_turns, turns_option
from policies.commandline import (
    HELP,
    checked_command,
    refusals,
    split_counts,
    split_integers,
    split_list,
    split_numbers,
)

LEVEL = 0.8
"""Of the predicted intervals."""


EXAMPLES = """
\b
Examples:
  validate                                        every policy, shipped pair, held-out prompts
  validate --policies sd,saguaro --lookahead 2,4,7 --fanout 1,3 --backup primary,plain
  validate --target pair:x5 --batch 1,4,8 --temperature 0,1 --count 16 --max-tokens 64
  validate --target pair:x5 --count 8 --repeats 3 --json
"""


@checked_command(epilog=EXAMPLES, context_settings=HELP)
@click.option("--policies", default="ar,sd,pearl,saguaro", show_default=True, callback=split_list)
@click.option("--prompts", default="heldout", show_default=True, help="Shipped set or Spec-Bench JSONL.")
@click.option("--count", default=12, show_default=True, type=click.IntRange(min=1), help="Prompts to use.")
@click.option(
    "--hw", default="auto", show_default=True, help="Profile to predict with; auto: this machine's."
)
@click.option("--trace", help="Calibration trace.  [default: the profile's]")
@click.option("--target", default="pair:x20", show_default=True, help="Model name or folder.")
@click.option("--draft", default="pair:draft", show_default=True, help="Model name or folder.")
@click.option("--placement", default="split", show_default=True, help="split, or shared:0 / shared:0,1.")
@click.option("--lookahead", default="4", show_default=True, callback=split_integers, help="List of K.")
@click.option(
    "--fanout", default="3", show_default=True, callback=split_integers, help="List of uniform fan-outs."
)
@click.option("--backup", default="primary", show_default=True, callback=split_list, help="List of backups.")
@click.option("--batch", default="1", show_default=True, callback=split_counts, help="List of batches.")
@click.option(
    "--temperature", default="0", show_default=True, callback=split_numbers, help="List of temperatures."
)
@click.option(
    "--subsets",
    default=2,
    show_default=True,
    type=click.IntRange(min=1),
    help="Parts that the prompts are split into, each run and predicted on its own.",
)
@click.option(
    "--level",
    default=LEVEL,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Of the intervals.",
)
@click.option("--max-tokens", default=128, show_default=True, type=click.IntRange(min=1))
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="Live repetitions.")
@turns_option
@trust_option
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for CSV, picture, timelines."
)
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Run settings live and simulated on the same prompts; print law / simulated / measured.

    Calibrates first if no profile of this machine and pair is at hand.
    """
    with refusals("validate runs models: pip install 'spectwin[live]'"):
        _validate(options)


def _validate(options: dict[str, Any]) -> None:
    from analysis.predictions import expand
    from analysis.report import as_json, print_validation, write_outputs
    from analysis.validation import Trial, validate
    from calibrate.display import show_progress
    from calibrate.prompts import find_prompts, load_prompts, spread

    settings = expand(
        options["policies"],
        options["lookahead"],
        [(f,) for f in options["fanout"]],
        options["backup"],
        temperatures=options["temperature"],
        seed=options["seed"],
    )
    _refuse_undecided(settings)
    prompts = spread(load_prompts(find_prompts(options["prompts"])), options["count"])
    trial = Trial(
        settings=tuple((s, batch) for batch in options["batch"] for s in settings),
        prompts=tuple(prompts),
        prompt_set=Path(options["prompts"]).stem,
        subsets=min(options["subsets"], len(prompts)),
        repeats=options["repeats"],
        level=options["level"],
    )
    job = live_job(options)
    with show_progress() as bars, taking_turns(options["turns"], bars) as progress:
        sources = predictor(job, options["hw"], options["trace"], options["temperature"], progress)
        _warn_of_another_machine(job, sources)
        result = validate(job, sources, trial, progress=progress)
    if options["out"]:
        write_outputs(result, options["out"])
    if options["as_json_"]:
        click.echo(as_json(result))
    else:
        print_validation(result)
        if options["out"]:
            click.echo(f"wrote CSV, JSON, picture and timelines to {options['out']}")


def _warn_of_another_machine(job: Any, sources: Any) -> None:
    """Times of one machine say little of another: errors would be those of the hardware, not of the twin."""
    other = job.machine.differs_from(sources.profile.provenance.machine or "")
    if other:
        click.echo(
            f"warning: profile {sources.profile.name!r} {other}: its errors tell of both machines; "
            "--hw auto predicts with a profile of this one",
            err=True,
        )


def _refuse_undecided(settings: Iterable[Any]) -> None:
    """Predictions are made before anything is run live, which some policies' content does not allow."""
    from policies.registry import SettingError, find_policy

    names = dict.fromkeys(s.policy for s in settings if find_policy(s.policy).needs_decisions)
    if names:
        raise SettingError(
            f"{', '.join(names)}: the prompts' recording does not tell what is decided off its path; compare "
            f"with `python -m analysis.family_cli --policies {','.join(names)}`"
        )


def live_job(options: dict[str, Any]) -> Any:
    """The job that a live run is made of: pair, placement and limit; calibrating it would be quick."""
    from calibrate.options import make_job

    return make_job(
        {
            "hw": "auto",
            "target": options["target"],
            "draft": options["draft"],
            "prompts": "calibration",
            "count": None,
            "placement": options.get("placement", "split"),
            "temperature": options["temperature"],
            "max_tokens": options["max_tokens"],
            "quick": True,
            "name": None,
            "seed": options["seed"],
            "trust_remote_code": options.get("trust_remote_code", False),
        }
    )


def profiled_job(sources: Any, *, limit: int, seed: int) -> Any:
    """The live job of a profile's own pair, as its trace names it, called as it was when it was measured."""
    from calibrate.job import like_profile

    meta = next(iter(sources.traces.values())).meta
    job = live_job(
        {
            "target": meta.target_model,
            "draft": meta.draft_model,
            "max_tokens": limit,
            "temperature": (0.0,),
            "seed": seed,
        }
    )
    return like_profile(job, sources.profile)


def predictor(job: Any, hw: str, trace: str | None, temperatures: Iterable[float], progress: Any) -> Any:
    """Profile and calibration traces: those named, this machine's own, or new ones by `calibrate --quick`."""
    from analysis.sources import load_sources
    from hardware_profiles.profile import load_profile
    from hardware_profiles.store import user_profile, user_trace

    if hw != "auto":
        return load_sources(hw, trace=trace, temperatures=temperatures)
    profile_path, trace_path = user_profile(job.name), user_trace(job.name)
    known = profile_path.is_file() and trace_path.is_file()
    if not known or load_profile(profile_path).provenance.machine != str(job.machine):
        click.echo(
            f"no profile {job.name} of this machine yet: calibrating ({shlex.join(sys.argv)})", err=True
        )
        calibrate_now(job, progress)
    return load_sources(str(profile_path), trace=trace or str(trace_path), temperatures=temperatures)


def calibrate_now(job: Any, progress: Any) -> None:
    """Calibrate quickly and keep profile and traces among the user's own."""
    from calibrate.calibration import open_work, run_calibration, write_all

    with open_work(job, None) as journal:
        write_all(run_calibration(job, progress, journal=journal), job, None)
        journal.discard()


if __name__ == "__main__":
    main()
