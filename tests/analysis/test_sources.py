"""What a profile's name brings along: traces, and decisions of policies that the traces cannot replay."""

from __future__ import annotations

from analysis.sources import load_sources


def test_shipped_decisions_are_of_the_shipped_prompts() -> None:
    """Those of other prompts would be left out of every comparison, and nobody would see it."""
    found = load_sources("cpu2-x5").decisions[0.0].settings.values()
    assert {each.policy for each in found} >= {"double", "duo", "mirror", "rasd", "rest"}
    assert all(each.timings for each in found)
