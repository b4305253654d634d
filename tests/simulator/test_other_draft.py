"""A recording of a draft that llama.cpp ran, on a profile of one that ran otherwise, says so."""

from __future__ import annotations

import pytest

from hardware_profiles.profile import DeviceInfo, Profile, Role, Roles
from hardware_profiles.surface import ConstantCost, Provenance
from hardware_profiles.trace import TraceMeta
from simulator.request import _other_draft


def told(recorded: tuple[str, str], timed: tuple[str | None, str | None]) -> str:
    target = Role(device=DeviceInfo(kind="cpu"), model="target")
    draft = Role(device=DeviceInfo(kind="cpu"), model="draft", backend=timed[0], precision=timed[1])
    profile = Profile(
        name="made-up",
        roles=Roles(target=target, draft=draft),
        operations={"target.forward": ConstantCost(seconds=1.0), "draft.forward": ConstantCost(seconds=0.1)},
        provenance=Provenance(kind="synthetic"),
    )
    meta = TraceMeta(
        target_model="target",
        draft_model="draft",
        tokenizer="",
        vocabulary=9,
        sampling={},
        backend=recorded[0],
        precision=recorded[1],
    )
    assert _other_draft(meta, None) == ""
    return _other_draft(meta, profile)


@pytest.mark.parametrize(
    ("recorded", "timed"),
    [
        (("torch-eager", "fp32"), ("llamacpp", "q8_0")),
        (("llamacpp", "q8_0"), ("torch-eager", "fp32")),
        (("llamacpp", "q4_0"), ("llamacpp", "q8_0")),
    ],
)
def test_another_draft_is_told(recorded: tuple[str, str], timed: tuple[str, str]) -> None:
    assert told(recorded, timed) == (
        f"; its draft was run by {recorded[0]} in {recorded[1]}, the profile's by {timed[0]} in {timed[1]}, "
        "which is accepted differently"
    )


@pytest.mark.parametrize(
    ("recorded", "timed"),
    [
        (("llamacpp", "q8_0"), ("llamacpp", "q8_0")),
        (("torch-eager", "fp32"), ("torch-compile", "fp32")),
        (("llamacpp", "q8_0"), (None, None)),  # a profile written by hand
        (("", ""), ("llamacpp", "q8_0")),  # a trace of another tool
    ],
)
def test_the_same_draft_and_what_is_not_known_are_not(
    recorded: tuple[str, str], timed: tuple[str | None, str | None]
) -> None:
    assert told(recorded, timed) == ""
