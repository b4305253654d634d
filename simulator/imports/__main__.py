"""`python -m simulator.imports`: read what an engine measured, export what it should be set to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from hardware_profiles.files import FileRefused, read_json, to_json
from policies.commandline import BAD_INPUT, HELP, POSITIVE, checked_group, refusals, wide_console
from simulator.imports.export import Speculation
from simulator.imports.formats import FORMATS, Read, naming_file, one_of, read_file, selected
from simulator.imports.lengths import read_lengths
from simulator.imports.measured import Imported, ImportRefused, acceptance_of, write_acceptance
from simulator.imports.vllm import best_lookahead_by_batch

FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)

READ_EXAMPLES = """
\b
Examples:
  curl -s localhost:8000/metrics > after.prom
  python -m simulator.imports read after.prom --before before.prom --out acceptance.json
  python -m simulator.imports read server.log --format vllm-log
  python -m simulator.imports read results.jsonl --json
  python -m simulator.imports read runs.json --select 'cuda draft_0_5b code_lru' --assume-iid --lookahead 8 \\
      --out acceptance.json
  simulate --acceptance acceptance.json --policy sd --lookahead 4
"""
EXPORT_EXAMPLES = """
\b
Examples:
  python -m simulator.imports export --lookahead 4 --draft meta-llama/Llama-3.2-1B
  python -m simulator.imports export --lookahead 3 --method ngram --engine vllm
  python -m simulator.imports export --lookahead 4 --draft DRAFT --by-batch 1:4,8:2,32:0
  python -m simulator.imports export --simulated answer.json --draft DRAFT --json
  python -m simulator.imports export --lookahead 4 --draft DRAFT --tokens-per-round 3.2
"""
COMPARE_EXAMPLES = """
\b
Examples:
  simulate --policy sd --hw h100 --target llama-3.1-8b --draft llama-3.2-1b --acceptance 0.8 --json > p.json
  python -m simulator.imports export --simulated p.json --draft DRAFT --tokens-per-round 3.36
  python -m simulator.imports compare bench.json --simulated p.json
"""
FORCED_WITHIN = 0.02
"""Of the tokens per round predicted; a run further off tests acceptance, too."""


@checked_group(context_settings=HELP)
def main() -> None:
    """Read what other engines measured, and print settings in their terms."""


@main.command(epilog=READ_EXAMPLES)
@click.argument("file", type=FILE)
@click.option("--format", "name", help="Format of the file (see `formats`).  [default: found out]")
@click.option(
    "--before", type=FILE, help="An earlier page of the same counters: count what happened in between."
)
@click.option("--select", help="Label of one measurement, where the file holds several.")
@click.option(
    "--assume-iid", is_flag=True, help="Let a mean stand for every position, where there is only a mean."
)
@click.option("--lookahead", type=POSITIVE, help="K, where the file does not state it.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write an acceptance file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def read(
    *,
    file: Path,
    name: str | None,
    before: Path | None,
    select: str | None,
    lookahead: int | None,
    out: Path | None,
    assume_iid: bool,
    as_json: bool,
) -> None:
    """Read FILE, an engine's output, and say what it holds."""
    with refusals(kinds=BAD_INPUT):
        if out is None and (assume_iid or lookahead is not None):
            raise ImportRefused("--assume-iid and --lookahead shape an acceptance file: give --out, too")
        found = read_file(file, name=name, before=before)
        chosen = found.measured if select is None else (selected(found, select),)
        after = []
        if out is not None:
            with naming_file(found.path):
                chosen = (one_of(found, chosen),)
                acceptance = acceptance_of(
                    chosen[0], found.path.name, assume_iid=assume_iid, lookahead=lookahead
                )
            write_acceptance(out, acceptance)
            after = [
                f"written: {out}",
                f"next: simulate --acceptance {out} --policy sd --lookahead {acceptance.lookahead}",
            ]
    if as_json:
        rows = [measured.as_dict() for measured in chosen]
        content = {"file": str(found.path), "format": found.format.name, "measured": rows}
        click.echo(to_json(content, indent=2))
        return
    _print(found, chosen)
    for line in after:
        click.echo(line)


def _print(found: Read, chosen: Sequence[Imported]) -> None:
    titles = ("measurement", "K", "rounds", "tokens/round", "conditional acceptance", "joint", "times")
    table = Table(*titles, title=f"{found.path.name}: {found.format.what}", header_style="bold")
    for m in chosen:
        values = (m.lookahead, m.rounds, m.tokens_per_round)
        lists = (m.acceptance_at_position, m.joint_acceptance_at_position)
        times = [f"{name} {value:.4g}" for name, value in m.speeds.items() if isinstance(value, float)]
        table.add_row(m.label or m.engine, *map(_shown, values), *map(_list, lists), "\n".join(times))
    wide_console().print(table)
    for note in dict.fromkeys(note for m in chosen for note in m.notes):
        click.echo(f"note: {note}")
    click.echo(f"not said: {'; '.join(chosen[0].missing)}")


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, int) else f"{value:.4f}"


def _list(values: Sequence[float] | None) -> str:
    if values is None:
        return "-"
    return " ".join(f"{value:.3f}" for value in values[:8]) + " ..." * (len(values) > 8)


@main.command()
@click.argument("file", type=FILE)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder to write."
)
def lengths(file: Path, out: Path) -> None:
    """Acceptance files from FILE, a table of mean acceptance lengths by drafted tokens (InferenceX)."""
    with refusals(kinds=BAD_INPUT):
        out.mkdir(parents=True, exist_ok=True)
        for name, acceptance in read_lengths(file).items():
            write_acceptance(out / f"{name}.json", acceptance)
            click.echo(f"{name}: {acceptance.assumed[0]}")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def formats(*, as_json: bool) -> None:
    """List the formats that can be read."""
    if as_json:
        click.echo(to_json([{"name": f.name, "what": f.what, "pools": f.pools} for f in FORMATS], indent=2))
        return
    for fmt in FORMATS:
        click.echo(f"{fmt.name:28}{fmt.what}")


@main.command(epilog=EXPORT_EXAMPLES)
@click.option("--lookahead", type=POSITIVE, help="K.")
@click.option(
    "--simulated", type=FILE, help="Take the lookahead from what `simulate --policy sd --json` printed."
)
@click.option(
    "--measured", type=FILE, help="Take K by batch from rounds timed by batch (format vllm-dynamic)."
)
@click.option(
    "--method", default="draft_model", show_default=True, help="draft_model, eagle, eagle3, mtp or ngram."
)
@click.option("--draft", help="Draft model or head.")
@click.option("--by-batch", metavar="B:K,...", help="K from each batch on; 0: plain decoding (vLLM).")
@click.option("--largest-batch", type=POSITIVE, help="Where the last K ends.  [default: the last batch]")
@click.option(
    "--tokens-per-round",
    type=click.FloatRange(min=1),
    help="Make engines accept so many, the target's own token counted: such a run tests times alone.",
)
@click.option(
    "--engine",
    type=click.Choice(["vllm", "sglang", "tensorrt-llm", "llama.cpp"]),
    help="Only this engine.  [default: all]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, by engine.")
def export(
    *,
    lookahead: int | None,
    simulated: Path | None,
    measured: Path | None,
    method: str,
    draft: str | None,
    by_batch: str | None,
    largest_batch: int | None,
    tokens_per_round: float | None,
    engine: str | None,
    as_json: bool,
) -> None:
    """Print settings ready to paste into vLLM, SGLang, TensorRT-LLM or llama.cpp."""
    with refusals(kinds=BAD_INPUT):
        schedule = _by_batch(by_batch, measured, largest_batch)
        if engine not in (None, "vllm") and (schedule or largest_batch):
            raise ImportRefused(f"only vLLM takes a lookahead by batch; {engine} has one for all")
        depth = _depth(lookahead, simulated, schedule)
        asked = Speculation(
            depth, method, draft, by_batch=schedule, largest_batch=largest_batch, forced=tokens_per_round
        )
        lines = asked.flags
        if engine is not None and engine not in lines:
            raise ImportRefused(f"{engine} has no method {method!r}")
    if tokens_per_round is not None:
        lines.pop("llama.cpp", None)  # has no such option
        lines |= {f"{name}, before the command": line for name, line in asked.environment.items()}
    lines = {name: line for name, line in lines.items() if engine in (None, name.partition(",")[0])}
    if as_json:
        click.echo(to_json(lines, indent=2))
        return
    for name, line in lines.items():
        click.echo(f"{name}: {line}")


@main.command(epilog=COMPARE_EXAMPLES)
@click.argument("file", type=FILE)
@click.option("--simulated", type=FILE, required=True, help="What `simulate --policy sd --json` printed.")
@click.option("--before", type=FILE, help="An earlier page of the same counters.")
@click.option("--select", help="Label of one measurement, where the file holds several.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(*, file: Path, simulated: Path, before: Path | None, select: str | None, as_json: bool) -> None:
    """Hold FILE, an engine's output of a live run, against what was predicted of it.

    With acceptance forced (`export --tokens-per-round`) it tests the times alone.
    """
    with refusals(kinds=BAD_INPUT):
        found = read_file(file, before=before)
        chosen = found.measured if select is None else (selected(found, select),)
        with naming_file(found.path):
            rows = compared(one_of(found, chosen), _answer(simulated))
    if as_json:
        click.echo(to_json({"file": str(found.path), "compared": rows}, indent=2))
        return
    table = Table("", "predicted", "read", "error", title=f"{found.path.name} against {simulated.name}")
    for row in rows:
        table.add_row(row["what"], f"{row['predicted']:.4g}", f"{row['read']:.4g}", f"{row['error']:+.1%}")
    wide_console().print(table)
    rounds = next((row for row in rows if row["what"] == "tokens per round"), None)
    if rounds is None or abs(rounds["error"]) > FORCED_WITHIN:
        said = "are not said" if rounds is None else f"are {rounds['error']:+.1%} off"
        click.echo(f"tokens per round {said}: force them (`export --tokens-per-round`) to test times alone")


def compared(measured: Imported, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per quantity that both say: tokens per round, seconds of a round and of a request's token.

    The simulation's seconds leave the prefill out, as engines' times per output token do.

    Raises:
        ImportRefused: They have nothing in common.
    """
    decoding = answer["seconds"] - answer["prefill_s"]
    speeds = measured.speeds
    both = {
        "tokens per round": (answer["tokens_per_round"], measured.tokens_per_round),
        "ms of a round": (1e3 * decoding / answer["batch_rounds"], _ms(speeds.get("round_s"))),
        "ms of a request's token": (
            1e3 * decoding * answer["batch"] / answer["tokens"],
            _ms(speeds.get("time_per_token_s")),
        ),
    }
    rows = [
        {"what": what, "predicted": ours, "read": theirs, "error": ours / theirs - 1.0}
        for what, (ours, theirs) in both.items()
        if theirs
    ]
    if not rows:
        raise ImportRefused("says neither tokens per round nor the time of a round or a token")
    return rows


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _answer(path: Path) -> Mapping[str, Any]:
    """What `simulate --json` printed.

    Raises:
        FileRefused: It is none.
    """
    answer = read_json(path)
    names = ("seconds", "prefill_s", "batch", "batch_rounds", "tokens", "tokens_per_round")
    numbers = isinstance(answer, dict) and all(isinstance(answer.get(n), int | float) for n in names)
    if not numbers or not all(answer[name] > 0 for name in names if name != "prefill_s"):
        raise ImportRefused(f"{path}: expected the JSON that `simulate --json` prints")
    return dict(answer)


def _by_batch(given: str | None, measured: Path | None, largest_batch: int | None) -> dict[int, int] | None:
    if measured is not None:
        if given:
            raise ImportRefused("give either --by-batch or --measured, not both")
        return best_lookahead_by_batch(read_file(measured).measured[0])
    if given is None:
        if largest_batch is not None:
            raise ImportRefused("--largest-batch changes nothing without --by-batch or --measured")
        return None
    try:
        pairs = [part.split(":") for part in given.split(",")]
        return {int(batch): int(depth) for batch, depth in pairs}
    except ValueError as error:
        raise ImportRefused(f"--by-batch: expected B:K,B:K,..., got {given!r}") from error


def _depth(lookahead: int | None, simulated: Path | None, by_batch: dict[int, int] | None) -> int:
    if lookahead is not None and simulated is not None:
        raise ImportRefused("give either --lookahead or --simulated, not both")
    if simulated is not None:
        return _simulated(simulated)
    if lookahead is not None:
        return lookahead
    if by_batch:
        return max(by_batch.values())
    raise ImportRefused("give --lookahead, --simulated or K by batch")


def _simulated(path: Path) -> int:
    try:
        answer = read_json(path)
        # Before knobs were an object of their own they stood beside the policy.
        policy, depth = answer["policy"], answer.get("knobs", answer).get("lookahead")
    except FileRefused:
        raise
    except (KeyError, TypeError, AttributeError) as error:
        raise ImportRefused(f"{path}: expected the JSON that `simulate --json` prints: {error!r}") from error
    if policy != "sd" or not isinstance(depth, int):
        raise ImportRefused(f"{path}: policy {policy!r:.80}: engines have plain speculation ('sd') only")
    return depth


if __name__ == "__main__":
    main()
