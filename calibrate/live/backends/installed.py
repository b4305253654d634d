"""What other backends are installed here, and what is refused.  Imports neither torch nor transformers."""

from __future__ import annotations

import hashlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calibrate.journal import fingerprint
from calibrate.live.errors import ModelError
from calibrate.shipped import cache_folder
from hardware_profiles.files import to_json


def import_openvino() -> Any:
    """The package; a `ModelError` where it is not installed."""
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
        devices: list[str] = import_openvino().Core().available_devices
    except ModelError:
        return []
    return devices


def require_device(name: str) -> None:
    """Refuse a device that OpenVINO does not find (`ModelError`); `GPU` stands for the first of several."""
    devices = import_openvino().Core().available_devices
    if name not in devices and not any(each.startswith(f"{name}.") for each in devices):
        hint = "; an NPU needs its driver, firmware and the Level Zero loader" if name == "NPU" else ""
        raise ModelError(f"OpenVINO finds no device {name!r} here, only {', '.join(devices)}{hint}")


def is_static(device: str) -> bool:
    """Whether a device takes graphs of fixed shapes only."""
    return device.startswith("NPU")


SEQUENCES = 256
"""Most that llama.cpp keeps apart: rows, and branches of all rows' trees."""
_VERSION = 1
"""Of what `calibrate.live.backends.gguf` writes."""
_PACKAGES = ("llama_cpp", "gguf")
_ERROR = 4
"""llama.cpp's level of messages that are errors."""
_kept: list[Any] = []


def has_llamacpp() -> bool:
    """Whether drafts can be run by llama.cpp here; imports nothing."""
    return all(sys.modules.get(name, name) and (name in sys.modules or find_spec(name)) for name in _PACKAGES)


def import_llamacpp() -> Any:
    """The binding, told to print errors only; a `ModelError` where it is not installed."""
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:  # the binding loads its library when imported
        raise ModelError(
            f"llama.cpp is not installed ({error}); pip install 'spectwin[llamacpp]', which builds it from "
            "source (a C++ compiler and some minutes), or use the backend 'torch'"
        ) from None
    if not _kept:
        # Kept: the library calls it for as long as the process lives.
        _kept.append(llama_cpp.llama_log_callback(_print_errors))
        llama_cpp.llama_log_set(_kept[0], None)
        llama_cpp.llama_backend_init()
    return llama_cpp


def _print_errors(level: int, text: bytes, _: Any) -> None:
    if level == _ERROR:
        sys.stderr.write(text.decode(errors="replace"))


def gguf_file(model: str, precision: str) -> Path:
    """Where the GGUF of a model (a folder, or a configuration alone) is kept; it may not be there yet."""
    return cache_of("llamacpp", [_VERSION, fingerprint(model)]) / f"{precision}.gguf"


def cache_of(library: str, made_of: list[Any]) -> Path:
    """The folder of the user's cache for what a library makes of these things."""
    key = hashlib.sha256(to_json(made_of, default=str).encode()).hexdigest()[:16]
    return cache_folder(library) / key
