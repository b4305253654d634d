"""Runs replayed without events: content first, then time, both by loops over flat arrays."""

from simulator.compiled.replay import World, not_covered, replay_run
from simulator.compiled.scripts import NotScriptedError, ScriptPrices, replay_script, scripts_of

__all__ = [
    "NotScriptedError",
    "ScriptPrices",
    "World",
    "not_covered",
    "replay_run",
    "replay_script",
    "scripts_of",
]
