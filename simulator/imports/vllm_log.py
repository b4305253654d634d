"""vLLM's log: its `SpecDecoding metrics` lines, in all the layouts they have had."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from simulator.imports.derive import from_joint
from simulator.imports.measured import Imported, ImportRefused, Speeds, at_line, count, number

_SPEC = re.compile(r"SpecDecoding metrics: (.*)$")
_V0 = re.compile(r"Speculative metrics: (.*)$")
_ENGINE = re.compile(r"Avg generation throughput: ([\d.]+) tokens/s, Running: (\d+) reqs")
_TIME = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class _Window:
    """A `SpecDecoding` line."""

    line: int
    accepted: int
    drafted: int
    length: str | None
    joint: tuple[float, ...]
    drafted_per_s: float | None
    running: float | None
    throughput: float | None


def parse(text: str) -> tuple[Imported, ...]:
    """One measurement per `SpecDecoding` line, and one for plain decoding that was logged before them.

    Rates per position are joint, over the rounds of the window.  The number of listed positions is not
    taken for K: a known version lists one too many.
    """
    windows: list[_Window] = []
    old: list[Imported] = []
    plain: list[tuple[float, float]] = []
    status: re.Match[str] | None = None
    stamp = ""
    for at, line in enumerate(text.splitlines(), 1):
        time = _TIME.search(line)
        if found := _ENGINE.search(line):
            status, stamp = found, time.group() if time else ""
            if not windows and not old:
                plain.append((float(found.group(1)), float(found.group(2))))
        elif found := _SPEC.search(line):
            if plain and time is not None and stamp == time.group() and not windows:
                plain.pop()  # the status that belongs to this line
            paired = status if time is not None and stamp == time.group() else None
            windows.append(_window(found.group(1), at, paired))
        elif found := _V0.search(line):
            old.append(_v0(found.group(1), at))
    if not windows and not old:
        raise ImportRefused("expected a line `SpecDecoding metrics: ...` of vLLM; there is none")
    measured = [*old, *_measure(windows)]
    return (*_plain(plain), *sorted(measured, key=lambda m: int(m.label.removeprefix("line "))))


def _plain(statuses: Sequence[tuple[float, float]]) -> list[Imported]:
    steps = [running / speed for speed, running in statuses if speed > 0.0 and running > 0.0]
    if not steps:
        return []
    speeds = Speeds(target_step_s=median(steps), tokens_per_second=median(s for s, r in statuses if s and r))
    note = "status lines before the first SpecDecoding line, taken for plain decoding"
    return [Imported("vllm", "vllm-log", label="plain", speeds=speeds, notes=(note,))]


def _window(body: str, at: int, status: re.Match[str] | None) -> _Window:
    values = dict(re.findall(r"([A-Z][\w -]*?): ([\d.]+)", body))
    for key in ("Accepted", "Drafted"):
        if key not in values:
            raise ImportRefused(f"expected `{key}: N tokens` in a SpecDecoding line", at)
    shares = re.search(r"Per-position acceptance rate: ([\d., ]+)", body)
    joint = [part.strip() for part in shares.group(1).split(",")] if shares else []
    speed = values.get("Drafted throughput")
    return _Window(
        line=at,
        accepted=count(values["Accepted"], "Accepted", at),
        drafted=count(values["Drafted"], "Drafted", at),
        length=values.get("Mean acceptance length"),
        joint=tuple(number(part, "Per-position acceptance rate", at) for part in joint if part),
        drafted_per_s=None if speed is None else number(speed, "Drafted throughput", at),
        running=None if status is None else float(status.group(2)),
        throughput=None if status is None else float(status.group(1)),
    )


def _measure(windows: Sequence[_Window]) -> list[Imported]:
    """Windows that list as many positions are of one run: their K is one that fits them all."""
    found = []
    for positions in {len(w.joint): None for w in windows}:
        alike = [w for w in windows if len(w.joint) == positions]
        fitting = set.intersection(*(_depths(w) for w in alike))
        for w in alike:
            with at_line(w.line):
                found.append(_measured(w, _likely(fitting or _depths(w), positions)))
    return found


def _depths(window: _Window) -> set[int]:
    """Every K at which the whole rounds of the window give the printed mean length."""
    if window.length is None:
        return set()
    digits = len(window.length.partition(".")[2])
    return {
        k
        for k in range(1, _DEEPEST + 1)
        if window.drafted % k == 0
        and abs(1.0 + window.accepted * k / window.drafted - float(window.length)) <= 0.50001 * 10**-digits
    } if window.drafted else set()  # fmt: skip


def _likely(depths: set[int], positions: int) -> int | None:
    """The K that as many positions were listed for, else the deepest that is no deeper."""
    return max((k for k in depths if k <= positions), default=min(depths, default=None))


def _measured(window: _Window, depth: int | None) -> Imported:
    notes: tuple[str, ...] = ()
    rounds = window.drafted // depth if depth else None
    if depth is None and window.length is not None and float(window.length) > 1.0:
        rounds = round(window.accepted / (float(window.length) - 1.0))
        notes = (
            (
                "the draft length varies: rounds come from the printed mean length, joint rates count short "
                "rounds as rejections"
            ),
        )
    elif depth is not None and depth != len(window.joint):
        notes = (f"{len(window.joint)} positions are listed but {depth} tokens are drafted per round",)
    known: dict[str, Any] = {
        "engine": "vllm",
        "source": "vllm-log",
        "label": f"line {window.line}",
        "drafted": window.drafted,
        "batch": window.running,
        "speeds": _speeds(window, depth),
        "notes": notes,
    }
    if not window.joint:
        length = 1.0 + window.accepted / rounds if rounds else None
        return Imported(
            rounds=rounds, accepted=window.accepted, lookahead=depth, tokens_per_round=length, **known
        )
    joint = window.joint[:depth]
    found = from_joint(joint, rounds=rounds, accepted=window.accepted, lookahead=depth, **known)
    if depth is None and window.length is not None:
        return replace(found, tokens_per_round=float(window.length))
    return found


def _speeds(window: _Window, depth: int | None) -> Speeds:
    # With one request running, rounds follow each other: drafted per second / K of them per second.
    alone = window.running == 1.0 and depth and window.drafted_per_s
    round_s = depth / window.drafted_per_s if alone and depth and window.drafted_per_s else None
    return Speeds(tokens_per_second=window.throughput, round_s=round_s)


def _v0(body: str, at: int) -> Imported:
    values = dict(re.findall(r"([A-Z][\w ]*?): (\d+(?:\.\d+)?)", body))
    names = ("Number of speculative tokens", "Number of draft tokens", "Number of emitted tokens")
    try:
        depth, drafted, emitted = (count(values[name], name, at) for name in names)
    except KeyError as error:
        raise ImportRefused(f"expected {error} in a `Speculative metrics` line", at) from error
    if not depth or not drafted:
        raise ImportRefused("expected tokens that were drafted in a `Speculative metrics` line", at)
    rounds = drafted // depth
    return Imported(
        "vllm",
        "vllm-log",
        label=f"line {at}",
        version="V0 engine",
        lookahead=depth,
        rounds=rounds,
        drafted=drafted,
        tokens_per_round=emitted / rounds,
        notes=(
            (
                "the V0 engine counts tokens accepted after a rejection, too: its rate and accepted tokens "
                "are left out"
            ),
        ),
    )
