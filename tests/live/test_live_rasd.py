"""Retrieval, alone and fused with a drafted tree: greedy decoding on tiny models is lossless."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from live_support import decided_replies, inline_world, serve, texts_of
from tiny_models import VOCABULARY
from transformers import PreTrainedModel

from calibrate.live.errors import ModelError
from calibrate.live.transport.world import LiveWorld
from hardware_profiles.datastore import Datastore
from hardware_profiles.reply_trace import Decisions
from policies.config import SettingError
from policies.registry import Settings, configure
from simulator.costs import TextbookCosts
from simulator.replies import Recorded
from simulator.run import Scenario, simulate
from simulator.tokens import coin
from simulator.world import SimulatedWorld

Prompts = list[tuple[int, ...]]

SETTINGS = [
    configure("rest", shortest_match=1),
    configure("rest", shortest_match=1, retrieval_length=2, retrieval_nodes=3),
    configure("rasd"),
    configure("rasd", shortest_match=1, prune_top=0),
    configure("rasd", shortest_match=1, prune_top=3, fusion="off"),
    configure("rasd", shortest_match=1, tree_depth=2, tree_topk=2, tree_budget=3, retrieval_length=3),
]


@pytest.fixture
def models(
    target_model: PreTrainedModel, draft_model: PreTrainedModel
) -> tuple[PreTrainedModel, PreTrainedModel]:
    return target_model, draft_model


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_greedy_output_is_that_of_plain_decoding(
    settings: Settings,
    batch: int,
    models: tuple[PreTrainedModel, PreTrainedModel],
    prompts: Prompts,
    plain_texts: list[list[int]],
) -> None:
    rows = serve(inline_world(*models), settings, prompts[3:6], limit=30, batch=batch)
    assert texts_of(rows) == [text[:30] for text in plain_texts[3:6]]
    accepted = rows.log.table()["accepted"]
    assert min((accepted == 0).sum(), (accepted > 0).sum()) > 0


@pytest.fixture
def known_store(tmp_path: Path, plain_texts: list[list[int]]) -> str:
    """A datastore that knows two of the three continuations."""
    Datastore.of_texts(plain_texts[3:5], VOCABULARY).write(tmp_path / "known")
    return str(tmp_path / "known")


def test_a_datastore_with_the_answers_makes_rounds_long(
    known_store: str,
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: Prompts,
    plain_texts: list[list[int]],
) -> None:
    """Retrieved tokens below and beside drafted ones are accepted, past what the draft alone reaches."""
    found = {}
    for settings in (
        configure("rest", datastore=known_store),
        configure("rasd", datastore=known_store, prune_top=0),
        configure("rasd", datastore=known_store, prune_top=0, fusion="off"),
        configure("tree", tree_plan="dynamic"),
    ):
        world = inline_world(target_model, draft_model)
        rows = serve(world, settings, prompts[3:6], limit=30, batch=2)
        assert texts_of(rows) == [text[:30] for text in plain_texts[3:6]]
        found[settings.label] = rows.log.table()["accepted"]
    rest_, fused, unfused, drafted = found.values()
    assert max(rest_) == configure("rest").knobs["retrieval_length"]
    assert fused.mean() > drafted.mean()
    assert fused.tolist() == unfused.tolist()  # fusion saves tokens and changes no outcome


def test_processes_emit_what_plain_decoding_emits(
    known_store: str, world: LiveWorld, prompts: Prompts, plain_texts: list[list[int]]
) -> None:
    for policy in ("rest", "rasd"):
        rows = serve(world, configure(policy, datastore=known_store), prompts[3:6], limit=16, batch=2)
        assert texts_of(rows) == [text[:16] for text in plain_texts[3:6]]
    searches = [timing for timing in world.timings() if timing.operation == "retrievetree"]
    assert {step.tokens for timing in searches for step in timing.steps} == {0}
    assert {timing.device for timing in searches} == {"target", "draft"}


@pytest.mark.parametrize("policy", ["rest", "rasd"])
def test_a_run_replays_as_it_was_decided(
    policy: str,
    known_store: str,
    models: tuple[PreTrainedModel, PreTrainedModel],
    prompts: Prompts,
) -> None:
    """Neither the batch nor the world changes a decision; the file keeps them all; its search takes time."""
    settings, some = configure(policy, datastore=known_store), prompts[3:6]
    runs = {}
    for batch in (1, 2):
        world = inline_world(*models)
        rows = serve(world, settings, some, limit=20, batch=batch)
        runs[batch] = rows, _decided(world, settings)
    assert runs[1][1] == runs[2][1]
    costs, at = TextbookCosts(1.0, 0.1), {}
    for batch in (1, 2, 3):
        tokens = coin(0.5, exponent=1.0, requests=1, length=4, prompt_length=5, seed=0)
        simulated = SimulatedWorld(tokens, costs, rows=Recorded(runs[2][1], len(some)))
        again = serve(simulated, settings, some, limit=20, batch=batch)
        assert texts_of(again) == texts_of(runs[1][0])
        for request in range(len(some)):
            assert again.log.rounds(request) == runs[1][0].log.rounds(request)
        at[batch] = simulated.now
    # Each round: a forward of the target, the search, and of `rasd` one of five forwards of the draft.
    round_s = 1.0 + SEARCH_S + (0.5 if policy == "rasd" else 0.0)
    assert at[1] == pytest.approx(round_s * len(runs[1][0].log.ends))


SEARCH_S = 0.25


def _decided(world: Any, settings: Settings) -> Decisions:
    return Decisions(settings.label, decided_replies(world), seconds={"retrieve": SEARCH_S})


@pytest.mark.parametrize("policy", ["rest", "rasd"])
def test_coins_cannot_stand_in_for_a_text(policy: str) -> None:
    scenario = Scenario(
        coin(0.5, exponent=1.0, requests=1, length=4, prompt_length=5, seed=0),
        textbook=TextbookCosts(1.0, 0.1),
    )
    with pytest.raises(SettingError, match=f"policy '{policy}' looks words up"):
        simulate(scenario, configure(policy))


def test_retrieval_is_a_step_that_feeds_nothing(
    known_store: str, target_model: PreTrainedModel, draft_model: PreTrainedModel, prompts: Prompts
) -> None:
    world = inline_world(target_model, draft_model)
    serve(world, configure("rasd", datastore=known_store), prompts[3:4], limit=4)
    (step,) = world.draft.executor.steps
    assert (step.name, step.tokens, step.rows) == ("retrieve", 0, 1)


def test_a_datastore_of_another_tokenizer_is_refused(
    tmp_path: Path, target_model: PreTrainedModel, draft_model: PreTrainedModel, prompts: Prompts
) -> None:
    Datastore.of_texts([(1,)], VOCABULARY + 1).write(tmp_path / "other")
    settings = configure("rest", datastore=str(tmp_path / "other"))
    with pytest.raises(ModelError, match="own tokenizer"):
        serve(inline_world(target_model, draft_model), settings, prompts[3:4])
