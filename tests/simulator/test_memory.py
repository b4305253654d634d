"""Memory: arithmetic by hand, and refusals that say the way out."""

from __future__ import annotations

from typing import Any

import pytest

from hardware_profiles.profile import Profile
from hardware_profiles.records import record
from policies.registry import SettingError, configure
from simulator.needs import check_memory, memory_needs


def profile(target_memory: int | None, draft_memory: int | None, **changes: Any) -> Profile:
    """Target: 1000 B of weights, 10 B per token.  Draft: 100 B and 2 B."""

    def role(memory: int | None, weights: int, kv: int) -> dict[str, Any]:
        device = {"kind": "cpu"} if memory is None else {"kind": "cpu", "memory_bytes": memory}
        return {"device": device, "model": "m", "weight_bytes": weights, "kv_bytes_per_token": kv}

    data = {
        "name": "tiny",
        "roles": {"target": role(target_memory, 1000, 10), "draft": role(draft_memory, 100, 2)},
        "operations": {"target.forward": {"seconds": 1.0}},
        "provenance": {"kind": "synthetic"},
    }
    return record(Profile, data | changes)


SAGUARO = configure("saguaro", lookahead=4, fanout=(3,))


def test_by_hand() -> None:
    # Texts of 96 tokens and K = 4: 100 tokens a row.  Target: 1000 + 2 x 100 x 10 = 3000.
    # Draft: 100 + 2 x 100 x 2 = 500, and 15 outcomes x 4 tokens x 2 B = 120 a row: 740.
    target, draft = memory_needs(profile(10**6, 10**6), SAGUARO, 2, 96)
    assert target.needed_bytes == 3000
    assert (draft.kv_bytes_per_row, draft.speculation_bytes_per_row, draft.needed_bytes) == (200, 120, 740)


def test_laws_of_sampled_tokens_are_kept() -> None:
    # 60 cached tokens with a law of 50 probabilities of 4 B each: 60 x (2 + 200) = 12120 B a row.
    sampled = configure("saguaro", lookahead=4, fanout=(3,), temperature=1.0)
    _, draft = memory_needs(profile(10**6, 10**6), sampled, 1, 96, vocabulary=50)
    assert draft.speculation_bytes_per_row == 12120
    greedy = configure("saguaro", lookahead=4, fanout=(3,), temperature=1.0, draft_sampling="greedy")
    assert memory_needs(profile(10**6, 10**6), greedy, 1, 96, vocabulary=50)[1].needed_bytes == 100 + 320


def test_two_draft_devices_halve_the_cache_and_the_wider_shape_counts() -> None:
    # 15 outcomes or 20 after a backup: 10 per device, x 4 tokens x 2 B.
    settings = configure(
        "saguaro", lookahead=4, fanout=(3,), fanout_backup=(20, 0, 0, 0, 0), backup="plain", draft_devices=2
    )
    assert memory_needs(profile(10**6, 10**6), settings, 1, 96)[1].speculation_bytes_per_row == 80


def test_pearl_drafts_past_a_pending_block_and_ar_needs_no_draft() -> None:
    everything = profile(10**6, 10**6)
    _, draft = memory_needs(everything, configure("pearl", lookahead=4), 1, 96)
    assert draft.kv_bytes_per_row == (96 + 8) * 2
    assert [n.device for n in memory_needs(everything, configure("ar"), 1, 96)] == ["target"]


def test_what_is_not_stated_is_not_checked() -> None:
    assert memory_needs(profile(None, None), SAGUARO, 1000, 10**6) == ()
    assert [n.device for n in memory_needs(profile(None, 10**6), SAGUARO, 1, 96)] == ["draft"]


def test_a_shared_device_holds_both() -> None:
    (both,) = memory_needs(profile(10**6, 10**6, placement="shared"), SAGUARO, 2, 96)
    assert both.needed_bytes == 3000 + 740


def test_tensor_parallel_devices_add_up() -> None:
    many = profile(1000, None)
    role = many.roles.target.but(tensor_parallel=3)
    many = many.but(roles=many.roles.but(target=role))
    assert memory_needs(many, SAGUARO, 2, 96)[0].fits  # 3 x 1000 B for the 3000 of above


@pytest.mark.parametrize(
    ("target", "draft", "batch", "message"),
    [
        (
            10**6,
            739,
            2,
            r"draft has 739 B .* at batch 2 needs 740 B .* batch of at most 1, .* fan-out budget",
        ),
        (2999, 10**6, 2, r"target has 2.93 KiB .* needs 2.93 KiB .* batch of at most 1, shorter texts$"),
        (900, 10**6, 1, r"weights alone do not fit"),
        (10**6, 101, 1, r"not even one row fits: use shorter texts or a smaller fan-out budget"),
    ],
)
def test_refusals_say_the_numbers_and_the_way_out(target: int, draft: int, batch: int, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_memory(profile(target, draft), SAGUARO, batch, 96)


def test_what_just_fits_is_accepted() -> None:
    assert [n.fits for n in check_memory(profile(3000, 740), SAGUARO, 2, 96)] == [True, True]
