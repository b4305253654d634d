"""Settings: defaults, refusals, names."""

from __future__ import annotations

import pytest

from policies.registry import POLICIES, SettingError, configure, find_policy


def test_defaults_are_filled_in() -> None:
    settings = configure("saguaro")
    assert (settings.lookahead, settings.fanout, settings.backup) == (4, (3,) * 5, "primary")
    assert configure("ar").lookahead is None


@pytest.mark.parametrize("alias", ["ssd", "SSD", "Saguaro"])
def test_aliases(alias: str) -> None:
    assert find_policy(alias).name == "saguaro"


def test_labels_tell_settings_apart() -> None:
    labels = [
        configure("sd", lookahead=2).label,
        configure("saguaro", lookahead=2, fanout=(1,)).label,
        configure("saguaro", lookahead=2, fanout=(1, 2, 3), backup="plain").label,
    ]
    assert labels == ["sd K=2", "saguaro K=2 F=1 primary", "saguaro K=2 F=1,2,3 plain"]


@pytest.mark.parametrize("knob", ["lookahead", "fanout", "backup"])
def test_a_knob_that_would_be_ignored_is_refused(knob: str) -> None:
    value = {"lookahead": 3, "fanout": (2,), "backup": "plain"}[knob]
    for info in POLICIES.values():
        if knob not in info.knobs:
            with pytest.raises(SettingError, match=f"has no {knob}"):
                configure(info.name, **{knob: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("fanout", [(0,), (-1, 2, 2, 2, 2), (0, 0, 0, 0, 0), (1, 2)])
def test_bad_fanouts(fanout: tuple[int, ...]) -> None:
    with pytest.raises(SettingError, match="fanout"):
        configure("saguaro", fanout=fanout)
