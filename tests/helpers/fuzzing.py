"""Damaged files for every reader: seeded mutations, and what each may do - run, or say one line.

`python tests/helpers/fuzzing.py` prints the counts by format; CONTRIBUTING.md has them.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

from calibrate.live.errors import ModelError  # noqa: E402  # after the path

DATA = ROOT / "hardware_profiles" / "data"
SAMPLES = ROOT / "tests" / "data" / "imports"
TRAFFIC = ROOT / "tests" / "data" / "traffic"
MUTATIONS = 12
"""Of each format."""

Reader = Callable[[Path], Any]

NUMBERS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1",
    "0",
    str(2**70),
    "9" * 5000,
    "null",
    "true",
    '"x"',
    "[]",
    "{}",
)
SCRAPS = (
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b'"',
    b"{",
    b"]",
    b",",
    b"\n\n",
    b"a" * 140_000,
    b"[" * 3000,
    b"1e400",
    b"|",
)
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**70, 1e308, float("nan"), float("inf"), "", "x", "\ud800", "../../x", "a" * 5000,
    [], {}, [[]], {"a": 1},
)  # fmt: skip


class Unguarded(AssertionError):
    """A reader let something else out than one line that names the file."""


@dataclass
class Count:
    """What became of the mutations of a format."""

    mutations: int = 0
    accepted: int = 0
    refused: int = 0


@dataclass(frozen=True)
class Format:
    """A format, a sound file of it and its reader.

    Attributes:
        name: For people.
        sample: A sound file; of a folder's format the file in it that is damaged.
        read: Reads it, and uses what it read so far that a number would come out.
    """

    name: str
    sample: Path
    read: Reader


def fuzz(fmt: Format, mutations: int, folder: Path) -> Count:
    """Read a sound file, then damaged ones.

    Raises:
        Unguarded: With the mutation that got through.
    """
    found = Count()
    content = fmt.sample.read_bytes()
    path = folder / fmt.sample.name
    for number in range(-1, mutations):
        draw = random.Random(f"{fmt.name} {number}")
        damaged = content if number < 0 else mutated(content, path.suffix == ".parquet", draw)
        path.write_bytes(damaged)
        accepted = runs_or_says_why(fmt, path, f"{fmt.name}, mutation {number}")
        if number < 0:
            assert accepted, f"{fmt.name}: the sound file is refused"
            continue
        found.mutations += 1
        found.accepted += accepted
        found.refused += not accepted
    return found


def runs_or_says_why(fmt: Format, path: Path, which: str) -> bool:
    """Whether a file is accepted; raises `Unguarded` where it is neither accepted nor refused in one line."""
    try:
        fmt.read(path)
    except (ValueError, ModelError) as error:
        said = str(error)
        if "\n" in said or len(said) > 1500:
            raise Unguarded(f"{which}: more than a line: {said[:300]!r}") from error
        if path.name not in said and path.parent.name not in said:
            raise Unguarded(f"{which}: no file is named: {said[:300]!r}") from error
        reason = said.replace(str(path), "").replace(str(path.parent), "").strip(": ")
        if len(reason) < 4:
            raise Unguarded(f"{which}: no reason: {said[:300]!r}") from error
        return False
    except Exception as error:
        raise Unguarded(f"{which}: {type(error).__name__}: {str(error)[:300]}") from error
    return True


def mutated(content: bytes, is_parquet: bool, draw: random.Random) -> bytes:
    """One damage: of the tree of a JSON text, of a table's columns or metadata, or of plain bytes."""
    if is_parquet:
        return _damaged_table(content, draw) if draw.random() < 0.8 else _damaged_bytes(content, draw)
    if draw.random() < 0.6 and (text := _damaged_tree(content, draw)) is not None:
        return text
    return _damaged_bytes(content, draw)


def _damaged_tree(content: bytes, draw: random.Random) -> bytes | None:
    """A value of a JSON text, or of a line of one, replaced or left out; None where it is no JSON."""
    try:
        whole, lines = json.loads(content), None
    except ValueError:
        lines = content.decode(errors="replace").splitlines()
        at = draw.randrange(len(lines)) if lines else 0
        try:
            whole = json.loads(lines[at]) if lines else None
        except ValueError:
            return None
    places = list(_places(whole))
    if not places:
        return None
    holder, key = draw.choice(places)
    what = draw.random()
    if what < 0.2 and isinstance(holder, dict):
        del holder[key]
    elif what < 0.3:
        holder[key] = _deep(draw.choice((30, 150, 900)))
    else:
        holder[key] = draw.choice(VALUES)
    text = json.dumps(whole)
    if lines is None:
        return text.encode()
    lines[at] = text
    return "\n".join(lines).encode(errors="replace")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _damaged_bytes(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(content) + 1)
    end = min(len(content), start + draw.choice((1, 5, 40, 400)))
    kind = draw.randrange(6)
    if kind == 0:
        return content[:start]
    if kind == 1:
        return content[:start] + content[end:]
    if kind == 2:
        return content[:end] + content[start:]
    if kind == 3:
        return content[:start] + draw.choice(SCRAPS) + content[start:]
    if kind == 4 and (digits := [i for i, byte in enumerate(content) if chr(byte).isdigit()]):
        at = draw.choice(digits)
        stop = at
        while stop < len(content) and chr(content[stop]) in "0123456789.":
            stop += 1
        return content[:at] + draw.choice(NUMBERS).encode() + content[stop:]
    return content[:start] + bytes([draw.randrange(256)]) + content[start + 1 :]


def _damaged_table(content: bytes, draw: random.Random) -> bytes:
    """A column of another type, twice, away or empty; or metadata damaged as a JSON text is."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    read = pq.ParquetFile(pa.BufferReader(content))
    table, texts = read.read().replace_schema_metadata(), dict(read.metadata.metadata or {})
    texts.pop(b"ARROW:schema", None)
    at = draw.randrange(table.num_columns)
    name, rows = table.column_names[at], table.num_rows
    kind = draw.randrange(8)
    if kind == 0:
        table = table.remove_column(at)
    elif kind == 1:
        table = table.append_column(name, table.column(at))
    elif kind <= 4:
        fill = draw.choice(
            (["x"] * rows, [None] * rows, [float("nan")] * rows, [[1, 2]] * rows, [-1] * rows, [2**62] * rows)
        )
        table = table.set_column(at, name, pa.array(fill))
    elif kind == 5:
        table = table.slice(0, draw.randrange(rows + 1))
    elif texts:
        key = draw.choice(sorted(texts))
        texts[key] = _damaged_tree(texts[key], draw) or _damaged_bytes(texts[key], draw)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(texts)
    return sink.getvalue().to_pybytes()


def own_formats(folder: Path) -> Iterator[Format]:
    """Formats of the project itself; small samples are written to `folder`."""
    from calibrate.live.placement import local_vocabulary
    from calibrate.models import model_size, token_ids
    from calibrate.prompts import load_prompts
    from hardware_profiles.datastore import Datastore
    from hardware_profiles.profile import format_profile, load_profile
    from hardware_profiles.reply_trace import DecisionTrace, read_decisions, read_timings, write_decisions
    from hardware_profiles.shapes import CONFIGS, find_shape
    from hardware_profiles.trace import read_trace, write_trace
    from simulator.imports.__main__ import _simulated
    from simulator.imports.formats import read_file
    from simulator.imports.measured import acceptance_of, write_acceptance
    from simulator.tokens.acceptance import load_acceptance

    def written(name: str, text: str) -> Path:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        return folder / name

    yield Format("profile", DATA / "profiles" / "cpu2-x5.json", lambda p: format_profile(load_profile(p)))
    yield Format(
        "profile by hand", DATA / "profiles" / "textbook.json", lambda p: format_profile(load_profile(p))
    )
    trace = read_trace(DATA / "traces" / "cpu2-x5-t1.parquet")
    write_trace(trace.slice([request.id for request in trace.requests[:2]]), folder / "trace.parquet")
    yield Format("trace", folder / "trace.parquet", read_trace)
    decided = read_decisions(DATA / "decisions" / "cpu2-x5-tree.parquet")
    label = next(iter(decided.settings))
    few = decided.slice([request.id for request in decided.requests[:2]])
    one = DecisionTrace(
        few.requests, few.meta, {label: few.settings[label]}, few.limit, few.operation_timings
    )
    write_decisions(one, folder / "decisions.parquet")
    yield Format(
        "decision trace", folder / "decisions.parquet", lambda p: (read_decisions(p), read_timings(p))
    )
    (measured,) = read_file(SAMPLES / "vllm" / "prometheus_delta_K7_dflash.json").measured
    write_acceptance(folder / "acceptance.json", acceptance_of(measured, "a.json"))
    yield Format("acceptance file", folder / "acceptance.json", load_acceptance)
    config = written("config.json", json.dumps({**CONFIGS["qwen3-14b"][0], "max_position_embeddings": 99}))

    def read_model(path: Path) -> None:
        find_shape(str(path))
        model_size(str(path))
        local_vocabulary(str(path))

    yield Format("model config.json", config, read_model)
    tokens = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1, "content": "b"}]}
    tokenizer = written("tokenizer.json", json.dumps(tokens))
    yield Format("tokenizer.json", tokenizer, lambda p: token_ids(str(p.parent)))
    prompts = "".join(
        json.dumps({"question_id": i, "category": "c", "turns": [f"text {i}"], "source": "s"}) + "\n"
        for i in range(4)
    )
    yield Format("prompts", written("prompts.jsonl", prompts), load_prompts)
    answer = json.dumps({"policy": "sd", "knobs": {"lookahead": 4}, "batch": 1})
    yield Format("simulate --json, for export", written("answer.json", answer), _simulated)
    store = folder / "store"
    Datastore.of_texts([[1, 2, 3, 1, 2]], 8, sources=("s",)).write(store)

    def read_store(path: Path) -> None:
        for name in ("tokens.npy", "suffixes.npy"):
            shutil.copy(store / name, path.parent / name)
        Datastore.open(path.parent).lookup([1, 2], longest=2, span=2, count=1)

    yield Format("datastore.json", store / "datastore.json", read_store)
    yield from kernel_formats(folder / "kernels")


def kernel_formats(folder: Path) -> Iterator[Format]:
    """What others measured of GPUs: tables of kernels and layers, configs that they are put together by."""
    from tiny_tables import CONFIG, write_layers, write_tables

    from hardware_profiles.composed import Composer
    from hardware_profiles.kernels import Tables, find_tables
    from hardware_profiles.layers import Layers, forwards_profile
    from hardware_profiles.networks import find_network, network_of_config
    from policies.registry import configure
    from simulator.imports.lengths import COLUMNS, read_lengths
    from simulator.tokens.accepted import accepted_tokens

    wheel = write_tables(folder / "wheel")
    data = wheel / "aiconfigurator_core/systems/data/h100_sxm"
    network = network_of_config(CONFIG, name="tiny")

    def read_kernels(place: str) -> Reader:
        def read(path: Path) -> float:
            sound = (data / place).read_bytes()
            shutil.copy(path, data / place)
            try:
                return Composer(Tables(find_tables(wheel), "h100"), network).forward(3, 2, 50).seconds
            finally:
                (data / place).write_bytes(sound)

        return read

    for name in ("gemm/vllm/0.24.0/gemm_perf", "attention/vllm/0.24.0/generation_attention_perf"):
        place = f"{name}.parquet"
        sample = folder / Path(place).name
        shutil.copy(data / place, sample)
        yield Format(f"kernel table {sample.stem}", sample, read_kernels(place))
    layers = write_layers(folder / "layers")

    def read_layers(path: Path) -> float:
        for name in ("per_sequence.csv", "attention.csv"):
            shutil.copy(layers / name, path.parent / name)
        return Layers(path.parent, network).forward(2, 1, 20).seconds

    yield Format("layers' times", layers / "dense.csv", read_layers)
    (folder / "forwards.csv").write_text("tokens,context,ms\n1,0,5\n1,100,6\n8,0,7\n8,100,8\n")
    yield Format(
        "CSV of forwards", folder / "forwards.csv", lambda p: forwards_profile(p, name="f", machine="a GPU")
    )
    (folder / "config.json").write_text(json.dumps({**CONFIG, "sliding_window": 8, "num_experts": 0}))
    yield Format(
        "config.json, for kernels", folder / "config.json", lambda p: find_network(str(p)).weight_bytes
    )
    rows = [
        ("m", "d", "EAGLE3", "on", "coding", "1", "1.8", "run"),
        ("m", "d", "EAGLE3", "on", "coding", "2", "2.2", "run"),
    ]
    (folder / "lengths.csv").write_text("\n".join(",".join(row) for row in (COLUMNS, *rows)))
    yield Format("acceptance lengths", folder / "lengths.csv", read_lengths)
    recorded = {
        "prompt_token_ids": [1],
        "generated_token_ids": [5, 6, 7],
        "acc_eagle": {"acc_len": [1, 2, 1]},
    }
    (folder / "accepted.jsonl").write_text(json.dumps(recorded) + "\n" + json.dumps(recorded))
    yield Format(
        "accepted lengths",
        folder / "accepted.jsonl",
        lambda p: accepted_tokens(p, configure("sd", lookahead=2)),
    )


def import_formats() -> Iterator[Format]:
    """What other engines write: a format by sample, found out and asked for by name."""
    from hardware_profiles.files import to_json
    from simulator.imports.formats import read_file
    from simulator.imports.measured import ImportRefused

    def reader(name: str | None) -> Reader:
        def read(path: Path) -> str:
            found = read_file(path, name=name)
            return to_json([measured.as_dict() for measured in found.measured])

        return read

    for path in sorted(p for p in SAMPLES.rglob("*") if p.is_file()):
        try:
            name = read_file(path).format.name
        except ImportRefused:  # configurations, of which nothing was measured
            continue
        if path.stat().st_size > 300_000:
            continue
        yield Format(f"import {name} ({path.name})", path, reader(name))


def traffic_formats() -> Iterator[Format]:
    """Traces of requests, whose layout is found out."""
    from serving.traces import read_traffic

    for path in sorted(p for p in TRAFFIC.iterdir() if p.suffix != ".yaml"):
        yield Format(f"traffic ({path.name})", path, read_traffic)


def all_formats(folder: Path) -> list[Format]:
    """Every format."""
    return [*own_formats(folder), *import_formats(), *traffic_formats()]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as damaged:
        total = Count()
        lines = ["| format | mutations | accepted | refused |", "|---|---:|---:|---:|"]
        for each in all_formats(Path(made)):
            count = fuzz(each, int(sys.argv[1]) if len(sys.argv) > 1 else MUTATIONS, Path(damaged))
            lines.append(f"| {each.name} | {count.mutations} | {count.accepted} | {count.refused} |")
            total = Count(
                *(getattr(total, f) + getattr(count, f) for f in ("mutations", "accepted", "refused"))
            )
        lines.append(f"| all | {total.mutations} | {total.accepted} | {total.refused} |")
        sys.stdout.write("\n".join(lines) + "\n")
