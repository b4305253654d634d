"""What RASD's tables determine: tokens of a fused tree from its two halves, speed from tokens and step cost.

tau does not count the bonus token, so a step yields tau + 1 and SR = (tau + 1) / cost.  RASD's tau is that
of the longer of two independent matches, the draft's and the retrieval's, each geometric with the mean that
its baseline prints; its step costs what EAGLE2's does on the same text, or more.
"""

from __future__ import annotations

from analysis.papers.cells import Book, Cell
from analysis.papers.forecast import (
    Estimate,
    Forecast,
    Known,
    Reasons,
    assumed,
    by_step_cost,
    fitted,
    given,
    naive_guess,
    spread,
)

RETRIEVERS = {"RASD(PLD)": "PLD", "RASD(REST)": "REST"}
MAIN = ("Table 1", "Table 2")
NO_TREES = (
    "only mean lengths of matches are printed: neither the trees nor which of their branches match nor what "
    "drafting takes, and coin tosses have no words to look up"
)
EXTRA = assumed("extra step time", 0.0, 0.0, 0.1)
"""Of RASD's step over EAGLE2's, as a share: retrieval and fusion; retrieval takes 0.2 to 0.7 of an unnamed
unit in Table 4."""
REASONS: Reasons = (
    ({"table": "Table 3"}, "restates Table 2, or its tau is of an ablation that no law describes"),
    ({"table": "Table 4"}, "REST's tau by datastore is not printed; the first and last row restate Table 2"),
    ({"table": MAIN}, "its EAGLE2 or retrieval row is flagged"),
    ({}, "describes the setup or the training"),
)


def forecasts(book: Book) -> list[Forecast]:
    """Every cell that its paper's other cells say something about."""
    found: list[Forecast] = []
    for cell in book.all(table=MAIN):
        if cell.value_name == "SR" and cell.method not in RETRIEVERS:
            found += _by_step_cost(book, cell)
        elif cell.method in RETRIEVERS:
            found += _fused(book, cell)
    return [*found, *_without_pruning(book), *_by_datastore(book)]


def _block(book: Book, cell: Cell, **columns: str) -> list[Cell]:
    """Cells of the same table, target and temperature."""
    place = {"table": cell.table, "target": cell.target, "temperature": cell.temperature}
    return book.sound(**place | columns)


def step_cost(tau: float, speedup: float) -> float:
    """Time of a step over that of a plain one: (tau + 1) / SR."""
    return (tau + 1.0) / speedup


def fused_tau(draft: float, retrieval: float) -> float:
    """Mean of the longer of two independent geometric matches of these means.

    P(length >= n) = q^n with q = tau / (1 + tau); E[max] = tau_1 + tau_2 - q_1 q_2 / (1 - q_1 q_2).
    """
    both = draft / (1.0 + draft) * retrieval / (1.0 + retrieval)
    return draft + retrieval - both / (1.0 - both)


def _by_step_cost(book: Book, cell: Cell) -> list[Forecast]:
    """A baseline's SR from its tau, and the step cost of its other data sets."""
    tokens = {
        c.dataset: c
        for c in book.all(
            table=cell.table,
            target=cell.target,
            method=cell.method,
            temperature=cell.temperature,
            value_name="tau",
        )
    }
    speeds = _block(book, cell, method=cell.method, value_name="SR")
    others = [c for c in speeds if c.row != cell.row and tokens[c.dataset].row not in book.flags]
    if not others or tokens[cell.dataset].row in book.flags:
        return []
    law = "rasd.metrics: (tau + 1) / step cost"
    return [by_step_cost(cell, tokens, others, speeds, law=law, unsimulated=NO_TREES, own_token=1.0)]


def _baseline(book: Book, cell: Cell, method: str, name: str) -> Cell | None:
    """A baseline's cell on the same text: of the same table, or where that is flagged, of the other one."""
    same = {"target": cell.target, "dataset": cell.dataset, "temperature": cell.temperature}
    found = book.one(table=cell.table, method=method, value_name=name, **same)
    if found is not None:
        return found
    return next(iter(book.sound(table=MAIN, method=method, value_name=name, **same)), None)


def _fused(book: Book, cell: Cell) -> list[Forecast]:
    draft = _baseline(book, cell, "EAGLE2", "tau")
    retrieval = _baseline(book, cell, RETRIEVERS[cell.method], "tau")
    if draft is None or retrieval is None:
        return []
    tau = _tau(draft, retrieval)
    base = _baseline(book, cell, "EAGLE2", cell.value_name)
    guess = None if base is None else naive_guess(cell, base.value, _pairs(book, cell))
    known: tuple[Known, ...] = (
        given("tau of EAGLE2", draft.value),
        given("tau of retrieval", retrieval.value),
    )
    if cell.value_name == "tau":
        estimate = Estimate(tau.value, tau.low, tau.high)
        law, halves = "rasd.fuse, independent halves", (draft, retrieval)
        return [Forecast(cell, law, estimate, known, halves, naive=guess, unsimulated=NO_TREES)]
    if base is None:
        return []
    cost = fitted("step cost of EAGLE2", step_cost(draft.value, base.value))
    known = (*known, tau, cost, EXTRA)
    estimate = _speed(known)
    used = (draft, retrieval, base)
    law = "rasd.metrics + rasd.fuse"
    return [Forecast(cell, law, estimate, known, used, naive=guess, unsimulated=NO_TREES)]


def _tau(draft: Cell, retrieval: Cell) -> Known:
    """At least the longer half on its own, at most both of them after each other."""
    low, high = max(draft.value, retrieval.value), draft.value + retrieval.value
    return fitted("tau", fused_tau(draft.value, retrieval.value), low, high)


def _speed(known: tuple[Known, ...]) -> Estimate:
    return spread(
        lambda t, c, extra: (t + 1.0) / (c * (1.0 + extra)),
        known,
        t="tau",
        c="step cost of EAGLE2",
        extra="extra step time",
    )


def _pairs(book: Book, cell: Cell) -> list[tuple[Cell, float]]:
    cells = _block(book, cell, method=cell.method, value_name=cell.value_name)
    found = [(c, _baseline(book, c, "EAGLE2", cell.value_name)) for c in cells]
    return [(c, base.value) for c, base in found if base is not None]


def _without_pruning(book: Book) -> list[Forecast]:
    """The ablation that fuses everything retrieved: what the independent halves describe most literally."""
    found = []
    place = {"table": "Table 2", "target": "Qwen2.5-14B-Instruct", "dataset": "HumanEval", "temperature": "1"}
    draft = book.need(**place, method="EAGLE2", value_name="tau")
    retrieval = book.need(**place, method="REST", value_name="tau")
    speed = book.need(**place, method="EAGLE2", value_name="SR")
    tau = _tau(draft, retrieval)
    cost = fitted("step cost of EAGLE2", step_cost(draft.value, speed.value))
    for cell in book.sound(table="Table 3"):
        if "w/o p" not in cell.method:
            continue
        if cell.value_name == "tau":
            estimate = Estimate(tau.value, tau.low, tau.high)
            law, halves = "rasd.fuse, independent halves", (draft, retrieval)
            found.append(Forecast(cell, law, estimate, (tau,), halves, unsimulated=NO_TREES))
        else:
            known = (tau, cost, EXTRA)
            used = (draft, retrieval, speed)
            law = "rasd.metrics + rasd.fuse"
            found.append(Forecast(cell, law, _speed(known), known, used, unsimulated=NO_TREES))
    return found


def _by_datastore(book: Book) -> list[Forecast]:
    """SR by size of the datastore from the tau beside it and EAGLE2's step cost."""
    base = {name: book.need(table="Table 4", method="EAGLE2", value_name=name) for name in ("SR", "tau")}
    cost = fitted("step cost of EAGLE2", step_cost(base["tau"].value, base["SR"].value))
    speeds = book.sound(table="Table 4", method="RASD(REST)", value_name="SR")
    found = []
    for cell in speeds:
        if cell.param == "datastore=27 GB":
            continue  # restates Table 2
        tokens = book.need(table="Table 4", param=cell.param, value_name="tau")
        known = (given("tau", tokens.value, tokens.rounding), cost, EXTRA)
        guess = naive_guess(cell, base["SR"].value, [(c, base["SR"].value) for c in speeds])
        used = (tokens, *base.values())
        law = "rasd.metrics: (tau + 1) / step cost"
        speed = _speed(known)
        found.append(Forecast(cell, law, speed, known, used, naive=guess, unsimulated=NO_TREES))
    return found
