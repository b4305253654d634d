"""The `calibrate` command."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from calibrate.pair.cli import pair
from policies.commandline import HELP, Refusal

EXAMPLES = """
\b
Examples:
  calibrate                                  the shipped pair on this machine
  calibrate --quick --target pair:x5
  calibrate --target ./my-70b --draft ./my-1b --prompts prompts.jsonl --out profiles/
  calibrate pair report                      what the shipped pair is
"""


@click.group(
    invoke_without_command=True,
    epilog=EXAMPLES,
    context_settings=HELP,
)
@click.option("--hw", default="auto", show_default=True, help="`auto`, or the name this machine must have.")
@click.option("--target", default="pair:x20", show_default=True, help="Model name or folder.")
@click.option("--draft", default="pair:draft", show_default=True, help="Model name or folder.")
@click.option(
    "--prompts", default="calibration", show_default=True, help="Shipped set or a Spec-Bench JSONL file."
)
@click.option("--count", type=click.IntRange(min=1), help="Use this many of the prompts, of all categories.")
@click.option(
    "--placement", default="split", show_default=True, help="split, or shared:0 / shared:0,1 (cores)."
)
@click.option("--temperature", default=0.0, show_default=True, help="Of the recorded trace; 0 is greedy.")
@click.option("--max-tokens", default=128, show_default=True, type=click.IntRange(min=1))
@click.option("--quick", is_flag=True, help="Two to five minutes: batch 1 only.")
@click.option("--name", help="Name of the profile.  [default: from machine, target and placement]")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for profile and trace.  [default: the user's profile directory]",
)
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def main(context: click.Context, /, **options: Any) -> None:
    """Measure a draft/target pair on this machine: latencies, acceptance, hit curves.

    Writes a hardware profile and a trace, which `simulate --hw NAME` then uses.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        _calibrate(options)
    except KeyboardInterrupt as error:
        raise click.Abort from error
    except (ValueError, OSError, RuntimeError) as error:
        raise Refusal(str(error)) from error
    except ImportError as error:
        raise Refusal(f"{error}; calibrate needs torch: pip install 'spectwin[live]'") from error


main.add_command(pair)


def make_job(options: dict[str, Any]) -> Any:
    """The calibration job that the options describe.

    Raises:
        WrongMachine: `--hw` names another machine.
        ValueError: Bad prompts, models or placement.
    """
    from calibrate.calibration import Job, default_name
    from calibrate.live.placement import is_local_model, parse_placement
    from calibrate.machine import find_machine, require
    from calibrate.pair.resolve import resolve_model
    from calibrate.prompts import find_prompts, load_prompts, spread

    if options["temperature"] < 0:
        raise ValueError(f"temperature must be at least 0, got {options['temperature']:g}")
    machine = find_machine()
    require(options["hw"], machine)
    placement = parse_placement(options["placement"])
    prompts = load_prompts(find_prompts(options["prompts"]))
    if options["count"] is not None:
        prompts = spread(prompts, options["count"])
    folders = [str(resolve_model(options[role])) for role in ("target", "draft")]
    for folder in folders:
        is_local_model(folder)
    return Job(
        machine=machine,
        target=folders[0],
        draft=folders[1],
        names=(options["target"], options["draft"]),
        prompts=tuple(prompts),
        prompt_set=options["prompts"] if "/" not in options["prompts"] else Path(options["prompts"]).stem,
        placement=placement,
        temperature=options["temperature"],
        limit=options["max_tokens"],
        quick=options["quick"],
        name=options["name"] or default_name(machine, options["target"], placement),
        seed=options["seed"],
        command=shlex.join(["calibrate", *sys.argv[1:]]),
    )


def _calibrate(options: dict[str, Any]) -> None:
    from calibrate.calibration import calibrate
    from calibrate.display import show_progress, summary_lines
    from hardware_profiles.profile import save_profile
    from hardware_profiles.store import user_profile, user_trace
    from hardware_profiles.trace import write_trace
    from policies.curves import hit_curves

    job = make_job(options)
    out: Path | None = options["out"]
    profile_path = out / f"{job.name}.json" if out else user_profile(job.name)
    trace_path = out / f"{job.name}.parquet" if out else user_trace(job.name)
    if not options["as_json"]:
        click.echo(f"found {job.machine}", err=True)
    with show_progress() as progress:
        profile, trace = calibrate(job, progress)
    for path in (profile_path, trace_path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_trace(trace, trace_path)
    save_profile(profile, profile_path)
    curves = hit_curves(trace.column("draft_rank"))
    if options["as_json"]:
        from dataclasses import asdict

        click.echo(
            json.dumps(
                {"profile": str(profile_path), "trace": str(trace_path), "curves": asdict(curves)}, indent=2
            )
        )
        return
    for line in summary_lines(profile, trace, curves):
        click.echo(line)
    click.echo(f"wrote {profile_path}\nwrote {trace_path}")
    click.echo(
        f"next: simulate --hw {profile_path if out else job.name} --trace {trace_path if out else job.name}"
    )


if __name__ == "__main__":
    main()
