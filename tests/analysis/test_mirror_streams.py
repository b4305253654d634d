"""Passes of a streaming draft: their law by hand and by counting, and what is counted of decisions."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from analysis.__main__ import main
from analysis.studies.mirror_account import most_streams, passes_of
from hardware_profiles.reply_trace import Decisions
from policies.laws.mirror import mean_passes, passes_probs
from policies.mirror import StreamDraft
from policies.registry import configure
from policies.values import View
from simulator.synthetic import Synthetic
from simulator.tokens import coin


def test_the_law_by_hand() -> None:
    """gamma = 3, S >= 1: one token, then two are left and one is proposed.  Right: J = 2; wrong: J = 3."""
    assert passes_probs(3, 2, 0.3) == pytest.approx([0.0, 0.0, 0.3, 0.7])
    assert mean_passes(3, 2, 0.3) == pytest.approx(2.7)
    # Of two windows the slowest: 2 only where both are.
    assert mean_passes(3, 2, 0.3, windows=2) == pytest.approx(2 * 0.09 + 3 * 0.91)
    assert mean_passes(7, 0, 0.9) == 7.0
    with pytest.raises(ValueError, match="lookahead"):
        passes_probs(0, 1, 0.5)


@given(st.integers(1, 7), st.integers(0, 4), st.floats(0.0, 1.0))
def test_the_law_counts_every_way_of_being_right(lookahead: int, streams: int, acceptance: float) -> None:
    """Against enumeration: whether the proposal of each place would be right."""
    expected = np.zeros(lookahead + 1)
    for right in itertools.product((False, True), repeat=lookahead):
        done, passes = 1, 1
        while done < lookahead:
            most = min(streams, lookahead - done - 1)
            done += 1 + next((i for i in range(most) if not right[done + i]), most)
            passes += 1
        expected[passes] += np.prod([acceptance if r else 1.0 - acceptance for r in right])
    found = passes_probs(lookahead, streams, acceptance)
    assert found == pytest.approx(expected, abs=1e-12)


def test_what_is_counted_of_decisions() -> None:
    """gamma = 4, S = 3, two windows of a rollout and one drafted.

    (1, 2, 1): of 2 proposals one was right, one wrong.  (1, 3): both of 2.  (1, 1, 1, 1): 2 proposed, the
    first was wrong; then 1, which was too.  Right 3 of 6 verified; 12 tokens in 9 passes; slowest 3.5 in the
    mean.
    """
    replies = {
        ("streamrollout", 5, 0, 0): [[], [[1, 2, 1], [1, 3]], []],
        ("streamdraft", 5, 0, 0): [[7, 7, 7, 7], -1, [1, 1, 1, 1], []],
        ("rollout", 5, 0, 0): [[], []],
    }
    found = passes_of([Decisions("x", replies)], "3")
    assert (found["windows"], found["shares"]) == (3, [7 / 9, 1 / 9, 1 / 9])
    assert (found["acceptance"], found["passes"], found["slowest"]) == (3 / 6, 3.0, 3.5)
    assert found["law_passes"] == pytest.approx(mean_passes(4, 3, 0.5))
    assert passes_of([Decisions("x", {})], "3") == {}
    assert most_streams("batch") == 2


def test_coins_pass_as_the_law_says() -> None:
    """Mean passes of fresh windows on coins, within four standard errors."""
    count = 2_000
    ids, nine = tuple(range(count)), (9,) * count
    view = View(ids, ids, (0,) * count, nine, nine)
    asked = StreamDraft(view, count, ((),) * count, lookahead=6, streams=2, acceptance=0.6)
    tokens = coin(0.5, exponent=1.0, requests=1, length=9, prompt_length=3, seed=0)
    passes = np.array([len(reply.emitted) for reply in Synthetic(tokens).replies(asked)])
    law = passes_probs(6, 2, 0.6)
    deviation = float(np.sqrt(law @ np.arange(7) ** 2 - (law @ np.arange(7)) ** 2))
    assert passes.mean() == pytest.approx(mean_passes(6, 2, 0.6), abs=4 * deviation / count**0.5)


def test_the_command_compares_the_four_variants() -> None:
    found = CliRunner().invoke(
        main, ["run", "mirror-streams", "--coins", "--lookahead", "5", "--draft-time", "0.3", "--json"]
    )
    assert found.exit_code == 0, found.output
    rows = [row for row in json.loads(found.output)["rows"] if row["policy"] == "mirror"]
    knobs = [json.loads(row["knobs"]) for row in rows]
    mirrors = {(k["streams"], k["overlap"]): row for k, row in zip(knobs, rows, strict=True)}
    assert set(mirrors) == {(s, o) for s in ("0", "3") for o in ("off", "on")}
    for overlap in ("off", "on"):
        streamed, alone = (mirrors[s, overlap] for s in ("3", "0"))
        assert streamed["simulated_tokens_per_second"] > alone["simulated_tokens_per_second"]
        windows = [row["simulated_tokens_per_round"] for row in (streamed, alone)]
        assert windows[0] == windows[1]
    assert configure("mirror", streams="3").label.endswith("streams=3")
