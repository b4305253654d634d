"""The profile file: what is read is what was written, and an error names its field."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles.optime import Host
from hardware_profiles.profile import (
    Overlap,
    Profile,
    ProfileError,
    Roles,
    format_profile,
    load_profile,
    save_profile,
)
from hardware_profiles.records import record
from hardware_profiles.store import find_profile, shipped_profiles
from hardware_profiles.surface import AXES, ConstantCost, GridCost, Point, Provenance

ROLE = {"device": {"kind": "cpu"}, "model": "tiny"}


def grid(
    *cells: tuple[tuple[int, ...], float], axes: tuple[str, ...] = ("batch", "context")
) -> dict[str, Any]:
    """The entry of a grid with the given means."""
    return {"axes": list(axes), "points": [{"at": list(at), "mean_s": mean} for at, mean in cells]}


def profile_dict(**changes: Any) -> dict[str, Any]:
    """A valid profile file of constants, with some fields changed."""
    return {
        "schema": "spectwin/profile/1",
        "name": "tiny",
        "roles": {"target": ROLE, "draft": ROLE},
        "operations": {"target.forward": {"seconds": 0.025}, "draft.forward": {"seconds": 0.002}},
        "provenance": {"kind": "synthetic"},
    } | changes


def written(folder: Path, **changes: Any) -> Path:
    """The path of a file with `profile_dict`."""
    path = folder / "tiny.json"
    path.write_text(json.dumps(profile_dict(**changes)))
    return path


seconds = st.floats(1e-9, 1e3)
constants = st.builds(ConstantCost, seconds=seconds)


@st.composite
def grids(draw: st.DrawFn, axes: tuple[str, ...]) -> GridCost:
    """A full grid with quantiles, its points in any order."""
    ticks = [sorted(draw(st.sets(st.integers(0, 4096), min_size=1, max_size=3))) for _ in axes]
    cells = draw(st.permutations(list(product(*ticks))))
    quantiles = st.none() | st.lists(seconds, min_size=5, max_size=5).map(lambda q: tuple(sorted(q)))
    points = (
        Point(at=at, mean_s=draw(seconds), quantiles_s=draw(quantiles), samples=draw(st.integers(1, 99)))
        for at in cells
    )
    return record(GridCost, {"axes": axes, "points": tuple(points)})


profiles = st.builds(
    Profile,
    name=st.from_regex(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,8}", fullmatch=True),
    description=st.text(max_size=200),
    roles=st.just(record(Roles, {"target": ROLE, "draft": ROLE})),
    placement=st.sampled_from(["split", "shared"]),
    operations=st.fixed_dictionaries(
        {"target.forward": constants | grids(AXES["target.forward"])},
        optional={"draft.tree": constants | grids(AXES["draft.tree"])},
    ),
    host=st.builds(Host, submit_s=st.floats(0, 1)),
    overlap=st.just((Overlap(device="target", operation="forward", while_busy="draft", slowdown=1.12),)),
    provenance=st.builds(
        Provenance,
        kind=st.sampled_from(["measured", "paper", "roofline", "synthetic"]),
        versions=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    ),
)


@given(profile=profiles)
def test_what_is_read_is_what_was_written_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, profile: Profile
) -> None:
    path = tmp_path_factory.mktemp("profiles") / "p.json"
    save_profile(profile, path)
    again = load_profile(path)
    assert again == profile
    assert format_profile(again).encode() == path.read_bytes()


def test_a_constant_profile_is_written_by_hand_in_15_lines() -> None:
    path = find_profile("textbook")
    profile = load_profile(path)
    assert len(path.read_text().splitlines()) <= 15
    assert profile.operation("target.forward") == ConstantCost(seconds=1.0)
    assert profile.operation("draft.tree") == ConstantCost(seconds=0.1)
    assert profile.provenance_of("draft.forward").kind == "synthetic"


def test_points_of_a_grid_take_one_line_each(tmp_path: Path) -> None:
    entry = grid(*((((b, c), 1.0)) for b in (1, 2) for c in (0, 64)))
    text = format_profile(load_profile(written(tmp_path, operations={"target.forward": entry})))
    assert '        {"at": [1, 64], "mean_s": 1.0, "samples": 1},\n' in text


def test_defaults_say_that_nothing_else_costs(tmp_path: Path) -> None:
    profile = load_profile(written(tmp_path))
    assert (profile.host.submit_s, profile.host.report_s, profile.host.operations) == (0, 0, {})
    assert profile.slowdown("target.forward") == 1.0
    assert profile.roles.target.tensor_parallel == 1


def test_overlap_slows_the_operation_it_names(tmp_path: Path) -> None:
    entry = {"device": "target", "operation": "forward", "while": "draft", "slowdown": 1.12}
    profile = load_profile(written(tmp_path, overlap=[entry]))
    assert profile.slowdown("target.forward") == 1.12
    assert profile.slowdown("draft.forward") == 1.0


def test_overlap_may_depend_on_what_the_other_device_does(tmp_path: Path) -> None:
    anything = {"device": "target", "operation": "forward", "while": "draft", "slowdown": 1.12}
    profile = load_profile(
        written(tmp_path, overlap=[anything, anything | {"while_operation": "tree", "slowdown": 1.5}])
    )
    assert profile.slowdown("target.forward") == 1.12
    assert profile.slowdown("target.forward", "tree") == 1.5
    assert profile.slowdown("target.forward", "prefill") == 1.12


def test_host_time_of_sampled_runs_falls_back_on_that_of_greedy_ones(tmp_path: Path) -> None:
    host = {
        "submit_s": 0.5,
        "operations": {"verify": {"submit_s": 1.0}, "draft": {"submit_s": 2.0, "row_s": 0.25}},
        "sampled": {"verify": {"submit_s": 3.0}, "settle": {"submit_s": 4.0}},
    }
    found = load_profile(written(tmp_path, host=host)).host
    assert [found.of(name).submit_s for name in ("verify", "draft", "settle")] == [1.0, 2.0, 0.5]
    assert [found.of(name, sampled=True).submit_s for name in ("verify", "draft", "settle")] == [
        3.0,
        2.0,
        4.0,
    ]
    assert found.of("draft", sampled=True).row_s == 0.25


def test_sizes_drift_and_model_error_are_optional_and_survive(tmp_path: Path) -> None:
    sizes = {"kv_bytes_per_token": 4096, "weight_bytes": 10**9, "layers": 24}
    role = {"device": {"kind": "cuda", "memory_bytes": 80 * 2**30}, "model": "m"} | sizes
    cost = grid(((1, 1), 1.0)) | {"block_factors": [0.98, 1.02]}
    run = {"policy": "sd", "lookahead": 4, "batch": 8, "temperature": 1.0, "tokens": 9}
    path = written(
        tmp_path,
        roles={"target": role, "draft": ROLE},
        operations={"target.forward": cost},
        measured_runs=[run | {"tokens_per_second": 5.0, "speedup_vs_ar": 1.5}],
        model_error=0.02,
    )
    profile = load_profile(path)
    save_profile(profile, path)
    assert load_profile(path) == profile
    assert profile.roles.target.weight_bytes == 10**9 and profile.roles.draft.weight_bytes is None
    assert profile.roles.target.device.memory_bytes == 80 * 2**30
    entry = profile.operations["target.forward"]
    assert isinstance(entry, GridCost) and entry.block_factors == (0.98, 1.02)
    assert (profile.measured_runs[0].batch, profile.measured_runs[0].temperature) == (8, 1.0)
    assert profile.model_error == 0.02


@pytest.mark.parametrize("name", shipped_profiles())
def test_shipped_profiles_load(name: str) -> None:
    # Another measurement of the same pair and place keeps its name, and so its traces and decisions.
    assert load_profile(find_profile(name)).name in {name, name.removesuffix("-wide")}


def test_an_operation_may_come_from_elsewhere(tmp_path: Path) -> None:
    entry = {"seconds": 1.0, "provenance": {"kind": "paper", "note": "table 3"}}
    profile = load_profile(
        written(tmp_path, operations={"target.forward": {"seconds": 1}, "draft.tree": entry})
    )
    assert profile.provenance_of("draft.tree").note == "table 3"
    assert profile.provenance_of("target.forward").kind == "synthetic"


def test_an_absent_operation_is_named() -> None:
    profile = record(Profile, profile_dict())
    with pytest.raises(ProfileError, match=r"'tiny' has no operation 'draft\.tree', only target\.forward"):
        profile.operation("draft.tree")


FOUR = [((1, 64), 1.0), ((1, 128), 1.0), ((2, 64), 1.0), ((2, 128), 1.0)]
BAD_QUANTILES = {"axes": ["batch"], "points": [{"at": [1], "mean_s": 1.0, "quantiles_s": [1, 2, 3, 2, 4]}]}
OVERLAP = {"device": "target", "operation": "forward", "while": "draft", "slowdown": 1.1}
DRAFTING = {"device": "draft", "while": "target", "while_operation": "tree"}


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"seconds": 0}, r"seconds: must be > 0, got 0"),
        ({"seconds": "1"}, r"seconds: .*number, got '1'"),
        ({"second": 1}, r"seconds: is required; .*\.second: is no field"),
        (grid(*FOUR[:3], ((2, 128), -1.0)), r"points\.3\.mean_s: must be > 0, got -1"),
        (grid(*FOUR[:3]), r"points: no point at batch=2, context=128"),
        (grid(*FOUR, ((1, 64), 2.0)), r"points\.4\.at: same cell as points\.0"),
        (grid(((1,), 1.0)), r"points\.0\.at: must have 2 coordinates"),
        (grid(((1, 1), 1.0), axes=("batch", "batch")), r"axes: 'batch' is named twice"),
        (grid(((1, 1), 1.0), axes=("batch", "depth")), r"axes\.1: must be 'batch'"),
        (grid(((1, 1), 1.0), axes=("batch", "branches")), r"axes: 'branches' is no axis"),
        (BAD_QUANTILES, r"points\.0\.quantiles_s: .* do not decrease"),
        ({"axes": ["batch"], "points": []}, r"points: must not be empty"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_and_the_field_of_an_operation(
    tmp_path: Path, operation: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProfileError, match=r"tiny\.json:\s+operations\.target\.forward\." + message):
        load_profile(written(tmp_path, operations={"target.forward": operation}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "name: '' is no name"),
        ({"host": {"submit_s": -1}}, r"host\.submit_s: must be >= 0, got -1"),
        ({"operations": {"draft.forward": {"seconds": 1}}}, r"operations\.target\.forward: is required"),
        ({"operations": {"target.foward": {"seconds": 1}}}, r"operations\.target\.foward: must be 'draft"),
        ({"roles": {"target": ROLE}}, r"roles\.draft: is required"),
        ({"roles": {"target": ROLE, "draft": ROLE | {"mode": "jit"}}}, r"roles\.draft\.mode: must be 'capt"),
        ({"provenance": {"kind": "guessed"}}, r"provenance\.kind: must be 'composed', 'measured'"),
        ({"overlap": [OVERLAP, OVERLAP]}, r"overlap\.1: a second entry for target\.forward"),
        ({"overlap": [OVERLAP | {"while_operation": "tree"}] * 2}, r"overlap\.1: .*forward while tree"),
        ({"overlap": [OVERLAP | DRAFTING]}, r"overlap\.0\.while_operation: the target has no"),
        ({"overlap": [OVERLAP | {"while": "target"}]}, r"overlap\.0\.while: must be the other device"),
        ({"overlap": [OVERLAP | {"operation": "tree"}]}, r"overlap\.0\.operation: the target has no"),
        ({"overlap": [OVERLAP | {"slowdown": 0.1}]}, r"overlap\.0\.slowdown: must be >= 0\.5, got 0\.1"),
        ({"colour": "red"}, "colour: is no field"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_and_the_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileError, match=r"tiny\.json: " + message):
        load_profile(written(tmp_path, **change))


def test_another_schema_is_the_only_thing_reported(tmp_path: Path) -> None:
    path = written(tmp_path, schema="spectwin/profile/2", operations={}, colour="red")
    with pytest.raises(ProfileError, match=r"^\S+: schema: must be 'spectwin/profile/1', got '\S+/2'$"):
        load_profile(path)


def test_a_file_without_a_schema_is_refused(tmp_path: Path) -> None:
    data = profile_dict()
    del data["schema"]
    (tmp_path / "p.json").write_text(json.dumps(data))
    with pytest.raises(ProfileError, match="schema: is required"):
        load_profile(tmp_path / "p.json")


def test_all_errors_are_listed_up_to_five(tmp_path: Path) -> None:
    operations = {"target.forward": grid(*(((i,), -1.0) for i in range(7)), axes=("batch",))}
    with pytest.raises(ProfileError) as caught:
        load_profile(written(tmp_path, operations=operations))
    first, *more = str(caught.value).split("; ")  # on one line
    assert first.endswith("tiny.json: operations.target.forward.points.0.mean_s: must be > 0, got -1.0")
    assert len(more) == 5
    assert more[-1] == "and 2 more"


@pytest.mark.parametrize("text", ["", "{", '{"schema": NaN', "[]"])
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=r"p\.json(:1)?: "):
        load_profile(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"nowhere\.json: No such file"):
        load_profile(tmp_path / "nowhere.json")
