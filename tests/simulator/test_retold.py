"""What a live run drew is told again: the same rounds, in the same time, whatever was recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiny_profiles import profile, trace

from policies.registry import SettingError, Settings, configure
from policies.rows import Round
from simulator.run import Scenario, Simulated, simulate
from simulator.tokens import TokenModel, replay, retold

TEXTS = trace([[0, 0, 1, 0, 2, 0] * 2, [1, 0, 0, 0] * 3, [0] * 9])
SETTINGS = [
    configure("ar"),
    configure("sd", lookahead=3),
    configure("pld", lookahead=2),
    configure("pearl", lookahead=2),
    configure("saguaro", lookahead=3, fanout=(2,), backup="primary"),
    configure("saguaro", lookahead=2, fanout=(1,), backup="ngram"),
]


def run(tokens: TokenModel, settings: Settings, batch: int, **more: Any) -> Simulated:
    return simulate(Scenario(tokens, profile=profile(linear=True), batch=batch, **more), settings)


def rounds_of(found: Simulated) -> dict[int, list[Round]]:
    return {r.id: found.rows.log.rounds(r.id) for r in replay(TEXTS).requests}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: s.label)
def test_retold_rounds_take_the_same_time(settings: Settings, batch: int) -> None:
    told = run(replay(TEXTS), settings, batch)
    texts = {r.id: TEXTS.slice([r.id]).token.tolist() for r in replay(TEXTS).requests}
    requests = [replace(r, limit=99) for r in replay(TEXTS).requests]  # texts end where they ended live
    again = run(retold(requests, rounds_of(told), texts, 8), settings, batch, engine="event")
    assert rounds_of(again) == rounds_of(told)
    assert again.summary.seconds == pytest.approx(told.summary.seconds)


def test_worlds_that_part_are_told() -> None:
    settings = SETTINGS[1]
    rounds = rounds_of(run(replay(TEXTS), settings, 1))
    texts = {r.id: TEXTS.slice([r.id]).token.tolist() for r in replay(TEXTS).requests}
    # The first round is said to have emitted a token less: the second one does not begin there.
    rounds[0][0] = replace(rounds[0][0], accepted=rounds[0][0].accepted - 1)
    with pytest.raises(SettingError, match="no live round of request 0 began at position 2"):
        run(retold(replay(TEXTS).requests, rounds, texts, 8), settings, 1, engine="event")
