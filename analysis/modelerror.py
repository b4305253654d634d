"""How wrong the simulator is where it can be checked: on the calibration's own live settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product, zip_longest
from typing import Any

import numpy as np

from hardware_profiles.profile import MeasuredRun, Profile
from hardware_profiles.trace import Trace
from policies.registry import Settings, configure, find_policy
from simulator.run import Scenario, simulate
from simulator.tokens import replay

USUAL_COUNTS = (6, 4)
"""Prompts that `calibrate` runs live, with and without `--quick`."""
LIMITS = (64, 32)
"""Limits under which it may run them."""
FALLBACK = 0.04
"""Taken where a profile measured no setting live: the median error over all validations so far."""


def model_error(profile: Profile, traces: Mapping[float, Trace]) -> float | None:
    """Root mean square of log(simulated / measured speedup) over the settings that calibration ran live.

    About zero, not about the mean: what is wrong in the same direction everywhere is wrong too.  The host
    times were fitted on these runs, so that it errs on the small side.

    Args:
        profile: With `measured_runs`.
        traces: Calibration traces by temperature; runs at another temperature are left out.

    Returns:
        None with fewer than two settings to compare.
    """
    errors = log_errors(profile, traces)
    return float(np.sqrt(np.mean(np.square(list(errors.values()))))) if len(errors) > 1 else None


def known_model_error(profile: Profile, traces: Mapping[float, Trace]) -> float:
    """The profile's own `model_error`, or else `model_error(...)`, or else `FALLBACK`.

    A profile of constant costs is a world, not a model of one: 0.
    """
    if profile.model_error is not None:
        return profile.model_error
    if profile.provenance.kind == "synthetic":
        return 0.0
    found = model_error(profile, traces)
    return FALLBACK if found is None else found


def log_errors(profile: Profile, traces: Mapping[float, Trace]) -> dict[tuple[Settings, int], float]:
    """log(simulated / measured speedup) by (setting, batch), plain decoding left out."""
    found: dict[tuple[Settings, int], float] = {}
    for temperature, trace in traces.items():
        for batch in sorted({run.batch for run in profile.measured_runs}):
            runs = [r for r in profile.measured_runs if (r.batch, r.temperature) == (batch, temperature)]
            found.update(_group(profile, trace, runs, batch, temperature))
    return found


def _group(
    profile: Profile, trace: Trace, runs: Sequence[MeasuredRun], batch: int, temperature: float
) -> dict[tuple[Settings, int], float]:
    """Errors of the runs at one batch and temperature, on the prompts that they ran on if those are known."""
    runs = [run for run in runs if run.policy != "ar"]
    if not runs:
        return {}
    part, limit = ran_on(trace, runs[0].tokens)
    scenario = Scenario(tokens=replay(part, limit=limit), profile=profile, batch=batch)
    ar = simulate(scenario, configure("ar", temperature=temperature)).summary.tokens_per_second
    errors = {}
    for run in runs:
        settings = settings_of(run)
        speed = simulate(scenario, settings).summary.tokens_per_second
        errors[settings, batch] = float(np.log(speed / ar / run.speedup_vs_ar))
    return errors


def ran_on(trace: Trace, tokens: int) -> tuple[Trace, int | None]:
    """The requests that calibration ran live, and their limit: the pass that has just this many tokens.

    Prompts are taken in turn from every category, as calibration does (`calibrate.prompts.spread`).  All of
    the trace where no such pass fits.
    """
    lengths = np.diff(trace.offsets)
    by_category: dict[str, list[int]] = {}
    for index, request in enumerate(trace.requests):
        by_category.setdefault(request.category, []).append(index)
    turns = zip_longest(*by_category.values())
    order = [index for turn in turns for index in turn if index is not None]
    counts = [*USUAL_COUNTS, *range(1, len(order) + 1)]
    for count, limit in product(counts, (None, *LIMITS)):
        chosen = order[:count]
        cut = lengths[chosen] if limit is None else np.minimum(lengths[chosen], limit)
        if count <= len(order) and int(cut.sum()) == tokens:
            return trace.slice(trace.requests[i].id for i in sorted(chosen)), limit
    return trace, None


def settings_of(run: MeasuredRun) -> Settings:
    """The settings that a measured run was made with."""
    info = find_policy(run.policy)
    knobs: dict[str, Any] = {
        "lookahead": run.lookahead,
        "fanout": run.fanout,
        "backup": run.backup,
    }
    used = {name: value for name, value in knobs.items() if name in info.knobs}
    return configure(run.policy, temperature=run.temperature, **used)
