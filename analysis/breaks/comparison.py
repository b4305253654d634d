"""What a law is here: a prediction told a point, an observation of a simulated case, and their comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from analysis.breaks.runs import NotSeen, Observation, PolicyRuns
from analysis.breaks.worlds import Case, LawPoint
from policies.laws.catalogue import apply, evaluate

Claim: TypeAlias = Literal["value", "upper bound", "lower bound", "choice"]
Form: TypeAlias = Literal["as printed", "corrected", "printed = corrected", "not printed"]
PRINTED, CORRECTED, SAME, UNPRINTED = get_args(Form)

LEVEL = 3.0
"""Standard errors either side of an error: a law that is off by the margin passes once in 740 times."""


@dataclass(frozen=True, slots=True)
class LawError:
    """A law beside a simulation.

    Attributes:
        law: What the law says.
        simulated: What was seen.
        error: Signed relative error of the law: law / simulated - 1 of a value, positive where the law
            promises too much.  Of a bound, the part of it by which the bound is violated, else 0.  Of a
            choice, the speed lost: best / chosen - 1.
        uncertainty: Standard error of `error`; of a bound that is kept, such that `LEVEL` of it reach as far
            into its violation as those of the value do.
    """

    law: float
    simulated: float
    error: float
    uncertainty: float


class Comparer(NamedTuple):
    """How a law is compared: with a value, a bound or a choice; `NotSeen` where nothing is to be seen."""

    kind: Claim
    compare: Callable[[PolicyRuns, Case], LawError]


@dataclass(frozen=True)
class Law:
    """A law of a system that the simulator has.

    Attributes:
        name: As on the command line: the statement's id, and the reading where there are several.
        form: Whose form it is.
        title: What it says, with its formula.
        points: Operating points it is tried at, all within its domain.
        relaxations: Names of the relaxations that touch it, and what it has to say of each: why it errs, or
            why it does not.
        comparer: How it is compared.
        fault: Why it does not agree even where its own assumptions hold; empty if it does.
    """

    name: str
    form: Form
    title: str
    points: tuple[LawPoint, ...]
    relaxations: dict[str, str]
    comparer: Comparer
    fault: str = ""

    @property
    def kind(self) -> Claim:
        """What it is compared as."""
        return self.comparer.kind

    def compare(self, bench: PolicyRuns, case: Case) -> LawError | None:
        """The law beside a simulated case; None where it does not commit itself, or nothing is to be seen."""
        try:
            return self.comparer.compare(bench, case)
        except NotSeen:
            return None


Predict: TypeAlias = Callable[[LawPoint], float]
Observe: TypeAlias = Callable[[PolicyRuns, Case], Observation]
Forms: TypeAlias = tuple[Comparer, Comparer]
"""How a law is compared as printed, and corrected."""


def says(statement: str, *, printed: bool = False, part: int | None = None) -> Predict:
    """What a statement of the catalogue says at a point, or a part of it where it says several numbers."""

    def predict(point: LawPoint) -> float:
        value = evaluate(statement, printed=printed, **point.known)
        return float(value if part is None else value[part])

    return predict


def applied(law: Callable[..., float]) -> Predict:
    """What a function of the papers' laws gives at a point."""
    return lambda point: float(apply(law, point.known))


def both(statement: str, observe: Observe) -> Forms:
    """The values of a statement of the catalogue, as printed and corrected, beside the same observation."""
    printed, corrected = (by_value(says(statement, printed=form), observe) for form in (True, False))
    return printed, corrected


Trial: TypeAlias = tuple[tuple[LawPoint, ...], dict[str, str]]
"""Points and relaxations of a law."""


def tried(says: tuple[str, Form, str], trial: Trial, comparer: Comparer, *, fault: str = "") -> Law:
    """A law of this name, form and title."""
    return Law(*says, *trial, comparer, fault)


def twins(
    name: str,
    titles: tuple[str, str],
    trial: Trial,
    forms: Forms,
    *,
    fault: str = "",
    corrected: dict[str, str] | None = None,
) -> tuple[Law, Law]:
    """A law as printed, called `name`.printed, and corrected; `fault` is of the printed form.

    `titles` are those of both; `corrected` is what the corrected form has to say otherwise of relaxations.
    """
    points, relaxations = trial
    return (
        Law(f"{name}.printed", PRINTED, titles[0], points, relaxations, forms[0], fault),
        Law(name, CORRECTED, titles[1], points, relaxations | (corrected or {}), forms[1]),
    )


def ratio(policy: str, above: str, below: str) -> Observe:
    """A ratio of two sums over a run of the bench (`Stretches.ratio`)."""
    return lambda bench, case: bench.run(policy, case).ratio(above, below)


def speed(policy: str) -> Observe:
    """The speedup of a run of the bench over plain decoding."""
    return lambda bench, case: bench.speedup(policy, case)


def error_of_value(law: float, seen: Observation) -> LawError:
    """Relative error law / simulated - 1."""
    return LawError(law, seen.value, law / seen.value - 1.0, law * seen.error / seen.value**2)


def by_value(predict: Predict, observe: Observe) -> Comparer:
    """Relative error law / simulated - 1."""
    return Comparer("value", lambda bench, case: error_of_value(predict(case.point), observe(bench, case)))


def by_bound(predict: Predict, observe: Observe, *, upper: bool) -> Comparer:
    """The part of law / simulated - 1 that violates a bound."""

    def compare(bench: PolicyRuns, case: Case) -> LawError:
        value = error_of_value(predict(case.point), observe(bench, case))
        violation = min(0.0, value.error) if upper else max(0.0, value.error)
        # An interval that begins on the kept side reaches that much less far into the violated one.
        spare = abs(value.error - violation) / LEVEL
        return LawError(value.law, value.simulated, violation, max(0.0, value.uncertainty - spare))

    return Comparer("upper bound" if upper else "lower bound", compare)


def loss(law: float, simulated: float, gain: Observation) -> LawError:
    """What a choice loses, gain - 1; `law` and `simulated` are the chosen and the best one."""
    return LawError(law, simulated, gain.value - 1.0, gain.error)


def between(low: Observation, high: Observation, share: float) -> Observation:
    """Estimate on the way from one to another, interpolated in the logarithm."""
    value = float(np.exp((1.0 - share) * np.log(low.value) + share * np.log(high.value)))
    return Observation(value, (1.0 - share) * low.influence + share * high.influence)
