"""Recording and calibrating with a draft that llama.cpp runs (`pytest -m llamacpp`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_calibration import PLAN, small_job
from small_models import prompts

from calibrate.calibration import run_calibration
from calibrate.job import like_profile
from calibrate.plan import LivePart
from calibrate.record import record_trace
from calibrate.reply_recorder import Asked, record_decisions
from hardware_profiles.profile import Profile
from hardware_profiles.reply_trace import DecisionTrace
from hardware_profiles.trace import Trace
from policies.ar import ArConfig
from policies.registry import configure
from policies.sd import SdConfig
from policies.ssd import SaguaroConfig

pytestmark = pytest.mark.llamacpp


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def recorded(pair: tuple[str, str], **changes: Any) -> Trace:
    return record_trace(replace(small_job(*pair), prompts=tuple(prompts(3)), **changes), 0.0)


def test_a_trace_is_of_the_draft_that_will_run(pair: tuple[str, str], tmp_path: Path) -> None:
    """The target's path is the same; what the draft says of it is nearer, the more bits it has."""
    exact = recorded(pair)
    errors = []
    for precision in ("fp32", "fp16", "q8_0", "q4_0"):
        found = recorded(pair, draft_backend=f"llamacpp:{precision}")
        assert (found.meta.backend, found.meta.precision) == ("llamacpp", precision)
        assert found.token.tolist() == exact.token.tolist()
        assert np.array_equal(found.column("target_logprob"), exact.column("target_logprob"))
        difference = found.column("draft_logprob") - exact.column("draft_logprob")
        errors.append(float(np.abs(difference).mean()))
    assert errors == sorted(errors) and errors[0] < 1e-4 and errors[-1] > 1e-2
    assert {path.name for path in tmp_path.glob("cache/*/llamacpp/*/*")} == {
        "fp32.gguf",
        "fp16.gguf",
        "q8_0.gguf",
        "q4_0.gguf",
    }


@pytest.fixture
def profile(pair: tuple[str, str]) -> Profile:
    job = replace(small_job(*pair), draft_backend="llamacpp:q8_0", temperatures=(0.0,))
    configs = (ArConfig(), SdConfig(lookahead=2), SaguaroConfig.of(lookahead=2))
    least = replace(PLAN, repeats=1, overlap_repeats=1, live=(LivePart(configs, prompts=1, repeats=1),))
    found = run_calibration(job, lambda *_: None, what=least)
    assert (found.trace.meta.backend, found.trace.meta.precision) == ("llamacpp", "q8_0")
    assert {run.policy for run in found.profile.measured_runs} == {"ar", "sd", "saguaro"}
    again = like_profile(replace(job, draft_backend="torch"), found.profile)
    assert (again.draft_backend, again.precision) == ("llamacpp:q8_0", "fp32")
    return found.profile


def test_a_calibration_and_its_decisions_say_what_ran(profile: Profile, pair: tuple[str, str]) -> None:
    draft, target = profile.roles.draft, profile.roles.target
    assert (draft.backend, draft.precision, draft.device.kind) == ("llamacpp", "q8_0", "cpu")
    assert (target.backend, target.precision) == ("torch-eager", "fp32")
    assert profile.provenance.note is not None and profile.provenance.note.startswith("draft by llamacpp")
    roles = profile.roles.but(target=target.but(model=pair[0]), draft=draft.but(model=pair[1]))
    profile = profile.but(roles=roles)
    job = replace(small_job(*pair), prompts=tuple(prompts(1)), max_tokens=8)
    asked = Asked(like_profile(job, profile), profile, [configure("duo", lookahead=4)], timed=False)
    assert asked.job.draft_backend == "llamacpp:q8_0"
    for backend, told in (("llamacpp:q8_0", ("llamacpp", "q8_0")), ("torch", ("torch-eager", "fp32"))):
        kept: list[DecisionTrace] = []
        each = replace(asked, job=replace(asked.job, draft_backend=backend))
        record_decisions(each, lambda _, trace, kept=kept: kept.append(trace), lambda *_: None)  # type: ignore[misc]
        assert (kept[0].meta.backend, kept[0].meta.precision) == told
