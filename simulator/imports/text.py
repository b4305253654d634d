"""A text that is to be recognised, and what is known of a format that it may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hardware_profiles.jsonfile import FileRefused, parse_json
from simulator.imports.measured import Imported, ImportRefused


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is to be recognised.

    Attributes:
        raw: All of it.
        whole: The JSON value it is; None if it is none.
        first: The JSON object in its first line; empty if there is none.
    """

    raw: str
    whole: Any
    first: dict[str, Any]

    @classmethod
    def of(cls, raw: str) -> Text:
        """Look at a text."""
        first = _json(raw.strip().partition("\n")[0])
        return cls(raw, _json(raw), first if isinstance(first, dict) else {})

    def has(self, *path: str) -> bool:
        """Whether the JSON object has an entry at nested keys."""
        here = self.whole
        for key in path:
            if not isinstance(here, dict) or key not in here:
                return False
            here = here[key]
        return True

    def says(self, *words: str) -> bool:
        """Whether the text has all of the words."""
        return all(word in self.raw for word in words)


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        name: For `--format`.
        what: Where such a file comes from, for people.
        fits: Whether a text looks like it.
        parse: The measurements of a text.
        pools: Whether several measurements of a file are windows of one run, to be added up.
    """

    name: str
    what: str
    fits: Callable[[Text], bool]
    parse: Callable[[str], tuple[Imported, ...]]
    pools: bool = False


def json_lines(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of every line of a text that is not empty.

    Raises:
        ImportRefused: A line that holds no JSON object.
    """
    for at, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = parse_json(line)
        except FileRefused as error:
            raise ImportRefused(f"expected a JSON object per line: {error}", at) from error
        if not isinstance(found, dict):
            raise ImportRefused("expected a JSON object per line", at)
        yield at, found


def lines_of(text: str, key: str) -> list[int]:
    """Lines at which a JSON text has an entry of that name, in its order."""
    wanted = f'"{key}"'
    return [at for at, line in enumerate(text.splitlines(), 1) for _ in range(line.count(wanted))]


def _json(text: str) -> Any:
    try:
        return parse_json(text)
    except FileRefused:
        return None
