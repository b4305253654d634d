"""What a longer calibration buys: several profiles of one machine against the same live runs.

`python -m analysis.effort --validation DIR/validation.json --hw quick.json,cpu2-x5`: every setting that a
validation ran live is predicted anew from each profile, on the same prompts in the same batches; nothing is
run live again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from hardware_profiles.profile import Profile
from policies.commandline import HELP, Refusal, split_list, wide_console
from policies.registry import SettingError, configure

if TYPE_CHECKING:
    from analysis.predictions import Setting
    from hardware_profiles.trace import Trace


@dataclass(frozen=True, slots=True)
class Effort:
    """How well a profile predicts.

    Attributes:
        profile: Name or file.
        command: What made it.
        settings: Live settings that it can predict.
        median: Median of |simulated / measured speedup - 1|.
        p95: 95 % quantile of it.
        largest: Its maximum.
        bias: Mean of log(simulated / measured speedup).
        interpolation: By operation, the profile's own error on held-out points of its grid: (median, worst).
    """

    profile: str
    command: str
    settings: int
    median: float
    p95: float
    largest: float
    bias: float
    interpolation: Mapping[str, tuple[float, float]]


def setting_of(row: Mapping[str, Any]) -> Setting:
    """A row of a validation as (settings, batch)."""
    fanout = row["fanout"]
    settings = configure(
        row["policy"],
        lookahead=row["lookahead"],
        fanout=None if fanout is None else tuple(int(f) for f in str(fanout).split(",")),
        backup=row["backup"],
        temperature=row["temperature"],
    )
    return settings, int(row["batch"])


def judge(
    name: str, profile: Profile, measured: Mapping[Setting, float], parts: Sequence[Mapping[float, Trace]]
) -> Effort:
    """Predict every measured speedup from one profile.

    Args:
        name: What the user called it.
        profile: Costs.
        measured: Live speedups over plain decoding.
        parts: Recording of each subset of the prompts, by temperature, as they were run.

    Raises:
        SettingError: It can predict none of them.
    """
    from analysis.predictions import predict

    errors = []
    for setting, speedup in measured.items():
        try:
            found = [predict([setting], profile, part)[0] for part in parts]
        except SettingError:
            continue
        seconds = sum(p.simulated.seconds for p in found)
        plain = sum(p.simulated.seconds * p.simulated_speedup_vs_ar for p in found)
        errors.append(plain / seconds / speedup)
    if not errors:
        raise SettingError(f"profile {name} can predict none of the settings that were run live")
    off = np.abs(np.array(errors) - 1.0)
    return Effort(
        profile=name,
        command=profile.provenance.command or "",
        settings=len(errors),
        median=float(np.median(off)),
        p95=float(np.quantile(off, 0.95)),
        largest=float(off.max()),
        bias=float(np.mean(np.log(errors))),
        interpolation={
            operation: (error.median, error.worst)
            for operation, cost in profile.operations.items()
            if (error := getattr(cost, "interpolation_error", None)) is not None
        },
    )


def recorded_parts(
    job: Any, told: Mapping[str, Any], subsets: int, temperatures: Sequence[float], progress: Any
) -> list[dict[float, Trace]]:
    """The prompts' recordings, split as a validation splits them."""
    from dataclasses import replace

    from analysis.validation import split
    from calibrate.calibration import record
    from calibrate.prompts import find_prompts, load_prompts, spread

    name, count = told["prompts"], int(told["summary"]["requests"])
    prompts = spread(load_prompts(find_prompts(name)), count)
    traces = {t: record(replace(job, temperature=t), prompts, name, progress) for t in temperatures}
    return [{t: trace.slice(ids) for t, trace in traces.items()} for ids in split(traces, subsets)]


@click.command(context_settings=HELP)
@click.option(
    "--validation",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="`validation.json` of `validate --out`.",
)
@click.option("--hw", required=True, callback=split_list, help="Profiles, names or files, a list.")
@click.option("--max-tokens", default=64, show_default=True, help="As the validation was run.")
@click.option("--subsets", default=2, show_default=True, help="Likewise.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON object here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Compare profiles of one machine by how well they predict the same live runs."""
    from calibrate.display import show_progress

    try:
        with show_progress() as progress:
            found = _efforts(options, progress)
    except (ValueError, OSError, RuntimeError, ImportError, KeyError) as error:
        raise Refusal(str(error)) from error
    text = json.dumps({"efforts": [asdict(effort) for effort in found]}, indent=2)
    if options["out"]:
        from hardware_profiles.atomic import atomic_write

        with atomic_write(options["out"]) as file:
            file.write(text + "\n")
    if options["as_json"]:
        click.echo(text)
    else:
        _print(found)


def _efforts(options: Mapping[str, Any], progress: Callable[[str, int, int], None]) -> list[Effort]:
    from analysis.cli import live_job
    from hardware_profiles.profile import load_profile
    from hardware_profiles.store import find_profile

    told = json.loads(options["validation"].read_text())
    measured = {
        setting_of(row): float(row["measured_speedup_vs_ar"]) for row in told["rows"] if row["policy"] != "ar"
    }
    temperatures = sorted({settings.temperature for settings, _ in measured})
    job = live_job(
        {
            "target": told["target"],
            "draft": told["draft"],
            "max_tokens": options["max_tokens"],
            "temperature": tuple(temperatures),
            "seed": 0,
        }
    )
    parts = recorded_parts(job, told, options["subsets"], temperatures, progress)
    found = []
    for done, name in enumerate(options["hw"]):
        found.append(judge(name, load_profile(find_profile(name)), measured, parts))
        progress("profiles", done + 1, len(options["hw"]))
    return found


def _print(found: Sequence[Effort]) -> None:
    from rich.table import Table

    table = Table(header_style="bold")
    for title in (
        "profile",
        "settings",
        "error: median",
        "p95",
        "largest",
        "bias",
        "grid error: median, worst",
    ):
        table.add_column(title, justify="left" if title == "profile" else "right")
    for effort in found:
        worst = [f"{op} {m:.1%}, {w:.1%}" for op, (m, w) in effort.interpolation.items()]
        table.add_row(
            effort.profile,
            str(effort.settings),
            f"{effort.median:.1%}",
            f"{effort.p95:.1%}",
            f"{effort.largest:.1%}",
            f"{effort.bias:+.1%}",
            "\n".join(worst),
        )
    wide_console().print(table)


if __name__ == "__main__":
    main()
