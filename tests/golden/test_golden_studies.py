"""What the studies say of their stored live runs, and of worlds without any: predicted again, and pinned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import sources as sources_module
from analysis.__main__ import load_study
from analysis.execute import Bench
from analysis.results import EVERY, Results, Row, load, read
from analysis.sources import Sources, load_sources
from analysis.studies.double import retrieved
from analysis.studies.duodecoding import PAPERS_WORLDS, confidence_of, profile_budgets, uneven_budget
from analysis.studies.effort import judge, measured_speedups
from analysis.studies.mirror import MirrorPlan, StreamsPlan, on_coins
from analysis.studies.openquestions import compared
from analysis.study import RECORDED, Entry, Plan
from hardware_profiles.profile import load_profile
from hardware_profiles.reply_trace import read_decisions
from hardware_profiles.store import find_decisions, find_profile
from hardware_profiles.trace import Trace, read_trace
from policies.registry import configure
from simulator.run import Scenario
from simulator.tokens import replay

WIDE = ("backup", "pareto")
"""Studies of batches that two prompts would not fill."""
Golden = Callable[[str, Any], None]
RESULTS = Path(__file__).parents[2] / "analysis" / "results"
DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def cpu2_x5() -> Sources:
    """Without its model error, which is simulated, takes a while, and goes into none of these values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources_module, "known_model_error", lambda profile, traces: 0.0)
        return load_sources("cpu2-x5")


def heldout(temperature: float) -> Trace:
    """Eight held-out prompts as the pair decodes them plainly: what re-predicting live runs begins with."""
    return read_trace(DATA / f"heldout-t{temperature:g}.parquet")


@pytest.mark.parametrize(("temperature", "step"), [(0.0, 4), (1.0, 8)], ids=["greedy", "sampled"])
def test_the_family_predicted_again(golden: Golden, cpu2_x5: Sources, temperature: float, step: int) -> None:
    """Every so many of its settings."""
    stored, study = load("family/family"), load_study("family")
    mine = [row for row in stored.rows if row["temperature"] == temperature]
    labels = [row["setting"] for row in mine if row["policy"] != "ar" and row["category"] == EVERY][::step]
    kept = tuple(row for row in mine if row["policy"] == "ar" or row["setting"] in labels)
    bench = Bench(study, study.plan(measured=RESULTS / "family"), given_sources=cpu2_x5)
    bench.__dict__["stored"] = Results("family", kept)
    bench._traces[temperature] = heldout(temperature)
    results = Results("family", tuple(study.rows(bench)))
    golden(
        f"studies-family-t{temperature:g}",
        {
            "rows": [
                {name: row[f"{name}_speedup_vs_ar"] for name in ("law", "ignored", "simulated", "measured")}
                | {"setting": row["setting"], "spread": row["measured_spread"], "identical": row["identical"]}
                for row in results.rows
                if row["category"] == EVERY and row["policy"] != "ar"
            ],
            "orders": study.about(results)["groups"][0]["orders"],
        },
    )


VALIDATIONS = (
    "x5_batches/validation",
    "x5_between/validation",
    "x5_third/validation",
    "x5_fifth/validation",
    "x5_turns/validation",
    "x5_turns/validation-batches",
)


def test_validations_predicted_again(golden: Golden, cpu2_x5: Sources) -> None:
    """Some settings of the stored runs, on eight of their prompts in two subsets."""
    speeds = measured_speedups([read(RESULTS / f"x5_{n}/validation.json") for n in ("third", "fifth")])
    chosen = [s for s in speeds if s[1] < 8][::9]
    traces = {t: heldout(t) for t in (0.0, 1.0)}
    bench = Bench(load_study("validation"), Plan(), given_sources=cpu2_x5, subsets=2, _traces=traces)
    rows = bench.compare([Entry(settings, batch) for settings, batch in chosen])
    names = {
        "setting": "setting",
        "batch": "batch",
        "simulated_tokens_per_second": "simulated_tokens_per_second",
        "simulated_speedup_vs_ar": "simulated_speedup_vs_ar",
        "alone_speedup_vs_ar": "alone_speedup_vs_ar",
        "tokens_per_round": "simulated_tokens_per_round",
    }
    own = {(row["setting"], row["batch"], row.get("subset")): row for row in rows}
    told = [own[s.label, batch, part] for part in (0, 1) for s, batch in chosen]
    few = {s: speeds[s] for s in chosen[:4]}
    found: dict[str, list[float]] = {}
    for name in ("cpu2-x5", "cpu2-x5-wide"):
        sources = replace(cpu2_x5, profile=load_profile(find_profile(name)))
        plan = load_study("effort").plan()
        there = Bench(load_study("effort"), plan, name, given_sources=sources, subsets=2, _traces=traces)
        judged = judge(there, few)
        columns = ("simulated_error", "alone_error")
        found[name] = [1.0 + row[column] for column in columns for row in judged]
    golden(
        "studies-validation",
        {"rows": [{n: row[key] for n, key in names.items()} for row in told], "effort": found},
    )


OPEN = ("budget", "backup", "ratio", "temperature", "scale", "pareto", "drafts")


@pytest.mark.parametrize("name", OPEN)
def test_open_questions_simulated(golden: Golden, cpu2_x5: Sources, name: str) -> None:
    study = load_study(name)
    bench = Bench(study, study.plan(count=None if name in WIDE else 2, max_tokens=32), given_sources=cpu2_x5)
    if name in WIDE:
        bench.sources = replace(cpu2_x5, traces={0.0: cpu2_x5.trace(0.0).slice(range(8))})
    results = Results(name, tuple(study.rows(bench)))
    names = ("setting", "batch", "law_speedup_vs_ar", "law_cache_hit_rate", "simulated_speedup_vs_ar")
    names += ("simulated_cache_hit_rate", "simulated_acceptance_rate", "simulated_tokens_per_second")
    rows = [{n: row[n] for n in names} for row in compared(results.rows)]
    golden(f"studies-{name}", {"title": study.about(results)["title"], "rows": rows})


def test_titles_of_stored_results(golden: Golden) -> None:
    titles = {}
    for name in OPEN:
        found = load(f"experiments/{name}")
        titles[name] = load_study(name).about(found)["title"]
        assert titles[name] == found.about["title"]
    golden("studies-titles", titles)


SPEEDS = {"tokens_per_second", "speedup_vs_ar", "tokens_per_round"}
OTHERS = {"exposed_s", "draft_s", "cache_hit_rate", "acceptance_rate", "overlap_s", "error"}
"""Columns that the outcomes of Mirror-SD did not have."""


def told(row: Row) -> dict[str, Any]:
    """A simulated row of Mirror-SD as its outcomes once were told: speeds, and the account."""
    simulated = {n.removeprefix("simulated_"): v for n, v in row.items() if n.startswith("simulated_")}
    simulated = {n: v for n, v in simulated.items() if n not in OTHERS}
    passes = {n.removeprefix("passes_"): v for n, v in simulated.items() if n.startswith("passes_")}
    account = {n: v for n, v in simulated.items() if n not in SPEEDS and not n.startswith("passes_")}
    account["passes"] = passes or None
    where = {"setting": row["setting"], "policy": row["policy"], "batch": row["batch"], "world": "simulated"}
    mirror = row["policy"] == "mirror"
    return {**where, **{n: simulated[n] for n in SPEEDS}, "account": account if mirror else None}


def test_mirror_on_coins(golden: Golden) -> None:
    coins: dict[str, Any] = {"coins": True, "count": 4, "max_tokens": 24, "lookahead": (3,)}
    grid = MirrorPlan(**coins, kappa=(1, 4), exits=("1/4", "1/2"))
    streams = StreamsPlan(**coins, kappa=4, streams="2", stream_acceptance=0.6)
    rows = on_coins(grid, [Entry(s, batch) for batch in (1, 2) for s in grid.settings(0.0)])
    rows += on_coins(streams, [Entry(s) for s in streams.settings(0.0)])
    golden("studies-mirror-coins", [told(row) for row in rows])


def test_accounts_of_recorded_decisions(golden: Golden, cpu2_x5: Sources) -> None:
    """Mirror-SD, DOUBLE and DuoDecoding on what the shipped pair decided on its calibration prompts."""
    trace = cpu2_x5.trace(0.0)
    found: dict[str, Any] = {}
    ids = [request.id for request in trace.requests][:4]
    for policy in ("mirror", "double", "duo"):
        part = read_decisions(find_decisions(f"cpu2-x5-{policy}")).slice(ids)
        kept = list(part.settings.values())[:3]
        for own in kept:
            if policy == "double":
                did = retrieved(own)
                found[own.label] = [did[name] for name in ("draft_matched", "target_matched", "drafted")]
            elif policy == "duo":
                found[own.label] = confidence_of(own)
        if policy == "mirror":
            settings = [configure(policy, **own.knobs) for own in kept]
            sources = replace(cpu2_x5, traces={0.0: trace.slice(ids)}, decisions={0.0: part})
            plan = Plan(prompts=RECORDED, count=None, max_tokens=None)
            bench = Bench(load_study("mirror"), plan, given_sources=sources)
            rows = bench.compare([Entry(s) for s in settings])
            found |= {row["setting"]: told(row) for row in rows if row["policy"] == "mirror"}
    golden("studies-accounts", found)


def test_duodecoding_budgets(golden: Golden, cpu2_x5: Sources) -> None:
    scenario = Scenario(replay(cpu2_x5.trace(0.0).slice([0, 1]), limit=32), profile=cpu2_x5.profile)
    rows = [row for w in PAPERS_WORLDS for row in uneven_budget(w, (20, 24), tokens=2_000, seed=0)]
    rows += profile_budgets(scenario, (3, 6))
    golden("studies-budgets", rows)


def test_summaries_of_stored_runs(golden: Golden) -> None:
    """Regret again from the stored rows, and what the validations were summed up to."""
    found: dict[str, Any] = {
        name: load_study("regret").about(load(name))["summary"] for name in ("regret_x5", "regret_x20")
    }
    for name in VALIDATIONS:
        found[name] = read(RESULTS / f"{name}.json").about["summary"]
    golden("studies-summaries", found)
