"""`python -m calibrate.silicon`: forwards and profiles of GPUs that others measured kernel by kernel.

`forward` prices one forward and shows its parts; `compose` writes a profile of a pair; `coverage` says what
the tables hold; `check` reads them all; `import` makes a profile of somebody's layer times; `costs` writes
what vLLM would time of a pair when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import click

from hardware_profiles.composed import CAPTURE_LIMIT, HOST_GAP_S, SMALL_TICKS, Composer, Forward
from hardware_profiles.costcurves import curves_of, curves_profile, read_curves
from hardware_profiles.files import to_json, write_json
from hardware_profiles.kernels import ENGINES as KERNEL_ENGINES
from hardware_profiles.kernels import PACKAGE, VERSION, Tables, coverage, find_tables
from hardware_profiles.layers import Layers, Link, forwards_profile, layers_profile
from hardware_profiles.networks import find_network
from hardware_profiles.pairs import USUAL, Pair, pair_profile
from hardware_profiles.pairs import compose as compose_pair
from hardware_profiles.predicted import ROLE_OPERATIONS, Basis, predicted_grid, predicted_role
from hardware_profiles.profile import Profile, load_profile, save_profile
from hardware_profiles.roofline import ENGINES, Setting, find_device, find_precision
from hardware_profiles.shapes import find_shape
from hardware_profiles.store import find_profile
from hardware_profiles.surface import Provenance
from policies.commandline import (
    BAD_INPUT,
    HELP,
    POSITIVE,
    about,
    checked_group,
    click_options,
    option,
    refusals,
    typed,
    wide_console,
    with_options,
    wrapped_table,
)

EXAMPLES = """
\b
Examples:
  python -m calibrate.silicon forward --system h100 --config Qwen3-1.7B --rows 8 --tokens-per-row 4
  python -m calibrate.silicon forward --system a100 --config llama-3.3-70b --tp 4 --rows 16 --eager --json
  python -m calibrate.silicon compose --hw h100x4 --target llama-3.1-70b --draft llama-3.2-1b --out p.json
  python -m calibrate.silicon import --format llmservingsim DIR --config qwen3-32b --tp 2 --out p.json
  python -m calibrate.silicon import --format vllm-costs costs.json --lookahead 7 --machine H100 --out p.json
  python -m calibrate.silicon costs --hw h100x1-llama-3.1-8b+llama-3.2-1b --lookahead 7 --out costs.json
  python -m calibrate.silicon coverage --tables DIR
"""
TABLES = click.option(
    "--tables",
    type=click.Path(path_type=Path),
    help=f"Unpacked wheel of {PACKAGE} {VERSION}.  [default: the installed package]",
)
OUT = click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File to write."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@checked_group(epilog=EXAMPLES, context_settings=HELP)
def main() -> None:
    """Kernel times that others measured: forwards put together from them, and profiles of any pair."""


@dataclass(frozen=True, kw_only=True)
class ForwardRequest:
    """What `calibrate.silicon forward` is asked."""

    system: str = option(None, "GPU: the name of a yaml of the tables, or h100, a100, ...", required=True)
    config: str = option(None, "Network: a config.json, a folder with one, or a name.", required=True)
    rows: int = option(1, "Rows of the batch.", type=POSITIVE)
    tokens_per_row: int = option(1, "New tokens of each row: 1 decodes, 1 + K verifies.", type=POSITIVE)
    context: int = option(0, "Tokens of each row that are cached before.", type=click.IntRange(min=0))
    tp: int = option(1, "GPUs that every layer is spread over.", type=POSITIVE)
    engine: Literal["vllm", "sglang", "trtllm"] = option("vllm", "Whose kernels.")
    precision: str | None = option(None, "Of the weights, as the tables call it.  [default: the config's]")
    distribution: Literal["balanced", "power_law_1.01", "power_law_1.2"] = option(
        "power_law_1.01", "How tokens spread over experts."
    )
    correlation: float = option(
        0.0, "Of one row's experts: 0 independent, 1 all the same.", type=click.FloatRange(0, 1)
    )
    head: bool = option(True, "With output matrix and sampler.", spelled=("--head/--no-head",))
    eager: bool = option(False, "Kernels launched one by one, not as a captured graph.")
    capture_limit: int = option(CAPTURE_LIMIT, "Tokens of the largest captured graph.", type=POSITIVE)


@main.command(context_settings=HELP)
@with_options(click_options(ForwardRequest))
@TABLES
@JSON
def forward(tables: Path | None, *, as_json: bool, **options: Any) -> None:
    """Seconds of one forward, and the cells that they are put together from."""
    request = typed(ForwardRequest, options)
    with refusals(kinds=BAD_INPUT):
        composer = composer_of(request, tables)
        composed = composer.forward(request.rows, request.tokens_per_row, request.context, head=request.head)
    if as_json:
        click.echo(to_json(_plain(request, composer, composed), indent=2))
        return
    rows = [(p.name, f"{p.count:g}", f"{1e6 * p.seconds:.1f}", p.how, p.cells) for p in composed.parts]
    where = f"{composer.network.shape.name} on {request.tp} x {composer.tables.gpu.name}"
    title = f"{where}: {1e3 * composed.seconds:.3f} ms"
    console = wide_console()
    console.print(wrapped_table(("kernel", "times", "us", "how", "cells"), rows, title=title, right=(1, 2)))
    if composed.floor_s:
        click.echo(f"launched one by one: at least {1e3 * composed.floor_s:.1f} ms whatever its kernels take")


def composer_of(request: ForwardRequest, tables: Path | None) -> Composer:
    """The network on its GPUs.

    Raises:
        ValueError: Tables, GPU or network cannot be found, or the tables are not of it.
    """
    systems = find_tables(tables)
    network = find_network(request.config, tables=tables, precision=request.precision)
    return Composer(
        Tables(systems, request.system, request.engine),
        network,
        request.tp,
        eager=request.eager,
        distribution=request.distribution,
        correlation=request.correlation,
        capture_limit=request.capture_limit,
    )


def _plain(request: ForwardRequest, composer: Composer, composed: Forward) -> dict[str, Any]:
    return {
        "seconds": composed.seconds,
        "system": composer.tables.gpu.name,
        "model": composer.network.shape.name,
        "precision": composer.network.dtype,
        "engine": request.engine,
        "rows": request.rows,
        "tokens_per_row": request.tokens_per_row,
        "context": request.context,
        "tensor_parallel": request.tp,
        "launch_floor_s": composed.floor_s,
        "kernels_s": sum(part.seconds for part in composed.parts),
        "shares": composed.interpolated,
        "cells": [part.as_dict() for part in composed.parts],
        "tables": {"package": PACKAGE, "version": VERSION, "files": sorted(composer.tables.used)},
    }


@dataclass(frozen=True, kw_only=True)
class ComposeRequest:
    """What `calibrate.silicon compose` is asked; as `hardware_profiles.pairs.Pair`."""

    hw: str = option(None, "GPU, with or without their number: h100, a100x8.", required=True)
    target: str = option(None, "Target: a config.json, a folder with one, or a name.", required=True)
    draft: str = option(
        None,
        "Draft, given in the same ways; eagle3:TARGET, eagle:TARGET, mtp:TARGET: that target's head.",
        required=True,
    )
    tp: int | None = option(None, "GPUs of the target.  [default: as --hw says, else 1]", type=POSITIVE)
    draft_tp: int = option(1, "GPUs of the draft.", type=POSITIVE)
    placement: Literal["own", "shared"] = option(
        "own", "GPUs of its own for the draft, or the target's in turns.", spelled=("--draft-placement",)
    )
    engine: Literal["vllm", "sglang", "trtllm"] = option("vllm", "Whose kernels.")
    precision: str | None = option(None, "Of the target's weights.  [default: the config's]")
    eager: bool = option(False, "Kernels launched one by one, not as captured graphs.")
    capture_limit: int = option(CAPTURE_LIMIT, "Tokens of the largest captured graph.", type=POSITIVE)
    expert_correlation: float = option(
        0.0, "Of one row's experts: 0 independent, 1 all the same.", type=click.FloatRange(0, 1)
    )
    expert_distribution: Literal["balanced", "power_law_1.01", "power_law_1.2"] = option(
        "power_law_1.01", "How tokens spread over experts."
    )
    host_gap_ms: float = option(
        1e3 * HOST_GAP_S, "Between two forwards of the target.", type=click.FloatRange(0)
    )


@main.command(context_settings=HELP)
@with_options(click_options(ComposeRequest))
@TABLES
@OUT
@JSON
def compose(tables: Path | None, out: Path, *, as_json: bool, **options: Any) -> None:
    """Write the profile of a pair, put together from measured kernels."""
    options["host_gap_s"] = 1e-3 * options.pop("host_gap_ms")
    with refusals(kinds=BAD_INPUT):
        started = perf_counter()
        profile, origin = pair_profile(Pair(**options, tables=tables))
        spent = perf_counter() - started
        save_profile(profile, out)
    _said(profile, out, origin, spent, as_json=as_json)


def _said(profile: Profile, out: Path, origin: str, spent: float, *, as_json: bool) -> None:
    rests = {name: profile.provenance_of(name).note for name in profile.operations}
    if as_json:
        plain = {
            "name": profile.name,
            "out": str(out),
            "origin": origin,
            "seconds_to_compose": spent,
            "rests_on": rests,
        }
        click.echo(to_json(plain, indent=2))
        return
    click.echo(f"{profile.description} ({origin}, {spent:.1f} s)")
    for name, note in rests.items():
        click.echo(f"  {name}: {note}")
    click.echo(f"wrote {out}\nnext: simulate --hw {out} --acceptance 0.8")


@main.command(context_settings=HELP)
@TABLES
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder to write."
)
def ship(tables: Path | None, out: Path) -> None:
    """Write the profiles that come with the package again (`hardware_profiles.pairs.USUAL`)."""
    with refusals(kinds=BAD_INPUT):
        systems = find_tables(tables)
        out.mkdir(parents=True, exist_ok=True)
        for pair in USUAL:
            profile = compose_pair(pair, systems, SMALL_TICKS)
            save_profile(profile, out / f"{profile.name}.json")
            click.echo(f"wrote {out / profile.name}.json")


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """What `calibrate.silicon import` is asked."""

    format: Literal["llmservingsim", "forwards", "vllm-costs"] = option(
        "llmservingsim",
        "Folder of layers' times; a CSV of tokens, context, ms and perhaps rows; or vLLM's start-up costs.",
    )
    config: str | None = option(None, "Network whose layers they are (llmservingsim).")
    tp: int = option(1, "GPUs of the target.", type=POSITIVE)
    draft: Path | None = field(
        default=None,
        metadata=about("Folder of a draft's layers.", type=click.Path(exists=True, path_type=Path)),
    )
    draft_config: str | None = option(None, "Network of the draft; without its layers, with --device.")
    device: str | None = option(None, "Whose roofline the draft is priced by, if its layers were not timed.")
    link_gbs: float = option(
        16.0,
        "GB/s between GPUs, one direction: all-reduces are not in these tables.",
        type=click.FloatRange(0, min_open=True),
    )
    link_us: float = option(20.0, "Latency of a message between GPUs.", type=click.FloatRange(0))
    machine: str = option("not stated", "What was timed (forwards, vllm-costs).")
    lookahead: int | None = option(None, "Tokens that drafting drafts (vllm-costs).", type=POSITIVE)


@main.command("import", context_settings=HELP)
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@with_options(click_options(ImportRequest))
@OUT
@JSON
def import_layers(source: Path, out: Path, *, as_json: bool, **options: Any) -> None:
    """Make a measured profile of times that somebody profiled: layer by layer, or whole forwards."""
    with refusals(kinds=BAD_INPUT):
        started = perf_counter()
        profile = imported(source, typed(ImportRequest, options), name=out.stem)
        save_profile(profile, out)
    _said(profile, out, str(source), perf_counter() - started, as_json=as_json)


@main.command()
@click.option("--hw", required=True, help="Hardware profile: a name, shipped:NAME or a file.")
@click.option("--lookahead", required=True, type=POSITIVE, help="K, drafted tokens per round.")
@click.option(
    "--context", default=0, show_default=True, type=click.IntRange(min=0), help="At which all are timed."
)
@click.option("--requests", default=256, show_default=True, type=POSITIVE, help="Of the largest batch.")
@OUT
def costs(*, hw: str, lookahead: int, context: int, requests: int, out: Path) -> None:
    """Write the cost curves that vLLM's adaptive verification would time of a profile's pair."""
    with refusals(kinds=BAD_INPUT):
        profile = load_profile(find_profile(hw))
        curves = curves_of(profile, lookahead=lookahead, context=context, most=requests)
        write_json(out, curves.as_dict())
    click.echo(f"wrote {out}: {len(curves.verify)} verifications, {len(curves.draft)} drafts of {lookahead}")


def imported(source: Path, request: ImportRequest, *, name: str) -> Profile:
    """The profile of a folder or a file.

    Raises:
        ValueError: It cannot be read, or options lack their partner.
    """
    if (request.lookahead is not None) != (request.format == "vllm-costs"):
        raise ValueError("--lookahead goes with --format vllm-costs, and that with it")
    if request.format == "forwards":
        return forwards_profile(source, name=name, machine=request.machine)
    if request.lookahead is not None:
        curves = read_curves(source)
        return curves_profile(curves, name=name, machine=request.machine, lookahead=request.lookahead)
    if request.config is None:
        raise ValueError("--config says whose layers they are")
    if (request.draft is None and request.device is None) != (request.draft_config is None):
        raise ValueError(
            "--draft-config goes with --draft, its layers, or with --device, whose roofline prices it"
        )
    link = Link(1e9 * request.link_gbs, 1e-6 * request.link_us)
    target = Layers(source, find_network(request.config), request.tp, link)
    if request.draft_config is None:
        return layers_profile(target, name=name)
    if request.draft is None:
        return with_roofline_draft(
            layers_profile(target, name=name), request.draft_config, str(request.device)
        )
    return layers_profile(target, Layers(request.draft, find_network(request.draft_config)), name=name)


def with_roofline_draft(profile: Profile, draft: str, device: str) -> Profile:
    """The profile with a draft that a roofline prices on a device.

    Raises:
        ValueError: Draft or device is not known.
    """
    setting = Setting(find_shape(draft), find_device(device), find_precision("bf16"))
    engine = ENGINES["ssd"]
    basis = Basis(engine.efficiency, Provenance(kind="roofline", note=engine.note))
    operations = {name: predicted_grid(name, setting, basis) for name in ROLE_OPERATIONS["draft"]}
    return profile.but(
        roles=profile.roles.but(draft=predicted_role(setting)),
        operations={**profile.operations, **operations},
    )


@main.command("coverage", context_settings=HELP)
@TABLES
@JSON
def show_coverage(tables: Path | None, *, as_json: bool) -> None:
    """Which GPU has which operations in which precisions, by engine; every version with --json."""
    with refusals(kinds=BAD_INPUT):
        rows = coverage(find_tables(tables))
    if as_json:
        click.echo(to_json(rows, indent=2))
        return
    engines = [name for name in (*KERNEL_ENGINES, "nccl") if any(r["engine"] == name for r in rows)]
    types: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        types.setdefault((row["gpu"], row["table"], row["engine"]), set()).update(row["types"])
    cells = [
        (
            gpu,
            table.removesuffix("_perf"),
            *(", ".join(sorted(types.get((gpu, table, e), "-"))) for e in engines),
        )
        for gpu, table in dict.fromkeys((r["gpu"], r["table"]) for r in rows)
    ]
    title = f"{PACKAGE} {VERSION}: precisions of all versions"
    wide_console().print(wrapped_table(("GPU", "operation", *engines), cells, title=title))


@main.command(context_settings=HELP)
@TABLES
@JSON
def check(tables: Path | None, *, as_json: bool) -> None:
    """Read every table that forwards are put together from; ends with an error at the first damaged one."""
    with refusals(kinds=BAD_INPUT):
        systems = find_tables(tables)
        rows = coverage(systems)
    total = {"tables": len(rows), "rows": sum(row["rows"] for row in rows), "folder": str(systems)}
    click.echo(
        to_json(total) if as_json else f"{total['tables']} tables, {total['rows']} rows in {systems}: sound"
    )


if __name__ == "__main__":
    main()
