"""What Mirror-SD's table determines: Mirror from the Vanilla-SD row beside it.

Vanilla SD takes 1 + T_draft per round, Mirror half a step to the exit and then the longer of the other half
and the draft, which streams two tokens per internal step at batch 1.  T_draft is not printed;
T_draft <= 8 / speedup - 1 for gamma = 7, the best task deciding.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from analysis.papers.cells import Book, Cell
from analysis.papers.forecast import (
    Coin,
    Forecast,
    Known,
    Reasons,
    acceptance_of_tokens,
    assumed,
    given,
    naive_guess,
    spread,
)
from policies.laws.mirror import adapter_share, mirror_step_time, sd_step_time

TARGETS = ("Qwen3-14B", "Qwen3-32B")
TEMPERATURES = ("0", "1")
SHAPES = {"Qwen3-14B": (5120, 14.8e9), "Qwen3-32B": (5120, 32.8e9)}
"""Hidden width and parameters of the targets: public, not from the paper."""
REASONS: Reasons = (
    ({"table": "Table 1"}, "neither acceptance, tokens per step nor step cost of this method is printed"),
    ({}, "describes the setup or the schedule, or restates the table in prose"),
)


def forecasts(book: Book) -> list[Forecast]:
    """Every cell that its paper's other cells say something about."""
    cells = book.all(table="Table 1", method="Mirror-SD", value_name="speedup")
    return [*(_mirror(book, cell) for cell in cells), *_adapters(book)]


def mirror_over_sd(draft: float, streams: float, fallback: float, exit_at: float, rendezvous: float) -> float:
    """Speed of Mirror over vanilla SD at equal acceptance, whose draft does not stream (`mirror.eq10`).

    Args:
        draft: SD's time to draft a window, in target steps.
        streams: Tokens per internal step of Mirror's draft.
        fallback: Share of rounds whose window has to be drafted again, serially.
        exit_at: Depth of the early exit.
        rendezvous: Both exchanges together, in target steps.
    """
    quick = draft / streams
    step = mirror_step_time(exit_at, 1.0 - exit_at, quick, rendezvous, fallback)
    return sd_step_time(draft, 1.0) / step


def _mirror(book: Book, cell: Cell) -> Forecast:
    block = {"table": "Table 1", "target": cell.target, "temperature": cell.temperature}
    sds = book.sound(**block, method="Vanilla-SD", value_name="speedup")
    sd = next(c for c in sds if c.dataset == cell.dataset)
    setup = {
        name: book.need(table="prose: sec 4.1", value_name=name) for name in ("gamma", "early_exit_fraction")
    }
    streams = book.need(table="prose: D.1 schedule", batch="1", value_name="SS_streams")
    window = setup["gamma"].value + 1.0
    most = min(1.0, *(window / c.value - 1.0 for c in sds))
    known: tuple[Known, ...] = (
        given("S of SD", sd.value, sd.rounding),
        given("gamma", setup["gamma"].value),
        given("exit", setup["early_exit_fraction"].value),
        assumed("streams", streams.value, 1.0, streams.value),
        assumed("T_draft", 0.5 * (0.1 + most), 0.1, most),
        assumed("fallbacks", 0.1, 0.0, 0.3),
        assumed("rendezvous", 0.0, 0.0, 0.05),
    )

    def law(*, speed: float, draft: float, many: float, fallback: float, depth: float, wait: float) -> float:
        return speed * mirror_over_sd(draft, many, fallback, depth, wait)

    estimate = spread(
        law,
        known,
        speed="S of SD",
        draft="T_draft",
        many="streams",
        fallback="fallbacks",
        depth="exit",
        wait="rendezvous",
    )
    peers = book.sound(**block, method="Mirror-SD", value_name="speedup")
    bases = {c.dataset: c.value for c in sds}
    guess = naive_guess(cell, sd.value, [(c, bases[c.dataset]) for c in peers])
    used = (*sds, *setup.values(), streams)
    law_name = "mirror.eq10/eq14 with fallbacks"
    return Forecast(
        cell, law_name, estimate, known, used, naive=guess, coin=_coin({k.name: k.value for k in known})
    )


def _coin(known: Mapping[str, float]) -> Coin:
    """The policy at the values that the law uses; a draft that streams takes its steps so much faster.

    One candidate per position is the target's token unless the round falls back.  The rendezvous is free,
    as the law has it.
    """
    gamma, draft = int(known["gamma"]), known["T_draft"]
    accepted = acceptance_of_tokens(known["S of SD"] * sd_step_time(draft, 1.0), gamma)
    return Coin(
        "mirror",
        accepted,
        gamma,
        draft / known["streams"] / gamma,
        hit=1.0 - known["fallbacks"],
        knobs=(("kappa", 1), ("exit", str(Fraction(known["exit"])))),
    )


def _adapters(book: Book) -> list[Forecast]:
    """Parameters of an early-exit adapter H -> H/2 -> H over the target's."""
    found = []
    for cell in book.sound(value_name="early_exit_adapter_params"):
        width, parameters = SHAPES[cell.target]
        known = (
            assumed("H", width, width, width),
            assumed("target's parameters", parameters, 0.98 * parameters, 1.02 * parameters),
        )
        estimate = spread(
            lambda h, n: 100.0 * adapter_share(int(h), n, heads=1), known, h="H", n="target's parameters"
        )
        law = "mirror.eq15: one adapter, H^2 / parameters"
        found.append(Forecast(cell, law, estimate, known, (), unsimulated="a count of parameters"))
    return found
