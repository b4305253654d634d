"""The study of DOUBLE: its entries, its accounts by hand, its laws, its tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_profiles import trace

from analysis.__main__ import main
from analysis.results import Results
from analysis.show import save
from analysis.studies.double import (
    DoublePlan,
    law_of,
    passes_ceiling,
    pictures,
    retrieval_time,
    retrieved,
    show,
    verdict,
)
from hardware_profiles.datastore import Datastore
from hardware_profiles.reply_trace import Decisions
from policies.registry import configure


def test_every_entry_is_another_setting() -> None:
    entries = DoublePlan(datastore=("small", "large")).entries(0.0)
    # "no prior" stands beside the priors and is DOUBLE itself.
    assert len({entry.settings for entry in entries}) == len({e.tags for e in entries}) - 1 == 14
    assert entries[0].settings == configure("ar")


def test_an_account_by_hand() -> None:
    # The draft matches 2 and 0 tokens in two forwards, then 1 in one: AMT 1.  The target emits 1 token, then
    # two pending ones, 3 retrieved ones and its own: AMT 3 / 2.  It drafted 4 and 2 tokens.
    work = [["retrieve", 0], ["draft", 3]]
    replies = {
        ("retrievingdraft", 0, 0, 0): [[1, 2, 3, 4], -1, [2, 0], [2, 1], work],
        ("retrievingverify", 0, 0, 0): [[0, [1], False, 1], 0, False, work],
        ("retrievingdraft", 0, 0, 1): [[5, 6], -1, [1], [3], work],
        ("retrievingverify", 0, 0, 1): [[2, [2, 3, 4, 5, 6, 7], False, 7], 3, False, work],
    }
    found = retrieved(Decisions("double", replies, {}, {"retrieve": 0.25}))
    assert found == {"draft_matched": 1.0, "target_matched": 1.5, "drafted": 3.0, "retrieve_s": 0.25}


def test_guidance_of_sampled_drafts_counts() -> None:
    replies = {
        ("retrievingdraft", 0, 0, 0): [[1], -1, [0], [0], []],
        ("retrievingverify", 0, 0, 0): [[0, [], False, -1], 3, True, []],
        ("guide", 0, 0, 0): [[1, [1, 2, 3, 4], False, 4], []],  # two retrieved tokens after the drafted one
    }
    assert retrieved(Decisions("double", replies))["target_matched"] == 2.0


def test_the_law_of_a_round() -> None:
    # Six forwards of a quarter step: 1.5 steps; beside each other the longer one counts.
    beside, turns = configure("double", lookahead=6), configure("double", lookahead=6, overlap="off")
    assert law_of(beside, 3.0, 4.0) == pytest.approx(3.0 / 1.5)
    assert law_of(turns, 3.0, 4.0) == pytest.approx(3.0 / 2.5)
    assert law_of(configure("double", lookahead=2), 3.0, 4.0) == pytest.approx(3.0)


def test_retrieval_times(tmp_path: Path) -> None:
    texts = trace([[0] * 24] * 2)
    Datastore.of_texts([[int(t) for t in texts.token[:24]] * 3], 1000).write(tmp_path / "prior")
    own, prior = (retrieval_time(name, texts, lookups=30) for name in ("", str(tmp_path / "prior")))
    assert (own["tokens"], prior["tokens"]) == (0, 73)  # and a separator
    assert 0.0 < prior["median_s"] <= prior["most_s"]
    assert prior["found"] >= own["found"]


ROW = {
    "part": "methods",
    "name": "DOUBLE",
    "policy": "double",
    "category": "all",
    "ceiling": 4.0,
    "law_speedup_vs_ar": 3.0,
    "simulated_law_printed": 3.5,
    "simulated_speedup_vs_ar": 2.5,
    "measured_speedup_vs_ar": None,
    "simulated_error": None,
    "simulated_tokens_per_round": 3.0,
    "simulated_run_length": 2.0,
    "simulated_stretch": 1.2,
    "simulated_draft_matched": 1.0,
    "simulated_target_matched": 1.5,
    "simulated_retrieve_s": 0.25,
    "identical": None,
}
LIVE = {**ROW, "measured_speedup_vs_ar": 4.5, "identical": True}
LOOKUP = {"part": "lookup", "datastore": "", "tokens": 0, "median_s": 1e-6, "most_s": 2e-6, "found": 0.5}


def test_the_ceiling_is_held_against_what_was_measured() -> None:
    assert (passes_ceiling(ROW), passes_ceiling(LIVE)) == (False, True)
    assert "passes it: its round takes 1.20 plain steps" in verdict([LIVE])
    alone = verdict([ROW])  # 4 x 1.2
    assert "does not pass it" in alone and "more than 4.80 tokens per round, and emits 3.00" in alone


def test_tables_and_picture(tmp_path: Path) -> None:
    results = Results("double", (ROW, LIVE, LOOKUP))
    speeds, counts, _, _, times = show(results)
    assert speeds.row_count == counts.row_count == 2 and times.row_count == 1
    (picture,) = pictures(results).values()
    assert save(picture, tmp_path / "double.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "speed"], "there is no 'speed'"),
        (["--datastore", "nowhere"], "calibrate datastore build"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["run", "double", *arguments])
    assert result.exit_code != 0 and message in result.output
