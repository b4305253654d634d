"""Drafting by retrieval: what followed the same words, in the text so far or in a datastore, as a tree.

The two retrieval settings of RASD (section 3.2.1, algorithm 1):

- `prompt`: the text itself is searched (prompt lookup).  Where nothing is found, each of the draft's
  likeliest tokens is appended and the search repeated, then two of them, and so on;
- a datastore (REST, He et al. 2024): one search per draft phase.  What is found is much, so that the tree
  keeps the most frequent beginnings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from hardware_profiles.datastore import Datastore
from policies.operations import Source
from policies.rowwise import Like, Rowwise, Work
from policies.trees import TokenTree

PROMPT = "prompt"
"""Name of the text itself in place of a datastore."""

Path: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """How continuations are looked for.

    Attributes:
        longest: n_max, longest ending of the text, in tokens.
        shortest: n_min, shortest ending, at least 1.
        count: n, distinct continuations after which shorter endings are left out.
        span: l, most tokens of a continuation.
        nodes: Most nodes of the tree.
    """

    longest: int = 16
    shortest: int = 2
    count: int = 8
    span: int = 8
    nodes: int = 32

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest_match {self.shortest} is above longest_match {self.longest}: nothing is found so"
            )


class RetrievalAsk(NamedTuple):
    """What a row looks up.

    Attributes:
        text: The end of its text; all of it where the text itself is searched.
        levels: Paths to append where nothing is found, by their length; the first that yields something ends
            the search.
    """

    text: Path
    levels: tuple[tuple[Path, ...], ...] = ()


class Retrieved(NamedTuple):
    """Reply of `RetrieveTree`.

    Attributes:
        tree: What was found; a `TokenTree`, empty for nothing.
        appended: Tokens that had to be appended to find it.
        work: One step `retrieve` that feeds no token to a model.
    """

    tree: TokenTree
    appended: int
    work: Work


@dataclass(frozen=True, slots=True)
class RetrieveTree(Rowwise):
    """Look up what followed the same words.  Answer: a `Retrieved` per row.

    Calls no model; its time is that of the search.

    Attributes:
        datastore: `prompt`, or the name or path of a datastore.
        search: How.
    """

    kind: ClassVar[str] = "retrievetree"
    like: ClassVar[Like] = "draft"
    reply: ClassVar[type[Any]] = Retrieved

    datastore: str = PROMPT
    search: Search = Search()


def ask(text: Sequence[int], datastore: str, search: Search, levels: Sequence[Sequence[Path]] = ()) -> Any:
    """The row's `RetrievalAsk`: only what the search reads crosses to the device."""
    end = len(text) if datastore == PROMPT else search.longest
    return RetrievalAsk(tuple(text[-end:]), tuple(tuple(paths) for paths in levels))


def retrieve(asked: RetrievalAsk, search: Search, datastore: Datastore | None) -> Retrieved:
    """One row's search.

    Args:
        asked: What for.
        search: How.
        datastore: Where; None for the text itself.
    """
    work = (("retrieve", 0),)
    for appended, paths in enumerate([((),), *asked.levels]):
        found = [
            ((*path, *tail), frequency)
            for path in paths
            for tail, frequency in _beginnings(asked.text, path, search, datastore)
        ]
        if found:
            # Between paths by frequency; within a path beginnings come in that order already.
            ranked = sorted(found, key=lambda each: -each[1]) if appended else found
            return Retrieved(_tree([path for path, _ in ranked], search.nodes), appended, work)
    return Retrieved(TokenTree(), 0, work)


def text_candidates(text: Sequence[int], path: Path, search: Search) -> list[Path]:
    """Distinct continuations, in a text, of the endings of the text and a path: `rasd.alg1` of one text.

    Args:
        text: What is searched.
        path: Tokens appended to it, for the endings alone.
        search: How; `nodes` is not used.
    """
    hay, ending = np.asarray(text), (*text, *path)[-search.longest :]
    # Tokens before each place that equal the ending's last ones; something has to follow.
    alive = np.ones(max(0, len(hay) - 1), dtype=np.bool_)
    run = np.zeros(len(alive), dtype=np.int64)
    for back, token in enumerate(reversed(ending)):
        alive[:back] = False
        alive[back:] &= hay[: len(alive) - back] == token if back < len(alive) else False
        run += alive
    found: dict[Path, None] = {}
    for size in range(int(run.max(initial=0)), search.shortest - 1, -1):
        for place in np.flatnonzero(run >= size).tolist():
            if len(found) >= search.count:
                return list(found)
            found[tuple(text[place + 1 : place + 1 + search.span])] = None
    return list(found)[: search.count]


def frequent_beginnings(candidates: Sequence[Path], nodes: int) -> list[tuple[Path, int]]:
    """At most `nodes` beginnings of candidates and how many of them begin so, most frequent first.

    Equally frequent ones come by length, then as their candidates do, so that a beginning is listed before
    what it begins.
    """
    counts = Counter(path[:depth] for path in candidates for depth in range(1, len(path) + 1))
    return sorted(counts.items(), key=lambda each: (-each[1], len(each[0])))[:nodes]


def _beginnings(
    text: Path, path: Path, search: Search, datastore: Datastore | None
) -> list[tuple[Path, int]]:
    """Nodes of the tree of what followed the text and a path, each before those below it."""
    if datastore is None:
        return frequent_beginnings(text_candidates(text, path, search), search.nodes)
    return datastore.prefixes(
        (*text, *path),
        longest=search.longest,
        shortest=search.shortest,
        span=search.span,
        nodes=search.nodes,
        enough=search.count,
    )


def _tree(paths: Sequence[Path], nodes: int) -> TokenTree:
    """The tree of some paths, its first `nodes` nodes: parents come first."""
    tree = TokenTree.of_paths(paths, Source.NGRAM)
    return TokenTree(*(column[:nodes] for column in tree))
