"""Devices that torch can use here: finding them, refusing those that are not there, waiting for their work.

torch is imported inside the functions; what they are called is in `calibrate.live.placement`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibrate.live.errors import PlacementError

if TYPE_CHECKING:
    import torch

KINDS = ("cuda", "mps", "xpu", "npu")
"""Of accelerators, as torch calls them; ROCm's are `cuda` too."""
INSTALL = {
    "cuda": "it needs an NVIDIA driver and a CUDA build of torch, or a ROCm build on AMD: "
    "https://pytorch.org/get-started/locally",
    "mps": "it needs a Mac with Apple silicon and torch's macOS build",
    "xpu": "it needs an Intel GPU with its driver and torch's XPU build: "
    "pip install torch --index-url https://download.pytorch.org/whl/xpu",
    "npu": "torch's `npu` is Huawei Ascend and needs pip install torch-npu; for an Intel NPU use "
    "--draft-backend openvino:NPU",
    "openvino": "pip install 'spectwin[openvino]'; a GPU or an NPU also needs its driver",
    "llamacpp": "pip install 'spectwin[llamacpp]', which builds llama.cpp from source: a C++ compiler "
    "and some minutes",
}
"""What may be missing, by kind."""


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """A device that is here; what torch does not say is empty or None.

    Attributes:
        device: As a placement calls it, e.g. `cuda:0`, or a backend such as `openvino:NPU` or `llamacpp`.
        name: The part, e.g. `NVIDIA H100 80GB HBM3`.
        memory_bytes: Its own memory.
    """

    device: str
    name: str = ""
    memory_bytes: int | None = None

    def __str__(self) -> str:
        """For people: `cuda:0 (NVIDIA H100)`."""
        return f"{self.device} ({self.name})" if self.name else self.device


def find_accelerators() -> list[LocalDevice]:
    """All accelerators that torch sees, the CPU not among them."""
    import torch

    accelerators: list[LocalDevice] = []
    for kind in KINDS:
        backend = getattr(torch, kind, None)
        # `torch.mps` itself cannot be asked in all versions.
        asked: Any = torch.backends.mps if kind == "mps" else backend
        if backend is not None and asked.is_available():
            count = backend.device_count() if kind != "mps" else 1
            accelerators += [_describe(kind, backend, i) for i in range(count)]
    return accelerators


def _describe(kind: str, backend: Any, index: int) -> LocalDevice:
    device = kind if kind == "mps" else f"{kind}:{index}"
    name = backend.get_device_name(index) if hasattr(backend, "get_device_name") else ""
    memory = None
    if hasattr(backend, "get_device_properties"):
        memory = getattr(backend.get_device_properties(index), "total_memory", None)
    return LocalDevice(device, name, memory)


def absent(device: str, devices: list[LocalDevice]) -> PlacementError:
    """The refusal of a device (`cuda:1`, or a backend such as `openvino:NPU`), with what there is instead."""
    kind = device.partition(":")[0]
    there = ", ".join(["cpu", *map(str, devices)])
    hint = INSTALL.get(kind, "")
    if any(each.device.partition(":")[0] == kind for each in devices):
        hint = "" if kind in KINDS else INSTALL["openvino"]
    return PlacementError(f"device {device!r} is not here; found: {there}" + (f". {hint}" if hint else ""))


def torch_device(name: str) -> torch.device:
    """The device of a name such as `cpu`, `cuda` or `cuda:1`; `cuda` is the first.

    Raises:
        PlacementError: It is not here.
    """
    import torch

    if name == "cpu":
        return torch.device("cpu")
    devices = find_accelerators()
    wanted = indexed(name)
    if wanted not in {each.device for each in devices}:
        raise absent(name, devices)
    return torch.device(wanted)


def indexed(device: str) -> str:
    """`cuda` as `cuda:0`; the CPU and Apple's GPU have no number."""
    return device if device in {"cpu", "mps"} or ":" in device else f"{device}:0"


def synchroniser(device: torch.device) -> Callable[[], None]:
    """What waits until a device has done all it was given; nothing for a CPU, whose calls return when done.

    Kernels of an accelerator run after the call that launches them has returned: a time taken then would be
    that of the launch.
    """
    import torch

    if device.type in {"cpu", "meta"}:
        return lambda: None
    wait = getattr(torch, device.type).synchronize
    return wait if device.type == "mps" else lambda: wait(device)
