"""Drafting by retrieval: what followed the same words, in the text so far or in a datastore.

RASD and REST retrieve a tree, in one of RASD's two settings (section 3.2.1, algorithm 1):

- `prompt`: the text itself is searched (prompt lookup).  Where nothing is found, each of the draft's
  likeliest tokens is appended and the search repeated, then two of them, and so on;
- a datastore (REST, He et al. 2024): one search per draft phase.  What is found is much, so that the tree
  keeps the most frequent beginnings.

DOUBLE retrieves a chain from a `Hierarchy`: prior texts, this request's text, this request's rejected tokens.
The priorities are those of the paper's algorithm 3: the longest ending of the text first, and for each ending
the prior, then what was accepted, then what was rejected; prompt lookup in the text itself comes last.
`policies.laws.retrieval.retrieve` states the same on plain lists; here endings are found by hashing.

What the paper leaves open, and what is done: of several occurrences in a layer the last one counts (in the
prior, which is not a history, the most frequent continuation); one that nothing follows is none; the prompt
is part of the accepted text, since section 4.3 initialises the datastore with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import numpy as np

from hardware_profiles.datastore import Datastore
from policies.config import Knob, PolicyConfig, SettingError
from policies.operation import RowOperation, Work
from policies.pld import lookup
from policies.rows import Rows
from policies.sampling import Sampling
from policies.tokentree import Path, TokenTree
from policies.values import Source, View

PROMPT = "prompt"
"""Name of the text itself in place of a datastore."""

DatastoreName: TypeAlias = Annotated[
    str | None, Knob("Texts to retrieve from: a name or a folder (calibrate datastore).")
]
RetrievalLength: TypeAlias = Annotated[int, Knob("d or l, most tokens of a retrieved continuation.", least=1)]
RetrievalNodes: TypeAlias = Annotated[int, Knob("Most nodes of a retrieved tree.", least=1)]


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


@dataclass(frozen=True, slots=True)
class SearchConfig(PolicyConfig):
    """Knobs of policies that retrieve trees; see `Search`."""

    retrieval_length: RetrievalLength = 10
    datastore: DatastoreName = None
    longest_match: Annotated[int, Knob("Longest ending that trees are looked up by.", least=1)] = 16
    shortest_match: Annotated[int, Knob("Shortest ending that trees are looked up by.", least=1)] = 2
    retrieval_candidates: Annotated[int, Knob("Continuations after which none is looked for.", least=1)] = 8

    if TYPE_CHECKING:  # fields of the policies: labels, by which recordings are found, follow their order

        @property
        def retrieval_nodes(self) -> int:
            """Most nodes of a retrieved tree."""
            ...

    def check(self, sampling: Sampling) -> None:
        """Refuse endings that match nothing."""
        if self.shortest_match > self.longest_match:
            raise SettingError(
                f"shortest_match {self.shortest_match} is above longest_match {self.longest_match}: nothing "
                "is found so"
            )

    @property
    def store(self) -> str:
        """The datastore, or `PROMPT`."""
        return self.datastore or PROMPT

    @property
    def search(self) -> Search:
        """How continuations are looked for."""
        return Search(
            self.longest_match,
            self.shortest_match,
            self.retrieval_candidates,
            self.retrieval_length,
            self.retrieval_nodes,
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
    """Reply of `RetrieveTree`: the tree that was found, the tokens that had to be appended to find it, and
    one step `retrieve` that feeds no token to a model.
    """

    tree: TokenTree
    appended: int
    work: Work


@dataclass(frozen=True, slots=True)
class RetrieveTree(RowOperation, cost_class="draft", reply=Retrieved):
    """Look up what followed the same words.  `inputs`: `RetrievalAsk`.  Calls no model."""

    inputs: tuple[RetrievalAsk, ...]
    datastore: str = PROMPT
    search: Search = Search()


def retrieve_trees(
    rows: Rows,
    view: View,
    config: SearchConfig,
    sampling: Sampling,
    levels: Mapping[int, tuple[tuple[Path, ...], ...]] | None = None,
) -> RetrieveTree:
    """What the rows of a view look up; `levels`, by slot: what to append where nothing is found."""
    # Only what the search reads crosses to the device.
    end = 0 if config.store == PROMPT else -config.longest_match
    inputs = tuple(
        RetrievalAsk(rows.text(request)[end:], (levels or {}).get(slot, ()))
        for slot, request in zip(view.slots, view.requests, strict=True)
    )
    return RetrieveTree(view, rows.width, inputs, sampling, datastore=config.store, search=config.search)


def check_text(rows: Rows, policy: str) -> None:
    """Refuse a world without token ids, in which there is nothing to look up, with a `SettingError`."""
    if not rows.keep_tokens:
        raise SettingError(
            f"policy {policy!r} looks words up, and coin tosses have none; use a decision trace "
            "(`calibrate decide`, then --decisions)"
        )


def retrieve(asked: RetrievalAsk, search: Search, datastore: Datastore | None) -> Retrieved:
    """One row's search in a datastore; None: in the text itself."""
    work = (("retrieve", 0),)
    for appended, paths in enumerate([((),), *asked.levels]):
        continuations = [
            ((*path, *tail), frequency)
            for path in paths
            for tail, frequency in _beginnings(asked.text, path, search, datastore)
        ]
        if continuations:
            # Between paths by frequency; within a path beginnings come in that order already.
            ranked = sorted(continuations, key=lambda each: -each[1]) if appended else continuations
            return Retrieved(_tree([path for path, _ in ranked], search.nodes), appended, work)
    return Retrieved(TokenTree(), 0, work)


def text_candidates(text: Sequence[int], path: Path, search: Search) -> list[Path]:
    """Distinct continuations, in a text, of the endings of the text and a path: `rasd.alg1` of one text.

    The path is appended for the endings alone; of the search all but `nodes` is used.
    """
    hay, ending = np.asarray(text), (*text, *path)[-search.longest :]
    # Tokens before each place that equal the ending's last ones; something has to follow.
    alive = np.ones(max(0, len(hay) - 1), dtype=np.bool_)
    run = np.zeros(len(alive), dtype=np.int64)
    for back, token in enumerate(reversed(ending)):
        alive[:back] = False
        alive[back:] &= hay[: len(alive) - back] == token if back < len(alive) else False
        run += alive
    paths: dict[Path, None] = {}
    for size in range(int(run.max(initial=0)), search.shortest - 1, -1):
        for place in np.flatnonzero(run >= size).tolist():
            if len(paths) >= search.count:
                return list(paths)
            paths[tuple(text[place + 1 : place + 1 + search.span])] = None
    return list(paths)[: search.count]


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


class Index:
    """Token texts in which endings of up to `longest` tokens (at least 1) are found by hashing."""

    def __init__(self, longest: int) -> None:
        if longest < 1:
            raise ValueError(f"longest must be at least 1, got {longest}")
        self.longest = longest
        self._texts: list[list[int]] = []
        self._after: dict[tuple[int, ...], tuple[list[int], int]] = {}

    def new_text(self) -> None:
        """Continue with another text: no words reach over the border."""
        self._texts.append([])

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the latest text."""
        if not self._texts:
            self.new_text()
        text = self._texts[-1]
        for token in tokens:
            # Only now something follows the words before it.
            for size in range(1, min(self.longest, len(text)) + 1):
                self._after[tuple(text[-size:])] = (text, len(text))
            text.append(token)

    def follows(self, words: tuple[int, ...], span: int) -> tuple[int, ...] | None:
        """Up to `span` tokens after the last occurrence of `words` that something follows; None without."""
        last = self._after.get(words)
        return None if last is None else tuple(last[0][last[1] : last[1] + span])


class Hierarchy:
    """What one request may retrieve.

    A new request gets a new one: what one request said never reaches another.

    Args:
        longest: N, longest ending that is looked up, at least 1.
        prior: Texts shared by all requests; None for none.
        keep_rejected: Whether rejected tokens are a layer.
    """

    def __init__(self, longest: int, *, prior: Datastore | None = None, keep_rejected: bool = True) -> None:
        self.longest = longest
        self.prior = prior
        self.keep_rejected = keep_rejected
        self.text: list[int] = []
        self._dynamic = Index(longest)
        self._rejected = Index(longest)

    def accept(self, tokens: Sequence[int]) -> None:
        """Append committed tokens; the first ones of a request are its prompt."""
        self.text.extend(tokens)
        self._dynamic.extend(tokens)

    def reject(self, at: int, tokens: Sequence[int]) -> None:
        """Keep tokens that were drafted after the first `at` ones of the text and then rejected.

        The words before them are kept too, since those are what they are found by.
        """
        if self.keep_rejected and tokens:
            self._rejected.new_text()
            self._rejected.extend((*self.text[max(0, at - self.longest) : at], *tokens))

    def retrieve(self, ahead: Sequence[int], span: int) -> tuple[int, ...]:
        """Up to `span` tokens that may follow the committed text and `ahead`, drafted tokens which no layer
        holds yet.
        """
        if span < 1:
            return ()
        ending = (*self.text[-self.longest :], *ahead)[-self.longest :]
        for size in range(len(ending), 0, -1):
            tokens = self._layers(ending[-size:], span)
            if tokens is not None:
                return tokens
        return lookup((*self.text, *ahead), span, longest=self.longest)

    def _layers(self, words: tuple[int, ...], span: int) -> tuple[int, ...] | None:
        if self.prior is not None:
            size = len(words)
            continuations = self.prior.lookup(words, longest=size, shortest=size, span=span, count=1)
            if continuations:
                return continuations[0][0]
        accepted = self._dynamic.follows(words, span)
        return self._rejected.follows(words, span) if accepted is None else accepted
