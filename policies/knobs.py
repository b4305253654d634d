"""The knobs of policies, one entry each: name, domain, default, help; for registry and commands alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from policies.exits import BY_BATCH, DEFAULT_EXIT, DEFAULT_KAPPA, EXITS, OVERLAPS, READINGS, RULES
from policies.guesses import LONGEST
from policies.sampling import DRAFT_MODES
from policies.ssd import BACKUPS, CACHE_SETS, FIRSTS, STALLS, TREES
from policies.streaming import STREAMS
from policies.tokentree import PLANS, TreePlan

Kind: TypeAlias = Literal["integer", "number", "name", "integers", "text"]


class SettingError(ValueError):
    """A policy was given a setting that it cannot run with; the message says the way out."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting of one or more policies.

    Attributes:
        name: As in `configure`; the command line writes it with dashes.
        help: One sentence, without the default.
        kind: What its values are; `integers` are F_0 ... F_K or one number for all.
        default: Value where none is given.
        choices: Names that it takes.
        least: Smallest number, inclusive.
        most: Largest number, inclusive.
        sampled: Whether it changes nothing at temperature 0.
        rare: Whether labels leave it out at its default.
    """

    name: str
    help: str
    kind: Kind
    default: Any = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    sampled: bool = False
    rare: bool = True

    def check(self, value: Any) -> Any:
        """`value` as the policies take it; the default for None.

        Raises:
            SettingError: Out of the knob's domain.
        """
        if value is None:
            return self.default
        if self.kind == "name" and value not in self.choices:
            plain = self.name.replace("_", " ")
            raise SettingError(f"unknown {plain} {value!r}; choices: {', '.join(self.choices)}")
        if self.kind in {"integer", "number"}:
            self._check_number(value)
        return value

    def _check_number(self, value: Any) -> None:
        exact = isinstance(value, int) and not isinstance(value, bool)
        if not exact and (self.kind == "integer" or not isinstance(value, float) or not math.isfinite(value)):
            raise SettingError(f"{self.name} must be {_ARTICLE[self.kind]}, got {value!r}")
        low = self.least is not None and value < self.least
        high = self.most is not None and value > self.most
        if low or high:
            raise SettingError(f"{self.name} must be {self._domain()}, got {value:g}")

    def _domain(self) -> str:
        if self.least is not None and self.most is not None:
            return f"between {self.least:g} and {self.most:g}"
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"


_ARTICLE = {"integer": "a whole number", "number": "a number"}

DEFAULT_LOOKAHEAD = 4
DEFAULT_FANOUT = 3
MAX_LOOKAHEAD = 64
HEAD_FAMILIES = ("medusa", "hydra", "eagle2", "eagle3")

KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob("lookahead", "K, drafted tokens per round.", "integer", DEFAULT_LOOKAHEAD, rare=False),
        Knob("fanout", "F, or F_0,...,F_K.", "integers", DEFAULT_FANOUT, rare=False),
        Knob(
            "fanout_backup",
            "The same in rounds that verify a backup's tokens or none.",
            "integers",
            rare=False,
        ),
        Knob("backup", "What a miss does.", "name", BACKUPS[0], (*BACKUPS, "auto"), rare=False),
        Knob("stall", "Who waits for a redraft.", "name", STALLS[0], STALLS),
        Knob("first", "Where a first speculation comes from.", "name", FIRSTS[0], FIRSTS),
        Knob(
            "cache_set",
            "Cache the draft's top outcomes, or those other than the rejected token.",
            "name",
            CACHE_SETS[0],
            CACHE_SETS,
        ),
        Knob(
            "tree",
            "Carry a pre-speculation that no row hits through, or abort it.",
            "name",
            TREES[0],
            TREES,
        ),
        Knob("draft_devices", "Devices that share the pre-speculation.", "integer", 1, least=1),
        Knob(
            "longest_suffix",
            "Longest ending that prompt lookup searches for, in tokens.",
            "integer",
            LONGEST,
            least=1,
        ),
        Knob(
            "draft_sampling",
            "How the draft chooses at a temperature above 0.",
            "name",
            DRAFT_MODES[0],
            DRAFT_MODES,
            sampled=True,
        ),
        Knob(
            "scale",
            "Saguaro's C: cached tokens are drafted C times as often.",
            "number",
            1.0,
            least=0.0,
            most=1.0,
            sampled=True,
        ),
        Knob(
            "sequences",
            "Drafted sequences that share the lookahead: by the draft's doubt, or so many.",
            "name",
            "dynamic",
            ("dynamic", *map(str, range(1, 9))),
        ),
        Knob(
            "kappa",
            f"Candidates per position that an early exit names; {BY_BATCH}: by the batch, as the paper does.",
            "integer",
            DEFAULT_KAPPA,
            least=0,
        ),
        Knob("exit", "Depth of the target's early exit.", "name", DEFAULT_EXIT, EXITS),
        Knob(
            "candidates",
            "Positions for which an early exit names candidates.",
            "name",
            READINGS[0],
            READINGS,
        ),
        Knob(
            "acceptance_rule",
            "Accept a sampled token with min(1, p/q), or where it equals the target's own draw.",
            "name",
            RULES[0],
            RULES,
            sampled=True,
        ),
        Knob(
            "overlap",
            "Draft while the target works (Mirror: its later layers), or take turns.",
            "name",
            OVERLAPS[0],
            OVERLAPS,
        ),
        Knob(
            "streams",
            "Lookahead streams of the draft, 0 for none; batch: by the batch, as the paper does.",
            "name",
            STREAMS[0],
            STREAMS,
        ),
        Knob(
            "stream_acceptance",
            "How often a stream's proposal is right, in worlds of coin tosses.",
            "number",
            least=0.0,
            most=1.0,
        ),
        Knob("retrieval_length", "d or l, most tokens of a retrieved continuation.", "integer", 10, least=1),
        Knob("draft_retrieval", "Whether the draft retrieves.", "name", "on", ("on", "off")),
        Knob("target_retrieval", "Whether the target retrieves.", "name", "on", ("on", "off")),
        Knob("rejected_cache", "Whether rejected tokens are retrieved.", "name", "on", ("on", "off")),
        Knob("datastore", "Texts to retrieve from: a name or a folder (calibrate datastore).", "text"),
        Knob("longest_match", "Longest ending that trees are looked up by.", "integer", 16, least=1),
        Knob("shortest_match", "Shortest ending that trees are looked up by.", "integer", 2, least=1),
        Knob("retrieval_candidates", "Continuations after which none is looked for.", "integer", 8, least=1),
        Knob(
            "retrieval_attempts",
            "Drafted levels appended where nothing is found: 2 in the text, 0 in a datastore by default.",
            "integer",
            least=0,
        ),
        Knob(
            "prune_top",
            "Retrieved branches begin with one of so many of the draft's likeliest tokens; 0: with any.",
            "integer",
            8,
            least=0,
        ),
        Knob("fusion", "Fuse what drafted and retrieved trees share.", "name", "on", ("on", "off")),
        Knob("retrieval_nodes", "Most nodes of a retrieved tree.", "integer", 32, least=1),
        Knob(
            "matched_length",
            "Mean tokens matched per retrieval, in worlds of coin tosses.",
            "number",
            least=0.0,
        ),
        Knob("heads", "Kind of heads that draft on the target.", "name", "eagle2", HEAD_FAMILIES),
        Knob(
            "head_cost",
            "A pass of the heads, in target forwards over one token.",
            "number",
            0.05,
            least=0.0,
        ),
        Knob(
            "tree_plan",
            "Trees of a fixed shape by rank, or grown where the draft is confident (EAGLE-2).",
            "name",
            PLANS[0],
            PLANS,
        ),
        Knob("tree_widths", "Children per level of a static tree.", "integers", TreePlan.widths),
        Knob("tree_depth", "Levels of a dynamic tree.", "integer", TreePlan.depth, least=1),
        Knob("tree_topk", "Nodes expanded per level of a dynamic tree.", "integer", TreePlan.topk, least=1),
        Knob("tree_budget", "Nodes kept of a dynamic tree.", "integer", TreePlan.budget, least=1),
    )
}
"""Every knob, in the order in which labels and help texts name them."""
