"""Streaming drafts live: what streams see, and windows that are the draft's own in fewer passes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from live_support import InlineWorld, new_rows, serve, texts_of, worker_specs
from mirror_support import LAYERS, Models, Prompts, check_replay, check_windows, saved, tiny_models, watch
from plain_decoding import plain_decode_many
from streams_support import (
    branches,
    emissions,
    knowing_world,
    knowledge,
    stream_world,
    untrained,
    windows,
)
from torch import Tensor

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine import streams
from calibrate.live.engine.streams import (
    StreamBranching,
    Text,
    Writing,
    load_streams,
    save_streams,
    stream_sight,
)
from calibrate.live.errors import ModelError
from calibrate.live.transport.world import LiveWorld
from calibrate.pair.heads import stream_logits
from calibrate.reply_recorder import Recorder
from policies.laws.mirror import streaming_bound, streaming_steps
from policies.registry import SettingError, Settings, configure, start
from policies.rows import Rows
from policies.sampling import GREEDY
from policies.tokentree import ROOT
from policies.values import BoolArray, IntArray, Request
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin

LIMIT = 16


@pytest.fixture(scope="module")
def models() -> Models:
    return tiny_models()


@pytest.fixture(scope="module")
def right(models: Models, prompts: Prompts) -> list[list[int]]:
    return plain_decode_many(models[0], prompts, LIMIT)


def test_what_streams_see_by_hand() -> None:
    """A trunk of one token, two nodes after it side by side, two streams each; x: hidden.

                    trunk  A  B   A1 A2 B1 B2
    A   sees          .    .  x
    B                 .    x  .
    A1                .    .  x   .  x  x  x
    A2                .    .  x   .  .  x  x
    B1                .    x  .   x  x  .  x
    B2                .    x  .   x  x  .  .
    """
    nodes = np.array([[[False, False, True], [False, True, False]]])
    expected = ["..x.xxx", "..x..xx", ".x.xx.x", ".x.xx.."]
    found = stream_sight(nodes, np.array([3]), 2)[0]
    assert ["".join("x" if hidden else "." for hidden in row) for row in found] == expected


TEXT = (5, 6, 7, 3, 9)


def stream_table(models: Models, others: Sequence[int] = ()) -> Tensor:
    """[3, 2, V] what two streams of the last three tokens of a text say, siblings of these beside them."""
    runner = ModelRunner(models[1], slots=2)
    for slot in (0, 1):
        runner.reset(slot)
    runner.forward([1, 0], [TEXT[:2], TEXT[:1]])  # rows of different lengths, in another order
    with torch.inference_mode():
        nodes = StreamBranching(runner, [1, 0], untrained(models[1], 2))
        parents = [ROOT, 0, 1]
        nodes.feed([[*TEXT[2:], *others], [4]], [[*parents, *range(ROOT, len(others) + ROOT)], [ROOT]])
        return nodes.propose(2, [6 + 2 * len(others), 2])[0, :3].clone()


def test_streams_say_live_what_they_were_trained_to_say(models: Models) -> None:
    """One mask for training and drafting, whatever grows beside a text."""
    with torch.no_grad():
        _, trained = stream_logits(models[1], untrained(models[1], 2).heads, torch.tensor([TEXT]))
    for others in ((), (8, 1, 2)):
        torch.testing.assert_close(stream_table(models, others), trained[0, 2:], rtol=1e-4, atol=1e-4)


def test_a_mask_that_shows_the_streams_of_others_is_noticed(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text would tell: a proposal is only ever a proposal."""

    def leaky(hidden: BoolArray, starts: IntArray, streams: int) -> BoolArray:
        sight = stream_sight(hidden, starts, streams)
        sight[..., starts.min() :] = False
        return sight

    before = stream_table(models)
    monkeypatch.setattr(streams, "stream_sight", leaky)
    assert not torch.allclose(stream_table(models), before, rtol=1e-2, atol=1e-2)


SAMPLED = {"temperature": 0.8, "seed": 3}
CASES = [
    pytest.param({"lookahead": 5, "kappa": 2}, 3, id="greedy"),
    pytest.param({"lookahead": 4, "kappa": 3, "candidates": "first", "overlap": "off"}, 1, id="first"),
    pytest.param({"lookahead": 5, "kappa": 2, **SAMPLED}, 3, id="sampled"),
    pytest.param({"lookahead": 1, "kappa": 1}, 2, id="short"),
]


def run(
    models: Models, prompts: Prompts, batch: int, world: InlineWorld | None = None, **knobs: Any
) -> tuple[InlineWorld, Rows]:
    world = world or stream_world(models)
    return world, serve(world, configure("mirror", **knobs), prompts, limit=LIMIT, batch=batch)


@pytest.mark.parametrize(("knobs", "batch"), CASES)
def test_windows_are_those_of_the_draft_alone(
    knobs: dict[str, Any],
    batch: int,
    models: Models,
    prompts: Prompts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Token for token, in every branch; with streams that often know, in fewer passes."""
    alone, rows = run(models, prompts[:3], batch, **knobs)
    knowing = knowing_world(models, knowledge(alone, rows, prompts), monkeypatch)
    streamed, same = run(models, prompts[:3], batch, knowing, streams="3", **knobs)
    assert texts_of(same) == texts_of(rows)
    assert windows(streamed) == windows(alone)
    assert branches(streamed) == branches(alone)
    gamma = knobs["lookahead"]
    counts = list(emissions(streamed))
    assert counts
    for emitted in counts:
        assert sum(emitted) == gamma
        assert len(emitted) == streaming_steps(gamma, emitted) <= streaming_bound(gamma, emitted) <= gamma
        assert emitted[0] == 1  # nothing is proposed for a first pass
        assert max(emitted) <= 4
    if gamma > 1:
        assert sum(map(len, counts)) < 0.8 * gamma * len(counts)


def test_untrained_streams_change_no_text(models: Models, prompts: Prompts, right: list[list[int]]) -> None:
    world, rows = run(models, prompts[:4], 4, lookahead=4, kappa=2, streams="2")
    assert texts_of(rows) == right[:4]
    assert {1, 2} <= set(itertools.chain(*emissions(world)))


def test_a_text_near_the_end_of_its_window_is_proposed_no_more_than_it_takes() -> None:
    """gamma = 4, S = 3: after a first token three are left, two of them proposed; then none."""
    writing = Writing([Text(0, ROOT, 7, 0, 0)], 1, lookahead=4, streams=3, sampling=GREEDY, writer=None)
    assert writing.asking() == [2]
    assert writing.pending([0]) == ([[7]], [[ROOT]])
    tips = writing.write([0], _says(1))
    writing.take(tips, _says(2, 3)[None])
    assert writing.pending([1]) == ([[1, 2, 3]], [[0, 1, 2]])
    assert writing.asking() == [1]
    tips = writing.write([1], _says(2, 5, 9))  # 3 was proposed, 5 is right
    assert (writing.texts[0].written, writing.texts[0].emitted) == ([1, 2, 5], [1, 2])
    writing.take(tips, _says(8, 8, 8)[:, :, None])
    assert writing.pending([4]) == ([[5]], [[2]])
    assert writing.asking() == [0]


def _says(*tokens: int) -> Tensor:
    """[1, n, 10] logits of these tokens."""
    return torch.nn.functional.one_hot(torch.tensor([tokens]), 10).float()


def test_a_proposal_taken_unverified_shows_in_windows(
    models: Models, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts cannot tell: the target verifies them all the same."""
    write = Writing.write

    def trusting(self: Writing, first: Sequence[int], logits: Tensor) -> list[tuple[Text, int]]:
        for text in self.growing:  # the draft says whatever was proposed
            text_nodes = [t for t in self.growing if t.row == text.row]
            begin = sum(1 + len(t.proposed) for t in text_nodes[: text_nodes.index(text)])
            for place, token in enumerate(text.proposed):
                logits[text.row, begin + place, token] = 1e9
        return write(self, first, logits)

    monkeypatch.setattr(Writing, "write", trusting)
    world, rows = run(models, prompts[:3], 3, lookahead=4, kappa=2, streams="3")
    with pytest.raises(AssertionError):
        check_windows(world, rows, prompts, models[1])


def test_more_streams_than_there_are_are_refused(models: Models, prompts: Prompts, tmp_path: Path) -> None:
    world = stream_world(models)
    world.draft.executor.kept["streams"] = untrained(models[1], 1)
    with pytest.raises(ModelError, match="has 1 streams, 2 were asked for"):
        serve(world, configure("mirror", lookahead=4, streams="2"), prompts[:1], limit=4)
    models[1].save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="calibrate pair streams --draft"):
        load_streams(type(models[1]).from_pretrained(tmp_path))


def test_knobs_that_would_say_nothing_are_refused(models: Models, prompts: Prompts) -> None:
    with pytest.raises(SettingError, match="give --streams too"):
        configure("mirror", stream_acceptance=0.5)
    with pytest.raises(SettingError, match="sd"):
        configure("sd", streams="2")
    with pytest.raises(SettingError, match="coin tosses"):
        run(models, prompts[:1], 1, lookahead=2, streams="1", stream_acceptance=0.5)


@pytest.fixture(scope="module")
def folders(models: Models, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The pair with untrained exits beside the target and untrained streams beside the draft."""
    folder = tmp_path_factory.mktemp("streams")
    pair = saved(models, folder)
    save_streams(untrained(models[1]).heads, LAYERS, folder / "draft")
    return pair


def test_processes_stream_and_their_decisions_replay(
    folders: tuple[str, str], prompts: Prompts, right: list[list[int]]
) -> None:
    settings = configure("mirror", lookahead=4, kappa=4, streams="batch")
    requests = [Request(i, len(prompt), LIMIT, prompt) for i, prompt in enumerate(prompts[:4])]
    with LiveWorld(*worker_specs(folders)) as world:
        order = watch(world)
        live = new_rows(prompts[:4], LIMIT, 2)
        world.run(start(world, live, settings))
        assert texts_of(live) == right[:4]
        assert order == ["mark", "report"] * live.log.batch_rounds
        stamped = {s.name for t in world.timings() if t.operation == "streamrollout" for s in t.steps}
        assert stamped == {"glue", "tree", "tree:0.25"}
        decided = {settings.label: Recorder(world, requests, None).record(settings, lambda *_: None)}
    check_replay(decided, {settings: live}, prompts[:4], LIMIT)


def on_coins(settings: Settings, batch: int = 1) -> float:
    tokens = coin(0.8, exponent=1.0, requests=6, length=40, prompt_length=3, seed=0)
    scenario = Scenario(tokens, textbook=TextbookCosts(1.0, 0.3), batch=batch)
    return simulate(scenario, settings).summary.seconds


def test_coins_take_as_long_as_their_passes() -> None:
    """A proposal that is never right costs nothing on coins, and wins nothing; one that always is, both."""
    plain, never, always = (
        configure("mirror", lookahead=5, kappa=2, **more)
        for more in (
            {},
            {"streams": "2", "stream_acceptance": 0.0},
            {"streams": "2", "stream_acceptance": 1.0},
        )
    )
    assert on_coins(never) == pytest.approx(on_coins(plain))
    assert on_coins(always) < 0.9 * on_coins(plain)
