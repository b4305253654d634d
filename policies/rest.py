"""REST (He et al. 2024): a tree of what followed the same words in a datastore, verified at once.

There is no draft model.  With `datastore` left out the text itself is searched: prompt lookup with a tree in
place of one chain, which is RASD's first retrieval setting on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from policies.ar import ArConfig
from policies.config import DECISIONS, PolicyConfig, PolicyInfo, SettingError
from policies.protocols import Steps, World
from policies.retrieval import Path, RetrievalNodes, RetrieveTree, Search, SearchConfig, row_input
from policies.rows import Rows, admit_target
from policies.sampling import GREEDY, Sampling
from policies.tokentree import TokenTree, VerifyTree
from policies.tree import commit_trees
from policies.values import View


@dataclass(frozen=True, slots=True)
class RestConfig(SearchConfig):
    """Knobs of `rest`.

    Attributes:
        retrieval_nodes: Most nodes of a tree.
    """

    policy: ClassVar[str] = "rest"
    retrieval_nodes: RetrievalNodes = 32

    def check(self, sampling: Sampling) -> None:
        """Refuse endings that match nothing."""
        self.search_for(self.retrieval_nodes)

    @property
    def search(self) -> Search:
        """How continuations are looked for."""
        return self.search_for(self.retrieval_nodes)

    @property
    def content_ignored(self) -> PolicyConfig:
        """Plain decoding."""
        return ArConfig()


def rest(world: World, rows: Rows, config: RestConfig, sampling: Sampling = GREEDY) -> Steps:
    """Retrieve a tree, verify it in one forward, repeat; a round that finds nothing is a plain decode.

    The search runs on the target's device, which has nothing else to do meanwhile.  The draft stays idle.

    Raises:
        SettingError: A world without token ids.
    """
    check_text(rows, "rest")
    search = config.search
    while rows.active:
        yield from admit_target(world, rows)
        view = rows.view()
        lookup = RetrieveTree(
            view,
            rows.width,
            row_inputs(rows, view, config.store, search),
            sampling,
            datastore=config.store,
            search=search,
        )
        found = yield world.target.submit(lookup)
        trees = {slot: TokenTree._make(found[slot].tree) for slot in view.slots.tolist()}
        verified = yield world.target.submit(VerifyTree(view, rows.width, tuple(trees.values()), sampling))
        commit_trees(world, rows, view, trees, verified)


def check_text(rows: Rows, policy: str) -> None:
    """Refuse a world in which there is nothing to look up.

    Raises:
        SettingError: The rows keep no token ids.
    """
    if not rows.keep_tokens:
        raise SettingError(
            f"policy {policy!r} looks words up, and coin tosses have none; use a decision trace "
            "(`calibrate decide`, then --decisions)"
        )


def row_inputs(
    rows: Rows,
    view: View,
    datastore: str,
    search: Search,
    levels: Mapping[int, Sequence[Sequence[Path]]] | None = None,
) -> tuple[Any, ...]:
    """What each row of a view looks up.

    Args:
        rows: With their tokens kept.
        view: The rows.
        datastore: Where.
        search: How.
        levels: By slot what to append where nothing is found.
    """
    more = levels or {}
    return tuple(
        row_input(rows.text(request), datastore, search, more.get(slot, ()))
        for slot, request in zip(view.slots.tolist(), view.requests.tolist(), strict=True)
    )


INFO = PolicyInfo(
    config=RestConfig,
    run=rest,
    paper="He et al. 2024 (REST); baseline of RASD, DOUBLE, DuoDecoding",
    predicts="nobody",
    drafts="retrieval from a datastore or the text itself",
    on_miss="-",
    verifies="tree",
    replay=DECISIONS,
    needs_draft=False,
    collocated=True,
    colour="#8c8c2f",
    variants=({}, {"retrieval_nodes": 12}),
)
