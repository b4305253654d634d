"""The `calibrate` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calibrate.datastore import datastore
from calibrate.decide_cli import decide
from calibrate.options import taking_turns, trust_option, turns_option
from calibrate.pair.cli import pair
from hardware_profiles.files import to_json
from policies.commandline import (
    HELP,
    LONGEST_WAIT,
    NAME,
    checked_group,
    refusals,
    split_integers,
    split_numbers,
)

if TYPE_CHECKING:
    from calibrate.job import Job
    from calibrate.journal import Journal

EXAMPLES = """
\b
Examples:
  calibrate                                  the shipped pair on this machine
  calibrate --quick --target pair:x5         batch 1 only, two to three minutes
  calibrate --target ./my-70b --draft ./my-1b --prompts prompts.jsonl --out profiles/
  calibrate --temperature 0,0.7 --top-p 0.95 a greedy trace, and one at that sampling
  calibrate --batches 1,4,16 --ranks 64      wider grids; fan-outs up to 63
  calibrate --mode compiled --passes 3       compiled models, three times over
  calibrate --passes 3 --apart 20            ... spread over an hour, where the machine is not always the same
  calibrate --turns t & validate --turns t   ... in turns with what it is to predict
  calibrate --until-error 0.05 --time-budget 600  points where interpolation is worst
  calibrate pair report                      what the shipped pair is
  calibrate --placement cuda:0+cpu --precision bf16 --target shape:llama-3.1-8b
                                             latencies of an architecture with random weights
  calibrate --draft-backend openvino:NPU     the draft on an NPU
  calibrate decide --policy pld --help       record what a policy decides, for its replay
  calibrate datastore build                  text to retrieve from
\b
A run that was interrupted goes on where it was: give the same command again.
"""


@checked_group(
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
    "--placement",
    default="split",
    show_default=True,
    help="split, shared:0 / shared:0,1 (cores), cuda:0 (both), cuda:0+cuda:1, cuda:0+cpu (target+draft).",
)
@click.option(
    "--draft-backend",
    default="torch",
    show_default=True,
    help="torch, openvino:CPU, openvino:GPU, openvino:NPU, llamacpp:fp16, llamacpp:q8_0, llamacpp:q4_0.",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16", "fp16", "fp64"]),
    default="fp32",
    show_default=True,
    help="Of both models; replay is exact in fp32.",
)
@click.option(
    "--temperature",
    default="0,1",
    show_default=True,
    callback=split_numbers,
    help="Of the recorded traces, a list; 0 is greedy.",
)
@click.option(
    "--top-p", default=1.0, show_default=True, help="Mass of both laws kept where tokens are sampled."
)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    help="Draft choices kept per position.  [default: 16, or 32 where tokens are sampled]",
)
@click.option("--max-tokens", default=128, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--batches", default="1,2,4,8", show_default=True, callback=split_integers, help="Batches to measure."
)
@click.option("--quick", is_flag=True, help="Two to three minutes: batch 1 only, half of the prompts.")
@click.option(
    "--passes",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Measure everything so often, pass after pass: what drifts from one quarter of an hour to the next "
    "evens out, and shows in the intervals.",
)
@click.option(
    "--apart",
    default=0.0,
    show_default=True,
    type=click.FloatRange(min=0.0, max=LONGEST_WAIT),
    metavar="MINUTES",
    help="Begin the passes at least this far apart; the machine is free in between.",
)
@click.option(
    "--mode",
    type=click.Choice(["eager", "compiled"]),
    default="eager",
    show_default=True,
    help="How the models are called.",
)
@click.option(
    "--until-error",
    type=float,
    metavar="E",
    help="Choose the grids' points by measuring, until interpolation is off by at most this share.",
)
@click.option(
    "--time-budget",
    type=float,
    metavar="S",
    help="Seconds that the grids may take with --until-error, by estimate.  [default: 300]",
)
@click.option("--name", type=NAME, help="Name of the profile.  [default: from machine, target and placement]")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for profile and traces.  [default: the user's profile directory]",
)
@click.option("--seed", default=0, show_default=True)
@trust_option
@turns_option
@click.option("--fresh", is_flag=True, help="Begin anew: discard what an interrupted run of this name left.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def main(
    context: click.Context, /, *, out: Path | None, fresh: bool, as_json: bool, turns: Path | None, **job: Any
) -> None:
    """Measure a draft/target pair on this machine: latencies, acceptance, hit curves.

    Writes a hardware profile and a trace, which `simulate --hw NAME` then uses.
    """
    if context.invoked_subcommand is not None:
        return
    with refusals("calibrate needs torch: pip install 'spectwin[live]'"):
        from calibrate.job import make_job

        _calibrate(make_job(**job), out, turns, fresh=fresh, quiet=as_json)


main.add_command(pair)
main.add_command(decide)
main.add_command(datastore)


def _calibrate(job: Job, out: Path | None, turns: Path | None, *, fresh: bool, quiet: bool) -> None:
    from calibrate.calibration import open_work, run_calibration, trace_path, write_all
    from calibrate.display import as_json, show_progress, summary_lines
    from calibrate.job import check

    check(job, job.plan)
    if not quiet:
        click.echo(f"found {job.machine}", err=True)
    with open_work(job, out, fresh=fresh) as journal:
        for line in () if quiet else resume_lines(journal):
            click.echo(line, err=True)
        try:
            with show_progress() as bars, taking_turns(turns, bars) as progress:
                found = run_calibration(job, progress, journal=journal)
        except KeyboardInterrupt:
            click.echo("interrupted; the same command goes on from here (--fresh begins anew)", err=True)
            raise
        resumed = dict(journal.resumed)
        profile_path = write_all(found, job, out)
        journal.discard()
    traces = {t: trace_path(job, t, out) for t in found.traces}
    if quiet:
        click.echo(to_json(as_json(found, profile_path, traces, resumed), indent=2))
        return
    for line in summary_lines(found):
        click.echo(line)
    for path in (profile_path, *traces.values()):
        click.echo(f"wrote {path}")
    hw = str(profile_path if out else job.name)
    click.echo(next_line(hw, list(traces.values()), whole_paths=bool(out)))


def next_line(hw: str, traces: list[Path], *, whole_paths: bool) -> str:
    """What to do with the files; without a trace, where an acceptance has to come from."""
    if not traces:
        return (
            "random weights: latencies only, no acceptance was measured; it has to come from a trace, an "
            f"import or a number: simulate --hw {hw} --acceptance 0.8"
        )
    first = traces[0]
    return f"next: simulate --hw {hw} --trace {first if whole_paths else first.stem}"


def resume_lines(journal: Journal) -> list[str]:
    """What an interrupted run left, and whether it is used."""
    from calibrate.journal import other_inputs

    names = {
        "trace": "prompts recorded",
        "grids": "repetitions of the grids",
        "overlap": "repetitions of the overlap",
        "live": "live runs",
    }
    found = [f"{journal.resumed[stage]} {what}" for stage, what in names.items() if stage in journal.resumed]
    lines = []
    if found:
        lines.append(f"resuming: {', '.join(found)} (--fresh begins anew)")
    if other := other_inputs(journal):
        lines.append(f"an unfinished calibration of this name differs in {', '.join(other)}; it is not used")
    return lines


if __name__ == "__main__":
    main()
