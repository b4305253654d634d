"""Any law over arrays: `broadcast(ssd_speedup, p_hit=p[:, None], e_hit=4.0, ...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from policies.laws.ssd import FloatArray


def broadcast(law: Callable[..., Any], /, **arguments: Any) -> FloatArray:
    """A law's values where numpy arrays among its arguments are broadcast against each other.

    Arguments that are no arrays, tuples and lists among them, go to the law whole, as they do outside.

    Args:
        law: Of any statement; one that gives several numbers adds their axis at the end.
        arguments: Of the law, by name.

    Raises:
        ValueError: Shapes that do not fit, or outside the law's domain.
    """
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    if not arrays:
        return np.asarray(law(**arguments), dtype=np.float64)
    spread = np.broadcast_arrays(*arrays.values())
    columns = [array.ravel().tolist() for array in spread]  # plain numbers: whole ones stay whole
    found = [law(**arguments | dict(zip(arrays, point, strict=True))) for point in zip(*columns, strict=True)]
    values = np.asarray(found, dtype=np.float64)
    return values.reshape(spread[0].shape + values.shape[1:])
