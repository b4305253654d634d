"""Every formal statement of the five papers, one module per paper: `STATEMENTS`, by id."""

from __future__ import annotations

from policies.laws.catalogue import double, duo, mirror, rasd, ssd
from policies.laws.statement import Statement

STATEMENTS: dict[str, Statement] = {
    statement.id: statement for paper in (ssd, double, duo, rasd, mirror) for statement in paper.STATEMENTS
}
