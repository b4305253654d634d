"""Continuous batching as vLLM's V1 scheduler does it: which rows a step serves, with how many tokens each.

A step has a budget of tokens.  Running rows come first, each with its last token and the K that were drafted
for it, then waiting ones, first come first served, with as much of their prompt as is left of the budget.
Every row holds KV blocks for the tokens it may write; where a running one needs a block and none is free,
the newest row is preempted: it loses its blocks, goes to the front of the queue and is computed again, what
it has said already included.  A waiting row is admitted if the blocks of its whole text are free
(`scheduler_reserve_full_isl`).  Rejected tokens free their slots, not their time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from serving.blocks import BlockPool
from serving.traffic import ServedRequest, Traffic, TrafficError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of an engine, with vLLM's names.

    Attributes:
        max_num_seqs: Most rows of a step.
        max_num_batched_tokens: Most tokens of a step.
        num_gpu_blocks: KV blocks; None: there are always enough.
        block_size: Tokens of a block.
        enable_chunked_prefill: Whether a prompt may be read in parts; else it waits for a step that has room
            for all of it.
        enable_prefix_caching: Whether a prompt's first blocks are found again.
        max_model_len: Most tokens of a request, prompt and reply; None: no limit.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    num_gpu_blocks: int | None = None
    block_size: int = 16
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    max_model_len: int | None = None

    def check(self, traffic: Traffic, lookahead: int = 0) -> None:
        """Refuse what would never be served.

        Raises:
            TrafficError: Naming the request or the option.
        """
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise TrafficError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is less than max_num_seqs "
                f"{self.max_num_seqs}: a step has a token for every row at least"
            )
        if self.max_num_batched_tokens < 1 + lookahead:
            raise TrafficError(f"max_num_batched_tokens is less than the {1 + lookahead} tokens of one row")
        for place, request in enumerate(traffic.requests):
            text = request.prompt + request.output
            who = f"request {place} ({request.prompt} prompt and {request.output} output tokens)"
            if self.max_model_len is not None and text > self.max_model_len:
                raise TrafficError(f"{who} is longer than max_model_len {self.max_model_len}")
            needs = -(-(text + lookahead) // self.block_size)
            if self.num_gpu_blocks is not None and needs > self.num_gpu_blocks:
                raise TrafficError(
                    f"{who} needs {needs} KV blocks of {self.block_size}, and num_gpu_blocks is "
                    f"{self.num_gpu_blocks}"
                )
            # What is preempted is computed again in one piece, what it said included.
            if not self.enable_chunked_prefill and text > self.max_num_batched_tokens:
                raise TrafficError(
                    f"{who} does not fit into max_num_batched_tokens {self.max_num_batched_tokens}, which it "
                    "has to without chunked prefill"
                )


class Row:
    """A request as the scheduler sees it.

    Attributes:
        place: Of the request in its traffic.
        known: Tokens of its prompt and of its reply so far.
        computed: Of these, how many are in the KV cache.
        drafted: Tokens drafted for its next step.
        blocks: Its KV blocks.
        room: Tokens that these hold.
        named: How many of these are known to hold a full text.
        names_at: Tokens computed from which on there may be another.
        first_s: When its first token came; -1 before.
        last_s: When its last one came.
    """

    __slots__ = (
        "blocks", "computed", "drafted", "end", "first_s", "known", "last_s", "named", "names_at", "place",
        "request", "room",
    )  # fmt: skip

    def __init__(self, place: int, request: ServedRequest) -> None:
        self.place = place
        self.request = request
        self.known = request.prompt
        self.end = request.prompt + request.output
        self.computed = 0
        self.drafted = 0
        self.named = 0
        self.names_at = 0.0
        self.room = 0
        self.blocks: list[int] = []
        self.first_s = -1.0
        self.last_s = -1.0

    @property
    def emitted(self) -> int:
        """Tokens of its reply so far."""
        return self.known - self.request.prompt

    def text(self, block: int, size: int) -> int:
        """Name of a full block's text: its own beyond what its request says others share."""
        shared = self.request.blocks
        return shared[block] if block < len(shared) else -((self.place << 24) + block) - 1


@dataclass(slots=True)
class Step:
    """What one forward computes.

    Attributes:
        decodes: Rows that verify.
        widths: Tokens of each: its last one and those drafted after it.
        chunks: (row, tokens, tokens of its text before them) of rows that read their text.
        decode_tokens: Sum of the widths.
        contexts: Sum of the tokens that the verifying rows have in the cache.
        chunk_tokens: Sum over chunks.
        finishing: Rows whose text is read to its end by this step; they say a token, too.
    """

    decodes: list[Row] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    chunks: list[tuple[Row, int, int]] = field(default_factory=list)
    decode_tokens: int = 0
    contexts: int = 0
    chunk_tokens: int = 0
    finishing: int = 0

    @property
    def tokens(self) -> int:
        """That go through the model."""
        return self.decode_tokens + self.chunk_tokens

    @property
    def longest(self) -> int:
        """The most tokens that a verifying row has in the cache, before the step is committed."""
        return max((row.computed for row in self.decodes), default=0)

    @property
    def answers(self) -> int:
        """Tokens whose logits are asked for."""
        return self.decode_tokens + self.finishing


@dataclass(slots=True)
class Counts:
    """What a scheduler did so far, in tokens but for `preemptions` and `rounds`.

    Attributes:
        read: Of prompts and recomputed texts.
        verified: Of verifying rows, their last token included.
        emitted: Of replies.
        rejected: Drafted and not accepted, or beyond a reply's end.
        hit: Found in the prefix cache.
        asked: Looked for there.
        lost: Computed, and lost by preemption.
        accepted: Drafted ones.
        rounds: Verifications of a row.
    """

    read: int = 0
    verified: int = 0
    emitted: int = 0
    rejected: int = 0
    hit: int = 0
    asked: int = 0
    lost: int = 0
    preemptions: int = 0
    accepted: int = 0
    rounds: int = 0


class Scheduler:
    """Rows that wait and run, and their blocks.

    Args:
        options: Of the engine.
        ahead: None: a step reads prompts beside the rows that verify.  A number: prompts are read in forwards
            of their own before the round, all but their last token, so that every token comes out of one;
            each row verifies at most so many drafted tokens in it.
    """

    def __init__(self, options: EngineOptions, ahead: int | None = None) -> None:
        self.options = options
        self.ahead = ahead
        self.pool = BlockPool(options.num_gpu_blocks, caching=options.enable_prefix_caching)
        self.waiting: deque[Row] = deque()
        self.running: list[Row] = []
        self.counts = Counts()
        # Texts of their own are found again by preempted rows alone, which there are none without a limit.
        self._names_all = options.num_gpu_blocks is not None

    def submit(self, row: Row) -> None:
        """Put a request into the queue."""
        self.waiting.append(row)

    def schedule(self) -> Step | None:
        """The next step; None where nothing waits or runs."""
        if not self.running and not self.waiting:
            return None
        step = Step()
        before = self.counts.preemptions
        go_on = self._continue_running if self.ahead is None else self._continue_rounds
        budget = go_on(step, self.options.max_num_batched_tokens)
        if self.counts.preemptions == before:
            self._admit(step, budget)
        return step

    def _continue_running(self, step: Step, budget: int) -> int:
        """Rows that run, in the order in which they came; returns what is left of the budget."""
        decodes, widths, verified, contexts = step.decodes, step.widths, 0, 0
        for row in self.running:  # which loses its last ones where blocks run out
            if budget <= 0:
                break
            computed = row.computed
            left = row.known - computed
            decoding = left == 1 and row.first_s >= 0.0
            wanted = 1 + row.drafted if decoding else left
            tokens = wanted if wanted < budget else budget
            if computed + tokens > row.room and not self._grow(row, tokens):
                break
            budget -= tokens
            if not decoding:
                self._chunk(step, row, tokens)
                continue
            decodes.append(row)
            widths.append(tokens)
            verified += tokens
            contexts += computed
            if computed + 1 >= row.names_at:
                self._name(row, computed + 1)
        step.decode_tokens, step.contexts = verified, contexts
        return budget

    def _continue_rounds(self, step: Step, budget: int) -> int:
        """Every row that is read verifies, then the others read on; returns what is left of the budget."""
        running, place = self.running, 0
        while place < len(running):
            row = running[place]
            place += 1
            if row.known - row.computed > 1:
                continue
            if row.known + row.drafted > row.room and not self._grow(row, 1 + row.drafted):
                break
            budget -= self._verify(step, row)
        for row in running:
            if row.known - row.computed > 1 and budget > 0:
                budget -= self._read_on(step, row, budget)
        return budget

    def _verify(self, step: Step, row: Row) -> int:
        """Let a row verify in this round; returns the tokens that are set aside for it."""
        step.decodes.append(row)
        step.widths.append(1 + row.drafted)
        step.decode_tokens += 1 + row.drafted
        step.contexts += row.known - 1
        if row.known >= row.names_at:
            self._name(row, row.known)
        return 1 + row.drafted

    def _read_on(self, step: Step, row: Row, budget: int) -> int:
        """Read a row's text up to its last token, and if that is done let it verify; returns the tokens."""
        left = row.known - 1 - row.computed
        tokens = min(left, budget)
        self._chunk(step, row, tokens)
        if tokens == left and budget - tokens > row.drafted:
            return tokens + self._verify(step, row)
        return tokens

    def _chunk(self, step: Step, row: Row, tokens: int) -> None:
        step.chunks.append((row, tokens, row.computed))
        step.chunk_tokens += tokens
        step.finishing += row.computed + tokens == row.known
        self._name(row, row.computed + tokens)

    def _grow(self, row: Row, tokens: int) -> bool:
        """Blocks for more tokens, at the cost of newer rows; False where the row itself had to go."""
        needed = -(-(row.computed + tokens) // self.options.block_size) - len(row.blocks)
        while self.pool.free < needed:
            newest = self.running.pop()
            self._preempt(newest)
            if newest is row:
                return False
        row.blocks += self.pool.take(needed)
        row.room = len(row.blocks) * self.options.block_size
        return True

    def _preempt(self, row: Row) -> None:
        self.pool.give_back(row.blocks)
        self.counts.preemptions += 1
        self.counts.lost += row.computed
        row.blocks, row.computed, row.drafted, row.named, row.room, row.names_at = [], 0, 0, 0, 0, 0.0
        self.waiting.appendleft(row)

    def _admit(self, step: Step, budget: int) -> None:
        options, pool = self.options, self.pool
        size = options.block_size
        while self.waiting and budget > 0 and len(self.running) < options.max_num_seqs:
            row = self.waiting[0]
            hits = self._hits(row)
            cached = len(hits) * size
            row.drafted = self.ahead or 0
            left = row.known - cached - (self.ahead is not None)
            if left > budget and not options.enable_chunked_prefill:
                break
            # A row that waits beside others has to find room for all that it has to say now.
            whole = -(-(row.known + row.drafted) // size)
            if whole - len(hits) + pool.unused(hits) > pool.free:
                break
            tokens = min(left, budget)
            self.waiting.popleft()
            pool.share(hits)
            # What is read ahead of rounds is not given up halfway.
            needed = -(-(cached + tokens) // size) if self.ahead is None else whole
            row.blocks = [*hits, *pool.take(needed - len(hits))]
            row.room = len(row.blocks) * size
            row.computed = cached
            row.named = len(hits)
            self.counts.hit += cached
            self.counts.asked += row.known
            self.running.append(row)
            if self.ahead is None:
                self._chunk(step, row, tokens)
                budget -= tokens
            else:
                budget -= self._read_on(step, row, budget)

    def _hits(self, row: Row) -> list[int]:
        """Blocks that hold the row's text from its beginning, all but its last token."""
        if not self.options.enable_prefix_caching:
            return []
        size = self.options.block_size
        full = (row.known - 1) // size
        if not self._names_all:
            return self.pool.known(list(islice(row.request.blocks, full)))
        return self.pool.known([row.text(block, size) for block in range(full)])

    def _name(self, row: Row, computed: int) -> None:
        """Note what blocks hold that are full after this step."""
        size, most = self.options.block_size, float("inf")
        if self.options.enable_prefix_caching:
            most = most if self._names_all else len(row.request.blocks)
            full = computed // size
            for block in range(row.named, int(min(full, most))):
                self.pool.name(row.blocks[block], row.text(block, size))
            row.named = max(row.named, full)
            row.names_at = (full + 1) * size if full < most else float("inf")
        else:
            row.names_at = most

    def commit(
        self, step: Step, accepted: list[int], drafted: int | Mapping[int, int], now: float
    ) -> list[Row]:
        """Note what a step brought; returns the rows that are finished.

        Args:
            step: As it was scheduled.
            accepted: Of each verifying row, how many of its drafted tokens the target accepted.
            drafted: Tokens to be verified next: of every row that said something, or by its place.
            now: Seconds at which it ended.
        """
        counts, finished, emitted = self.counts, list[Row](), 0
        counts.read += step.chunk_tokens
        counts.verified += step.decode_tokens
        counts.rounds += len(step.decodes)
        counts.accepted += sum(accepted)
        for row, tokens, _ in step.chunks:
            row.computed += tokens
            if row.computed == row.known:
                if row.first_s < 0.0:
                    row.first_s = now
                row.known += 1
                row.drafted = drafted if isinstance(drafted, int) else drafted[row.place]
                row.last_s = now
                counts.emitted += 1
                if row.known == row.end:
                    finished.append(row)
        for row, run in zip(step.decodes, accepted, strict=True):
            room = row.end - row.known
            said = run + 1 if run < room else room
            if row.first_s < 0.0:
                row.first_s = now
            row.computed += said
            row.known += said
            row.drafted = drafted if isinstance(drafted, int) else drafted[row.place]
            row.last_s = now
            emitted += said
            if row.known == row.end:
                finished.append(row)
        counts.emitted += emitted
        counts.rejected += step.decode_tokens - emitted
        if finished:
            self.running = [row for row in self.running if row.known < row.end]
            for row in finished:
                self.pool.give_back(row.blocks)
        return finished
