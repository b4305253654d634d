"""SwiftSpec: a tree that goes on growing, re-rooted by hand and on the engine; lossless by any clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from live_support import Reference, inline_world, serve, texts_of
from plain_decoding import plain_decode
from runner_support import MODELS, TEXTS, assert_close, filled, plain
from sampling_support import LENGTH, PROMPTS, fit, table_world

from calibrate.live.engine import verification
from calibrate.live.engine.trees import Branching
from calibrate.live.errors import AuditError
from calibrate.live.transport.world import LiveWorld
from policies.config import SettingError
from policies.registry import configure, start
from policies.rows import Rows
from policies.swiftspec import Growth, GrowTree, SwiftSpecConfig, Tree
from policies.tokentree import ROOT
from policies.values import Request
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin
from simulator.tokens.model import TokenModel
from simulator.tokens.outcomes import accepted_runs

SETTINGS = configure("swiftspec", expanded=2, children=2, verified=5)


def test_a_tree_by_hand() -> None:
    tree = Tree(SwiftSpecConfig(expanded=1, children=2, verified=3), (9,))
    assert tree.growth(9) == ([ROOT], Growth((), (), (9,), ()))
    tree.add([ROOT], [(5, 6)])  # costs 1.5 and 3
    assert tree.growth(9) == ([0], Growth((), (), (), ((ROOT, (5,)),)))
    tree.add([0], [(7, 8)])  # 2.25 and 4.5
    assert tree.candidates()[:2] == ((5, 6, 7), (ROOT, ROOT, 0))
    assert tree.growth(9) == ([2], Growth((), (), (), ((0, (5, 7)),)))
    # 5 7 are said while the draft expands 7: 7 is the root now, and its children come later.
    tree.reroot((5, 7))
    assert tree.nodes == {} and tree.growth(9) is None
    tree.add([2], [(1, 2)])
    assert tree.candidates()[:2] == ((1, 2), (ROOT, ROOT))
    # Numbers 0 (5) and 1 (7) have become text; then 1 is expanded.
    assert tree.growth(9) == ([4], Growth((0, 1), (), (), ((ROOT, (1,)),)))
    tree.reroot((3,))  # not in the tree, which begins anew; what comes of 1 is dropped
    tree.add([4], [(1, 1)])
    assert tree.nodes == {} and tree.growth(9) == ([ROOT], Growth((), (), (3,), ()))


def test_what_stays_is_not_computed_again() -> None:
    """After a path was kept, nodes below it are answered as if their paths were texts."""
    runner = filled(MODELS["llama"]().double().eval())
    branching = Branching(runner, [2])
    #      0 (5)   1 (6)   2 (7, below 1)   3 (4, below 1)   4 (8, below 3)
    branching.feed([[5, 6, 7, 4, 8]], [[ROOT, ROOT, 1, 1, 3]])
    fed = runner.fed
    with pytest.raises(AuditError, match="parents"):
        branching.reroot([1], [0])
    branching.reroot([1], [3, 4])
    assert runner.held(2) == [*TEXTS[2], 6] and (branching.tokens, branching.parents) == (
        [[4, 8]],
        [[ROOT, 0]],
    )
    logits = branching.feed([[3, 2]], [[1, ROOT]])
    assert runner.fed == fed + 2
    for at, path in enumerate(((4, 8, 3), (2,))):
        assert_close(logits[0, at], plain(runner.model, [*TEXTS[2], 6, *path])[-1])


def test_greedy_output_is_plain_decodings(world: LiveWorld, reference: Reference) -> None:
    prompts, texts = reference.some(4, 30)
    inline = inline_world(reference.target, reference.draft)
    for where in (world, inline):
        rows = serve(where, SETTINGS, prompts, limit=30)
        assert texts_of(rows) == texts
        assert min((rows.log.table()["accepted"] == n).sum() for n in (0, 1)) > 0
    # A wrong tree would only be slow: what it holds is the draft's choice after every node.
    seen = 0
    for operation, answer in inline.draft.served:
        if isinstance(operation, GrowTree):
            request, position = operation.view.requests[0], operation.view.positions[0]
            text = (*prompts[request], *texts[request][:position])
            for (_, path), top in zip(operation.inputs[0].nodes, answer[0].tops, strict=False):
                assert plain_decode(reference.draft, (*text, *path), 1) == [top[0]]
                seen += 1
    assert seen > 50
    with pytest.raises(SettingError, match="one sequence"):
        serve(inline, SETTINGS, prompts, limit=30, batch=3)


def sampled(requests: int) -> Rows:
    settings = configure("swiftspec", expanded=2, children=2, verified=4, temperature=0.9, seed=2)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(requests)]
    rows = Rows([Request(i, len(p), LENGTH, p) for i, p in enumerate(prompts)], 1, keep_tokens=True)
    world = table_world()
    world.run(start(world, rows, settings))
    return rows


def test_emitted_texts_have_the_targets_law(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = configure("swiftspec", temperature=0.9, seed=2).sampling
    found = fit(sampled(300), sampling)
    assert found.impossible == 0 and found.p_value > 1e-3, str(found)
    monkeypatch.setattr(verification, "residual", lambda p, sigma: p)
    assert fit(sampled(450), sampling).p_value < 1e-6


def recorded(ranks: list[int]) -> TokenModel:
    """A text 0 1 2 ... whose tokens have these ranks among the draft's choices."""
    count = len(ranks)
    ranked = np.array(
        [[at if place == rank else 90 + place for place in range(3)] for at, rank in enumerate(ranks)]
    )
    right = np.array(ranks) == 0
    more: dict[str, Any] = {"run": accepted_runs(right), "need_rejected": np.array(ranks)}
    tokens, request = np.arange(count), Request(0, 1, count, (7,))
    return TokenModel.of(
        [request],
        [count],
        tokens=tokens,
        ranked=ranked,
        vocabulary=99,
        max_fanout=2,
        need_free=np.array(ranks) + 1,
        **more,
    )


def test_rounds_by_hand() -> None:
    """Where all is right, the slower decides: the draft's 4 tokens per second, or the target's 8 + 1."""
    one = {"expanded": 1, "children": 1, "verified": 8}
    for draft_s, per_second in ((0.25, 4.0), (0.05, 9.0)):
        scenario = Scenario(recorded([0] * 400), textbook=TextbookCosts(1.0, draft_s))
        found = simulate(scenario, configure("swiftspec", **one)).summary
        assert found.tokens_per_second == pytest.approx(per_second, rel=0.05)
    # A second choice is held by a tree of two children alone.
    scenario = Scenario(recorded([0, 1] * 200), textbook=TextbookCosts(1.0, 0.1))
    per_round = [
        simulate(scenario, configure("swiftspec", children=n)).summary.tokens_per_round for n in (1, 2)
    ]
    assert per_round[0] <= 2.0 and per_round[1] > 2.5


def test_coins_have_no_tree() -> None:
    tokens = coin(0.5, exponent=1.0, requests=1, length=4, prompt_length=5, seed=0)
    with pytest.raises(SettingError, match="give a trace"):
        simulate(Scenario(tokens, textbook=TextbookCosts(1.0, 0.1)), configure("swiftspec"))
