"""What the catalogue keeps of one formal statement of a paper: its code, its verdict and its limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["holds", "caveat", "wrong"]


@dataclass(frozen=True)
class Statement:
    """One formal statement: where it stands, what computes it and where it stops holding.

    `corrected` is the default a user should take; `printed` is given only where the paper's form differs.
    Both take keyword arguments of the same names, all of them in `policies.laws.glossary`; the printed form
    may do without some of them.
    """

    id: str
    title: str
    source: str
    verdict: Verdict
    corrected: Callable[..., Any]
    printed: Callable[..., Any] | None = None
    assumptions: tuple[str, ...] = ()
    domain: str = ""
    counterexample: str = ""
    check: str = ""
    """The test that holds the statement against something independent, as `file::test`."""
    example: str = ""
    """Arguments for `laws eval`, as one would type them."""
    aliases: tuple[str, ...] = ()
    """Ids of other statements of the paper that say the same, such as an equation printed twice."""

    @property
    def paper(self) -> str:
        """The paper's short name, the first part of the id."""
        return self.id.split(".", 1)[0]
