"""The three loops of the compiled replay that no array operation does: walk, line up, run the clock.

Each is one function over flat sequences.  Little work is done by Python as it stands, on lists; more of it by
numba, on arrays, where it is installed (`pip install spectwin[fast]`).  Importing numba takes longer than
a single answer does, so that it is not imported before that much has been asked for.  Both do the same
floating-point operations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import numpy as np

Mode: TypeAlias = Literal["auto", "python", "numba"]

WORTH = 400_000
"""Turns of all loops so far from which on numba is worth its import, about half a second of Python."""

CLOCK_TURN = 6
"""Turns of the other loops that one of a clock takes."""

NOTHING, CHAIN, GUESS = 0, 1, 2
"""What a row verifies: nothing, the draft's own tokens, or a backup's."""
FIELDS = (
    "rows", "contexts", "first_prompt", "longest", "drafted", "widest", "branches", "most_unseen", "unseen",
    "fresh", "fresh_longest", "fresh_contexts", "fresh_first", "missed", "missed_contexts", "missed_first",
    "redraft_beside",
)  # fmt: skip
"""What prices need of a round of the batch: sums over its rows, but `longest`, `widest`, `most_unseen`; the
first row's prompt; the rows just admitted; those that are redrafted after it, beside the next round or
before it."""
KINDS = ("prefill", "verify", "decode", "settle", "draft", "prespeculate", "continue")
"""Of operations: what host time goes by."""


class Loop:
    """A function over flat sequences that numba may compile.

    Args:
        function: Takes arrays, or lists in their place, and numbers; writes into those named by `outputs`.
        outputs: How many of its last arguments it writes into.
    """

    mode: Mode = "auto"
    """For all loops: who runs them; `auto` decides by the work done so far."""
    turns = 0
    """Work of all loops so far."""

    def __init__(self, function: Callable[..., Any], outputs: int) -> None:
        self.function = function
        self.outputs = outputs
        self._compiled: Callable[..., Any] | None = None

    @property
    def compiles(self) -> bool:
        """Whether it is compiled, or will be when it is called next."""
        if Loop.mode != "auto":
            return Loop.mode == "numba"
        return self._compiled is not None or (Loop.turns >= WORTH and find_spec("numba") is not None)

    def __call__(self, turns: int, *arguments: Any) -> Any:
        """Run it; `turns` is about how often it goes round."""
        Loop.turns += turns
        if self.compiles and self._compiled is None:
            try:
                import numba
            except ImportError:  # it is there, but not for this Python or numpy
                Loop.mode = "python"
            else:
                self._compiled = numba.njit(cache=True, nogil=True)(self.function)
        if self.compiles and self._compiled is not None:
            return self._compiled(*arguments)
        plain = [each.tolist() if isinstance(each, np.ndarray) else each for each in arguments]
        result = self.function(*plain)
        for array, filled in zip(arguments[-self.outputs :], plain[-self.outputs :], strict=True):
            array[:] = filled
        return result


def _walk(
    starts: Any,
    own: Any,
    limits: Any,
    first: int,
    missed: int,
    cached: bool,
    chain: int,
    run: Any,
    chain_hits: Any,
    none_hits: Any,
    guess_lengths: Any,
    guess_runs: Any,
    guess_hits: Any,
    ends: Any,
    positions: Any,
    states: Any,
    lengths: Any,
    accepted: Any,
    hits: Any,
) -> int:
    """Lay out every request's rounds; returns how many there are.

    Args:
        starts: [q] index of each request's first position in `run`, `chain_hits` and `none_hits`.
        own: [q] the same in the arrays of guesses.
        limits: [q] tokens of each request.
        first: What its first round is to verify.
        missed: What a round after a miss is to verify.
        cached: Whether outcomes are looked up; otherwise all rounds are like the first.
        chain: Tokens of a chain.
        run: [n] accepted run of the draft's tokens.
        chain_hits: [n] whether a round that verifies a chain there hits; the others alike.
        none_hits: The same where nothing is verified.
        guess_lengths: [m] tokens of a guess there; the next ones are of it, too.
        ends: Output, [q] where each request's rounds end in those below.
        positions: Output: of each round, tokens emitted before it; the others alike.
    """
    at = 0
    for q in range(len(starts)):
        start, base, limit = starts[q], own[q], limits[q]
        position, wanted = 0, first
        while position < limit:
            room, here = limit - position, start + position
            # A guess of no token is none, and so is a chain of which the outcome was all.
            state, length, count, hit = 0, 0, 0, none_hits[here]
            if wanted == 1 and chain > 0:
                state, length, count, hit = 1, chain, min(chain, run[here]), chain_hits[here]
            elif wanted == 2 and guess_lengths[base + position] > 0:
                guess = base + position
                state, length, count, hit = 2, guess_lengths[guess], guess_runs[guess], guess_hits[guess]
            count = min(count, room)
            positions[at], states[at], lengths[at], accepted[at] = position, state, length, count
            position += min(count + 1, room)
            hits[at] = -1
            if cached:
                if position < limit:
                    hits[at] = hit
                wanted = 1 if hit == 1 else missed
            at += 1
        ends[q] = at
    return at


def _line_up(
    most: int,
    width: int,
    begins: Any,
    ends: Any,
    prompts: Any,
    positions: Any,
    states: Any,
    lengths: Any,
    accepted: Any,
    hits: Any,
    chain_branches: Any,
    guess_branches: Any,
    redrafts: bool,
    rows_wait: bool,
    listed: bool,
    requests: Any,
    rounds: Any,
    absent: Any,
    where: Any,
    totals: Any,
    admitted: Any,
    order: Any,
    owners: Any,
) -> int:
    """Put requests into a batch, first come first served, for at most `most` rounds of it.

    Returns how many rounds of the batch were laid out.  May be called again to go on.

    Args:
        begins: [q] index of each request's first round in the arrays of rounds, in the order served.
        ends: [q] where they end.
        prompts: [q] prompt tokens.
        positions: [m] of each round, as `_walk` writes it; the next ones alike.
        chain_branches: [K + 1] branches of a row that verifies so many of the draft's tokens.
        guess_branches: [K + 1] the same of a backup's tokens, or of nothing.
        redrafts: Whether a miss is redrafted.
        rows_wait: Whether missing rows sit the next round out, rather than all waiting for them.
        listed: Whether to write `order` and `owners`.
        requests: State, [width] request in each slot, -1 for none.
        rounds: State, [width] its next round.
        absent: State, [width] whether it sits the next round out.
        where: State: requests admitted, rounds of the batch, rounds of rows, slots in use.
        totals: Output, of each of the `FIELDS` `most` rounds of the batch.
        admitted: Output, [q] the batch's round at whose beginning each request got its slot.
        order: Output, [rounds of all rows] their indices in the order in which they are committed.
        owners: Output, the request of each.
    """
    coming, number, offset, active = where[0], where[1], where[2], where[3]
    made = 0
    while made < most and (coming < len(begins) or active > 0):
        fresh, fresh_longest, fresh_contexts, fresh_first = 0, 0, 0, 0
        if active < width and coming < len(begins):
            for slot in range(width):
                if requests[slot] < 0 and coming < len(begins):
                    requests[slot], rounds[slot], absent[slot] = coming, begins[coming], 0
                    admitted[coming] = number
                    prompt = prompts[coming]
                    if fresh == 0:
                        fresh_first = prompt
                    fresh += 1
                    fresh_longest = max(fresh_longest, prompt)
                    fresh_contexts += prompt
                    coming += 1
                    active += 1
        rows, contexts, first_prompt, longest, drafted = 0, 0, 0, 0, 0
        widest, branches, most_unseen, unseen = 0, 0, 0, 0
        missed, missed_contexts, missed_first, going_on = 0, 0, 0, 0
        for slot in range(width):
            request = requests[slot]
            if request < 0:
                continue
            if absent[slot] == 1:
                absent[slot] = 0
                going_on += 1
                continue
            prompt, i = prompts[request], rounds[slot]
            if listed:
                order[offset], owners[offset] = i, request
            offset += 1
            length = lengths[i]
            if rows == 0:
                first_prompt = prompt
            rows += 1
            contexts += prompt + positions[i]
            longest = max(longest, length)
            drafted += length
            own = chain_branches[length] if states[i] == 1 else guess_branches[length]
            widest = max(widest, own)
            branches += own
            # The last drafted token was never fed to the draft: if it was accepted, two are unseen.
            new = 2 if i > begins[request] and accepted[i - 1] == lengths[i - 1] else 1
            most_unseen = max(most_unseen, new)
            unseen += new
            rounds[slot] = i + 1
            if i + 1 == ends[request]:
                requests[slot] = -1
                active -= 1
            elif redrafts and hits[i] == 0:
                if missed == 0:
                    missed_first = prompt
                missed += 1
                missed_contexts += prompt + positions[i + 1]
                absent[slot] = 2
            else:
                going_on += 1
        waits = rows_wait and missed > 0 and going_on > 0
        if missed > 0:
            for slot in range(width):
                if absent[slot] == 2:
                    absent[slot] = 1 if waits else 0
        totals[made] = rows
        totals[most + made] = contexts
        totals[2 * most + made] = first_prompt
        totals[3 * most + made] = longest
        totals[4 * most + made] = drafted
        totals[5 * most + made] = widest
        totals[6 * most + made] = branches
        totals[7 * most + made] = most_unseen
        totals[8 * most + made] = unseen
        totals[9 * most + made] = fresh
        totals[10 * most + made] = fresh_longest
        totals[11 * most + made] = fresh_contexts
        totals[12 * most + made] = fresh_first
        totals[13 * most + made] = missed
        totals[14 * most + made] = missed_contexts
        totals[15 * most + made] = missed_first
        totals[16 * most + made] = 1 if waits else 0
        number += 1
        made += 1
    where[0], where[1], where[2], where[3] = coming, number, offset, active
    return made


def _run_clock(
    target_ops: Any,
    chained_ops: Any,
    draft_ops: Any,
    drafts: Any,
    committing: Any,
    ops: Any,
    kinds: Any,
    wake: Any,
    idle_cap: Any,
    target_slowdown: Any,
    draft_slowdown: Any,
    contended: bool,
    state: Any,
    ended: Any,
    busy: Any,
    began_s: Any,
    done_s: Any,
) -> int:
    """Time phases one after the other: operations submitted together, and waited for together.

    Args:
        target_ops: [p] the target's operation in each phase, -1 for none.
        chained_ops: [p] one that the first draft device serves before its own, and that nobody waits for
            yet; -1 for none.
        draft_ops: [p] that of the first draft device, -1 for none; other devices' follow it.
        drafts: [p] draft devices at work; negative: all have the operation of the first.
        committing: [p] whether the phase ends a round, which waits for what was chained before.
        ops: Five of each operation: seconds from submission to start on an idle device; work without waking
            up; least work; factor on both; seconds from end to report.
        kinds: Its kind (`KINDS`), by which the next ones are indexed.
        wake: [kinds] seconds of work per second idle before.
        idle_cap: [kinds] longest idling that counts.
        target_slowdown: [kinds * kinds] of a target's operation beside a draft's.
        draft_slowdown: [kinds * kinds] of a draft's operation beside a target's.
        contended: Whether any slowdown is not 1.
        state: State: now, seconds of overlap, when what was chained is reported.
        ended: State, [devices] when each was last at work; the target is device 0.
        busy: State, [devices] seconds of work, prefills left out.
        began_s: Output, [p] when each phase began.
        done_s: Output, [p] when its last report came in.
    """
    now, overlap, chained_s = state[0], state[1], state[2]
    devices = len(ended)
    stage, op = [0] * devices, [0] * devices
    at, left, factor = [0.0] * devices, [0.0] * devices, [0.0] * devices
    for p in range(len(target_ops)):
        began_s[p] = now
        count = drafts[p]
        shared = count < 0
        count = abs(count)
        target, chain, draft = target_ops[p], chained_ops[p], draft_ops[p]
        waiting = 0
        for d in range(count + 1):
            stage[d] = 2
            first = target if d == 0 else draft if shared else draft + d - 1
            if d == 1 and chain >= 0:
                first = chain
            if first < 0:
                continue
            stage[d], op[d] = 0, first
            waiting += 1
            o = 5 * first
            at[d] = now + ops[o]
            idle = min(at[d] - ended[d], idle_cap[kinds[first]])
            left[d] = ops[o + 3] * max(ops[o + 1] + wake[kinds[first]] * idle, ops[o + 2])
        latest = now
        if waiting == 1 and chain < 0:
            d = 0 if stage[0] == 0 else 1
            end = at[d] + left[d]
            ended[d] = end
            if kinds[op[d]] > 0:
                busy[d] += left[d]
            latest = end + ops[5 * op[d] + 4]
        elif waiting == 2 and count == 1 and chain < 0 and not contended:
            for d in range(2):
                end = at[d] + left[d]
                ended[d] = end
                latest = max(latest, end + ops[5 * op[d] + 4])
                if kinds[op[d]] > 0:
                    busy[d] += left[d]
            if kinds[op[0]] > 0 and kinds[op[1]] > 0:
                overlap += max(0.0, min(ended[0], ended[1]) - max(at[0], at[1]))
        else:
            clock = now
            while waiting > 0:
                # Rates are constant until somebody begins or ends.
                soonest, event = 1e300, 0
                drafting = False
                for d in range(count + 1):
                    if stage[d] == 2:
                        continue
                    due = at[d]
                    if stage[d] == 1:
                        slower = 1.0
                        if d > 0:
                            drafting = drafting or kinds[op[d]] > 0
                            if stage[0] == 1:
                                slower = draft_slowdown[kinds[op[d]] * 7 + kinds[op[0]]]
                        else:
                            for e in range(1, count + 1):
                                if stage[e] == 1:
                                    slower *= target_slowdown[kinds[op[0]] * 7 + kinds[op[e]]]
                        factor[d] = slower
                        due = clock + left[d] * slower
                    if due < soonest:
                        soonest, event = due, d
                elapsed = soonest - clock
                for d in range(count + 1):
                    if stage[d] != 1:
                        continue
                    if kinds[op[d]] > 0:
                        busy[d] += elapsed
                        if d == 0 and drafting:
                            overlap += elapsed
                    left[d] = max(0.0, left[d] - elapsed / factor[d])
                clock = soonest
                if stage[event] == 0:
                    stage[event] = 1
                    continue
                report = clock + ops[5 * op[event] + 4]
                if event == 1 and chain >= 0:
                    chained_s, chain = report, -1
                    first = draft
                    op[1] = first
                    o = 5 * first
                    left[1] = ops[o + 3] * max(ops[o + 1], ops[o + 2])
                    continue
                latest = max(latest, report)
                ended[event] = clock
                stage[event] = 2
                waiting -= 1
        done_s[p] = latest
        now = latest
        if committing[p] == 1 and chained_s > now:
            now = chained_s
    state[0], state[1], state[2] = now, overlap, chained_s
    return 0


SUBMIT, WAIT, HEAR, MOMENT = range(4)
"""What a script does next: submit an operation, wait for its report or its early result, note the time."""


def _run_script(
    codes: Any,
    arguments: Any,
    devices: Any,
    ops: Any,
    marks: Any,
    early: Any,
    classes: Any,
    hosts: Any,
    wake: Any,
    idle_cap: Any,
    count: int,
    target_slowdown: Any,
    draft_slowdown: Any,
    state: Any,
    busy: Any,
    moments: Any,
) -> int:
    """Run a script on two devices that serve operations first come, first served.

    Args:
        codes: [m] what is done; the next ones are what with.
        devices: [n] device of each operation, 0 or 1.
        ops: Five of each operation, as `_run_clock` takes them.
        marks: Two of each: share of its forwards after its early result, negative for all of its work, and
            seconds until that is heard.
        early: [n] whether it has one.
        classes: [n] class of contention; 0 are prefills, which are not counted.
        hosts: [n] number of its host time, by which the next two are indexed.
        count: Classes.
        state: Output: the end, and seconds of overlap.
        busy: Output, [2] seconds of work, prefills left out.
        moments: Output: when each was.
    """
    n, far = len(devices), 1e300
    reported, heard, following = [far] * n, [far] * n, [-1] * n
    stage, op, last = [0, 0], [-1, -1], [-1, -1]
    at, left, tail, factor, ended = [0.0, 0.0], [0.0, 0.0], [-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]
    now, clock, overlap = 0.0, 0.0, 0.0
    for m in range(len(codes)):
        code, number = codes[m], arguments[m]
        if code == 3:
            moments[number] = now
            continue
        if code == 0:
            d = devices[number]
            if stage[d] == 0:
                stage[d], op[d], at[d] = 1, number, now + ops[5 * number]
            else:
                following[last[d]] = number
            last[d] = number
            continue
        while True:
            soonest, event, mark = far, -1, False
            for d in range(2):
                if stage[d] == 1 and at[d] < soonest:
                    soonest, event, mark = at[d], d, False
                elif stage[d] == 2:
                    factor[d] = 1.0
                    if stage[1 - d] == 2:
                        pair = classes[op[d]] * count + classes[op[1 - d]]
                        factor[d] = target_slowdown[pair] if d == 0 else draft_slowdown[pair]
                    ahead = left[d]
                    if tail[d] >= 0.0:
                        ahead = max(0.0, left[d] - tail[d])
                    due = clock + ahead * factor[d]
                    if due < soonest:
                        soonest, event, mark = due, d, tail[d] >= 0.0
            known = reported[number] if code == 1 else heard[number]
            limit = max(now, known)
            reached = limit <= soonest
            upto = limit if reached else soonest
            elapsed = upto - clock
            if stage[0] == 2 and stage[1] == 2 and classes[op[0]] > 0 and classes[op[1]] > 0:
                overlap += elapsed
            for d in range(2):
                if stage[d] == 2:
                    if classes[op[d]] > 0:
                        busy[d] += elapsed
                    left[d] = max(0.0, left[d] - elapsed / factor[d])
            clock = upto
            if reached:
                now = limit
                break
            o = op[event]
            if stage[event] == 1:
                stage[event] = 2
                idle = min(clock - ended[event], idle_cap[hosts[o]])
                work = ops[5 * o + 1] + wake[hosts[o]] * idle
                left[event] = ops[5 * o + 3] * max(work, ops[5 * o + 2])
                tail[event] = -1.0
                if early[o]:
                    tail[event] = left[event]
                    if marks[2 * o] >= 0.0:
                        forwards = min(max(work, ops[5 * o + 2]), ops[5 * o + 2] / 0.2)
                        tail[event] = ops[5 * o + 3] * forwards * marks[2 * o]
            elif mark:
                heard[o] = clock + marks[2 * o + 1]
                tail[event] = -1.0
            else:
                ended[event] = clock
                reported[o] = clock + ops[5 * o + 4]
                stage[event], op[event] = 0, following[o]
                if following[o] >= 0:
                    stage[event], at[event] = 1, clock
    state[0], state[1] = now, overlap
    return 0


run_script = Loop(_run_script, 3)
walk = Loop(_walk, 6)
line_up = Loop(_line_up, 8)
run_clock = Loop(_run_clock, 5)
