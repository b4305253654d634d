"""What the grids leave out, fitted on live runs: host time, waking up, and what overlap costs in real rounds.

A probe repeats one warm forward; in a round a worker wakes up with cold caches, builds masks and answers,
reads messages, and the policy thinks in between.  Per operation the live work is taken to be

    extra_s + scale * (what the grids say) + wake * (idling before)
            + row_s * (rows - 1) + step_s * (forwards) + token_s * (tokens fed)

All greedy runs are fitted together, of the target those in which the draft is idle by design.  A batch's
grids grow with its rows, too: `scale` is free only where operations of equally many rows differ enough to
tell it from `row_s`.  A draft chooses a token in every branch of every row, which is its `token_s`.  Sampled
runs have a constant, a time per forward and one per token on top.  How far whole operations scatter about the
mean of their setting is kept too (`spread`): who waits for the longer of two waits longer than either's mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from calibrate.fitting import Sample, fit_operation, fit_sampled, predicted, trimmed, usual_work, waited
from calibrate.observations import LiveRecord, Observation, Step
from hardware_profiles.costs import GridCost, OperationCost, Quantiles
from hardware_profiles.latency import FloatArray, LatencySurface
from hardware_profiles.profile import Forward, Host, HostOperation, OperationHost, Overlap

LEAST_SLOWDOWN, MOST_SLOWDOWN = 0.9, 2.0
"""In-situ factors are cut to these."""
FLAT = 1.005
"""Fits that differ by less do not tell slow-downs apart."""
STEPS = 9
"""Slow-downs that are tried."""

Slowdowns: TypeAlias = Mapping[tuple[str, str, Forward], float]
"""(device, operation, the other device's operation) to a factor."""


Samples: TypeAlias = dict[HostOperation, list[Sample]]


def fit_host(
    records: Sequence[LiveRecord],
    grids: Mapping[str, GridCost],
    overlap: Sequence[Overlap],
    latency: Quantiles | None = None,
) -> tuple[Host, list[Overlap]]:
    """Host time as it is in real rounds, and how the grids' forwards fare tsample.

    Target operations are fitted where the draft is idle by design (AR, SD); what they take longer beside a
    busy draft then gives the target's slow-downs, in place of the probes'.  Of the draft's slow-downs remains
    what makes its operations agree, which overlap for larger and smaller shares of their time.

    Args:
        records: Live runs of the calibration's own settings.
        grids: Measured surfaces.
        overlap: Slow-downs measured by probes.
        latency: Message latency, for the record.

    Returns:
        The host's entry, and the slow-downs with the target's replaced.
    """
    surfaces = Tables(grids)
    factors: dict[tuple[str, str, Forward], float] = {
        (o.device, o.operation, o.while_operation): o.slowdown for o in overlap if o.while_operation
    }
    plain = [r for r in records if r.settings.temperature == 0.0]
    for kind, name in _TELLING:
        if factors.get(("draft", kind, "forward"), 1.0) > 1.0:
            factors["draft", kind, "forward"] = _confirmed(plain, surfaces, factors, (kind, name))
    greedy = _samples(plain, surfaces, factors)
    hot = _samples([r for r in records if r.settings.temperature > 0.0], surfaces, factors)
    fitted = {name: fit_operation(name, found) for name, found in greedy.items()}
    sampled = {name: fit_sampled(name, found, fitted.get(name)) for name, found in hot.items()}
    host = Host(
        submit_s=float(np.mean([entry.submit_s for entry in fitted.values()])) if fitted else 0.0,
        report_s=float(np.mean([entry.report_s for entry in fitted.values()])) if fitted else 0.0,
        message_latency_s=latency,
        operations=fitted,
        sampled=sampled,
    )
    return host, in_situ([_as_found(entry, factors) for entry in overlap], greedy, fitted)


_TELLING: tuple[tuple[Forward, HostOperation], ...] = (("forward", "continue"), ("tree", "prespeculate"))
"""Kinds of the draft's forwards, and the operation whose live times tell what they suffer."""


def _confirmed(
    records: Sequence[LiveRecord],
    surfaces: Tables,
    factors: Slowdowns,
    telling: tuple[Forward, HostOperation],
) -> float:
    """The slow-down of a kind of the draft's forwards, between none and the probes', that fits rounds best.

    A short probe of a machine that others use can be far off, and no scale or constant makes up for it where
    operations overlap for a third of their time in one setting and for all of it in another.
    """
    kind, name = telling
    key: tuple[str, str, Forward] = ("draft", kind, "forward")

    def misfit(slowdown: float) -> float:
        samples = _samples(records, surfaces, {**factors, key: slowdown}, only=name).get(name, [])
        if not samples:
            return 0.0
        fitted, kept = fit_operation(name, samples), trimmed(samples)
        left = np.array([s.work_s - predicted(fitted, s) for s in kept]) / usual_work(kept)
        return float(np.sqrt(np.mean(left**2)))

    probed = factors[key]
    tried = np.linspace(1.0, probed, STEPS)
    misfits = [misfit(float(slowdown)) for slowdown in tried]
    # Where rounds do not tell, since all overlap alike, the probes' stands.
    return probed if misfits[-1] <= FLAT * min(misfits) else float(tried[np.argmin(misfits)])


def _as_found(entry: Overlap, factors: Slowdowns) -> Overlap:
    """A slow-down of the draft, with the factor that is left of it."""
    if entry.device != "draft" or entry.while_operation is None:
        return entry
    found = factors.get((entry.device, entry.operation, entry.while_operation), entry.slowdown)
    return entry.model_copy(update={"slowdown": found})


def _samples(
    records: Sequence[LiveRecord],
    surfaces: Tables,
    factors: Slowdowns,
    *,
    only: HostOperation | None = None,
) -> Samples:
    found: Samples = {}
    for record in records:
        for seen in record.observations:
            if only not in {None, seen.operation}:
                continue
            found.setdefault(seen.operation, []).append(
                Sample(
                    run=(record.settings, record.batch),
                    rows=seen.rows,
                    calls=len(seen.steps),
                    tokens=sum(step.tokens for step in seen.steps),
                    lead_s=seen.lead_s,
                    work_s=seen.work_s,
                    report_s=seen.report_s,
                    idle_s=seen.idle_s,
                    expected_s=_expected(seen, surfaces, factors),
                    alone=record.alone,
                    beside_s=seen.beside_s,
                )
            )
    return found


class Tables:
    """Seconds of forwards by context, looked up once per shape: a run has tens of thousands of steps.

    Args:
        grids: Measured surfaces by operation.
    """

    def __init__(self, grids: Mapping[str, OperationCost]) -> None:
        self._surfaces = {name: LatencySurface(cost) for name, cost in grids.items()}
        self._tables: dict[tuple[str, int, int], FloatArray] = {}

    def seconds(self, device: str, step: Step) -> float:
        """What the grids say of one forward."""
        name, context = f"{device}.{step.kind}", round(step.context)
        key = (name, step.rows, step.width)
        if key not in self._tables or len(self._tables[key]) <= context:
            shape = {"branches" if step.kind == "tree" else "new_tokens": step.width}
            upto = max(1023, 2 * context)
            self._tables[key] = self._surfaces[name].along("context", upto, batch=step.rows, **shape)
        return float(self._tables[key][context])


def _expected(seen: Observation, surfaces: Tables, factors: Slowdowns) -> float:
    """What the grids say of an operation's forwards, s.

    A draft's forwards are charged with the neighbour for the share of the time in which it worked; a
    target's are not, since its factors are what is to be found.
    """
    total = 0.0
    for step in seen.steps:
        seconds = surfaces.seconds(seen.device, step)
        if seen.device == "draft" and seen.work_s > 0.0:
            rate = 1.0
            for other, shared_s in seen.beside_s.items():
                slowdown = factors.get((seen.device, step.kind, other), 1.0)
                rate -= min(1.0, shared_s / seen.work_s) * (1.0 - 1.0 / slowdown)
            seconds /= rate
        total += seconds
    return total


def in_situ(
    overlap: Sequence[Overlap], samples: Samples, fitted: Mapping[HostOperation, OperationHost]
) -> list[Overlap]:
    """The entries, with the target's slow-downs as they are in real rounds where those tell.

    A target operation is W seconds of work at full speed by its fit.  It took T seconds, O_f of them beside
    a draft that fed chains and O_t beside one that grew trees: W = T - O_f - O_t + O_f / f + O_t / t.
    Rounds without trees (PEARL) give f; the others (SSD, whose glue step is a chain) then give t.
    """
    seen = [
        (sample, fitted[name])
        for name in ("decode", "verify")
        if name in fitted
        for sample in trimmed([s for s in samples.get(name, []) if not s.alone])
    ]
    chains = [(s, h) for s, h in seen if "tree" not in s.beside_s]
    trees = [(s, h) for s, h in seen if "tree" in s.beside_s]
    probed = {o.while_operation: o.slowdown for o in overlap if (o.device, o.operation) == _FORWARD}
    beside_chain = _factor(chains, "forward", {}) or probed.get("forward", 1.0)
    found = {"forward": beside_chain, "tree": _factor(trees, "tree", {"forward": beside_chain})}

    def replaced(entry: Overlap) -> Overlap:
        slowdown = found.get(entry.while_operation or "")
        if (entry.device, entry.operation) != _FORWARD or slowdown is None:
            return entry
        return entry.model_copy(update={"slowdown": slowdown})

    return [replaced(entry) for entry in overlap]


_FORWARD = ("target", "forward")


def _factor(
    seen: Sequence[tuple[Sample, OperationHost]], kind: Forward, known: Mapping[Forward, float]
) -> float | None:
    """Slow-down beside one kind of work, the others' being known; None where it cannot be told."""
    work = took = beside = 0.0
    for sample, host in seen:
        work += waited(host, sample) + predicted(host, sample)
        took += sample.lead_s + sample.work_s + sample.report_s
        for other, shared_s in sample.beside_s.items():
            if other == kind:
                beside += shared_s
            else:
                took -= shared_s * (1.0 - 1.0 / known.get(other, 1.0))
    # Work done beside the neighbour, at full speed.
    done = work - took + beside
    if beside <= 0.0 or done <= 0.0:
        return None
    return float(np.clip(beside / done, LEAST_SLOWDOWN, MOST_SLOWDOWN))
