"""Cases of the map: the operating point that a law is told of, and the world that is simulated.

The world may do something that the law does not know of; `scenario` makes of both what the simulator takes, a
token model and a profile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from hardware_profiles.profile import DeviceInfo, Overlap, Profile, Role, Roles
from hardware_profiles.reply_trace import DecisionTrace, read_decisions
from hardware_profiles.store import decisions_name, find_decisions, find_trace, trace_name
from hardware_profiles.surface import LEVELS, ConstantCost, GridCost, Point, Provenance
from hardware_profiles.trace import Trace, read_trace
from policies.laws.ssd import expected_tokens, hit_rate, hit_rate_primary, power_law_hit
from policies.sampling import FloatArray, Sampling
from simulator.costs import Effects
from simulator.probe import DraftRule, mean_acceptance, rejection_power_law
from simulator.run import Scenario
from simulator.tokens import TokenModel, coin, histogram, replay
from simulator.tokens.coins import power_law_curve


@dataclass(frozen=True, slots=True)
class LawPoint:
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
        trees: Mean matches of a drafted and of a retrieved tree; empty but for laws of their fusion.
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
    trees: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        """Short name for tables, e.g. `a=.8 K=4 C=10 F=3 plain`."""
        if self.trees:
            return "matches " + " and ".join(f"{mean:.2g}" for mean in self.trees)
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

    def hit(self, guesses: int) -> float:
        """Hit probability of so many guesses."""
        return float(power_law_hit([guesses], self.exponent, self.scale)[0])

    @property
    def p_primary(self) -> float:
        """p_hit,p."""
        return hit_rate_primary(self.acceptance, self.fanout, self.exponent, self.scale)

    @property
    def known(self) -> dict[str, Any]:
        """What the papers' laws may be told here, by the glossary's names.

        SD's draft is the primary's, so that both draft the same tokens in the same time.  After the backup
        `plain` a round yields one token, and position 0 alone can hit.
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
            redrafted = self.backup == "primary"
            primary, tokens = self.p_primary, expected_tokens(self.acceptance, self.lookahead)
            backup = primary if redrafted else self.hit(self.fanout[0])
            known |= {
                "p_hit": hit_rate(primary, backup),
                "p_hit_primary": primary,
                "p_hit_backup": backup,
                "e_hit": tokens,
                "e_miss": tokens if redrafted else 1.0,
                "e_sd": tokens,
                "t_primary": self.t_primary,
                "t_backup": self.t_primary if redrafted else 0.0,
                "t_sd": self.t_primary,
            }
        return known


@dataclass(frozen=True, slots=True)
class RelaxedWorld:
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
        replies: Whether candidates, retrievals and doubts are those of the shipped pair, in its texts.
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
    replies: bool = False


OWN = RelaxedWorld()
"""The world of the laws' own assumptions."""


@dataclass(frozen=True, slots=True)
class Case:
    """A point in a world: what one cell of the map is about.

    Attributes:
        point: What the law is told.
        world: What is simulated.
    """

    point: LawPoint
    world: RelaxedWorld = field(default=OWN)


RECORDING = "cpu2-x5"
"""Profile whose shipped traces stand for a real pair."""
WIDE = 65
"""Where linear costs are stated; beyond it they go on alike."""
SLOWED: Any = (("target", "forward", "draft"), ("draft", "forward", "target"), ("draft", "tree", "target"))
"""Device and operation that are slowed while another device is busy."""
_NORMAL = np.array([-1.6448536, -0.6744898, 0.0, 0.6744898, 1.6448536])


def scenario(case: Case, tokens: int, seed: int) -> Scenario:
    """The scenario of a case, with so many tokens emitted per row; of a recording all there are."""
    point, world = case.point, case.world
    return Scenario(
        tokens=token_model(point, world, tokens, seed),
        profile=profile(point.draft_s, world),
        batch=point.batch,
        effects=Effects(
            context=False,
            host=False,
            draft_width=world.branches is not None,
            overlap=world.contention > 0.0,
            jitter=world.jitter > 0.0,
        ),
        seed=seed,
    )


def token_model(point: LawPoint, world: RelaxedWorld, tokens: int, seed: int) -> TokenModel:
    """What is accepted and cached."""
    if world.temperature is not None:
        return recorded(world.temperature, point.batch, seed)
    clones = min(world.clones, point.batch)
    rows, length = point.batch // clones, tokens
    if world.output is not None:  # as many tokens, in many short requests
        rows, length = max(2, tokens // world.output) * point.batch, world.output
    shape: dict[str, Any] = {"requests": rows, "length": length, "prompt_length": 1, "seed": seed}
    if world.falling > 0.0:
        curve = power_law_curve(point.exponent, point.scale)
        levels = falling(point.acceptance, point.lookahead, world.falling)
        return histogram(levels, rejected=[curve], free=curve, **shape)
    model = coin(point.acceptance, exponent=point.exponent, scale=point.scale, **shape)
    return model if clones == 1 else model.repeated(point.batch)


def falling(acceptance: float, lookahead: int, drop: float) -> tuple[float, ...]:
    """[K] conditional acceptance min(1, a_0 (1 - drop)^j) whose mean over verified positions is a.

    A position is verified if all before it were accepted: that mean is what any engine reports, and what
    the laws are told.
    """

    def mean(levels: FloatArray) -> float:
        verified = np.concatenate([[1.0], np.cumprod(levels)[:-1]])
        return float((verified @ levels) / verified.sum())

    return tuple(falling_levels(drop, lookahead, acceptance, mean).tolist())


def falling_levels(drop: float, depth: int, target: float, mean: Callable[[FloatArray], float]) -> FloatArray:
    """[depth] levels min(1, a_0 (1 - drop)^j) with the a_0 that gives them this mean, which grows with it."""
    shape = (1.0 - drop) ** np.arange(depth)
    low, high = 0.0, 1.0 / shape[-1]
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(np.minimum(1.0, middle * shape)) < target else (low, middle)
    return np.asarray(np.minimum(1.0, low * shape))


@lru_cache(maxsize=8)
def replies_of(policy: str) -> DecisionTrace:
    """The shipped decisions of a policy.

    Raises:
        TraceError: There are none.
    """
    return read_decisions(find_decisions(decisions_name(RECORDING, policy)))


@lru_cache(maxsize=16)
def recorded(temperature: float, rows: int, seed: int) -> TokenModel:
    """The shipped recording as `rows` texts of equal length, its requests joined end to end.

    Joined, since 128-token outputs would mix in the start-up and overshoot that `RelaxedWorld.output` is
    about; at each of the seams one run in all may go on that did not.
    """
    trace = read_trace(find_trace(trace_name(RECORDING, temperature)))
    return replay(_joined(trace, rows), seed=seed)


def _joined(trace: Trace, rows: int) -> Trace:
    # Dealt out in turn: rows of one kind of text each would count by time, not by tokens.
    ids = [request.id for request in trace.requests]
    trace = trace.slice([request for row in range(rows) for request in ids[row::rows]])
    length = len(trace) // rows
    kept: dict[str, Any] = {name: column[: rows * length] for name, column in trace.columns.items()}
    kept |= {"request": np.repeat(np.arange(rows), length), "position": np.tile(np.arange(length), rows)}
    requests = tuple(trace.requests[i].but(id=i) for i in range(rows))
    return Trace.of(requests, trace.meta, **kept)


@lru_cache(maxsize=4)
def inputs_of_recording(temperature: float) -> tuple[float, float, float]:
    """What the laws are told of the recording: mean acceptance, and r and c of the fitted hit curve.

    Raises:
        ValueError: No power law fits the hit curve.
    """
    tokens, rule = recorded(temperature, 1, 0), DraftRule(Sampling(temperature=temperature))
    law = rejection_power_law(tokens, rule)
    if law is None:
        raise ValueError(f"no power law fits the recording at temperature {temperature:g}")
    return mean_acceptance(tokens, rule), law.exponent, law.scale


@lru_cache(maxsize=256)
def profile(draft_s: float, world: RelaxedWorld) -> Profile:
    """Constant costs, a target step being 1, and what the world adds to them."""
    operations: dict[Any, Any] = {
        "target.forward": _target(world),
        "draft.forward": _line("batch", draft_s, 0.0, world.jitter),
        "draft.tree": _line("branches", draft_s, world.branches or 0.0, world.jitter),
    }
    role = Role(device=DeviceInfo(kind="any"), model="any")
    overlap: tuple[Overlap, ...] = ()
    if world.contention > 0.0:
        overlap = tuple(
            Overlap(device=device, operation=name, while_busy=other, slowdown=1.0 + world.contention)
            for device, name, other in SLOWED
        )
    return Profile(
        name="breaks",
        roles=Roles(target=role, draft=role),
        operations=operations,
        overlap=overlap,
        provenance=Provenance(kind="synthetic"),
    )


def _target(world: RelaxedWorld) -> GridCost | ConstantCost:
    """1 + g (w - 1) for w new tokens per row, or 1 + g (b w - 1) for those of all rows."""
    if world.verify_batch == 0.0:
        return _line("new_tokens", 1.0, world.verify_k, world.jitter)
    points = tuple(
        Point(at=(rows, width), mean_s=1.0 + world.verify_batch * (rows * width - 1))
        for rows in (1, WIDE)
        for width in (1, WIDE)
    )
    return GridCost(axes=("batch", "new_tokens"), points=points)


def _line(axis: Any, seconds: float, growth: float, jitter: float) -> GridCost | ConstantCost:
    """`seconds` (1 + growth (x - 1)) along an axis, every duration spread alike."""
    if growth == 0.0 and jitter == 0.0:
        return ConstantCost(seconds=seconds)
    points = []
    for at in (1, WIDE):
        mean = seconds * (1.0 + growth * (at - 1))
        spread: Any = tuple((mean * (1.0 + jitter * _unit_spread())).tolist()) if jitter else None
        points.append(Point(at=(at,), mean_s=mean, quantiles_s=spread))
    return GridCost(axes=(axis,), points=tuple(points))


@lru_cache(maxsize=1)
def _unit_spread() -> np.ndarray[Any, np.dtype[np.float64]]:
    """[5] normal quantiles at `LEVELS`, scaled so that noise drawn between them has variance 1.

    Noise is flat beyond the outer quantiles and linear between (`LatencySurface.noise`), which makes a
    normal distribution's own quantiles vary too little.
    """
    z = _NORMAL
    variance = 2.0 * LEVELS[0] * z[0] ** 2
    for i in range(len(z) - 1):
        variance += (LEVELS[i + 1] - LEVELS[i]) * (z[i] ** 2 + z[i] * z[i + 1] + z[i + 1] ** 2) / 3.0
    return np.asarray(z / np.sqrt(variance), dtype=np.float64)
