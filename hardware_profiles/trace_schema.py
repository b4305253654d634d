"""What a trace file holds: its columns, what each is for, and what is kept about requests and origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, NonNegativeInt, PositiveInt, ValidationError

TRACE_SCHEMA = "spectwin/trace/1"
"""The one schema that this version reads and writes."""


class TraceError(ValueError):
    """A trace cannot be found, read or used; the message names the file, the column and the row."""


@dataclass(frozen=True)
class Column:
    """One column of a trace.

    Attributes:
        name: Its name, in the file and as a field of `Trace`.
        dtype: NumPy type of its numbers in the file.
        purpose: Who needs it, for the error when it is missing.
        width: Name of the `TraceMeta` field with the numbers per row; None if a row is one number.
        low: Smallest valid number, if any.
        high: Largest valid number, if any.
    """

    name: str
    dtype: Literal["int32", "int64", "float32"]
    purpose: str
    width: Literal["draft_top", "target_top"] | None = None
    low: float | None = None
    high: float | None = None


# Probabilities and masses are sums in float32, which may exceed 1 by rounding.
_ROUNDING = 1e-4

REQUIRED: tuple[Column, ...] = (
    Column("request", "int64", "the identity of the text"),
    Column("position", "int32", "the place in the text", low=0),
    Column("token", "int32", "the text itself", low=0),
)

OPTIONAL: tuple[Column, ...] = (
    Column("target_logprob", "float32", "acceptance when the target samples", high=_ROUNDING),
    Column("draft_logprob", "float32", "acceptance when the draft samples", high=_ROUNDING),
    Column("draft_rank", "int32", "greedy acceptance and hits of the speculation cache", low=0),
    Column("draft_top_ids", "int32", "the ids of cached candidates", "draft_top", low=0),
    Column("draft_top_logprobs", "float32", "the law of rejected tokens", "draft_top", high=_ROUNDING),
    Column("target_at_draft_top_logprobs", "float32", "rejections", "draft_top", high=_ROUNDING),
    Column("target_top_ids", "int32", "the target's own candidates", "target_top", low=0),
    Column("target_top_logprobs", "float32", "the target's own candidates", "target_top", high=_ROUNDING),
    Column("accept_mass", "float32", "rejections beyond the recorded candidates", low=0, high=1 + _ROUNDING),
    Column(
        "draft_next_top1_logprob", "float32", "the draft's confidence after its own first choice",
        high=_ROUNDING,
    ),
)  # fmt: skip

COLUMNS: Mapping[str, Column] = {column.name: column for column in REQUIRED + OPTIONAL}
"""All columns by name, in the order of the file."""


def exit_layer(name: str) -> int | None:
    """Layer of an `exit_rank_<layer>` column; None for any other."""
    prefix, _, layer = name.rpartition("_")
    return int(layer) if prefix == "exit_rank" and layer.isdecimal() else None


def describe_column(name: str) -> Column:
    """The column of that name; of an early exit's ranks, if it is none of the others."""
    return COLUMNS.get(name) or Column(name, "int32", "Mirror's early exits", low=0)


def explain_missing(name: str) -> str:
    """What a missing column is needed for, and what to do."""
    if name not in COLUMNS and exit_layer(name) is None:
        return f"column {name!r} is no column of a trace; there are {', '.join(COLUMNS)}, exit_rank_<layer>"
    return (
        f"column {name!r} is missing, which is needed for {describe_column(name).purpose}; record the trace "
        "again with `calibrate`, with this column, or choose a policy that does not need it"
    )


Ended: TypeAlias = Literal["end_token", "limit"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TraceRequest(_Frozen):
    """One recorded request.

    Attributes:
        id: Its identity, as in the column `request`.
        question_id: Its identity in the prompt set.
        category: Kind of text, to compare like with like.
        prompt: The prompt's token ids, at least one.
        source: Where the prompt comes from.
        ended: Whether the text ended by itself or at the limit.
    """

    id: int
    question_id: int | str
    category: str
    prompt: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    source: str = ""
    ended: Ended


class TraceMeta(_Frozen):
    """Where a trace comes from.

    Attributes:
        target_model: Name of the target.
        draft_model: Name of the draft.
        tokenizer: Name of the tokenizer.
        vocabulary: Number of token ids.
        sampling: The target's sampling setting, e.g. `{"temperature": 0.0}`; the text has this law.
        end_token: Id that ends a text; None if there is none.
        draft_top: M, candidates of the draft recorded per position; no fan-out can exceed it.
        target_top: Candidates of the target recorded per position.
        prompt_set: Name of the prompts.
        prompt_set_hash: Hash of the prompts.
        backend: What ran the draft; its log-probabilities depend on it.
        precision: The draft's precision.
        when: Date and time, ISO 8601.
        versions: Version of each package involved.
    """

    target_model: str
    draft_model: str
    tokenizer: str
    vocabulary: PositiveInt
    sampling: Mapping[str, JsonValue]
    end_token: NonNegativeInt | None = None
    draft_top: NonNegativeInt = 0
    target_top: NonNegativeInt = 0
    prompt_set: str = ""
    prompt_set_hash: str = ""
    backend: str = ""
    precision: str = ""
    when: str = ""
    versions: Mapping[str, str] = Field(default_factory=dict)


def describe_invalid(error: ValidationError) -> str:
    """The first thing in which a value is not what it should be, with its field."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{error.title}: {where}: {first['msg']}" if where else f"{error.title}: {first['msg']}"
