"""What DOUBLE's tables determine: speedups of baselines from their M and C, DOUBLE's from PEARL's M.

Acceptance is withheld, but an iid one with run length M is M / (M + 1).  DOUBLE's own rows are predicted
from PEARL's M, the pair's C, and 1 + AMT tokens per draft step, of which the paper says only that AMT
exceeds 0.9 for one pair.  The appendix tables give speed from vanilla SD's rows, and accuracy from
losslessness.
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
    acceptance_of_tokens,
    assumed,
    by_step_cost,
    fitted,
    given,
    naive_guess,
    spread,
)
from policies.laws.double import pearl_speedup, psd_speedup_printed

TABLE = "Table 1"
DATASETS = ("HumanEval", "GSM8K", "CNN/DM", "Alpaca", "MT-Bench")
AMT = assumed("AMT", 0.9, 0.5, 1.5)
NO_INPUTS = "only tokens per step are printed: neither a draft's time nor an acceptance"
NO_METRIC = (
    "a run that counts what the target retrieves is no metric of the simulator; the speed beside it is"
)
OWN = ("Sps", "PEARL", "DOUBLE")
"""Methods with a law of their own; of the others only tokens per step are known."""
REASONS: Reasons = (
    ({"dataset": ("Avg", "MT-Bench/Avg")}, "average of the rows beside it"),
    ({"value_name": ("M_gain_vs_PEARL", "speedup_gain_vs_PEARL", "retention")}, "ratio of two cells"),
    ({"table": "Table 3"}, "AMT by size of the datastore is not printed; rounds 0 and 10 restate Table 1"),
    ({"table": "Table 4"}, "model shapes, not results"),
    ({"table": "Table 5"}, "neither M nor acceptance of these methods is printed; DOUBLE restates Table 1"),
    ({"table": "Table 6"}, "step times by batch size are not printed"),
    ({"table": "Table 7", "value_name": "speedup"}, "its Sps rows are flagged: no baseline to start from"),
    ({"table": "Table 8", "value_name": "speedup"}, "restates Table 1 (temperature 0), or is the unit, 1.00"),
    ({"table": "Table 9"}, "what the rejected cache adds to AMT is not printed"),
    ({"table": "Table 10"}, "profiled shares of time: an input of a simulation, not its outcome"),
    ({"table": "Table 11"}, "communication time of the pipeline-parallel placement is not printed"),
    ({"value_name": "accuracy_EM"}, "restates Table 7"),
    ({"table": TABLE}, "belongs to a flagged row"),
    ({}, "describes the setup, or restates the tables in prose"),
)


def forecasts(book: Book) -> list[Forecast]:
    """Every cell that its paper's other cells say something about."""
    found = []
    for ratio in book.all(table=TABLE, value_name="C"):
        target = ratio.target
        for method in dict.fromkeys(c.method for c in book.all(table=TABLE, target=target) if c.method):
            if method not in OWN:
                found += _by_step_cost(book, target, method)
        for dataset in DATASETS:
            place = {"table": TABLE, "target": target, "dataset": dataset}
            found.append(_sps(book, ratio, place))
            found.append(_pearl(book, ratio, place))
            found += [_double(book, ratio, place), _run_length(book, ratio, place)]
    return [*found, *from_vanilla_sd(book), *lossless(book)]


def _cell(book: Book, place: dict[str, str], method: str, name: str) -> Cell:
    """A cell, flagged or not: what is predicted may be flagged, what is used may not."""
    return book.all(**place, method=method, value_name=name)[0]


def _by_step_cost(book: Book, target: str, method: str) -> list[Forecast]:
    """S = M / cost of a step, the cost from the method's other data sets."""
    block = {"table": TABLE, "target": target, "method": method, "dataset": DATASETS}
    tokens = {c.dataset: c for c in book.sound(**block, value_name="M")}
    speeds = book.sound(**block, value_name="speedup")
    predicted = []
    for cell in speeds:
        others = [other for other in speeds if other.row != cell.row]
        law = "M / step cost"
        predicted.append(by_step_cost(cell, tokens, others, speeds, law=law, unsimulated=NO_INPUTS))
    return predicted


def _sps(book: Book, ratio: Cell, place: dict[str, str]) -> Forecast:
    """S = M C / (gamma + C); gamma is not printed and has to be M - 1 at least."""
    cell, tokens = _cell(book, place, "Sps", "speedup"), _cell(book, place, "Sps", "M")
    least = math.ceil(tokens.value) - 1
    gamma = max(math.ceil(ratio.value), least)
    known = (
        given("M", tokens.value, tokens.rounding),
        given("C", ratio.value, ratio.rounding),
        assumed("gamma", gamma, least, gamma + 3),
        assumed("bonus not in M", 0.0, 0.0, 1.0),
    )

    def law(m: float, c: float, g: float, more: float) -> float:
        return (m + more) * c / (max(g, m + more - 1.0) + c)

    estimate = spread(law, known, m="M", c="C", g="gamma", more="bonus not in M")
    accepted = acceptance_of_tokens(tokens.value, gamma)
    speeds = book.sound(**place | {"dataset": DATASETS}, method="Sps", value_name="speedup")
    return Forecast(
        cell,
        "double.eq11, corrected",
        estimate,
        known,
        (ratio, tokens),
        naive=naive_guess(cell, 1.0, [(other, 1.0) for other in speeds]),
        coin=Coin("sd", accepted, gamma, 1.0 / ratio.value),
    )


def _pearl(book: Book, ratio: Cell, place: dict[str, str]) -> Forecast:
    """PEARL's exact rate at a = M / (M + 1), between M counting the last token and no time lost at all."""
    cell, run = _cell(book, place, "PEARL", "speedup"), _cell(book, place, "PEARL", "M")
    gamma = math.ceil(ratio.value)
    known = (
        given("M", run.value, run.rounding),
        given("C", ratio.value, ratio.rounding),
        given("gamma = ceil C", gamma),
        assumed("last token in M", 0.0, 0.0, 1.0),
    )

    def law(m: float, c: float, more: float) -> float:
        return pearl_speedup((m - more) / (m - more + 1.0), gamma, c)

    estimate = spread(law, known, m="M", c="C", more="last token in M")
    best = (run.value + 1.0) * known[1].high / (run.value + known[1].high)
    accepted = run.value / (run.value + 1.0)
    return Forecast(
        cell,
        "double.thm3, exact",
        Estimate(estimate.value, estimate.low, max(estimate.high, best)),
        known,
        (ratio, run),
        naive=_over_sps(book, cell, place),
        printed=psd_speedup_printed(accepted, gamma, ratio.value),
        coin=Coin("pearl", accepted, gamma, 1.0 / ratio.value),
    )


def _over_sps(book: Book, cell: Cell, place: dict[str, str]) -> float | None:
    """The naive guess: mean ratio to Sps of the table's other rows, times this row's Sps."""
    base = book.beside(cell, method="Sps")
    if base is None:
        return None
    cells = book.sound(**place | {"dataset": DATASETS}, method=cell.method, value_name="speedup")
    pairs = [(c, sps.value) for c in cells if (sps := book.beside(c, method="Sps")) is not None]
    return naive_guess(cell, base.value, pairs)


def _double(book: Book, ratio: Cell, place: dict[str, str]) -> Forecast:
    """PEARL's rate with a draft (1 + AMT) times as fast, at the acceptance of PEARL's run."""
    cell, run = _cell(book, place, "DOUBLE", "speedup"), _cell(book, place, "PEARL", "M")
    known = (
        fitted("a", run.value / (run.value + 1.0), (run.value - 1.0) / run.value),
        given("C", ratio.value, ratio.rounding),
        AMT,
    )
    accepted = known[0].value
    quick = ratio.value * (1.0 + AMT.value)
    return Forecast(
        cell,
        "double.eq7 with the exact rate",
        spread(double_speedup, known, acceptance="a", ratio="C", matched="AMT"),
        known,
        (ratio, run),
        naive=_over_sps(book, cell, place),
        printed=psd_speedup_printed(accepted, math.ceil(quick), quick),
        coin=double_coin(accepted, ratio.value, AMT.value),
    )


def _run_length(book: Book, ratio: Cell, place: dict[str, str]) -> Forecast:
    """DOUBLE's M: PEARL's, and 1 + AMT further tokens that the target's retrieval adds to a run."""
    cell, run = _cell(book, place, "DOUBLE", "M"), _cell(book, place, "PEARL", "M")
    cells = book.sound(**place | {"dataset": DATASETS}, method="DOUBLE", value_name="M")
    pairs = [(c, pearl.value) for c in cells if (pearl := book.beside(c, method="PEARL")) is not None]
    known = (
        given("M of PEARL", run.value, run.rounding),
        AMT,
        assumed("share of runs extended", 1.0, 0.0, 1.0),
    )
    estimate = spread(
        lambda m, s, share: m + share * (1.0 + s),
        known,
        m="M of PEARL",
        s="AMT",
        share="share of runs extended",
    )
    guess = naive_guess(cell, run.value, pairs)
    return Forecast(cell, "double.eq6", estimate, known, (run,), naive=guess, unsimulated=NO_METRIC)


SOURCES = (("Table 8", "Sps", "DOUBLE"), ("Table 11", "SpS (Vanilla SD)", "DOUBLE (Ideal)"))
NO_ANSWERS = "an accuracy is of texts, and coin tosses write none"
SAMPLING_NOISE = 0.02
"""Assumed, above temperature 0: one standard error of an accuracy near 0.9 on 200 prompts."""


def double_speedup(acceptance: float, ratio: float, matched: float) -> float:
    """DOUBLE's speedup by law: a pipeline whose draft step yields 1 + AMT tokens."""
    quick = ratio * (1.0 + matched)
    return pearl_speedup(acceptance, math.ceil(quick), quick)


def double_coin(acceptance: float, ratio: float, matched: float, temperature: float = 0.0) -> Coin:
    """DOUBLE's policy: gamma = ceil C retrieval forwards, AMT of the draft's for the target's, too."""
    knobs = (("matched_length", matched), ("temperature", temperature))
    return Coin("double", acceptance, math.ceil(ratio), 1.0 / ratio, knobs=knobs)


def from_vanilla_sd(book: Book) -> list[Forecast]:
    """DOUBLE's speedup from that of vanilla SD on the same text, wherever M is not printed."""
    found = []
    for table, base, method in SOURCES:
        cells = [
            cell
            for cell in book.sound(table=table, method=method, value_name="speedup")
            if not cell.dataset.endswith("Avg")
        ]
        pairs = [(cell, sd.value) for cell in cells if (sd := book.beside(cell, method=base)) is not None]
        for cell, _ in pairs:
            if table == "Table 8" and cell.temperature == "0":
                continue  # restates Table 1, where it is predicted
            sd = book.need(
                table=table,
                target=cell.target,
                method=base,
                dataset=cell.dataset,
                temperature=cell.temperature,
                value_name="speedup",
            )
            found.append(_from_sd(book, cell, sd, pairs))
    return found


def _from_sd(book: Book, cell: Cell, sd: Cell, pairs: list[tuple[Cell, float]]) -> Forecast:
    ratio = book.need(table="Table 1", target=cell.target, value_name="C")
    gamma = math.ceil(ratio.value)
    known: tuple[Known, ...] = (
        given("S of SD", sd.value, sd.rounding),
        given("C", ratio.value, ratio.rounding),
        assumed("gamma of SD", gamma, gamma, gamma + 3),
        assumed("AMT", 0.9, 0.5, 1.5),
    )

    def acceptance(speed: float, c: float, depth: float) -> float:
        return acceptance_of_tokens(speed * (depth + c) / c, int(depth))

    def law(speed: float, c: float, depth: float, matched: float) -> float:
        return double_speedup(acceptance(speed, c, depth), c, matched)

    estimate = spread(law, known, speed="S of SD", c="C", depth="gamma of SD", matched="AMT")
    guess = naive_guess(cell, sd.value, pairs)
    law_name = "double.eq7 with the exact rate, a from SD"
    coin = double_coin(
        acceptance(sd.value, ratio.value, gamma), ratio.value, known[3].value, float(cell.temperature)
    )
    return Forecast(cell, law_name, estimate, known, (ratio, sd), naive=guess, coin=coin)


def lossless(book: Book) -> list[Forecast]:
    """Accuracy of a lossless method is plain decoding's, but for rounding and, when sampled, luck."""
    cells = book.sound(table=("Table 7", "Table 8"), value_name="accuracy_EM", method=("Sps", "DOUBLE"))
    pairs = [(cell, book.beside(cell, method="Vanilla")) for cell in cells]
    known_pairs = [(cell, plain) for cell, plain in pairs if plain is not None]
    found = []
    for cell, plain in known_pairs:
        noise = 0.0 if cell.temperature == "0" else SAMPLING_NOISE
        known = (
            given("accuracy of AR", plain.value, plain.rounding),
            assumed("luck", 0.0, -noise, noise),
        )
        estimate = spread(lambda v, luck: v + luck, known, v="accuracy of AR", luck="luck")
        same = [(c, p.value) for c, p in known_pairs if c.method == cell.method and c.table == cell.table]
        guess = naive_guess(cell, plain.value, same)
        law = "ssd.sd: lossless"
        found.append(Forecast(cell, law, estimate, known, (plain,), naive=guess, unsimulated=NO_ANSWERS))
    return found
