"""Settings of the property tests."""

from __future__ import annotations

from hypothesis import settings

# No deadline: the first example pays for lazy imports, and a busy machine is not a failure.
settings.register_profile("spectwin", deadline=None)
settings.load_profile("spectwin")
