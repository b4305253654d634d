"""vLLM's start-up cost curves, read and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hardware_profiles.costcurves import CostCurves, curves_of, curves_profile, read_curves
from hardware_profiles.files import FileRefused
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from hardware_profiles.surface import LatencySurface

CURVES = CostCurves(((8, 0.006), (16, 0.008), (1024, 0.010), (2048, 0.030)), ((1, 0.002), (8, 0.004)))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_json_and_a_log_line_say_the_same(tmp_path: Path) -> None:
    log = "COSTS draft=[(1, 2.0), (8, 4.0)] verify=[(8, 6.0), (16, 8.0), (1024, 10.0), (2048, 30.0)]"
    as_json = write(tmp_path / "a.json", json.dumps(CURVES.as_dict()))
    for path in (as_json, write(tmp_path / "a.log", log)):
        found = read_curves(path)
        for one, other in zip((*found.verify, *found.draft), (*CURVES.verify, *CURVES.draft), strict=True):
            assert one == pytest.approx(other)


def test_steps_up_to_the_largest_graph_and_lines_beyond() -> None:
    # 1 to 8 tokens run in the graph of 8, 9 in that of 16; 20 ms halfway to 2048, then 20 ms more per 1024.
    assert [CURVES.verified_s(n) for n in (1, 8, 9, 17)] == [0.006, 0.006, 0.008, 0.010]
    assert [CURVES.verified_s(n) for n in (1536, 3072)] == pytest.approx([0.020, 0.050])
    assert CURVES.verified_s(17, capture_limit=16) == pytest.approx(0.008 + 0.002 / 1008)


def test_a_profile_of_them() -> None:
    profile = curves_profile(CURVES, name="p", machine="a GPU", lookahead=4)
    target, draft = (LatencySurface(profile.operation(n)) for n in ("target.forward", "draft.forward"))
    # Two rows of five tokens are ten, which run as sixteen; a draft's pass of 2 ms is four steps.
    assert target.seconds(batch=2, new_tokens=5, context=9) == 0.008
    assert draft.seconds(batch=1, new_tokens=1, context=9) == pytest.approx(0.0005)
    assert profile.verification == "packed" and profile.provenance.kind == "measured"


def test_a_profile_gives_them_back() -> None:
    textbook = load_profile(find_profile("textbook"))  # constant costs
    target, draft = (LatencySurface(textbook.operation(n)) for n in ("target.forward", "draft.forward"))
    at = {"batch": 1, "new_tokens": 1, "context": 0}
    found = curves_of(textbook, lookahead=3, context=100, most=4)
    assert found.verify == tuple((n, target.seconds(**at)) for n in (4, 8, 16))
    assert [at for at, _ in found.draft] == [1, 2, 4] and found.draft[0][1] == 3 * draft.seconds(**at)


@pytest.mark.parametrize(
    "text",
    ['{"verify": [[8, 6]]}', '{"verify": [[8, 6], [8, 7]], "draft": [[1, 2]]}', "draft=[x] verify=[]", "no"],
)
def test_what_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileRefused, match=r"a\.json: expected cost curves"):
        read_curves(write(tmp_path / "a.json", text))
