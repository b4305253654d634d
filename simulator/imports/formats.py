"""The formats that can be read, what each is told from, and the reading of a file in one of them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from hardware_profiles.files import FileRefused
from hardware_profiles.files import read_text as load_text
from simulator.imports import llamacpp, others, sglang, vllm  # noqa: F401  (each registers its formats)
from simulator.imports.measured import Imported, ImportRefused, pool
from simulator.imports.text import REGISTERED, Format, Text, reads, samples_of

_LONGEST = 600
"""Characters of a message: it may quote what it refuses."""
_MALFORMED = (LookupError, TypeError, AttributeError, ValueError, RuntimeError, ArithmeticError)
"""What a parser raises on a text of another shape than it expects, beside `csv.Error` and `StopIteration`."""


def _is_configuration(text: Text) -> bool:
    if "method" in text.first or ("turns" in text.first and "choices" not in text.first):
        return True
    entries = text.whole.values() if isinstance(text.whole, dict) else ()
    return any(isinstance(entry, dict) and "candidate_steps" in entry for entry in entries)


@reads("configuration", "", "settings, not measurements", _is_configuration)
def _configuration(_: str) -> NoReturn:
    raise ImportRefused("this is a configuration or a list of questions: nothing in it was measured")


_ORDER = """
vllm-counters-delta vllm-counters llamacpp-counters sglang-gauges sglang-bench vllm-bench vllm-dynamic
vllm-request sglang-meta-info sglang-stats sglang-nightly llamacpp-timings llama-bench specforge guidellm
aiperf llama-batched-bench spec-bench pearl answers configuration vllm-log bench-console sglang-log
sglang-decoupled-verifier sglang-decoupled-proxy llamacpp-log llamacpp-closing ik-llama-table
llama-bench-table speculators ssd-profile ssd-log nano-pearl
"""
FORMATS = tuple(REGISTERED[name] for name in _ORDER.split())
"""The first that fits is taken: JSON before lines, the telling before the general."""
COUNTERS = ("vllm-counters", "llamacpp-counters")
"""Pages of which an earlier one can be subtracted."""


def sniff(text: str) -> Format:
    """The format of a text.

    Raises:
        ImportRefused: It looks like none.
    """
    look = Text.of("\n" + text)
    for fmt in FORMATS:
        if fmt.fits(look):
            return fmt
    raise ImportRefused(
        "unknown format: it looks like none of those that can be read (`python -m simulator.imports formats` "
        "lists them; --format chooses one)"
    )


def find_format(name: str) -> Format:
    """The format of that name.

    Raises:
        ImportRefused: There is none.
    """
    if name in REGISTERED:
        return REGISTERED[name]
    raise ImportRefused(f"unknown format {name!r}; choices: {', '.join(each.name for each in FORMATS)}")


def read_text(text: str, fmt: Format) -> tuple[Imported, ...]:
    """The measurements of a text in a format.

    Raises:
        ImportRefused: Whatever is wrong with it.
    """
    try:
        found = fmt.parse(text)
        if not found:
            raise ImportRefused(f"holds no measurement ({fmt.what})")
        return tuple(replace(m, engine=m.engine or fmt.engine, source=m.source or fmt.name) for m in found)
    except ImportRefused:
        raise
    except FileRefused as error:
        raise ImportRefused(f"expected JSON ({fmt.what}): {error}", error.line) from error
    except KeyError as error:
        raise ImportRefused(f"expected an entry {error} ({fmt.what})") from error
    except (*_MALFORMED, csv.Error, StopIteration) as error:
        raise ImportRefused(f"not what {fmt.name} looks like ({fmt.what}): {_brief(error)}") from error


@dataclass(frozen=True, slots=True)
class Read:
    """A file that was read, and what it was taken for."""

    path: Path
    format: Format
    measured: tuple[Imported, ...]


def read_file(path: Path, *, name: str | None = None, before: Path | None = None) -> Read:
    """Read a file.

    Args:
        path: Of the file.
        name: Of its format; None to find out.
        before: An earlier page of the same counters, to be subtracted.

    Raises:
        FileRefused: It cannot be read, or is not what was expected; with its name and, where known, the line.
    """
    text = _load(path)
    with naming_file(path):
        fmt = sniff(text) if name is None else find_format(name)
        if before is None:
            return Read(path, fmt, read_text(text, fmt))
        if fmt.name not in COUNTERS:
            raise ImportRefused(f"only pages of counters can be subtracted, this is {fmt.name}")
    earlier = _load(before)
    with naming_file(before):
        samples_of(earlier)
    with naming_file(path):
        return Read(path, fmt, (vllm.parse_difference(earlier, text),))


def selected(found: Read, label: str) -> Imported:
    """The measurement of that label.

    Raises:
        ImportRefused: There is none.
    """
    for measured in found.measured:
        if measured.label == label:
            return measured
    labels = ", ".join(repr(m.label) for m in found.measured)
    raise ImportRefused(f"{found.path}: no measurement {label!r}; there are {labels}")


def one_of(found: Read, chosen: Sequence[Imported]) -> Imported:
    """The only measurement of those, or all windows of a run added up.

    Raises:
        ImportRefused: There are several that do not add up.
    """
    if len(chosen) == 1:
        return chosen[0]
    if not found.format.pools:
        labels = ", ".join(repr(m.label) for m in chosen)
        raise ImportRefused(f"holds {len(chosen)} measurements; choose one with --select: {labels}")
    return pool([m for m in chosen if m.label != "plain"])


def choose(found: Read, label: str | None) -> tuple[Imported, Imported | None]:
    """A measurement of speculation, and the one of plain decoding beside it, if the file has one.

    Of several of plain decoding the one is taken whose label begins most like the other's.

    Raises:
        ImportRefused: As `selected` and `one_of`.
    """
    plain = [m for m in found.measured if m.target_step_s and m.tokens_per_round is None]
    rest = [m for m in found.measured if m not in plain] or list(found.measured)
    chosen = one_of(found, rest) if label is None else selected(found, label)
    near = max(plain, key=lambda m: _alike(m.label, chosen.label), default=None)
    return chosen, near


def _alike(one: str, other: str) -> int:
    """Letters that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Errors that name the file, and the line where known."""
    try:
        yield
    except ImportRefused as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise ImportRefused(f"{where}: {_brief(error)}", error.line) from error


def _load(path: Path) -> str:
    text = load_text(path)
    if not text.strip():
        raise ImportRefused(f"{path}: the file is empty")
    return text


def _brief(error: Exception) -> str:
    """What went wrong, on one line."""
    said = " ".join(str(error).split())
    return said if len(said) <= _LONGEST else said[:_LONGEST] + "..."
