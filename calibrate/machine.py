"""What machine this is: its processor, cores and accelerators."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.checks import total_memory
from calibrate.live.placement import available_cores
from calibrate.subprocesses import run_apart
from hardware_profiles.store import shipped_profiles


class WrongMachine(ValueError):
    """The hardware asked for is not here; the message says what is, and what can be used instead."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine.

    Attributes:
        processor: Model name of the CPU.
        cores: CPU cores this process may use.
        accelerators: Names of the accelerators that torch sees, e.g. `cuda: NVIDIA H100`.
        memory_bytes: Memory of the machine; None where the system does not say.
    """

    processor: str
    cores: tuple[int, ...]
    accelerators: tuple[str, ...]
    memory_bytes: int | None = None

    @property
    def name(self) -> str:
        """Short name in profiles: `cpu2` for two cores."""
        return f"cpu{len(self.cores)}"

    def __str__(self) -> str:
        found = f"{len(self.cores)} CPU cores ({self.processor})"
        return found + ("; " + "; ".join(self.accelerators) if self.accelerators else "; no accelerator")


def find_machine() -> Machine:
    """Look at this machine; torch is asked in a process of its own."""
    accelerators = run_apart(_accelerators, None, lambda _: None)
    return Machine(_processor(), available_cores(), tuple(accelerators), total_memory())


def require(wanted: str, machine: Machine) -> None:
    """Refuse a `--hw` that this machine is not.

    Raises:
        WrongMachine: With what was found and the shipped profiles.
    """
    if wanted not in {"auto", "cpu", machine.name}:
        raise WrongMachine(
            f"this machine is not {wanted!r}: found {machine}. calibrate measures the machine it runs on "
            f"(--hw auto, or {machine.name}); simulate can use a shipped profile instead: "
            + ", ".join(shipped_profiles())
        )


def _accelerators(_: Any, __: Callable[[Any], None]) -> list[str]:
    import torch

    found = []
    for kind in ("cuda", "mps", "xpu"):
        backend = getattr(torch, kind, None)
        if backend is None or not backend.is_available():
            continue
        if not hasattr(backend, "get_device_name"):
            found.append(kind)
            continue
        found += [f"{kind}: {backend.get_device_name(i)}" for i in range(backend.device_count())]
    return found


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
