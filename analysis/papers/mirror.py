"""What Mirror-SD's table determines: Mirror from the Vanilla-SD row beside it.

Vanilla SD takes 1 + T_draft per round, Mirror half a step to the exit and then the longer of the other half
and the draft, which streams two tokens per internal step at batch 1.  T_draft is not printed;
T_draft <= 8 / speedup - 1 for gamma = 7, the best task deciding.  Methods without a draft follow from the
other target's row.
"""

from __future__ import annotations

from fractions import Fraction

from analysis.papers.cells import Paper, PaperCell
from analysis.papers.forecast import (
    WITHOUT_A_DRAFT,
    Coin,
    Forecast,
    Quantities,
    acceptance_of_tokens,
    assumed,
    by_other_target,
    forecast,
    given,
    naive_guess,
    printed,
)
from policies.laws.mirror import adapter_share, mirror_step_time, sd_step_time

SHAPES = {"Qwen3-14B": (5120, 14.8e9), "Qwen3-32B": (5120, 32.8e9)}
"""Hidden width and parameters of the targets: public, not from the paper."""


def forecasts(paper: Paper) -> list[Forecast]:
    """Every cell that its paper's other cells say something about."""
    cells = paper.all(table="Table 1", method="Mirror-SD", value_name="speedup")
    adapters = paper.sound(value_name="early_exit_adapter_params")
    draftless = paper.sound(table="Table 1", method=WITHOUT_A_DRAFT, value_name="speedup")
    return [
        *(_mirror(paper, cell) for cell in cells),
        *(_adapter(cell) for cell in adapters),
        *(by_other_target(paper, cell, tuple(SHAPES)) for cell in draftless),
    ]


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


def _mirror(paper: Paper, cell: PaperCell) -> Forecast:
    block = {"table": "Table 1", "target": cell.target, "temperature": cell.temperature}
    sds = {c.dataset: c for c in paper.sound(**block, method="Vanilla-SD", value_name="speedup")}
    setup = [paper.need(table="prose: sec 4.1", value_name=name) for name in ("gamma", "early_exit_fraction")]
    streams = paper.need(table="prose: D.1 schedule", batch="1", value_name="SS_streams")
    most = min(1.0, *((setup[0].value + 1.0) / c.value - 1.0 for c in sds.values()))
    known = {
        "speed": printed("S of SD", sds[cell.dataset]),
        "gamma": given("gamma", setup[0].value),
        "exit_at": given("exit", setup[1].value),
        "streams": assumed("streams", streams.value, 1.0, streams.value),
        "draft": assumed("T_draft", 0.5 * (0.1 + most), 0.1, most),
        "fallback": assumed("fallbacks", 0.1, 0.0, 0.3),
        "rendezvous": assumed("rendezvous", 0.0, 0.0, 0.05),
    }

    def law(
        *, speed: float, draft: float, streams: float, fallback: float, exit_at: float, rendezvous: float
    ) -> float:
        return speed * mirror_over_sd(draft, streams, fallback, exit_at, rendezvous)

    peers = paper.sound(**block, method="Mirror-SD", value_name="speedup")
    guess = naive_guess(cell, peers, lambda c: sds[c.dataset])
    used, name = (*sds.values(), *setup, streams), "mirror.eq10/eq14 with fallbacks"
    return forecast(cell, name, law, known, used, naive=guess, coin=_coin(known))


def _coin(known: Quantities) -> Coin:
    """The policy at the values that the law uses; a draft that streams takes its steps so much faster.

    One candidate per position is the target's token unless the round falls back.  The rendezvous is free,
    as the law has it.
    """
    value = {name: quantity.value for name, quantity in known.items()}
    gamma, draft = int(value["gamma"]), value["draft"]
    return Coin(
        "mirror",
        acceptance_of_tokens(value["speed"] * sd_step_time(draft, 1.0), gamma),
        gamma,
        draft / value["streams"] / gamma,
        hit=1.0 - value["fallback"],
        knobs=(("kappa", 1), ("exit", str(Fraction(value["exit_at"])))),
    )


def _adapter(cell: PaperCell) -> Forecast:
    """Parameters of an early-exit adapter H -> H/2 -> H over the target's."""
    width, parameters = SHAPES[cell.target]
    known = {
        "hidden": assumed("H", width, width, width),
        "total": assumed("target's parameters", parameters, 0.98 * parameters, 1.02 * parameters),
    }

    def law(hidden: float, total: float) -> float:
        return 100.0 * adapter_share(int(hidden), total, heads=1)

    name = "mirror.eq15: one adapter, H^2 / parameters"
    return forecast(cell, name, law, known, (), unsimulated="a count of parameters")
