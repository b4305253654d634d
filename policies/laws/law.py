"""What every law shares: the refusal of arguments outside its domain, and broadcasting over arrays.

A law's parameters are terms of the glossary, which says what they mean, their units and their domains.  A
function's own docstring says only what differs.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from policies.laws.glossary import GLOSSARY

FloatArray: TypeAlias = NDArray[np.float64]
P = ParamSpec("P")
R = TypeVar("R")

ROUNDING = 1e-9
"""Relative: a mean of at least 1 may come out of a sum a little lower."""

_CHECKED = re.compile(r"(?:whole, )?(0\.\.1|at least [01]|above 0)(, or inf)?$")


def law(**domains: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function refuse arguments that lie outside the domains of its parameters.

    Numbers, and the numbers of vectors, are held against the bounds that the glossary gives for their name:
    `0..1`, `at least 0`, `at least 1` or `above 0`, finite unless it says `or inf`.  That a number is whole
    is asked only of what is typed, since several laws hold in between too.  None, an option not taken,
    passes.

    Args:
        domains: By parameter, where the law's domain is another one than the glossary's; "" for none.

    Raises:
        ValueError: From the decorated function, naming the parameter, its domain and the value.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = tuple(inspect.signature(function).parameters)
        terms = {name: GLOSSARY[name] for name in names if name in GLOSSARY}
        known = {name: term.domain for name, term in terms.items() if term.kind != "matrix"} | domains
        checks = {name: bounds for name in names if (bounds := _CHECKED.match(known.get(name, "")))}

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                if name in checks and value is not None:
                    _check(name, value, *checks[name].groups())
            return function(*args, **kwargs)

        return checked

    return decorate


def _check(name: str, value: Any, bounds: str, infinite: str | None) -> None:
    """Refuse a number, or any number of a vector, outside of bounds."""
    for number in (value,) if isinstance(value, int | float) else np.asarray(value, dtype=float).flat:
        if bounds == "0..1":
            inside = 0.0 <= number <= 1.0
        elif bounds == "above 0":
            inside = number > 0.0
        else:
            least = float(bounds[-1])
            inside = number >= least * (1.0 - ROUNDING)
        if not inside or (number == math.inf and not infinite):
            words = "a probability in 0..1" if bounds == "0..1" else bounds
            finite = " and finite" if number == math.inf else ""
            raise ValueError(f"{name} must be {words}{finite}, got {number:g}")


def broadcast(function: Callable[..., Any], /, **arguments: Any) -> FloatArray:
    """A law's values where numpy arrays among its arguments are broadcast against each other.

    `broadcast(ssd_speedup, p_hit=p[:, None], e_hit=4.0, ...)`.  Arguments that are no arrays, tuples and
    lists among them, go to the law whole, as they do outside.

    Args:
        function: Any law; one that gives several numbers adds their axis at the end.
        arguments: Of the law, by name.

    Raises:
        ValueError: Shapes that do not fit, or outside the law's domain.
    """
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    if not arrays:
        return np.asarray(function(**arguments), dtype=np.float64)
    spread = np.broadcast_arrays(*arrays.values())
    columns = [array.ravel().tolist() for array in spread]  # plain numbers: whole ones stay whole
    points = (dict(zip(arrays, point, strict=True)) for point in zip(*columns, strict=True))
    values = np.asarray([function(**arguments | point) for point in points], dtype=np.float64)
    return values.reshape(spread[0].shape + values.shape[1:])
