"""Efficiencies of engines on accelerators, from what papers print about plain decoding.

Nothing here was measured by this project.  A paper's rate of plain decoding leaves one unknown per engine:
the time per block, which is what engines differ in.  The shares of both peaks are assumed, within the bands
given; the time per block is what the printed rate leaves then, and takes the blame for anything else.
`analysis.papers.profiles` derives the numbers from the tables, and a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hardware_profiles.devices import Device
from hardware_profiles.roofline import Efficiency

COMPUTE_SHARE = 0.6
"""Share of the compute peak that matrix products of a language model reach.  Assumed; 0.4 to 0.8 occur."""
BANDWIDTH_SHARE = 0.8
"""Share of the bandwidth.  Assumed; 0.6 to 0.95 occur."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How models are run, as far as one printed number tells.

    Attributes:
        name: Short name.
        layer_s: Time per block whatever its work, all-reduces apart.
        source: The cells it is fitted to.
        residual: Largest relative error of those cells with it.
    """

    name: str
    layer_s: float
    source: str
    residual: float

    @property
    def efficiency(self) -> Efficiency:
        """Of every operation alike."""
        return Efficiency(1.0 / COMPUTE_SHARE, 1.0 / BANDWIDTH_SHARE, self.layer_s)

    @property
    def note(self) -> str:
        """One sentence for a provenance."""
        return (
            f"engine {self.name}: {1e6 * self.layer_s:.0f} us per block fitted to {self.source} (residual "
            f"{100 * self.residual:.0f} %), {COMPUTE_SHARE:g} of peak compute and {BANDWIDTH_SHARE:g} of "
            "peak bandwidth assumed"
        )


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("ssd", 59.2e-6, "SSD B.3, plain decoding of Llama-3.1-70B and Qwen3-32B, TP 4 on H100", 0.051),
        Engine("transformers", 445e-6, "DuoDecoding Table 1, plain decoding of Llama-2-7B on A800", 0.099),
    )
}
"""`ssd`: captured graphs; `transformers`: the library of that name, called eagerly."""


def default_engine(device: Device) -> Engine | None:
    """What is assumed on a device where nothing is said: captured graphs; None on a CPU."""
    return None if device.kind == "cpu" else ENGINES["ssd"]
