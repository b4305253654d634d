"""What a longer calibration buys: several profiles of one machine against the same live runs.

`python -m analysis.effort --validation DIR/validation.json --hw quick.json,cpu2-x5`: every setting that a
validation ran live is predicted anew from each profile, on the same prompts in the same batches; nothing is
run live again.  A short calibration covers fewer settings (`--quick`: batch 1): it is judged on those, on
those that all profiles cover, and, apart from them, where it extrapolates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from analysis.commands import Output, deliver
from analysis.effort_errors import Effort, Errors, covered_by_all
from analysis.predictions import Setting, predict
from hardware_profiles.files import read_json, to_json
from hardware_profiles.profile import Profile
from policies.commandline import HELP, checked_command, refusals, split_list, typed, wide_console
from policies.registry import SettingError, configure

if TYPE_CHECKING:
    from hardware_profiles.trace import Trace


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
    name: str,
    profile: Profile,
    measured: Mapping[Setting, float],
    parts: Sequence[Mapping[float, Trace]],
    *,
    minutes: float | None = None,
) -> Effort:
    """Predict every measured speedup from one profile.

    Args:
        name: What the user called it.
        profile: Costs.
        measured: Live speedups over plain decoding.
        parts: Recording of each subset of the prompts, by temperature, as they were run.
        minutes: How long it took to make.

    Raises:
        SettingError: It can predict none of them.
    """
    ratios, alone, inside = {}, {}, set()
    for setting, speedup in measured.items():
        try:
            found = [predict([setting], profile, part)[0] for part in parts]
        except SettingError:
            continue
        seconds = sum(p.simulated.seconds for p in found)
        plain = sum(p.simulated.seconds * p.simulated_speedup_vs_ar for p in found)
        unslowed = sum(p.simulated.seconds * p.simulated_speedup_vs_ar / p.alone_speedup_vs_ar for p in found)
        ratios[setting], alone[setting] = plain / seconds / speedup, plain / unslowed / speedup
        if not any(p.extrapolated for p in found):
            inside.add(setting)
    if not ratios:
        raise SettingError(f"profile {name} can predict none of the settings that were run live")
    return Effort(
        profile=name,
        command=profile.provenance.command or "",
        minutes=minutes,
        ratios=ratios,
        inside=frozenset(inside),
        interpolation={
            operation: (error.median, error.worst)
            for operation, cost in profile.operations.items()
            if (error := getattr(cost, "interpolation_error", None)) is not None
        },
        alone=alone,
    )


def measured_speedups(validations: Sequence[Mapping[str, Any]]) -> dict[Setting, float]:
    """Live speedups over plain decoding; of a setting that several validations ran, the geometric mean.

    Raises:
        ValueError: They are of other pairs or prompts, which have speedups of their own.
    """
    if (
        len(
            {
                (told["target"], told["draft"], told["prompts"], told["summary"]["requests"])
                for told in validations
            }
        )
        > 1
    ):
        raise ValueError("the validations are of different pairs or prompts and cannot be pooled")
    found: dict[Setting, list[float]] = {}
    for told in validations:
        for row in told["rows"]:
            if row["policy"] != "ar":
                found.setdefault(setting_of(row), []).append(float(row["measured_speedup_vs_ar"]))
    return {setting: float(np.exp(np.mean(np.log(each)))) for setting, each in found.items()}


def recorded_parts(
    job: Any, told: Mapping[str, Any], subsets: int, temperatures: Sequence[float], progress: Any
) -> list[dict[float, Trace]]:
    """The prompts' recordings, split as a validation splits them."""
    from dataclasses import replace

    from analysis.execute import split
    from calibrate.calibration import record
    from calibrate.prompts import find_prompts, load_prompts, spread

    name, count = told["prompts"], int(told["summary"]["requests"])
    prompts = spread(load_prompts(find_prompts(name)), count)
    traces = {t: record(replace(job, temperature=t), prompts, name, progress) for t in temperatures}
    return [
        {t: trace.slice(ids) for t, trace in traces.items()}
        for ids in split(next(iter(traces.values())), subsets)
    ]


@checked_command(context_settings=HELP)
@click.option(
    "--validation",
    "validations",
    required=True,
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="`validation.json` of `validate --out`; repeated, runs at several times are pooled.",
)
@click.option("--hw", required=True, callback=split_list, help="Profiles, names or files, a list.")
@click.option("--minutes", default="", callback=split_list, help="How long each took to make, a list.")
@click.option("--max-tokens", default=64, show_default=True, help="As the validation was run.")
@click.option("--subsets", default=2, show_default=True, help="Likewise.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON object here.")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Compare profiles of one machine by how well they predict the same live runs."""
    from calibrate.display import show_progress

    with refusals(), show_progress() as progress:
        request = typed(ComparisonRequest, options)
        found = _efforts(request, progress)
    deliver(as_json(found, request), typed(Output, options), show=lambda: print_efforts(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """What is compared; every field is the option of its name."""

    validations: tuple[Path, ...]
    hw: list[str]
    minutes: list[str]
    max_tokens: int
    subsets: int


def _efforts(request: ComparisonRequest, progress: Callable[[str, int, int], None]) -> list[Effort]:
    from analysis.execute import live_job
    from hardware_profiles.profile import load_profile
    from hardware_profiles.store import find_profile

    minutes: list[float | None] = [float(text) for text in request.minutes] or [None] * len(request.hw)
    if len(minutes) != len(request.hw):
        raise SettingError(f"{len(request.hw)} profiles need as many --minutes, got {len(minutes)}")
    validations = [read_json(path) for path in request.validations]
    try:
        measured, told = measured_speedups(validations), validations[0]
    except (KeyError, TypeError) as error:
        raise SettingError(f"no `validation.json` of `validate --out`: {error!r}") from error
    temperatures = sorted({settings.temperature for settings, _ in measured})
    limit = request.max_tokens
    job = live_job(told["target"], told["draft"], limit=limit, temperatures=temperatures)
    parts = recorded_parts(job, told, request.subsets, temperatures, progress)
    found = []
    for name, took in zip(request.hw, minutes, strict=True):
        found.append(judge(name, load_profile(find_profile(name)), measured, parts, minutes=took))
        progress("profiles", len(found), len(request.hw))
    return found


def as_json(found: Sequence[Effort], request: ComparisonRequest) -> str:
    """One JSON object: per profile its errors on what it covers, on what all cover, and beyond."""
    common = covered_by_all(found)

    def row(effort: Effort) -> dict[str, Any]:
        errors = {
            "covered": effort.errors(),
            "without_contention": effort.errors_alone,
            "common": effort.errors(common),
            "beyond": effort.errors_beyond,
        }
        return {
            "profile": effort.profile,
            "command": effort.command,
            "minutes": effort.minutes,
            "settings_predicted": len(effort.ratios),
            **{name: None if each is None else asdict(each) for name, each in errors.items()},
            "interpolation": {name: list(both) for name, both in effort.interpolation.items()},
            "settings": [
                {
                    "setting": setting[0].label,
                    "batch": setting[1],
                    "ratio": ratio,
                    "ratio_without_contention": effort.alone[setting],
                    "covered": setting in effort.inside,
                }
                for setting, ratio in effort.ratios.items()
            ],
        }

    asked = {"validations": list(map(str, request.validations)), "max_tokens": request.max_tokens}
    return to_json({"asked": asked, "common": len(common), "efforts": [row(e) for e in found]}, indent=1)


def print_efforts(found: Sequence[Effort]) -> None:
    """A row per profile."""
    from rich.table import Table

    common = covered_by_all(found)
    table = Table(header_style="bold")
    titles = ("profile", "minutes", "covered", "median", "p95", "largest", "bias", f"on {len(common)} of all")
    for title in (*titles, "no contention", "beyond its grids", "grid: median, worst"):
        table.add_column(title, justify="left" if title == "profile" else "right")
    for effort in found:
        own, same, beyond = effort.errors(), effort.errors(common), effort.errors_beyond
        figures = ("-",) * 4
        if own is not None:
            figures = (f"{own.median:.1%}", f"{own.p95:.1%}", f"{own.largest:.1%}", f"{own.bias:+.1%}")
        table.add_row(
            effort.profile,
            "-" if effort.minutes is None else f"{effort.minutes:g}",
            f"{len(effort.inside)} of {len(effort.ratios)}",
            *figures,
            _short(same),
            _short(effort.errors_alone),
            _short(beyond),
            "\n".join(f"{op} {m:.1%}, {w:.1%}" for op, (m, w) in effort.interpolation.items()),
        )
    wide_console().print(table)
    click.echo(
        "Errors of the speedup over plain decoding: on live settings whose costs lie in a profile's grids, "
        "on those that all profiles cover, with devices that do not slow each other, and where it "
        "extrapolates (median, largest)."
    )


def _short(errors: Errors | None) -> str:
    return "-" if errors is None else f"{errors.median:.1%}, {errors.largest:.1%} ({errors.settings})"


if __name__ == "__main__":
    main()
