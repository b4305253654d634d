"""What a longer calibration buys: several profiles of one machine against the same live runs.

Every setting that a validation ran live is predicted anew from each profile, on the same prompts in the same
batches; nothing is run live again.  A short calibration covers fewer settings (`--quick`: batch 1): it is
judged on those, on those that all profiles cover, and, apart from them, where it extrapolates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

from analysis.execute import LIVE, MOST_TOKENS, Bench
from analysis.results import Results, Row, read, settings_of
from analysis.show import Column, table
from analysis.sources import Sources
from analysis.stats import errors, grouped
from analysis.study import POSITIVE, Entry, Plan, Study, option
from calibrate.job import make_job
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from policies.registry import SettingError, Settings
from simulator.costs import Effects

ServedSetting: TypeAlias = tuple[Settings, int]
"""A policy with its knobs, and the rows served at once."""


@dataclass(frozen=True)
class EffortPlan(Plan):
    """Which live runs, and how long each profile took to make."""

    validation: tuple[Path, ...] = option(
        (), "Result of `validate --out`; repeated, runs at several times are pooled.",
        multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    )  # fmt: skip
    minutes: tuple[float, ...] = option((), "How long each profile took to make, a list.")
    subsets: int = option(2, "As the validation was run.", type=POSITIVE)


def measured_speedups(validations: Sequence[Results]) -> dict[ServedSetting, float]:
    """Live speedups over plain decoding; of a setting that several validations ran, the geometric mean.

    Raises:
        SettingError: They are of other pairs or prompts, which have speedups of their own.
    """
    names, rows = ("target", "draft", "prompts"), [row for each in validations for row in each.rows]
    try:
        of = {(*(v.about[n] for n in names), v.about["summary"]["requests"]) for v in validations}
        compared = (row for row in rows if row["policy"] != "ar")
        by_setting = grouped(compared, lambda row: (settings_of(row), int(row["batch"])))
        speedups = {s: [float(r["measured_speedup_vs_ar"]) for r in mine] for s, mine in by_setting.items()}
    except (KeyError, TypeError) as error:
        raise SettingError(f"no result of `validate --out`: {error!r}") from error
    if len(of) != 1:
        raise SettingError("the validations are of different pairs or prompts and cannot be pooled")
    return {setting: float(np.exp(np.mean(np.log(each)))) for setting, each in speedups.items()}


def answer(bench: Bench) -> list[Row]:
    """Every measured speedup beside what one profile predicts."""
    plan = bench.plan_as(EffortPlan)
    if not plan.validation:
        raise SettingError("give --validation, the result of `validate --out`")
    if plan.minutes and len(plan.minutes) != len(plan.hw):
        raise SettingError(f"{len(plan.hw)} profiles need as many --minutes, got {len(plan.minutes)}")
    validations = [read(path) for path in plan.validation]
    measured, first = measured_speedups(validations), validations[0].about
    temperatures = tuple(sorted({settings.temperature for settings, _ in measured}))
    pair = replace(LIVE, target=first["target"], draft=first["draft"], temperature=temperatures)
    job = make_job(replace(pair, max_tokens=plan.max_tokens or MOST_TOKENS))
    plan = replace(plan, prompts=first["prompts"], count=int(first["summary"]["requests"]))
    # Only the profile is judged: the texts are the validations' own, recorded anew.
    sources = Sources(load_profile(find_profile(bench.hw)), {}, 0.0, hw=bench.hw)
    alike = replace(bench, plan=plan, given_sources=sources, given_job=job, subsets=plan.subsets)
    return judge(alike, measured)


def judge(bench: Bench, measured: Mapping[ServedSetting, float]) -> list[Row]:
    """Predict every measured speedup from the profile of a bench.

    Raises:
        SettingError: It can predict none of them.
    """
    profile = bench.sources.profile
    judged: list[Row] = []
    for done, ((settings, batch), speedup) in enumerate(measured.items()):
        with suppress(SettingError):
            rows = bench.compare([Entry(settings, batch)])
            row = next(r for r in rows if r["policy"] == settings.policy and r.get("subset") is None)
            off = {f"{w}_error": row[f"{w}_speedup_vs_ar"] / speedup - 1.0 for w in STUDY.worlds}
            own = {"measured_speedup_vs_ar": speedup, **off, "covered": not row["extrapolated"]}
            judged.append({"hw": bench.hw, **row, **own})
        bench.progress("settings", done + 1, len(measured))
    if not judged:
        raise SettingError(f"profile {profile.name} can predict none of the settings that were run live")
    grids = {
        operation: [error.median, error.worst]
        for operation, cost in profile.operations.items()
        if (error := getattr(cost, "interpolation_error", None)) is not None
    }
    bench.notes.setdefault("profiles", {})[bench.hw] = {"command": profile.provenance.command, "grids": grids}
    return judged


def efforts(results: Results) -> list[Row]:
    """Per profile its errors on what it covers, on what all cover, and beyond."""
    by = grouped(results.rows, lambda row: row["hw"])
    covered = [{(r["setting"], r["batch"]) for r in rows if r["covered"]} for rows in by.values()]
    common = set.intersection(*covered) if covered else set()
    minutes = results.asked.get("minutes") or [None] * len(by)

    def of(rows: Iterable[Row], column: str = "simulated_error") -> Row | None:
        return errors(1.0 + row[column] for row in rows)

    return [
        {
            "profile": hw,
            "minutes": took,
            **results.asked.get("profiles", {}).get(hw, {}),
            "settings_predicted": len(rows),
            "covered": of(r for r in rows if r["covered"]),
            "without_contention": of((r for r in rows if r["covered"]), "alone_error"),
            "common": of(r for r in rows if (r["setting"], r["batch"]) in common),
            "beyond": of(r for r in rows if not r["covered"]),
        }
        for (hw, rows), took in zip(by.items(), minutes, strict=True)
    ]


def places(results: Results) -> list[Row]:
    """Errors of all settings of a profile, what lies beyond its grids too, by batch and temperature."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in results.rows:
        for place in (f"{row['batch']}, {settings_of(row).temperature:g}", "all"):
            groups.setdefault((row["hw"], place), []).append(row)
    return [
        {
            "profile": hw,
            "place": place,
            "settings": len(rows),
            **{world: errors(1.0 + row[f"{world}_error"] for row in rows) for world in STUDY.worlds},
        }
        for (hw, place), rows in sorted(groups.items())
    ]


def show(results: Results) -> Iterator[Any]:
    """A row per profile; one per profile, batch and temperature."""

    def covered(title: str, name: str, form: str = "{:.1%}") -> Column:
        return Column(title, lambda row: row["covered"] and row["covered"][name], form)

    def short(title: str, name: str) -> Column:
        return Column(title, name, "{0[median]:.1%}, {0[largest]:.1%} ({0[settings]})")

    def both(title: str, name: str) -> Column:
        return Column(f"{title}:\nmedian, largest", name, "{0[median]:.1%}, {0[largest]:.0%}")

    yield table(
        "",
        (
            Column("profile", "profile"),
            Column("minutes", "minutes", "{:g}"),
            covered("covered", "settings", "{}"),
            covered("median", "median"),
            covered("p95", "p95"),
            covered("largest", "largest"),
            covered("bias", "bias", "{:+.1%}"),
            short("on what all cover", "common"),
            short("no contention", "without_contention"),
            short("beyond its grids", "beyond"),
        ),
        results.about["efforts"],
    )
    yield table(
        "By batch and temperature",
        (
            Column("profile", "profile"),
            Column("batch, temperature", "place"),
            Column("settings", "settings"),
            both("simulated", "simulated"),
            both("no contention", "alone"),
        ),
        places(results),
    )
    yield (
        "Errors of the speedup over plain decoding: on live settings whose costs lie in a profile's grids, "
        "on those that all profiles cover, with devices that do not slow each other, and where it "
        "extrapolates (median, largest)."
    )


STUDY = Study(
    "effort",
    "What does a longer calibration buy?  Several profiles against the same live runs.",
    EffortPlan,
    worlds={"simulated": Effects(), "alone": Effects(overlap=False)},
    answer=answer,
    about=lambda results: {"efforts": efforts(results)},
    show=show,
    examples=("--validation my/validation.json --hw quick.json,cpu2-x5 --minutes 5,60",),
)
