"""What SSD's tables determine: engine sweeps by the SD law, SSD's own speed as a band, A.3.1 exactly.

A sweep's column (engine, topk) has two unknowns, acceptance and draft cost, fitted for every row on the
other rows; plain decoding of the same engine is not printed, the paper's own is taken within 10 %.  For
SSD itself the AR and SD rows fix (1 + T_SD) / E_SD, and T_SD <= 6 / speedup - 1 since no round of K = 5
yields more than 6 tokens; hit rate, lookahead and T_p are nowhere printed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from analysis.papers.cells import Paper, PaperCell
from analysis.papers.forecast import (
    Band,
    Coin,
    Forecast,
    Known,
    acceptance_of_tokens,
    assumed,
    chain,
    fitted,
    forecast,
    given,
    naive_guess,
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


def forecasts(paper: Paper) -> list[Forecast]:
    """Every cell that its paper's other cells say something about."""
    return [*_own_engine(paper), *_sweeps(paper), *_construction(paper)]


def plain_cell(paper: Paper, target: str) -> PaperCell:
    """Plain tokens/s of a target in the paper's own engine."""
    return paper.need(table=B3, target=target, method="AR", dataset="HumanEval", value_name="tok_s")


def _sweeps(paper: Paper) -> list[Forecast]:
    """Every row of a column from its other rows, of which there are as many as unknowns at least."""
    predicted = []
    plain = plain_cell(paper, LLAMA)
    for (table, method), knob in SWEEPS.items():
        cells = paper.sound(table=table, method=method, value_name="tok_s")
        for topk in dict.fromkeys(cell.knobs.get("topk", "") for cell in cells):
            column = [cell for cell in cells if cell.knobs.get("topk", "") == topk]
            if len(column) > 2:
                predicted += [_row_of_column(cell, column, knob, plain) for cell in column]
    return predicted


def _row_of_column(cell: PaperCell, column: list[PaperCell], knob: str, plain: PaperCell) -> Forecast:
    others = [other for other in column if other.row != cell.row]
    rates = [share * plain.value for share in ENGINE]
    fits = [_fit(others, knob, rate) for rate in rates]
    lookahead = int(cell.knobs[knob])
    # Acceptance and cost go with the assumed plain speed: the interval follows the fits, not their box.
    speeds = [rate * sd_speedup(a, lookahead, c) for rate, (a, c) in zip(rates, fits, strict=True)]
    accepted, cost = fits[0]
    # What the law itself leaves open: the worst relative residual of the rows that were fitted.
    scatter = max(
        abs(rates[0] * sd_speedup(accepted, int(r.knobs[knob]), cost) / r.value - 1.0) for r in others
    )
    known = (
        assumed("engine's AR", rates[0], min(rates), max(rates)),
        fitted("a", accepted, min(a for a, _ in fits), max(a for a, _ in fits)),
        fitted("c", cost, min(c for _, c in fits), max(c for _, c in fits)),
        fitted("scatter", 0.0, -scatter, scatter),
    )
    estimate = Band(speeds[0], min(speeds) * (1.0 - scatter), max(speeds) * (1.0 + scatter))
    guess = naive_guess(cell, column, lambda _: plain)
    coin = Coin("sd", accepted, lookahead, cost, factor=rates[0])
    law = "double.thm1: E(a, K) / (1 + c K)"
    return Forecast(cell, law, estimate, known, (plain, *others), naive=guess, coin=coin)


def _fit(rows: list[PaperCell], knob: str, rate: float) -> tuple[float, float]:
    return chain([(int(row.knobs[knob]), row.value / rate) for row in rows])


def _own_engine(paper: Paper) -> list[Forecast]:
    depth = paper.need(table="prose: B.2", value_name="K")
    rows = {
        cell: paper.need(table=B3, target=cell.target, method=SD, dataset=cell.dataset)
        for target in (LLAMA, QWEN)
        for cell in paper.all(table=B3, target=target, method=SSD, value_name="tok_s", dataset=DATASETS)
    }
    return [_ssd_cell(paper, cell, rows, depth) for cell in rows]


def _ssd_cell(
    paper: Paper, cell: PaperCell, rows: Mapping[PaperCell, PaperCell], depth: PaperCell
) -> Forecast:
    plain, sd = plain_cell(paper, cell.target), rows[cell]
    lookahead = int(depth.value)
    draft, sources = _draft_time(paper, cell.target, lookahead)
    speedup = sd.value / plain.value
    known = {
        "speedup": given("SD / AR", speedup),
        "lookahead": given("K of SD", lookahead),
        "draft": draft,
        "hit": HIT,
        "deep": assumed("K of SSD", lookahead, lookahead, 8),
    }

    def law(draft: float, hit: float, deep: float) -> float:
        accepted = acceptance_of_tokens(speedup * (1.0 + draft), lookahead)
        busy = draft * deep / lookahead  # the primary takes as long as SD's draft does per token
        tokens = expected_tokens(accepted, int(deep))
        return ssd_speedup(hit, tokens, tokens, busy, busy)

    accepted = acceptance_of_tokens(speedup * (1.0 + draft.value), lookahead)
    step = draft.value / lookahead
    coin = Coin("saguaro", accepted, lookahead, step, HIT.value, plain.value, ONE_GUESS)
    used = dict.fromkeys((plain, sd, depth, *sources))
    guess, name = naive_guess(cell, rows, rows.get), "ssd.thm7, backup = primary (ssd.cor8)"
    return forecast(cell, name, law, known, used, unit=plain.value, naive=guess, coin=coin)


def _draft_time(paper: Paper, target: str, lookahead: int) -> tuple[Known, tuple[PaperCell, ...]]:
    """T_SD of a pair: at most what K + 1 tokens a round allow, at most a target step (T_p < 1)."""
    plain = plain_cell(paper, target)
    sds = [paper.need(table=B3, target=target, method=SD, dataset=d) for d in DATASETS]
    most = min(1.0, *((lookahead + 1) * plain.value / sd.value - 1.0 for sd in sds))
    if target == QWEN:  # no engine sweep of this pair is printed
        return assumed("T_SD", 0.5 * (0.1 + most), 0.1, most), tuple(sds)
    column = paper.sound(table="Table 1", method="SGLang standalone SD", value_name="tok_s")
    column = [c for c in column if c.knobs["topk"] == "1"]
    # SGLang's draft step, of the same two models; its plain speed decides how long.
    least = lookahead * min(_fit(column, "steps", share * plain.value)[1] for share in ENGINE)
    return assumed("T_SD", 0.5 * (least + most), least, most), (*sds, *column)


CONSTRUCTION = "Construction 1 (A.3.1)"
NO_TIME = "follows from four printed numbers; no time passes"
_NOISE = 1e-12
"""Printed zeros are exact; what rounding leaves of them is not a residual."""


def _construction(paper: Paper) -> list[Forecast]:
    """Rescaled draft, acceptance, residuals and hit rates of the construction."""
    cells = paper.all(table=CONSTRUCTION)
    inputs = [c for c in cells if c.value_name in ("p_target", "p_draft", "C", "F")]
    target, draft, (scale,), (top,) = (
        np.array([c.value for c in inputs if c.value_name == name])
        for name in ("p_target", "p_draft", "C", "F")
    )
    known = (given("p_target, p_draft", 4), given("F", int(top)), given("C", scale))
    predicted = []
    for cell in cells:
        if cell not in inputs:
            law, value = _constructed(cell, target, draft, int(top), float(scale))
            estimate = Band(value, value, value)
            predicted.append(Forecast(cell, law, estimate, known, tuple(inputs), unsimulated=NO_TIME))
    return predicted


def _constructed(
    cell: PaperCell, target: FloatArray, draft: FloatArray, top: int, scale: float
) -> tuple[str, float]:
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
