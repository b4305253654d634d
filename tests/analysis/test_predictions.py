"""The grid of settings and the naive baseline."""

from __future__ import annotations

import pytest

from analysis.predictions import expand, nearest_measured
from hardware_profiles.profile import MeasuredRun
from policies.registry import SettingError, configure


def test_expand_gives_each_policy_its_own_knobs_and_ar_first() -> None:
    found = [s.label for s in expand(["saguaro", "sd"], [2, 4], [(1,), (3,)], ["plain"])]
    assert found == [
        "ar",
        "saguaro K=2 F=1 plain",
        "saguaro K=2 F=3 plain",
        "saguaro K=4 F=1 plain",
        "saguaro K=4 F=3 plain",
        "sd K=2",
        "sd K=4",
    ]


def test_expand_refuses_unknown_policies() -> None:
    with pytest.raises(SettingError, match="unknown policy"):
        expand(["medusa"], [4], [(3,)], ["plain"])


def measured(
    policy: str, lookahead: int, fanout: int | None = None, backup: str | None = None
) -> MeasuredRun:
    spread = None if fanout is None else (fanout,) * (lookahead + 1)
    return MeasuredRun(
        policy=policy, lookahead=lookahead, fanout=spread, backup=backup,
        tokens=1, tokens_per_second=1.0, speedup_vs_ar=1.0,
    )  # fmt: skip


def test_nearest_is_same_policy_same_backup_nearest_lookahead() -> None:
    runs = [
        measured("sd", 4),
        measured("saguaro", 3, 2, "primary"),
        measured("saguaro", 6, 2, "primary"),
        measured("saguaro", 3, 2, "plain"),
    ]
    assert nearest_measured(configure("saguaro", lookahead=7, backup="primary"), runs) is runs[2]
    assert nearest_measured(configure("saguaro", lookahead=2, backup="plain"), runs) is runs[3]
    # No run with that backup: any of the policy's.
    assert nearest_measured(configure("saguaro", lookahead=7, backup="random"), runs) is runs[2]
    assert nearest_measured(configure("pearl", lookahead=4), runs) is None
