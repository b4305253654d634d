"""Many settings in one table: typed requests, each of which becomes a row.

`simulate` sweeps its lists and ranges with this, and the study `sweep` its tens of thousands of settings.
Work is done in chunks, by one process or by whatever joblib's backend has (`parallel`); what a chunk says
does not depend on who does it, so that the table is the same byte by byte.  Chunks may be kept as they are
done: a run that was killed goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hardware_profiles.files import atomic_write, to_json
from hardware_profiles.tables import Row
from policies.registry import SettingError, Settings
from simulator.auto import resolve
from simulator.law import law_inputs, law_prediction
from simulator.report import Report
from simulator.request import LAID_OUT, PROFILE, Kept, SimulationRequest, build_scenario
from simulator.run import Scenario, Simulated, baseline_settings, simulate

if TYPE_CHECKING:
    import pyarrow as pa

Progress: TypeAlias = Callable[[str, int, int], None]
Chunk = TypeVar("Chunk")
ROUNDS_OF_JOBS = 4
"""Chunks per process that are handed out together."""
KEY = b"spectwin.sweep"


# One row


@dataclass
class Sweeper:
    """Rows of requests, which share what is read, laid out and simulated for several of them."""

    kept: Kept = field(default_factory=dict)
    _known: dict[Hashable, tuple[Scenario, Simulated]] = field(default_factory=dict)

    def of_other_texts(self) -> Sweeper:
        """One that shares the profiles alone: texts and what is laid out of them take memory."""
        profiles = [key for key in self.kept if isinstance(key, tuple) and key[0] == PROFILE]
        kept: Kept = {key: self.kept[key] for key in profiles}
        built = self.kept.get(LAID_OUT, {}).get("built", {})
        return Sweeper({**kept, LAID_OUT: {"built": built, "served": {}, "scripts": {}}})

    def rows(
        self, requests: Iterable[SimulationRequest], done: Callable[[int], None] | None = None
    ) -> list[Row]:
        """A row of each; `done` is told how many there are so far."""
        rows = []
        for request in requests:
            rows.append(self.row(request))
            if done is not None:
                done(len(rows))
        return rows

    def row(self, request: SimulationRequest) -> Row:
        """What is asked, and what comes of it; `refused` says why nothing does."""
        asked, settings = _asked(request), request.query.settings
        try:
            scenario, sources = build_scenario(request, self.kept)
            found = resolve(scenario, request.query)
            settings = found.settings
            ar, sd = baseline_settings(settings)
            law = law_prediction(settings, law_inputs(scenario, settings), batch=scenario.batch)
            report = Report(
                scenario,
                simulate(scenario, settings),
                self._baseline(request, scenario, ar),
                None if sd is None else self._baseline(request, scenario, sd),
                law,
                [],
                sources,
            )
        except SettingError as error:
            return {**_setting(settings), **asked, "refused": str(error)}
        summary = report.run.summary
        return {
            **_setting(settings),
            **asked,
            "prompt_length": report.prompt_length,
            "tokens_per_second": summary.tokens_per_second,
            "speedup_vs_ar": report.speedup_vs_ar,
            "speedup_vs_ar_per_device": report.per_device(report.speedup_vs_ar),
            "speedup_vs_sd": report.speedup_vs_sd,
            "law_speedup_vs_ar": law.speedup_vs_ar,
            "cost_ratio": law.assumptions.ratio if law.assumptions.draft_s else None,
            "tokens_per_round": summary.tokens_per_round,
            "acceptance_rate": summary.acceptance_rate,
            "cache_hit_rate": summary.cache_hit_rate,
            "time_to_first_token_s": summary.time_to_first_token_s,
            "devices": report.devices["policy"].total if report.devices else None,
            "engine": report.run.engine,
            "extrapolated": "; ".join(map(str, report.run.extrapolated)),
            "refused": None,
        }

    def _baseline(self, request: SimulationRequest, scenario: Scenario, settings: Settings) -> Simulated:
        """As `simulate`, once for all requests that differ in their policy alone."""
        key = (id(scenario.tokens), *_world(request).items(), settings)
        if key not in self._known:
            self._known[key] = (scenario, simulate(scenario, settings))
        return self._known[key][1]


def _world(request: SimulationRequest) -> Row:
    """What is asked beside the setting."""
    return {each.name: getattr(request, each.name) for each in fields(request) if each.name != "query"}


def _asked(request: SimulationRequest) -> Row:
    """Columns of what is asked beside the setting, plain values."""
    names = ("hw", "batch", "acceptance", "prompt_length", "placement", "draft_factor", "requests")
    values = {name: getattr(request, name) for name in names}
    return {name: value.stem if isinstance(value, Path) else value for name, value in values.items()}


def _setting(settings: Settings) -> Row:
    """Columns of a setting."""
    return {
        "setting": settings.label,
        "policy": settings.policy,
        "lookahead": settings.lookahead,
        "fanout": None if settings.fanout is None else ",".join(map(str, settings.fanout)),
        "backup": settings.backup,
        "draft_devices": settings.draft_devices,
        "temperature": settings.temperature,
        "knobs": to_json(settings.knobs | ({"seed": settings.seed} if settings.seed else {})),
    }


def row_schema() -> pa.Schema:
    """Columns of a row whose acceptance is a number, as Parquet has them."""
    import pyarrow as pa

    words = (
        "setting", "policy", "fanout", "backup", "knobs", "hw", "placement", "engine", "extrapolated",
        "refused",
    )  # fmt: skip
    counts = ("lookahead", "draft_devices", "batch", "requests", "devices")
    names = (
        "setting", "policy", "lookahead", "fanout", "backup", "draft_devices", "temperature", "knobs", "hw",
        "batch", "acceptance", "prompt_length", "placement", "draft_factor", "requests", "tokens_per_second",
        "speedup_vs_ar", "speedup_vs_ar_per_device", "speedup_vs_sd", "law_speedup_vs_ar", "cost_ratio",
        "tokens_per_round", "acceptance_rate", "cache_hit_rate", "time_to_first_token_s", "devices", "engine",
        "extrapolated", "refused",
    )  # fmt: skip
    kinds = {**dict.fromkeys(words, pa.string()), **dict.fromkeys(counts, pa.int64())}
    return pa.schema([(name, kinds.get(name, pa.float64())) for name in names])


# All rows


def parallel(
    work: Callable[[Chunk], list[Row]], chunks: Sequence[Chunk], jobs: int, done: Callable[[int], None]
) -> Iterator[list[Row]]:
    """The rows of all chunks in their order, `done` being told how many there are so far.

    More than one job is joblib's affair: processes here, or what the backend that is registered with it has
    (`joblib.parallel_config`), of which -1 takes all.

    Raises:
        ImportError: joblib is needed and not installed.
    """
    for number, rows in enumerate(map(work, chunks) if jobs == 1 else _by_joblib(work, chunks, jobs)):
        done(number + 1)
        yield rows


def _by_joblib(work: Callable[[Chunk], list[Row]], chunks: Sequence[Chunk], jobs: int) -> Iterator[list[Row]]:
    from joblib import Parallel, delayed, effective_n_jobs

    # Some at a time and not as a generator, which Dask's backend has not.
    some = ROUNDS_OF_JOBS * effective_n_jobs(jobs)
    with Parallel(jobs) as pool:
        for first in range(0, len(chunks), some):
            yield from pool(delayed(work)(chunk) for chunk in chunks[first : first + some])


def kept_in_parts(
    work: Callable[[Chunk], list[Row]],
    chunks: Sequence[Chunk],
    schema: pa.Schema,
    path: Path,
    *,
    about: Mapping[str, Any],
    jobs: int = 1,
    progress: Progress = lambda stage, done, total: None,
) -> int:
    """Write the rows of all chunks to a Parquet file, a row group each, and return how many chunks were new.

    What is done is kept beside it, a file per chunk, until all are: only those that are missing, or are of
    another sweep than `about` says, are worked on, and nothing where the file is of this sweep.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    meta = {KEY: to_json(dict(about)).encode()}
    if path.is_file() and (pq.read_schema(path).metadata or {}).get(KEY) == meta[KEY]:
        return 0
    stamp = hashlib.sha256(meta[KEY] + str(schema).encode()).hexdigest()[:16]
    parts = path.with_suffix(".parts")
    files = [parts / f"{stamp}-{number:06d}.parquet" for number in range(len(chunks))]
    missing = [number for number, file in enumerate(files) if not file.is_file()]
    parts.mkdir(parents=True, exist_ok=True)
    before = len(files) - len(missing)
    rows_of = parallel(
        work,
        [chunks[number] for number in missing],
        jobs,
        lambda done: progress("settings", before + done, len(files)),
    )
    for number, rows in zip(missing, rows_of, strict=True):
        with atomic_write(files[number], binary=True) as file:
            pq.write_table(pa.Table.from_pylist(rows, schema), file)
    with (
        atomic_write(path, binary=True) as whole,
        pq.ParquetWriter(whole, schema.with_metadata(meta)) as writer,
    ):
        for part in files:
            writer.write_table(pq.read_table(part).cast(schema))
    shutil.rmtree(parts)
    return len(missing)
