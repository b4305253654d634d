"""The command, the stored map and the page that is written from it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from analysis.breaks.__main__ import main
from analysis.breaks.laws import LAWS, find_laws, find_relaxations
from analysis.breaks.map import OWN_ASSUMPTIONS, STORED, Map, MapEntry, as_json, load_map, sweep
from analysis.breaks.relaxations import RELAXATIONS
from analysis.breaks.show import BEGIN, END, blocks, of_law, overview
from policies.registry import SettingError

PAGE = Path(__file__).parents[2] / "docs" / "results" / "breaks.md"


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def cell(relaxation: str, size: float, error: float, *, law: str = "ssd.thm7", point: str = "p") -> MapEntry:
    return MapEntry(law, relaxation, size, point, 1.0 + error, 1.0, error, 0.001)


TINY = Map(
    (
        cell(OWN_ASSUMPTIONS, 0.0, 0.004),
        cell("jitter", 0.05, 0.01),
        cell("jitter", 0.1, 0.03, point="far"),
        cell("jitter", 0.2, -0.021),
        cell(OWN_ASSUMPTIONS, 0.0, 0.2, law="double.thm2.printed"),
    ),
    seed=3,
    tokens=4000,
)


def test_tables() -> None:
    assert overview(TINY) == [
        ["law", "own assumptions", "jitter"],
        ["ssd.thm7", "+0.4 agrees", "+3.0"],
        ["double.thm2.printed", "+20.0 differs", ""],
    ]
    # 1 % +- .3 % lies within 2 %, 3 % +- .3 % outside.
    assert of_law(TINY, "ssd.thm7")[1][:4] == ["jitter", "0.1", "+3.0 ± 0.1", "0.1, far"]
    assert TINY.worst("ssd.thm7", "branches") is None


def test_a_stored_map_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(as_json(TINY), encoding="utf-8")
    assert load_map(path) == TINY
    assert json.loads(path.read_text())["laws"]["ssd.thm7"]["form"] == "corrected"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "no map of this version"),
        (as_json(TINY).replace("ssd.thm7", "ssd.thm77"), "'ssd.thm77' is no longer"),
        (as_json(TINY).replace('"seed"', '"sed"'), "missing or unknown"),
    ],
)
def test_a_bad_map_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_map(path)


def test_the_same_seed_gives_the_same_bytes_whatever_else_is_swept() -> None:
    def cells(laws: list[str], seed: int) -> list[MapEntry]:
        return sweep(find_laws(laws), ["jitter", "correlated"], seed=seed, tokens=2000, longer=(1,))

    both = cells(["double.eq11", "ssd.cor16"], 1)
    assert as_json(Map(tuple(both), 1, 2000)) == as_json(
        Map(tuple(cells(["double.eq11", "ssd.cor16"], 1)), 1, 2000)
    )
    assert [c for c in both if c.law.startswith("ssd")] == cells(["ssd.cor16"], 1)
    assert cells(["double.eq11"], 2) != cells(["double.eq11"], 1)


def test_the_stored_map_is_what_the_command_finds() -> None:
    stored = load_map()
    cells = sweep(find_laws(["ar"]), list(RELAXATIONS), seed=stored.seed, tokens=stored.tokens)
    assert cells == [cell for cell in stored.cells if cell.law == "ar"]


def test_a_law_without_its_reading_stands_for_all_of_them() -> None:
    assert [law.name for law in find_laws(["double.thm2"])] == ["double.thm2.printed", "double.thm2"]
    assert len(find_laws([])) == len(LAWS) and find_relaxations([]) == list(RELAXATIONS)
    with pytest.raises(SettingError, match=r"'ssd\.tm7' \(did you mean ssd\.thm7"):
        find_laws(["ssd.tm7"])


def test_every_relaxation_that_a_law_names_exists_and_touches_some_law() -> None:
    named = {name for law in LAWS.values() for name in law.relaxations}
    assert named == set(RELAXATIONS)


def test_refusals() -> None:
    for arguments, message in (
        (("ssd.thm99",), "unknown law 'ssd.thm99' (did you mean ssd.thm"),
        (("ssd.thm7", "--relax", "jiter"), "(did you mean jitter?)"),
        (("double.thm1", "--relax", "jitter"), "touches none of these laws; what does: position"),
        (("--from", "nowhere.json"), "nowhere.json"),
    ):
        result = command(*arguments)
        assert result.exit_code == 2 and message in result.output, result.output
        assert "Traceback" not in result.output


def test_one_law_from_the_command(tmp_path: Path) -> None:
    path = tmp_path / "new" / "map.json"
    result = command("ar", "--relax", "verify-batch", "--tokens", "2000", "--json", str(path))
    assert result.exit_code == 0, result.output
    assert "verify-batch" in result.output and "+35.0" in result.output
    assert load_map(path).laws == ["ar"]


def test_json_on_the_standard_output_is_only_json() -> None:
    result = command("double.thm1", "--from", str(STORED), "--json", "-")
    assert json.loads(result.stdout)["laws"].keys() == {"double.thm1"}


def test_help_and_list() -> None:
    assert "Examples:" in command("--help").output
    listed = command("--list").output
    assert "ssd.cor9.lower" in listed and "contention" in listed


def test_pictures(tmp_path: Path) -> None:
    result = command("ssd.thm7", "--from", str(STORED), "--plot", str(tmp_path))
    assert result.exit_code == 0, result.output
    for name in ("breaks_map.png", "breaks_sizes.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["relaxations", "measured"])
def test_the_page_is_what_the_stored_map_says(name: str) -> None:
    pattern = re.escape(BEGIN.format(name)) + r"\n(.*?)\n" + re.escape(END)
    found = re.findall(pattern, PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert found == [blocks(load_map())[name]], "run python -m analysis.breaks --from MAP --markdown"


def test_the_stored_map_is_whole() -> None:
    found = load_map()
    assert found.laws == list(LAWS)
    for name, law in LAWS.items():
        for relaxation in law.relaxations:
            assert found.of(name, relaxation), (name, relaxation)
