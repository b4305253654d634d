"""Runs replayed without events: content first, then time, both by loops over flat arrays."""
