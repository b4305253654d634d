"""Typed settings: one frozen class of knobs per policy, from which everything else derives.

A policy's class stands beside its generator.  The annotations of its fields (`Knob`) give the options of
commands, the checks of values, the labels of tables and the entries of recordings, and are what there is to
read about them.  `PolicyInfo` is what else there is to say of a policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from policies.protocols import Steps, World
from policies.rows import Rows
from policies.sampling import DraftMode, Sampling

Kind: TypeAlias = Literal["integer", "number", "name", "integers", "text"]
WorldName: TypeAlias = Literal["simulated", "live"]
OnOff: TypeAlias = Literal["on", "off"]
T = TypeVar("T")

LookaheadRule: TypeAlias = Literal["fastest", "balanced", "cost ratio"]
"""How a lookahead is chosen that is left open: the fastest by law and simulation; the one at which a block is
drafted while the target takes a step; what the ratio of costs gives, searched with a single sequence."""

DEFAULT_LOOKAHEAD = 4
MAX_LOOKAHEAD = 64
EXACT = "exact on the on-path trace"
DECISIONS = "exact on a decision trace of the setting"


class SettingError(ValueError):
    """A policy was given a setting that it cannot run with; the message says the way out."""


_KINDS: dict[Any, Kind] = {int: "integer", float: "number", str: "text", tuple: "integers"}
_ARTICLE: dict[Kind, str] = {"integer": "a whole number", "number": "a number"}


@dataclass(frozen=True, slots=True)
class Knob:
    """A knob of a policy: `lookahead: Annotated[int, Knob("...", least=1)] = 4`.

    Attributes:
        help: One sentence, without the default.
        least: Smallest number, inclusive.
        most: Largest number, inclusive.
        sampled: Whether it changes nothing at temperature 0.
        rare: Whether labels leave it out at its default.
        at_zero: What to do in place of giving 0.
        name: Of the field; the command line writes it with dashes.  This and what follows is the field's own
            (`knobs_of`), not the annotation's.
        kind: What its values are; `integers` are several, e.g. F_0 ... F_K.
        default: Value where none is given.
        choices: Names that it takes.
    """

    help: str
    _: KW_ONLY
    least: float | None = None
    most: float | None = None
    sampled: bool = False
    rare: bool = True
    at_zero: str = ""
    name: str = ""
    kind: Kind = "text"
    default: Any = None
    choices: tuple[str, ...] = ()

    def of_field(self, name: str, hint: Any, default: Any) -> Knob:
        """The knob of a field with this type."""
        given = [each for each in get_args(hint) if each is not NoneType]
        if get_origin(hint) in {Union, UnionType} and len(given) == 1:  # X | None
            hint = given[0]
        if get_origin(hint) is Literal:
            return replace(self, name=name, default=default, kind="name", choices=get_args(hint))
        return replace(self, name=name, default=default, kind=_KINDS[get_origin(hint) or hint])

    def check(self, value: Any) -> Any:
        """`value` as the policies take it, a file's list as a tuple; the default for None.

        Raises:
            SettingError: Out of the knob's domain.
        """
        if value is None:
            return self.default
        if self.kind == "name" and value not in self.choices:
            plain = self.name.replace("_", " ")
            raise SettingError(f"unknown {plain} {value!r}; choices: {', '.join(self.choices)}")
        if self.kind in _ARTICLE:
            self._check_number(value)
        return tuple(value) if self.kind == "integers" and isinstance(value, list) else value

    def _check_number(self, value: Any) -> None:
        exact = isinstance(value, int) and not isinstance(value, bool)
        if not exact and (self.kind == "integer" or not isinstance(value, float) or not math.isfinite(value)):
            raise SettingError(f"{self.name} must be {_ARTICLE[self.kind]}, got {value!r}")
        low = self.least is not None and value < self.least
        high = self.most is not None and value > self.most
        if low or high:
            way_out = f"; {self.at_zero}" if value == 0 and self.at_zero else ""
            raise SettingError(f"{self.name} must be {self._domain()}, got {value:g}{way_out}")

    def _domain(self) -> str:
        if self.least is not None and self.most is not None:
            return f"between {self.least:g} and {self.most:g}"
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"


Lookahead: TypeAlias = Annotated[
    int,
    Knob(
        "K, drafted tokens per round.",
        least=1,
        most=MAX_LOOKAHEAD,
        rare=False,
        at_zero="use policy 'ar' for plain decoding",
    ),
]
DraftSampling: TypeAlias = Annotated[
    DraftMode, Knob("How the draft chooses at a temperature above 0.", sampled=True)
]
Overlap: TypeAlias = Annotated[
    OnOff, Knob("Draft while the target works (Mirror: its later layers), or take turns.")
]


@dataclass(frozen=True, slots=True)
class LawInputs:
    """What a paper's law is told of a pair.

    Attributes:
        acceptance: iid acceptance of a drafted token: greedy, the share of positions where the draft's
            first choice is the target's token; sampled, the mean of sum min(p, sigma).
        exponent: r of the hit curve's power law; None without a usable curve.
        scale: c of the power law.
        target_s: Seconds of one target step, whatever it verifies.
        draft_s: Seconds of one draft step, however many branches it drafts.
    """

    acceptance: float
    exponent: float | None
    scale: float
    target_s: float
    draft_s: float

    @property
    def ratio(self) -> float:
        """C, a target step over a draft step."""
        return self.target_s / self.draft_s

    @property
    def t_draft(self) -> float:
        """A draft step in target steps."""
        return self.draft_s / self.target_s


class LawValue(NamedTuple):
    """What the papers' closed form says of a policy.

    Attributes:
        statement: Id of the statement(s) used.
        speedup: Over plain decoding; None where the law does not apply, with `reason`.
        tokens: Mean tokens per round.
        hits: Long-run hit rate; None without a cache.
        reason: Why it has no answer.
        ceiling: C, target step over draft step, which PEARL's speedup cannot exceed (as printed; a draft
            slower than its target can); None for other policies.
    """

    statement: str
    speedup: float | None = None
    tokens: float | None = None
    hits: float | None = None
    reason: str | None = None
    ceiling: float | None = None


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Knobs of a policy; a subclass per policy adds its annotated fields.

    What of a policy depends on its knobs is a property here: how much it holds ahead of the text, whether it
    looks at the text, what is left of it where the content of tokens is ignored.
    """

    policy: ClassVar[str]
    plain: ClassVar[bool] = False
    lookahead_rule: ClassVar[LookaheadRule] = "fastest"

    @classmethod
    def of(cls, **values: Any) -> Self:
        """The configuration with these knobs, short forms written out."""
        return cls(**values)

    def check(self, sampling: Sampling) -> None:
        """Refuse knobs that contradict each other, with a `SettingError`."""

    @property
    def reads_text(self) -> bool:
        """Whether it looks at the tokens themselves, so that a world without ids cannot run it."""
        return False

    @property
    def ahead(self) -> int:
        """Tokens per row that the target's cache holds past the text."""
        return 0

    @property
    def draft_ahead(self) -> int:
        """Tokens per row that the draft's cache holds past the text."""
        return self.ahead

    @property
    def longest_run(self) -> int:
        """Drafted tokens that may be accepted one after the other."""
        return DEFAULT_LOOKAHEAD

    @property
    def cached_tokens(self) -> int:
        """Tokens per row in the speculation cache of one draft device."""
        return 0

    def follows_path(self, sampling: Sampling) -> bool:
        """Whether a path recorded by plain decoding decides every round, where `replay` asks for more."""
        return False

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """The papers' closed form of its speed at a batch size."""
        reason = f"no closed form gives the speed of {self.policy!r} from an acceptance alone"
        return LawValue("none", reason=reason)

    @property
    def content_ignored(self) -> PolicyConfig:
        """What is left of it where retrieval finds nothing and no draft is ever confident."""
        return self

    @property
    def single_sequence(self) -> PolicyConfig:
        """What it is with one sequence, which any recording replays at every lookahead."""
        return self


@dataclass(frozen=True, slots=True)
class LookaheadConfig(PolicyConfig):
    """Knobs of a policy that drafts K tokens per round."""

    lookahead: Lookahead = DEFAULT_LOOKAHEAD

    def deeper(self, lookahead: int) -> Self:
        """The same with another K."""
        return replace(self, lookahead=lookahead)

    @property
    def ahead(self) -> int:
        """K."""
        return self.lookahead

    @property
    def longest_run(self) -> int:
        """K."""
        return self.lookahead


_KNOWN: dict[type[PolicyConfig], Mapping[str, Knob]] = {}


def knobs_of(config: type[PolicyConfig]) -> Mapping[str, Knob]:
    """The knobs of a configuration, by name, in the order in which labels name them."""
    if config not in _KNOWN:
        hints = {n: get_args(hint) for n, hint in get_type_hints(config, include_extras=True).items()}
        _KNOWN[config] = {
            each.name: hints[each.name][1].of_field(each.name, hints[each.name][0], each.default)
            for each in fields(config)
        }
    return _KNOWN[config]


class _Shared(Generic[T]):
    """A knob that several policies have; None where a policy lacks it or it is not at work."""

    name: str

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, settings: Settings, owner: type) -> T | None:
        knob = knobs_of(type(settings.config)).get(self.name)
        if knob is None or (knob.sampled and settings.temperature == 0.0):
            return None
        value: T | None = getattr(settings.config, self.name)
        return value


@dataclass(frozen=True, slots=True)
class Settings:
    """A policy, its knobs and how tokens are chosen: ready to run.

    Attributes:
        config: The policy's knobs.  Those that all tables show are attributes here too.
        temperature: Of both models; 0 is greedy.
        top_p: Mass of both models' distributions that is kept.
        seed: Seed of the run.
    """

    config: PolicyConfig
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    lookahead = _Shared[int]()
    fanout = _Shared[tuple[int, ...]]()
    fanout_backup = _Shared[tuple[int, ...]]()
    backup = _Shared[str]()
    draft_devices = _Shared[int]()
    target_devices = _Shared[int]()
    draft_sampling = _Shared[DraftMode]()
    scale = _Shared[float]()

    @property
    def policy(self) -> str:
        """Name in the registry."""
        return self.config.policy

    @property
    def plain(self) -> bool:
        """Whether this is plain decoding, the baseline of every speedup."""
        return self.config.plain

    def but(self, **knobs: Any) -> Settings:
        """The settings with other values of some knobs, which are not checked."""
        return replace(self, config=replace(self.config, **knobs))

    @property
    def knobs(self) -> dict[str, Any]:
        """Its knobs by name, those left None left out; with policy and sampling they make it anew."""
        mine = knobs_of(type(self.config)).values()
        at_work = [each.name for each in mine if self.temperature > 0.0 or not each.sampled]
        return {name: value for name in at_work if (value := getattr(self.config, name)) is not None}

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            draft=self.draft_sampling or "sampled",
            scale=1.0 if self.scale is None else self.scale,
            seed=self.seed,
        )

    @property
    def label(self) -> str:
        """Short name for tables, e.g. `saguaro K=4 F=3 primary`; only what differs from the default."""
        parts = [self.policy]
        if self.lookahead is not None:
            parts.append(f"K={self.lookahead}")
        if self.fanout is not None:
            parts.append(f"F={_short(self.fanout)}")
        if self.fanout_backup is not None and self.fanout_backup != self.fanout:
            parts.append(f"Fb={_short(self.fanout_backup)}")
        if self.backup is not None:
            parts.append(self.backup)
        parts += [f"{name}={shown(value)}" for name, value in self.unusual.items()]
        if self.temperature > 0.0:
            parts.append(f"T={self.temperature:g}")
            if self.top_p < 1.0:
                parts.append(f"top-p={self.top_p:g}")
        return " ".join(parts)

    @property
    def unusual(self) -> dict[str, Any]:
        """Knobs that labels name only where they differ from their default, and do."""
        known = knobs_of(type(self.config))
        return {n: value for n, value in self.knobs.items() if known[n].rare and value != known[n].default}


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy's place in the family (design.md, section 1), and what is true of all its settings.

    Attributes:
        config: Its knobs.
        run: Starts it: (world, rows, config, sampling) to a generator.
        paper: Where it is described.
        predicts: Who predicts the outcome of a verification.
        drafts: How a continuation is drafted.
        on_miss: What happens when the prediction fails.
        verifies: Shape of what is verified.
        order: Its place in tables, in which policies build on each other; those without one come last.
        replay: Which row of design.md's replay table it is in.
        needs_draft: Whether it uses the draft device.
        collocated: Whether its devices take turns, so that one is enough.
        clocked: Whether how its rounds go is up to the clock, so that live ones are not the simulated ones.
        worlds: Where it runs.
        aliases: Other names it goes by; engines' among them.
        implied: Knobs that an alias says, e.g. `eagle3` the kind of heads; what is given comes first.
        colour: In pictures.
        variants: Knobs of the settings that stand for it where its output is compared with plain decoding;
            every named value that changes how a greedy run goes is in one.
    """

    config: type[PolicyConfig]
    run: Callable[[World, Rows, Any, Sampling], Steps]
    paper: str
    predicts: str
    drafts: str
    on_miss: str
    verifies: str
    order: float = math.inf
    replay: str = EXACT
    needs_draft: bool = True
    collocated: bool = False
    clocked: bool = False
    worlds: tuple[WorldName, ...] = ("simulated", "live")
    aliases: tuple[str, ...] = ()
    implied: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    colour: str = "#777777"
    variants: tuple[Mapping[str, Any], ...] = ({},)

    @property
    def name(self) -> str:
        """As on the command line."""
        return self.config.policy

    @property
    def knobs(self) -> tuple[str, ...]:
        """Settings it takes."""
        return tuple(knobs_of(self.config))

    @property
    def needs_decisions(self) -> bool:
        """Whether its replay takes a decision trace instead of a path recorded by plain decoding."""
        return self.replay == DECISIONS


def shown(value: Any) -> str:
    """A knob's value as labels and help texts write it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _short(fanout: tuple[int, ...]) -> str:
    return str(fanout[0]) if len(set(fanout)) == 1 else ",".join(map(str, fanout))
