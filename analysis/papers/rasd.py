"""What RASD's tables determine: tokens of a fused tree from its two halves, speed from tokens and step cost.

tau does not count the bonus token, so a step yields tau + 1 and SR = (tau + 1) / cost.  RASD's tau is that
of the longer of two independent matches, the draft's and the retrieval's, each geometric with the mean that
its baseline prints; its step costs what EAGLE2's does on the same text, or more.
"""

from __future__ import annotations

from analysis.papers.cells import Paper, PaperCell
from analysis.papers.forecast import (
    Forecast,
    Known,
    assumed,
    by_step_cost,
    fitted,
    forecast,
    given,
    naive_guess,
    printed,
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
STEP_COST = "rasd.metrics: (tau + 1) / step cost"


def forecasts(paper: Paper) -> list[Forecast]:
    """Every cell that its paper's other cells say something about."""
    predicted: list[Forecast] = []
    for cell in paper.all(table=MAIN):
        if cell.method in RETRIEVERS:
            predicted += _fused(paper, cell)
        elif cell.value_name == "SR":
            predicted += by_step_cost(paper, cell, "tau", law=STEP_COST, unsimulated=NO_TREES, own_token=1.0)
    return [*predicted, *_without_pruning(paper), *_by_datastore(paper)]


def step_cost(tau: float, speedup: float) -> float:
    """Time of a step over that of a plain one: (tau + 1) / SR."""
    return (tau + 1.0) / speedup


def fused_tau(draft: float, retrieval: float) -> float:
    """Mean of the longer of two independent geometric matches of these means.

    P(length >= n) = q^n with q = tau / (1 + tau); E[max] = tau_1 + tau_2 - q_1 q_2 / (1 - q_1 q_2).
    """
    both = draft / (1.0 + draft) * retrieval / (1.0 + retrieval)
    return draft + retrieval - both / (1.0 - both)


def _baseline(paper: Paper, cell: PaperCell, method: str, name: str) -> PaperCell | None:
    """A baseline's cell on the same text: of the same table, or where that is flagged, of the other one."""
    same = {"target": cell.target, "dataset": cell.dataset, "temperature": cell.temperature}
    here = paper.one(table=cell.table, method=method, value_name=name, **same)
    elsewhere = paper.sound(table=MAIN, method=method, value_name=name, **same)
    return here or next(iter(elsewhere), None)


def _speed(tau: float, cost: float, extra: float) -> float:
    return (tau + 1.0) / (cost * (1.0 + extra))


def _speed_known(tau: Known, draft: PaperCell, base: PaperCell) -> dict[str, Known]:
    """What gives a speed: tau, and what EAGLE2's step costs by its own tau and speedup."""
    cost = fitted("step cost of EAGLE2", step_cost(draft.value, base.value))
    return {"tau": tau, "cost": cost, "extra": EXTRA}


def _of_halves(
    cell: PaperCell,
    halves: tuple[PaperCell, PaperCell],
    base: PaperCell,
    stated: tuple[Known, ...] = (),
    naive: float | None = None,
) -> Forecast:
    """A fused tree's tau, or its speed by EAGLE2's `base`.

    tau is at least that of the longer half on its own, at most both of them after each other.
    """
    means = [half.value for half in halves]
    tau = fitted("tau", fused_tau(*means), max(means), sum(means))
    if cell.value_name == "tau":
        law = "rasd.fuse, independent halves"
        return Forecast(cell, law, tau.estimate, stated or (tau,), halves, naive, unsimulated=NO_TREES)
    known = {known.name: known for known in stated} | _speed_known(tau, halves[0], base)
    law, used = "rasd.metrics + rasd.fuse", (*halves, base)
    return forecast(cell, law, _speed, known, used, naive=naive, unsimulated=NO_TREES)


def _fused(paper: Paper, cell: PaperCell) -> list[Forecast]:
    def base(other: PaperCell) -> PaperCell | None:
        return _baseline(paper, other, "EAGLE2", other.value_name)

    draft = _baseline(paper, cell, "EAGLE2", "tau")
    retrieval = _baseline(paper, cell, RETRIEVERS[cell.method], "tau")
    beside = base(cell)
    if draft is None or retrieval is None or beside is None:
        return []
    same = {name: getattr(cell, name) for name in ("table", "target", "temperature", "method", "value_name")}
    guess = naive_guess(cell, paper.sound(**same), base)
    stated = (given("tau of EAGLE2", draft.value), given("tau of retrieval", retrieval.value))
    return [_of_halves(cell, (draft, retrieval), beside, stated, guess)]


def _without_pruning(paper: Paper) -> list[Forecast]:
    """The ablation that fuses everything retrieved: what the independent halves describe most literally."""
    place = {"table": "Table 2", "target": "Qwen2.5-14B-Instruct", "dataset": "HumanEval", "temperature": "1"}
    draft = paper.need(**place, method="EAGLE2", value_name="tau")
    retrieval = paper.need(**place, method="REST", value_name="tau")
    speed = paper.need(**place, method="EAGLE2", value_name="SR")
    cells = [cell for cell in paper.sound(table="Table 3") if "w/o p" in cell.method]
    return [_of_halves(cell, (draft, retrieval), speed) for cell in cells]


def _by_datastore(paper: Paper) -> list[Forecast]:
    """SR by size of the datastore from the tau beside it and EAGLE2's step cost."""
    base, draft = (paper.need(table="Table 4", method="EAGLE2", value_name=name) for name in ("SR", "tau"))
    speeds = paper.sound(table="Table 4", method="RASD(REST)", value_name="SR")
    predicted = []
    for cell in speeds:
        if cell.param == "datastore=27 GB":
            continue  # restates Table 2
        tokens = paper.need(table="Table 4", param=cell.param, value_name="tau")
        known = _speed_known(printed("tau", tokens), draft, base)
        guess = naive_guess(cell, speeds, lambda _: base)
        used = (tokens, base, draft)
        predicted.append(forecast(cell, STEP_COST, _speed, known, used, naive=guess, unsimulated=NO_TREES))
    return predicted
