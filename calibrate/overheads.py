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

from calibrate.fitting import Sample, fit_operation, fit_sampled, predicted, trimmed, waited
from calibrate.observations import LiveRecord, Observation, Step
from hardware_profiles.costs import GridCost, OperationCost, Quantiles
from hardware_profiles.latency import FloatArray, LatencySurface
from hardware_profiles.profile import Forward, Host, HostOperation, OperationHost, Overlap

LEAST_SLOWDOWN, MOST_SLOWDOWN = 0.9, 2.0
"""In-situ factors are cut to these."""

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
    busy draft then gives the target's slow-downs, in place of the probes'.

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
    greedy = _samples([r for r in records if r.settings.temperature == 0.0], surfaces, factors)
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
    return host, in_situ(overlap, greedy, fitted)


def _samples(records: Sequence[LiveRecord], surfaces: Tables, factors: Slowdowns) -> Samples:
    found: Samples = {}
    for record in records:
        for seen in record.observations:
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
