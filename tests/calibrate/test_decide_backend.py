"""What runs the draft while decisions are recorded, and that their file says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_models import prompts

from calibrate.cli import main
from calibrate.decide_cli import _why_untimed
from calibrate.job import Job, like_profile
from calibrate.live.errors import PlacementError
from calibrate.live.placement import check_backend, parse_placement
from calibrate.machine import Machine
from calibrate.reply_recorder import Asked, DecisionFiles, record_decisions
from hardware_profiles.profile import DeviceInfo, Profile, Role, Roles
from hardware_profiles.reply_trace import DecisionTrace
from hardware_profiles.surface import ConstantCost, Provenance
from policies.registry import configure

SETTINGS = configure("duo", lookahead=4)


def asked(pair: tuple[str, str], backend: str, precision: str) -> Asked:
    """On a profile whose draft was run by a backend."""
    target = Role(
        device=DeviceInfo(kind="cpu"), model=pair[0], backend="torch-eager", precision="fp32", mode="eager"
    )
    draft = target.but(model=pair[1], backend=backend, precision=precision)
    profile = Profile(
        name="made-up",
        roles=Roles(target=target, draft=draft),
        operations={"target.forward": ConstantCost(seconds=1.0), "draft.forward": ConstantCost(seconds=0.1)},
        provenance=Provenance(kind="measured", machine="a machine"),
    )
    job = Job(
        machine=Machine("any", (0, 1), ()),
        target=pair[0],
        draft=pair[1],
        names=pair,
        prompts=tuple(prompts(1)),
        prompt_set="tiny",
        placement=parse_placement("split"),
        name="any",
        command="any",
        max_tokens=6,
    )
    return Asked(like_profile(job, profile), profile, [SETTINGS], timed=False)


def by(asked: Asked, backend: str) -> Asked:
    return replace(asked, job=replace(asked.job, draft_backend=backend))


@pytest.mark.parametrize(
    ("label", "precision", "backend"),
    [
        ("torch-eager", "fp32", "torch"),
        ("openvino-cpu", "fp32", "openvino:CPU"),
        ("llamacpp", "q8_0", "llamacpp:q8_0"),
    ],
)
def test_the_draft_runs_as_it_was_measured(label: str, precision: str, backend: str) -> None:
    found = asked(("target", "draft"), label, precision)
    assert found.job.draft_backend == backend
    assert f"of a draft by {backend}, not llamacpp:q4_0" in _why_untimed(by(found, "llamacpp:q4_0"))


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(PlacementError, match=r"unknown backend 'llamacpp'; backends: torch, .*llamacpp:q8_0"):
        check_backend("llamacpp")
    result = CliRunner().invoke(main, ["decide", "--policy", "duo", "--draft-backend", "tensorrt"])
    assert result.exit_code == 2 and "unknown backend 'tensorrt'" in result.stderr


def test_a_file_says_what_ran_and_takes_nothing_else(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mine = by(asked(pair, "torch-eager", "fp32"), "openvino:CPU")
    kept: list[DecisionTrace] = []
    record_decisions(mine, lambda _, trace: kept.append(trace), lambda *_: None)
    assert (kept[0].meta.backend, kept[0].meta.precision) == ("openvino-cpu", "fp32")
    assert kept[0].settings[SETTINGS.label].replies
    DecisionFiles(mine, tmp_path).keep(SETTINGS, kept[0])
    DecisionFiles(mine, tmp_path)
    with pytest.raises(
        ValueError, match=r"of a draft by openvino:CPU, .* of one by torch; give another --out"
    ):
        DecisionFiles(by(mine, "torch"), tmp_path)
