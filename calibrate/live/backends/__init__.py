"""Backends: what computes the forwards of a worker's model (`calibrate.live.engine.runner.Runner`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from calibrate.live.placement import WorkerSpec, backend_kind

if TYPE_CHECKING:
    from calibrate.live.engine.runner import Runner


def open_runner(spec: WorkerSpec) -> Runner:
    """The model of a worker, ready for forwards by its backend on its device.

    Raises:
        ModelError: The backend is not installed, or cannot run the model.
        PlacementError: The device is not here.
    """
    module = import_module(f"{__name__}.{spec.backend.partition(':')[0]}")
    runner: Runner = module.open_runner(spec)
    if not backend_kind(spec.backend).runs_torch:
        runner.model.to("meta")  # the backend has weights of its own
    return runner
