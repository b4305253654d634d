"""Decision traces: what models and datastores answered, row by row, in runs of a policy on the real pair.

Policies that are fed by tokens off the recorded path (trees, retrieval, streaming drafts) cannot be
replayed from a text that plain decoding recorded.  Their answers can: a decision trace holds, for each
setting that was run, the reply that every row got to every operation, by (kind, part, request, position).
None of that depends on the clock, so that a replay with other latencies, another batch or another device is
exact.

What the operations took on the machine that recorded them is kept beside it (`OperationTimings`). A profile
prices a step of such an operation as the forward that it resembles, and its host time as that of the
operation that it is like. `calibrate decide` measures how far that holds: a forward over a tree's nodes is
masked otherwise than a tree step of SSD, one graph may run as two, tries and lookups take host time of
their own. All seconds are at full rate, with the neighbour's contention taken out, and at the speed that
the machine had when the profile was measured (`calibrate.hostrecords`).

One Parquet file holds any number of settings of one policy on one prompt set: a row per reply, and a row
per timed operation, whose `timing` is filled and whose request is not.  Files of format 1 have no times.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from hardware_profiles.files import parse_json, to_json
from hardware_profiles.optime import OperationTiming, Timed, timed_from
from hardware_profiles.profile import Profile, Role
from hardware_profiles.surface import Frozen
from hardware_profiles.trace import (
    KEY,
    REQUESTS,
    TraceError,
    TraceMeta,
    TraceRequest,
    checked_text,
    describe_invalid,
    metadata_texts,
    parquet_refusals,
    write_parquet,
)

DECISIONS_SCHEMA = "spectwin/decisions/2"
_READABLE = (DECISIONS_SCHEMA.encode(), b"spectwin/decisions/1")


class _About(Frozen):
    """What the metadata says of a setting."""

    seconds: dict[str, float] = Field(default_factory=dict)
    policy: str = ""
    knobs: dict[str, Any] = Field(default_factory=dict)
    timed_beside: str = ""
    drift: tuple[float, ...] = ()


_ABOUT = TypeAdapter(dict[str, _About])
_INTEGERS = frozenset({"part", "request", "position"})
_FIRST_COLUMNS = ("setting", "kind", "part", "request", "position", "reply", "mark")
_COLUMNS = (*_FIRST_COLUMNS, "timing")
_TEXTS = ("schema", "meta", "requests", "settings", "limit")

Key: TypeAlias = tuple[str, int, int, int]
"""(kind, part, request, position) of a row's reply."""
Plain: TypeAlias = Any
"""Integers, floats, strings, None and lists of them."""


BORROWED = "steps are priced as the forwards they resemble, host time as that of built-in operations"
NOT_TIMED = f"not recorded: {BORROWED} (`calibrate decide` measures it, on an idle machine)"


class OperationTimings(Frozen):
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
    policies: Mapping[str, Mapping[str, OperationTiming]] = Field(default_factory=dict)

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
    return then.model_copy(update={"policies": known, "batches": batches})


def place_fingerprint(profile: Profile) -> str:
    """Tells machines, pairs of models and ways of running them apart."""
    roles = [_place_of(role) for role in (profile.roles.target, profile.roles.draft)]
    return _digest([profile.provenance.machine, profile.placement, roles])


def costs_fingerprint(profile: Profile) -> str:
    """Tells calibrations apart: a digest of all measured times."""
    kept = profile.model_dump(mode="json", include={"operations", "host", "overlap"})
    for host in (*kept["host"]["operations"].values(), *kept["host"]["sampled"].values()):
        if host["spread"] is None:  # as before profiles could have one: what was timed beside them still is
            del host["spread"]
    return _digest([place_fingerprint(profile), kept])


def _place_of(role: Role) -> Any:
    kept = {"model", "precision", "backend", "mode", "tensor_parallel"}
    device = role.device.model_dump(mode="json", exclude={"memory_bytes"})
    return [device, role.model_dump(mode="json", include=kept)]


def _digest(value: Any) -> str:
    return hashlib.sha256(to_json(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Decisions:
    """The replies of one setting.

    Attributes:
        label: Of the setting (`policies.config.Settings.label`).
        replies: By key.
        marks: What was said on the way, by key; only of operations that announce something.
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
    marks: Mapping[Key, Plain] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    policy: str = ""
    knobs: Mapping[str, Plain] = field(default_factory=dict)
    timings: tuple[Timed, ...] = ()
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
                found,
                replies={key: reply for key, reply in found.replies.items() if key[2] in kept},
                marks={key: mark for key, mark in found.marks.items() if key[2] in kept},
            )
            for label, found in self.settings.items()
        }
        return replace(self, requests=tuple(r for r in self.requests if r.id in kept), settings=settings)

    def of_category(self, category: str | None) -> DecisionTrace:
        """The decisions on the prompts of one category; on all of them for None.

        Raises:
            TraceError: There is no such prompt.
        """
        if category is None:
            return self
        kept = [request.id for request in self.requests if request.category == category]
        if not kept:
            raise TraceError(f"no prompt of category {category!r} in the decision trace")
        return self.slice(kept)

    def merged(self, other: DecisionTrace) -> DecisionTrace:
        """These settings and those of `other`, which wins where both have one, and so do its times.

        Raises:
            TraceError: They are of different requests or models.
        """
        mine, theirs = self.meta, other.meta
        same = (mine.target_model, mine.draft_model, mine.prompt_set_hash) == (
            theirs.target_model,
            theirs.draft_model,
            theirs.prompt_set_hash,
        )
        same = same and self.limit == other.limit
        if not same or [r.prompt for r in self.requests] != [r.prompt for r in other.requests]:
            raise TraceError("decision traces of different models, prompts or limits cannot be joined")
        settings = {**self.settings, **other.settings}
        return DecisionTrace(
            other.requests,
            other.meta,
            settings,
            other.limit,
            joined_timings(self.operation_timings, other.operation_timings),
        )


def write_decisions(trace: DecisionTrace, path: str | os.PathLike[str]) -> None:
    """Write a decision trace as one Parquet file, which appears complete or not at all."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for row in _rows(trace):
        for name, value in zip(_COLUMNS, row, strict=True):
            columns[name].append(value)
    table = pa.table(
        {
            name: pa.array(values, type=pa.int64() if name in _INTEGERS else pa.string())
            for name, values in columns.items()
        }
    )
    texts = {
        **metadata_texts(DECISIONS_SCHEMA, trace.meta, trace.requests),
        "limit": str(trace.limit),
        "settings": to_json({label: _about(d) for label, d in trace.settings.items()}),
    }
    if trace.operation_timings is not None:
        texts["pace"] = to_json(trace.operation_timings.model_dump(mode="json"))
    write_parquet(path, table, texts)


def _rows(trace: DecisionTrace) -> Iterator[tuple[Any, ...]]:
    """The rows of a file, in the order of `_COLUMNS`."""
    for label, decisions in trace.settings.items():
        for (kind, part, request, position), reply in sorted(decisions.replies.items()):
            mark = decisions.marks.get((kind, part, request, position))
            said = None if mark is None else _dump(mark)
            yield label, kind, part, request, position, _dump(reply), said, None
        for timed in decisions.timings:
            yield label, timed.kind, None, None, None, None, None, _dump(timed)


def read_decisions(path: str | os.PathLike[str]) -> DecisionTrace:
    """Read a decision trace.

    Raises:
        TraceError: The file cannot be read or is none.
    """
    import pyarrow.parquet as pq

    with parquet_refusals(path), pq.ParquetFile(path) as file:
        metadata = file.metadata.metadata or {}
        present = file.schema_arrow.names
        known = [name for name in _COLUMNS if name in present]
        if missing := [name for name in _FIRST_COLUMNS if present.count(name) != 1]:
            raise TraceError(f"{path}: column {missing[0]!r} must be there once")
        table = file.read(columns=known)
    texts = {key: metadata.get(KEY.format(key).encode()) for key in _TEXTS}
    if texts["schema"] not in _READABLE or any(text is None for text in texts.values()):
        raise TraceError(f"{path}: is no decision trace of schema {DECISIONS_SCHEMA!r}")
    try:
        requests = REQUESTS.validate_json(checked_text(metadata, "requests", str(path)))
        meta = TraceMeta.model_validate_json(checked_text(metadata, "meta", str(path)))
        about = _ABOUT.validate_json(checked_text(metadata, "settings", str(path)), strict=True)
        found = _collect(table.to_pydict(), about)
        timings = _timings(metadata)
        limit = int(texts["limit"] or b"1")
    except TraceError:
        raise
    except ValidationError as error:
        raise TraceError(f"{path}: damaged decision trace: {describe_invalid(error)}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TraceError(f"{path}: damaged decision trace: {error}") from error
    return DecisionTrace(requests, meta, found, limit, timings)


def read_timings(path: str | os.PathLike[str]) -> OperationTimings | None:
    """The times of operations in a decision trace, without reading its replies; None where it holds none.

    Raises:
        TraceError: The file cannot be read, or what it says of them is damaged.
    """
    import pyarrow.parquet as pq

    try:
        with parquet_refusals(path):
            return _timings(pq.read_metadata(path).metadata or {})
    except ValidationError as error:
        raise TraceError(f"{path}: {describe_invalid(error)}") from error


def _timings(metadata: Mapping[bytes, bytes]) -> OperationTimings | None:
    text = checked_text(metadata, "pace", "pace")
    return OperationTimings.model_validate_json(text) if text else None


def _about(decisions: Decisions) -> dict[str, Plain]:
    return {
        "seconds": dict(decisions.seconds),
        "policy": decisions.policy,
        "knobs": dict(decisions.knobs),
        "timed_beside": decisions.timed_beside,
        "drift": list(decisions.drift),
    }


def _collect(columns: Mapping[str, list[Any]], about: Mapping[str, _About]) -> dict[str, Decisions]:
    """The settings of a file, from its columns and what else is said of them."""
    replies: dict[str, dict[Key, Plain]] = {}
    marks: dict[str, dict[Key, Plain]] = {}
    timings: dict[str, list[Timed]] = {}
    first = (columns[name] for name in _FIRST_COLUMNS)
    taken = columns.get("timing", [None] * len(columns["setting"]))
    for label, kind, part, request, position, reply, mark, timing in zip(*first, taken, strict=True):
        mine = replies.setdefault(label, {})
        if timing is not None:
            timings.setdefault(label, []).append(timed_from(parse_json(timing)))
            continue
        key = (kind, part, request, position)
        mine[key] = parse_json(reply)
        if mark is not None:
            marks.setdefault(label, {})[key] = parse_json(mark)
    return {
        label: Decisions(
            label,
            found,
            marks.get(label, {}),
            timings=tuple(timings.get(label, ())),
            **dict(about.get(label, _About())),
        )
        for label, found in replies.items()
    }


def _dump(reply: Plain) -> str:
    return to_json(reply, separators=(",", ":"))
