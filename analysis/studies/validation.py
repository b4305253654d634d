"""Validate predictions: the same settings simulated and live, on the same prompts, in the same batches.

Beside law and simulation on the prompts' own recording stand what the calibration's prompts alone foresee,
with an interval, devices that do not slow each other, and the nearest setting that the calibration ran live.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from analysis.execute import EMULATED, LIVE, Bench, Comparison
from analysis.intervals import Bootstrap, Interval, known_model_error
from analysis.results import Results, Row, settings_of
from analysis.show import Column, draw_marks, legend_below, parity, table, values
from analysis.sources import Sources, load_sources
from analysis.stats import errors_of, grouped, median
from analysis.studies import arrivals
from analysis.study import POSITIVE, Entry, Picture, Plan, Study, option
from calibrate.calibration import Calibrated, open_work, run_calibration, write_all
from calibrate.job import Job, like_profile, make_job
from calibrate.options import Progress, alternating
from hardware_profiles.files import atomic_write
from hardware_profiles.profile import MeasuredRun, load_profile
from hardware_profiles.store import find_profile, origin, user_profile, user_trace
from policies.registry import POLICIES, SettingError, Settings, configure, find_policy
from policies.timeline import chrome_trace
from simulator.costs import Effects
from simulator.run import Simulated

SAME = ("target", "draft", "temperature", "placement", "seed", "trust_remote_code")
"""What the calibration beside live runs shares with them."""
TRUST = "Run code that a model or tokenizer brings with it; without this, it never is."
OPINIONS = {
    "simulated": "error",
    "simulated_without_contention": "error_without_contention",
    "simulated_from_calibration_prompts": "error_from_calibration_prompts",
    "law": "law_error",
    "nearest_calibrated_setting": "nearest_setting_error",
}
"""Name in the summary to column of errors."""
METHOD = (
    "speedup = tokens/s over those of plain decoding at the same batch and temperature, run among the "
    "settings (decode time, prefill left out; per prompt, or per batch run, the median of the repetitions, "
    "then ratio of sums). error = predicted / measured speedup - 1; repeatable = by how much two such "
    "measurements would differ, from halves of the repetitions"
)
SAMPLED = (
    "at a temperature above 0 a live run takes another random path than the recording: speeds are compared, "
    "rounds and texts are not"
)


@dataclass(frozen=True)
class ValidationPlan(arrivals.LoadPlan, Plan):
    """Every combination of the knobs that each policy has."""

    policies: tuple[str, ...] = option(("ar", "sd", "pearl", "saguaro"), "List.")
    prompts: str = option("heldout", "Shipped set, or a file as `calibrate` takes it.")
    count: int | None = option(12, "Prompts to use.", type=POSITIVE)
    hw: tuple[str, ...] = option(("auto",), "Profile to predict with; auto: this machine's.")
    emulate: str = option("", "Profile whose times live devices take; it predicts, too.")
    time_scale: float = option(
        4.0, "Real seconds per emulated one; 0: nobody waits for a clock.", type=click.FloatRange(0)
    )
    calibrate: bool = option(False, "Calibrate in turns with the live runs, and predict with that.")
    trace: str = option("", "Calibration trace.  [default: the profile's]")
    target: str = option("pair:x20", "Model name or folder.")
    draft: str = option("pair:draft", "Model name or folder.")
    placement: str = option("split", "split, or shared:0 / shared:0,1.")
    lookahead: tuple[int, ...] = option((4,), "List of K.")
    fanout: tuple[int, ...] = option((3,), "List of uniform fan-outs.")
    backup: tuple[str, ...] = option(("primary",), "List of backups.")
    draft_devices: tuple[int, ...] = option((1,), "List, of saguaro.")
    subsets: int = option(
        2, "Parts that the prompts are split into, each run and predicted on its own.", type=POSITIVE
    )
    level: float = option(0.8, "Of the intervals.", type=click.FloatRange(0, 1, min_open=True, max_open=True))
    max_tokens: int | None = option(128, "Most tokens per prompt.", type=POSITIVE)
    trust_remote_code: bool = option(False, TRUST)
    live: bool = True


def expand(
    policies: Sequence[str],
    lookaheads: Sequence[int],
    fanouts: Sequence[tuple[int, ...]],
    backups: Sequence[str],
    *,
    draft_devices: Sequence[int] = (1,),
    temperatures: Sequence[float] = (0.0,),
    seed: int = 0,
) -> list[Settings]:
    """Every combination of knobs that each policy has, at every temperature; AR first, and always there.

    Raises:
        SettingError: An unknown policy, or a knob out of its domain.
    """
    names = dict.fromkeys(["ar", *(find_policy(policy).name for policy in policies)])
    given: dict[str, Sequence[Any]] = {"lookahead": lookaheads, "fanout": fanouts, "backup": backups}
    given |= {"draft_devices": draft_devices}
    settings: list[Settings] = []
    for temperature, name in product(temperatures, names):
        mine = {knob: values for knob, values in given.items() if knob in POLICIES[name].knobs}
        for chosen in product(*mine.values()):
            knobs = dict(zip(mine, chosen, strict=True))
            settings.append(configure(name, temperature=temperature, seed=seed, **knobs))
    return list(dict.fromkeys(settings))


def nearest_measured(settings: Settings, runs: Sequence[MeasuredRun], batch: int = 1) -> MeasuredRun | None:
    """The calibrated setting that a careful person would take for this one: the naive baseline.

    Same policy, and same backup, temperature and batch where there is such a run (in that order; else the
    nearest temperature, then the batch nearest by ratio), then nearest lookahead, then nearest fan-out.
    """
    same = [run for run in runs if run.policy == settings.policy]
    same = [run for run in same if run.backup == settings.backup] or same
    if not same:
        return None
    return min(
        same,
        key=lambda run: (
            abs(run.temperature - settings.temperature),
            abs(float(np.log(run.batch / batch))),
            abs((run.lookahead or 0) - (settings.lookahead or 0)),
            abs((run.fanout or (0,))[0] - (settings.fanout or (0,))[0]),
        ),
    )


def check_plan(plan: ValidationPlan) -> None:
    """Refuse what contradicts itself.

    Raises:
        SettingError: Options that do not go together, or too few prompts for a batch.
    """
    if plan.measured is not None and not plan.under_load:
        raise SettingError("--measured goes with --rate or --traffic here")
    if plan.calibrate and plan.under_load:
        raise SettingError("--calibrate alternates with full batches: leave out --rate and --traffic")
    widest, needed = max(plan.batch), max(plan.batch) * plan.subsets
    if not plan.under_load and widest > (plan.count or needed) // plan.subsets:
        raise SettingError(
            f"a batch of {widest} needs {needed} prompts in {plan.subsets} subsets, got {plan.count}: a "
            f"smaller batch would be run; give --count {needed}"
        )
    if not plan.hw:
        raise SettingError("--hw is empty: name a profile, or leave it out for this machine's own")


def answer(bench: Bench) -> list[Row]:
    """Predict, run live, compare: a row per setting and batch, with its live runs on each subset."""
    plan = bench.plan_as(ValidationPlan)
    check_plan(plan)
    shapes = [(f,) for f in plan.fanout]
    more: dict[str, Any] = {"temperatures": plan.temperature, "draft_devices": plan.draft_devices}
    settings = expand(plan.policies, plan.lookahead, shapes, plan.backup, seed=plan.seed, **more)
    prompts = bench.prompts()
    asked = {name: getattr(plan, name) for name in SAME}
    job = make_job(replace(LIVE, max_tokens=plan.max_tokens or 0, **asked))
    here = replace(bench, given_job=job, subsets=min(plan.subsets, len(prompts)))
    entries = [Entry(s, batch) for batch in plan.batch for s in settings]
    if plan.calibrate:
        rows, sources = calibrated_beside(here, entries)
    elif plan.emulate:
        sources = emulated_sources(plan)
        study = replace(bench.study, worlds=dict.fromkeys(bench.study.worlds, EMULATED))
        here = replace(here, given_sources=sources, study=study, time_scale=plan.time_scale)
    else:
        sources = predictor(job, plan, bench)
        warn_of_another_machine(job, sources)
        for temperature in plan.temperature:
            sources.trace(temperature)  # fails before anything slow begins
        here = replace(here, given_sources=sources, given_job=like_profile(job, sources.profile))
    bench.notes |= {
        "machine": str(job.machine),
        "profile_machine": sources.profile.provenance.machine,
        "emulate": plan.emulate or None,
        "files": {str(kind): file for kind, file in sources.origins.items()},
        "model_error": sources.model_error,
    }
    if plan.under_load:
        return arrivals.load_rows(here, plan, settings)
    if not plan.calibrate:
        rows = here.compare(entries)
    if bench.out is not None:
        for comparison in here.comparisons:
            write_timelines(comparison, bench.out)
    return foresee(rows, sources, here, size=len(prompts) // here.subsets)


def calibrated_beside(bench: Bench, entries: Sequence[Entry]) -> tuple[list[Row], Sources]:
    """Rows of live runs that alternated with the calibration that predicts them.

    Raises:
        SettingError: Another source of predictions is given, too.
    """
    plan = bench.plan_as(ValidationPlan)
    if plan.hw != ("auto",) or plan.trace or plan.emulate or plan.measured is not None:
        raise SettingError(
            "--calibrate predicts with what it measures: leave out --hw, --trace, --emulate and --measured"
        )
    asked = {name: getattr(plan, name) for name in SAME}
    quickly = max(plan.batch) == 1
    job = make_job(replace(LIVE, quick=quickly, batches=plan.batch, **asked))

    def other(progress: Progress) -> Calibrated:
        return run_calibration(job, progress)

    with alternating(other, bench.progress) as (progress, result):

        @cache
        def promised() -> Sources:
            found = result()
            if bench.out is not None:
                write_all(found, job, bench.out)
            error = known_model_error(found.profile, found.traces)
            return Sources(found.profile, found.traces, error, origins={"profile": "calibrated in turns"})

        here = replace(bench, progress=progress, promised=promised)
        return here.compare(entries), promised()


def predictor(job: Job, plan: ValidationPlan, bench: Bench) -> Sources:
    """Profile and calibration traces: those named, this machine's own, or new ones by `calibrate --quick`."""
    hw, trace = plan.hw[0], plan.trace or None
    if hw == "auto":
        path, own = user_profile(job.name), user_trace(job.name)
        known = path.is_file() and own.is_file()
        if not known or load_profile(path).provenance.machine != str(job.machine):
            again = shlex.join(sys.argv)
            click.echo(f"no profile {job.name} of this machine yet: calibrating ({again})", err=True)
            with open_work(job, None) as journal:
                write_all(run_calibration(job, bench.progress, journal=journal), job, None)
                journal.discard()
        hw, trace = str(path), trace or str(own)
    return load_sources(hw, trace=trace, temperatures=plan.temperature)


def emulated_sources(plan: ValidationPlan) -> Sources:
    """The profile that is emulated; what is accepted is recorded of the pair that runs.

    Raises:
        SettingError: Another profile, a trace or stored live runs are given, which have no part in it.
    """
    if plan.hw != ("auto",) or plan.trace or plan.measured is not None:
        raise SettingError("--emulate predicts with what it emulates: leave out --hw, --trace and --measured")
    path = find_profile(plan.emulate)
    return Sources(load_profile(path), {}, 0.0, hw=plan.emulate, origins={"profile": origin(path)})


def warn_of_another_machine(job: Job, sources: Sources) -> None:
    """Times of one machine say little of another: errors would be those of the hardware, not of the twin."""
    other = job.machine.differs_from(sources.profile.provenance.machine or "")
    if other:
        click.echo(
            f"warning: profile {sources.profile.name!r} {other}: its errors tell of both machines; "
            "--hw auto predicts with a profile of this one",
            err=True,
        )


def write_timelines(comparison: Comparison, folder: Path) -> None:
    """The first request of every setting as it ran, simulated and live, for Perfetto."""
    for entry in comparison.entries:
        label = label_of(entry.settings.label, entry.batch)
        slug = label.replace(" ", "_").replace("=", "").replace(",", "-")
        for world in ("simulated", "measured"):
            run = next(iter(comparison.outcomes[world, entry].values())).runs[0]
            spans, name = run.spans, "live"
            if isinstance(run, Simulated):
                log, first = run.rows.log, run.rows.log.rounds(comparison.subsets[0][0])
                spans, name = [s for s in run.spans if s.end_s <= log.ends[len(first) - 1]], "simulated"
            with atomic_write(folder / f"timeline_{slug}_{name}.json") as file:
                file.write(chrome_trace(spans, title=f"{name} {label}"))


def label_of(setting: str, batch: int) -> str:
    """A setting and its batch, where that is not 1."""
    return setting + (f" b={batch}" if batch > 1 else "")


def foresee(rows: Sequence[Row], sources: Sources, bench: Bench, *, size: int) -> list[Row]:
    """The rows of whole settings with what was foreseen without their prompts; of subsets as `live_runs`.

    Foreseen are an interval from the calibration's prompts, for runs of `size` requests, and the nearest
    setting that was run there.
    """
    plan = bench.plan_as(ValidationPlan)
    boots: dict[tuple[float, int], Bootstrap] = {}
    whole = [row for row in rows if row.get("subset") is None]
    foreseen = []
    for done, row in enumerate(whole):
        temperature, batch, measured = (row[n] for n in ("temperature", "batch", "measured_speedup_vs_ar"))
        if sources.traces and (temperature, batch) not in boots:
            longest = int(np.diff(sources.trace(temperature).offsets).max())
            # Where the calibration did not record as much, all that it recorded.
            limit = plan.max_tokens if longest >= (plan.max_tokens or longest) else None
            boots[temperature, batch] = sources.bootstrap(
                temperature, batch=batch, size=size, limit=limit, level=plan.level, seed=plan.seed
            )
        several: Interval | None = None
        one: Interval | None = None
        nearest = None
        if sources.traces:  # else it is emulated: nothing was calibrated
            several, one = intervals_of(boots[temperature, batch], settings_of(row), bench.subsets)
            nearest = nearest_measured(settings_of(row), sources.profile.measured_runs, batch)
        mine = [r for r in rows if (r["setting"], r["batch"]) == (row["setting"], batch)]
        parts = [r for r in mine if r.get("subset") is not None] or [{**row, "subset": 0}]
        runs = [run for part in parts for run in _runs(part, one)]
        foreseen.append(
            {
                **row,
                **_predicted(several),
                "label": label_of(row["setting"], batch),
                "without_contention_speedup_vs_ar": row["alone_speedup_vs_ar"],
                "error": row["simulated_error"],
                "error_without_contention": row["alone_error"],
                "error_from_calibration_prompts": several and several.middle / measured - 1.0,
                "nearest_setting_error": nearest and nearest.speedup_vs_ar / measured - 1.0,
                "subsets": len(parts),
                "subsets_covered": sum(bool(one and p["measured_speedup_vs_ar"] in one) for p in parts),
                "tokens_per_round": row["simulated_tokens_per_round"],
                "cache_hit_rate": row["simulated_cache_hit_rate"],
                "identical_to_plain_decoding": row["identical"],
                "live_runs": runs,
            }
        )
        bench.progress("intervals", done + 1, len(whole))
    return foreseen


def intervals_of(
    boot: Bootstrap, settings: Settings, runs: int
) -> tuple[Interval, Interval] | tuple[None, None]:
    """Of the speedup of several runs and of one; None where what a policy decides was not recorded."""
    try:
        return boot.speedup_of_several(settings, runs), boot.speedup(settings)
    except SettingError:
        return None, None


def _predicted(interval: Interval | None) -> Row:
    return {f"predicted_{end}": interval and getattr(interval, end) for end in ("low", "middle", "high")}


def _runs(part: Row, interval: Interval | None) -> list[Row]:
    """Live runs that an interval was predicted for: a setting on a subset of the prompts, by repetition."""
    return [
        {
            **{name: part[name] for name in ("setting", "batch", "temperature", "subset")},
            "repeat": repeat,
            **_predicted(interval),
            "simulated_speedup_vs_ar": part["simulated_speedup_vs_ar"],
            "measured_speedup_vs_ar": measured,
            "covered": interval and measured in interval,
        }
        for repeat, measured in enumerate(part["measured_by_repeat"])
    ]


def compared(rows: Sequence[Row]) -> list[Row]:
    """All settings but plain decoding."""
    return [row for row in rows if row["policy"] != "ar"]


def error_summary(rows: Sequence[Row]) -> Row:
    """Median and maximum absolute error of every opinion that has any."""
    errors = {name: errors_of(rows, column) for name, column in OPINIONS.items()}
    return {
        name: {"median": e["median"], "max": e["largest"], "settings": e["settings"]}
        for name, e in errors.items()
        if e is not None
    }


def coverage(rows: Sequence[Row], asked: Mapping[str, Any]) -> Row:
    """Share of live runs (a setting on a subset of the prompts, once) whose speedup lies in the interval."""
    runs = [run for row in compared(rows) for run in row["live_runs"] if run["covered"] is not None]
    covered = sum(run["covered"] for run in runs)
    widths = [run["predicted_high"] / run["predicted_low"] - 1.0 for run in runs]
    return {
        "level": asked["level"],
        "runs": len(runs),
        "covered": covered,
        "share": covered / len(runs) if runs else None,
        "median_width": median(widths),
        "model_error": asked["model_error"],
    }


def summary(results: Results) -> Row:
    """Errors of every opinion, overall and by batch and temperature, coverage, exactness of replay."""
    rows, others = results.rows, compared(results.rows)
    replayed = [row for row in rows if row["rounds_compared"] is not None]
    texts = [row["identical"] for row in rows if row["identical"] is not None]
    groups = grouped(others, lambda row: (row["batch"], row["temperature"]))
    told = [row["rounds_equal"] for row in rows if row.get("rounds_equal") is not None]
    return {
        "settings": len(others),
        "requests": rows[0]["requests"],
        "repeats": results.asked["repeats"],
        "until": results.asked.get("until"),
        **error_summary(rows),
        "by_batch_and_temperature": [
            {"batch": batch, "temperature": temperature, **error_summary(mine)}
            for (batch, temperature), mine in groups.items()
        ],
        "coverage": coverage(rows, results.asked),
        "median_spread": median(row["measured_spread"] for row in others),
        "repeatability": repeatability_summary(others),
        "best": [
            {"batch": batch, "temperature": temperature, **best_of(mine)}
            for (batch, temperature), mine in grouped(rows, lambda r: (r["batch"], r["temperature"])).items()
        ],
        "rounds_equal": all(told) if told else None,
        "weather": weather_summary(results.asked.get("weather") or ()),
        "rounds_compared": sum(row["rounds_compared"] for row in replayed),
        "round_differences": sum(row["round_differences"] for row in replayed),
        "replay_exact": not any(row["unexcused_differences"] for row in replayed) if replayed else None,
        "identical_to_plain_decoding": all(texts) if texts else None,
    }


def repeatability_summary(rows: Sequence[Row]) -> Row | None:
    """Median and maximum of what two such measurements differ by, and the errors' ratio to it."""
    known = [(row["repeatability"], abs(row["error"])) for row in rows if row.get("repeatability")]
    if not known:
        return None
    repeats, _ = np.array(known).T
    return {
        "median": float(np.median(repeats)),
        "max": float(repeats.max()),
        "settings": len(known),
        "error_over_repeatability": median(error for _, error in known) / float(np.median(repeats)),  # type: ignore[operator]
    }


def weather_summary(looks: Sequence[Row]) -> Row | None:
    """How much the machine changed under the live runs, and whether a reference kernel tells.

    Returns:
        The 5 % and 95 % quantiles of what plain decoding took over its median; the same of the kernel; the
        correlation of their logarithms; the mean and largest share of `steal`; None where nobody looked.
    """
    if not looks:
        return None
    weather, kernel = (np.log([look[name] for look in looks]) for name in ("weather", "kernel_s"))
    steal = [look["steal"] for look in looks if look["steal"] is not None]
    varies = min(weather.std(), kernel.std()) > 0.0
    return {
        "runs": len(looks),
        "plain_decoding": np.exp(np.quantile(weather, [0.05, 0.95])).tolist(),
        "kernel": np.exp(np.quantile(kernel - np.median(kernel), [0.05, 0.95])).tolist(),
        "correlation": float(np.corrcoef(weather, kernel)[0, 1]) if varies else None,
        "steal": {"mean": float(np.mean(steal)), "max": max(steal)} if steal else None,
    }


def best_of(rows: Sequence[Row]) -> Row:
    """Of one batch and temperature: the settings predicted and measured to be best, and what trust costs."""
    predicted, best = (max(rows, key=lambda r: r[f"{w}_speedup_vs_ar"]) for w in ("simulated", "measured"))
    regret = 1.0 - predicted["measured_speedup_vs_ar"] / best["measured_speedup_vs_ar"]
    return {"predicted": predicted["setting"], "measured": best["setting"], "regret": regret}


def about(results: Results) -> Row:
    """What stands beside the rows (docs/reference/formats.md)."""
    rows, asked = results.rows, results.asked
    return {
        "profile": rows[0]["profile"],
        **{name: asked[name] for name in ("files", "profile_machine", "machine", "target", "draft")},
        **{name: asked[name] for name in ("emulate", "emulated") if asked.get(name)},
        "prompts": Path(asked["prompts"]).stem,
        "summary": summary(results),
        "live_runs": [run for row in compared(rows) for run in row["live_runs"]],
    }


def write_live_runs(results: Results, folder: Path) -> list[Path]:
    """Every live run beside its interval, as CSV."""
    with atomic_write(folder / "live_runs.csv") as file:
        file.write(Results("live_runs", tuple(results.about["live_runs"])).as_csv())
    return [folder / "live_runs.csv"]


def _columns(level: float) -> tuple[Column, ...]:
    def percent(title: str, value: str) -> Column:
        return Column(f"error%\n{title}", value, lambda v: f"{100 * v:+.1f}")

    def foreseen(row: Row) -> str | None:
        low, middle, high = (row[f"predicted_{name}"] for name in ("low", "middle", "high"))
        return None if row["policy"] == "ar" or low is None else f"{middle:.2f}, {low:.2f}-{high:.2f}"

    return (
        Column("speedup over AR", "label"),
        Column("law", "law_speedup_vs_ar", "{:.3f}"),
        Column("simu-\nlated", "simulated_speedup_vs_ar", "{:.3f}"),
        Column("mea-\nsured", "measured_speedup_vs_ar", "{:.3f}"),
        Column("repeat-\nable %", "repeatability", lambda v: f"{100 * v:.2g}"),
        percent("simul.", "error"),
        percent("alone*", "error_without_contention"),
        percent("law", "law_error"),
        percent("nearest", "nearest_setting_error"),
        Column(f"calib. prompts†\n{level:.0%} interval", foreseen),
    )


def judged(totals: Row) -> Iterator[str]:
    """Errors beside what measuring again would change, the best settings, and whether rounds are equal."""
    if (repeat := totals["repeatability"]) is not None:
        yield (
            f"repeatability of a measured speedup: median {repeat['median']:.2%}, max {repeat['max']:.2%}; "
            f"the median error is {repeat['error_over_repeatability']:.2g} times that"
        )
        if (until := totals["until"]) is not None and repeat["max"] > until:
            yield f"not every speedup repeats within {until:.2%}: the most repetitions were made"
    if (weather := totals["weather"]) is not None:
        (slow, fast), correlated = weather["plain_decoding"], weather["correlation"]
        yield (
            f"weather: plain decoding took {slow:.0%} to {fast:.0%} of its median (5 to 95 % of "
            f"{weather['runs']} runs), which speedups are corrected by; a reference kernel correlates "
            f"with it by {correlated or 0.0:.2f}"
        )
    for best in totals["best"]:
        yield (
            f"best at batch {best['batch']}, temperature {best['temperature']:g}: predicted "
            f"{best['predicted']}, measured {best['measured']}; trust costs {best['regret']:.2%}"
        )
    if totals["rounds_equal"] is not None:
        equal = "equal" if totals["rounds_equal"] else "NOT equal"
        yield f"rounds of all settings whose content is replayed: {equal}"


def show(results: Results) -> Iterator[Any]:
    """The table for people, errors, coverage, and whether replay was exact."""
    totals = results.about["summary"]
    columns = _columns(totals["coverage"]["level"])
    *_, repeat, _, alone, law, nearest, interval = (column.title for column in columns)
    yield table(
        "",
        columns,
        results.rows,
        drop=(nearest, alone, law, interval, repeat),
        notes={
            "law": "law, simulated, measured: on the validation's own prompts",
            alone: "* with devices that do not slow each other",
            interval: "† the speedup simulated from the calibration's prompts alone: median, interval",
        },
    )
    for name in OPINIONS:
        if name in totals:
            text = f"median {totals[name]['median']:.1%}, max {totals[name]['max']:.1%}"
            yield f"error, {name.replace('_', ' ')}: {text}"
    yield from judged(totals)
    inside = totals["coverage"]
    if inside["runs"]:
        yield (
            f"intervals: {inside['covered']} of {inside['runs']} live runs ({inside['share']:.0%}) lie in "
            f"their {inside['level']:.0%} interval, which is {inside['median_width']:.0%} wide (median)"
        )
    if kept := results.about.get("emulated"):
        yield (
            f"emulated: {results.asked['emulate']}, {kept['time_scale']:g} real seconds per second, devices "
            f"that do not slow each other; {kept['missed_runs']} runs missed a deadline and were repeated; "
            f"{kept['late_reports']} of {kept['reports']} reports came late, by {kept['latest_s']:.3f} s "
            "at most"
        )
    if totals["identical_to_plain_decoding"] is not None:
        exact = "" if totals["replay_exact"] in {True, None} else " (NOT explained by rounding)"
        yield (
            f"replay: {totals['rounds_compared']} rounds agree, {totals['round_differences']} requests differ"
            f"{exact}; text identical to plain decoding: "
            f"{'yes' if totals['identical_to_plain_decoding'] else 'NO'}"
        )
    if any(row["temperature"] > 0.0 for row in results.rows):
        yield f"replay: {SAMPLED}"
    for row in results.rows:
        yield from row.get("differences") or ()
    outside = sorted({text for row in results.rows for text in row["extrapolated"].split("; ") if text})
    if outside:
        yield f"[yellow]extrapolated: {'; '.join(outside)}[/yellow]"
    yield f"[dim]{METHOD}[/dim]"


def pictures(results: Results) -> dict[str, Picture]:
    """Law, simulated and measured speedup per setting, and the simulation's error beside the spread."""
    rows, asked = compared(results.rows), results.asked

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [3, 2]})
        draw_speedups(left, rows, asked["level"])
        draw_errors(right, rows)
        requests = results.rows[0]["requests"]
        figure.suptitle(f"{asked['target']} + {asked['draft']}, {requests} prompts", fontsize=11)

    return {"": Picture(draw, (12.0, 2.1 + 0.32 * len(rows)))}


def draw_speedups(axes: Any, rows: Sequence[Row], level: float) -> None:
    """Markers per setting: law, simulated, measured with its range; the predicted interval behind them."""
    at = np.arange(len(rows))
    low, high = values(rows, "predicted_low"), values(rows, "predicted_high")
    label = f"{level:.0%} interval, from calibration prompts"
    axes.barh(at, high - low, left=low, height=0.55, color="#f3d9c4", label=label)
    look: Row = {"marker": "|", "markersize": 12}
    label = "simulated, calibration prompts"
    draw_marks(axes, rows, "predicted_middle", color="#c44e52", label=label, **look)
    measured, least, most = (values(rows, f"measured_{name}") for name in ("speedup_vs_ar", "low", "high"))
    ends = np.maximum(0.0, [measured - least, most - measured])
    style: Row = {"fmt": "o", "color": "#55a868", "markersize": 7, "capsize": 3}
    axes.errorbar(measured, at, xerr=ends, label="measured", **style)
    own: Row = {"marker": "D", "color": "#dd8452", "markersize": 5, "label": "simulated, own prompts"}
    draw_marks(axes, rows, "simulated_speedup_vs_ar", **own)
    draw_marks(axes, rows, "law_speedup_vs_ar", color="#4c72b0", label="law", **look)
    parity(axes, upright=True)
    _finish(axes, [row["label"] for row in rows], "speedup over plain decoding")


def draw_errors(axes: Any, rows: Sequence[Row]) -> None:
    """Error of the simulation per setting, with the spread of the live runs behind it."""
    at, spread = np.arange(len(rows)), 100 * values(rows, "measured_spread")
    if np.isfinite(spread).any():
        axes.barh(at, 2 * spread, left=-spread, color="#dddddd", label="spread of live runs")
    for column, label, look in (
        ("error", "simulated", {"marker": "D", "color": "#dd8452"}),
        ("error_without_contention", "no contention", {"marker": "d", "mfc": "none", "color": "#dd8452"}),
        ("nearest_setting_error", "nearest calibrated setting", {"marker": "x", "color": "#8172b3"}),
    ):
        draw_marks(axes, rows, column, scale=100, markersize=5, label=label, **look)
    axes.axvline(0.0, color="black", linewidth=0.8)
    _finish(axes, [""] * len(rows), "error of the predicted speedup, %")


def _finish(axes: Any, names: Sequence[str], label: str) -> None:
    """A setting per line, the first on top, alike in both panels."""
    axes.set_yticks(np.arange(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(label)
    legend_below(axes, columns=2)
    axes.grid(axis="x", alpha=0.3)


T = TypeVar("T")


def _either(batches: Callable[..., T], loads: Callable[..., T]) -> Callable[..., T]:
    """What is said of results: of full batches, or of requests that arrive."""

    def said(results: Results, *more: Any) -> T:
        return (loads if results.asked.get("rate") or results.asked.get("traffic") else batches)(
            results, *more
        )

    return said


STUDY = Study(
    "validation",
    "Run settings live and simulated on the same prompts: law / simulated / measured.",
    ValidationPlan,
    worlds={"simulated": Effects(), "alone": Effects(overlap=False)},
    timeline=True,
    answer=answer,
    about=_either(about, arrivals.about),
    show=_either(show, arrivals.show),
    pictures=_either(pictures, arrivals.pictures),
    files=_either(write_live_runs, lambda results, folder: []),
    command="validate",
    examples=(
        "                                        # the four policies, shipped pair, held-out prompts",
        "--policies sd,saguaro --lookahead 2,4,7 --fanout 1,3 --backup primary,plain",
        "--target pair:x5 --batch 1,4,8 --temperature 0,1 --count 16 --max-tokens 64",
        "--policies duo,double,mirror --target pair:x5 --count 8 --json",
        "--calibrate --target pair:x5 --until 0.03    # calibrated in turns with the live runs",
        "--rate light,knee,overload --policies ar,sd,pld,saguaro --slo ttft=0.5,tpot=0.02   # under load",
        "--emulate h100x4+1 --time-scale 8 --target pair:target    # live, at an H100's times",
    ),
)
