"""The `laws` command: answers in the three forms, sweeps, pictures and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from policies.laws.cli import main
from policies.laws.ssd import switch_batch

ROOT = Path(__file__).parents[2]
SWITCH = ("ssd.thm17", "p_hit_primary=0.9", "p_hit_backup=0.2", "e_hit=4", "e_miss=1", "t_primary=0.6")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def parsed(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    # Strict JSON: no NaN, no Infinity.
    return json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def refused(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    return result.stderr


def test_list_filters() -> None:
    everything = parsed("list")
    chosen = parsed("list", "--paper", "ssd", "--verdict", "wrong")
    assert [row["id"] for row in chosen] == ["ssd.thm17"]
    assert set(chosen[0]) == {"id", "title", "paper", "source", "verdict", "printed_differs"}
    assert {row["id"] for row in chosen} < {row["id"] for row in everything}
    assert {"mirror.J", "mirror.prop1", "mirror.prop2"} == {
        row["id"] for row in parsed("list", "--paper", "mirror", "--verdict", "wrong")
    }
    table = run("list", "--paper", "mirror").stdout
    assert "mirror.eq10" in table and "ssd.thm7" not in table
    assert run("list", "--paper", "eagle").exit_code == 2


def test_list_markdown() -> None:
    lines = run("list", "--paper", "ssd", "--markdown").stdout.splitlines()
    assert lines[0] == "| id | statement | corrected | printed | verdict | check |"
    row = next(line for line in lines if line.startswith("| ssd.thm17 |"))
    assert "`ssd.switch_batch`" in row and "test_ours_is_what_trying_finds" in row and "| wrong |" in row


def test_show() -> None:
    found = parsed("show", "ssd.thm17")
    assert found["verdict"] == "wrong" and "7.70" in found["counterexample"]
    assert found["parameters"] == ["p_hit_primary", "p_hit_backup", "e_hit", "e_miss", "t_primary"]
    assert found["corrected"]["function"] == "ssd.switch_batch" and found["printed"]["says"]
    page = run("show", "ssd.thm17").stdout
    for word in (
        "verdict: wrong",
        "corrected",
        "printed",
        "assumptions",
        "domain",
        "counterexample",
        "check",
    ):
        assert word in page
    # An alias leads to its statement.
    assert parsed("show", "mirror.eq14")["id"] == "mirror.eq10"
    assert parsed("show", "ssd.mask")["printed"] is None


def test_the_examples_can_be_pasted() -> None:
    """`laws show` gives a line for a shell: a table is quoted."""
    assert "'candidates=5,6;7,8'" in parsed("show", "mirror.reuse")["example"]


def test_eval_by_hand() -> None:
    found = parsed("eval", *SWITCH)
    # log(4/9) / log(.9): see test_laws_ssd_rounds.
    assert found["id"] == "ssd.thm17" and found["value"] == pytest.approx(7.697, abs=5e-4)
    assert found["printed"] == pytest.approx(2.0, abs=5e-3)
    assert found["arguments"]["e_hit"] == 4
    text = run("eval", *SWITCH).stdout
    assert text.splitlines()[0] == "ssd.thm17  7.69672" and "as printed  2" in text


def test_eval_keeps_silent_where_both_agree() -> None:
    both = ("ssd.thm7", "p_hit=0.5", "e_hit=3", "e_miss=1", "t_primary=0.5", "t_backup=0")
    assert run("eval", *both).stdout == "ssd.thm7  2\n"
    assert parsed("eval", *both)["printed"] == parsed("eval", *both)["value"] == 2.0
    assert parsed("eval", "ssd.def10", "fanout=4,4,3")["printed"] is None


def test_values_are_read_by_kind() -> None:
    assert parsed("eval", "ssd.def10", "fanout=4,4,3")["value"] == 11
    assert parsed("eval", "ssd.def10", "fanout=3", "lookahead=4")["value"] == 15
    assert parsed("eval", "ssd.def11", "fanout=1:4", "exponent=1")["value"] == pytest.approx(
        [0, 1 / 2, 2 / 3, 3 / 4]
    )
    assert parsed("eval", "mirror.eq12-13", "joint=1/2,0;0,1/2")["value"] == 1.0
    assert parsed("eval", "ssd.eq1", "p_hit_primary=.9", "p_hit_backup=.6", "rounds=inf")[
        "value"
    ] == pytest.approx(6 / 7)
    assert parsed("eval", "ssd.mask", "fanout=1", "lookahead=0")["value"] == [[True]]


def test_old_names_of_terms_are_understood() -> None:
    new = parsed("eval", "ssd.thm1", "target_probs=0.5,0.5", "draft_probs=0.9,0.1")
    assert parsed("eval", "ssd.thm1", "target_law=0.5,0.5", "draft_law=0.9,0.1") == new
    assert new["value"] == pytest.approx(0.6) and set(new["arguments"]) == {"target_probs", "draft_probs"}
    assert parsed("eval", "mirror.eq9", "--example", "proxy_law=0.1,0.1,0.8")["value"] == pytest.approx(0.25)
    assert "given twice" in refused("eval", "ssd.thm1", "target_law=1,0", "target_probs=1,0")


def test_infinity_is_text_in_json() -> None:
    found = parsed("eval", *SWITCH, "--example")  # every part of the example is replaced
    assert found["value"] == pytest.approx(7.697, abs=5e-4)
    assert parsed("eval", "ssd.thm17", "--example", "t_primary=0.1")["value"] == "inf"
    assert "inf" in run("eval", "ssd.thm17", "--example", "t_primary=0.1").stdout


def test_sweeps() -> None:
    found = parsed("eval", *SWITCH[:-1], "t_primary=0.1:0.9:0.1")
    assert found["sweep"] == "t_primary"
    assert found["arguments"]["t_primary"] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert found["value"][5] == pytest.approx(switch_batch(0.9, 0.2, 4, 1, 0.6))
    assert len(found["printed"]) == 9
    whole = parsed("eval", "mirror.eq4", "acceptance=1", "lookahead=1:12")
    assert whole["value"] == [1.0] * 12 and whole["printed"] is None
    assert parsed("eval", "mirror.eq4", "acceptance=1", "lookahead=1:12:5")["arguments"]["lookahead"] == [
        1,
        6,
        11,
    ]
    assert parsed("eval", "mirror.eq4", "acceptance=1", "lookahead=3:3")["arguments"]["lookahead"] == [3]
    table = run("eval", *SWITCH[:-1], "t_primary=0.5:0.7:0.1").stdout
    assert "t_primary" in table and "as printed" in table and "7.69672" in table


def test_a_printed_form_without_a_value_says_why() -> None:
    """The printed power law is for whole guesses above 0."""
    found = parsed("eval", "ssd.def11", "fanout=0,1", "exponent=1")
    assert found["value"] == [0.0, 0.0] and found["printed"] is None
    assert "F >= 1" in found["printed_refuses"]
    assert "no value" in run("eval", "ssd.def11", "fanout=0,1", "exponent=1").stdout
    # What only the printed form takes need not be given.
    found = parsed("eval", "ssd.acct", "fanout=3", "lookahead=4")
    assert found["value"] == 15.0 and found["printed"] is None and "flops_ratio" in found["printed_refuses"]


def test_plot(tmp_path: Path) -> None:
    for name, arguments in {
        "sweep.png": ("eval", *SWITCH[:-1], "t_primary=0.4:0.9:0.1"),
        "bounds.svg": ("eval", "ssd.cor9", "--example", "p_hit=0:1:0.25"),
        "vector.png": ("eval", "ssd.thm12", "--example"),
    }.items():
        assert run(*arguments, "--plot", str(tmp_path / name)).exit_code == 0
        assert (tmp_path / name).stat().st_size > 1000
    assert len(list(tmp_path.iterdir())) == 3
    # Corrected solid, printed dashed.
    assert "stroke-dasharray" in (tmp_path / "bounds.svg").read_text()
    picture = str(tmp_path / "other.png")
    assert "needs a sweep" in refused("eval", *SWITCH, "--plot", picture)
    assert "not supported" in refused("eval", "ssd.thm12", "--example", "--plot", str(tmp_path / "x.abc"))
    assert not (tmp_path / "other.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "ssd.th17"), ("no statement 'ssd.th17'", "did you mean ssd.thm17", "laws list")),
        (("eval", "thm"), ("no statement", "laws list")),
        (("eval", "ssd.thm17", "p_hit_primry=1"), ("no parameter", "did you mean p_hit_primary", "it takes")),
        (("eval", "ssd.thm17", "p_hit_primary=0.9"), ("also needs p_hit_backup", "for example `laws eval")),
        (("eval", "ssd.thm17", "p_hit_primary"), ("no argument", "name=value")),
        (("eval", *SWITCH[:-1], "t_primary=fast"), ("t_primary='fast' is no number",)),
        (("eval", *SWITCH[:-1], "t_primary=nan"), ("got nan",)),
        (("eval", *SWITCH[:-1], "t_primary=1/0"), ("is no number",)),
        (("eval", *SWITCH[:-1], "t_primary=0.1:0.9"), ("needs a step",)),
        (("eval", *SWITCH[:-1], "t_primary=0.9:0.1:0.1"), ("is empty",)),
        (("eval", *SWITCH[:-1], "t_primary=0.1:0.9:0"), ("is empty",)),
        (("eval", *SWITCH[:-1], "t_primary=0:1:1e-9"), ("points",)),
        (("eval", *SWITCH[:-1], "t_primary=1:2:1:1"), ("no range",)),
        (("eval", *SWITCH, "e_hit=3"), ("given twice",)),
        (("eval", *SWITCH[:-2], "e_miss=1:2", "t_primary=1:2"), ("one sweep at a time",)),
        (("eval", *SWITCH[:-1], "t_primary=-1"), ("t_primary must be at least 0",)),
        (("eval", *SWITCH[:-1], "t_primary=-1:1"), ("t_primary must be at least 0", "at t_primary=-1")),
        (("eval", "mirror.eq4", "acceptance=0.5", "lookahead=1.5"), ("whole number",)),
        (("eval", "mirror.sched", "batch=4"), ("defined for batch",)),
        (("eval", "mirror.sched", "batch=inf"), ()),
    ],
)  # fmt: skip
def test_refusals_are_one_line_with_a_way_out(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    if not words:  # from 64 on there is no end
        assert parsed(*arguments)["value"] == [1, 1]
        return
    message = refused(*arguments)
    for word in words:
        assert word in message


def test_glossary() -> None:
    terms = {term["name"]: term for term in parsed("glossary")}
    assert terms["t_primary"]["unit"] == "target steps" and terms["fanout"]["kind"] == "vector"
    for name in (
        "acceptance", "lookahead", "exponent", "scale", "budget", "p_hit", "p_hit_primary", "p_hit_backup",
        "e_hit", "e_miss", "t_primary", "t_backup", "t_draft", "speed_ratio", "batch", "fanout",
    ):  # fmt: skip
        assert terms[name]["meaning"]
    assert "p_hit_primary" in run("glossary").stdout


@pytest.mark.parametrize("command", [(), ("list",), ("show",), ("eval",), ("glossary",)])
def test_help(command: tuple[str, ...]) -> None:
    for option in ("-h", "--help"):
        result = run(*command, option)
        assert result.exit_code == 0
        assert command in ((), ("glossary",), ("show",)) or "Examples:" in result.stdout
    assert "laws eval ssd.thm17" in run("--help").stdout


def test_it_starts_without_torch_simpy_or_matplotlib() -> None:
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom policies.laws.cli import main\n"
        f"assert CliRunner().invoke(main, {['eval', *SWITCH]!r}).exit_code == 0\n"
        "print(sorted({'torch', 'simpy', 'matplotlib', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_command_is_installed() -> None:
    assert 'laws = "policies.laws.cli:main"' in (ROOT / "pyproject.toml").read_text()
