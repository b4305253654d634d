"""REST (He et al. 2024): a tree of what followed the same words in a datastore, verified at once.

There is no draft model.  With `datastore` left out the text itself is searched: prompt lookup with a tree in
place of one chain, which is RASD's first retrieval setting on its own.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from policies.ar import ArConfig
from policies.config import DECISIONS, PolicyConfig, PolicyInfo
from policies.protocols import Event, Steps, World
from policies.retrieval import RetrievalNodes, SearchConfig, check_text, retrieve_trees
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling
from policies.tokentree import Path, TokenTree, tree_of, tree_rounds
from policies.values import View


@dataclass(frozen=True, slots=True)
class RestConfig(SearchConfig):
    """Knobs of `rest`."""

    policy: ClassVar[str] = "rest"
    retrieval_nodes: RetrievalNodes = 32

    @property
    def content_ignored(self) -> PolicyConfig:
        """Plain decoding."""
        return ArConfig()


def rest(world: World, rows: Rows, config: RestConfig, sampling: Sampling = GREEDY) -> Steps:
    """Retrieve a tree, verify it in one forward, repeat; a round that finds nothing is a plain decode.

    The search runs on the target's device, which has nothing else to do meanwhile.  The draft stays idle.
    """
    check_text(rows, config.policy)

    def retrieve(view: View, unseen: tuple[Path, ...]) -> Generator[Event, Any, list[TokenTree]]:
        retrieved = yield world.target.submit(retrieve_trees(rows, view, config, sampling))
        return [tree_of(retrieved[slot]) for slot in view.slots]

    return tree_rounds(world, rows, sampling, retrieve)


INFO = PolicyInfo(
    config=RestConfig,
    run=rest,
    paper="He et al. 2024 (REST); baseline of RASD, DOUBLE, DuoDecoding",
    predicts="nobody",
    drafts="retrieval from a datastore or the text itself",
    on_miss="-",
    verifies="tree",
    order=4,
    replay=DECISIONS,
    needs_draft=False,
    collocated=True,
    colour="#8c8c2f",
    variants=({}, {"retrieval_nodes": 12}),
)
