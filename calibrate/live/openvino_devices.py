"""OpenVINO's devices: what is there, and what is refused.  Imports neither torch nor transformers."""

from __future__ import annotations

import sys
from typing import Any

from calibrate.live.errors import ModelError


def import_openvino() -> Any:
    """The package.

    Raises:
        ModelError: It is not installed.
    """
    # Converting a model reports its use over the network where this package is there; a measurement should
    # send nothing.  Without it, OpenVINO takes a stub of its own.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        raise ModelError(
            f"OpenVINO is not installed ({error}); pip install 'spectwin[openvino]', "
            "or use the backend 'torch'"
        ) from None
    return openvino


def openvino_devices() -> list[str]:
    """Devices that OpenVINO finds here, e.g. `CPU`, `GPU.0`, `NPU`; empty where it is not installed."""
    try:
        found: list[str] = import_openvino().Core().available_devices
    except ModelError:
        return []
    return found


def require_device(name: str) -> None:
    """Refuse a device that OpenVINO does not find.

    Args:
        name: As OpenVINO calls it; `GPU` stands for the first of several.

    Raises:
        ModelError: With what is there and what may be missing.
    """
    found = import_openvino().Core().available_devices
    if name not in found and not any(each.startswith(f"{name}.") for each in found):
        hint = "; an NPU needs its driver, firmware and the Level Zero loader" if name == "NPU" else ""
        raise ModelError(f"OpenVINO finds no device {name!r} here, only {', '.join(found)}{hint}")


def is_static(device: str) -> bool:
    """Whether a device takes graphs of fixed shapes only."""
    return device.startswith("NPU")
