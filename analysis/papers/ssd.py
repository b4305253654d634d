"""What SSD's tables determine: engine sweeps by the SD law, SSD's own speed as a band, A.3.1 exactly.

A sweep's column (engine, topk) has two unknowns, acceptance and draft cost, fitted for every row on the
other rows; plain decoding of the same engine is not printed, the paper's own is taken within 10 %.  For
SSD itself the AR and SD rows fix (1 + T_SD) / E_SD, and T_SD <= 6 / speedup - 1 since no round of K = 5
yields more than 6 tokens; hit rate, lookahead and T_p are nowhere printed.
"""

from __future__ import annotations

import numpy as np

from analysis.papers.cells import Book, Cell
from analysis.papers.forecast import (
    Coin,
    Estimate,
    Forecast,
    Known,
    Reasons,
    acceptance_of_tokens,
    assumed,
    chain,
    fitted,
    given,
    naive_guess,
    spread,
)
from policies.laws.law import FloatArray
from policies.laws.sampling import acceptance, hit_given_rejection, rescale, residual
from policies.laws.ssd import expected_tokens, sd_speedup, ssd_speedup

B3 = "B.3 numerical results (unnumbered)"
LLAMA, QWEN = "Llama-3.1-70B-Instruct", "Qwen3-32B"
SD, SSD = "SD (own engine)", "SSD (Saguaro)"
DATASETS = ("HumanEval", "Ultrafeedback", "Alpaca", "GSM8k")
HIT = assumed("p_hit", 0.8, 0.6, 0.95)
ENGINE = (1.0, 0.9, 1.1)
"""Plain speed of another engine over the paper's own: used, and the extremes."""
ONE_GUESS = (("fanout", (1,)), ("backup", "primary"))
"""A cache of one guess per position, which holds the outcome with p_hit."""
SWEEPS = {
    ("Table 1", "SGLang EAGLE-3"): "steps",
    ("Table 1", "SGLang standalone SD"): "steps",
    ("Table 2", "vLLM EAGLE-3"): "K",
}
REASONS: Reasons = (
    ({"value_name": ("speedup_vs_SD", "speedup_vs_AR")}, "ratio of two cells of the same table, or prose"),
    ({"dataset": "Average"}, "average of the rows above it"),
    ({"method": "AR"}, "the same plain speed, printed again"),
    ({"value_name": "tok_s"}, "two rows for two unknowns: nothing is left to predict"),
    ({"table": "Figure 8 caption"}, "an illustration, not a result"),
    ({}, "describes the setup, or restates the tables in prose"),
)


def forecasts(book: Book) -> list[Forecast]:
    """Every cell that its paper's other cells say something about."""
    return [*_own_engine(book), *_sweeps(book), *construction(book)]


def _sweeps(book: Book) -> list[Forecast]:
    found = []
    for (table, method), knob in SWEEPS.items():
        cells = book.sound(table=table, method=method, value_name="tok_s")
        for topk in dict.fromkeys(cell.knobs.get("topk", "") for cell in cells):
            column = [cell for cell in cells if cell.knobs.get("topk", "") == topk]
            found += _column(book, column, knob)
    return found


def _column(book: Book, column: list[Cell], knob: str) -> list[Forecast]:
    """Every row of a column, from its other rows: as many as there are unknowns at least."""
    if len(column) < 3:
        return []
    plain = _plain(book, LLAMA)
    return [_row_of_column(cell, column, knob, plain) for cell in column]


def _row_of_column(cell: Cell, column: list[Cell], knob: str, plain: Cell) -> Forecast:
    others = [other for other in column if other.row != cell.row]
    rates = [share * plain.value for share in ENGINE]
    fits = [_fit(others, knob, rate) for rate in rates]
    lookahead = int(cell.knobs[knob])
    # Acceptance and cost go with the assumed plain speed: the interval follows the fits, not their box.
    speeds = [rate * sd_speedup(a, lookahead, c) for rate, (a, c) in zip(rates, fits, strict=True)]
    (accepted, accepted_low, accepted_high), (cost, cost_low, cost_high) = (
        (fits[0][i], min(f[i] for f in fits), max(f[i] for f in fits)) for i in (0, 1)
    )
    scatter = _scatter(others, knob, rates[0], fits[0])
    known = (
        assumed("engine's AR", rates[0], min(rates), max(rates)),
        fitted("a", accepted, accepted_low, accepted_high),
        fitted("c", cost, cost_low, cost_high),
        fitted("scatter", 0.0, -scatter, scatter),
    )
    return Forecast(
        cell,
        "double.thm1: E(a, K) / (1 + c K)",
        Estimate(speeds[0], min(speeds) * (1.0 - scatter), max(speeds) * (1.0 + scatter)),
        known,
        (plain, *others),
        naive=naive_guess(cell, plain.value, [(other, plain.value) for other in column]),
        coin=Coin("sd", accepted, lookahead, cost, factor=rates[0]),
    )


def _fit(rows: list[Cell], knob: str, rate: float) -> tuple[float, float]:
    return chain([(int(row.knobs[knob]), row.value / rate) for row in rows])


def _scatter(rows: list[Cell], knob: str, rate: float, law: tuple[float, float]) -> float:
    """Worst relative residual of the rows that were fitted: what the law itself leaves open."""
    accepted, cost = law
    return max(abs(rate * sd_speedup(accepted, int(r.knobs[knob]), cost) / r.value - 1.0) for r in rows)


def _plain(book: Book, target: str) -> Cell:
    return book.need(table=B3, target=target, method="AR", dataset="HumanEval", value_name="tok_s")


def _own_engine(book: Book) -> list[Forecast]:
    depth = book.need(table="prose: B.2", value_name="K")
    rows = {
        cell: book.need(table=B3, target=cell.target, method=SD, dataset=cell.dataset)
        for target in (LLAMA, QWEN)
        for cell in book.all(table=B3, target=target, method=SSD, value_name="tok_s", dataset=DATASETS)
    }
    pairs = [(cell, sd.value) for cell, sd in rows.items()]
    return [_ssd_cell(book, cell, sd, depth, pairs) for cell, sd in rows.items()]


def _ssd_cell(book: Book, cell: Cell, sd: Cell, depth: Cell, pairs: list[tuple[Cell, float]]) -> Forecast:
    plain = _plain(book, cell.target)
    draft, sources = _draft_time(book, cell.target, int(depth.value))
    speedup = sd.value / plain.value
    lookahead = int(depth.value)
    known = (
        given("SD / AR", speedup),
        given("K of SD", lookahead),
        draft,
        HIT,
        assumed("K of SSD", lookahead, lookahead, 8),
    )

    def law(draft_s: float, hit: float, deep: float) -> float:
        accepted = acceptance_of_tokens(speedup * (1.0 + draft_s), lookahead)
        busy = draft_s * deep / lookahead  # the primary takes as long as SD's draft does per token
        tokens = expected_tokens(accepted, int(deep))
        return ssd_speedup(hit, tokens, tokens, busy, busy)

    estimate = spread(law, known, draft_s="T_SD", hit="p_hit", deep="K of SSD")
    accepted = acceptance_of_tokens(speedup * (1.0 + draft.value), lookahead)
    return Forecast(
        cell,
        "ssd.thm7, backup = primary (ssd.cor8)",
        estimate.scaled(plain.value),
        known,
        tuple({c.row: c for c in (plain, sd, depth, *sources)}.values()),
        naive=naive_guess(cell, sd.value, pairs),
        coin=Coin("saguaro", accepted, lookahead, draft.value / lookahead, HIT.value, plain.value, ONE_GUESS),
    )


def _draft_time(book: Book, target: str, lookahead: int) -> tuple[Known, tuple[Cell, ...]]:
    """T_SD of a pair: at most what K + 1 tokens a round allow, at most a target step (T_p < 1)."""
    plain = _plain(book, target)
    sds = [book.need(table=B3, target=target, method=SD, dataset=d) for d in DATASETS]
    most = min(1.0, *((lookahead + 1) * plain.value / sd.value - 1.0 for sd in sds))
    if target == QWEN:  # no engine sweep of this pair is printed
        return assumed("T_SD", 0.5 * (0.1 + most), 0.1, most), tuple(sds)
    column = book.sound(table="Table 1", method="SGLang standalone SD", value_name="tok_s")
    column = [c for c in column if c.knobs["topk"] == "1"]
    # SGLang's draft step, of the same two models; its plain speed decides how long.
    least = lookahead * min(_fit(column, "steps", share * plain.value)[1] for share in ENGINE)
    return assumed("T_SD", 0.5 * (least + most), least, most), (*sds, *column)


TABLE = "Construction 1 (A.3.1)"
NO_TIME = "follows from four printed numbers; no time passes"
_NOISE = 1e-12
"""Printed zeros are exact; what rounding leaves of them is not a residual."""


def construction(book: Book) -> list[Forecast]:
    """Rescaled draft, acceptance, residuals and hit rates of the construction."""
    inputs = [c for c in book.all(table=TABLE) if c.value_name in ("p_target", "p_draft", "C", "F")]
    target, draft = _law(inputs, "p_target"), _law(inputs, "p_draft")
    scale = next(c.value for c in inputs if c.value_name == "C")
    top = int(next(c.value for c in inputs if c.value_name == "F"))
    known = (given("p_target, p_draft", 4), given("F", top), given("C", scale))
    found = []
    for cell in book.all(table=TABLE):
        if cell in inputs:
            continue
        law, value = _predict(cell, target, draft, top, scale)
        estimate = Estimate(value, value, value)
        found.append(Forecast(cell, law, estimate, known, tuple(inputs), unsimulated=NO_TIME))
    return found


def _law(cells: list[Cell], name: str) -> FloatArray:
    return np.array([cell.value for cell in cells if cell.value_name == name])


def _predict(cell: Cell, target: FloatArray, draft: FloatArray, top: int, scale: float) -> tuple[str, float]:
    used = scale if cell.method == "p'_d" else 1.0
    drawn = rescale(draft, top, used)
    token = int(cell.knobs.get("token", "1")) - 1
    match cell.value_name:
        case "p_draft_saguaro":
            return "ssd.def14", float(rescale(draft, top, scale)[token])
        case "acceptance":
            return "ssd.thm1", acceptance(target, drawn)
        case "residual":
            value = float(residual(target, drawn)[token])
            return "ssd.sd", 0.0 if value < _NOISE else value
        case _:
            return "ssd.thm19", 100.0 * hit_given_rejection(target, draft, top, used)
