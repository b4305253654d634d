"""What DuoDecoding's tables determine: DuoDec from SpS' speedup, its sweeps from their first row.

SpS processes 5 tokens per iteration, so drafts 4; its draft's cost is not printed, and with it the acceptance
stays open: T_SD <= 5 / speedup - 1, the best data set deciding.  DuoDec is a pre/post-verifying pipeline
with the printed budget of 24 tokens; several sequences raise the chance of its first token.  Methods without
a draft follow from the other target's row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis.papers.cells import Paper, PaperCell
from analysis.papers.forecast import (
    WITHOUT_A_DRAFT,
    Coin,
    Forecast,
    Quantities,
    acceptance_of_pearl,
    acceptance_of_tokens,
    assumed,
    by_other_target,
    fitted,
    forecast,
    given,
    naive_guess,
    printed,
)
from policies.laws.double import pearl_speedup
from policies.laws.duo import ttft_ratio

LLAMA = "Llama-2-7B"
TARGETS = (LLAMA, "Vicuna-7B-v1.5")
TASKS = ("MT-Bench", "Translation", "Summarization", "QA", "Math", "RAG", "Code")
BUDGETS = {"1 of 5": 22, "2 of 5": 23, "4 of 5": 25, "5 of 5": 26}
BUDGET = 24
EXACT = "double.thm3, exact, at gamma = c"
NO_PREFILL = "the time of a prefill is not printed"


def forecasts(paper: Paper) -> list[Forecast]:
    """Every cell that its paper's other cells say something about."""
    return [
        *(_duo(paper, target, task) for target in TARGETS for task in TASKS),
        *(_one_sequence(paper, cell) for cell in paper.sound(table="Table 2", param="num_seq=1")),
        *(
            _sequences(paper, cell)
            for param in ("num_seq=2", "num_seq=3")
            for cell in paper.sound(table="Table 2", param=param)
        ),
        *(
            _budget(paper, cell, budget)
            for row, budget in BUDGETS.items()
            for cell in paper.sound(table="Table 3", param=f"budget_row={row}")
        ),
        _first_token(paper),
        *(
            by_other_target(paper, cell, TARGETS)
            for cell in paper.sound(table="Table 1", method=WITHOUT_A_DRAFT, value_name="speedup")
            if cell.dataset in TASKS
        ),
    ]


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
    """The policy whose draft takes 1/24 of a step per token, with `count` sequences in a budget of tokens.

    `gain` is the probability that the further sequences hold what the first one missed, `plain` plain tokens
    per second where the cell is no speedup.
    """
    knobs = (("sequences", str(count)),)
    return Coin("duo", acceptance, budget, 1.0 / BUDGET, hit=gain, factor=plain, knobs=knobs)


def plain_rate(paper: Paper, task: str) -> tuple[float, tuple[PaperCell, PaperCell]]:
    """Plain tok/s of a column: its surviving TPS over the speedup beside it."""
    place = {"table": "Table 1", "target": LLAMA, "method": "DuoDec", "dataset": task}
    rate, speed = paper.need(**place, value_name="tok_s"), paper.need(**place, value_name="speedup")
    return rate.value / speed.value, (rate, speed)


def _sps(paper: Paper, target: str, task: str) -> PaperCell:
    return paper.need(table="Table 1", target=target, method="SpS", dataset=task, value_name="speedup")


def _from_sps(
    paper: Paper, cell: PaperCell, target: str, task: str, *, one: bool = False, naive: float | None = None
) -> Forecast:
    """DuoDec by the acceptance that SpS' speedup and the assumed time of its draft make.

    `one`: with a single sequence, in tokens per second, and not as a speedup with several.
    """
    speeds = [_sps(paper, target, t) for t in TASKS]
    mine = speeds[TASKS.index(task)]
    width = paper.need(table="prose: sec 4.4.2 / Fig 4", method="SpS")
    budget = paper.need(table="prose: sec 4.4.1", value_name="draft_budget")
    most = min(1.0, *(width.value / cell.value - 1.0 for cell in speeds))
    known = {
        "speed": printed("S of SpS", mine),
        "width": given("tokens per SpS step", width.value),
        "budget": given("budget", budget.value),
        "draft": assumed("T_SD", 0.5 * (0.1 + most), 0.1, most),
        "gain": assumed("gain of first token", 0.0, 0.0, 0.0 if one else 0.5),
    }
    plain, unit = plain_rate(paper, task) if one else (1.0, ())
    if one:
        known["plain"] = given("AR tok/s", plain)

    def acceptance(speed: float, draft: float) -> float:
        return acceptance_of_tokens(speed * (1.0 + draft), int(width.value) - 1)

    def law(speed: float, draft: float, gain: float) -> float:
        accepted = acceptance(speed, draft)
        return duo_speedup(accepted, int(budget.value), accepted + gain * (1.0 - accepted))

    coin = duo_coin(acceptance(mine.value, known["draft"].value), int(budget.value), plain=plain)
    used = (*speeds, width, budget, *unit)
    return forecast(cell, EXACT, law, known, used, unit=plain, naive=naive, coin=coin)


def _duo(paper: Paper, target: str, task: str) -> Forecast:
    place = {"table": "Table 1", "target": target, "value_name": "speedup", "method": "DuoDec"}
    cell = paper.need(**place, dataset=task)
    draft = "Llama-68m" if target == LLAMA else ""
    guess = naive_guess(
        cell, paper.sound(**place, dataset=TASKS), lambda c: paper.beside(c, method="SpS", draft=draft)
    )
    return _from_sps(paper, cell, target, task, naive=guess)


def _one_sequence(paper: Paper, cell: PaperCell) -> Forecast:
    """One sequence: PEARL's own pipeline, from SpS."""

    def base(c: PaperCell) -> float:
        return _sps(paper, LLAMA, c.dataset).value * plain_rate(paper, c.dataset)[0]

    guess = naive_guess(cell, paper.sound(table="Table 2", param="num_seq=1"), base)
    return _from_sps(paper, cell, LLAMA, cell.dataset, one=True, naive=guess)


def _from_one(
    paper: Paper, cell: PaperCell, name: str, law: Callable[..., float], known: Quantities, **drafted: Any
) -> Forecast:
    """A rate by its ratio to that of one sequence, whose rate determines the acceptance a.

    `drafted` are arguments of the coin.
    """
    ones = {c.dataset: c for c in paper.sound(table="Table 2", param="num_seq=1", value_name="tok_s")}
    one = ones[cell.dataset]
    plain, unit = plain_rate(paper, cell.dataset)
    accepted = fitted("a", acceptance_of_pearl(one.value / plain, BUDGET, float(BUDGET)))
    row = paper.sound(table=cell.table, param=cell.param, value_name="tok_s")
    guess = naive_guess(cell, row, lambda c: ones[c.dataset])
    coin = duo_coin(accepted.value, plain=plain, **drafted)
    known = {"a": accepted, **known}
    return forecast(cell, name, law, known, (one, *unit), unit=one.value, naive=guess, coin=coin)


def _sequences(paper: Paper, cell: PaperCell) -> Forecast:
    """Several sequences share the budget; the further ones cover up to half of what the first one missed."""
    count = int(cell.knobs["num_seq"])
    each = BUDGET // count
    gain = assumed("gain of first token", 0.25, 0.0, 0.5)

    def law(a: float, gain: float) -> float:
        return duo_speedup(a, each, a + gain * (1.0 - a)) / duo_speedup(a, BUDGET)

    known = {"each": given("tokens per sequence", each), "gain": gain}
    coin = {"budget": BUDGET, "count": count, "gain": gain.value}
    return _from_one(paper, cell, "double.thm3 with n first tokens", law, known, **coin)


def _budget(paper: Paper, cell: PaperCell, budget: int) -> Forecast:
    """A budget off the balance of c = 24: slower rounds above it, fewer tokens below."""
    known = {
        "c": assumed("c", BUDGET, BUDGET - 0.5, BUDGET + 0.5),  # the budget is c, rounded
        "budget": assumed("budget", budget, budget, budget),
    }

    def law(a: float, c: float) -> float:
        return pearl_speedup(a, budget, c) / pearl_speedup(a, BUDGET, c)

    return _from_one(paper, cell, "duo.budget", law, known, budget=budget)


def _first_token(paper: Paper) -> Forecast:
    """TTFT over SpS' from both ratios to plain decoding."""
    table = "prose: sec 4.3 / Fig 3"
    cell = paper.need(table=table, value_name="TTFT_ratio_vs_SD")
    known, used = {}, []
    for name, method in (("duo", "DuoDec"), ("sps", "SpS")):
        low, high = paper.sound(table=table, value_name="TTFT_ratio_vs_AR", method=method)
        half = abs(high.value - low.value) / 2
        known[name] = given(f"TTFT of {method}", (low.value + high.value) / 2, half)
        used += [low, high]
    law = "duo.ttft"
    return forecast(
        cell, law, lambda duo, sps: 100.0 * ttft_ratio(duo, sps), known, used, unsimulated=NO_PREFILL
    )
