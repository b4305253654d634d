"""What DOUBLE's tables determine: speedups of baselines from their M and C, DOUBLE's from PEARL's M.

Acceptance is withheld, but an iid one with run length M is M / (M + 1).  DOUBLE's own rows are predicted
from PEARL's M, the pair's C, and 1 + AMT tokens per draft step, of which the paper says only that AMT
exceeds 0.9 for one pair.  The appendix tables give speed from vanilla SD's rows, and accuracy from
losslessness.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from analysis.papers.cells import Paper, PaperCell
from analysis.papers.forecast import (
    Base,
    Coin,
    Forecast,
    acceptance_of_tokens,
    assumed,
    by_step_cost,
    fitted,
    forecast,
    given,
    naive_guess,
    printed,
)
from policies.laws.double import pearl_speedup, psd_speedup_printed

TABLE = "Table 1"
DATASETS = ("HumanEval", "GSM8K", "CNN/DM", "Alpaca", "MT-Bench")
AMT = assumed("AMT", 0.9, 0.5, 1.5)
NO_INPUTS = "only tokens per step are printed: neither a draft's time nor an acceptance"
NO_METRIC = (
    "a run that counts what the target retrieves is no metric of the simulator; the speed beside it is"
)
NO_ANSWERS = "an accuracy is of texts, and coin tosses write none"
OWN = ("Sps", "PEARL", "DOUBLE")
"""Methods with a law of their own; of the others only tokens per step are known."""
SOURCES = (("Table 8", "Sps", "DOUBLE"), ("Table 11", "SpS (Vanilla SD)", "DOUBLE (Ideal)"))
SAMPLING_NOISE = 0.02
"""Assumed, above temperature 0: one standard error of an accuracy near 0.9 on 200 prompts."""


def forecasts(paper: Paper) -> list[Forecast]:
    """Every cell that its paper's other cells say something about."""
    predicted = []
    for ratio in paper.all(table=TABLE, value_name="C"):
        block = {"table": TABLE, "target": ratio.target, "dataset": DATASETS}
        for cell in paper.sound(**block, value_name="speedup"):
            if cell.method not in OWN:
                law = "M / step cost"
                predicted += by_step_cost(paper, cell, "M", law=law, unsimulated=NO_INPUTS)
        for dataset in DATASETS:
            place = {"table": TABLE, "target": ratio.target, "dataset": dataset}
            for predict in (_sps, _pearl, _double, _run_length):
                predicted.append(predict(paper, ratio, place))
    return [*predicted, *_from_vanilla_sd(paper), *_lossless(paper)]


def _cell(paper: Paper, place: dict[str, str], method: str, name: str) -> PaperCell:
    """A cell, flagged or not: what is predicted may be flagged, what is used may not."""
    return paper.all(**place, method=method, value_name=name)[0]


def _sps(paper: Paper, ratio: PaperCell, place: dict[str, str]) -> Forecast:
    """S = M C / (gamma + C); gamma is not printed and has to be M - 1 at least."""
    tokens = _cell(paper, place, "Sps", "M")
    least = math.ceil(tokens.value) - 1
    gamma = max(math.ceil(ratio.value), least)
    known = {
        "m": printed("M", tokens),
        "c": printed("C", ratio),
        "depth": assumed("gamma", gamma, least, gamma + 3),
        "more": assumed("bonus not in M", 0.0, 0.0, 1.0),
    }

    def law(m: float, c: float, depth: float, more: float) -> float:
        return (m + more) * c / (max(depth, m + more - 1.0) + c)

    cell = _cell(paper, place, "Sps", "speedup")
    guess = _naive(paper, cell, place, lambda _: 1.0)
    coin = Coin("sd", acceptance_of_tokens(tokens.value, gamma), gamma, 1.0 / ratio.value)
    name = "double.eq11, corrected"
    return forecast(cell, name, law, known, (ratio, tokens), naive=guess, coin=coin)


def _naive(paper: Paper, cell: PaperCell, place: dict[str, str], base: Base) -> float | None:
    """The naive guess from the other data sets of the table."""
    rows = paper.sound(**place | {"dataset": DATASETS}, method=cell.method, value_name=cell.value_name)
    return naive_guess(cell, rows, base)


def _pearl(paper: Paper, ratio: PaperCell, place: dict[str, str]) -> Forecast:
    """PEARL's exact rate at a = M / (M + 1), between M counting the last token and no time lost at all."""
    cell, run = _cell(paper, place, "PEARL", "speedup"), _cell(paper, place, "PEARL", "M")
    gamma = math.ceil(ratio.value)
    known = {
        "m": printed("M", run),
        "c": printed("C", ratio),
        "depth": given("gamma = ceil C", gamma),
        "more": assumed("last token in M", 0.0, 0.0, 1.0),
    }

    def law(m: float, c: float, more: float) -> float:
        return pearl_speedup((m - more) / (m - more + 1.0), gamma, c)

    accepted = run.value / (run.value + 1.0)
    more: dict[str, Any] = {
        "naive": _naive(paper, cell, place, lambda c: paper.beside(c, method="Sps")),
        "printed": psd_speedup_printed(accepted, gamma, ratio.value),
        "coin": Coin("pearl", accepted, gamma, 1.0 / ratio.value),
    }
    predicted = forecast(cell, "double.thm3, exact", law, known, (ratio, run), **more)
    best = (run.value + 1.0) * known["c"].high / (run.value + known["c"].high)
    high = max(predicted.estimate.high, best)
    return replace(predicted, estimate=replace(predicted.estimate, high=high))


def _double(paper: Paper, ratio: PaperCell, place: dict[str, str]) -> Forecast:
    """PEARL's rate with a draft (1 + AMT) times as fast, at the acceptance of PEARL's run."""
    cell, run = _cell(paper, place, "DOUBLE", "speedup"), _cell(paper, place, "PEARL", "M")
    accepted = run.value / (run.value + 1.0)
    known = {
        "acceptance": fitted("a", accepted, (run.value - 1.0) / run.value, accepted),
        "ratio": printed("C", ratio),
        "matched": AMT,
    }
    quick = ratio.value * (1.0 + AMT.value)
    more: dict[str, Any] = {
        "naive": _naive(paper, cell, place, lambda c: paper.beside(c, method="Sps")),
        "printed": psd_speedup_printed(accepted, math.ceil(quick), quick),
        "coin": double_coin(accepted, ratio.value, AMT.value),
    }
    return forecast(cell, "double.eq7 with the exact rate", double_speedup, known, (ratio, run), **more)


def double_speedup(acceptance: float, ratio: float, matched: float) -> float:
    """DOUBLE's speedup by law: a pipeline whose draft step yields 1 + AMT tokens."""
    quick = ratio * (1.0 + matched)
    return pearl_speedup(acceptance, math.ceil(quick), quick)


def double_coin(acceptance: float, ratio: float, matched: float, temperature: float = 0.0) -> Coin:
    """DOUBLE's policy: gamma = ceil C retrieval forwards, AMT of the draft's for the target's, too."""
    knobs = (("matched_length", matched), ("temperature", temperature))
    return Coin("double", acceptance, math.ceil(ratio), 1.0 / ratio, knobs=knobs)


def _run_length(paper: Paper, _: PaperCell, place: dict[str, str]) -> Forecast:
    """DOUBLE's M: PEARL's, and 1 + AMT further tokens that the target's retrieval adds to a run."""
    cell, run = _cell(paper, place, "DOUBLE", "M"), _cell(paper, place, "PEARL", "M")
    known = {
        "m": printed("M of PEARL", run),
        "matched": AMT,
        "share": assumed("share of runs extended", 1.0, 0.0, 1.0),
    }

    def law(m: float, matched: float, share: float) -> float:
        return m + share * (1.0 + matched)

    guess = _naive(paper, cell, place, lambda c: paper.beside(c, method="PEARL"))
    return forecast(cell, "double.eq6", law, known, (run,), naive=guess, unsimulated=NO_METRIC)


def _from_vanilla_sd(paper: Paper) -> list[Forecast]:
    """DOUBLE's speedup from that of vanilla SD on the same text, wherever M is not printed."""
    predicted = []
    for table, base, method in SOURCES:
        cells = paper.sound(table=table, method=method, value_name="speedup")
        rows = {
            cell: sd
            for cell in cells
            if not cell.dataset.endswith("Avg") and (sd := paper.beside(cell, method=base)) is not None
        }
        for cell, sd in rows.items():
            if table == "Table 8" and cell.temperature == "0":
                continue  # restates Table 1, where it is predicted
            guess = naive_guess(cell, rows, rows.get)
            predicted.append(_from_sd(paper, cell, sd, guess))
    return predicted


def _from_sd(paper: Paper, cell: PaperCell, sd: PaperCell, guess: float | None) -> Forecast:
    ratio = paper.need(table=TABLE, target=cell.target, value_name="C")
    gamma = math.ceil(ratio.value)
    known = {
        "speed": printed("S of SD", sd),
        "c": printed("C", ratio),
        "depth": assumed("gamma of SD", gamma, gamma, gamma + 3),
        "matched": AMT,
    }

    def acceptance(speed: float, c: float, depth: float) -> float:
        return acceptance_of_tokens(speed * (depth + c) / c, int(depth))

    def law(speed: float, c: float, depth: float, matched: float) -> float:
        return double_speedup(acceptance(speed, c, depth), c, matched)

    accepted = acceptance(sd.value, ratio.value, gamma)
    coin = double_coin(accepted, ratio.value, AMT.value, float(cell.temperature))
    name = "double.eq7 with the exact rate, a from SD"
    return forecast(cell, name, law, known, (ratio, sd), naive=guess, coin=coin)


def _lossless(paper: Paper) -> list[Forecast]:
    """Accuracy of a lossless method is plain decoding's, but for rounding and, when sampled, luck."""
    cells = paper.sound(table=("Table 7", "Table 8"), value_name="accuracy_EM", method=("Sps", "DOUBLE"))
    rows = {c: plain for c in cells if (plain := paper.beside(c, method="Vanilla")) is not None}

    def law(accuracy: float, luck: float) -> float:
        return accuracy + luck

    predicted = []
    for cell, plain in rows.items():
        noise = 0.0 if cell.temperature == "0" else SAMPLING_NOISE
        known = {"accuracy": printed("accuracy of AR", plain), "luck": assumed("luck", 0.0, -noise, noise)}
        guess = naive_guess(
            cell, [c for c in rows if (c.method, c.table) == (cell.method, cell.table)], rows.get
        )
        more: dict[str, Any] = {"naive": guess, "unsimulated": NO_ANSWERS}
        predicted.append(forecast(cell, "ssd.sd: lossless", law, known, (plain,), **more))
    return predicted
