"""Speculative-decoding policies: one generator per policy, run unchanged in simulated and in real time."""
