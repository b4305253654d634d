"""Backends: what computes the forwards of a worker's model (`calibrate.live.engine.runner.Runner`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from calibrate.live.placement import TORCH, WorkerSpec

if TYPE_CHECKING:
    from calibrate.live.engine.runner import Runner

BACKENDS = (TORCH, "openvino", "llamacpp")
"""Modules of this package, each with a function `open_runner`; a spec's `backend` begins with one of them."""


def open_runner(spec: WorkerSpec) -> Runner:
    """The model of a worker, ready for forwards by its backend on its device.

    Raises:
        ModelError: The backend is not installed, or cannot run the model.
        PlacementError: The device is not here.
    """
    kind = spec.backend.partition(":")[0]
    assert kind in BACKENDS, "checked by the spec"
    runner: Runner = import_module(f"{__name__}.{kind}").open_runner(spec)
    if kind != TORCH:
        runner.model.to("meta")  # the backend has weights of its own
    return runner
