"""The serving loop of `serving` as one function over flat arrays, which numba compiles.

It does what `serving.loop`, `serving.scheduler`, `serving.blocks` and `simulator.traffic` do, with the same
floating-point operations in the same order; `simulator.flat_traffic` lays out its arrays.  Rows that run
or were preempted have one of `max_num_seqs` slots: nobody else is admitted before these.  It stops before a
step for which noise or room for gaps has run out, and goes on where it is called again.

As a function of Python it is slow, and what the compiled one is compared with.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any

# Of the whole numbers of a run: its state, then what it counts.
(
    RECEIVED, FRESH, RUNNING, PREEMPTED, FREE_SLOTS, UNDER_WAY, USED, MOST_USED, MADE, HEAD, TAIL,
    FREE_BLOCKS, GAPS, DONE, STEPS, READ, VERIFIED, EMITTED, REJECTED, HIT, ASKED, LOST, PREEMPTIONS,
    ACCEPTED, ROUNDS, DECODES, DECODE_TOKENS, CONTEXTS, CHUNKS, CHUNK_TOKENS, FINISHING, WHOLES,
) = range(32)  # fmt: skip
# Of its seconds.
NOW, FREED_S, BUSY_S, RUNNING_S, WAITING_S, IDLE_S, SECONDS = range(7)
# Of its options: -1 for `num_blocks` where there are always enough.
(
    USERS, MAX_SEQS, BUDGET, NUM_BLOCKS, SIZE, CHUNKED, NAMES_ALL, EXACT, LOOKAHEAD, HOST_NOISE,
    CONSTANT, OPTIONS,
) = range(12)  # fmt: skip
# Of a slot.
PLACE, KNOWN, COMPUTED, END, DRAFTED, HELD, ROOM, NAMED, NAMES_AT, SAID, SLOT = range(11)
NEVER = 1 << 60
TARGET, DRAFT = 0, 1
DECODE, VERIFY, DRAFTING = 0, 1, 2
SUBMIT, SUBMIT_ROW, REPORT, REPORT_TOKEN, EXTRA, ROW, STEP, TOKEN, SCALE, WAKE, IDLE_CAP, SPREAD, HOST = (
    range(13)
)
# Of a role's forwards.
DRIFT, LEAST, CURVE, SHORTEST, FORWARD = range(5)
FINISHED, NOISE_IS_OUT, GAPS_ARE_FULL = range(3)


def _seconds(
    roles: Any, lines: Any, cuts: Any, most: Any, role: int, rows: int, width: int, context: int
) -> float:
    """`simulator.traffic.Forwards.seconds`."""
    piece = 0
    while piece < len(cuts[role]) and cuts[role][piece] <= context:
        piece += 1
    most[role, 0], most[role, 1] = max(most[role, 0], rows), max(most[role, 1], width)
    most[role, 2] = max(most[role, 2], context)
    line = lines[role, rows, width, piece]
    seconds: float = roles[role, DRIFT] * max(line[0] + line[1] * context, roles[role, LEAST])
    return seconds


def _over(
    roles: Any, lines: Any, cuts: Any, most: Any, role: int, rows: int, tokens: int, context: int
) -> float:
    """`simulator.traffic.Forwards.over`."""
    width = tokens // rows
    rest = tokens - width * rows
    seconds = _seconds(roles, lines, cuts, most, role, rows, width, context)
    if rest:
        seconds += (
            rest / rows * (_seconds(roles, lines, cuts, most, role, rows, width + 1, context) - seconds)
        )
    return seconds


def _mixed(
    whole: Any,
    roles: Any,
    lines: Any,
    cuts: Any,
    prompts: Any,
    most: Any,
    chunks: Any,
    role: int,
    tokens: int,
) -> float:
    """`simulator.traffic.Forwards.mixed`, but for its noise."""
    rows = whole[DECODES]
    all_s = least_s = 0.0
    if rows:
        all_s = _over(roles, lines, cuts, most, role, rows, tokens, whole[CONTEXTS] // rows)
        if not whole[CHUNKS]:
            return all_s
        least_s = _over(roles, lines, cuts, most, role, rows, tokens, int(roles[role, SHORTEST]))
    own, before, squares = tokens, 0, 0
    for i in range(whole[CHUNKS]):
        n, history = chunks[i, 1], chunks[i, 2]
        own += n
        before += n * history
        squares += n * n
    most[role, 3] = max(most[role, 3], own)
    curve = roles[role, CURVE]
    matrix = prompts[role, own] - 0.5 * curve * (own * own - squares)
    mixed: float = max(matrix, least_s) + curve * before + all_s - least_s
    return mixed


def _with_host(
    options: Any, hosts: Any, noise: Any, drawn: Any, kind: int, expected_s: float, rows: int, calls: int,
    tokens: int, idle_s: float,
) -> float:  # fmt: skip
    """`simulator.traffic.ProfileTimes._with_host`."""
    host, rows = hosts[kind], max(1, rows)
    beyond = host[EXTRA] + host[ROW] * (rows - 1) + host[WAKE] * min(idle_s, host[IDLE_CAP])
    beyond = beyond + host[STEP] * calls + host[TOKEN] * tokens
    stretch = host[SCALE]
    if beyond < 0.0 < expected_s:
        stretch = host[SCALE] * max(0.2, 1.0 + beyond / (host[SCALE] * expected_s))
    seconds = max(0.0, beyond) + stretch * expected_s
    if options[HOST_NOISE] and host[SPREAD]:
        seconds *= noise[2 + kind, drawn[2 + kind]]
        drawn[2 + kind] += 1
    lead = host[SUBMIT] + host[SUBMIT_ROW] * (rows - 1)
    taken: float = lead + seconds + (host[REPORT] + host[REPORT_TOKEN] * tokens)
    return taken


def _pop(whole: Any, links: Any) -> int:
    """Take the block from the free list that was freed longest ago."""
    block: int = whole[HEAD]
    whole[HEAD] = links[block, 1]
    if whole[HEAD] >= 0:
        links[whole[HEAD], 0] = -1
    else:
        whole[TAIL] = -1
    links[block, 2] = 0
    whole[FREE_BLOCKS] -= 1
    return block


def _unlink(whole: Any, links: Any, block: int) -> None:
    """Take a certain block from the free list, if it is there."""
    if not links[block, 2]:
        return
    before, after = links[block, 0], links[block, 1]
    if before >= 0:
        links[before, 1] = after
    else:
        whole[HEAD] = after
    if after >= 0:
        links[after, 0] = before
    else:
        whole[TAIL] = before
    links[block, 2] = 0
    whole[FREE_BLOCKS] -= 1


def _append(whole: Any, links: Any, block: int) -> None:
    """Put a block at the end of the free list."""
    links[block, 0], links[block, 1], links[block, 2] = whole[TAIL], -1, 1
    if whole[TAIL] >= 0:
        links[whole[TAIL], 1] = block
    else:
        whole[HEAD] = block
    whole[TAIL] = block
    whole[FREE_BLOCKS] += 1


def _take(options: Any, whole: Any, rows: Any, held: Any, own: Any, found: Any, users: Any, names: Any,
          links: Any, slot: int, count: int) -> None:  # fmt: skip
    """`BlockPool.take` for a row."""
    whole[USED] += count
    whole[MOST_USED] = max(whole[MOST_USED], whole[USED])
    at = rows[slot, HELD]
    rows[slot, HELD] += count
    rows[slot, ROOM] = rows[slot, HELD] * options[SIZE]
    if not options[EXACT]:
        return
    fresh = options[NUM_BLOCKS] < 0 and whole[FREE_BLOCKS] < count
    for i in range(count):
        if fresh:
            block = whole[MADE]
            whole[MADE] += 1
        else:
            block = _pop(whole, links)
        users[block] = 1
        name = names[block]
        if name > 0:
            found[name - 1] = -1
        elif name < 0:
            own[(-name - 1) // own.shape[1], (-name - 1) % own.shape[1]] = -1
        names[block] = 0
        held[slot, at + i] = block


def _give_back(
    options: Any, whole: Any, rows: Any, held: Any, users: Any, names: Any, links: Any, slot: int
) -> None:
    """`BlockPool.give_back` of all that a row has."""
    count = rows[slot, HELD]
    rows[slot, HELD] = rows[slot, ROOM] = 0
    if not options[EXACT]:
        whole[USED] -= count
        return
    for i in range(count - 1, -1, -1):
        block = held[slot, i]
        users[block] -= 1
        if users[block] == 0:
            whole[USED] -= 1
            if options[NUM_BLOCKS] >= 0 or names[block] == 0:
                _append(whole, links, block)


def _name(options: Any, rows: Any, held: Any, own: Any, found: Any, names: Any, begins: Any, shared: Any,
          slot: int, computed: int) -> None:  # fmt: skip
    """`Scheduler._name`."""
    if not options[EXACT]:
        rows[slot, NAMES_AT] = NEVER
        return
    size, place = options[SIZE], rows[slot, PLACE]
    count = begins[place + 1] - begins[place]
    most = NEVER if options[NAMES_ALL] else count
    full = computed // size
    for i in range(rows[slot, NAMED], min(full, most)):
        block = held[slot, i]
        if i < count:
            name = shared[begins[place] + i]
            if found[name] < 0:
                found[name] = block
                names[block] = name + 1
        elif own[slot, i] < 0:
            own[slot, i] = block
            names[block] = -(slot * own.shape[1] + i) - 1
    rows[slot, NAMED] = max(rows[slot, NAMED], full)
    rows[slot, NAMES_AT] = (full + 1) * size if full < most else NEVER


def _chunk(options: Any, whole: Any, rows: Any, held: Any, own: Any, found: Any, names: Any, begins: Any,
           shared: Any, chunks: Any, slot: int, tokens: int) -> None:  # fmt: skip
    """`Scheduler._chunk`."""
    at, computed = whole[CHUNKS], rows[slot, COMPUTED]
    chunks[at, 0], chunks[at, 1], chunks[at, 2] = slot, tokens, computed
    whole[CHUNKS] += 1
    whole[CHUNK_TOKENS] += tokens
    if computed + tokens == rows[slot, KNOWN]:
        whole[FINISHING] += 1
    _name(options, rows, held, own, found, names, begins, shared, slot, computed + tokens)


def run_steps(
    options: Any,
    prompt: Any,
    output: Any,
    arrival: Any,
    begins: Any,
    shared: Any,
    runs: Any,
    starts: Any,
    lengths: Any,
    table_rows: Any,
    table_contexts: Any,
    table: Any,
    roles: Any,
    lines: Any,
    cuts: Any,
    prompts: Any,
    hosts: Any,
    noise: Any,
    whole: Any,
    seconds: Any,
    came: Any,
    first: Any,
    last: Any,
    rows: Any,
    times: Any,
    running: Any,
    preempted: Any,
    free_slots: Any,
    held: Any,
    own: Any,
    found: Any,
    users: Any,
    names: Any,
    links: Any,
    drawn: Any,
    most: Any,
    decodes: Any,
    widths: Any,
    chunks: Any,
    gaps: Any,
) -> int:
    """Serve on, until all is served or something has run out; returns which.

    Args:
        options: Whole numbers by the names above; the other arrays alike.
        prompt: [n] tokens of the requests; the next ones alike.
        output: Tokens of the replies.
        arrival: Seconds, not falling.
        begins: [n + 1] where the names of a request's shared blocks begin.
        shared: Names of all of them.
        runs: [positions] accepted runs of the token model.
        starts: [q] its requests' first positions.
        lengths: [q] their positions.
        table_rows: Rows from which on an entry of `table` holds.
        table_contexts: Mean contexts from which on it does.
        table: [rows, contexts] lookaheads.
        roles: [2, FORWARD] of the target's and the draft's forwards.
        lines: [2, rows + 1, width + 1, pieces, 2] seconds at context 0 and per token of it.
        cuts: Two sequences of contexts between the pieces.
        prompts: [2, tokens + 1] seconds of a prompt.
        hosts: [3, HOST] of decode, verify and draft.
        noise: [5, m] factors on the target's and the draft's forwards and on the three operations.
        whole: [WHOLES] the state.
        seconds: [SECONDS] the state.
        came: Output, [n] seconds of arrivals; the next ones of the first and last token.
        first: See `came`.
        last: See `came`.
        rows: [slots, SLOT] the state; next ones alike.
        times: [slots, 2] seconds of the first and last token.
        running: Slots in the order in which they came.
        preempted: Slots, the next one last.
        free_slots: A stack.
        held: [slots, blocks] blocks in order.
        own: [slots, blocks] where a row's own texts are known; -1 for nowhere.
        found: [names] where shared texts are known.
        users: [blocks] how many rows use each.
        names: [blocks] 1 + a shared name, or -1 - a place in `own`; 0 for none.
        links: [blocks, 3] of the free list: before, after, whether in it.
        drawn: [5] factors of `noise` used.
        most: [2, 4] largest rows, width, context and prompt asked of forwards.
        decodes: [slots] of a step; next ones alike.
        widths: Tokens of each.
        chunks: [slots, 3] slot, tokens, tokens before them.
        gaps: [m, 2] seconds between rounds, and how many had such a gap.
    """
    size, count_of = options[SIZE], len(starts)
    while True:
        for i in range(5):
            if drawn[i] >= noise.shape[1]:
                return NOISE_IS_OUT
        if whole[GAPS] + 2 * len(decodes) >= len(gaps):
            return GAPS_ARE_FULL
        while whole[RECEIVED] < len(arrival) and whole[UNDER_WAY] < options[USERS]:
            at = arrival[whole[RECEIVED]]
            if at > seconds[NOW]:
                break
            came[whole[RECEIVED]] = max(at, seconds[FREED_S])
            whole[RECEIVED] += 1
            whole[UNDER_WAY] += 1
        waiting = whole[RECEIVED] - whole[FRESH] + whole[PREEMPTED]
        if not whole[RUNNING] and not waiting:
            if whole[RECEIVED] == len(arrival):
                return FINISHED
            seconds[NOW] = max(seconds[NOW], arrival[whole[RECEIVED]])
            continue

        # Rows that run, each with its last token and those drafted after it.
        budget, before, place = options[BUDGET], whole[PREEMPTIONS], 0
        whole[DECODES] = whole[DECODE_TOKENS] = whole[CONTEXTS] = 0
        whole[CHUNKS] = whole[CHUNK_TOKENS] = whole[FINISHING] = 0
        while place < whole[RUNNING] and budget > 0:
            slot = running[place]
            place += 1
            computed = rows[slot, COMPUTED]
            left = rows[slot, KNOWN] - computed
            decoding = left == 1 and rows[slot, SAID] == 1
            tokens = min(1 + rows[slot, DRAFTED] if decoding else left, budget)
            if computed + tokens > rows[slot, ROOM]:
                needed = -(-(computed + tokens) // size) - rows[slot, HELD]
                gone = False
                while options[NUM_BLOCKS] >= 0 and options[NUM_BLOCKS] - whole[USED] < needed and not gone:
                    whole[RUNNING] -= 1
                    newest = running[whole[RUNNING]]
                    _give_back(options, whole, rows, held, users, names, links, newest)
                    whole[PREEMPTIONS] += 1
                    whole[LOST] += rows[newest, COMPUTED]
                    rows[newest, COMPUTED] = rows[newest, DRAFTED] = rows[newest, NAMED] = 0
                    rows[newest, NAMES_AT] = 0
                    preempted[whole[PREEMPTED]] = newest
                    whole[PREEMPTED] += 1
                    gone = newest == slot
                if gone:
                    break
                _take(options, whole, rows, held, own, found, users, names, links, slot, needed)
            budget -= tokens
            if not decoding:
                _chunk(options, whole, rows, held, own, found, names, begins, shared, chunks, slot, tokens)
                continue
            decodes[whole[DECODES]], widths[whole[DECODES]] = slot, tokens
            whole[DECODES] += 1
            whole[DECODE_TOKENS] += tokens
            whole[CONTEXTS] += computed
            if computed + 1 >= rows[slot, NAMES_AT]:
                _name(options, rows, held, own, found, names, begins, shared, slot, computed + 1)

        # Then waiting ones, unless one was just sent back.
        while (
            whole[PREEMPTIONS] == before
            and whole[RECEIVED] - whole[FRESH] + whole[PREEMPTED] > 0
            and budget > 0
            and whole[RUNNING] < options[MAX_SEQS]
        ):
            if whole[PREEMPTED]:
                slot = preempted[whole[PREEMPTED] - 1]
            else:
                slot, which = free_slots[whole[FREE_SLOTS] - 1], whole[FRESH]
                rows[slot, PLACE], rows[slot, KNOWN] = which, prompt[which]
                rows[slot, END] = prompt[which] + output[which]
                rows[slot, COMPUTED] = rows[slot, DRAFTED] = rows[slot, HELD] = rows[slot, ROOM] = 0
                rows[slot, NAMED] = rows[slot, NAMES_AT] = rows[slot, SAID] = 0
                times[slot, 0] = times[slot, 1] = -1.0
            known, which = rows[slot, KNOWN], rows[slot, PLACE]
            hits = unused = 0
            if options[EXACT]:
                shares = begins[which + 1] - begins[which]
                full = (known - 1) // size
                if not options[NAMES_ALL]:
                    full = min(full, shares)
                while hits < full:
                    block = found[shared[begins[which] + hits]] if hits < shares else own[slot, hits]
                    if block < 0:
                        break
                    held[slot, hits] = block
                    unused += users[block] == 0
                    hits += 1
            left = known - hits * size
            if left > budget and not options[CHUNKED]:
                break
            free = NEVER if options[NUM_BLOCKS] < 0 else options[NUM_BLOCKS] - whole[USED]
            if -(-known // size) - hits + unused > free:
                break
            tokens = min(left, budget)
            if whole[PREEMPTED]:
                whole[PREEMPTED] -= 1
            else:
                whole[FREE_SLOTS] -= 1
                whole[FRESH] += 1
            for i in range(hits):
                block = held[slot, i]
                if users[block] == 0:
                    _unlink(whole, links, block)
                    whole[USED] += 1
                users[block] += 1
            rows[slot, HELD] = hits
            needed = -(-(hits * size + tokens) // size) - hits
            _take(options, whole, rows, held, own, found, users, names, links, slot, needed)
            rows[slot, COMPUTED] = hits * size
            rows[slot, NAMED] = hits
            whole[HIT] += hits * size
            whole[ASKED] += known
            running[whole[RUNNING]] = slot
            whole[RUNNING] += 1
            _chunk(options, whole, rows, held, own, found, names, begins, shared, chunks, slot, tokens)
            budget -= tokens
        if whole[DECODE_TOKENS] + whole[CHUNK_TOKENS] == 0:
            continue

        # What it accepts and takes.
        began, unseen, number = seconds[NOW], 1, whole[DECODES]
        if whole[DECODE_TOKENS] > number:
            for i in range(number):
                slot = decodes[i]
                which = rows[slot, PLACE] % count_of
                emitted = rows[slot, KNOWN] - prompt[rows[slot, PLACE]]
                run = runs[starts[which] + emitted % lengths[which]]
                if run >= widths[i] - 1:
                    run, unseen = widths[i] - 1, 2
                # From here on it is what was accepted.
                widths[i] = run
        else:
            for i in range(number):
                widths[i] = 0
        said = number + whole[FINISHING]
        contexts = whole[CONTEXTS]
        for i in range(whole[CHUNKS]):
            if chunks[i, 1] + chunks[i, 2] == rows[chunks[i, 0], KNOWN]:
                contexts += chunks[i, 1] + chunks[i, 2]
        row, column = 0, 0
        while row + 1 < len(table_rows) and table_rows[row + 1] <= said:
            row += 1
        while column + 1 < len(table_contexts) and table_contexts[column + 1] <= contexts / max(said, 1):
            column += 1
        drafted = table[row, column]
        if options[CONSTANT]:
            seconds[NOW] += roles[TARGET, LEAST]
        else:
            expected = _mixed(whole, roles, lines, cuts, prompts, most, chunks, TARGET, whole[DECODE_TOKENS])
            expected *= noise[TARGET, drawn[TARGET]]
            drawn[TARGET] += 1
            kind = VERIFY if whole[DECODE_TOKENS] > number else DECODE
            seconds[NOW] += _with_host(
                options, hosts, noise, drawn, kind, expected, number + whole[CHUNKS], 1,
                whole[DECODE_TOKENS] + whole[CHUNK_TOKENS], seconds[IDLE_S],
            )  # fmt: skip
        if options[LOOKAHEAD] and options[CONSTANT]:
            seconds[NOW] += max(1, drafted) * roles[DRAFT, LEAST]
        elif options[LOOKAHEAD]:
            fed = number * unseen
            expected = _mixed(whole, roles, lines, cuts, prompts, most, chunks, DRAFT, fed)
            expected *= noise[DRAFT, drawn[DRAFT]]
            drawn[DRAFT] += 1
            if said and drafted > 1:
                mean = contexts // said + (drafted + 1) // 2
                expected += (drafted - 1) * _seconds(roles, lines, cuts, most, DRAFT, said, 1, mean)
            calls = max(1, drafted)
            fed += whole[CHUNK_TOKENS] + said * (calls - 1)
            seconds[IDLE_S] = _with_host(
                options, hosts, noise, drawn, DRAFTING, expected, said, calls, fed, 0.0
            )
            seconds[NOW] += seconds[IDLE_S]
        now = seconds[NOW]
        queued = whole[RECEIVED] - whole[FRESH] + whole[PREEMPTED]
        whole[STEPS] += 1
        seconds[BUSY_S] += now - began
        seconds[RUNNING_S] += whole[RUNNING] * (now - began)
        seconds[WAITING_S] += queued * (now - began)
        while whole[RECEIVED] < len(arrival) and whole[UNDER_WAY] < options[USERS]:
            at = arrival[whole[RECEIVED]]
            if at > now:
                break
            came[whole[RECEIVED]] = max(at, seconds[FREED_S])
            whole[RECEIVED] += 1
            whole[UNDER_WAY] += 1

        # What it brought: chunks first, as their order in `gaps` and of freed blocks says.
        whole[READ] += whole[CHUNK_TOKENS]
        whole[VERIFIED] += whole[DECODE_TOKENS]
        whole[ROUNDS] += number
        began_gaps = whole[GAPS]
        for i in range(number + whole[CHUNKS]):
            chunk = i >= number
            slot = chunks[i - number, 0] if chunk else decodes[i]
            if chunk and (
                rows[slot, SAID] == 0 or chunks[i - number, 1] + chunks[i - number, 2] != rows[slot, KNOWN]
            ):
                continue
            gap, at_gap = now - times[slot, 1], began_gaps
            while at_gap < whole[GAPS] and gaps[at_gap, 0] != gap:
                at_gap += 1
            if at_gap == whole[GAPS]:
                gaps[at_gap, 0], gaps[at_gap, 1] = gap, 0.0
                whole[GAPS] += 1
            gaps[at_gap, 1] += 1.0
        brought, finished = 0, 0
        for i in range(whole[CHUNKS]):
            slot = chunks[i, 0]
            rows[slot, COMPUTED] += chunks[i, 1]
            chunks[i, 1] = 0
            if rows[slot, COMPUTED] == rows[slot, KNOWN]:
                if rows[slot, SAID] == 0:
                    rows[slot, SAID] = 1
                    times[slot, 0] = now
                rows[slot, KNOWN] += 1
                rows[slot, DRAFTED] = drafted
                times[slot, 1] = now
                whole[EMITTED] += 1
                chunks[i, 1] = rows[slot, KNOWN] == rows[slot, END]
                finished += chunks[i, 1]
        for i in range(number):
            slot, run = decodes[i], widths[i]
            whole[ACCEPTED] += run
            told = min(run + 1, rows[slot, END] - rows[slot, KNOWN]) if run else 1
            rows[slot, COMPUTED] += told
            rows[slot, KNOWN] += told
            rows[slot, DRAFTED] = drafted
            times[slot, 1] = now
            brought += told
            widths[i] = rows[slot, KNOWN] == rows[slot, END]
            finished += widths[i]
        whole[EMITTED] += brought
        whole[REJECTED] += whole[DECODE_TOKENS] - brought
        if finished == 0:
            continue
        kept = 0
        for i in range(whole[RUNNING]):
            slot = running[i]
            if rows[slot, KNOWN] < rows[slot, END]:
                running[kept] = slot
                kept += 1
        whole[RUNNING] = kept
        for i in range(whole[CHUNKS] + number):
            slot = chunks[i, 0] if i < whole[CHUNKS] else decodes[i - whole[CHUNKS]]
            if not (chunks[i, 1] if i < whole[CHUNKS] else widths[i - whole[CHUNKS]]):
                continue
            which = rows[slot, PLACE]
            _give_back(options, whole, rows, held, users, names, links, slot)
            if options[NAMES_ALL] and options[EXACT]:  # nobody asks for its own texts again
                for block in range(-(-rows[slot, END] // size)):
                    if own[slot, block] >= 0:
                        names[own[slot, block]] = 0
                        own[slot, block] = -1
            free_slots[whole[FREE_SLOTS]] = slot
            whole[FREE_SLOTS] += 1
            first[which], last[which] = times[slot, 0], times[slot, 1]
            if whole[UNDER_WAY] == options[USERS]:
                seconds[FREED_S] = now
            whole[UNDER_WAY] -= 1
            whole[DONE] += 1


HELPERS = (_seconds, _over, _pop, _unlink, _append, _mixed, _with_host, _take, _give_back, _name, _chunk)


@lru_cache(maxsize=1)
def compiled_steps() -> Callable[..., int]:
    """`run_steps`, compiled.

    Raises:
        ImportError: There is no numba, or none for this Python.
    """
    import numba

    known = dict(globals())
    for function in (*HELPERS, run_steps):
        own = types.FunctionType(function.__code__, known, function.__name__)
        own.__module__, own.__qualname__ = function.__module__, function.__qualname__
        known[function.__name__] = numba.njit(cache=True, nogil=True)(own)
    found: Callable[..., int] = known["run_steps"]
    return found
