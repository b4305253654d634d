"""Runs replayed without events: content first, then time, both by loops over flat arrays."""

from simulator.compiled.replay import World, not_covered, replay_run

__all__ = ["World", "not_covered", "replay_run"]
