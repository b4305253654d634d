"""`python -m analysis.mirror_streams`: what a streaming draft is worth to Mirror-SD, beside its laws.

Two tables: the four variants of the paper's ablation (Figure 4), draft autoregressive or streaming by overlap
off or on, with SD beside them; and how many tokens a pass of the draft writes, as a distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from analysis.commands import deliver
from analysis.mirror_worlds import COINS_OPTIONS, RUN_OPTIONS, WORLD_OPTIONS, outcomes_of
from hardware_profiles.jsonfile import to_json
from policies.commandline import (
    HELP,
    RUNS_MODELS,
    checked_command,
    refusals,
    split_integers,
    wide_console,
    with_options,
)
from policies.mirror import ACCEPTANCE, STREAMS

if TYPE_CHECKING:
    from analysis.mirror_cells import Outcome
    from policies.registry import Settings

EXAMPLES = """
\b
Examples:
  python -m analysis.mirror_streams --coins --draft-time 0.2
  python -m analysis.mirror_streams --hw cpu2-x5 --count 8
  python -m analysis.mirror_streams --hw cpu2-x5 --live --repeats 3 --out streams.json
"""


@checked_command(epilog=EXAMPLES, context_settings=HELP)
@with_options(WORLD_OPTIONS)
@click.option("--stream-acceptance", default=ACCEPTANCE, show_default=True, help="Of proposals; coins.")
@with_options(COINS_OPTIONS)
@click.option(
    "--lookahead", default="3,5,7", show_default=True, callback=split_integers, help="List of gamma."
)
@click.option("--kappa", default=4, show_default=True, help="Candidates per position.")
@click.option("--streams", default="3", show_default=True, type=click.Choice(STREAMS[1:]), help="S.")
@with_options(RUN_OPTIONS)
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Compare Mirror-SD with and without a streaming draft, and with and without overlap."""
    from calibrate.display import show_progress

    with refusals(f"{RUNS_MODELS}, or use --coins"), show_progress() as progress:
        outcomes = run(options, progress)
    deliver(as_json(outcomes, options), options, show=lambda: print_outcomes(outcomes))


def run(options: dict[str, Any], progress: Callable[[str, int, int], None]) -> list[Outcome]:
    """What the command's options ask for.

    Args:
        options: As the command takes them.
        progress: (stage, done, total).

    Raises:
        SettingError: A setting out of its domain, or `live` with coins.
    """
    settings = variants(
        options["lookahead"],
        kappa=options["kappa"],
        streams=options["streams"],
        stream_acceptance=options["stream_acceptance"] if options["coins"] else None,
        temperature=options["temperature"],
        seed=options["seed"],
    )
    return outcomes_of(settings, options, progress)


def variants(
    lookaheads: Sequence[int],
    *,
    kappa: int,
    streams: str,
    stream_acceptance: float | None = None,
    **target: Any,
) -> list[Settings]:
    """Plain decoding; then per gamma SD, and Mirror-SD in its four variants.

    Args:
        lookaheads: gamma.
        kappa: Candidates per position.
        streams: Value of the knob.
        stream_acceptance: In worlds of coin tosses.
        target: Temperature and seed.
    """
    from policies.registry import configure

    found = [configure("ar", **target)]
    streaming: dict[str, Any] = {"streams": streams, "stream_acceptance": stream_acceptance}
    for lookahead in lookaheads:
        found.append(configure("sd", lookahead=lookahead, **target))
        found += [
            configure("mirror", lookahead=lookahead, kappa=kappa, overlap=overlap, **draft, **target)
            for overlap in ("off", "on")
            for draft in ({}, streaming)
        ]
    return found


def as_json(outcomes: list[Outcome], options: dict[str, Any]) -> str:
    """One JSON object: what was asked, and every outcome."""
    asked = {name: value for name, value in options.items() if name not in {"out", "as_json_"}}
    return to_json({"asked": asked, "outcomes": [o.as_dict() for o in outcomes]}, indent=2) + "\n"


def print_outcomes(outcomes: list[Outcome]) -> None:
    """The variants, then the passes of those that stream."""
    from rich.table import Table

    console = wide_console()
    speeds = Table(header_style="bold", title="speedup over plain decoding")
    for title in ("gamma", "draft", "overlap", "batch", "world", "speedup", "tokens/round"):
        speeds.add_column(title, justify="right")
    for o in outcomes:
        if o.settings.policy != "ar":
            speed = (o.world, f"{o.speedup_vs_ar:.2f}", f"{o.tokens_per_round:.2f}")
            speeds.add_row(str(o.settings.lookahead), *variant(o.settings), str(o.batch), *speed)
    console.print(speeds)
    console.print(passes_table(outcomes))


def variant(settings: Settings) -> tuple[str, str]:
    """(draft, overlap) of a setting, as in the paper's ablation."""
    if settings.policy != "mirror":
        return "autoregressive", f"none ({settings.policy})"
    streams = settings.knobs["streams"]
    draft = "autoregressive" if streams == "0" else f"{streams} streams"
    return draft, str(settings.knobs["overlap"])


def passes_table(outcomes: Iterable[Outcome]) -> Any:
    """Tokens per pass and passes per window of the settings that stream, law beside counted."""
    from rich.table import Table

    table = Table(
        header_style="bold", title="passes of the streaming draft: counted, and by the law of coins"
    )
    columns = ("setting", "batch", "world", "tokens/pass", "as shares of 1, 2, ...", "right")
    for title in (*columns, "J", "law", "slowest J", "law"):
        table.add_column(title, justify="left" if title == "setting" else "right")
    for o in outcomes:
        found = None if o.account is None else o.account.passes
        if found is None:
            continue
        table.add_row(
            o.settings.label,
            str(o.batch),
            o.world,
            f"{found.tokens_per_pass:.2f}",
            " ".join(f"{share:.3f}" for share in found.shares),
            f"{found.acceptance:.3f}",
            *_beside(found.passes, found.law_passes),
            *_beside(found.slowest, found.law_slowest),
        )
    return table


def _beside(counted: float, law: float | None) -> Iterator[str]:
    yield f"{counted:.2f}"
    yield "-" if law is None else f"{law:.2f}"


if __name__ == "__main__":
    main()
