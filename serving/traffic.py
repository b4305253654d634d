"""Requests that arrive: what each asks for and when, and how arrivals are made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

Arrivals: TypeAlias = Literal["poisson", "constant", "gamma"]
ARRIVALS: tuple[Arrivals, ...] = get_args(Arrivals)


LATEST_S = 1e9
"""Thirty years: beyond it a clock of 64 bits no longer tells steps apart."""


class TrafficError(ValueError):
    """Traffic cannot be read or served; the message names the file and line, or the request."""


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request of a user.

    Attributes:
        arrival_s: Seconds from the beginning; of a call that waits for another one, not before then.
        prompt: Tokens, at least 1.
        output: Tokens of the reply, at least 1.
        blocks: Identities of the prompt's full blocks, from its first one: equal numbers are equal text with
            equal text before it.  Empty: nobody shares any of it.
        after: Place of the request whose reply it waits for (a call of an agent); None for none.
        pause_s: Seconds from that reply to its arrival.
    """

    arrival_s: float
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()
    after: int | None = None
    pause_s: float = 0.0

    def at(self, arrival_s: float) -> ServedRequest:
        """The same at another time; `dataclasses.replace` takes four times as long."""
        return ServedRequest(arrival_s, self.prompt, self.output, self.blocks, self.after, self.pause_s)


@dataclass(frozen=True)
class Traffic:
    """Requests in the order in which they arrive.

    Attributes:
        timed: Whether their arrivals are known; else a rate has to say them.
        skipped: Rows of the file that were no served requests, by reason.
    """

    requests: tuple[ServedRequest, ...]
    source: str
    timed: bool = True
    skipped: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.requests:
            raise TrafficError(f"{self.source}: there is no request in it")
        before = 0.0
        for place, request in enumerate(self.requests):
            where = f"{self.source}: request {place}"
            if request.prompt < 1 or request.output < 1:
                raise TrafficError(
                    f"{where} has {request.prompt} prompt and {request.output} output tokens: at least 1 each"
                )
            for seconds in (request.arrival_s, request.pause_s):
                if not 0.0 <= seconds <= LATEST_S:
                    raise TrafficError(
                        f"{where} comes at {seconds:g} s: expected a time from 0 to {LATEST_S:g} s"
                    )
            if request.after is not None and not 0 <= request.after < place:
                raise TrafficError(f"{where} waits for request {request.after}, which is not before it")
            if request.after is None and request.arrival_s < before:
                raise TrafficError(
                    f"{where} arrives at {request.arrival_s:g} s, before the one above it ({before:g} s): "
                    "sort the file by arrival"
                )
            before = max(before, request.arrival_s)

    @property
    def prompt_tokens(self) -> int:
        """Of all requests."""
        return sum(request.prompt for request in self.requests)

    @property
    def output_tokens(self) -> int:
        """Of all requests."""
        return sum(request.output for request in self.requests)

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s

    def cut(self, requests: int | None = None, duration_s: float | None = None) -> Traffic:
        """The first so many requests, of those that arrive in the first so many seconds."""
        if duration_s is None and (requests is None or requests >= len(self.requests)):
            return self
        kept = self.requests[:requests]
        if duration_s is not None:
            kept = tuple(each for each in kept if each.arrival_s < duration_s)
            numbers = {id(each): place for place, each in enumerate(self.requests)}
            places = {numbers[id(each)]: place for place, each in enumerate(kept)}
            kept = tuple(_moved(each, places) for each in kept if each.after is None or each.after in places)
        return replace(self, requests=kept)

    def scaled(self, factor: float) -> Traffic:
        """With all times between arrivals multiplied: 0.5 is twice the load."""
        if not 0.0 < factor < float("inf"):
            raise TrafficError(f"times are scaled by a number above 0, not {factor:g}")
        if factor == 1.0:
            return self
        return replace(self, requests=tuple(each.at(factor * each.arrival_s) for each in self.requests))

    def arriving(self, times: Sequence[float] | np.ndarray) -> Traffic:
        """With other arrivals, s."""
        requests = tuple(each.at(float(at)) for each, at in zip(self.requests, times, strict=True))
        return replace(self, requests=requests, timed=True)


def _moved(request: ServedRequest, places: dict[int, int]) -> ServedRequest:
    return request if request.after is None else replace(request, after=places.get(request.after))


def arrival_times(
    count: int, rate: float, arrivals: Arrivals = "poisson", *, burstiness: float = 1.0, seed: int = 0
) -> np.ndarray:
    """[count] seconds of arrivals at `rate` requests a second in the mean; the first is a gap after 0.

    Args:
        count: Of requests.
        rate: Above 0.
        arrivals: Gaps are exponential, all the same, or of a gamma distribution.
        burstiness: Shape of the gamma distribution, as vLLM has it: 1 is Poisson, less comes in bursts.
        seed: Same seed, same arrivals.

    Raises:
        TrafficError: Rate or burstiness is not above 0.
    """
    if not rate > 0.0 or not burstiness > 0.0:
        raise TrafficError(f"rate and burstiness are above 0, got {rate:g} and {burstiness:g}")
    if arrivals == "constant":
        return np.arange(1, count + 1) / rate
    shape = burstiness if arrivals == "gamma" else 1.0
    gaps = np.random.default_rng([seed, 1]).gamma(shape, 1.0 / (rate * shape), count)
    return np.asarray(np.cumsum(gaps))


def generated(
    count: int,
    prompt: int,
    output: int,
    times: Sequence[float] | np.ndarray,
) -> Traffic:
    """Equal requests that arrive at [count] seconds."""
    requests = tuple(ServedRequest(float(at), prompt, output) for at in times[:count])
    return Traffic(requests, f"{count} requests of {prompt} and {output} tokens")
