"""`calibrate decide`: record what a policy decides on the real pair, for its replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from policies.commandline import HELP, Refusal, knob_options, split_integers
from policies.knobs import KNOBS

EXAMPLES = """
\b
Examples:
  calibrate decide --policy saguaro --hw cpu2-x5 --count 16
  calibrate decide --policy pld --lookaheads 2,4,8 --temperature 1 --out decisions.parquet
\b
Settings that the file already holds stay in it, so that it grows call by call.
"""


@click.command(epilog=EXAMPLES, context_settings=HELP)
@click.option("--policy", required=True, help="Policy (see simulate --list-policies).")
@click.option(
    "--hw", default="cpu2-x5", show_default=True, help="Profile whose pair is run; names the file, too."
)
@click.option(
    "--prompts", default="calibration", show_default=True, help="Shipped set or a Spec-Bench JSONL file."
)
@click.option("--count", type=click.IntRange(min=1), help="Use this many of the prompts, of all categories.")
@click.option("--max-tokens", default=128, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--lookaheads", callback=split_integers, help="Several settings at once, in place of --lookahead."
)
@knob_options()
@click.option("--temperature", type=float, default=0.0, show_default=True, help="Of both models.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Mass of the laws that is kept.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File.  [default: the user's, by the names of profile and policy]",
)
def decide(**options: Any) -> None:
    """Record a decision trace: one untimed run of the policy on the real pair.

    Policies fed by tokens off the recorded path (trees, retrieval, streaming drafts) are replayed from it;
    `simulate --decisions FILE` uses it.
    """
    try:
        path, labels = _decide(options)
    except KeyboardInterrupt as error:
        raise click.Abort from error
    except (ValueError, OSError, RuntimeError) as error:
        raise Refusal(str(error)) from error
    except ImportError as error:
        raise Refusal(f"{error}; calibrate needs torch: pip install 'spectwin[live]'") from error
    for label in labels:
        click.echo(f"recorded {label}")
    click.echo(f"wrote {path}")


def _decide(options: dict[str, Any]) -> tuple[Path, list[str]]:
    from calibrate.decisions import decide_pair
    from calibrate.display import show_progress
    from calibrate.prompts import find_prompts, load_prompts, spread
    from hardware_profiles.decisions import read_decisions, write_decisions
    from hardware_profiles.profile import load_profile
    from hardware_profiles.store import decisions_name, find_profile, user_decisions
    from policies.registry import configure

    profile = load_profile(find_profile(options["hw"]))
    knobs = {name: options[name] for name in KNOBS}
    lookaheads = options["lookaheads"] or (options["lookahead"],)
    settings = [
        configure(
            options["policy"],
            temperature=options["temperature"],
            top_p=options["top_p"],
            seed=options["seed"],
            **{**knobs, "lookahead": lookahead},
        )
        for lookahead in lookaheads
    ]
    prompts = load_prompts(find_prompts(options["prompts"]))
    if options["count"] is not None:
        prompts = spread(prompts, options["count"])
    name = decisions_name(profile.name, settings[0].policy, options["temperature"], options["top_p"])
    path: Path = options["out"] or user_decisions(name)
    with show_progress() as progress:
        trace = decide_pair(
            profile,
            settings,
            prompts,
            prompt_set=options["prompts"],
            limit=options["max_tokens"],
            progress=lambda done, total: progress("settings", done, total),
        )
    if path.is_file():
        trace = read_decisions(path).merged(trace)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_decisions(trace, path)
    return path, [each.label for each in settings]
