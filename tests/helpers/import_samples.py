"""Samples of engines' output (`tests/data/imports`), and what is asked of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from simulator.imports.__main__ import main
from simulator.imports.formats import read_file
from simulator.imports.measured import Imported, survivors_of

SAMPLES = Path(__file__).parents[1] / "data" / "imports"
DFLASH = str(SAMPLES / "vllm/prometheus_delta_K7_dflash.json")
TEXTBOOK = ["--target-time", "1", "--draft-time", "0.1"]
DFLASH_SURVIVORS = (4214, 2532, 1350, 888, 566, 370, 210)
DFLASH_CONDITIONAL = (0.67166082, 0.60085430, 0.53317536, 0.65777778, 0.63738739, 0.65371025, 0.56756757)


def close(value: object) -> object:
    return pytest.approx(value, rel=1e-4)


def all_of(name: str, **how: object) -> tuple[Imported, ...]:
    return read_file(SAMPLES / name, **how).measured  # type: ignore[arg-type]


def only(name: str) -> Imported:
    (found,) = all_of(name)
    return found


def labelled(name: str, label: str) -> Imported:
    return next(m for m in all_of(name) if m.label == label)


def check_dflash(found: Imported) -> None:
    # K = 43918 / 6274 = 7; c_2 = 2532 / 4214; h_0 = 6274 - 4214 = 2060; 1 + 10130 / 6274 = 2.6146
    assert (found.lookahead, found.rounds, found.drafted, found.accepted) == (7, 6274, 43918, 10130)
    assert found.histogram == (2060, 1682, 1182, 462, 322, 196, 160, 210)
    assert survivors_of(found.histogram) == DFLASH_SURVIVORS
    assert found.acceptance_at_position == close(DFLASH_CONDITIONAL)
    assert found.joint_acceptance_at_position == close(tuple(s / 6274 for s in DFLASH_SURVIVORS))
    assert found.tokens_per_round == close(2.61459994)
    assert found.accepted_share == close(0.23065713)


def run(*arguments: str) -> Result:
    """`python -m simulator.imports`."""
    return CliRunner().invoke(main, list(arguments))
