"""The `diagnose` command."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from analysis.diagnose.account import MeasuredPrices, Prices, ProfilePrices, Seen, TablePrices, seen_speedup
from analysis.diagnose.report import Diagnosis, print_diagnosis
from analysis.diagnose.server import Page, Server, is_url, of_pages, read_source, seen_by
from hardware_profiles.files import to_json
from hardware_profiles.kernels import TablesError
from hardware_profiles.profile import Profile, load_profile
from hardware_profiles.store import find_profile, origin
from policies.commandline import (
    BAD_INPUT,
    HELP,
    INCOMPLETE,
    POSITIVE,
    about,
    checked_command,
    click_options,
    option,
    refusals,
    typed,
    wide_console,
    with_options,
)
from policies.registry import SettingError
from simulator.given import PairOptions
from simulator.imports.formats import read_file
from simulator.imports.serve import HEADS, NO_MODEL, Serve, read_serve

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
ABOVE_0 = click.FloatRange(min=0, min_open=True)
EXAMPLES = """
\b
Examples:
  diagnose http://localhost:8000 --hw h100 --serve "$(cat serve.sh)"
  diagnose after.prom --before before.prom --hw h100 --tp 4 --target llama-3.1-70b --draft llama-3.2-1b
  diagnose server.log --plain without.log
  diagnose bench.json --hw h100x1-llama-3.1-8b+llama-3.2-1b --batch 32 --context 2000
  diagnose --watch http://localhost:8000 --hw h100 --serve "vllm serve ..."
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What `diagnose` is asked; every field is an option."""

    before: Path | None = field(
        default=None,
        metadata=about("An earlier page of the same counters: count what happened since.", type=FILE),
    )
    plain: Path | None = field(
        default=None, metadata=about("A measurement of the same server without speculation.", type=FILE)
    )
    select: str | None = option(None, "Label of one measurement, where the file holds several.")
    serve: str | None = option(None, "The command that serves: models, GPUs, method and K are read from it.")
    hw: str | None = option(None, "GPU (h100, a100x8, ...) or hardware profile that says what forwards cost.")
    target: str | None = option(None, "Target model.  [default: as --serve says]")
    draft: str | None = option(
        None,
        "Draft: a name, its config.json or folder, or eagle3:TARGET, eagle:TARGET, mtp:TARGET.  "
        "[default: as --serve says]",
    )
    tp: int | None = option(None, "GPUs of the target.  [default: as --serve says]", type=POSITIVE)
    draft_tp: int | None = option(None, "GPUs of the draft.  [default: the target's]", type=POSITIVE)
    tables: Path | None = field(
        default=None,
        metadata=about(
            "Unpacked wheel with kernel tables.  [default: the installed package]",
            type=click.Path(path_type=Path),
        ),
    )
    lookahead: int | None = option(None, "K, where neither the metrics nor --serve say it.", type=POSITIVE)
    batch: float | None = option(
        None, "Rows that decode at once.  [default: as the metrics say]", type=ABOVE_0
    )
    context: float | None = option(
        None, "Mean tokens in a row's cache.  [default: as the metrics say]", type=click.FloatRange(min=0)
    )
    every: float = option(10.0, "Seconds between two looks at a server.", type=ABOVE_0)


@checked_command("diagnose", epilog=EXAMPLES, context_settings=HELP)
@click.argument("source", metavar="URL|FILE")
@with_options(click_options(Question))
@click.option("--watch", is_flag=True, help="Keep looking at the URL, a row each time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --watch one a line.")
def main(*, source: str, watch: bool, as_json: bool, **options: Any) -> None:
    """Say why speculation is slow on a server, and what would help most.

    From its metrics (a URL, or a file that `imports read` takes), its serving command and its GPU: where the
    speedup goes between what was hoped for and what is seen, cause by cause.
    """
    with refusals(INCOMPLETE, BAD_INPUT):
        asked = typed(Question, options)
        if watch or is_url(source):
            if not is_url(source):
                raise SettingError("--watch looks at a server: give its URL, http://...")
            _look(source, asked, watch=watch, as_json=as_json)
            return
        found = diagnose(read_source(Path(source), asked.before, asked.select), asked)
        _show(found, as_json=as_json)


def _show(found: Diagnosis, *, as_json: bool) -> None:
    if as_json:
        click.echo(to_json(found.as_dict(), indent=2))
    else:
        print_diagnosis(found, wide_console())


def diagnose(server: Server, asked: Question) -> Diagnosis:
    """The diagnosis of a server.

    Raises:
        ValueError: Options that contradict each other or the measurement, or hardware that is not found.
    """
    serve = None if asked.serve is None else read_serve(asked.serve)
    given = {name: value for name in ("batch", "context") if (value := getattr(asked, name)) is not None}
    plain_s = None
    if asked.plain is not None:
        plain = read_file(asked.plain).measured
        steps = [
            m.target_step_s or m.time_per_token_s for m in plain if m.target_step_s or m.time_per_token_s
        ]
        if not steps:
            raise SettingError(f"{asked.plain}: no time of plain decoding in it")
        plain_s = steps[0]
    seen = seen_by(server, serve, replace(server.load, **given), lookahead=asked.lookahead, plain_s=plain_s)
    sources = {"acceptance": f"{server.measured.source} {server.measured.label}".strip()}
    sources |= {"note": "; ".join(server.measured.notes)} if server.measured.notes else {}
    prices = _prices(server, seen, serve, asked, sources)
    if isinstance(prices, TablePrices) and seen.lookahead is not None:
        timed = prices.at(seen.lookahead, seen.load)
        seen = replace(seen, plain_s=timed.plain_s, round_s=timed.round_s)
    return Diagnosis(server, seen, prices, serve, sources)


def _prices(
    server: Server, seen: Seen, serve: Serve | None, asked: Question, sources: dict[str, str]
) -> Prices | None:
    if (profile := _profile(serve, asked, sources)) is not None:
        passes = None if serve is None else serve.passes
        return ProfilePrices(profile, passes, None if serve is None else serve.width)
    measured, plain, plain_s = server.measured, server.plain, seen.plain_s
    if measured.round_s_by_batch:
        sources["costs"] = "rounds that the engine timed by batch and lookahead"
        return TablePrices(measured.round_s_by_batch)
    forwards = measured.forward_s or (plain.forward_s if plain else ())
    if plain_s is None or seen.round_s is None or seen.lookahead is None:
        return None
    sources["costs"] = "times that the engine printed; other lookaheads by straight lines"
    return MeasuredPrices(
        plain_s, seen.round_s, seen.lookahead, measured.draft_s_per_round, measured.verify_s, forwards
    )


def _profile(serve: Serve | None, asked: Question, sources: dict[str, str]) -> Profile | None:
    """The hardware, composed from --hw and the models of --serve unless --hw is a profile's name."""
    if asked.hw is None:
        if asked.target is not None or asked.draft is not None or asked.tp is not None:
            raise SettingError("--target, --draft and --tp say what runs on a GPU: name it with --hw")
        return None
    from hardware_profiles.networks import HEAD_KINDS
    from hardware_profiles.pairs import is_gpu

    if not is_gpu(asked.hw):
        path = find_profile(asked.hw)
        profile = load_profile(path)
        sources["costs"] = f"profile {profile.name} ({profile.provenance.kind}, {origin(path)})"
        return profile
    target, draft = asked.target or (serve.target if serve else None), asked.draft
    method = None if serve is None else serve.method
    if draft is None and target is not None and serve is not None:
        draft = serve.draft if method not in (*HEADS, *NO_MODEL) else None
        if method in HEADS and serve.draft and Path(serve.draft).exists():
            draft = serve.draft  # its own config.json says how many layers it has
        elif method in HEADS:
            kind = method if method in HEAD_KINDS else "eagle3"
            draft = f"{kind}:{target}"
            own = "its own config.json with --draft prices it as it is"
            sources["draft"] = f"{method}: priced as {draft}, one layer as published; {own}"
        draft = draft or f"eagle3:{target}"
    if target is None or draft is None:
        raise SettingError(
            f"--hw {asked.hw} is a GPU: say with --serve, or --target and --draft, what runs on it"
        )
    counted = asked.hw.rpartition("x")[2].isdigit() and asked.hw.lower() not in ("b60",)
    spread = asked.tp or (None if counted or serve is None else serve.tp)
    pair = PairOptions(
        target=target, draft=draft, tp=spread, draft_tp=asked.draft_tp or (serve.draft_tp if serve else None),
        draft_placement="shared", eager=bool(serve and serve.eager), tables=asked.tables,
    )  # fmt: skip
    found = pair.composed(asked.hw)
    if found is None:
        raise TablesError(f"{asked.hw}: nothing is known of it")
    profile, where = found
    sources["costs"] = f"profile {profile.name} ({profile.provenance.kind}, {where})"
    return profile


def _look(url: str, asked: Question, *, watch: bool, as_json: bool) -> None:
    """Two pages of a server, or, watching, one more every time, until interrupted."""
    pages = _pages(url, asked.every)
    earlier = next(pages)
    if not watch:
        _show(diagnose(of_pages(next(pages), earlier), asked), as_json=as_json)
        return
    if not as_json:
        click.echo(WATCHED)
    for page in pages:
        try:
            found = diagnose(of_pages(page, earlier), asked)
        except ValueError as error:  # nothing drafted meanwhile, or restarted: look again
            click.echo(f"{time.strftime('%H:%M:%S')}  {error}", err=True)
        else:
            click.echo(to_json(found.as_dict()) if as_json else watched(found))
        earlier = page


def _pages(url: str, every: float) -> Iterator[Page]:
    while True:
        yield Page.of(url)
        sys.stdout.flush()
        time.sleep(every)


WATCHED = (
    "    time  running  waiting  tokens/s  tokens/round  1st accepted  round ms  vs plain  what would help"
)


def watched(found: Diagnosis) -> str:
    """A row of `--watch`."""
    server, seen = found.server, found.seen
    made = (server.measured.rounds or 0) * seen.tokens_per_round
    numbers = (
        _cell(seen.load.batch, 9, ".1f"),
        _cell(server.waiting, 9, ".0f"),
        _cell(made / server.seconds if server.seconds else None, 10, ".0f"),
        _cell(seen.tokens_per_round, 14, ".2f"),
        _cell(seen.acceptance[0] if seen.acceptance else None, 14, ".2f"),
        _cell(None if seen.round_s is None else 1e3 * seen.round_s, 10, ".2f"),
        _cell(seen_speedup(seen, found.prices), 10, ".2f"),
    )
    best = f"{found.changes[0].what}: {100 * found.changes[0].gain:+.0f} %" if found.changes else "-"
    return f"{time.strftime('%H:%M:%S')}{''.join(numbers)}  {best}"


def _cell(value: float | None, width: int, form: str) -> str:
    return ("-" if value is None else format(value, form)).rjust(width)


if __name__ == "__main__":
    main()
