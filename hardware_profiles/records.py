"""Records: what files hold as immutable values, and everything that is wrong with one, by field.

They are structs of msgspec, whose classes are made and whose files are read at a price that a short command
does not notice.  A class states its checks by its types (`Share`, `Seconds`, ...) and, where several fields
must fit together, in `__post_init__`.  Types are checked where a record is read (`record`), not where the
program makes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, field

__all__ = [
    "Count",
    "FieldError",
    "Frozen",
    "Natural",
    "Positive",
    "RecordError",
    "Seconds",
    "Share",
    "field",
    "plain",
    "record",
]

Count: TypeAlias = Annotated[int, Meta(gt=0)]
Natural: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]

Fault: TypeAlias = tuple[str, str]
"""The dotted path of a field, and what is wrong with it."""
T = TypeVar("T")
_MOST_SHOWN = 5


class FieldError(ValueError):
    """What `__post_init__` raises where a field *below* the record is at fault.

    Args:
        path: Dotted path of the field, relative to the record.
        message: What is wrong with it.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.faults: list[Fault] = [(path, message)]


class RecordError(ValueError):
    """A value is no record of its class; the message has the path of each bad field, up to five.

    Attributes:
        title: Name of the class.
        faults: All of them.
    """

    def __init__(self, title: str, faults: list[Fault]) -> None:
        lines = [": ".join(filter(None, fault)) for fault in faults[:_MOST_SHOWN]]
        if len(faults) > _MOST_SHOWN:
            lines.append(f"and {len(faults) - _MOST_SHOWN} more")
        super().__init__("; ".join(lines))
        self.title, self.faults = title, faults


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all records: immutable, no unknown field.  Classes whose fields are many are `kw_only`."""

    def but(self, **changes: Any) -> Self:
        """The record with other values of some fields."""
        return msgspec.structs.replace(self, **changes)


def record(kind: type[T], value: Any) -> T:
    """The record that a value of a file is, e.g. one of `files.parse_json`.

    Raises:
        RecordError: It is none.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        from msgspec.inspect import type_info  # seldom needed

        faults = list(_faults(type_info(kind), value, ""))
        raise RecordError(kind.__name__, faults or [("", str(error))]) from None


def plain(value: Any) -> Any:
    """A record as mappings, lists and numbers, defaults included, by the names that files use."""
    return msgspec.to_builtins(value, enc_hook=_item)


def _item(value: Any) -> Any:
    """A number of numpy, as which some are measured, as Python's own."""
    return value.item()


def _faults(kind: Any, value: Any, at: str) -> Iterator[Fault]:
    """Everything that is wrong with a value of a type, as `msgspec.inspect` tells of it."""
    look = _LOOKS.get(type(kind).__name__)
    if look is not None:
        yield from look(kind, value, at)
        return
    types, noun = _SCALARS.get(type(kind).__name__, (object, ""))
    wrong = isinstance(value, bool) and types is not bool and noun != ""
    if wrong or not isinstance(value, types):
        yield at, f"must be {noun}{_got(value)}"
        return
    for name, words in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
        bound = getattr(kind, name, None)
        if bound is not None and not _COMPARE[name](value, bound):
            yield at, f"must be {words} {bound:g}{_got(value)}"
            return
    if type(kind).__name__ == "DateTimeType":
        try:
            msgspec.convert(value, datetime)
        except msgspec.ValidationError:
            yield at, f"must be {noun}{_got(value)}"


def _struct_faults(kind: Any, value: Any, at: str) -> Iterator[Fault]:
    if not isinstance(value, Mapping):
        yield at, f"must be an object{_got(value)}"
        return
    known = {each.encode_name: each for each in kind.fields}
    found: list[Fault] = []
    for name, each in known.items():
        if name in value:
            found += _faults(each.type, value[name], _below(at, name))
        elif each.required:
            found.append((_below(at, name), "is required"))
    found += [(_below(at, name), "is no field") for name in value if name not in known]
    if not found:
        found = [(_below(at, path), message) for path, message in _contradictions(kind.cls, value)]
    yield from found


def _contradictions(kind: type[Any], value: Any) -> list[Fault]:
    """What `__post_init__` says of a value whose fields are each what they should be."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        said = error.__cause__
        faults: list[Fault] | None = getattr(said, "faults", None)
        return faults if faults is not None else [("", str(said or error))]
    return []


def _union_faults(kind: Any, value: Any, at: str) -> Iterator[Fault]:
    others = [each for each in kind.types if type(each).__name__ != "NoneType"]
    if value is None and len(others) < len(kind.types):
        return
    found = [list(_faults(each, value, at)) for each in others]
    if all(found):
        if len(others) == 1:
            yield from found[0]
        else:
            yield at, " or ".join(words.partition(", got")[0] for (_, words), *_ in found) + _got(value)


def _literal_faults(kind: Any, value: Any, at: str) -> Iterator[Fault]:
    if value not in kind.values:
        *first, last = map(repr, kind.values)
        names = f"{', '.join(first)} or {last}" if first else last
        yield at, f"must be {names}{_got(value)}"


def _mapping_faults(kind: Any, value: Any, at: str) -> Iterator[Fault]:
    if not isinstance(value, Mapping):
        yield at, f"must be an object{_got(value)}"
        return
    for name, each in value.items():
        here = _below(at, name)
        yield from _faults(kind.key_type, name, here)
        yield from _faults(kind.value_type, each, here)


def _list_faults(kind: Any, value: Any, at: str) -> Iterator[Fault]:
    if not isinstance(value, list | tuple):
        yield at, f"must be a list{_got(value)}"
        return
    fixed = getattr(kind, "item_types", None)
    if fixed is not None and len(value) != len(fixed):
        yield at, f"must have {len(fixed)} entries, got {len(value)}"
        return
    if len(value) < (getattr(kind, "min_length", None) or 0):
        yield at, "must not be empty"
    for index, each in enumerate(value):
        yield from _faults(fixed[index] if fixed else kind.item_type, each, _below(at, index))


_LOOKS: Mapping[str, Any] = {
    "StructType": _struct_faults,
    "UnionType": _union_faults,
    "LiteralType": _literal_faults,
    "DictType": _mapping_faults,
    "VarTupleType": _list_faults,
    "TupleType": _list_faults,
    "ListType": _list_faults,
}
_SCALARS: Mapping[str, tuple[Any, str]] = {
    "FloatType": ((int, float), "a number"),
    "IntType": (int, "a whole number"),
    "StrType": (str, "a text"),
    "BoolType": (bool, "true or false"),
    "DateTimeType": (str, "a date and time"),
}
_COMPARE: Mapping[str, Any] = {
    "gt": lambda value, bound: value > bound,
    "ge": lambda value, bound: value >= bound,
    "lt": lambda value, bound: value < bound,
    "le": lambda value, bound: value <= bound,
}


def _below(at: str, name: object) -> str:
    return ".".join(filter(None, (at, str(name))))


def _got(value: Any) -> str:
    return f", got {value!r:.80}" if isinstance(value, str | int | float) else ""
