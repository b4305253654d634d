"""Acceptance as people have it: run lengths, hit rates, published acceptance lengths by K."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hardware_profiles.store import find_acceptance, shipped_acceptances
from simulator.cli import main
from simulator.given import after_hits_and_misses
from simulator.imports.lengths import COLUMNS, fitted, read_lengths
from simulator.imports.measured import ImportRefused
from simulator.tokens.acceptance import load_acceptance

FEW = ("--target-time", "1", "--draft-time", "0.1", "--json")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, *FEW])


def answer(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments).stdout)
    return found


def test_lengths_by_hand() -> None:
    # 1 + 0.8 = 1.8; 1 + 0.8 + 0.8 * 0.5 = 2.2; 1 + 0.8 + 0.4 + 0.4 * 0.5 = 2.4
    conditional, worst = fitted({1: 1.8, 2: 2.2, 3: 2.4})
    assert conditional == pytest.approx((0.8, 0.5, 0.5), abs=1e-3) and worst < 1e-3
    # One length tells one acceptance: 1 + a + a^2 = 1.75.
    assert fitted({2: 1.75})[0] == pytest.approx((0.5, 0.5), abs=1e-3)


def test_a_run_length_is_a_length_at_infinitely_many_drafts(tmp_path: Path) -> None:
    # Three accepted tokens for every rejection: 3 of 4 at every position.
    path = tmp_path / "t.csv"
    row = ("a+b", "b", "PEARL", "runs", "mean", "inf", "4", "DOUBLE Table 1")
    path.write_text("\n".join(",".join(each) for each in (COLUMNS, row)))
    found = read_lengths(path)["a+b-pearl-runs"]
    assert set(found.acceptance_at_position) == {0.75} and found.source.engine == "transformers"


def test_acceptance_falls_though_the_lengths_do_not() -> None:
    conditional, worst = fitted({1: 1.5, 2: 1.9, 3: 2.4, 4: 2.3})
    assert list(conditional) == sorted(conditional, reverse=True) and worst > 0.05
    with pytest.raises(ImportRefused, match="2 drafted tokens make no rounds"):
        fitted({2: 3.5})


def test_a_table_of_lengths(tmp_path: Path) -> None:
    rows = [
        ("m", "d", "EAGLE3", "on", "coding", str(k), length, "run 1")
        for k, length in ((1, "1.8"), (2, "2.2"))
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(",".join(row) for row in (COLUMNS, *rows)))
    found = read_lengths(path)["m-eagle3-on"]
    assert found.acceptance_at_position == pytest.approx((0.8, 0.5), abs=1e-3) and found.lookahead == 2
    path.write_text("model,draft\nm,d")
    with pytest.raises(ImportRefused, match="expected a table of acceptance lengths"):
        read_lengths(path)


@pytest.mark.parametrize("name", shipped_acceptances())
def test_shipped_ones_are_sound_and_found_by_name(name: str) -> None:
    found = load_acceptance(find_acceptance(name))
    rounds = 1.0 + sum(found.joint_acceptance_at_position)
    assert rounds == pytest.approx(found.tokens_per_round or rounds, abs=0.2)


def test_a_name_is_an_acceptance() -> None:
    found = answer("--policy", "sd", "--lookahead", "3", "--acceptance", "dflash-k7")
    # 1 + 0.672 + 0.404 + 0.215, the joint acceptance of its first three positions
    assert found["tokens_per_round"] == pytest.approx(2.29, rel=0.02)
    assert "nor a name among" in run("--acceptance", "nonesuch").output


def test_a_run_length_is_an_acceptance() -> None:
    # Four accepted tokens for every rejection: 4 of 5.
    assert answer("--policy", "sd", "--run-length", "4") == answer("--policy", "sd", "--acceptance", "0.8")
    assert "not both" in run("--run-length", "4", "--acceptance", "0.8").output


def test_acceptance_by_context_is_on_a_line_over_its_logarithm() -> None:
    # The middle of 72 prompt and 56 further tokens is at 100, halfway between 10 and 1000.
    curve = ("--acceptance-by-context", "10:0.8,1000:0.4", "--context", "72", "--max-tokens", "56")
    plain = ("--acceptance", "0.6", "--context", "72", "--max-tokens", "56")
    assert answer("--policy", "sd", *curve) == answer("--policy", "sd", *plain)
    assert "contexts rise" in run("--acceptance-by-context", "100:0.5,10:0.8").output
    assert "no list of contexts" in run("--acceptance-by-context", "0.5").output
    assert "not both" in run("--acceptance", "0.5", "--acceptance-by-context", "10:0.8").output


def test_rounds_after_hits_and_after_misses() -> None:
    # K = 2: after a hit 1 + 0.9 + 0.81, after a miss 1 + 0.5 + 0.25; three of four rounds follow a hit.
    rounds = 0.75 * 2.71 + 0.25 * 1.75
    found = answer(
        "--lookahead", "2", "--acceptance", "0.9", "--miss-acceptance", "0.5", "--hit-rate", "0.75"
    )
    assert found["tokens_per_round"] == pytest.approx(rounds, rel=0.03)
    assert found["cache_hit_rate"] == pytest.approx(0.75, abs=0.03)
    same = after_hits_and_misses(0.7, 0.7, 0.4)
    assert same == pytest.approx([0.7] * len(same))
    assert "goes with --acceptance" in run("--acceptance", "0.9", "--miss-acceptance", "0.5").output
    refused = run("--policy", "sd", "--acceptance", "0.9", "--miss-acceptance", "0.5", "--hit-rate", "0.9")
    assert "which sd K=4 does not make" in refused.output


def test_a_hit_rate_is_one_at_any_fanout() -> None:
    rates = [
        answer("--policy", "saguaro", "--acceptance", "0.8", "--hit-rate", "0.7", "--fanout", fanout)[
            "cache_hit_rate"
        ]
        for fanout in ("1", "8")
    ]
    assert rates == pytest.approx([0.7, 0.7], abs=0.02)
    assert (
        "takes the place of" in run("--acceptance", "0.8", "--hit-rate", "0.7", "--hit-exponent", "1").output
    )
