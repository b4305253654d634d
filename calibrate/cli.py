"""The `calibrate` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calibrate.datastore import datastore
from calibrate.decide_cli import decide
from calibrate.options import CalibrationRequest
from calibrate.pair.cli import pair
from hardware_profiles.files import to_json
from policies.commandline import HELP, checked_group, click_options, refusals, typed, with_options

if TYPE_CHECKING:
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


HEADINGS = {
    "What is measured": ("target", "draft", "prompts", "count", "max_tokens", "temperature", "top_p"),
    "On what": ("hw", "placement", "draft_backend", "precision", "mode", "batches"),
    "How long": ("quick", "passes", "apart", "until_error", "time_budget"),
    "Output": ("name", "out", "fresh", "verbose", "as_json", "help"),
}
"""What `calibrate --help` lists, most wanted first."""


@checked_group(invoke_without_command=True, epilog=EXAMPLES, context_settings=HELP, headings=lambda: HEADINGS)
@with_options(click_options(CalibrationRequest))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for profile and traces.  [default: the user's profile directory]",
)
@click.option("--fresh", is_flag=True, help="Begin anew: discard what an interrupted run of this name left.")
@click.option("--verbose", is_flag=True, help="Say what was found of every operation, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def main(context: click.Context, /, **options: Any) -> None:
    """Measure a draft/target pair on this machine: latencies, acceptance, hit curves.

    Writes a hardware profile and a trace, which `simulate --hw NAME` then uses.
    """
    if context.invoked_subcommand is None:
        with refusals("calibrate needs torch: pip install 'spectwin[live]'"):
            kept = {name: options[name] for name in ("out", "fresh", "verbose", "as_json")}
            _calibrate(typed(CalibrationRequest, options), **kept)


main.add_command(pair)
main.add_command(decide)
main.add_command(datastore)


def _calibrate(
    request: CalibrationRequest, *, out: Path | None, fresh: bool, verbose: bool, as_json: bool
) -> None:
    from calibrate.calibration import open_work, run_calibration, trace_path, write_all
    from calibrate.display import json_of, show_progress, summary_lines
    from calibrate.job import check, make_job

    job = make_job(request)
    check(job, job.plan)
    if not as_json:
        click.echo(f"found {job.machine}", err=True)
    with open_work(job, out, fresh=fresh) as journal:
        for line in () if as_json else resume_lines(journal):
            click.echo(line, err=True)
        try:
            with show_progress() as progress:
                calibrated = run_calibration(job, progress, journal=journal)
        except KeyboardInterrupt:
            click.echo("interrupted; the same command goes on from here (--fresh begins anew)", err=True)
            raise
        resumed = dict(journal.resumed)
        profile_path = write_all(calibrated, job, out)
        journal.discard()
    traces = {t: trace_path(job, t, out) for t in calibrated.traces}
    if as_json:
        click.echo(to_json(json_of(calibrated, profile_path, traces, resumed), indent=2))
        return
    hw = profile_path if out else job.name
    if traces:
        first = next(iter(traces.values()))
        then = f"simulate --hw {hw} --trace {first if out else first.stem}"
    else:
        then = (
            "random weights: latencies only, no acceptance was measured; it has to come from a trace, an "
            f"import or a number: simulate --hw {hw} --acceptance 0.8"
        )
    files = (profile_path, *traces.values())
    for line in summary_lines(calibrated, files=files, then=then, verbose=verbose):
        click.echo(line)


def resume_lines(journal: Journal) -> list[str]:
    """What an interrupted run left, and whether it is used."""
    from calibrate.journal import other_inputs

    names = {
        "trace": "prompts recorded",
        "grids": "repetitions of the grids",
        "overlap": "repetitions of the overlap",
        "live": "live runs",
    }
    pieces = [f"{journal.resumed[stage]} {what}" for stage, what in names.items() if stage in journal.resumed]
    lines = [f"resuming: {', '.join(pieces)} (--fresh begins anew)"] if pieces else []
    if other := other_inputs(journal):
        lines.append(f"an unfinished calibration of this name differs in {', '.join(other)}; it is not used")
    return lines


if __name__ == "__main__":
    main()
