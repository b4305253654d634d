"""Operating points that laws are told of, and what a world does beyond them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from policies.laws.fanout import geometric_fanout, round_fanout
from policies.laws.ssd import expected_tokens, hit_rate, hit_rate_primary, power_law_hit


@dataclass(frozen=True, slots=True)
class Point:
    """What a law is told.  A target step takes 1.

    Attributes:
        acceptance: a, iid acceptance.
        lookahead: K.
        draft_s: One draft step, 1/C.
        fanout: F_0 ... F_K; empty for policies without a cache.
        exponent: r of the hit curve.
        scale: c of the hit curve.
        backup: `primary` or `plain`.
        batch: b.
        budget: Guesses that a law spreads itself, in place of `fanout`.
        kappa: Candidates per position of an early exit, 0 without one; they hit as `fanout` guesses do.
        matched: AMT, mean tokens matched per retrieval.
        halves: Mean matches of a drafted and of a retrieved tree; empty but for laws of their fusion.
    """

    acceptance: float
    lookahead: int
    draft_s: float
    fanout: tuple[int, ...] = ()
    exponent: float = 1.0
    scale: float = 1.0
    backup: str = "primary"
    batch: int = 1
    budget: int = 0
    kappa: int = 0
    matched: float = 0.0
    halves: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        """Short name for tables, e.g. `a=.8 K=4 C=10 F=3 plain`."""
        if self.halves:
            return "matches " + " and ".join(f"{mean:.2g}" for mean in self.halves)
        parts = [f"a={self.acceptance:.2g}".replace("0.", "."), f"K={self.lookahead}", f"C={self.ratio:.3g}"]
        if self.fanout:
            same = len(set(self.fanout)) == 1
            guesses = str(self.fanout[0]) if same else f"{self.fanout[0]},{self.fanout[1]}.."
            parts += [f"F={guesses}", self.backup]
        if self.budget:
            parts += [f"B={self.budget}", f"r={self.exponent:.2g}"]
        if self.kappa:
            parts.append(f"kappa={self.kappa}")
        if self.matched:
            parts.append(f"AMT={self.matched:.2g}")
        if self.batch > 1:
            parts.append(f"b={self.batch}")
        return " ".join(parts)

    @property
    def ratio(self) -> float:
        """C, target step over draft step."""
        return 1.0 / self.draft_s

    @property
    def t_primary(self) -> float:
        """T_p, K draft steps."""
        return self.lookahead * self.draft_s

    @property
    def t_backup(self) -> float:
        """T_b: the primary again, or nothing."""
        return self.t_primary if self.backup == "primary" else 0.0

    @property
    def e_hit(self) -> float:
        """Mean tokens of a round that verifies the primary's tokens."""
        return expected_tokens(self.acceptance, self.lookahead)

    @property
    def e_miss(self) -> float:
        """Mean tokens of a round after a miss."""
        return self.e_hit if self.backup == "primary" else 1.0

    @property
    def p_primary(self) -> float:
        """p_hit,p."""
        return hit_rate_primary(self.acceptance, self.fanout, self.exponent, self.scale)

    @property
    def p_backup(self) -> float:
        """p_hit,b: after a plain decode position 0 alone can hit."""
        if self.backup == "primary":
            return self.p_primary
        return float(power_law_hit([self.fanout[0]], self.exponent, self.scale)[0])

    @property
    def p_hit(self) -> float:
        """Long-run hit rate (`ssd.eq1`)."""
        return hit_rate(self.p_primary, self.p_backup)

    @property
    def known(self) -> dict[str, Any]:
        """What the papers' laws may be told here, by the glossary's names.

        SD's draft is the primary's, so that both draft the same tokens in the same time.
        """
        known: dict[str, Any] = {
            "acceptance": self.acceptance,
            "lookahead": self.lookahead,
            "t_draft": self.draft_s,
            "speed_ratio": self.ratio,
            "batch": self.batch,
            "matched": self.matched,
        }
        if self.fanout:
            known |= {"p_hit": self.p_hit, "p_hit_primary": self.p_primary, "p_hit_backup": self.p_backup}
            known |= {"e_hit": self.e_hit, "e_miss": self.e_miss, "e_sd": self.e_hit}
            known |= {"t_primary": self.t_primary, "t_backup": self.t_backup, "t_sd": self.t_primary}
        return known

    def with_closed_form(self) -> Point:
        """This point with its budget spread by the closed form of `ssd.thm12`, rounded."""
        real = geometric_fanout(self.acceptance, self.exponent, self.lookahead, self.budget)
        return replace(self, fanout=round_fanout(real, self.budget))


@dataclass(frozen=True, slots=True)
class World:
    """What a world does that the laws do not know of; by default nothing.

    Attributes:
        falling: Relative drop of conditional acceptance from one position of a round to the next.
        temperature: Tokens are those of the shipped recording at this temperature; None: coins.
        jitter: Coefficient of variation of every forward.
        verify_k: What verification costs more per further token, in steps.
        verify_batch: What a target forward costs more per further token of all rows, in steps.
        branches: What a tree step costs more per further branch of all rows, in draft steps; 0 adds the
            glue step alone, None not even that.
        contention: How much slower each device works while the other one does.
        clones: Rows of a batch that decode the same text, and so hit and miss together.
        output: Tokens of each output; None: one output without an end.
        decided: Whether candidates, retrievals and doubts are those of the shipped pair, in its texts.
    """

    falling: float = 0.0
    temperature: float | None = None
    jitter: float = 0.0
    verify_k: float = 0.0
    verify_batch: float = 0.0
    branches: float | None = None
    contention: float = 0.0
    clones: int = 1
    output: int | None = None
    decided: bool = False


OWN = World()
"""The world of the laws' own assumptions."""


@dataclass(frozen=True, slots=True)
class Case:
    """A point in a world: what one cell of the map is about.

    Attributes:
        point: What the law is told.
        world: What is simulated.
    """

    point: Point
    world: World = field(default=OWN)
