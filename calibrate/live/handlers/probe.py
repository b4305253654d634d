"""What workers do for `Prefill`, and for the probes that measure single steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrate.live.drafting import Pen
from calibrate.live.handlers.prespeculate import branch_tokens, glue, tree_step
from calibrate.live.messages import PrefillRows, PrespeculateRows, Probe, ProbeResult, Row

if TYPE_CHECKING:
    from calibrate.live.executor import Executor

PROBED = "probed"
"""Where the executor keeps which slots hold a made-up text, and of how many tokens."""


def prefill(executor: Executor, message: PrefillRows) -> None:
    """Feed all of each prompt but its last token, which the first verification feeds."""
    executor.begin(message.slots)
    longer = [i for i, prompt in enumerate(message.prompts) if len(prompt) > 1]
    if longer:
        slots = [message.slots[i] for i in longer]
        _fill(executor, "prefill", slots, [message.prompts[i][:-1] for i in longer])


def probe(executor: Executor, message: Probe) -> ProbeResult:
    """Time one step over made-up texts, in slots that no request was ever given."""
    slots = range(executor.used_slots, executor.used_slots + message.batch)
    if executor.kept.get(PROBED) != (slots, message.context):
        executor.runner.install_synthetic(slots, message.context)
        executor.kept[PROBED] = slots, message.context
    for _ in range(message.warmup + message.repeats):
        if executor.stopped():
            break
        _probe_once(executor, message, slots)
        for slot in slots:
            executor.runner.rollback(slot, message.context)
    return ProbeResult(tuple(step.end - step.start for step in executor.steps[message.warmup :]))


def _probe_once(executor: Executor, message: Probe, slots: Sequence[int]) -> None:
    """One stamped step, by the very code of the real operations."""
    chain = (0,) * message.new_tokens
    runner = executor.runner
    if message.kind == "tree":
        # One step whose cache is as long as the trunk and the branches' tokens so far together.
        forks = [[message.context - 1] * message.branches] * message.batch
        tree = runner.open_tree(slots, forks, 1)
        tokens, real = branch_tokens([[0] * message.branches] * message.batch, runner.device)
        keys = [0] * (message.batch * message.branches)
        tree_step(executor, tree, tokens, real, Pen(keys, keys, 1), name="probe")
        runner.close_tree(tree)
    elif message.kind == "prefill":
        _fill(executor, "probe", slots, [chain] * message.batch)
    elif message.top:
        fanouts = ((message.top,) * message.new_tokens,) * message.batch
        rows = tuple(Row(slot, 0, 0, message.context + 1, (0,), tokens=chain[1:]) for slot in slots)
        glue(executor, "probe", PrespeculateRows(rows, 1, fanouts))
    else:
        start, fed = time.perf_counter(), runner.fed
        runner.forward(slots, [chain] * message.batch).argmax(dim=-1).tolist()
        executor.stamp("probe", start, fed, [chain] * message.batch)


def _fill(executor: Executor, name: str, slots: Sequence[int], chains: Sequence[Sequence[int]]) -> None:
    """One stamped step that fills the cache and selects nothing."""
    start, fed = time.perf_counter(), executor.runner.fed
    logits = executor.runner.forward(slots, chains, last_only=True)
    logits[0, 0, 0].item()  # as in `tree_step`: the stamp is of done work
    executor.stamp(name, start, fed, chains)
