"""Output compared with plain decoding's: differences, ties, and which settings stand for a policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from tiny_profiles import trace

from analysis.__main__ import main
from analysis.results import Results
from analysis.rounds import GAP_BOUND
from analysis.studies.identity import about, departure, identity_settings, show
from policies import heads
from policies.config import SettingError
from policies.registry import KNOBS, POLICIES

TEXT = (11, 12, 13, 14)
TRACE = trace([[0] * 4]).changed(target_top_logprobs=np.log([[0.6, 0.3], [0.5, 0.2], [0.4, 0.4], [0.7, 0.1]]))


@pytest.mark.parametrize(
    ("text", "expected", "tied"),
    [
        (TEXT, None, False),
        ((11, 99, 13, 14), (1, 12, 99), False),
        ((11, 12, 99, 98), (2, 13, 99), True),
        (TEXT[:3], (3, 14, None), False),
        ((*TEXT, 15), (4, None, 15), False),
    ],
)
def test_where_a_text_departs(
    text: tuple[int, ...], expected: tuple[int, int | None, int | None] | None, tied: bool
) -> None:
    """The third position has two equal choices: there another token is a tie."""
    assert TRACE.token.tolist() == list(TEXT)
    found = departure(text, 0, TRACE)
    assert (found and (found["position"], found["expected"], found["found"])) == expected
    assert found is None or (found["gap"] < GAP_BOUND) == tied


def test_every_live_policy_and_greedy_value_has_a_setting() -> None:
    settings = identity_settings(datastore="stdlib")
    live = {name for name, info in POLICIES.items() if "live" in info.worlds}
    assert {s.policy for s in settings} == live
    for policy in live:
        mine = [s.knobs for s in settings if s.policy == policy]
        for name in POLICIES[policy].knobs:
            knob = KNOBS[name]
            # 1 ... 8 sequences and 0 ... 3 streams are numbers by name; coins have knobs of their own.
            if knob.kind == "name" and not knob.sampled and not any(c.isdigit() for c in knob.choices[-1]):
                tried = {knobs[name] for knobs in mine}
                coined = {"eagle3", "each"}
                simulated = {"auto", "batch", "dynamic", *coined}
                assert tried >= set(knob.choices) - simulated, (policy, name)
    assert sum("datastore=stdlib" in s.label for s in settings) == 3


def test_a_policy_without_models_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "INFO", replace(heads.INFO, worlds=("simulated",)))
    with pytest.raises(SettingError, match="simulated world only"):
        identity_settings(["heads"])
    done = CliRunner().invoke(main, ["run", "identity", "--policies", "sd", "--count", "2", "--batch", "4"])
    assert done.exit_code == 2 and "do not fill a batch of 4" in done.output


def test_the_table_names_the_first_departure(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("setting", "batch", "prompts", "tokens", "tokens_per_round", "differences", "ties")
    same = dict(zip(names, ("sd K=1", 1, 2, 8, 1.5, 0, 0), strict=True))
    other = dict(zip(names, ("pearl K=2", 4, 2, 8, 1.7, 1, 1), strict=True))
    where = {"request": 1, "position": 3, "expected": 14, "found": 99, "gap": 0.2}
    other |= {f"first_{name}": value for name, value in where.items()}
    results = Results("identity", (same, other))
    results = replace(results, about=about(results))
    for part in show(results):
        Console(width=200).print(part)
    shown = capsys.readouterr().out
    assert "1 texts differ" in shown and "position 3: 99 for 14" in shown
    assert results.about["total"] == {"runs": 2, "tokens": 16, "differences": 1, "ties": 1}
