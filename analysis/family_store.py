"""Live runs of `analysis.family_cli` on disk: speeds as JSON, decisions as decision traces beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.family import Group, Measured
from calibrate.live_runs import plain_knobs
from hardware_profiles.decisions import DecisionTrace, read_decisions, write_decisions
from hardware_profiles.jsonfile import read_json, write_json
from policies.registry import KNOBS, Settings, configure

FORMAT = "spectwin/family/1"
FILE = "measured.json"


def save_groups(groups: Sequence[Group], asked: Mapping[str, Any], folder: Path) -> None:
    """Write what was measured to a folder: `measured.json`, and a decision trace per repetition.

    Args:
        groups: By temperature.
        asked: How it was made: profile, prompts, seed.
        folder: Made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for group in groups:
        for repeat, trace in enumerate(_together(group)):
            write_decisions(trace, folder / _decisions_file(group.temperature, repeat))
    told = {"format": FORMAT, "asked": dict(asked), "groups": [_plain_group(group) for group in groups]}
    write_json(folder / FILE, told, indent=1)


def load_groups(path: Path) -> tuple[list[Group], dict[str, Any]]:
    """What was measured, and how it was made.

    Args:
        path: `measured.json`, or the folder that holds it.

    Raises:
        ValueError: Not such a file.
        TraceError: A decision trace beside it is missing or damaged.
    """
    file = path / FILE if path.is_dir() else path
    try:
        told = read_json(file)
        if told["format"] != FORMAT:
            raise ValueError(f"its format is {told['format']!r}, not {FORMAT!r}")
        return [_group(each, file.parent) for each in told["groups"]], told["asked"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file}: no live runs of `python -m analysis.family_cli --out`: {error}") from error


def _decisions_file(temperature: float, repeat: int) -> str:
    return f"decided-t{temperature:g}-{repeat}.parquet"


def _together(group: Group) -> list[DecisionTrace]:
    """What all settings decided, one trace per repetition."""
    found: list[DecisionTrace] = []
    for member in group.members:
        for repeat, trace in enumerate(member.decided):
            if repeat == len(found):
                found.append(trace)
            found[repeat] = found[repeat].merged(trace)
    return found


def _plain_group(group: Group) -> dict[str, Any]:
    return {
        "temperature": group.temperature,
        "plain": _plain_member(group.plain),
        "members": [_plain_member(member) for member in group.members],
    }


def _plain_member(member: Measured) -> dict[str, Any]:
    settings = member.settings
    return {
        "policy": settings.policy,
        "knobs": plain_knobs(settings),
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "seed": settings.seed,
        "speeds": [{name: list(both) for name, both in speeds.items()} for speeds in member.speeds],
        "identical": member.identical,
        "decided": len(member.decided),
    }


def _group(told: Mapping[str, Any], folder: Path) -> Group:
    plain, *members = (_member(each) for each in (told["plain"], *told["members"]))
    most = max((each["decided"] for each in told["members"]), default=0)
    traces = [read_decisions(folder / _decisions_file(told["temperature"], i)) for i in range(most)]
    return Group(
        plain,
        tuple(
            Measured(m.settings, m.speeds, m.identical, tuple(traces[: each["decided"]]))
            for m, each in zip(members, told["members"], strict=True)
        ),
    )


def _member(told: Mapping[str, Any]) -> Measured:
    speeds = [{name: (both[0], both[1]) for name, both in each.items()} for each in told["speeds"]]
    return Measured(_settings(told), tuple(speeds), told["identical"])


def _settings(told: Mapping[str, Any]) -> Settings:
    knobs = {
        name: tuple(value) if KNOBS[name].kind == "integers" and isinstance(value, list) else value
        for name, value in told["knobs"].items()
    }
    return configure(
        told["policy"], temperature=told["temperature"], top_p=told["top_p"], seed=told["seed"], **knobs
    )
