"""REST (He et al. 2024): a tree of what followed the same words in a datastore, verified at once.

There is no draft model.  With `datastore` left out the text itself is searched: prompt lookup with a tree in
place of one chain, which is RASD's first retrieval setting on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from policies.info import DECISIONS, PolicyInfo
from policies.knobs import SettingError
from policies.operations import View
from policies.protocols import Steps, World
from policies.retrieval import PROMPT, Path, RetrieveTree, Search, ask
from policies.rows import Rows, admit_target
from policies.sampling import GREEDY, Sampling
from policies.settings import Settings
from policies.tokentree import TokenTree, VerifyTree
from policies.tree import commit_trees

SEARCH_KNOBS = (
    "datastore",
    "longest_match",
    "shortest_match",
    "retrieval_candidates",
    "retrieval_length",
    "retrieval_nodes",
)


def rest(
    world: World,
    rows: Rows,
    *,
    datastore: str = PROMPT,
    search: Search = Search(),  # noqa: B008 - frozen
    sampling: Sampling = GREEDY,
) -> Steps:
    """Retrieve a tree, verify it in one forward, repeat; a round that finds nothing is a plain decode.

    The search runs on the target's device, which has nothing else to do meanwhile.

    Args:
        world: Where; its draft devices stay idle.
        rows: What to serve, with their tokens kept.
        datastore: Name or path of a datastore; `prompt` for the text itself.
        search: How continuations are looked for.
        sampling: How the target chooses.

    Raises:
        SettingError: A world without token ids.
    """
    check_text(rows, "rest")
    while rows.active:
        yield from admit_target(world, rows)
        view = rows.view()
        lookup = RetrieveTree(
            view,
            rows.width,
            asks(rows, view, datastore, search),
            sampling,
            datastore=datastore,
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


def asks(
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
        ask(rows.text(request), datastore, search, more.get(slot, ()))
        for slot, request in zip(view.slots.tolist(), view.requests.tolist(), strict=True)
    )


def search_of(settings: Settings) -> Search:
    """The search of a configured policy.

    Raises:
        SettingError: The shortest ending is longer than the longest.
    """
    try:
        return Search(
            longest=settings.option("longest_match"),
            shortest=settings.option("shortest_match"),
            count=settings.option("retrieval_candidates"),
            span=settings.option("retrieval_length"),
            nodes=settings.option("retrieval_nodes"),
        )
    except ValueError as error:
        raise SettingError(str(error)) from error


def _check(settings: Settings, _: Mapping[str, Any]) -> None:
    search_of(settings)


def _run(world: World, rows: Rows, settings: Settings) -> Steps:
    return rest(
        world,
        rows,
        datastore=settings.option("datastore") or PROMPT,
        search=search_of(settings),
        sampling=settings.sampling,
    )


INFO = PolicyInfo(
    name="rest",
    paper="He et al. 2024 (REST); baseline of RASD, DOUBLE, DuoDecoding",
    predicts="nobody",
    drafts="retrieval from a datastore or the text itself",
    on_miss="-",
    verifies="tree",
    knobs=SEARCH_KNOBS,
    run=_run,
    replay=DECISIONS,
    check=_check,
    needs_draft=False,
)
