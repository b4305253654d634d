"""Recording decisions: what is asked for, what is kept as it goes, what is not recorded twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from calibrate import reply_recorder as deciding
from calibrate.decide_cli import RecordingRequest, decide, settings_of
from calibrate.job import Job
from calibrate.live.placement import parse_placement
from calibrate.machine import Machine
from calibrate.prompts import Prompt
from calibrate.record import digest
from calibrate.reply_recorder import Asked, DecisionFiles, Recorder
from hardware_profiles.optime import StepTotal, Timed
from hardware_profiles.profile import DeviceInfo, Profile, Role, Roles
from hardware_profiles.reply_trace import Decisions, DecisionTrace, costs_fingerprint, read_decisions
from hardware_profiles.surface import ConstantCost, Provenance
from hardware_profiles.trace import TraceMeta, TraceRequest
from policies.commandline import typed
from policies.registry import KNOBS, POLICIES, Settings, configure
from policies.values import Request

PROMPTS = (Prompt(question_id=1, category="code", text="one two", source="x"),)
ROLE = Role(device=DeviceInfo(kind="cpu"), model="tiny")
PROFILE = Profile(
    name="made-up",
    roles=Roles(target=ROLE, draft=ROLE),
    operations={"target.forward": ConstantCost(seconds=0.01), "draft.forward": ConstantCost(seconds=0.002)},
    provenance=Provenance(kind="measured", machine="a machine"),
)
JOB = Job(
    machine=Machine("a machine", (0, 1), ()),
    target="tiny",
    draft="tiny",
    names=("tiny", "tiny"),
    prompts=PROMPTS,
    prompt_set="here",
    placement=parse_placement("split"),
    name="any",
    command="any",
    max_tokens=9,
)
TREE, WIDE, REST = configure("tree"), configure("tree", tree_widths=(2, 1)), configure("rest")
VERIFIED = Timed(
    "verifytree", "target", "verify", 1, 1, 4, 5e-4, 0.021, 2e-4, 1e-3, (StepTotal("verify", 1, 0.01, 0.02),)
)


def asked(*settings: Settings, **more: Any) -> Asked:
    return Asked(JOB, PROFILE, settings, **more)


def trace(settings: Settings, *, batches: Sequence[int] = (1,), limit: int = 9) -> DecisionTrace:
    timings = tuple(VERIFIED._replace(batch=batch) for batch in batches for _ in range(9))
    found = Decisions(settings.label, {("verifytree", 0, 0, 0): [1]}, policy=settings.policy, timings=timings)
    meta = TraceMeta(
        target_model="tiny",
        draft_model="tiny",
        tokenizer="none",
        vocabulary=9,
        sampling={"temperature": settings.temperature, "top_p": 1.0, "seed": settings.seed},
        prompt_set_hash=digest(PROMPTS),
    )
    request = TraceRequest(id=0, prompt=(1, 2), ended="limit", question_id=1, category="code", source="x")
    beside = costs_fingerprint(PROFILE) if batches else ""
    found = replace(found, timed_beside=beside, drift=(0.9, 1.2) if batches else ())
    return DecisionTrace((request,), meta, {settings.label: found}, limit)


def test_a_setting_is_in_its_file_at_once_and_is_not_recorded_again(tmp_path: Path) -> None:
    what = asked(TREE, WIDE, REST)
    files = DecisionFiles(what, tmp_path)
    assert [files.holds(s) for s in what.settings] == [False] * 3
    files.keep(TREE, trace(TREE))
    files.keep(REST, trace(REST))
    # The process is killed here; the same command finds two of three.
    again = DecisionFiles(what, tmp_path)
    assert [again.holds(s) for s in what.settings] == [True, False, True]
    again.keep(WIDE, trace(WIDE))
    path = tmp_path / "made-up-tree.parquet"
    assert again.path(WIDE) == path
    assert sorted(read_decisions(path).settings) == sorted([TREE.label, WIDE.label])


def test_a_file_has_the_timings_of_all_its_settings(tmp_path: Path) -> None:
    files = DecisionFiles(asked(TREE, WIDE), tmp_path)
    files.keep(TREE, trace(TREE, batches=(1, 4)))
    files.keep(WIDE, trace(WIDE))
    timings = read_decisions(files.path(TREE)).operation_timings
    assert timings is not None and timings.batches == (1, 4)
    # Steps of 20 ms where the profile says 10; 21 ms in all.
    found = timings.of(PROFILE, "tree")["verifytree"]
    assert found.steps["verify"].factor == pytest.approx(2.0)
    assert found.host.extra_s == pytest.approx(1e-3)
    kind, errors, day = files.report(files.path(TREE))
    assert kind == "timing of verifytree: verify 2.00 x profile +0 us; beyond its steps +1000 us"
    assert "in 3 timed runs" in errors
    assert "took 0.90 to 1.20 times" in day and "changed by 33% around a single run" in day


def test_what_was_timed_otherwise_is_recorded_again(tmp_path: Path) -> None:
    files = DecisionFiles(asked(TREE), tmp_path)
    files.keep(TREE, trace(TREE))
    assert DecisionFiles(asked(TREE), tmp_path).holds(TREE)
    assert not DecisionFiles(asked(TREE, batches=(1, 4)), tmp_path).holds(TREE)
    slower = PROFILE.but(operations={"target.forward": ConstantCost(seconds=0.02)})
    assert not DecisionFiles(replace(asked(TREE), profile=slower), tmp_path).holds(TREE)
    files.keep(TREE, trace(TREE, batches=()))
    untimed = DecisionFiles(asked(TREE), tmp_path)
    assert not untimed.holds(TREE)
    assert DecisionFiles(asked(TREE, timed=False), tmp_path).holds(TREE)


def test_what_could_not_be_joined_is_refused_before_anything_runs(tmp_path: Path) -> None:
    DecisionFiles(asked(TREE), tmp_path).keep(TREE, trace(TREE))
    for other in (replace(JOB, max_tokens=10), replace(JOB, prompts=PROMPTS * 2)):
        with pytest.raises(ValueError, match="cannot be joined; give another --out"):
            DecisionFiles(replace(asked(TREE), job=other), tmp_path)
    sampled = configure("tree", temperature=1.0)
    with pytest.raises(ValueError, match="cannot be joined"):
        DecisionFiles(asked(sampled), tmp_path / "made-up-tree.parquet")
    with pytest.raises(ValueError, match="a file holds one policy"):
        DecisionFiles(asked(TREE, REST), tmp_path / "all.parquet")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"batches": (0,)}, "batches must be at least 1, got 0"),
        ({"batches": (1, 4), "timed": False}, "same in every batch"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        asked(TREE, **more)
    with pytest.raises(ValueError, match="one sampling"):
        asked(TREE, configure("tree", temperature=1.0))


def asked_for(*arguments: str) -> list[Settings]:
    with click.Context(decide) as context:
        decide.parse_args(context, list(arguments))
        params = context.params
        return settings_of(typed(RecordingRequest, params), {name: params[name] for name in KNOBS})


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_all_stands_for_every_policy_that_a_decision_trace_replays(temperature: str) -> None:
    found = asked_for("--policy", "all", "--temperature", temperature)
    replayed = [n for n, info in POLICIES.items() if info.needs_decisions and "live" in info.worlds]
    assert [s.policy for s in found] == replayed
    assert {"tree", "rasd", "rest", "duo", "double", "mirror"} <= set(replayed)
    assert {s.temperature for s in found} == {float(temperature)}


def test_dynamic_trees_are_recorded_by_their_knobs() -> None:
    knobs = ["--tree-plan", "dynamic", "--tree-depth", "4"]
    (greedy,) = asked_for("--policy", "tree", *knobs)
    assert greedy.knobs["tree_plan"] == "dynamic"
    (hot,) = asked_for("--policy", "tree", *knobs, "--temperature", "1", "--draft-sampling", "greedy")
    assert hot.temperature == 1.0
    assert [s.lookahead for s in asked_for("--policy", "duo", "--lookaheads", "4,6")] == [4, 6]


def test_settings_join_the_policies_and_count_once() -> None:
    texts = ["--setting", "duo lookahead=6 sequences=2", "--setting", "duo lookahead=4"]
    found = asked_for("--policy", "duo", *texts)
    assert [(s.lookahead, s.knobs["sequences"]) for s in found] == [(4, "dynamic"), (6, "2")]
    with pytest.raises(ValueError, match="give --policy or --setting"):
        asked_for()


def test_a_recorder_keeps_decisions_of_the_first_batch_and_times_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plain decoding takes twice as long as expected before, and four times after: thrice."""
    served: list[tuple[str, int, int]] = []
    drifts = iter([2.0, 4.0, 1.0, 1.0])

    def run_live(
        _: Any, settings: Settings, requests: Sequence[Request], *, batch: int, fresh_seed: bool
    ) -> Any:
        served.append((settings.policy, batch, len(requests)))
        replies = {("verifytree", 0, r.id, 0): [batch] for r in requests}
        return SimpleNamespace(decisions=Decisions(settings.label, replies), timings=[])

    monkeypatch.setattr(deciding, "run_live", run_live)
    monkeypatch.setattr(deciding, "drift_of", lambda *_, **__: next(drifts))
    monkeypatch.setattr(
        deciding, "time_operations", lambda *_, batch, **__: [VERIFIED._replace(batch=batch, work_s=0.03)]
    )
    requests = [Request(i, 5, 4, (1,) * 5) for i in range(10)]
    moves: list[tuple[int, int]] = []
    world: Any = None
    found = Recorder(world, requests, PROFILE, (1, 4)).record(TREE, lambda *at: moves.append(at))
    # A warm-up, plain decoding, runs of at most 8 requests per row, plain decoding again.
    assert served == [
        ("tree", 1, 1), ("ar", 1, 4), ("tree", 1, 8), ("tree", 1, 2), ("ar", 1, 4),
        ("tree", 4, 4), ("ar", 4, 4), ("tree", 4, 10), ("ar", 4, 4),
    ]  # fmt: skip
    assert sorted(found.replies) == [("verifytree", 0, i, 0) for i in range(10)]
    assert {reply[0] for reply in found.replies.values()} == {1}
    assert [(t.batch, t.work_s) for t in found.timings] == [(1, 0.01), (1, 0.01), (4, 0.03)]
    assert found.timed_beside == costs_fingerprint(PROFILE) and found.drift == (2.0, 4.0, 1.0, 1.0)
    assert moves == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_an_untimed_recorder_runs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[int] = []

    def run_live(_: Any, settings: Settings, requests: Sequence[Request], **__: Any) -> Any:
        served.append(len(requests))
        return SimpleNamespace(decisions=Decisions(settings.label, {}), timings=[])

    monkeypatch.setattr(deciding, "run_live", run_live)
    world: Any = None
    requests = [Request(i, 5, 4, (1,) * 5) for i in range(9)]
    found = Recorder(world, requests, None).record(TREE, lambda *_: None)
    assert served == [8, 1]
    assert (found.timings, found.timed_beside) == ((), "")
