"""The machine: its processor, cores, memory and accelerators, and refusals of what it does not have."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from calibrate.live.accelerators import KINDS, LocalDevice, absent, find_accelerators, indexed
from calibrate.live.errors import PlacementError
from calibrate.live.placement import TORCH, Placement, available_cores, backend_kind, own_precision
from calibrate.processes import run_isolated
from hardware_profiles.store import shipped_profiles

VERSIONS_OF = ("torch", "transformers", "numpy")


def versions() -> dict[str, str]:
    """Versions of what a measurement depends on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONS_OF}}


class WrongMachine(ValueError):
    """The hardware asked for is not here; the message says what is, and what can be used instead."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine.

    Attributes:
        cores: CPU cores this process may use.
        accelerators: Names of the accelerators that torch sees, e.g. `cuda: NVIDIA H100`.
        memory_bytes: Memory of the machine; None where the system does not say.
        devices: Accelerators that torch sees, and what OpenVINO does (`openvino:CPU`) where it is installed;
            `llamacpp` where that is.
    """

    processor: str
    cores: tuple[int, ...]
    accelerators: tuple[str, ...]
    memory_bytes: int | None = None
    devices: tuple[LocalDevice, ...] = ()

    @property
    def name(self) -> str:
        """Short name in profiles: `cpu2` for two cores."""
        return f"cpu{len(self.cores)}"

    def device(self, name: str) -> LocalDevice | None:
        """What is behind a name such as `cuda` or `openvino:NPU`; None for the CPU, and where nothing is."""
        known = {each.device: each for each in self.devices}
        if own_precision(name) is not None:
            name = name.partition(":")[0]
        return known.get(name) or known.get(indexed(name))

    def differs_from(self, other: str) -> str:
        """How this machine differs from one described by its `str`, as in profiles; empty if it does not.

        What the two have in common is left out.
        """
        here, there = str(self).split("; "), (other or "no machine").split("; ")
        if here == there:
            return ""
        only_there = ", ".join(part for part in there if part not in here) or "nothing else"
        only_here = ", ".join(part for part in here if part not in there) or "nothing else"
        return f"was measured on {only_there}; this is {only_here}"

    def __str__(self) -> str:
        text = f"{len(self.cores)} CPU cores ({self.processor})"
        return text + ("; " + "; ".join(self.accelerators) if self.accelerators else "; no accelerator")


def find_machine() -> Machine:
    """Look at this machine; torch is asked in a process of its own."""
    devices = tuple(run_isolated(_devices, None, lambda _: None))
    seen = [each for each in devices if each.device.partition(":")[0] in KINDS]
    accelerators = tuple(f"{each.device.partition(':')[0]}: {each.name}".removesuffix(": ") for each in seen)
    return Machine(_processor(), available_cores(), accelerators, total_memory(), devices)


def require(wanted: str, machine: Machine) -> None:
    """Refuse a `--hw` that this machine is not.

    Raises:
        WrongMachine: With what was found and the shipped profiles.
    """
    if wanted in {"auto", "cpu", machine.name}:
        return
    shipped = shipped_profiles()
    here = f"{wanted} among them: simulate --hw {wanted} (" if wanted in shipped else "("
    raise WrongMachine(
        f"this machine is not {wanted!r}: found {machine}. calibrate measures the machine it runs on "
        f"(--hw auto, or {machine.name}); simulate can use a shipped profile instead, {here}"
        + ", ".join(shipped)
        + ")"
    )


def require_devices(
    placement: Placement, machine: Machine, draft_backend: str = TORCH, *, sampled: bool = False
) -> None:
    """Refuse a placement, or a backend, whose device is not here or cannot do what is asked.

    Sampling takes double precision.

    Raises:
        PlacementError: With what is here, and what may be missing.
    """
    wanted = [device for device in placement.devices if device != "cpu"]
    wanted += [] if backend_kind(draft_backend).runs_torch else [draft_backend]
    for name in wanted:
        if machine.device(name) is None and machine.device(f"{name}.0") is None:
            raise absent(name, list(machine.devices))
    if sampled and "mps" in placement.devices:
        raise PlacementError(
            "device 'mps' has no double precision, which sampling needs; use --temperature 0"
        )
    if draft_backend != TORCH and placement.draft_device != "cpu":
        raise PlacementError(
            f"draft backend {draft_backend!r} has its own device: put the draft on the CPU, e.g. "
            f"--placement {placement.target_device}+cpu"
        )


def _devices(_: Any, __: Callable[[Any], None]) -> list[LocalDevice]:
    from calibrate.live.backends.installed import has_llamacpp, openvino_devices

    others = [f"openvino:{name}" for name in openvino_devices()] + ["llamacpp"] * has_llamacpp()
    return [*find_accelerators(), *map(LocalDevice, others)]


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def available_memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Bytes that processes may still take: free or reclaimable, and within this container's limit.

    None where the system does not say (other than Linux).
    """
    bounds = _meminfo(meminfo, "MemAvailable:")
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.is_file() and used.is_file() and limit.read_text().strip() != "max":
        bounds.append(max(0, int(limit.read_text()) - int(used.read_text()) + _reclaimable(cgroup)))
    return min(bounds, default=None)


def _reclaimable(cgroup: Path) -> int:
    """File cache that counts as used by a container but can be dropped."""
    stat = cgroup / "memory.stat"
    for line in stat.read_text().splitlines() if stat.is_file() else ():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def total_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of memory of this machine; None where the system does not say."""
    return min(_meminfo(meminfo, "MemTotal:"), default=None)


def _meminfo(path: Path, name: str) -> list[int]:
    """The entry of that name in bytes; empty where there is none."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [int(line.split()[1]) * 1024 for line in lines if line.startswith(name)]
