"""DOUBLE's appendix tables: speed from vanilla SD's rows, accuracy from losslessness."""

from __future__ import annotations

import math

from analysis.papers.cells import Book, Cell
from analysis.papers.fits import acceptance_of_tokens
from analysis.papers.forecast import Coin, Forecast, Known, assumed, given, naive_guess, spread
from policies.laws.double import pearl_speedup

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
