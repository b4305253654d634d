"""The `validate` command."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from policies.commandline import HELP, Refusal, split_integers, split_list

EXAMPLES = """
\b
Examples:
  validate                                        every policy, shipped pair, held-out prompts
  validate --policies sd,saguaro --lookahead 2,4,7 --fanout 1,3 --backup primary,plain
  validate --target pair:x5 --count 8 --repeats 3 --json
"""


@click.command(epilog=EXAMPLES, context_settings=HELP)
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
@click.option("--max-tokens", default=128, show_default=True, type=click.IntRange(min=1))
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="Live repetitions.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for CSV, picture, timelines."
)
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Run settings live and simulated on the same prompts; print law / simulated / measured.

    Calibrates first if no profile of this machine and pair is at hand.
    """
    try:
        _validate(options)
    except KeyboardInterrupt as error:
        raise click.Abort from error
    except (ValueError, OSError, RuntimeError) as error:
        raise Refusal(str(error)) from error
    except ImportError as error:
        raise Refusal(f"{error}; validate runs models: pip install 'spectwin[live]'") from error


def _validate(options: dict[str, Any]) -> None:
    from analysis.predictions import expand
    from analysis.report import as_json, print_validation, write_outputs
    from analysis.validation import validate
    from calibrate.cli import make_job
    from calibrate.display import show_progress
    from calibrate.prompts import find_prompts, load_prompts, spread

    settings = expand(
        options["policies"],
        options["lookahead"],
        [(f,) for f in options["fanout"]],
        options["backup"],
        seed=options["seed"],
    )
    prompts = tuple(spread(load_prompts(find_prompts(options["prompts"])), options["count"]))
    job = make_job(
        {
            "hw": "auto",
            "target": options["target"],
            "draft": options["draft"],
            "prompts": "calibration",
            "count": None,
            "placement": options["placement"],
            "temperature": 0.0,
            "max_tokens": options["max_tokens"],
            "quick": True,
            "name": None,
            "seed": options["seed"],
        }
    )
    with show_progress() as progress:
        profile, trace = _predictor(job, options, progress)
        result = validate(
            job,
            profile,
            trace,
            settings,
            prompts,
            prompt_set=Path(options["prompts"]).stem,
            repeats=options["repeats"],
            progress=progress,
        )
    if options["out"]:
        write_outputs(result, options["out"])
    if options["as_json_"]:
        click.echo(as_json(result))
    else:
        print_validation(result)
        if options["out"]:
            click.echo(f"wrote CSV, JSON, picture and timelines to {options['out']}")


def _predictor(job: Any, options: dict[str, Any], progress: Any) -> tuple[Any, Any]:
    """Profile and calibration trace: those named, this machine's own, or new ones by `calibrate --quick`."""
    from calibrate.calibration import calibrate
    from hardware_profiles.profile import load_profile, save_profile
    from hardware_profiles.store import find_profile, find_trace, user_profile, user_trace
    from hardware_profiles.trace import read_trace, write_trace

    if options["hw"] != "auto":
        profile = load_profile(find_profile(options["hw"]))
        return profile, read_trace(find_trace(options["trace"] or profile.name))
    profile_path, trace_path = user_profile(job.name), user_trace(job.name)
    if profile_path.is_file() and trace_path.is_file():
        profile = load_profile(profile_path)
        if profile.provenance.machine == str(job.machine):
            return profile, read_trace(trace_path)
    click.echo(f"no profile {job.name} of this machine yet: calibrating ({shlex.join(sys.argv)})", err=True)
    profile, trace = calibrate(job, progress)
    for path in (profile_path, trace_path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_trace(trace, trace_path)
    save_profile(profile, profile_path)
    return profile, trace


if __name__ == "__main__":
    main()
