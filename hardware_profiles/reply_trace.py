"""Reply traces: what models and datastores answered, row by row, in runs of a policy on the real pair.

Policies that are fed by tokens off the recorded path (trees, retrieval, streaming drafts) cannot be
replayed from a text that plain decoding recorded.  Their answers can: a reply trace (`calibrate decide` and
the files call it a decision trace) holds, for each setting that was run, the reply that every row got to
every operation, by (kind, part, request, position).  None of that depends on the clock, so that a replay
with other latencies, another batch or another device is exact.

What the operations took on the machine that recorded them is kept beside it (`OperationTimings`).  A profile
prices a step of such an operation as the forward that it resembles, and its host time as that of its cost
class; `calibrate decide` measures how far that holds.  All seconds are at full rate, with
the neighbour's contention taken out, and at the speed that the machine had when the profile was measured
(`calibrate.hostrecords`).

One Parquet file holds any number of settings of one policy on one prompt set: a row per reply, and a row
per timed operation, whose `timing` is filled and whose request is not.  Files of format 1 have no times.
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from hardware_profiles.files import parse_jsons, to_json
from hardware_profiles.optime import OperationTiming, Timed, timed_from
from hardware_profiles.profile import Profile, Role
from hardware_profiles.records import Frozen, field, plain, record
from hardware_profiles.trace import (
    TraceError,
    TraceMeta,
    TraceRequest,
    metadata_value,
    parquet_refusals,
    read_recording,
    requests_of,
    write_recording,
)

DECISIONS_SCHEMA = "spectwin/decisions/2"
_READABLE = (DECISIONS_SCHEMA, "spectwin/decisions/1")
_FIRST_COLUMNS = ("setting", "kind", "part", "request", "position", "reply", "mark")
_COLUMNS = (*_FIRST_COLUMNS, "timing")
_INTEGERS = frozenset({"part", "request", "position"})

Key: TypeAlias = tuple[str, int, int, int]
"""(kind, part, request, position) of a row's reply."""
Plain: TypeAlias = Any
"""Integers, floats, strings, None and lists of them."""
FileName: TypeAlias = str | os.PathLike[str]

BORROWED = "steps are priced as the forwards they resemble, host time as that of built-in operations"
NOT_TIMED = f"not recorded: {BORROWED} (`calibrate decide` measures it, on an idle machine)"


class OperationTimings(Frozen, frozen=True, kw_only=True):
    """The times of policies' operations at one sampling, on one machine and pair of models.

    Attributes:
        profile: Name of the profile beside which it was measured.
        place: `place_fingerprint` of that profile.
        costs: `costs_fingerprint` of that profile.
        batches: Batches that it was measured at.
        policies: By policy, what its operations take, by their kind: rounds of another policy may treat the
            same kind otherwise.
    """

    profile: str
    place: str
    costs: str
    batches: tuple[int, ...] = (1,)
    policies: Mapping[str, Mapping[str, OperationTiming]] = field(default_factory=dict)

    def note(self, profile: Profile) -> str:
        """Where it comes from, and whether it holds for a profile."""
        if self.place != place_fingerprint(profile):
            return f"measured on another machine or pair (profile {self.profile!r}), not used: {BORROWED}"
        other = "" if self.costs == costs_fingerprint(profile) else ", another calibration of this machine"
        at = ", ".join(map(str, self.batches))
        return f"measured beside profile {self.profile!r}{other}, at batch {at}"

    def of(self, profile: Profile, policy: str) -> Mapping[str, OperationTiming]:
        """Of a policy, by kind; empty beside a profile of another machine or pair."""
        return self.policies.get(policy, {}) if self.place == place_fingerprint(profile) else {}


def joined_timings(first: OperationTimings | None, then: OperationTimings | None) -> OperationTimings | None:
    """Two as one; the second counts where both know a policy, or where they are of different places."""
    if first is None or then is None or first.place != then.place:
        return then or first
    known = {**first.policies, **then.policies}
    batches = tuple(sorted({*first.batches, *then.batches}))
    return then.but(policies=known, batches=batches)


def place_fingerprint(profile: Profile) -> str:
    """Tells machines, pairs of models and ways of running them apart."""

    def place(role: Role) -> list[Any]:
        stated = plain(role)
        del stated["device"]["memory_bytes"]
        kept = ("model", "precision", "backend", "mode", "tensor_parallel")
        return [stated["device"], {name: stated[name] for name in kept}]

    roles = [place(profile.roles.target), place(profile.roles.draft)]
    return _digest([profile.provenance.machine, profile.placement, roles])


def costs_fingerprint(profile: Profile) -> str:
    """Tells calibrations apart: a digest of all measured times."""
    kept = {name: plain(getattr(profile, name)) for name in ("operations", "host", "overlap")}
    for entry in kept["overlap"]:  # by the name that it had when the first were timed
        entry["while_busy"] = entry.pop("while")
    for host in (*kept["host"]["operations"].values(), *kept["host"]["sampled"].values()):
        if host["spread"] is None:  # as before profiles could have one: what was timed beside them still is
            del host["spread"]
    return _digest([place_fingerprint(profile), kept])


def _digest(value: Any) -> str:
    return hashlib.sha256(to_json(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Decisions:
    """The replies of one setting.

    Attributes:
        label: Of the setting (`policies.config.Settings.label`).
        replies: By key.
        early: Early results, by key; only of operations that have one.
        seconds: Median seconds of steps that call no model (retrieval), by name, where it was recorded.
        policy: Its policy.
        knobs: The policy's knobs by name, as `policies.registry.configure` takes them.
        timings: What operations took, of one run per batch; empty where none was timed.
        timed_beside: `costs_fingerprint` of the profile that `timings` are seen against; "" for none.
        drift: How many times what that profile says plain decoding took, before and after each timed run; it
            is divided out of `timings`.
    """

    label: str
    replies: Mapping[Key, Plain]
    early: Mapping[Key, Plain] = dataclasses.field(default_factory=dict)
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    policy: str = ""
    knobs: Mapping[str, Plain] = dataclasses.field(default_factory=dict)
    timings: tuple[Timed, ...] = ()
    timed_beside: str = ""
    drift: tuple[float, ...] = ()


class _About(Frozen, frozen=True, kw_only=True):
    """The fields of `Decisions` that the metadata has."""

    seconds: dict[str, float] = field(default_factory=dict)
    policy: str = ""
    knobs: dict[str, Any] = field(default_factory=dict)
    timed_beside: str = ""
    drift: tuple[float, ...] = ()


@dataclass(frozen=True)
class DecisionTrace:
    """Settings of one policy, run on one prompt set.

    Attributes:
        requests: What was run; `ended` is that of the first setting.
        meta: Where it comes from, as for a trace.
        settings: By label.
        limit: Most tokens per request.
        operation_timings: What the timed operations of all settings say together; None where none was timed.
    """

    requests: tuple[TraceRequest, ...]
    meta: TraceMeta
    settings: Mapping[str, Decisions]
    limit: int
    operation_timings: OperationTimings | None = None

    def slice(self, ids: Iterable[int]) -> DecisionTrace:
        """The decisions on some of the requests."""
        kept = set(ids)
        settings = {
            label: replace(
                decisions,
                replies={key: reply for key, reply in decisions.replies.items() if key[2] in kept},
                early={key: said for key, said in decisions.early.items() if key[2] in kept},
            )
            for label, decisions in self.settings.items()
        }
        return replace(self, requests=tuple(r for r in self.requests if r.id in kept), settings=settings)

    def of_category(self, category: str | None) -> DecisionTrace:
        """The decisions on the prompts of one category; on all of them for None.

        Raises:
            TraceError: There is no such prompt.
        """
        if category is None:
            return self
        return self.slice(requests_of(self.requests, category, "decision trace"))

    def merged(self, other: DecisionTrace) -> DecisionTrace:
        """These settings and those of `other`, which wins where both have one, and so do its times.

        Raises:
            TraceError: They are of different requests or models.
        """

        def run_on(trace: DecisionTrace) -> list[Any]:
            meta, prompts = trace.meta, [request.prompt for request in trace.requests]
            return [meta.target_model, meta.draft_model, meta.prompt_set_hash, trace.limit, prompts]

        if run_on(self) != run_on(other):
            raise TraceError("decision traces of different models, prompts or limits cannot be joined")
        timings = joined_timings(self.operation_timings, other.operation_timings)
        return replace(other, settings={**self.settings, **other.settings}, operation_timings=timings)


def write_decisions(trace: DecisionTrace, path: FileName) -> None:
    """Write a decision trace as one Parquet file, which appears complete or not at all."""
    import pyarrow as pa

    rows = list(_rows(trace))
    table = pa.table(
        {
            name: pa.array([row[i] for row in rows], type=pa.int64() if name in _INTEGERS else pa.string())
            for i, name in enumerate(_COLUMNS)
        }
    )
    about = {
        label: {name: getattr(decisions, name) for name in _About.__struct_fields__}
        for label, decisions in trace.settings.items()
    }
    texts = {"limit": str(trace.limit), "settings": to_json(about)}
    if trace.operation_timings is not None:
        texts["pace"] = to_json(plain(trace.operation_timings))
    write_recording(path, DECISIONS_SCHEMA, trace.requests, trace.meta, table, **texts)


def _rows(trace: DecisionTrace) -> Iterator[tuple[Any, ...]]:
    """The rows of a file, in the order of `_COLUMNS`."""

    def dump(reply: Plain) -> str:
        return to_json(reply, separators=(",", ":"))

    for label, decisions in trace.settings.items():
        for key, reply in sorted(decisions.replies.items()):
            said = decisions.early.get(key)
            yield label, *key, dump(reply), None if said is None else dump(said), None
        for timed in decisions.timings:
            yield label, timed.kind, None, None, None, None, None, dump(timed)


Content = TypeVar("Content")


def _kept(read: Callable[[FileName], Content]) -> Callable[[FileName], Content]:
    """A reader that reads a file again only when it was replaced or changed.

    What it returns is shared by all who ask: it must not be changed.
    """

    @lru_cache(maxsize=16)  # the policies that have such files, greedy and sampled; up to 0.1 GB each
    def reading(path: str, _inode: int, _size: int, _changed_ns: int) -> Content:
        return read(path)

    @wraps(read)
    def kept(path: FileName) -> Content:
        try:
            status = Path(path).stat()
        except (OSError, ValueError):  # which `read` puts into words
            return read(path)
        # A clock may be too coarse to tell two files apart that were written one after the other.
        return reading(os.fspath(path), status.st_ino, status.st_size, status.st_mtime_ns)

    return kept


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which would look at a million lists again and again.

    It leaves out what there is now from then on, too.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


@_kept
def read_decisions(path: FileName) -> DecisionTrace:
    """Read a decision trace; see `_kept`.

    Raises:
        TraceError: The file cannot be read or is none.
    """
    import pyarrow as pa

    def choose(present: list[str]) -> list[str]:
        if missing := [name for name in _FIRST_COLUMNS if present.count(name) != 1]:
            raise TraceError(f"column {missing[0]!r} must be there once")
        return [name for name in _COLUMNS if name in present]

    with parquet_refusals(path, "decision trace"), _uncollected():
        requests, meta, parts, metadata = read_recording(path, _READABLE, choose, lambda _, table: table)
        about = record(dict[str, _About], metadata_value(metadata, "settings"))
        settings = _collect(pa.concat_tables(parts).to_pydict(), about)
        limit = record(int, metadata_value(metadata, "limit"))
        return DecisionTrace(requests, meta, settings, limit, _timings(metadata))


@_kept
def read_timings(path: FileName) -> OperationTimings | None:
    """The times of operations in a decision trace, without reading its replies; None where it holds none.

    Raises:
        TraceError: The file cannot be read, or what it says of them is damaged.
    """
    import pyarrow.parquet as pq

    with parquet_refusals(path, "decision trace"):
        return _timings(pq.read_metadata(path).metadata or {})


def _timings(metadata: Mapping[bytes, bytes]) -> OperationTimings | None:
    stated = metadata_value(metadata, "pace")
    return None if stated is None else record(OperationTimings, stated)


def _parsed(texts: Sequence[str | None]) -> list[Plain]:
    """The values of texts; None where there is none."""
    there = [i for i, text in enumerate(texts) if text is not None]
    values: list[Plain] = [None] * len(texts)
    for i, value in zip(there, parse_jsons([texts[i] or "" for i in there]), strict=True):
        values[i] = value
    return values


def _collect(columns: Mapping[str, list[Any]], about: Mapping[str, _About]) -> dict[str, Decisions]:
    """The settings of a file, from its columns and what else is said of them."""
    replies: dict[str, dict[Key, Plain]] = {}
    early: dict[str, dict[Key, Plain]] = {}
    timings: dict[str, list[Timed]] = {}
    first = (columns[name] for name in _FIRST_COLUMNS)
    taken = columns.get("timing", [None] * len(columns["setting"]))
    *keys, reply_texts, mark_texts = first
    reply_texts = [text if timing is None else None for text, timing in zip(reply_texts, taken, strict=True)]
    said = (_parsed(texts) for texts in (reply_texts, mark_texts, taken))
    for label, kind, part, request, position, reply, mark, timing in zip(*keys, *said, strict=True):
        mine = replies.setdefault(label, {})
        if timing is not None:
            timings.setdefault(label, []).append(timed_from(timing))
            continue
        if reply is None:
            raise TraceError(f"the {kind} of request {request} at position {position} has no reply")
        key = (kind, part, request, position)
        mine[key] = reply
        if mark is not None:
            early.setdefault(label, {})[key] = mark
    settings = {}
    for label, by_key in replies.items():
        timed = tuple(timings.get(label, ()))
        rest = msgspec.structs.asdict(about.get(label, _About()))
        settings[label] = Decisions(label, by_key, early.get(label, {}), timings=timed, **rest)
    return settings
