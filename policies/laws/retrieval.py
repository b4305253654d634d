"""Drafting by retrieval: what followed the same words before  (`double.eq2`, `double.eq5`, `double.alg3`).

Token lists only, no model: under greedy decoding a model's own continuation of the text is one fixed
path, and the matched tokens of a retrieval are those that lie on it.  `path` is that continuation.
A *datastore* is a sequence of texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

Tokens: TypeAlias = Sequence[int]
Texts: TypeAlias = Sequence[Tokens]


def occurrences(ngram: Tokens, datastore: Texts) -> Iterator[tuple[int, int]]:
    """(text, first position after it) of every occurrence of `ngram` that something follows, in order."""
    wanted, size = tuple(ngram), len(ngram)
    for number, text in enumerate(datastore):
        for start in range(len(text) - size):
            if tuple(text[start : start + size]) == wanted:
                yield number, start + size


def lookup(text: Tokens, datastore: Texts, longest: int, span: int) -> tuple[int, ...]:
    """Up to `span` tokens that followed the longest ending of `text` where it last occurred.

    Endings of at most `longest` tokens, longest first; of its occurrences the last.  With the text itself
    as the datastore this is prompt lookup.

    Args:
        text: Tokens so far.
        datastore: Texts to search.
        longest: Longest ending tried, at least 1.
        span: d, most tokens returned, at least 0.

    Returns:
        The tokens found; empty if not even the last token occurs with something after it.

    Raises:
        ValueError: `longest` below 1 or `span` below 0.
    """
    _check_search(longest, span)
    for size in range(min(longest, len(text)), 0, -1):
        found = _last(text[len(text) - size :], datastore, span)
        if found is not None:
            return found
    return ()


def retrieval_forward(
    text: Tokens, path: Tokens, longest: int, span: int, datastore: Texts | None = None
) -> tuple[int, ...]:
    """One greedy forward over `span` retrieved tokens: s matched ones and the model's own (`double.eq2`).

    No match gives s = 0: a plain step.  The result is always a beginning of `path`, so that greedy output
    is that of plain decoding.

    Args:
        text: Tokens so far.
        path: The model's greedy continuation of `text`; cut where it ends.
        longest: n, longest ending looked up.
        span: d, tokens retrieved.
        datastore: Texts to search; the text itself by default.

    Raises:
        ValueError: Outside the domain, or an empty path: the model always has a next token.
    """
    if len(path) == 0:
        raise ValueError("path is empty: a model always has a next token of its own")
    retrieved = lookup(text, [text] if datastore is None else datastore, longest, span)
    return tuple(path[: common_prefix(retrieved, path) + 1])


def retrieval_draft(
    text: Tokens, path: Tokens, longest: int, span: int, lookahead: int, *, datastore: Texts | None = None
) -> tuple[tuple[int, ...], ...]:
    """Phrases of `lookahead` retrieval forwards, each appended before the next (`double.eq5`, corrected).

    Each phrase ends in the model's own token, so that a forward without a match drafts one token, as plain
    drafting does.  Ends early where the path does.

    Args:
        text: Tokens so far.
        path: The draft's greedy continuation of `text`.
        longest: n, longest ending looked up.
        span: d, tokens retrieved per forward.
        lookahead: Retrieval forwards; the paper's gamma, or C.
        datastore: Texts to search; the growing text itself by default.

    Raises:
        ValueError: Outside the domain.
    """
    _check_lookahead(lookahead)
    phrases: list[tuple[int, ...]] = []
    done = 0
    while len(phrases) < lookahead and done < len(path):
        grown = [*text, *path[:done]]
        phrases.append(retrieval_forward(grown, path[done:], longest, span, datastore))
        done += len(phrases[-1])
    return tuple(phrases)


def retrieval_draft_printed(
    text: Tokens, path: Tokens, longest: int, span: int, lookahead: int, *, datastore: Texts | None = None
) -> tuple[tuple[int, ...], ...]:
    """Equation 5 as printed: the phrase is the matched tokens alone (`double.eq5`).

    A forward without a match then yields nothing, the context stays as it is, and so do all forwards after
    it: text 1 2 3 drafts no token at all, whatever the model.

    Args:
        text: As in `retrieval_draft`.
        path: As in `retrieval_draft`.
        longest: As in `retrieval_draft`.
        span: As in `retrieval_draft`.
        lookahead: As in `retrieval_draft`.
        datastore: As in `retrieval_draft`.

    Raises:
        ValueError: Outside the domain.
    """
    _check_lookahead(lookahead)
    phrases: list[tuple[int, ...]] = []
    done = 0
    for _ in range(lookahead):
        grown = [*text, *path[:done]]
        retrieved = lookup(grown, [grown] if datastore is None else datastore, longest, span)
        phrases.append(tuple(path[done : done + common_prefix(retrieved, path[done:])]))
        done += len(phrases[-1])
    return tuple(phrases)


@dataclass(frozen=True, slots=True)
class RetrievalCache:
    """The three layers of `double.alg3`, each a sequence of texts.

    Attributes:
        warm_up: Warm-up texts, kept between requests.
        dynamic: Texts of this request that were accepted.
        rejected: Drafted and rejected tokens, each with the words before them.
    """

    warm_up: tuple[tuple[int, ...], ...] = ()
    dynamic: tuple[tuple[int, ...], ...] = ()
    rejected: tuple[tuple[int, ...], ...] = ()

    def accept(self, tokens: Tokens) -> RetrievalCache:
        """With accepted tokens, which continue the latest accepted text."""
        latest = self.dynamic[-1] if self.dynamic else ()
        return replace(self, dynamic=(*self.dynamic[:-1], (*latest, *tokens)))

    def reject(self, before: Tokens, tokens: Tokens) -> RetrievalCache:
        """With rejected tokens and the words before them, by which they are found."""
        return replace(self, rejected=(*self.rejected, (*before, *tokens)))

    def flush(self) -> RetrievalCache:
        """For the next request: only the warm-up texts.  Keeping more would leak one request to another."""
        return RetrievalCache(warm_up=self.warm_up)

    def retrieve(self, text: Tokens, longest: int, span: int) -> tuple[int, ...]:
        """`retrieve` over these layers."""
        return retrieve(
            text, longest, span, warm_up=self.warm_up, dynamic=self.dynamic, rejected=self.rejected
        )


def retrieve(
    text: Tokens,
    longest: int,
    span: int,
    *,
    warm_up: Texts = (),
    dynamic: Texts = (),
    rejected: Texts = (),
) -> tuple[int, ...]:
    """Up to `span` tokens by the priorities of DOUBLE's cache (`double.alg3`).

    The longest ending of the text first; for each ending the warm-up texts, then the accepted, then the
    rejected; prompt lookup in the text itself if none has it.  So a longer match among the rejected
    comes before a shorter one among the accepted.  Of several occurrences in a layer the last counts,
    which the paper leaves open; one that nothing follows is none.

    Args:
        text: Tokens so far.
        longest: N, longest ending looked up.
        span: K, tokens returned at most.
        warm_up: Warm-up texts.
        dynamic: Texts accepted in this request.
        rejected: Rejected tokens after the words before them.

    Raises:
        ValueError: `longest` below 1 or `span` below 0.
    """
    _check_search(longest, span)
    for size in range(min(longest, len(text)), 0, -1):
        for layer in (warm_up, dynamic, rejected):
            found = _last(text[len(text) - size :], layer, span)
            if found is not None:
                return found
    return lookup(text, [text], longest, span)


def common_prefix(first: Tokens, second: Tokens) -> int:
    """How many tokens two lists have in common from the beginning."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def _last(ngram: Tokens, datastore: Texts, span: int) -> tuple[int, ...] | None:
    """What follows the last occurrence of `ngram`; None where nothing does."""
    found = None
    for found in occurrences(ngram, datastore):  # noqa: B007  # the last one is wanted
        pass
    return None if found is None else tuple(datastore[found[0]][found[1] : found[1] + span])


def _check_search(longest: int, span: int) -> None:
    if longest < 1 or span < 0:
        raise ValueError(f"needs longest >= 1 and span >= 0, got {longest}, {span}")


def _check_lookahead(lookahead: int) -> None:
    if lookahead < 0:
        raise ValueError(f"lookahead must be at least 0, got {lookahead}")
