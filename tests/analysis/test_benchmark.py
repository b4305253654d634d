"""The benchmark's object, from runs too short to say anything."""

from __future__ import annotations

import json

from click.testing import CliRunner

from analysis.benchmark import WORLDS, main, scalar_tokens


def test_it_prints_one_object() -> None:
    few = ["--repeats", "1", "--event-tokens", "500", "--compiled-tokens", "500", "--json"]
    found = json.loads(CliRunner().invoke(main, few, catch_exceptions=False).output)
    for engine in ("event", "compiled", "compiled_uncached"):
        assert set(found[engine]) == set(WORLDS)
        assert all(rate > 0.0 for rate in found[engine].values())
    for name in ("simpy_timeouts_per_second", "scalar_tokens_per_second"):
        low, high = found["spread"][name]
        assert 0.0 < low <= found[name] <= high


def test_the_scalar_loop_by_hand() -> None:
    # Runs 2 1 0 and then 0: three tokens, one, three, one, ...: 7 is reached in three rounds, with 7.
    assert scalar_tokens([2, 1, 0, 0], [1, 1, 1, 1], total=7) == 7.0
