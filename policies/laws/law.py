"""What every law shares: the refusal of arguments outside its domain, and broadcasting over arrays.

A law's parameters are terms of the glossary, which says what they mean, their units and their domains.  A
function's own docstring says only what differs.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from policies.laws.glossary import GLOSSARY

FloatArray: TypeAlias = NDArray[np.float64]
P = ParamSpec("P")
R = TypeVar("R")

_BOUNDS = {
    "0..1": (0.0, 1.0, "a probability in 0..1"),
    "at least 0": (0.0, sys.float_info.max, "at least 0"),
    # A mean may come out of a sum a little lower.
    "at least 1": (1.0 - 1e-9, sys.float_info.max, "at least 1"),
    "above 0": (5e-324, sys.float_info.max, "above 0"),
}
"""Lowest and highest number of a domain, and the domain in words."""


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
        bounds = {name: limits for name in names if (limits := _bounds(known.get(name, "")))}

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                if name in bounds and value is not None:
                    _check(name, value, *bounds[name])
            return function(*args, **kwargs)

        return checked

    return decorate


def _bounds(domain: str) -> tuple[float, float, str] | None:
    """Bounds of a domain in the glossary's words; None where it is no interval."""
    infinite = domain.endswith(", or inf")
    limits = _BOUNDS.get(domain.removeprefix("whole, ").removesuffix(", or inf"))
    return limits and (limits[0], math.inf if infinite else limits[1], limits[2])


def _check(name: str, value: Any, low: float, high: float, words: str) -> None:
    """Refuse a number, or any number of a vector, outside of bounds."""
    if isinstance(value, int | float):
        numbers: Iterable[float] = (value,)
    else:
        numbers = np.asarray(value, dtype=float).flat
    for number in numbers:
        if not low <= number <= high:  # true for NaN too
            finite = " and finite" if number == math.inf else ""
            raise ValueError(f"{name} must be {words}{finite}, got {number:g}")


def peak(rate: Callable[[int], float], numbers: Iterable[int], *, single: bool = True) -> int:
    """The number of the highest rate, the first of equals (not by rounding); 0 of none.

    A rate with a `single` peak is tried until it falls.
    """
    best, highest, previous = 0, -math.inf, -math.inf
    for number in numbers:
        value = rate(number)
        if value > highest + 1e-14 * abs(highest) or best == 0:
            best, highest = number, value
        if single and value < previous - 1e-12 * abs(previous):
            break
        previous = value
    return best


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
