"""The calibration job that the options of a command describe."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

trust_option = click.option(
    "--trust-remote-code",
    is_flag=True,
    help="Run code that a model or tokenizer brings with it; without this, it never is.",
)


def make_job(options: dict[str, Any]) -> Any:
    """The calibration job that the options describe; options left out have the command's defaults.

    Raises:
        WrongMachine: `--hw` names another machine.
        ValueError: Bad prompts, models, placement, sampling or batches.
    """
    from calibrate.adaptive import scouting_wish
    from calibrate.job import Job, default_name
    from calibrate.live.placement import check_backend, is_local_model, parse_placement
    from calibrate.machine import find_machine, require, require_devices
    from calibrate.models import PREFIX, resolve_shape
    from calibrate.pair.embed import resolve_model
    from calibrate.prompts import find_prompts, load_prompts, spread
    from policies.sampling import Sampling

    options = DEFAULTS | options
    temperatures = options["temperature"]
    if isinstance(temperatures, int | float):
        temperatures = (float(temperatures),)
    for temperature in temperatures:
        Sampling(temperature, options["top_p"])
    if options["top_p"] != 1.0 and not any(temperatures):
        raise ValueError(
            "--top-p changes nothing at temperature 0; give a temperature, e.g. --temperature 0,1"
        )
    machine = find_machine()
    require(options["hw"], machine)
    placement, backend = parse_placement(options["placement"]), options["draft_backend"]
    check_backend(backend)
    require_devices(placement, machine, backend, sampled=any(temperatures))
    prompts = load_prompts(find_prompts(options["prompts"]))
    count = options["count"] or (-(-len(prompts) // 2) if options["quick"] else None)
    if count is not None:
        prompts = spread(prompts, count)
    folders = [
        str((resolve_shape if name.startswith(PREFIX) else resolve_model)(name))
        for name in (options["target"], options["draft"])
    ]
    for folder in folders:
        is_local_model(folder)
    return Job(
        machine=machine,
        target=folders[0],
        draft=folders[1],
        names=(options["target"], options["draft"]),
        prompts=tuple(prompts),
        prompt_set=options["prompts"] if "/" not in options["prompts"] else Path(options["prompts"]).stem,
        placement=placement,
        limit=options["max_tokens"],
        quick=options["quick"],
        name=options["name"] or default_name(machine, options["target"], placement, backend),
        seed=options["seed"],
        command=shlex.join(["calibrate", *sys.argv[1:]]),
        temperatures=tuple(temperatures),
        top_p=options["top_p"],
        ranks=options["ranks"],
        batches=tuple(options["batches"]),
        mode=options["mode"],
        temperature=temperatures[0],
        passes=options["passes"],
        apart_s=60.0 * options["apart"],
        scouting=scouting_wish(options["until_error"], options["time_budget"]),
        precision=options["precision"],
        draft_backend=backend,
        trust_remote_code=options["trust_remote_code"],
    )


DEFAULTS: dict[str, Any] = {
    "top_p": 1.0,
    "ranks": None,
    "batches": (1, 2, 4, 8),
    "mode": "eager",
    "count": None,
    "quick": False,
    "name": None,
    "passes": 1,
    "apart": 0.0,
    "until_error": None,
    "time_budget": None,
    "precision": "fp32",
    "draft_backend": "torch",
    "trust_remote_code": False,
}
"""Options that other commands, which make a job too, need not give."""
