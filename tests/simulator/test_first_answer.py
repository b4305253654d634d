"""`simulate` without a word on hardware: GPUs that people have, a published acceptance, both named first."""

from __future__ import annotations

import pytest
from simulate_command import answer, as_typed

from hardware_profiles.store import find_acceptance
from policies.laws.inverse import acceptance_from_tokens
from simulator.request import DEFAULT_ACCEPTANCE, DEFAULT_PROFILE
from simulator.tokens.acceptance import load_acceptance

FEW = ("--requests", "16")


def test_the_first_lines_name_hardware_acceptance_and_the_measured_pair() -> None:
    result = as_typed("--policy", "ssd", "--batch", "16", *FEW)
    assert result.exit_code == 0, result.output
    first = " ".join(result.stdout.partition("┏")[0].split())
    for words in (DEFAULT_PROFILE, "--hw cpu2-x5", "70b on 4 x h100_sxm", "[line 12]", "88 % of hits"):
        assert words in first, words
    assert "target.forward" not in first and "target.forward" in result.stdout


def test_the_published_acceptance_by_hand() -> None:
    found = load_acceptance(find_acceptance(DEFAULT_ACCEPTANCE))
    # 1 + a + ... + a^6 = 5.03; the log's other run, 1 + a + ... + a^7 = 5.47, says the same within 0.0004.
    assert found.acceptance_at_position[0] == pytest.approx(acceptance_from_tokens(5.03, 6))
    assert found.acceptance_at_position[0] == pytest.approx(acceptance_from_tokens(5.47, 7), abs=5e-4)
    exponent, scale = found.hit_curve or (0.0, 0.0)
    assert 1.0 - scale * 3.0**-exponent == pytest.approx(0.88)


def test_a_files_hit_curve_is_used_and_another_one_comes_first() -> None:
    named = ("--hw", DEFAULT_PROFILE, "--acceptance", DEFAULT_ACCEPTANCE, *FEW)
    own = answer(*named)
    assert own["cache_hit_rate"] == pytest.approx(0.88, abs=0.02)
    assert (
        own["seconds"] == answer("--hw", DEFAULT_PROFILE, *FEW, "--acceptance", DEFAULT_ACCEPTANCE)["seconds"]
    )
    assert answer(*named, "--hit-curve", "1,0.9")["cache_hit_rate"] < 0.8  # 1 - 0.9 / 3


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (("--temperature", "1"), "--temperature needs recordings"),
        (("--policy", "ngram"), "policy 'pld' needs recordings"),
        (("--prompt-category", "code"), "--prompt-category needs recordings"),
        (("--trace", "cpu2-x5"), "--trace needs recordings"),
    ],
)
def test_what_only_recordings_answer_asks_for_hardware_that_has_them(
    asked: tuple[str, ...], why: str
) -> None:
    result = as_typed(*asked)
    assert result.exit_code == 2 and why in result.stderr and "--hw cpu2-x5" in result.stderr
