"""Traffic through `simulator.compiled.steps`, where that covers it; else through `simulator.traffic`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from hardware_profiles.optime import HostOperation, OperationHost
from hardware_profiles.surface import LatencySurface
from policies.registry import Settings
from policies.sampling import FloatArray
from serving.lookahead import Adapt, LookaheadByBatch
from serving.metrics import Served
from serving.scheduler import Counts, EngineOptions
from serving.traffic import Traffic
from simulator import traffic as plain
from simulator.compiled import steps as s
from simulator.compiled.loops import Loop
from simulator.costs import Extrapolation
from simulator.scenario import Scenario
from simulator.traffic import Forwards, ProfileTimes, SimulatedEngine, TextbookTimes

COVERED = ("ar", "sd")
WORTH = 3_000_000
"""Tokens of replies, over all runs so far, from which on numba is worth its import."""
MOST_BLOCKS = 50_000_000
"""Of all slots together; beyond it the lists of `serving.blocks` take less memory."""
USUAL = 8
"""Tokens of a verifying row up to which all settings share their prices."""
DRAWN, GAPS = 1 << 16, 1 << 20
"""Factors of noise that are drawn at once; gaps until equal ones are put together."""
HOST_FIELDS = (
    "submit_s", "submit_row_s", "report_s", "report_token_s", "extra_s", "row_s", "step_s", "token_s",
    "scale", "wake", "idle_cap_s",
)  # fmt: skip
KINDS: tuple[tuple[str, HostOperation], ...] = (
    ("target", "decode"),
    ("target", "verify"),
    ("draft", "draft"),
)


def serve_traffic(
    scenario: Scenario,
    settings: Settings,
    traffic: Traffic,
    options: EngineOptions,
    by_load: LookaheadByBatch | Adapt | None = None,
    *,
    max_concurrency: int | None = None,
    progress: Callable[[int], None] | None = None,
    **more: Any,
) -> tuple[Served, tuple[Extrapolation, ...]]:
    """As `simulator.traffic.serve_traffic`; compiled where that is worth it and covers what is asked."""
    more |= {"max_concurrency": max_concurrency, "progress": progress}
    covered = (
        settings.policy in COVERED
        and more.get("watch") is None
        and not more.get("rounds")
        and not isinstance(by_load, str)
    )
    steps = _compiled(traffic) if covered else None
    if steps is None or any(request.after is not None for request in traffic.requests):
        return plain.serve_traffic(scenario, settings, traffic, options, by_load, **more)
    engine = plain.engine_of(scenario, settings, by_load)
    options.check(traffic, engine.lookahead)
    run = FlatRun(traffic, options, engine, max_concurrency)
    if run.blocks > MOST_BLOCKS:
        return plain.serve_traffic(scenario, settings, traffic, options, by_load, **more)
    served, times = run.serve(steps, progress), engine.times
    return served, times.extrapolated() if isinstance(times, ProfileTimes) else ()


def _compiled(traffic: Traffic) -> Callable[..., int] | None:
    """The loop, if so much has been asked for that compiling pays."""
    Loop.turns += traffic.output_tokens
    if Loop.mode == "python" or (Loop.mode == "auto" and Loop.turns < WORTH) or find_spec("numba") is None:
        return None
    try:
        return s.compiled_steps()
    except ImportError:  # it is there, but not for this Python or numpy
        return None


def expect(tokens: int) -> None:
    """Say that replies of so many tokens will be asked for, so that the first ones are compiled, too."""
    Loop.turns += tokens


class FlatRun:
    """A run laid out in arrays.

    Args:
        traffic: Requests; none waits for another one's reply.
        options: Of the engine.
        engine: Fresh; what it accepts, and the prices of its steps.
        max_concurrency: See `serving.loop.serve`.

    Attributes:
        blocks: Of all slots.
    """

    def __init__(
        self, traffic: Traffic, options: EngineOptions, engine: SimulatedEngine, max_concurrency: int | None
    ) -> None:
        requests = traffic.requests
        count, self.engine = len(requests), engine
        self.prompt = np.fromiter((each.prompt for each in requests), np.int64, count)
        self.output = np.fromiter((each.output for each in requests), np.int64, count)
        self.arrival = np.fromiter((each.arrival_s for each in requests), np.float64, count)
        self.begins, self.shared, texts = _shared(traffic, caching=options.enable_prefix_caching)
        slots = min(options.max_num_seqs, count)
        limited = options.num_gpu_blocks is not None
        exact = options.enable_prefix_caching and (limited or texts > 0)
        longest = int((self.prompt + self.output).max()) + engine.lookahead
        most = -(-longest // options.block_size) + 1 if exact else 1
        self.blocks = slots * most
        made = options.num_gpu_blocks or (texts + (slots + 1) * most)
        given = {
            s.USERS: max_concurrency or count,
            s.MAX_SEQS: options.max_num_seqs,
            s.BUDGET: options.max_num_batched_tokens,
            s.NUM_BLOCKS: options.num_gpu_blocks if limited else -1,
            s.SIZE: options.block_size,
            s.CHUNKED: options.enable_chunked_prefill,
            s.NAMES_ALL: limited,
            s.EXACT: exact,
            s.LOOKAHEAD: engine.lookahead,
            s.CONSTANT: isinstance(engine.times, TextbookTimes),
        }
        self.options = np.array([given.get(i, 0) for i in range(s.OPTIONS)], dtype=np.int64)
        self.whole = np.zeros(s.WHOLES, dtype=np.int64)
        self.whole[[s.HEAD, s.TAIL]] = -1
        self.seconds = np.zeros(s.SECONDS)
        self.came, self.first, self.last = np.zeros((3, count))
        self.links = np.zeros((made if exact and self.blocks <= MOST_BLOCKS else 1, 3), dtype=np.int64)
        if exact and limited:
            self._free_all(made)
        self.users, self.names = np.zeros((2, len(self.links)), dtype=np.int64)
        cells = (slots, most if self.blocks <= MOST_BLOCKS else 1)
        self.held, self.own = np.full((2, *cells), -1, dtype=np.int64)
        self.found = np.full(texts, -1, dtype=np.int64)
        self.whole[s.FREE_SLOTS] = slots
        self.rows = np.zeros((slots, s.SLOT), dtype=np.int64)
        self.most = np.zeros((2, 4), dtype=np.int64)
        self.drawn = np.zeros(5, dtype=np.int64)
        self.gaps = np.zeros((max(GAPS, 4 * slots), 2))
        self.prices = _Prices(engine, slots, options.max_num_batched_tokens)
        self.options[s.HOST_NOISE] = self.prices.host_noise

    def _free_all(self, made: int) -> None:
        """All blocks are free, in order."""
        self.links[:, 0] = np.arange(-1, made - 1)
        self.links[:, 1] = [*range(1, made), -1]
        self.links[:, 2] = 1
        self.whole[[s.HEAD, s.TAIL, s.FREE_BLOCKS]] = 0, made - 1, made

    def serve(self, steps: Callable[..., int], progress: Callable[[int], None] | None = None) -> Served:
        """The finished run; `steps` is `run_steps`, compiled or not."""
        slots, engine, prices = len(self.rows), self.engine, self.prices
        table = engine.by_load or LookaheadByBatch((1,), (engine.lookahead,))
        assert isinstance(table, LookaheadByBatch)
        runs, starts, lengths = (
            np.asarray(each, dtype=np.int64) for each in (engine.runs, engine.starts, engine.lengths)
        )
        noise, kept = prices.noise(), np.zeros((0, 2))
        arguments = (
            *(self.options, self.prompt, self.output, self.arrival, self.begins, self.shared),
            *(runs, starts, lengths, np.array(table.rows), np.array(table.contexts)),
            *(np.reshape(table.lookaheads, (len(table.rows), -1)), prices.roles, prices.lines, prices.cuts),
            *(
                prices.prompts,
                prices.hosts,
                noise,
                self.whole,
                self.seconds,
                self.came,
                self.first,
                self.last,
                self.rows,
            ),
            *(np.zeros((slots, 2)), *np.zeros((2, slots), dtype=np.int64), np.arange(slots)[::-1].copy()),
            *(self.held, self.own, self.found, self.users, self.names, self.links, self.drawn, self.most),
            *(*np.zeros((2, slots), dtype=np.int64), np.zeros((slots, 3), dtype=np.int64), self.gaps),
        )
        while (why := steps(*arguments)) != s.FINISHED:
            if why == s.NOISE_IS_OUT:
                prices.draw(noise, self.drawn)
            else:
                kept = _together(np.concatenate([kept, self.gaps[: self.whole[s.GAPS]]]))
                self.whole[s.GAPS] = 0
            if progress is not None:
                progress(int(self.whole[s.DONE]))
        engine.now = float(self.seconds[s.NOW])
        prices.noted(self.most)
        return self._served(_together(np.concatenate([kept, self.gaps[: self.whole[s.GAPS]]])))

    def _served(self, gaps: FloatArray) -> Served:
        whole, seconds = self.whole.tolist(), self.seconds.tolist()
        busy = seconds[s.BUSY_S]
        counts = Counts(
            **{
                name: whole[getattr(s, name.upper())]
                for name in (
                    *("read", "verified", "emitted", "rejected", "hit", "asked", "lost", "preemptions"),
                    *("accepted", "rounds"),
                )
            }
        )
        return Served(
            arrival_s=self.came,
            first_s=self.first,
            last_s=self.last,
            prompt=self.prompt,
            output=self.output,
            gaps=gaps,
            end_s=seconds[s.NOW],
            steps=whole[s.STEPS],
            busy_s=busy,
            running=seconds[s.RUNNING_S] / busy if busy else 0.0,
            waiting=seconds[s.WAITING_S] / busy if busy else 0.0,
            most_blocks=whole[s.MOST_USED],
            counts=counts,
        )


def _shared(traffic: Traffic, *, caching: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Where each request's shared texts begin, their names as 0, 1, ..., and how many there are."""
    sizes = [len(request.blocks) if caching else 0 for request in traffic.requests]
    begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    if not begins[-1]:
        return begins, np.zeros(0, dtype=np.int64), 0
    flat = (name for request in traffic.requests for name in request.blocks)
    names, numbers = np.unique(np.fromiter(flat, np.int64, begins[-1]), return_inverse=True)
    return begins, numbers.astype(np.int64), len(names)


def _together(gaps: FloatArray) -> FloatArray:
    """Equal gaps as one, in the order in which they came first."""
    values, where, numbers = np.unique(gaps[:, 0], return_index=True, return_inverse=True)
    counts = np.bincount(numbers, weights=gaps[:, 1], minlength=len(values))
    order = np.argsort(where)
    return np.stack([values[order], counts[order]], axis=1)


class _Prices:
    """What steps cost, in arrays; see `simulator.compiled.steps.run_steps`."""

    def __init__(self, engine: SimulatedEngine, slots: int, budget: int) -> None:
        times = engine.times
        self.roles = np.zeros((2, s.FORWARD))
        self.hosts = np.zeros((3, s.HOST))
        self.forwards: list[Forwards | None] = [None, None]
        self._hosts: list[OperationHost] = []
        self._noise, self.host_noise = None, False
        flat = np.zeros((1, 1, 1, 2))
        lines, cuts, prompts = [flat, flat], [np.zeros(0), np.zeros(0)], [np.zeros(1), np.zeros(1)]
        if isinstance(times, TextbookTimes):
            self.roles[:, s.LEAST] = times.costs.target_s, times.costs.draft_s
        else:
            assert isinstance(times, ProfileTimes)
            self.forwards = [times.target, times.draft]
            self._hosts = [times.host.of(kind, sampled=times.sampled) for _, kind in KINDS]
            self._noise, self.host_noise = times.noise, times.noise is not None
            for i, host in enumerate(self._hosts):
                self.hosts[i] = [*(getattr(host, name) for name in HOST_FIELDS), host.spread is not None]
            for role, forwards in enumerate(self.forwards):
                if forwards is None:
                    continue
                self.roles[role] = forwards.drift, forwards.surface.least_s, forwards.curve, forwards.shortest
                # One table serves every K that is usual.
                widest = max(1 + engine.lookahead, USUAL) if role == 0 and engine.lookahead else 2
                cuts[role], lines[role] = line_table(forwards.surface, slots, widest)
                seconds = prompt_table(forwards.prefills, budget + slots)
                prompts[role] = seconds * forwards.prefill_drift
        shape = np.max([each.shape for each in lines], axis=0)
        self.lines = np.zeros((2, *shape))
        for role, each in enumerate(lines):
            rows, widths, pieces, _ = each.shape
            self.lines[role, :rows, :widths, :pieces] = each
        self.cuts = (cuts[0], cuts[1])
        self.prompts = np.zeros((2, max(map(len, prompts))))
        for role, known in enumerate(prompts):
            self.prompts[role, : len(known)] = known

    def noise(self) -> FloatArray:
        """[5, DRAWN] the first factors."""
        made = np.ones((5, DRAWN if self._noise or self._jitters() else 1 << 12))
        drawn = np.full(5, made.shape[1])
        self.draw(made, drawn)
        return made

    def _jitters(self) -> bool:
        return any(each is not None and each.costs.effects.jitter for each in self.forwards)

    def draw(self, noise: FloatArray, drawn: np.ndarray) -> None:
        """Further factors in place of those that are used up."""
        for i in np.flatnonzero(drawn >= noise.shape[1]).tolist():
            drawn[i] = 0
            if i < len(self.forwards):
                forwards = self.forwards[i]
                if forwards is not None and forwards.costs.effects.jitter:
                    factors = forwards.costs.noise_factors(forwards.name, noise.shape[1])
                    noise[i] = 1.0 if factors is None else factors
            elif self._noise is not None and (spread := self._hosts[i - 2].spread) is not None:
                noise[i] = self._noise.factors("-".join(KINDS[i - 2]), spread, noise.shape[1])

    def noted(self, most: np.ndarray) -> None:
        """Let forwards know what was asked of them."""
        for forwards, largest in zip(self.forwards, most.tolist(), strict=True):
            if forwards is not None:
                forwards.saw(*largest)


@lru_cache(maxsize=32)
def line_table(surface: LatencySurface, rows: int, width: int) -> tuple[FloatArray, FloatArray]:
    """Contexts between pieces, and [rows + 1, width + 1, pieces, 2] seconds at 0 and per token of context."""
    found, cuts = np.zeros((rows + 1, width + 1, 1, 2)), np.zeros(0)
    for batch in range(1, rows + 1):
        for tokens in range(1, width + 1):
            cuts, pieces = surface.line(batch=batch, new_tokens=tokens)
            if found.shape[2] < len(pieces):
                found = np.zeros((rows + 1, width + 1, len(pieces), 2))
            found[batch, tokens] = pieces
    return cuts, found


@lru_cache(maxsize=32)
def prompt_table(surface: LatencySurface, tokens: int) -> FloatArray:
    """[tokens + 1] seconds of one prompt of each length."""
    return surface.along("new_tokens", tokens, batch=1)
