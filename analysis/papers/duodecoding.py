"""What DuoDecoding's tables determine: DuoDec from SpS' speedup, its sweeps from their first row.

SpS processes 5 tokens per iteration, so drafts 4; its draft's cost is not printed, and with it the acceptance
stays open: T_SD <= 5 / speedup - 1, the best data set deciding.  DuoDec is a pre/post-verifying pipeline
with the printed budget of 24 tokens; several sequences raise the chance of its first token.
"""

from __future__ import annotations

import math

from analysis.papers.cells import Book, Cell
from analysis.papers.forecast import (
    Coin,
    Estimate,
    Forecast,
    Known,
    Reasons,
    acceptance_of_pearl,
    acceptance_of_tokens,
    assumed,
    fitted,
    given,
    naive_guess,
    spread,
)
from policies.laws.double import pearl_speedup
from policies.laws.duo import ttft_ratio

LLAMA = "Llama-2-7B"
TASKS = ("MT-Bench", "Translation", "Summarization", "QA", "Math", "RAG", "Code")
BUDGETS = {"1 of 5": 22, "2 of 5": 23, "4 of 5": 25, "5 of 5": 26}
BUDGET = 24
NO_PREFILL = "the time of a prefill is not printed"
REASONS: Reasons = (
    ({"dataset": "Avg"}, "average of the columns beside it"),
    ({"table": "Table 1", "value_name": "tok_s"}, "the only TPS of its column: the unit comes from itself"),
    ({"table": "Table 1", "method": "Vanilla"}, "the unit, 1.00"),
    ({"table": "Table 1"}, "no acceptance, tokens per step or step cost of this method is printed"),
    ({"table": ("Table 2", "Table 3")}, "restates another table"),
    ({"table": "Table 4"}, "counts of one predictor: no law, marginals are sums of the cells"),
    ({"value_name": "TTFT_reduction_vs_SD"}, "restates the ratio of section 4.3"),
    ({}, "describes the setup, or restates the tables in prose"),
)


def forecasts(book: Book) -> list[Forecast]:
    """Every cell that its paper's other cells say something about."""
    found = []
    for target in (LLAMA, "Vicuna-7B-v1.5"):
        found += [_duo(book, target, task) for task in TASKS]
    static = book.sound(table="Table 2", param="num_seq=1")
    found += [_one_sequence(book, cell) for cell in static]
    found += [
        _sequences(book, cell) for n in (2, 3) for cell in book.sound(table="Table 2", param=f"num_seq={n}")
    ]
    for row in BUDGETS:
        found += [_budget(book, c, row) for c in book.sound(table="Table 3", param=f"budget_row={row}")]
    return [*found, *_first_token(book)]


def duo_speedup(acceptance: float, budget: int, first: float | None = None) -> float:
    """A pipeline with pre-verification and budget = c, whose first token passes with `first`, or with a.

    After a rejection a round verifies the first token alone; with probability h a full round follows.  For
    long drafts that is (1 + h / (1 - a)) / (1 + h) tokens per round, and PEARL's rate at h = a.
    """
    rate = pearl_speedup(acceptance, budget, float(budget))
    if first is None or acceptance >= 1.0:
        return rate
    run = 1.0 / (1.0 - acceptance)
    return rate * (1.0 + first * run) / (1.0 + first) / (run / (1.0 + acceptance))


def duo_coin(
    acceptance: float, budget: int, *, count: int = 1, gain: float = 0.0, plain: float = 1.0
) -> Coin:
    """The policy whose draft takes 1/24 of a step per token, with so many sequences in a budget.

    Args:
        acceptance: iid acceptance a.
        budget: Tokens drafted per round, in all sequences together.
        count: Sequences.
        gain: Probability that the further sequences hold what the first one missed.
        plain: Plain tokens per second, where the cell is no speedup.
    """
    knobs = (("sequences", str(count)),)
    return Coin("duo", acceptance, budget, 1.0 / BUDGET, hit=gain, factor=plain, knobs=knobs)


def _sps_quantities(book: Book, target: str, task: str) -> tuple[Cell, tuple[Known, ...], tuple[Cell, ...]]:
    speeds = [
        book.need(table="Table 1", target=target, method="SpS", dataset=t, value_name="speedup")
        for t in TASKS
    ]
    mine = next(cell for cell in speeds if cell.dataset == task)
    width = book.need(table="prose: sec 4.4.2 / Fig 4", method="SpS")
    budget = book.need(table="prose: sec 4.4.1", value_name="draft_budget")
    most = min(1.0, *(width.value / cell.value - 1.0 for cell in speeds))
    known = (
        given("S of SpS", mine.value, mine.rounding),
        given("tokens per SpS step", width.value),
        given("budget", budget.value),
        assumed("T_SD", 0.5 * (0.1 + most), 0.1, most),
        assumed("gain of first token", 0.0, 0.0, 0.5),
    )
    return mine, known, (*speeds, width, budget)


def _acceptance(known: tuple[Known, ...], speed: float, draft: float) -> float:
    """By SpS' speedup and the assumed time of its draft."""
    return acceptance_of_tokens(speed * (1.0 + draft), int(known[1].value) - 1)


def _from_sps(known: tuple[Known, ...]) -> Estimate:
    budget = int(known[2].value)

    def law(speed: float, draft: float, gain: float) -> float:
        accepted = _acceptance(known, speed, draft)
        return duo_speedup(accepted, budget, accepted + gain * (1.0 - accepted))

    return spread(law, known, speed="S of SpS", draft="T_SD", gain="gain of first token")


def _duo(book: Book, target: str, task: str) -> Forecast:
    place = {"table": "Table 1", "target": target, "value_name": "speedup"}
    cell = book.need(**place, method="DuoDec", dataset=task)
    sps, known, used = _sps_quantities(book, target, task)
    cells = book.sound(**place, method="DuoDec", dataset=TASKS)
    pairs = [(c, b.value) for c in cells if (b := book.beside(c, method="SpS", draft=_draft(c))) is not None]
    guess = naive_guess(cell, sps.value, pairs)
    coin = duo_coin(_acceptance(known, known[0].value, known[3].value), int(known[2].value))
    law, estimate = "double.thm3, exact, at gamma = c", _from_sps(known)
    return Forecast(cell, law, estimate, known, used, naive=guess, coin=coin)


def _draft(cell: Cell) -> str:
    return "Llama-68m" if cell.target == LLAMA else ""


def _plain_rate(book: Book, task: str) -> tuple[float, tuple[Cell, Cell]]:
    """Plain tok/s of a column: its surviving TPS over the speedup beside it."""
    place = {"table": "Table 1", "target": LLAMA, "method": "DuoDec", "dataset": task}
    rate, speed = book.need(**place, value_name="tok_s"), book.need(**place, value_name="speedup")
    return rate.value / speed.value, (rate, speed)


def _ratio_guess(book: Book, cell: Cell, base: Cell) -> float | None:
    """Mean ratio to one sequence of the same row's other data sets, times this data set's."""
    row = book.sound(table=cell.table, param=cell.param, value_name="tok_s")
    bases = {c.dataset: c.value for c in book.sound(table=base.table, param=base.param, value_name="tok_s")}
    return naive_guess(cell, base.value, [(c, bases[c.dataset]) for c in row])


def _one_sequence(book: Book, cell: Cell) -> Forecast:
    """One sequence: PEARL's own pipeline, from SpS."""
    _, known, used = _sps_quantities(book, LLAMA, cell.dataset)
    plain, unit = _plain_rate(book, cell.dataset)
    known = (*known[:-1], assumed("gain of first token", 0.0, 0.0, 0.0), given("AR tok/s", plain))
    row = book.sound(table="Table 2", param="num_seq=1")
    bases = {
        task: book.need(table="Table 1", target=LLAMA, method="SpS", dataset=task, value_name="speedup").value
        * _plain_rate(book, task)[0]
        for task in (c.dataset for c in row)
    }
    guess = naive_guess(cell, bases[cell.dataset], [(c, bases[c.dataset]) for c in row])
    estimate = _from_sps(known).scaled(plain)
    law, accepted = "double.thm3, exact, at gamma = c", _acceptance(known, known[0].value, known[3].value)
    coin = duo_coin(accepted, int(known[2].value), plain=plain)
    return Forecast(cell, law, estimate, known, (*used, *unit), naive=guess, coin=coin)


def _static(book: Book, task: str) -> tuple[Cell, Known, float, tuple[Cell, ...]]:
    """The one-sequence row of a data set, the acceptance that it implies, plain tok/s, the cells used."""
    base = book.need(table="Table 2", param="num_seq=1", dataset=task)
    plain, unit = _plain_rate(book, task)
    accepted = acceptance_of_pearl(base.value / plain, BUDGET, float(BUDGET))
    return base, fitted("a", accepted), plain, (base, *unit)


def _sequences(book: Book, cell: Cell) -> Forecast:
    """Several sequences share the budget; the further ones cover up to half of what the first one missed."""
    base, accepted, plain, used = _static(book, cell.dataset)
    count = int(cell.knobs["num_seq"])
    each = BUDGET // count
    known = (accepted, given("tokens per sequence", each), assumed("gain of first token", 0.25, 0.0, 0.5))

    def law(a: float, gain: float) -> float:
        return duo_speedup(a, each, a + gain * (1.0 - a)) / duo_speedup(a, BUDGET)

    estimate = spread(law, known, a="a", gain="gain of first token").scaled(base.value)
    guess = _ratio_guess(book, cell, base)
    coin = duo_coin(accepted.value, BUDGET, count=count, gain=known[2].value, plain=plain)
    return Forecast(cell, "double.thm3 with n first tokens", estimate, known, used, naive=guess, coin=coin)


def _budget(book: Book, cell: Cell, row: str) -> Forecast:
    """A budget off the balance of c = 24: slower rounds above it, fewer tokens below."""
    base, accepted, plain, used = _static(book, cell.dataset)
    budget = BUDGETS[row]
    known = (
        accepted,
        assumed("c", BUDGET, BUDGET - 0.5, BUDGET + 0.5),  # the budget is c, rounded
        assumed("budget", budget, budget, budget),
    )

    def law(a: float, c: float) -> float:
        return pearl_speedup(a, budget, c) / pearl_speedup(a, BUDGET, c)

    estimate = spread(law, known, a="a", c="c").scaled(base.value)
    guess = _ratio_guess(book, cell, base)
    coin = duo_coin(accepted.value, budget, plain=plain)
    return Forecast(cell, "duo.budget", estimate, known, used, naive=guess, coin=coin)


def _first_token(book: Book) -> list[Forecast]:
    """TTFT over SpS' from both ratios to plain decoding."""
    table = "prose: sec 4.3 / Fig 3"
    cell = book.need(table=table, value_name="TTFT_ratio_vs_SD")
    ends = {m: book.sound(table=table, value_name="TTFT_ratio_vs_AR", method=m) for m in ("DuoDec", "SpS")}
    known = tuple(
        given(f"TTFT of {m}", math.fsum(c.value for c in cells) / 2, abs(cells[1].value - cells[0].value) / 2)
        for m, cells in ends.items()
    )
    estimate = spread(
        lambda duo, sps: 100.0 * ttft_ratio(duo, sps), known, duo="TTFT of DuoDec", sps="TTFT of SpS"
    )
    used = tuple(c for cells in ends.values() for c in cells)
    return [Forecast(cell, "duo.ttft", estimate, known, used, unsimulated=NO_PREFILL)]
