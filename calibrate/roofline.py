"""`python -m calibrate.roofline`: fit a roofline to a measured profile, and predict one that nobody measured.

`fit` says which shares of a device's peaks the measured operations reach, and how well that predicts points
left out.  `predict` prices an architecture on a device and writes a profile of kind `roofline`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from hardware_profiles.files import to_json
from hardware_profiles.predicted import (
    ROLE_OPERATIONS,
    Basis,
    predicted_operations,
    predicted_role,
    setting_of,
    turns,
)
from hardware_profiles.profile import Profile, Roles, load_profile, save_profile, unmeasured
from hardware_profiles.records import plain
from hardware_profiles.roofline import (
    ENGINES,
    RooflineError,
    RooflineFit,
    Setting,
    carried_error,
    default_engine,
    find_device,
    find_precision,
    fit_roofline,
)
from hardware_profiles.shapes import find_shape
from hardware_profiles.store import find_profile
from hardware_profiles.surface import GridCost, OperationName, Provenance, RoleName
from policies.commandline import (
    BAD_INPUT,
    HELP,
    POSITIVE,
    about,
    checked_group,
    click_options,
    fitted_table,
    option,
    refusals,
    wide_console,
    with_options,
)

EXAMPLES = """
\b
Examples:
  python -m calibrate.roofline fit --hw cpu2-x5
  python -m calibrate.roofline fit --hw cpu2-x5 --against cpu2-x20
  python -m calibrate.roofline predict --device h100 --target llama-3.1-70b --draft llama-3.2-1b --tp 4 \\
      --out p.json
  python -m calibrate.roofline predict --device xeon16 --precision fp32 --target qwen2.5-0.5b \\
      --draft pair:draft --out p.json
  simulate --hw p.json --acceptance 0.8
"""


@checked_group(epilog=EXAMPLES, context_settings=HELP)
def main() -> None:
    """Roofline: what an operation computes and moves, over a device's peaks, with fitted efficiencies."""


@main.command(context_settings=HELP)
@click.option("--hw", required=True, help="Measured profile: a name or a file.")
@click.option("--against", help="Another profile, to whose grids the fit is carried.")
@click.option("--target", help="The target's architecture.  [default: by the profile's name of the model]")
@click.option("--draft", help="The draft's architecture.")
@click.option("--device", help="Whose peaks the shares are of.  [default: the profile's, cpu-core on a CPU]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def fit(
    hw: str, against: str | None, target: str | None, draft: str | None, device: str | None, *, as_json: bool
) -> None:
    """Fit efficiencies to the grids of a measured profile; errors are of a third of the points left out."""
    with refusals(kinds=BAD_INPUT):
        profile = _measured(hw)
        fits = fit_profile(profile, _settings(profile, target, draft, device))
        carried = carry(fits, _measured(against)) if against else {}
    if as_json:
        operations: dict[str, Any] = {name: one.as_dict() for name, one in fits.items()}
        for name, error_of in carried.items():
            operations[name]["carried_error"] = plain(error_of)
        click.echo(to_json({"profile": profile.name, "operations": operations}, indent=2))
        return
    _print(profile, fits, carried, against)


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """What `calibrate.roofline predict` is asked."""

    device: str = option(
        None, "Where the target runs (and the draft, if nothing else is said).", required=True
    )
    draft_device: str | None = option(None, "Where the draft runs.")
    target: str = option(None, "Architecture: a name, a config.json or a folder with one.", required=True)
    draft: str = option(None, "Architecture of the draft, given in the same ways.", required=True)
    tp: int = option(1, "Devices of the target.", type=POSITIVE)
    draft_tp: int = option(1, "Of the draft.", type=POSITIVE)
    placement: Literal["split", "shared"] = option(
        "split", "Devices of their own, or the same ones in turns."
    )
    like: str | None = option(
        None,
        "Whose efficiencies: a measured profile, or an engine (ssd, transformers).  "
        "[default: ssd on an accelerator, cpu2-x5 on a CPU]",
    )
    precision: str = option("bf16", "fp32, fp64, bf16, fp16 or q5_k_m.")
    name: str | None = option(None, "Of the profile.  [default: from device and models]")
    out: Path = field(
        metadata=about("File to write.", type=click.Path(dir_okay=False, path_type=Path), required=True)
    )


@main.command(context_settings=HELP)
@with_options(click_options(PredictionRequest))
def predict(**options: Any) -> None:
    """Price an architecture on a device: writes a profile that `simulate --hw FILE --acceptance A` takes."""
    request = PredictionRequest(**options)
    with refusals(kinds=BAD_INPUT):
        profile = predicted(request)
        save_profile(profile, request.out)
    for names, text in unmeasured(profile).items():
        click.echo(f"{names}: {text}")
    click.echo(f"wrote {request.out}")
    click.echo(f"next: simulate --hw {request.out} --acceptance 0.8")


def fit_profile(profile: Profile, settings: dict[RoleName, Setting]) -> dict[OperationName, RooflineFit]:
    """A fit per operation that has a grid.

    Raises:
        RooflineError: None has.
    """
    fits = {
        name: fit_roofline(name, cost, settings[role])
        for role, names in ROLE_OPERATIONS.items()
        for name in names
        if isinstance(cost := profile.operations.get(name), GridCost)
    }
    if not fits:
        raise RooflineError(f"profile {profile.name!r} has no grids to fit a roofline to")
    return fits


def carry(fits: dict[OperationName, RooflineFit], other: Profile) -> dict[OperationName, Any]:
    """Errors of the fits on the grids of another profile."""
    settings = _settings(other, None, None, None)
    return {
        name: carried_error(
            name, cost, settings["target" if name.startswith("target") else "draft"], f.efficiency
        )
        for name, f in fits.items()
        if isinstance(cost := other.operations.get(name), GridCost)
    }


def predicted(request: PredictionRequest) -> Profile:
    """The profile that a request describes.

    Raises:
        ValueError: An unknown device, architecture, precision or engine.
    """
    precision = find_precision(request.precision)
    device = find_device(request.device)
    beside = find_device(request.draft_device or request.device)
    shared = request.placement == "shared"
    if shared and (beside != device or request.draft_tp != request.tp):
        raise ValueError(
            "--placement shared means the same devices: leave out --draft-device, and give --draft-tp as --tp"
        )
    target = Setting(find_shape(request.target), device, precision, request.tp)
    draft = Setting(find_shape(request.draft), beside, precision, request.draft_tp)
    bases = {**_bases("target", target, request.like), **_bases("draft", draft, request.like)}
    many = f"{request.tp} x {device.name}" if request.tp > 1 else device.name
    costs = "both take turns on the same devices" if shared else "work side by side costs nothing"
    return Profile(
        name=request.name or f"{device.name}x{request.tp}-{target.shape.name}-roofline".replace(":", "-"),
        description=f"{target.shape.name} on {many}, drafted for by {draft.shape.name} on {beside.name}; "
        "nothing of it was measured",
        roles=Roles(target=predicted_role(target), draft=predicted_role(draft)),
        placement="shared" if shared else "split",
        operations=predicted_operations(target, draft, bases),
        overlap=turns() if shared else (),
        provenance=Provenance(
            kind="roofline", note=f"host time is not part of it; {costs} (assumed); no jitter"
        ),
    )


def _bases(role: RoleName, setting: Setting, like: str | None) -> dict[OperationName, Basis]:
    """What the operations of a role rest on: an engine, or the fit of a measured profile."""
    engine = ENGINES.get(like) if like else default_engine(setting.device)
    if engine is not None:
        origin = Provenance(kind="roofline", note=engine.note)
        return {name: Basis(engine.efficiency, origin) for name in ROLE_OPERATIONS[role]}
    profile = _measured(like or "cpu2-x5")
    fits = fit_profile(profile, _settings(profile, None, None, None))
    return {name: _fitted_basis(profile, fits[name]) for name in ROLE_OPERATIONS[role] if name in fits}


def _fitted_basis(profile: Profile, one: RooflineFit) -> Basis:
    note = (
        f"efficiencies of {one.operation} in profile {profile.name}, whose own error on points left out is "
        f"{100 * one.error.median:.0f} % (95 %: {100 * one.error.p95:.0f} %); another model or device is "
        "further off"
    )
    return Basis(one.efficiency, Provenance(kind="roofline", note=note), one.error)


def _measured(name: str) -> Profile:
    """A profile whose grids were measured.

    Raises:
        RooflineError: They were not.
    """
    profile = load_profile(find_profile(name))
    if profile.provenance.kind != "measured":
        raise RooflineError(
            f"profile {profile.name!r} is not measured ({profile.provenance.kind}): a roofline fitted to it "
            "would only return what was put in"
        )
    return profile


def _settings(
    profile: Profile, target: str | None, draft: str | None, device: str | None
) -> dict[RoleName, Setting]:
    return {
        "target": setting_of(profile.roles.target, shape=target, device=device),
        "draft": setting_of(profile.roles.draft, shape=draft, device=device),
    }


def _print(
    profile: Profile,
    fits: dict[OperationName, RooflineFit],
    carried: dict[OperationName, Any],
    against: str | None,
) -> None:
    titles = ("operation", "compute", "bandwidth", "us/block", "left out", "beyond")
    rows = []
    for name, one in fits.items():
        efficiency = one.efficiency
        shares = (efficiency.compute, efficiency.bandwidth)
        errors = [one.error, one.beyond, *([carried.get(name)] if carried else [])]
        rows.append(
            (
                name,
                *("-" if share is None else f"{100 * share:.0f} %" for share in shares),
                f"{1e6 * efficiency.layer_s:.0f}",
                *(f"{100 * error.median:.1f} / {100 * error.p95:.1f} %" if error else "" for error in errors),
            )
        )
    shown = (*titles, *([f"on {against}"] if carried else []))
    table = fitted_table(shown, rows, drop=titles[1:4], title=f"roofline of {profile.name}")
    wide_console().print(table)
    click.echo(
        "compute and bandwidth: shares of nominal peaks (hardware_profiles/roofline.py), - where the grid "
        "shows no such cost; errors: median / 95 % on points left out, a third of the grid at a time, and "
        "beyond, the third with the most FLOPs from the rest"
    )


if __name__ == "__main__":
    main()
