"""Profiles carried to other models and placements: exact where the roofline is, labelled always."""

from __future__ import annotations

import pytest

from hardware_profiles.predicted import (
    Basis,
    placement_note,
    predicted_operations,
    predicted_role,
    replaced,
    rescaled,
    turns,
)
from hardware_profiles.profile import Profile, ProfileError, Roles, load_profile
from hardware_profiles.roofline import PRECISIONS, Efficiency, Setting, find_device
from hardware_profiles.shapes import find_shape
from hardware_profiles.store import find_profile
from hardware_profiles.surface import GridCost, Provenance

ENGINE = Efficiency(1.6, 1.3, 5e-5)


def on_h100(target: str, draft: str, device: str = "h100") -> Profile:
    """A pair priced by the roofline alone: what carrying a profile must return exactly."""
    sides = (
        Setting(find_shape(target), find_device("h100"), PRECISIONS["bf16"]),
        Setting(find_shape(draft), find_device(device), PRECISIONS["bf16"]),
    )
    basis = Basis(ENGINE, Provenance(kind="roofline", note="an engine"))
    names = ("target.forward", "target.prefill", "draft.forward", "draft.prefill", "draft.tree")
    return Profile(
        name="made-up",
        roles=Roles(target=predicted_role(sides[0]), draft=predicted_role(sides[1])),
        operations=predicted_operations(*sides, dict.fromkeys(names, basis)),
        provenance=Provenance(kind="roofline"),
    )


def test_carried_to_another_target_it_is_that_target_s_profile() -> None:
    carried = rescaled(on_h100("llama-3.1-8b", "llama-3.2-1b"), target="qwen3-32b")
    direct = on_h100("qwen3-32b", "llama-3.2-1b")
    assert carried.roles == direct.roles
    for name, cost in direct.operations.items():
        found = carried.operations[name]
        assert isinstance(cost, GridCost) and isinstance(found, GridCost)
        for one, other in zip(found.points, cost.points, strict=True):
            assert one.mean_s == pytest.approx(other.mean_s, rel=2e-3)
    assert carried.provenance_of("draft.forward").note == "an engine"
    assert "qwen3-32b" in (carried.provenance_of("target.forward").note or "")


def test_a_measured_profile_keeps_its_spread_and_states_the_error() -> None:
    profile = load_profile(find_profile("cpu2-x5"))
    carried = rescaled(profile, draft="pair:x5")
    before, after = profile.operations["draft.forward"], carried.operations["draft.forward"]
    assert isinstance(before, GridCost) and isinstance(after, GridCost)
    assert all(b.mean_s > a.mean_s for a, b in zip(before.points, after.points, strict=True))
    first, then = before.points[0], after.points[0]
    assert first.quantiles_s is not None and then.quantiles_s is not None
    assert then.quantiles_s[4] / then.mean_s == pytest.approx(first.quantiles_s[4] / first.mean_s)
    note = carried.provenance_of("draft.forward").note or ""
    assert carried.provenance_of("draft.forward").kind == "roofline" and "left out" in note
    assert carried.provenance_of("target.forward").kind == "measured"
    assert (carried.measured_runs, carried.model_error) == ((), None)
    assert carried.host == profile.host


def test_the_same_model_changes_nothing_but_the_label() -> None:
    profile = load_profile(find_profile("cpu2-x5"))
    carried = rescaled(profile, target="pair:x5").operations["target.forward"]
    kept = profile.operations["target.forward"]
    assert isinstance(carried, GridCost) and isinstance(kept, GridCost)
    assert [p.mean_s for p in carried.points] == pytest.approx([p.mean_s for p in kept.points])


def test_sharing_takes_turns_and_splitting_does_not() -> None:
    split = on_h100("llama-3.1-8b", "llama-3.2-1b")
    shared = replaced(split, "shared")
    assert (shared.placement, shared.overlap) == ("shared", turns())
    assert shared.slowdown("target.forward") == shared.slowdown("draft.tree") == 2.0
    assert replaced(shared, "split") == split
    assert replaced(split, "split") is split
    assert "assumed" in placement_note("shared") and "assumed" in placement_note("split")


def test_models_on_different_parts_cannot_share() -> None:
    with pytest.raises(ProfileError, match=r"Xeon.*sharing would move"):
        replaced(on_h100("llama-3.1-8b", "llama-68m", device="xeon16"), "shared")


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("textbook", "qwen3-32b", "'textbook' cannot be carried"),
        ("cpu2-x5", "qwen9", "no architecture 'qwen9'"),
    ],
)
def test_what_cannot_be_carried(name: str, target: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rescaled(load_profile(find_profile(name)), target=target)
