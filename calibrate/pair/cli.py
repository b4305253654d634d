"""The commands of the pair: its training and its forms, its report, its steps.  Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calibrate.live.placement import GGUF_PRECISIONS
from calibrate.options import TRUST
from calibrate.shipped import DATA, cache_folder, resolve_model
from policies.commandline import POSITIVE, Command, checked_group, wide_console, with_options

if TYPE_CHECKING:
    from calibrate.pair.heads import HeadKind

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
PATH = click.Path(path_type=Path)


@checked_group()
def pair() -> None:
    """A real target/draft pair, trained from the Python standard library.

    \b
    Examples:
      pair report                     how the shipped pair behaves
      pair embed x20 --out big/       the shipped target at the cost of a larger shape
      pair build --minutes 50 --out my-pair/
    """


@pair.command()
@click.option("--out", type=PATH, required=True, help="Folder of the pair.")
@click.option(
    "--work",
    type=PATH,
    help="Folder of checkpoints; a second call with it goes on.  [default: in the user's cache]",
)
@click.option("--minutes", type=float, help="Limit of the training stages.  [default: fixed steps]")
@click.option("--seed", default=20240, show_default=True, help="Seed of weights and batches.")
def build(out: Path, work: Path | None, minutes: float | None, seed: int) -> None:
    """Train a pair: corpus, tokenizer, target, loop fix, draft, prompts and report.

    Without --minutes the stages run a fixed number of steps (about an hour on two cores) and repeat
    exactly; with it, the result depends on the speed of the machine. Stop it at any time: the same
    command goes on from the last checkpoint, which is at most a minute old.

    \b
    Examples:
      pair build --out my-pair/
      pair build --out quick/ --minutes 5 --work quick-work/
    """
    from calibrate.pair import build as building

    limit = "steps" if minutes is None else f"{minutes:g}min"
    work = work or cache_folder("pairs") / f"build-{seed}-{limit}"
    with building.stage_bars() as bars:
        building.build(building.Job(out=out, work=work, seed=seed, minutes=minutes), bars)
    click.echo(f"{out}")


@pair.command()
@click.argument("name_or_shape")
@click.option("--out", type=PATH, required=True, help="Folder to write.")
@click.option(
    "--source",
    type=FOLDER,
    default=DATA / "target",
    help="Folder of the Llama to embed.  [default: the shipped target]",
)
def embed(name_or_shape: str, out: Path, source: Path) -> None:
    """Put a model into a larger shape that computes the same function.

    NAME_OR_SHAPE is a named shape (x5, x20) or WIDTHxDEPTH[xINTERMEDIATE], multipliers that may be
    fractions as long as heads, units and layers stay whole.

    \b
    Examples:
      pair embed x20 --out big/
      pair embed 3x2 --out big/
      pair embed 3/2x1 --source my-pair/target --out wider/
    """
    from calibrate.pair.embed import save_embedding, shape_of

    try:
        save_embedding(source, shape_of(name_or_shape), out)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    click.echo(f"{out}")


def _of_heads(model: str, name: str, *, steps: int) -> Callable[[Command], Command]:
    """Options of a command that trains heads called `name` on the shipped pair's `model` or one like it."""
    options = (
        click.option(
            f"--{model}",
            "folder",
            type=FOLDER,
            default=DATA / model,
            help=f"Folder of the {model}; {name}.safetensors and {name}.json are written there.  "
            "[default: shipped]",
        ),
        click.option("--work", type=PATH, help="Folder of the checkpoint.  [default: in the user's cache]"),
        click.option("--steps", default=steps, show_default=True, help="Most steps."),
        click.option("--minutes", type=float, help="Most minutes of training."),
        click.option("--seed", default=0, show_default=True, help="Seed of the initial weights."),
    )
    return with_options(options)


def _train(kind: HeadKind[Any, Any], folder: Path, work: Path | None, knobs: str = "", **how: Any) -> None:
    """Train heads under a bar and print their reports; `knobs` keeps checkpoints of other shapes apart."""
    from calibrate.pair.heads import Training, build_heads

    training = Training(**how)
    work = work or cache_folder("pairs") / f"{kind.name}-{folder.resolve().name}{knobs}-{training.seed}"
    for trained in build_heads(kind, folder, work, training):
        click.echo(trained.line)


@pair.command()
@_of_heads("target", "exits", steps=400)
def exits(**options: Any) -> None:
    """Train early exits of a target, whose own weights stay as they are (Mirror-SD), and measure them.

    The report says per exit how much of its mass the target puts on the exit's likeliest tokens.

    \b
    Examples:
      pair exits
      pair exits --target my-pair/target --minutes 10
    """
    from calibrate.pair.heads import exit_kind

    _train(exit_kind(), **options)


@pair.command()
@_of_heads("draft", "streams", steps=600)
@click.option("--streams", "count", default=3, show_default=True, type=POSITIVE, help="S.")
def streams(count: int, **options: Any) -> None:
    """Train lookahead streams of a draft, whose own weights stay as they are (speculative streaming).

    The report says per stream how often it names the token that the draft writes there.

    \b
    Examples:
      pair streams
      pair streams --draft my-pair/draft --minutes 10
    """
    from calibrate.pair.heads import stream_kind

    _train(stream_kind(count), knobs=f"-{count}", **options)


@pair.command()
@_of_heads("target", "medusa", steps=200)
def medusa(**options: Any) -> None:
    """Train Medusa heads of a target, whose own weights stay as they are, and measure them.

    The report says per position of a drafted chain how often the target accepts it.

    \b
    Examples:
      pair medusa
      pair medusa --target my-pair/target --minutes 10
    """
    from calibrate.pair.heads import medusa_kind

    _train(medusa_kind(), **options)


@pair.command()
@_of_heads("target", "hydra", steps=200)
def hydra(**options: Any) -> None:
    """Train Hydra heads of a target, whose own weights stay as they are, and measure them.

    The report says per position of a drafted chain how often the target accepts it.

    \b
    Examples:
      pair hydra
      pair hydra --target my-pair/target --minutes 10
    """
    from calibrate.pair.heads import hydra_kind

    _train(hydra_kind(), **options)


@pair.command()
@_of_heads("target", "eagle", steps=300)
def eagle(**options: Any) -> None:
    """Train an EAGLE head of a target, whose own weights stay as they are, and measure it.

    The report says per position of a drafted chain how often the target accepts it.

    \b
    Examples:
      pair eagle
      pair eagle --target my-pair/target --minutes 10
    """
    from calibrate.pair.heads import eagle_kind

    _train(eagle_kind(), **options)


@pair.command()
@_of_heads("target", "block", steps=200)
@click.option("--draft", type=FOLDER, default=DATA / "draft", help="Draft to begin with.  [default: shipped]")
def block(draft: Path, **options: Any) -> None:
    """Train a draft to say a block in one pass, and write it as `block` beside its target.

    The report says per position of a block how often the target accepts it.

    \b
    Examples:
      pair block
      pair block --target my-pair/target --draft my-pair/draft --minutes 10
    """
    from calibrate.pair.heads import block_kind

    _train(block_kind(draft), **options)


@pair.command()
@click.argument("model")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File to write.")
@click.option(
    "--type",
    "precision",
    type=click.Choice(GGUF_PRECISIONS),
    default="q8_0",
    show_default=True,
    help="Of the matrices; q8_0 is 8.5 bits per weight, q4_0 4.5.",
)
@click.option("--trust-remote-code", is_flag=True, **TRUST)
def gguf(model: str, out: Path, precision: str, trust_remote_code: bool) -> None:
    """Write a Llama as a GGUF file, for llama.cpp.

    MODEL is pair:draft and the like, or a folder. `calibrate --draft-backend llamacpp:q8_0` needs no such
    call: it makes its own file. This one has token ids but no tokenizer.

    \b
    Examples:
      pair gguf pair:draft --out draft-q8.gguf
      pair gguf my-pair/draft --out draft.gguf --type fp16
    """
    from calibrate.live.backends.gguf import export_gguf
    from calibrate.live.errors import ModelError
    from calibrate.live.loading import load_model

    try:
        folder = str(resolve_model(model))
        loaded = load_model(folder, trust_remote_code=trust_remote_code)
        export_gguf(loaded, out, precision)
    except (ModelError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"{out}: {out.stat().st_size} bytes")


@pair.command()
@click.option("--data", type=FOLDER, default=DATA, help="Folder of the pair.  [default: the shipped one]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def report(data: Path, as_json: bool) -> None:
    """Measure a pair: held-out losses, acceptance, loops and sizes (about a minute).

    The held-out text is that of the running interpreter, so another version of Python than the one
    the pair was trained on gives slightly other losses.

    \b
    Examples:
      pair report
      pair report --json > report.json
      pair report --data my-pair/
    """
    from calibrate.pair.report import measure_pair, report_table

    measured = measure_pair(data)
    if as_json:
        click.echo(measured.to_json(), nl=False)
        return
    wide_console().print(report_table(measured))


@pair.command()
@click.argument("shapes", nargs=-1)
@click.option("--repeats", default=30, show_default=True, help="Turns that every model takes.")
def steps(shapes: tuple[str, ...], repeats: int) -> None:
    """Time single-threaded steps of the shipped pair and of SHAPES (default: the named ones).

    \b
    Examples:
      pair steps
      pair steps 3/2x1 2x2 --repeats 10
    """
    from calibrate.live.loading import load_model
    from calibrate.pair.embed import EMBEDDINGS, embed, shape_of
    from calibrate.pair.report import measure_steps, steps_table

    models = {name: load_model(DATA / name) for name in ("draft", "target")}
    try:
        models |= {name: embed(models["target"], shape_of(name)) for name in shapes or EMBEDDINGS}
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    wide_console().print(steps_table(measure_steps(models, repeats=repeats)))


if __name__ == "__main__":
    pair()
