"""Published peaks of devices: what a part could do at best, from its maker's data.

Peaks are per device, dense (no sparsity), decimal units.  What an engine reaches of them is another matter:
`hardware_profiles.roofline.Efficiency`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

GB = 10**9
GIB = 2**30
TERA = 1e12


class DeviceError(ValueError):
    """A device is not known, or cannot do what is asked; the message says what would do."""


@dataclass(frozen=True, slots=True)
class Device:
    """Peaks of one device.

    Attributes:
        name: Short name.
        part: The part, in full.
        kind: What torch calls it, as in a profile; `npu` where torch has no word for it.
        flops: Multiplications and additions per second, at the precision that language models run in there
            (16 bit on accelerators, 32 bit on CPUs).
        bytes_per_s: Memory bandwidth.
        memory_bytes: Memory; None where it is a machine's own affair.
        link_bytes_per_s: To the other devices, one direction; None: no link that is fit for tensor
            parallelism.
        source: Where the numbers are published.
    """

    name: str
    part: str
    kind: str
    flops: float
    bytes_per_s: float
    memory_bytes: int | None
    link_bytes_per_s: float | None
    source: str

    def of_cores(self, count: int) -> Device:
        """That many CPU cores in place of one, as if they did not share their bandwidth."""
        if count == 1:
            return self
        return replace(
            self,
            part=f"{count} of: {self.part}",
            flops=count * self.flops,
            bytes_per_s=count * self.bytes_per_s,
        )


_NVLINK = "NVLink, half of the printed two-way bandwidth"

DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device(
            "a100-40", "NVIDIA A100 40GB SXM", "cuda", 312 * TERA, 1555 * GB, 40 * GB, 300 * GB,
            f"NVIDIA A100 datasheet: 312 TFLOPS FP16, 1555 GB/s, 600 GB/s {_NVLINK}",
        ),
        Device(
            "a100", "NVIDIA A100 80GB SXM", "cuda", 312 * TERA, 2039 * GB, 80 * GB, 300 * GB,
            f"NVIDIA A100 datasheet: 312 TFLOPS FP16, 2039 GB/s, 600 GB/s {_NVLINK}",
        ),
        Device(
            "a800", "NVIDIA A800 80GB SXM", "cuda", 312 * TERA, 2039 * GB, 80 * GB, 200 * GB,
            f"an A100 with 400 GB/s {_NVLINK} (NVIDIA A800 datasheet)",
        ),
        Device(
            "h100", "NVIDIA H100 80GB SXM", "cuda", 989.4 * TERA, 3350 * GB, 80 * GB, 450 * GB,
            f"NVIDIA H100 datasheet: 989.4 TFLOPS BF16 dense, 3.35 TB/s, 900 GB/s {_NVLINK}",
        ),
        Device(
            "h200", "NVIDIA H200 141GB SXM", "cuda", 989.4 * TERA, 4800 * GB, 141 * GB, 450 * GB,
            f"NVIDIA H200 datasheet: 989.4 TFLOPS BF16 dense, 4.8 TB/s, 900 GB/s {_NVLINK}",
        ),
        Device(
            "l40s", "NVIDIA L40S 48GB", "cuda", 362.05 * TERA, 864 * GB, 48 * GB, 32 * GB,
            "NVIDIA L40S datasheet: 362 TFLOPS BF16 dense, 864 GB/s, PCIe 4.0 x16",
        ),
        Device(
            "rtx4090", "NVIDIA GeForce RTX 4090", "cuda", 165.2 * TERA, 1008 * GB, 24 * GB, 32 * GB,
            "NVIDIA Ada whitepaper: 165.2 TFLOPS FP16 with FP32 accumulation, 1008 GB/s, PCIe 4.0 x16",
        ),
        Device(
            "m2ultra", "Apple M2 Ultra GPU, 76 cores", "mps", 27.2 * TERA, 800 * GB, 192 * GB, 15 * GB,
            "Apple: 27.2 TFLOPS FP32, 800 GB/s, up to 192 GB; link: Thunderbolt 5, 120 Gb/s (Mirror-SD, G.1)",
        ),
        Device(
            "m2ultra-npu", "Apple M2 Ultra Neural Engine", "npu", 31.6 * TERA, 800 * GB, 192 * GB, 15 * GB,
            "Mirror-SD, D.3 (Apple): 31.6 TOPS, 0.8 TB/s, memory shared with the GPU; link as the GPU's",
        ),
        Device(
            "xeon16", "16 cores of an Intel Xeon, third generation", "cpu", 1.64e12, 204.8 * GB, None, None,
            "16 cores x 32 FP32 FLOP x 3.2 GHz (AVX-512, nominal); 8 channels of DDR4-3200, Intel ARK",
        ),
        Device(
            "cpu-core", "one x86 server core", "cpu", 96e9, 25.6 * GB, None, None,
            "nominal: 32 FP32 FLOP per cycle (two AVX2 FMA units) at 3 GHz; one channel of DDR4-3200",
        ),
    )
}  # fmt: skip
"""Devices by name.  `cpu-core` stands for the cores of a profile measured on a CPU: what its efficiencies are
shares of is nominal, and above 1 where a small model stays in the caches."""


REPORTED: Mapping[str, tuple[str, ...]] = {
    "a100-40": ("A100", "40GB"),
    "a100": ("A100", "80GB"),
    "a800": ("A800",),
    "h100": ("H100",),
    "h200": ("H200",),
    "l40s": ("L40S",),
    "rtx4090": ("RTX 4090",),
}
"""Words that a driver's name of the part has, e.g. `NVIDIA A100-SXM4-80GB`."""


def known_part(reported: str) -> Device | None:
    """The device behind a name as drivers report it, or as profiles here have it; None: unknown."""
    for device in DEVICES.values():
        if reported == device.part or all(w in reported for w in REPORTED.get(device.name, ("\0",))):
            return device
    return None


def find_device(name: str) -> Device:
    """A device by name.

    Raises:
        DeviceError: There is none; the message lists the names there are.
    """
    if name not in DEVICES:
        raise DeviceError(f"no device {name!r}; there are {', '.join(DEVICES)}")
    return DEVICES[name]
