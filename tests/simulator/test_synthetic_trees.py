"""Trees by coins: hand-made luck, the law of acceptance, and what a round costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_worlds import tokens_by_hand

from policies.config import SettingError
from policies.registry import configure
from policies.rows import Rows
from simulator.cli import main
from simulator.costs import TextbookCosts
from simulator.run import Scenario, Simulated, simulate
from simulator.synthetic.trees import shape_of
from simulator.tokens import TokenModel, coin
from simulator.tokens.coins import histogram


def run(tokens: TokenModel, policy: str = "tree", *, batch: int = 1, **knobs: Any) -> Simulated:
    scenario = Scenario(tokens, textbook=TextbookCosts(1.0, 0.25), batch=batch)
    return simulate(scenario, configure(policy, **knobs))


def accepted(rows: Rows, request: int = 0) -> list[int]:
    return [each.accepted for each in rows.log.rounds(request)]


def test_children_are_tried_in_the_drafts_order() -> None:
    # Ranks of the target's tokens: 0 1 2 0.  With two children per node, ranks 0 and 1 are in the tree and
    # rank 2 is not: two accepted, the third token is the bonus.  Then the last one, without a bonus.
    tokens = tokens_by_hand(("+--+", [0, 1, 2, 0]))
    rows = run(tokens, tree_widths=(2, 2, 2)).rows
    assert accepted(rows) == [2, 1]
    # With three children the third is found, too; the fourth is the bonus.
    assert accepted(run(tokens, tree_widths=(3, 3, 3)).rows) == [3]
    # Single children are a chain: 1 accepted, the bonus at rank 1; none, the bonus at rank 2; the last.
    assert accepted(run(tokens, tree_widths=(1, 1, 1)).rows) == [1, 0, 1]


def test_a_tree_of_single_children_is_a_chain() -> None:
    tokens = coin(0.7, exponent=1.0, requests=20, length=60, prompt_length=4, seed=3)
    chain, forkless = run(tokens, "sd", lookahead=3), run(tokens, tree_widths=(1, 1, 1))
    for request in range(20):
        assert accepted(chain.rows, request) == accepted(forkless.rows, request)
    assert chain.summary.seconds == pytest.approx(forkless.summary.seconds)


@pytest.mark.parametrize("widths", [(1,), (3,), (2, 4), (5, 1, 2)])
def test_acceptance_follows_the_power_law(widths: tuple[int, ...]) -> None:
    """P(some of w accepted) = a + (1 - a) (1 - c (w - 1)^-r), a level at a time and independently."""
    a, c, r = 0.6, 0.8, 0.7
    tokens = coin(a, exponent=r, scale=c, requests=400, length=100, prompt_length=4, seed=1)
    table = run(tokens, batch=8, tree_widths=widths).rows.log.table()
    whole = table["position"] + len(widths) < 100  # no round that the limit cuts
    for level, width in enumerate(widths):
        reached = table["accepted"][whole] >= level
        share = float((table["accepted"][whole][reached] > level).mean())
        level_rate = a + (1 - a) * (1 - c * (width - 1) ** -r) if width > 1 else a
        deviation = np.sqrt(level_rate * (1 - level_rate) / reached.sum())
        assert share == pytest.approx(level_rate, abs=4 * deviation)


def test_a_round_costs_a_step_per_level_and_a_verification() -> None:
    tokens = coin(0.6, exponent=1.0, requests=3, length=40, prompt_length=4, seed=1)
    summary = run(tokens, tree_widths=(4, 2, 1)).summary
    assert summary.seconds == pytest.approx(summary.rounds * (3 * 0.25 + 1.0))


@pytest.mark.parametrize(("heads", "passes"), [("medusa", 1), ("hydra", 3), ("eagle2", 3), ("eagle3", 3)])
def test_heads_cost_a_share_of_the_target(heads: str, passes: int) -> None:
    tokens = coin(0.6, exponent=1.0, requests=3, length=40, prompt_length=4, seed=1)
    found = run(tokens, "heads", heads=heads, head_cost=0.04, tree_widths=(4, 2, 1))
    assert found.summary.seconds == pytest.approx(found.summary.rounds * (passes * 0.04 + 1.0))
    assert found.summary.utilization["target"] == pytest.approx(1.0)
    assert accepted(found.rows) == accepted(run(tokens, tree_widths=(4, 2, 1)).rows)


def test_heads_accept_by_a_histogram() -> None:
    """First choice right at depth 0 always, at depth 1 never: single children accept one token a round."""
    tokens = histogram(
        (1.0, 0.0, 0.5),
        rejected=[(0.0, 1.0)],
        free=(1.0, 1.0),
        requests=2,
        length=32,
        prompt_length=4,
        seed=0,
    )
    assert set(accepted(run(tokens, "heads", tree_widths=(1, 1, 1)).rows)) == {1}
    # A second child never holds the target's token, a third always does: from there on as from the beginning.
    assert set(accepted(run(tokens, "heads", tree_widths=(1, 2, 1)).rows)) == {1}
    assert set(accepted(run(tokens, "heads", tree_widths=(1, 3, 1)).rows)) == {3}
    with pytest.raises(
        SettingError, match="5 children of a node are more than the tokens given can decide: 3"
    ):
        run(tokens, "heads", tree_widths=(5,))


def test_what_coins_cannot_tell_is_refused() -> None:
    tokens = coin(0.6, exponent=1.0, requests=1, length=10, prompt_length=4, seed=1)
    with pytest.raises(SettingError, match="where the draft is confident"):
        run(tokens, tree_plan="dynamic")
    with pytest.raises(SettingError, match="widths must be numbers of at least 1"):
        configure("heads", tree_widths=(2, 0))


def test_shapes() -> None:
    tree = shape_of((2, 3))
    assert tree.parents == (-1, -1, 0, 0, 0, 1, 1, 1)
    assert list(map(len, tree.paths)) == [1, 1, 2, 2, 2, 2, 2, 2]


def test_the_command_replays_static_trees_on_the_path() -> None:
    """Without a decision trace, in greedy decoding."""
    shown = CliRunner().invoke(
        main, ["--policy", "tree", "--tree-widths", "3,1", "--requests", "2", "--json", "--hw", "cpu2-x5"]
    )
    assert shown.exit_code == 0, shown.output
    assert "recorded by plain decoding" in shown.output
    sampled = ["--temperature", "1", "--hw", "cpu2-x20"]  # nothing was decided there
    for options, missing in (
        (["--policy", "heads", "--hw", "cpu2-x5"], "`calibrate decide --policy heads` records one"),
        (["--policy", "tree", *sampled], "`calibrate decide --policy tree --temperature 1` records one"),
    ):
        refused = CliRunner().invoke(main, options)
        assert refused.exit_code == 2
        assert missing in refused.output
