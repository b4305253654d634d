"""Calibration's own operations: probes that time single steps, and echoes."""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.sampling import DraftSampler
from calibrate.live.handlers.chains import branch_steps, feed
from calibrate.live.wire import Echo, Probe, ProbeResult

PROBED = "probed"
"""Where the executor keeps which slots hold a made-up text, and of how many tokens."""


@handles(Echo)
def echo(executor: Executor, operation: Echo) -> tuple[int, ...]:
    """Send the payload back."""
    return operation.payload


@handles(Probe)
def probe(executor: Executor, operation: Probe) -> list[ProbeResult]:
    """Time one step over made-up texts, in slots that no request was ever given."""
    slots = range(executor.used_slots, executor.used_slots + operation.batch)
    if executor.kept.get(PROBED) != (slots, operation.context):
        executor.runner.install_synthetic(slots, operation.context)
        executor.kept[PROBED] = slots, operation.context
    for _ in range(operation.warmup + operation.repeats):
        if executor.stopped():
            break
        _probe_once(executor, operation, slots)
        for slot in slots:
            executor.runner.rollback(slot, operation.context)
    return [ProbeResult(tuple(step.end_s - step.start_s for step in executor.steps[operation.warmup :]))]


def _probe_once(executor: Executor, operation: Probe, slots: Sequence[int]) -> None:
    """One stamped step, by the very code of the real operations."""
    chain, batch = (0,) * operation.new_tokens, operation.batch
    runner = executor.runner
    if operation.step == "tree":
        # One step whose cache is as long as the trunk and the branches' tokens so far together.
        forks = [[operation.context - 1] * operation.branches] * batch
        keys, first = [0] * (batch * operation.branches), [[0] * operation.branches] * batch
        sampler = DraftSampler(keys, keys, 1)
        list(branch_steps(executor, slots, forks, first, sampler=sampler, depths=[1] * batch, name="probe"))
    elif operation.step == "prefill":
        feed(executor, "probe", slots, [chain] * batch)
    else:
        with executor.step("probe", [chain] * batch):
            runner.forward(slots, [chain] * batch).argmax(dim=-1).tolist()
