"""Measure a real draft/target pair and fit the simulator to it."""
