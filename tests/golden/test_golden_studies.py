"""What the studies say of their stored live runs, and of worlds without any: predicted again, and pinned."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import sources as sources_module
from analysis.__main__ import load_study
from analysis.double_cells import Account
from analysis.duodecoding_budget import PAPERS_WORLDS, profile_budgets, uneven_budget
from analysis.duodecoding_sequences import doubt_of
from analysis.effort import judge, measured_speedups
from analysis.effort_errors import covered_by_all
from analysis.execute import Bench, split
from analysis.mirror_cells import Outcome, on_coins, settings_grid, simulated
from analysis.mirror_streams import variants
from analysis.predictions import predict
from analysis.regret import Case, summary
from analysis.results import EVERY, Results, load
from analysis.sources import Sources, load_sources
from analysis.studies.openquestions import compared
from hardware_profiles.decisions import read_decisions
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_decisions, find_profile, find_trace
from hardware_profiles.trace import Trace, read_trace
from policies.registry import configure
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin, replay

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


def stored(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


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


def test_validations_predicted_again(golden: Golden) -> None:
    """Some settings of the stored runs, on eight of their prompts in two subsets."""
    speeds = measured_speedups([stored("x5_third/validation"), stored("x5_fifth/validation")])
    chosen = [s for s in speeds if s[1] < 8][::9]
    traces = {t: heldout(t) for t in (0.0, 1.0)}
    parts = [{t: trace.slice(ids) for t, trace in traces.items()} for ids in split(traces[0.0], 2)]
    profile = load_profile(find_profile("cpu2-x5"))
    rows = [
        {
            "setting": p.settings.label,
            "batch": p.batch,
            "law_speedup_vs_ar": p.law_speedup_vs_ar,
            "simulated_tokens_per_second": p.simulated.tokens_per_second,
            "simulated_speedup_vs_ar": p.simulated_speedup_vs_ar,
            "alone_speedup_vs_ar": p.alone_speedup_vs_ar,
            "tokens_per_round": p.simulated.tokens_per_round,
            "extrapolated": list(p.extrapolated),
        }
        for part in parts
        for p in predict(chosen, profile, part)
    ]
    few = {s: speeds[s] for s in chosen[:4]}
    judged = [
        judge(name, load_profile(find_profile(name)), few, parts) for name in ("cpu2-x5", "cpu2-x5-wide")
    ]
    golden(
        "studies-validation",
        {
            "rows": rows,
            "effort": {j.profile: [j.ratios[s] for s in few] + [j.alone[s] for s in few] for j in judged},
            "covered": len(covered_by_all(judged)),
        },
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


def _told(outcome: Outcome) -> dict[str, Any]:
    return {name: value for name, value in outcome.as_dict().items() if name != "knobs"}


def test_mirror_on_coins(golden: Golden) -> None:
    tokens = coin(0.8, exponent=1.0, requests=4, length=24, prompt_length=64, seed=0)
    scenario = Scenario(tokens, textbook=TextbookCosts(1.0, 0.1), seed=0)
    settings = settings_grid((3,), (1, 4), ("1/4", "1/2"), temperature=0.0, seed=0)
    streams = variants((3,), kappa=4, streams="2", stream_acceptance=0.6, temperature=0.0, seed=0)
    golden(
        "studies-mirror-coins",
        [_told(o) for o in [*on_coins(scenario, settings, (1, 2)), *on_coins(scenario, streams, (1,))]],
    )


def test_accounts_of_recorded_decisions(golden: Golden) -> None:
    """Mirror-SD, DOUBLE and DuoDecoding on what the shipped pair decided on its calibration prompts."""
    profile = load_profile(find_profile("cpu2-x5"))
    trace, found = read_trace(find_trace("cpu2-x5")), {}
    for policy in ("mirror", "double", "duo"):
        decisions = read_decisions(find_decisions(f"cpu2-x5-{policy}"))
        ids = [request.id for request in trace.requests][:4]
        part = decisions.slice(ids)
        scenario = Scenario(replay(trace.slice(ids)), profile=profile, decisions=part)
        plain = simulate(scenario, configure("ar")).summary.tokens_per_second
        for own in list(part.settings.values())[:3]:
            knobs = {n: tuple(v) if isinstance(v, list) else v for n, v in own.knobs.items()}
            settings = configure(policy, **knobs)
            if policy == "mirror":
                found[own.label] = _told(simulated(scenario, settings, plain, [own]))
            elif policy == "double":
                account = Account.of(own)
                found[own.label] = [account.draft_matched, account.target_matched, account.drafted]
            else:
                found[own.label] = doubt_of(own).as_dict()
    golden("studies-accounts", found)


def test_duodecoding_budgets(golden: Golden) -> None:
    profile, trace = load_profile(find_profile("cpu2-x5")), read_trace(find_trace("cpu2-x5"))
    scenario = Scenario(replay(trace.slice([0, 1]), limit=32), profile=profile)
    budgets = [uneven_budget(world, (20, 24), tokens=2_000, seed=0) for world in PAPERS_WORLDS]
    budgets += profile_budgets(scenario, (3, 6))
    golden("studies-budgets", [budget.as_dict() for budget in budgets])


def test_summaries_of_stored_runs(golden: Golden) -> None:
    """Regret and coverage again from the stored rows."""
    found: dict[str, Any] = {}
    for name in ("regret_x5", "regret_x20"):
        told = stored(name)
        cases = [
            Case(
                c["profile"],
                c["category"],
                c["choice"],
                tuple(c["predicted_speedup_vs_ar"][k] for k in ("low", "middle", "high")),
                c["tried"],
            )
            for c in told["cases"]
        ]
        found[name] = summary(cases)
    for name in VALIDATIONS:
        found[name] = stored(name)["summary"]
    golden("studies-summaries", found)
