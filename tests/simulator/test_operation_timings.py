"""What measured times of operations do to simulated time, and where it is used."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import pyarrow.parquet as pq
import pytest
import tiny_profiles
from hypothesis import given
from hypothesis import strategies as st

from calibrate.hostrecords import Expectation
from hardware_profiles.optime import (
    Host,
    OperationHost,
    OperationTiming,
    StepTiming,
    StepTotal,
    Timed,
    base_name,
    timed_from,
)
from hardware_profiles.profile import DeviceInfo, Profile, Role, Roles, load_profile
from hardware_profiles.reply_trace import (
    Decisions,
    DecisionTrace,
    OperationTimings,
    costs_fingerprint,
    place_fingerprint,
    read_decisions,
    read_timings,
    write_decisions,
)
from hardware_profiles.store import find_profile
from hardware_profiles.surface import ConstantCost, LatencySurface, Provenance
from hardware_profiles.trace import TraceMeta, TraceRequest
from policies.config import SettingError
from policies.operation import CostClass, RowOperation, Work
from policies.protocols import Steps, World
from policies.registry import configure
from policies.rows import Rows
from policies.values import Request, RowVerdict, Speculation, View, verdict_of
from simulator.costs import Effects, ProfileCosts, TextbookCosts
from simulator.replies import Recorded
from simulator.run import Scenario, decided, find_timings
from simulator.synthetic import Synthetic
from simulator.tokens import coin, replay
from simulator.world import SimulatedWorld


class Reply(NamedTuple):
    verdict: RowVerdict
    work: Work


@dataclass(frozen=True, slots=True)
class Judge(RowOperation):
    kind: ClassVar[str] = "judge"
    cost_class: ClassVar[CostClass] = "verify"
    reply: ClassVar[type[Any]] = Reply


REPLIES = {
    ("judge", 0, 0, 0): [[1, [7, 8], False, 8], [["early:0.4", 3], ["look", 0], ["late:0.6", 0]]],
    ("judge", 0, 0, 2): [[0, [9], True, 9], [["late", 3]]],
}
HOST = OperationHost(submit_s=0.5, report_s=0.25, extra_s=0.125, scale=2.0)
OWN = OperationTiming(
    host=OperationHost(submit_s=1.0, report_s=0.5, extra_s=0.25),
    steps={
        "early": StepTiming(factor=2.0),
        "look": StepTiming(extra_s=0.75),
        "late": StepTiming(extra_s=0.1),
    },
)


def ends(timing: OperationTiming | None, host: Host | None = None, batch: int = 1) -> list[float]:
    """When the rounds end in which rows are judged; a target forward takes 1 s, a look as recorded .25 s."""

    def policy(world: World) -> Steps:
        while rows.active:
            rows.admit(world.now)
            view = rows.view()
            found = yield world.target.submit(Judge(view, rows.width, ((),) * len(view.slots)))
            verdict = verdict_of(rows.width, {slot: found[slot].verdict for slot in view.slots})
            rows.commit(view, Speculation.empty(rows.width), verdict, now=world.now)

    rows = Rows([Request(i, 5, 4, (1,) * 5) for i in range(batch)], batch, keep_tokens=True)
    world = SimulatedWorld(
        coin(0.5, exponent=1.0, requests=1, length=4, prompt_length=5, seed=0),
        TextbookCosts(1.0, 0.1),
        host=host or Host(operations={"verify": HOST}),
        rows=Recorded(Decisions("judge", REPLIES, {}, {"look": 0.25}), 1),
        timings=None if timing is None else {"judge": timing},
    )
    world.run(policy(world))
    return rows.log.ends


def test_without_timings_times_are_borrowed() -> None:
    # 0.5 + 0.125 + 2 (0.4 + 0.25 + 0.6) + 0.25, then 0.5 + 0.125 + 2 x 1 + 0.25.
    assert ends(None) == pytest.approx([3.375, 3.375 + 2.875])


def test_a_run_at_its_timing_by_hand() -> None:
    # Before 1; own work 0.25; early 2 x 0.4; look 0.75, not what was recorded; late 0.1 + 0.6; after 0.5.
    first = 1.0 + 0.25 + 0.8 + 0.75 + 0.7 + 0.5
    # The second round has a late step alone: 0.1 + 1.
    assert ends(OWN) == pytest.approx([first, first + 1.0 + 0.25 + 1.1 + 0.5])


def test_rows_cost_what_they_cost() -> None:
    steps = {**OWN.steps, "look": StepTiming(extra_s=0.75, row_s=0.5)}
    own = OWN.but(steps=steps)
    # Of two rows only the look takes longer, by 0.5.
    assert ends(own, batch=2)[0] == pytest.approx(ends(OWN)[0] + 0.5)


@given(
    st.builds(
        OperationHost,
        submit_s=st.floats(0.0, 1.0),
        report_s=st.floats(0.0, 1.0),
        report_token_s=st.floats(0.0, 0.1),
        submit_row_s=st.floats(0.0, 0.1),
        extra_s=st.floats(-0.5, 1.0),
        row_s=st.floats(0.0, 0.5),
        token_s=st.floats(0.0, 0.1),
        scale=st.floats(0.5, 2.0),
    ),
    st.integers(1, 3),
)
def test_a_timing_of_one_with_the_borrowed_host_changes_nothing(host: OperationHost, batch: int) -> None:
    borrowed = Host(operations={"verify": host})
    assert ends(OperationTiming(host=host), borrowed, batch) == ends(None, borrowed, batch)


SHIPPED = load_profile(find_profile("cpu2-x5"))
STEP = st.tuples(st.sampled_from(["tree", "feed", "early:0.4", "late:0.6"]), st.integers(0, 9))


@given(
    st.sampled_from(["target", "draft"]),
    st.lists(st.lists(STEP, min_size=1, max_size=5).map(tuple), min_size=1, max_size=4),
    st.lists(st.integers(20, 300), min_size=4, max_size=4),
)
def test_timing_expects_what_the_simulation_would_ask_for(
    role: str, work: list[Work], contexts: list[int]
) -> None:
    rows, lengths = tuple(range(len(work))), tuple(contexts[: len(work)])
    view = View(rows, rows, (0,) * len(work), lengths, (99,) * len(work))
    surfaces = {str(name): LatencySurface(cost) for name, cost in SHIPPED.operations.items()}
    costs = ProfileCosts(surfaces, effects=Effects(jitter=False), seed=0)
    simulated = costs.row_steps(role, view, work, {})
    expected = list(Expectation(SHIPPED).steps(role, work, fmean(lengths)))  # type: ignore[arg-type]
    assert [base_name(name) for name, _ in simulated] == [name for name, _ in expected]
    assert [s for _, s in expected] == pytest.approx([s for _, s in simulated])


# --- Where it is used ---

META = TraceMeta(
    target_model="tiny", draft_model="tiny", tokenizer="none", vocabulary=9, sampling={"temperature": 0.0}
)


def profile(
    machine: str = "here", model: str = "tiny", seconds: float = 1.0, name: str = "made-up"
) -> Profile:
    role = Role(device=DeviceInfo(kind="cpu"), model=model)
    return Profile(
        name=name,
        roles=Roles(target=role, draft=role),
        operations={"target.forward": ConstantCost(seconds=seconds)},
        provenance=Provenance(kind="measured", machine=machine),
    )


def timings_of(where: Profile, policy: str = "rest") -> OperationTimings:
    return OperationTimings(
        profile=where.name,
        place=place_fingerprint(where),
        costs=costs_fingerprint(where),
        policies={policy: {"judge": OWN}},
    )


def trace(
    operation_timings: OperationTimings | None = None, timings: tuple[Timed, ...] = ()
) -> DecisionTrace:
    timed = {"timings": timings, "timed_beside": "abc", "drift": (1.0, 1.5)} if timings else {}
    found = Decisions("judge", REPLIES, {}, {"look": 0.25}, "rest", {}, **timed)  # type: ignore[arg-type]
    request = TraceRequest(id=0, prompt=(1, 2), ended="limit", question_id=3, category="code", source="x")
    return DecisionTrace((request,), META, {"judge": found}, 4, operation_timings)


def scenario(where: Profile, **more: Any) -> Scenario:
    tokens = coin(0.5, exponent=1.0, requests=1, length=4, prompt_length=5, seed=0)
    return Scenario(tokens, where, **more)


def test_a_timing_counts_on_its_machine_and_pair_alone() -> None:
    found = trace(timings_of(profile()))
    assert scenario(profile(), decisions=found).timings("rest") == {"judge": OWN}
    assert scenario(profile(), decisions=found).timings("rasd") == {}
    assert "beside profile 'made-up', at batch 1" in scenario(profile(), decisions=found).timing_note("rest")
    for other in (profile(machine="there"), profile(model="small")):
        assert scenario(other, decisions=found).timings("rest") == {}
        assert "another machine or pair" in scenario(other, decisions=found).timing_note("rest")
    again = scenario(profile(seconds=1.1), decisions=found)
    assert again.timings("rest") and "another calibration of this machine" in again.timing_note("rest")
    assert "not recorded" in scenario(profile(), decisions=trace()).timing_note("rest")


def test_a_timing_is_host_time_and_goes_with_it() -> None:
    here = scenario(profile(), decisions=trace(timings_of(profile())))
    bare = replace(here, effects=replace(here.effects, host=False))
    assert bare.timings("rest") == {}


def test_a_policy_s_own_recording_counts_before_what_is_known_by_name() -> None:
    other = timings_of(profile()).but(policies={"rest": {}, "tree": {"judge": OWN}})
    both = scenario(profile(), decisions=trace(timings_of(profile())), measured_timings=other)
    assert both.timings("rest") == {"judge": OWN} == both.timings("tree")


def test_timings_are_found_by_the_profile_s_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "spectwin" / "decisions"
    folder.mkdir(parents=True)
    for name, policy in (("made-up-rest", "rest"), ("made-up-t1-rest", "rest"), ("made-up-rasd", "rasd")):
        write_decisions(trace(timings_of(profile(), policy)), folder / f"{name}.parquet")
    write_decisions(trace(), folder / "made-up-duo.parquet")
    found = find_timings(profile())
    assert found is not None and sorted(found.policies) == ["rasd", "rest"]
    sampled = find_timings(profile(), 0.7)
    assert sampled is not None and sorted(sampled.policies) == ["rest"]
    assert find_timings(profile(name="unheard-of")) is None


STEPS = (StepTotal("early", 1, 0.4, 0.5), StepTotal("look", 1, 0.0, 0.25))
TIMED = Timed("judge", "target", "verify", 4, 2, 6, 0.5, 1.5, 0.25, 0.125, STEPS)


def test_files_keep_timings_and_times(tmp_path: Path) -> None:
    more = (TIMED._replace(batch=1), TIMED._replace(mark_s=0.0625))
    path, whole = tmp_path / "d.parquet", trace(timings_of(profile()), (TIMED, *more))
    write_decisions(whole, path)
    assert read_decisions(path) == whole
    assert read_timings(path) == whole.operation_timings
    untimed = trace()
    write_decisions(untimed, path)
    assert read_decisions(path) == untimed and read_timings(path) is None


def test_times_without_a_mark_are_those_of_files_that_kept_none() -> None:
    assert timed_from([*TIMED[:-2], [list(step) for step in STEPS]]) == TIMED
    assert timed_from([*TIMED[:-2], list(STEPS), 0.5]) == TIMED._replace(mark_s=0.5)


def test_files_of_the_first_format_are_read(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    write_decisions(trace(), path)
    with pq.ParquetFile(path) as file:
        table, texts = file.read(), dict(file.metadata.metadata)
    texts[b"spectwin.schema"] = b"spectwin/decisions/1"
    about = json.loads(texts[b"spectwin.settings"])
    del about["judge"]["timed_beside"], about["judge"]["drift"]
    texts[b"spectwin.settings"] = json.dumps(about).encode()
    pq.write_table(table.drop_columns(["timing"]).replace_schema_metadata(texts), path)
    old = read_decisions(path)
    assert old == trace()
    # As before: no times of operations, so that steps and host time are borrowed.
    assert scenario(profile(), decisions=old).timings("rest") == {}


def test_joined_traces_keep_what_is_known_of_each_policy() -> None:
    one, other = trace(timings_of(profile(), "rest")), trace(timings_of(profile(), "tree"))
    both = one.merged(other).operation_timings
    assert both is not None and sorted(both.policies) == ["rest", "tree"]
    assert one.merged(trace()).operation_timings == one.operation_timings
    elsewhere = trace(timings_of(profile("there"), "tree"))
    assert one.merged(elsewhere).operation_timings == elsewhere.operation_timings


def test_a_recorded_path_that_decides_everything_needs_no_decisions() -> None:
    tokens = replay(tiny_profiles.trace([[0, 1, 0, 0]]))
    here = Scenario(tokens, tiny_profiles.profile(), decisions=trace())  # of another setting
    contents, _ = decided(here, configure("tree", tree_widths=(2, 1)), list(tokens.requests))
    assert isinstance(contents, Synthetic)
    with pytest.raises(SettingError, match="no 'duo"):
        decided(here, configure("duo"), list(tokens.requests))
