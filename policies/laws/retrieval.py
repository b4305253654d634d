"""Drafting by retrieval: what followed the same words before  (`double.eq2`, `double.eq5`, `double.alg3`).

Token lists only, no model: under greedy decoding a model's own continuation of the text is one fixed
path, and the matched tokens of a retrieval are those that lie on it.  `path` is that continuation.
A *datastore* is a sequence of texts; where none is given it is the text itself, as it grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from policies.laws.law import law

Tokens: TypeAlias = Sequence[int]
Texts: TypeAlias = Sequence[Tokens]
Phrase: TypeAlias = tuple[int, ...]


def occurrences(ngram: Tokens, datastore: Texts) -> Iterator[tuple[int, int]]:
    """(text, first position after it) of every occurrence of `ngram` that something follows, in order."""
    wanted, size = tuple(ngram), len(ngram)
    for number, text in enumerate(datastore):
        for start in range(len(text) - size):
            if tuple(text[start : start + size]) == wanted:
                yield number, start + size


def common_prefix(first: Tokens, second: Tokens) -> int:
    """How many tokens two lists have in common from the beginning."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


@law()
def retrieve(
    text: Tokens, longest: int, span: int, *, warm_up: Texts = (), dynamic: Texts = (), rejected: Texts = ()
) -> Phrase:
    """Up to `span` tokens by the priorities of DOUBLE's cache (`double.alg3`).

    The longest ending of the text first; for each ending the warm-up texts, then the accepted, then the
    rejected; prompt lookup in the text itself if none has it.  So a longer match among the rejected
    comes before a shorter one among the accepted.  Of several occurrences in a layer the last counts,
    which the paper leaves open; one that nothing follows is none.
    """
    cached = _longest_match(text, (warm_up, dynamic, rejected), longest, span)
    return lookup(text, [text], longest, span) if cached is None else cached


@law()
def lookup(text: Tokens, datastore: Texts, longest: int, span: int) -> Phrase:
    """Up to `span` tokens that followed the longest ending of `text` where it last occurred.

    Endings of at most `longest` tokens, longest first; of its occurrences the last.  With the text itself
    as the datastore this is prompt lookup.  Empty if not even the last token occurs with something after it.
    """
    return _longest_match(text, (datastore,), longest, span) or ()


def _longest_match(text: Tokens, layers: Sequence[Texts], longest: int, span: int) -> Phrase | None:
    """What follows the last occurrence of the longest ending, in the first layer that has it."""
    for size in range(min(longest, len(text)), 0, -1):
        for layer in layers:
            places = list(occurrences(text[len(text) - size :], layer))
            if places:
                number, after = places[-1]
                return tuple(layer[number][after : after + span])
    return None


@law()
def retrieval_forward(
    text: Tokens, path: Tokens, longest: int, span: int, datastore: Texts | None = None
) -> Phrase:
    """One greedy forward over `span` retrieved tokens: s matched ones and the model's own (`double.eq2`).

    No match gives s = 0: a plain step.  The result is always a beginning of `path`, cut where it ends, so
    that greedy output is that of plain decoding.  An empty path is an error: a model always has a next token.
    """
    if len(path) == 0:
        raise ValueError("path is empty: a model always has a next token of its own")
    return tuple(path[: _matched(text, path, longest, span, datastore) + 1])


@law()
def retrieval_draft(
    text: Tokens, path: Tokens, longest: int, span: int, lookahead: int, *, datastore: Texts | None = None
) -> tuple[Phrase, ...]:
    """Phrases of `lookahead` retrieval forwards, each appended before the next (`double.eq5`, corrected).

    `lookahead` is the paper's gamma, or C.  Each phrase ends in the model's own token, so that a forward
    without a match drafts one token, as plain drafting does.  Ends early where the path does.
    """
    matched = partial(_matched, longest=longest, span=span, datastore=datastore)
    return _phrases(text, path, lookahead, matched, own=1)


@law()
def retrieval_draft_printed(
    text: Tokens, path: Tokens, longest: int, span: int, lookahead: int, *, datastore: Texts | None = None
) -> tuple[Phrase, ...]:
    """Equation 5 as printed: the phrase is the matched tokens alone (`double.eq5`).

    A forward without a match then yields nothing, the context stays as it is, and so do all forwards after
    it: text 1 2 3 drafts no token at all, whatever the model.
    """
    matched = partial(_matched, longest=longest, span=span, datastore=datastore)
    return _phrases(text, path, lookahead, matched, own=0)


def _phrases(
    text: Tokens, path: Tokens, lookahead: int, matched: Callable[[Tokens, Tokens], int], *, own: int
) -> tuple[Phrase, ...]:
    """Phrases of the matched tokens and `own` further ones; drafting of own tokens ends with the path."""
    phrases: list[Phrase] = []
    done = 0
    while len(phrases) < lookahead and (done < len(path) or not own):
        phrase = tuple(path[done : done + matched([*text, *path[:done]], path[done:]) + own])
        phrases.append(phrase)
        done += len(phrase)
    return tuple(phrases)


def _matched(text: Tokens, path: Tokens, longest: int, span: int, datastore: Texts | None) -> int:
    """Retrieved tokens that lie on the path."""
    return common_prefix(lookup(text, [text] if datastore is None else datastore, longest, span), path)
