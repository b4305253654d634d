"""Errors in parts: a machine that differs from its profile in one thing has an error of that name."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from simulated_live import run_without_models
from tiny_profiles import profile, trace

from analysis import execute
from analysis.__main__ import main
from analysis.explain import PARTS
from analysis.results import Row
from analysis.sources import Sources
from analysis.studies import validation
from calibrate.machine import Machine
from hardware_profiles.profile import Overlap, Profile

TEXTS = trace([[0, 0, 1, 0, 2, 0] * 2] * 4)
TINY = profile()
BESIDE = (Overlap(device="target", operation="forward", while_busy="draft", slowdown=1.25),)
CONTENDED = TINY.but(overlap=BESIDE)
ASKED = ("run", "explain", "--policies", "sd,pearl", "--lookahead", "2", "--count", "4", "--hw", "tiny")


def explain(monkeypatch: pytest.MonkeyPatch, model: Profile, truth: Profile, slower: float = 1.0) -> Row:
    """The rows of a live world of one profile, predicted by another, by policy."""
    job = SimpleNamespace(machine=Machine("Some CPU", (0,), ()), limit=12, max_tokens=12)
    monkeypatch.setattr(validation, "make_job", lambda *_, **__: job)
    monkeypatch.setattr(validation, "like_profile", lambda job, _: job)
    monkeypatch.setattr(validation, "load_sources", lambda *_, **__: Sources(model, {0.0: TEXTS}, 0.02))
    monkeypatch.setattr(execute.Bench, "trace", lambda self, t: self.sources.trace(t))
    run_without_models(
        monkeypatch, truth, {0.0: TEXTS}, lambda cell, _: 1.0 if cell.settings.plain else slower
    )
    result = CliRunner().invoke(main, [*ASKED, "--repeats", "1", "--json"])
    assert result.exit_code == 0, result.output
    rows = {row["policy"]: row for row in json.loads(result.stdout)["rows"]}
    for row in rows.values():
        assert sum(row["parts"].values()) == pytest.approx(math.log(1.0 + row["error"]), abs=1e-9)
    return rows


def alone(row: Row, *names: str) -> None:
    """Only parts of these names are there, the first of them the largest."""
    assert row["cause"] == names[0]
    assert {name for name in PARTS if abs(row["parts"][name]) > 1e-9} == set(names)


def test_a_draft_that_is_slower_is_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """SD with K = 2 takes 1 + 2 * 0.35 in place of 1 + 2 * 0.25: log(1.5 / 1.7) more than predicted."""
    rows = explain(monkeypatch, TINY, profile(draft_s=0.35))
    alone(rows["sd"], "forwards")
    assert rows["sd"]["parts"]["forwards"] == pytest.approx(math.log(1.7 / 1.5))


def test_devices_that_slow_each_other_are_contention(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of forwards alone comes from plain decoding and SD, which is not affected."""
    rows = explain(monkeypatch, TINY, CONTENDED)
    alone(rows["pearl"], "contention")
    assert rows["pearl"]["error"] > 0.0 == rows["sd"]["error"]


def test_what_no_operation_takes_is_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = explain(monkeypatch, CONTENDED, CONTENDED, slower=1.1)
    alone(rows["pearl"], "rest")
    assert rows["pearl"]["parts"]["rest"] == pytest.approx(math.log(1.1))
