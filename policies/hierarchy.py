"""DOUBLE's hierarchical datastore: prior texts, this request's text, this request's rejected tokens.

The priorities are those of the paper's algorithm 3: the longest ending of the text first, and for each ending
the prior, then what was accepted, then what was rejected; prompt lookup in the text itself comes last.
`policies.laws.retrieval.retrieve` states the same on plain lists; here endings are found by hashing.

What the paper leaves open, and what is done: of several occurrences in a layer the last one counts (in the
prior, which is not a history, the most frequent continuation); one that nothing follows is none; the
prompt is part of the accepted text, since section 4.3 initialises the datastore with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from policies.ngram import lookup


class Prior(Protocol):
    """Texts that outlive a request; `hardware_profiles.datastore.Datastore` is one."""

    def lookup(
        self, text: Sequence[int], *, longest: int, span: int, count: int, shortest: int = 1
    ) -> Sequence[tuple[tuple[int, ...], int]]:
        """Continuations of the text's endings of `shortest` to `longest` tokens, the best ones first."""
        ...


class Index:
    """Token texts in which endings of up to `longest` tokens are found by hashing.

    Args:
        longest: Longest ending, at least 1.
    """

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
        found = self._after.get(words)
        return None if found is None else tuple(found[0][found[1] : found[1] + span])


class Hierarchy:
    """What one request may retrieve.

    A new request gets a new one (`flush`): what one request said never reaches another.

    Args:
        longest: N, longest ending that is looked up, at least 1.
        prior: Texts shared by all requests; None for none.
        keep_rejected: Whether rejected tokens are a layer.

    Attributes:
        text: The committed text, prompt included.
    """

    def __init__(self, longest: int, *, prior: Prior | None = None, keep_rejected: bool = True) -> None:
        self.longest = longest
        self.prior = prior
        self.keep_rejected = keep_rejected
        self.text: list[int] = []
        self._dynamic = Index(longest)
        self._rejected = Index(longest)

    def flush(self) -> None:
        """Forget the request; the prior stays."""
        self.text = []
        self._dynamic, self._rejected = Index(self.longest), Index(self.longest)

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
        """Up to `span` tokens that may follow the committed text and `ahead`.

        Args:
            ahead: Drafted tokens after the text, which no layer holds yet.
            span: Most tokens, at least 0.
        """
        if span < 1:
            return ()
        ending = (*self.text[-self.longest :], *ahead)[-self.longest :]
        for size in range(len(ending), 0, -1):
            found = self._layers(ending[-size:], span)
            if found is not None:
                return found
        return lookup((*self.text, *ahead), span, longest=self.longest)

    def _layers(self, words: tuple[int, ...], span: int) -> tuple[int, ...] | None:
        if self.prior is not None:
            size = len(words)
            found = self.prior.lookup(words, longest=size, shortest=size, span=span, count=1)
            if found:
                return found[0][0]
        accepted = self._dynamic.follows(words, span)
        return self._rejected.follows(words, span) if accepted is None else accepted
